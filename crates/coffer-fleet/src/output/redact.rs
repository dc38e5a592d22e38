//! Redacts secrets in what is stored and shown.
//!
//! It looks for known values (a project's secrets), and for text with the shape of a well-known key. Output
//! comes in pieces, so a [`Redactor`] holds back the end of its input while that may become a match; the
//! borders of pieces do not matter. Overlapping matches become one. Encoded values are not found.

use std::fmt;

use aho_corasick::{AhoCorasick, MatchKind};

/// The replacement for a secret.
const MARK: &[u8] = b"[redacted]";

/// Shorter values are not redacted: they may be common words.
const SHORTEST_VALUE: usize = 6;

/// Most bytes held back. This is longer than any match, so only endless overlapping matches reach it.
const MOST_HELD: usize = 64 << 10;

/// A well-known form of keys: a prefix, then characters of a set.
struct Shape {
    beginning: &'static str,
    fits: fn(u8) -> bool,
    least: usize,
    most: usize,
}

const fn shape(beginning: &'static str, fits: fn(u8) -> bool, least: usize) -> Shape {
    Shape { beginning, fits, least, most: 512 }
}

fn alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn dashed(byte: u8) -> bool {
    word(byte) || byte == b'-'
}

fn upper(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

fn token(byte: u8) -> bool {
    dashed(byte) || b".~+/=".contains(&byte)
}

const SHAPES: &[Shape] = &[
    // Ours, and E2B's.
    shape("e2b_", alphanumeric, 20),
    shape("coffer_", alphanumeric, 20),
    // GitHub.
    shape("ghp_", alphanumeric, 30),
    shape("gho_", alphanumeric, 30),
    shape("ghu_", alphanumeric, 30),
    shape("ghs_", alphanumeric, 30),
    shape("ghr_", alphanumeric, 30),
    shape("github_pat_", word, 22),
    // Amazon.
    Shape { beginning: "AKIA", fits: upper, least: 16, most: 16 },
    Shape { beginning: "ASIA", fits: upper, least: 16, most: 16 },
    // OpenAI, Anthropic and similar ones.
    shape("sk-", dashed, 20),
    // Stripe.
    shape("sk_live_", alphanumeric, 16),
    shape("rk_live_", alphanumeric, 16),
    // Slack.
    shape("xoxb-", dashed, 10),
    shape("xoxp-", dashed, 10),
    shape("xoxa-", dashed, 10),
    shape("xoxs-", dashed, 10),
    shape("xapp-", dashed, 10),
    // GitLab, Google, npm.
    shape("glpat-", dashed, 20),
    Shape { beginning: "AIza", fits: dashed, least: 35, most: 35 },
    shape("npm_", alphanumeric, 30),
    Shape { beginning: "Bearer ", fits: token, least: 16, most: 4096 },
    Shape { beginning: "bearer ", fits: token, least: 16, most: 4096 },
];

/// Private keys in PEM files: everything from the first line to the last.
const BLOCK: &[u8] = b"-----BEGIN ";
const BLOCK_KIND: &[u8] = b"PRIVATE KEY";
const BLOCK_END: &[u8] = b"-----END ";
const LONGEST_KIND: usize = 64;
const LONGEST_BLOCK: usize = 16 << 10;

/// What to redact.
pub struct Patterns {
    /// The values, then the prefixes of the shapes, then that of a block.
    literals: AhoCorasick,
    values: usize,
    /// The original values.
    given: Vec<Box<[u8]>>,
    /// All of them sorted, to look up whether some bytes are a prefix of one.
    sorted: Vec<Box<[u8]>>,
    longest: usize,
}

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Patterns({} values)", self.values)
    }
}

impl Default for Patterns {
    fn default() -> Self {
        Self::new::<&[u8]>(&[])
    }
}

/// The result of checking a prefix.
enum Found {
    No,
    /// The match ends here.
    Upto(usize),
    /// The next bytes decide.
    Open,
}

