//! Errors of models, as agents quote them.

use serde_json::Value;

/// What begins an error that is told as a message.
const MARKS: &[&str] = &["[API Error:", "API Error:"];

/// Whether a message is the error of a model and not the agent's own words.
pub(super) fn is_quoted(text: &str) -> bool {
    MARKS.iter().any(|mark| text.trim_start().starts_with(mark))
}

/// The message in an error that is JSON, or the whole.
pub(super) fn readable(text: &str) -> String {
    let plain = text.trim();
    let inner = plain.strip_prefix("[API Error:").and_then(|text| text.strip_suffix(']'));
    let inner = inner.map_or(plain, str::trim);
    let Some(value) = inner.starts_with('{').then(|| serde_json::from_str::<Value>(inner).ok()).flatten()
    else {
        return inner.to_string();
    };
    let error = &value["error"];
    let message = error["message"].as_str().or_else(|| value["message"].as_str()).or_else(|| error.as_str());
    match (message, error["code"].as_u64().or_else(|| value["code"].as_u64())) {
        (Some(message), Some(code)) => format!("{code} {message}"),
        (Some(message), None) => message.to_string(),
        (None, _) => inner.to_string(),
    }
}

/// The text of an error that may be text or an object with a message.
pub(super) fn message(error: &Value) -> Option<String> {
    let text = error.as_str().or_else(|| error["message"].as_str())?;
    Some(readable(text)).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_in_an_error_are_found() {
        for (told, read) in [
            ("no quota", "no quota"),
            (r#"{"type":"error","error":{"message":"it broke","code":400}}"#, "400 it broke"),
            (r#"[API Error: {"error":{"message":"bad key"}}]"#, "bad key"),
            ("[API Error: 401 bad key]", "401 bad key"),
            (r#"{"error":"plain"}"#, "plain"),
            (r#"{"other":1}"#, r#"{"other":1}"#),
            ("{not json", "{not json"),
        ] {
            assert_eq!(readable(told), read);
        }
        assert!(
            is_quoted(" [API Error: x]") && is_quoted("API Error: 400 y") && !is_quoted("The API Error: z")
        );
    }
}
