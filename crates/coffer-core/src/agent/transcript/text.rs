//! Bounded text that says what was left out.

use serde::{Deserialize, Serialize};

/// Text, cut if it was long.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = TranscriptText))]
pub struct Text {
    /// The text, or its beginning.
    pub text: String,
    /// Bytes left out after `text`; absent if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[cfg_attr(feature = "schema", schema(minimum = 1))]
    pub cut_bytes: u64,
    /// The end of the text after what was left out; absent if the end was left out too.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub end: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Text {
    /// The beginning of a text.
    pub fn head(text: &str, most: usize) -> Self {
        Self::folded(text, most, 0)
    }

    /// The beginning and the end of a text.
    pub fn folded(text: &str, head: usize, tail: usize) -> Self {
        let text = &*shown(text);
        if text.len() <= head.saturating_add(tail) {
            return Self { text: text.to_string(), ..Self::default() };
        }
        let head = text.floor_char_boundary(head);
        let tail = text.ceil_char_boundary(text.len() - tail.min(text.len() - head));
        Self {
            text: text[..head].to_string(),
            cut_bytes: u64::try_from(tail - head).unwrap_or(u64::MAX),
            end: text[tail..].to_string(),
        }
    }

    /// Passes both parts through `show`.
    #[must_use]
    pub fn map(self, show: &dyn Fn(&str) -> String) -> Self {
        Self {
            text: show(&self.text),
            end: if self.end.is_empty() { self.end } else { show(&self.end) },
            ..self
        }
    }

    /// Bytes that it holds.
    pub fn size(&self) -> usize {
        self.text.len() + self.end.len()
    }

    /// The whole as people read it.
    pub fn shown(&self) -> String {
        if self.cut_bytes == 0 {
            return self.text.clone();
        }
        format!("{}\n[{} bytes left out]\n{}", self.text, self.cut_bytes, self.end)
    }
}

/// Without NUL, which not every database stores, and without the colours of terminals.
fn shown(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains(['\0', '\u{1b}']) {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\0' => plain.push('\u{fffd}'),
            // `ESC [ parameters letter`; any other escape loses its first character alone.
            '\u{1b}' if letters.peek() == Some(&'[') => {
                letters.next();
                while letters.next_if(|next| next.is_ascii() && !next.is_ascii_alphabetic()).is_some() {}
                letters.next_if(char::is_ascii_alphabetic);
            }
            '\u{1b}' => {}
            letter => plain.push(letter),
        }
    }
    plain.into()
}

/// The beginning of a text, without a word about the rest.
pub(in crate::agent) fn cut(text: &str, longest: usize) -> String {
    text[..text.floor_char_boundary(longest)].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_keeps_its_ends_and_says_what_is_missing() {
        let text = format!("{}{}{}", "a".repeat(10), "é".repeat(100), "z".repeat(10));
        let folded = Text::folded(&text, 11, 12);
        assert_eq!((folded.text.len(), &*folded.end), (10, &*format!("é{}", "z".repeat(10))));
        assert_eq!(usize::try_from(folded.cut_bytes).unwrap() + folded.size(), text.len());
        assert_eq!(Text::folded("short", 3, 2), Text { text: "short".into(), ..Text::default() });
        assert_eq!(Text::head("ééé", 3), Text { text: "é".into(), cut_bytes: 4, end: String::new() });
        assert_eq!(Text::folded("abcdef", 2, 100).text, "abcdef");
        assert_eq!(Text::head("\u{1b}[1;31mred\u{1b}[0m\0\u{1b}c", 100).text, "red\u{fffd}c");
        assert_eq!(Text::head("a\u{1b}[", 10).text, "a");
        assert_eq!(folded.shown(), format!("{}\n[198 bytes left out]\n{}", "a".repeat(10), folded.end));
    }
}