impl Patterns {
    /// Redacts these values and the well-known shapes.
    pub fn new<V: AsRef<[u8]>>(values: &[V]) -> Self {
        let values = values.iter().map(AsRef::as_ref).filter(|value| value.len() >= SHORTEST_VALUE);
        let given: Vec<Box<[u8]>> = values.map(Into::into).collect();
        let mut literals: Vec<Box<[u8]>> = Vec::new();
        for value in &given {
            literals.push(value.clone());
            // As a terminal prints it.
            if value.contains(&b'\n') {
                let lines: Vec<&[u8]> = value.split(|&byte| byte == b'\n').collect();
                literals.push(lines.join(&b"\r\n"[..]).into());
            }
            // As escaped in JSON, which agents write.
            let quoted = std::str::from_utf8(value).ok().and_then(|text| serde_json::to_string(text).ok());
            if let Some(inner) = quoted.as_ref().and_then(|text| text.get(1..text.len() - 1))
                && inner.as_bytes() != &**value
            {
                literals.push(inner.as_bytes().into());
            }
        }
        let values = literals.len();
        literals.extend(SHAPES.iter().map(|shape| shape.beginning.as_bytes().into()));
        literals.push(BLOCK.into());
        let automaton = AhoCorasick::builder().match_kind(MatchKind::Standard).build(&literals);
        let longest = literals.iter().map(|literal| literal.len()).max().unwrap_or(0);
        let mut sorted = literals;
        sorted.sort();
        let literals = automaton.expect("values are far below its limits");
        Self { literals, values, given, sorted, longest }
    }

