//! The most tokens that a request can have as input.
//!
//! No tokenizer makes more tokens of a text than it has bytes. Pictures cost at most so many tokens, whatever
//! their size. What the provider reads from elsewhere (files, earlier answers, searches) is bounded by the
//! model's window alone.

use super::json::Json;

/// No provider counts more tokens for one picture.
const MOST_FOR_A_PICTURE: u64 = 10_000;
/// What providers add themselves: instructions for tools, marks between messages.
const OVERHEAD: u64 = 2_000;
const FOR_EACH_VALUE: u64 = 4;

/// The most tokens of a request's input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InputBound {
    /// From the request's own text and pictures.
    pub tokens: u64,
    /// The provider reads more from elsewhere: only the model's window bounds it.
    pub is_open: bool,
}

impl InputBound {
    pub(super) fn of(body: &Json) -> Self {
        let mut bound = Self { tokens: OVERHEAD, is_open: false };
        bound.add(body);
        bound
    }

    /// The most tokens with a window of this size.
    pub fn within(&self, window: u64) -> u64 {
        if self.is_open { window } else { self.tokens.min(window) }
    }

    fn add(&mut self, value: &Json) {
        self.tokens = self.tokens.saturating_add(FOR_EACH_VALUE);
        match value {
            Json::Null | Json::Bool(_) => {}
            Json::Number(_) => self.tokens = self.tokens.saturating_add(20),
            Json::Text(text) => self.add_text(text),
            Json::List(values) => values.iter().for_each(|value| self.add(value)),
            Json::Object(fields) => {
                let media = media_type(value);
                self.is_open |= is_elsewhere(value);
                for (name, value) in fields {
                    self.tokens = self.tokens.saturating_add(name.len() as u64);
                    match (name.as_str(), media, value) {
                        ("data", Some(media), Json::Text(_)) => self.add_media(media),
                        _ => self.add(value),
                    }
                }
            }
        }
    }

    fn add_text(&mut self, text: &str) {
        match text.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,")) {
            Some((media, _)) if media.len() < 100 => self.add_media(media),
            _ => self.tokens = self.tokens.saturating_add(text.len() as u64),
        }
    }

    fn add_media(&mut self, media: &str) {
        if media.starts_with("image/") {
            self.tokens = self.tokens.saturating_add(MOST_FOR_A_PICTURE);
        } else {
            // A document or a recording can have any number of tokens.
            self.is_open = true;
        }
    }
}

fn media_type(object: &Json) -> Option<&str> {
    ["media_type", "mime_type", "mimeType"].iter().find_map(|name| object.get(name)).and_then(Json::text)
}

/// Whether an object refers to content that is not in the request.
fn is_elsewhere(object: &Json) -> bool {
    let is_set = |name: &&str| object.get(name).is_some_and(|value| !value.is_null());
    let named = ["file_id", "file_url", "fileData", "file_data", "input_audio"].iter().any(is_set);
    let is_link = |value: &Json| {
        let url = value.text().or_else(|| value.get("url").and_then(Json::text));
        url.is_some_and(|url| !url.starts_with("data:image/"))
    };
    let kind = object.get("type").and_then(Json::text);
    named
        || object.get("image_url").is_some_and(is_link)
        || (matches!(kind, Some("url" | "file" | "content")) && (is_set(&"url") || is_set(&"file_id")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(text: &str) -> InputBound {
        InputBound::of(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn text_has_no_more_tokens_than_bytes() {
        let text = "é".repeat(5000);
        let read = bound(&format!(r#"{{"messages":[{{"content":"{text}"}}]}}"#));
        assert!(read.tokens >= 10_000 && read.tokens < 13_000 && !read.is_open, "{read:?}");
        assert_eq!(read.within(1000), 1000);
    }

    #[test]
    fn pictures_do_not_count_by_their_bytes_and_documents_by_nothing_but_the_window() {
        let data = "A".repeat(1_000_000);
        let picture =
            bound(&format!(r#"{{"source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}"#));
        assert!(picture.tokens < 20_000 && !picture.is_open, "{picture:?}");
        let inline = bound(&format!(r#"{{"image_url":{{"url":"data:image/png;base64,{data}"}}}}"#));
        assert!(inline.tokens < 20_000 && !inline.is_open, "{inline:?}");
        for open in [
            format!(r#"{{"inlineData":{{"mimeType":"application/pdf","data":"{data}"}}}}"#),
            r#"{"source":{"type":"url","url":"https://a.com/x.pdf"}}"#.to_string(),
            r#"{"source":{"type":"file","file_id":"f"}}"#.to_string(),
            r#"{"type":"input_image","image_url":"https://a.com/x.png"}"#.to_string(),
            r#"{"fileData":{"fileUri":"gs://x"}}"#.to_string(),
        ] {
            let read = bound(&open);
            assert!(read.is_open && read.within(77) == 77, "{open:.80}");
        }
        // The argument of a tool is text like any other.
        assert!(!bound(r#"{"type":"tool_use","input":{"url":"https://a.com"}}"#).is_open);
    }
}
