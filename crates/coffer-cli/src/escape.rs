//! Text of others, made harmless for a terminal.
//!
//! Names, titles and messages come from sandboxes, tasks and other members. Escape sequences in them could rewrite the
//! screen, set the clipboard or reorder what a person reads.

use std::fmt::Write as _;

/// Whether a character could change more than the cell it is in.
fn is_risky(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            // Marks and overrides of direction, separators of lines, and what no glyph shows.
            '\u{061c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text on one line.
pub(crate) fn line(text: &str) -> String {
    escaped(text, "")
}

/// The text with its line ends and tabs.
pub(crate) fn lines(text: &str) -> String {
    escaped(text, "\n\t")
}

fn escaped(text: &str, kept: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if kept.contains(letter) || !is_risky(letter) => safe.push(letter),
            '\n' => safe.push_str("\\n"),
            '\t' => safe.push_str("\\t"),
            '\r' => safe.push_str("\\r"),
            letter => write!(safe, "\\u{{{:x}}}", u32::from(letter)).expect("a string can be written to"),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_become_text() {
        assert_eq!(
            line("a\u{1b}[2Jb\u{9b}31m\u{7}\nc\u{202e}d"),
            "a\\u{1b}[2Jb\\u{9b}31m\\u{7}\\nc\\u{202e}d"
        );
        assert_eq!(line("ümläut 日本 👍"), "ümläut 日本 👍");
        assert_eq!(lines("a\n\tb\r"), "a\n\tb\\r");
    }

    #[test]
    fn nothing_that_is_printed_is_a_control_character() {
        let all: String = (0..=0x2fff).filter_map(char::from_u32).collect();
        assert!(!line(&all).chars().any(|letter| letter.is_control()));
    }
}