    /// Adds more values.
    pub fn with<'a>(&self, more: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values: Vec<&[u8]> = self.given.iter().map(|value| &**value).collect();
        for value in more {
            values.push(value.as_bytes());
        }
        Self::new(&values)
    }

    /// Redacts a complete text.
    pub fn redact(&self, text: &str) -> String {
        let mut redacted = Vec::with_capacity(text.len());
        self.pass(text.as_bytes(), None, true, &mut redacted);
        String::from_utf8_lossy(&redacted).into_owned()
    }

    /// Redacts the part of `bytes` that is certain and returns its length; at the end that is everything.
    fn pass(&self, bytes: &[u8], before: Option<u8>, at_end: bool, into: &mut Vec<u8>) -> usize {
        let mut spans: Vec<(usize, usize)> = Vec::new();
        let mut sure = bytes.len();
        for found in self.literals.find_overlapping_iter(bytes) {
            let (start, end) = (found.start(), found.end());
            let verdict = match found.pattern().as_usize().checked_sub(self.values) {
                None => Found::Upto(end),
                Some(number) => {
                    let previous = start.checked_sub(1).map_or(before, |at| Some(bytes[at]));
                    match SHAPES.get(number) {
                        Some(_) if previous.is_some_and(word) => Found::No,
                        Some(shape) => key(shape, &bytes[end..], at_end, end),
                        None => block(&bytes[end..], at_end, end),
                    }
                }
            };
            match verdict {
                Found::No => {}
                Found::Upto(end) => spans.push((start, end)),
                Found::Open => sure = sure.min(start),
            }
        }
        if !at_end {
            let first = bytes.len().saturating_sub(self.longest.saturating_sub(1));
            let begins = (first..bytes.len()).find(|&at| self.begins_one(&bytes[at..]));
            sure = sure.min(begins.unwrap_or(bytes.len()));
        }
        spans.sort_unstable();
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (start, end) in spans {
            match merged.last_mut() {
                Some(last) if start < last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        // A match that may still grow includes those that it touches.
        if let Some(&(start, _)) = merged.iter().find(|(start, end)| *start < sure && sure < *end) {
            sure = start;
        }
        let mut at = 0;
        for (start, end) in merged.into_iter().take_while(|(_, end)| *end <= sure) {
            into.extend_from_slice(&bytes[at..start]);
            into.extend_from_slice(MARK);
            at = end;
        }
        into.extend_from_slice(&bytes[at..sure]);
        sure
    }

    /// Whether this is a prefix of a literal.
    fn begins_one(&self, bytes: &[u8]) -> bool {
        let next = self.sorted.partition_point(|literal| &**literal < bytes);
        self.sorted.get(next).is_some_and(|literal| literal.starts_with(bytes))
    }
}

/// Whether `rest`, which begins at `at`, completes a key after its prefix.
fn key(shape: &Shape, rest: &[u8], at_end: bool, at: usize) -> Found {
    let run = rest.iter().take(shape.most).take_while(|&&byte| (shape.fits)(byte)).count();
    if run == rest.len() && run < shape.most && !at_end {
        Found::Open
    } else if run >= shape.least {
        Found::Upto(at + run)
    } else {
        Found::No
    }
}

/// Whether `rest`, which begins at `at`, continues a private key block.
fn block(rest: &[u8], at_end: bool, at: usize) -> Found {
    let open = |otherwise: Found| if at_end { otherwise } else { Found::Open };
    let line = rest.iter().take(LONGEST_KIND).position(|byte| matches!(byte, b'\n' | b'\r'));
    let Some(line) = line else {
        return if rest.len() < LONGEST_KIND { open(Found::No) } else { Found::No };
    };
    if !rest[..line].windows(BLOCK_KIND.len()).any(|part| part == BLOCK_KIND) {
        return Found::No;
    }
    let within = &rest[..rest.len().min(LONGEST_BLOCK)];
    let end = within.windows(BLOCK_END.len()).position(|part| part == BLOCK_END);
    let last = end.and_then(|end| {
        let from = end + BLOCK_END.len();
        within[from..].windows(5).position(|part| part == b"-----").map(|found| from + found + 5)
    });
    match last {
        Some(last) => Found::Upto(at + last),
        None if rest.len() < LONGEST_BLOCK => open(Found::Upto(at + rest.len())),
        None => Found::Upto(at + LONGEST_BLOCK),
    }
}

/// Redacts a stream that comes in pieces.
#[derive(Debug, Default)]
pub struct Redactor {
    held: Vec<u8>,
    /// The byte before the held-back ones.
    before: Option<u8>,
}

impl Redactor {
    /// Takes a piece, and returns the output that is certain.
    pub fn push(&mut self, patterns: &Patterns, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        let redacted = self.take(patterns, false);
        if self.held.len() <= MOST_HELD {
            return redacted;
        }
        [redacted, self.take(patterns, true)].concat()
    }

    /// Returns the held-back bytes: nothing more comes, or not for a while.
    pub fn flush(&mut self, patterns: &Patterns) -> Vec<u8> {
        self.take(patterns, true)
    }

    /// The number of held-back bytes.
    pub(super) const fn held(&self) -> usize {
        self.held.len()
    }

    /// Whether the held-back bytes begin a private key, of which every line counts.
    pub(super) fn is_in_a_block(&self) -> bool {
        self.held.starts_with(BLOCK)
    }

    fn take(&mut self, patterns: &Patterns, at_end: bool) -> Vec<u8> {
        let mut redacted = Vec::with_capacity(self.held.len());
        let sure = patterns.pass(&self.held, self.before, at_end, &mut redacted);
        self.before = sure.checked_sub(1).map_or(self.before, |last| Some(self.held[last]));
        self.held.drain(..sure);
        redacted
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_is_found_in_json_too() {
        let patterns = Patterns::new(&["top \"secret\"\nof two lines", "plain-value"]);
        let told = serde_json::json!({ "text": "it is top \"secret\"\nof two lines and plain-value" });
        assert_eq!(patterns.redact(&told.to_string()), r#"{"text":"it is [redacted] and [redacted]"}"#);
        let more = patterns.with(["of-an-agent", "tiny"]);
        assert_eq!(more.redact("plain-value of-an-agent tiny"), "[redacted] [redacted] tiny");
        assert_eq!(patterns.redact("of-an-agent"), "of-an-agent");
    }

    fn whole(patterns: &Patterns, text: &[u8]) -> Vec<u8> {
        let mut redactor = Redactor::default();
        let mut redacted = redactor.push(patterns, text);
        redacted.extend(redactor.flush(patterns));
        redacted
    }

    #[test]
    fn known_values_and_well_known_shapes_are_found() {
        let patterns = Patterns::new(&["hunter2hunter2", "abcdef", "cdefgh", "two\nlines", "short"]);
        let key =
            format!("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", "A".repeat(900));
        for (text, expected) in [
            ("pw=hunter2hunter2.", "pw=[redacted]."),
            ("abcdefgh", "[redacted]"),
            ("two\nlines two\r\nlines", "[redacted] [redacted]"),
            ("short abcde", "short abcde"),
            ("key e2b_0123456789abcdef0123456789abcdef01234567!", "key [redacted]!"),
            ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "[redacted]"),
            ("AKIAIOSFODNN7EXAMPLE AKIAshort", "[redacted] AKIAshort"),
            ("sk-proj-abcdefghijklmnopqrstuvwx", "[redacted]"),
            ("a task-oriented-thing-that-is-quite-long", "a task-oriented-thing-that-is-quite-long"),
            ("Authorization: Bearer abc.def-ghi_jkl/mno", "Authorization: [redacted]"),
            ("xoxb-1234567890-abc", "[redacted]"),
            (&format!("x{key}\ny"), "x[redacted]\ny"),
            (
                "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
                "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
            ),
        ] {
            assert_eq!(String::from_utf8(whole(&patterns, text.as_bytes())).unwrap(), expected);
            assert_eq!(patterns.redact(text), expected);
        }
    }

    #[test]
    fn what_is_held_back_is_little_and_bounded() {
        let patterns = Patterns::new(&["aaaaaaaa"]);
        let mut redactor = Redactor::default();
        assert_eq!(redactor.push(&patterns, b"password: "), b"password: ");
        assert_eq!((redactor.push(&patterns, b"sk"), redactor.held()), (Vec::new(), 2));
        assert_eq!(redactor.push(&patterns, b"y\n"), b"sky\n");
        for _ in 0..100 {
            redactor.push(&patterns, &[b'a'; 4096]);
            assert!(redactor.held() <= MOST_HELD, "{}", redactor.held());
        }
    }

    /// Text with many full and partial matches.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just("hunter2hunter2".to_owned()),
            Just("hunter2".to_owned()),
            Just("abcdef".to_owned()),
            Just("cdefgh".to_owned()),
            Just("sk-".to_owned()),
            Just("AKIA".to_owned()),
            Just("Bearer ".to_owned()),
            Just("-----BEGIN RSA PRIVATE KEY-----\n".to_owned()),
            Just("-----END RSA PRIVATE KEY-----".to_owned()),
            "[a-h]{1,4}",
            "[A-Z0-9]{1,20}",
            "[ \\n=.-]{1,2}",
        ];
        prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn where_the_pieces_end_changes_nothing(
            text in text(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let patterns = Patterns::new(&["hunter2hunter2", "abcdef", "cdefgh"]);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.sort_unstable();
            let mut redactor = Redactor::default();
            let mut redacted = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([text.len()]) {
                redacted.extend(redactor.push(&patterns, &text[from..cut]));
                from = cut;
            }
            redacted.extend(redactor.flush(&patterns));
            let at_once = whole(&patterns, &text);
            prop_assert_eq!(String::from_utf8_lossy(&redacted), String::from_utf8_lossy(&at_once));
            for secret in ["hunter2hunter2", "abcdef", "cdefgh"] {
                prop_assert!(!redacted.windows(secret.len()).any(|part| part == secret.as_bytes()));
            }
        }
    }
}
