//! Plain text: the lines of an agent without a format of its own.

use crate::agent::report::Tokens;
use crate::agent::transcript::{Scribe, cut};

const LONGEST_LINE: usize = 2000;

/// What lines remember for later ones.
#[derive(Debug, Default)]
pub(super) struct Plain {}

impl Plain {
    pub(super) fn line(&mut self, text: &str, scribe: &mut Scribe) {
        let text = cut(text, LONGEST_LINE);
        scribe.line(&text);
        // Without events the last line is the best summary.
        if !text.trim().is_empty() {
            scribe.report.summary = Some(text);
        }
    }

    pub(super) fn error(&mut self, text: &str, scribe: &mut Scribe) {
        let text = cut(text.trim_end(), LONGEST_LINE);
        if let Some(used) = copilot(&text) {
            scribe.used_in_all(used);
        } else {
            scribe.line(&text);
        }
    }
}

/// `Tokens     ↑ 6.5k (1.5k cached) • ↓ 135 (35 reasoning)`, the last lines of Copilot.
fn copilot(line: &str) -> Option<Tokens> {
    let told = line.trim().strip_prefix("Tokens")?.trim_start().strip_prefix('↑')?;
    let (input, output) = told.split_once('↓')?;
    let first = |text: &str| text.split_whitespace().next().map_or(0, shortened);
    let cached = input.split_once('(').map_or(0, |(_, cached)| first(cached));
    Some(Tokens { input: first(input), cached, output: first(output) })
}

/// `1,234`, `12k`, `1.5M`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within bounds by then")]
pub(super) fn shortened(text: &str) -> u64 {
    let text = text.replace(',', "");
    let (digits, times) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1e3),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1e6),
        _ => (&*text, 1.0),
    };
    let number = (digits.parse::<f64>().unwrap_or_default() * times).round();
    if number.is_finite() { number.clamp(0.0, 1e15) as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people_are_read() {
        for (text, number) in
            [("1,234", 1234), ("12k", 12_000), ("1.5M", 1_500_000), ("x", 0), ("1e999", 0), ("-5", 0)]
        {
            assert_eq!(shortened(text), number, "{text}");
        }
        let told = copilot("Tokens     ↑ 2.6k (600 cached) • ↓ 54").unwrap();
        assert_eq!((told.input, told.cached, told.output), (2600, 600, 54));
        assert!(copilot("Tokens of thanks").is_none());
    }
}
