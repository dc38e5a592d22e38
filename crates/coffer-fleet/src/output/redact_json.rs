//! Redacts JSON without parsing it into memory: string by string, so that escapes hide nothing.

use super::redact::Patterns;

/// Takes the place of a string that is not text, such as half a surrogate pair.
const UNREADABLE: &str = "\"[unreadable]\"";

/// Redacts every string and every name in valid JSON; the result is valid JSON.
pub(super) fn redact_json(patterns: &Patterns, json: &str) -> String {
    let mut redacted = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(start) = rest.find('"') {
        redacted.push_str(&rest[..start]);
        let length = literal(&rest[start..]);
        let (quoted, after) = rest[start..].split_at(length);
        match serde_json::from_str::<String>(quoted) {
            Ok(text) => {
                let clean = patterns.redact(&text);
                if clean == text {
                    redacted.push_str(quoted);
                } else {
                    redacted.push_str(&serde_json::Value::String(clean).to_string());
                }
            }
            Err(_) => redacted.push_str(UNREADABLE),
        }
        rest = after;
    }
    redacted.push_str(rest);
    redacted
}

/// The length of the string literal that the text begins with.
fn literal(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_behind_escapes_and_the_rest_stays() {
        let patterns = Patterns::new(&["geheim-ü\"x", "plain-secret"]);
        let json = r#"{"z":[1,null,"a\"b"],"plain-secret":{"y":"geheim-\u00fc\"x!"},"a":"\ud800"}"#;
        let expected = r#"{"z":[1,null,"a\"b"],"[redacted]":{"y":"[redacted]!"},"a":"[unreadable]"}"#;
        assert_eq!(redact_json(&patterns, json), expected);
        assert_eq!(redact_json(&patterns, "[1.50, true]"), "[1.50, true]");
    }
}
