//! What a call answers: one JSON object a line, in ASCII.
//!
//! The Python SDK splits lines at U+2028 and U+0085, the JavaScript SDK decodes each chunk by itself: so everything that is
//! not ASCII is escaped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;
use coffer_core::clock::now_ms;
use serde_json::value::RawValue;
use time::OffsetDateTime;

/// What a kernel shows, by MIME type. Values stay as the kernel wrote them: a frame's columns keep their order.
pub(crate) type Bundle = BTreeMap<String, Box<RawValue>>;

/// Fields of a result, by MIME type.
const FIELDS: [(&str, &str); 12] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("application/pdf", "pdf"),
    ("text/latex", "latex"),
    ("application/json", "json"),
    ("application/javascript", "javascript"),
    ("e2b/data", "data"),
    ("e2b/chart", "chart"),
];

#[derive(Debug)]
pub(crate) enum Line<'a> {
    Count(u64),
    Stdout(&'a str),
    Stderr(&'a str),
    Result { data: &'a Bundle, main: bool },
    Error { name: &'a str, value: &'a str, traceback: &'a str },
    Keepalive,
    End,
}

impl Line<'_> {
    /// The line with its end.
    pub(crate) fn bytes(&self) -> Bytes {
        let mut out = String::with_capacity(128);
        match self {
            Self::Count(count) => {
                // A string can be written to.
                let _ = write!(out, r#"{{"type":"number_of_executions","execution_count":{count}}}"#);
            }
            Self::Stdout(text) => stream(&mut out, "stdout", text),
            Self::Stderr(text) => stream(&mut out, "stderr", text),
            Self::Result { data, main } => result(&mut out, data, *main),
            Self::Error { name, value, traceback } => {
                out.push_str(r#"{"type":"error","name":"#);
                quote(&mut out, name);
                out.push_str(r#","value":"#);
                quote(&mut out, value);
                out.push_str(r#","traceback":"#);
                quote(&mut out, traceback);
                out.push('}');
            }
            Self::Keepalive => out.push_str(r#"{"type":"keepalive"}"#),
            Self::End => out.push_str(r#"{"type":"end_of_execution"}"#),
        }
        out.push('\n');
        Bytes::from(out)
    }
}

fn stream(out: &mut String, kind: &str, text: &str) {
    let _ = write!(out, r#"{{"type":"{kind}","text":"#);
    quote(out, text);
    let _ = write!(out, r#","timestamp":"{}"}}"#, timestamp());
}

fn result(out: &mut String, data: &Bundle, main: bool) {
    out.push_str(r#"{"type":"result""#);
    for (mime, field) in FIELDS {
        let Some(value) = data.get(mime).filter(|value| value.get() != "null") else { continue };
        let _ = write!(out, r#","{field}":"#);
        match (field, text(value)) {
            ("text", Some(text)) => quote(out, unquoted(&text)),
            ("data" | "chart" | "json", _) | (_, None) => escape(out, value.get()),
            (_, Some(text)) => quote(out, &text),
        }
    }
    out.push_str(r#","extra":{"#);
    let others = data.iter().filter(|(mime, _)| FIELDS.iter().all(|(known, _)| known != mime));
    for (number, (mime, value)) in others.enumerate() {
        if number > 0 {
            out.push(',');
        }
        quote(out, mime);
        out.push(':');
        escape(out, value.get());
    }
    let _ = write!(out, r#"}},"is_main_result":{main}}}"#);
}

/// A value that is text, which may be split into lines.
fn text(value: &RawValue) -> Option<String> {
    if let Ok(whole) = serde_json::from_str::<String>(value.get()) {
        return Some(whole);
    }
    serde_json::from_str::<Vec<String>>(value.get()).ok().map(|lines| lines.concat())
}

/// Without one pair of quotes around it, as the result of a string has.
fn unquoted(text: &str) -> &str {
    ['\'', '"'].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(text)
}

/// A JSON string in ASCII.
pub(crate) fn quote(out: &mut String, text: &str) {
    // A string can always be written as JSON.
    let json = serde_json::to_string(text).unwrap_or_else(|_| "\"\"".into());
    escape(out, &json);
}

/// JSON in ASCII on one line: what is not ASCII is part of a string, a control character is white space.
fn escape(out: &mut String, json: &str) {
    out.reserve(json.len());
    for character in json.chars() {
        match character {
            ' '..='~' => out.push(character),
            '\0'..='\x1f' => out.push(' '),
            _ => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
}

/// ISO 8601 with microseconds, as Python writes it.
fn timestamp() -> String {
    let now = OffsetDateTime::from_unix_timestamp_nanos(i128::from(now_ms()) * 1_000_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, time) = (now.date(), now.time());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}+00:00",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.microsecond()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn bundle(value: Value) -> Bundle {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    fn parsed(line: &Line<'_>) -> Value {
        let bytes = line.bytes();
        assert!(bytes.is_ascii());
        assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 1);
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn lines_are_ascii_and_read_back_as_they_were() {
        let text = "a\u{2028}b\u{85}c\u{1f600}\u{7f}\n\"\\";
        assert_eq!(parsed(&Line::Stdout(text))["text"], text);
        let error = Line::Error { name: text, value: text, traceback: text };
        assert_eq!(parsed(&error)["traceback"], text);
        assert_eq!(parsed(&Line::Count(3)), json!({"type": "number_of_executions", "execution_count": 3}));
    }

    #[test]
    fn results_have_fields_by_mime_type_and_the_rest_is_extra() {
        let data = bundle(json!({
            "text/plain": "'quoted'", "image/png": "aGk=", "text/html": ["<b>", "x</b>"],
            "application/json": {"é": [1, null]}, "application/x-own": {"a": 1}, "text/latex": null
        }));
        let expected = json!({
            "type": "result", "text": "quoted", "png": "aGk=", "html": "<b>x</b>", "json": {"é": [1, null]},
            "extra": {"application/x-own": {"a": 1}}, "is_main_result": true
        });
        assert_eq!(parsed(&Line::Result { data: &data, main: true }), expected);
    }

    #[test]
    fn columns_keep_their_order() {
        let data: Bundle = serde_json::from_str("{\"e2b/data\": {\"z\": [1],\n \"a\": [2]}}").unwrap();
        let line = Line::Result { data: &data, main: true }.bytes();
        let text = std::str::from_utf8(&line).unwrap();
        assert!(text.find("\"z\"") < text.find("\"a\""), "{text}");
    }

    #[test]
    fn only_one_pair_of_quotes_goes() {
        for (given, left) in [("'a'", "a"), ("\"a\"", "a"), ("''a''", "'a'"), ("'a\"", "'a\""), ("'", "'")] {
            assert_eq!(unquoted(given), left);
        }
    }

    #[test]
    fn times_are_as_python_writes_them() {
        let now = timestamp();
        assert_eq!(now.len(), "2026-01-02T03:04:05.678000+00:00".len(), "{now}");
        assert!(now.ends_with("+00:00"));
    }
}
