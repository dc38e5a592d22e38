//! The short form of fuzzing, for ordinary tests: a target's whole corpus, then mutations of it that are the
//! same in every run. Included by each crate that has targets.

use std::fs;
use std::path::PathBuf;

/// Longer inputs only take longer.
const LONGEST: usize = 4096;

/// Mutations of each target. `FUZZ_ROUNDS` asks for more.
const ROUNDS: u64 = 20_000;

/// Runs `target` on all of `fuzz/corpus/<name>` and on mutations of it.
pub(crate) fn run(name: &str, target: fn(&[u8])) {
    let directory: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", name].iter().collect();
    let mut files: Vec<PathBuf> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The order of a directory is not the same everywhere.
    files.sort();
    let corpus: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    assert!(corpus.len() >= 8, "the corpus of {name} is gone");
    for (file, input) in files.iter().zip(&corpus) {
        attempt(target, input, &file.display().to_string());
    }
    let rounds = std::env::var("FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    for round in 0..rounds {
        let input = mutated(&corpus, &mut chance);
        attempt(target, &input, &format!("mutation {round} of {name}"));
    }
}

/// Shows the input that a target fails on, ready to become a file of the corpus.
fn attempt(target: fn(&[u8]), input: &[u8], what: &str) {
    if let Err(panic) = std::panic::catch_unwind(|| target(input)) {
        eprintln!("{what} fails: b\"{}\"", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

fn mutated(corpus: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    const TELLING: [u8; 12] = [0, 1, 0x7f, 0x80, 0xc0, 0xff, b'\r', b'\n', b'/', b'.', b'%', b'"'];
    let mut bytes = corpus[chance.below(corpus.len())].clone();
    for _ in 0..=chance.below(6) {
        let at = chance.below(bytes.len() + 1);
        let end = at + chance.below((bytes.len() - at).min(32) + 1);
        match chance.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
            1 if at < bytes.len() => bytes[at] = TELLING[chance.below(TELLING.len())],
            2 => bytes.insert(at, chance.byte()),
            3 => drop(bytes.drain(at..end)),
            4 => bytes.truncate(at),
            5 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            6 => {
                let other = &corpus[chance.below(corpus.len())];
                let from = chance.below(other.len() + 1);
                let piece = other[from..(from + 64).min(other.len())].to_vec();
                bytes.splice(at..end, piece);
            }
            _ => {
                let run = vec![TELLING[chance.below(TELLING.len())]; chance.below(40)];
                bytes.splice(at..at, run);
            }
        }
    }
    bytes.truncate(LONGEST);
    bytes
}

/// Numbers that look random and are not (xorshift64*).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 32).unwrap() % limit.max(1)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }
}
