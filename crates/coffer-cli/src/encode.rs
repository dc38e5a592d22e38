//! JSON and YAML as text that is safe on a terminal.

use serde_json::Value;

use crate::escape;

/// JSON in which no control character is left, C1 and direction marks included.
pub(crate) fn json(value: &Value, pretty: bool) -> String {
    let text = if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    let text = text.expect("values are JSON");
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter == '\n' || escape::line(letter.encode_utf8(&mut [0; 4])).len() == letter.len_utf8() {
            safe.push(letter);
        } else {
            let mut units = [0; 2];
            letter.encode_utf16(&mut units).iter().for_each(|unit| safe.push_str(&format!("\\u{unit:04x}")));
        }
    }
    safe
}

/// YAML in block style. Strings that YAML could read as something else are quoted as JSON, which is YAML too.
pub(crate) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

fn block(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (name, value) in object {
                text.push_str(&format!("{indent}{}:", scalar(&Value::String(name.clone()))));
                nested(value, depth + 1, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                block(item, depth + 1, &mut inner);
                text.push_str(&format!("{indent}- {}", inner.trim_start()));
            }
        }
        scalar_value => text.push_str(&format!("{indent}{}\n", scalar(scalar_value))),
    }
}

fn nested(value: &Value, depth: usize, text: &mut String) {
    let holds = matches!(value, Value::Object(object) if !object.is_empty())
        || matches!(value, Value::Array(items) if !items.is_empty());
    if holds {
        text.push('\n');
        block(value, depth, text);
    } else {
        text.push_str(&format!(" {}\n", scalar(value)));
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(plain) if is_plain(plain) => plain.clone(),
        other => json(other, false),
    }
}

/// Whether YAML 1.1 and 1.2 read it as the same string without quotes.
fn is_plain(text: &str) -> bool {
    let first = text.chars().next();
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    first.is_some_and(|first| first.is_ascii_alphabetic())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-./".contains(letter))
        && !words.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_quotes_what_it_could_misread() {
        let value = json!({"id": "abc", "no": ["yes", "a b", {"x": 1, "y": []}], "at": "2026-01-01", "e": {}, "n": null});
        let expected = "at: \"2026-01-01\"\ne: {}\nid: abc\n\"n\": null\n\"no\":\n  - \"yes\"\n  - \"a b\"\n  - x: 1\n    \"y\": []\n";
        let mut lines: Vec<&str> = expected.lines().collect();
        let text = yaml(&value);
        let mut found: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, lines);
    }

    #[test]
    fn json_has_no_control_characters() {
        assert_eq!(json(&json!("a\u{9b}b\u{202e}"), false), "\"a\\u009bb\\u202e\"");
    }
}
