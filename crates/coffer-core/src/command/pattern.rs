//! Patterns over the words of a command.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const LONGEST: usize = 256;
const MOST_WORDS: usize = 16;
/// Stands for any number of words.
const ANY_WORDS: &str = "**";

/// Words that a command must begin with. `*` in a word matches any characters, the word `**` any number of
/// words. The first word of a command is compared without its directory unless the pattern names one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Words between one `**` and the next; the first part is the start of the command.
    parts: Vec<Vec<String>>,
}

/// The text is not a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a pattern is 1 to {MOST_WORDS} words of at most {LONGEST} characters in all")]
pub struct BadPattern;

impl Pattern {
    /// Whether its first word begins like this.
    pub(super) fn begins_with(&self, beginning: &str) -> bool {
        self.parts.first().and_then(|part| part.first()).is_some_and(|word| word.starts_with(beginning))
    }

    /// Whether a command with these words matches.
    pub fn fits(&self, words: &[String]) -> bool {
        let Some((first, others)) = self.parts.split_first() else { return false };
        if !begins(words, 0, first) {
            return false;
        }
        // Match each part at the first possible place: a later one cannot help the rest.
        let mut from = first.len();
        others.iter().all(|part| {
            let last = words.len().saturating_sub(part.len());
            match (from..=last).find(|at| begins(words, *at, part)) {
                Some(at) => {
                    from = at + part.len();
                    true
                }
                None => false,
            }
        })
    }
}

fn begins(words: &[String], at: usize, part: &[String]) -> bool {
    let Some(words) = words.get(at..at + part.len()) else { return false };
    words.iter().zip(part).enumerate().all(|(place, (word, wanted))| {
        let is_name = at + place == 0 && !wanted.contains('/');
        let word = if is_name { word.rsplit('/').next().unwrap_or(word) } else { word };
        word_fits(word, wanted)
    })
}

/// In linear time, whatever both are.
fn word_fits(word: &str, wanted: &str) -> bool {
    let Some((beginning, rest)) = wanted.split_once('*') else { return word == wanted };
    let Some(mut word) = word.strip_prefix(beginning) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for piece in middle.split('*').filter(|piece| !piece.is_empty()) {
        let Some(at) = word.find(piece) else { return false };
        word = &word[at + piece.len()..];
    }
    word.ends_with(end)
}

impl std::str::FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, BadPattern> {
        let words: Vec<_> = text.split_whitespace().collect();
        if words.is_empty() || words.len() > MOST_WORDS || text.len() > LONGEST || text.contains('\0') {
            return Err(BadPattern);
        }
        let parts = words.split(|word| *word == ANY_WORDS);
        Ok(Self { parts: parts.map(|part| part.iter().map(|word| (*word).to_string()).collect()).collect() })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.parts.iter().map(|part| part.join(" ")).collect();
        f.write_str(parts.join(&format!(" {ANY_WORDS} ")).trim())
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
