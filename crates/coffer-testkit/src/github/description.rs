//! The used part of GitHub's published OpenAPI description: allowed requests, and shapes of answers.

use serde_json::Value;

#[derive(Debug)]
pub struct Operation {
    pub method: String,
    pub path: String,
    query: Value,
    body: Value,
    pub status: u16,
    pub example: Value,
}

pub fn operations() -> Vec<Operation> {
    let told: Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
    assert!(told["version"].is_string());
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let all = told["operations"].as_array().unwrap().iter();
    all.map(|operation| Operation {
        method: text(&operation["method"]),
        path: text(&operation["path"]),
        query: operation["query"].clone(),
        body: operation["body"].clone(),
        status: u16::try_from(operation["status"].as_u64().unwrap()).unwrap(),
        example: operation["example"].clone(),
    })
    .collect()
}

impl Operation {
    /// The named parts of a path, if it matches this operation.
    pub fn matches(&self, method: &str, path: &str) -> Option<Vec<String>> {
        let (ours, theirs): (Vec<_>, Vec<_>) = (self.path.split('/').collect(), path.split('/').collect());
        if method != self.method || ours.len() != theirs.len() {
            return None;
        }
        let mut named = Vec::new();
        for (our, their) in ours.iter().zip(theirs) {
            if our.starts_with('{') {
                named.push(their.to_string());
            } else if *our != their {
                return None;
            }
        }
        Some(named)
    }

    /// Violations of the description by a request.
    pub fn flaws(&self, query: &[(String, String)], body: Option<&Value>) -> Vec<String> {
        let mut flaws = Vec::new();
        for (name, value) in query {
            match self.query.get(name) {
                None => flaws.push(format!("query: no parameter `{name}`")),
                Some(schema) => {
                    let number = schema["type"] == "integer";
                    let value = value
                        .parse::<i64>()
                        .ok()
                        .filter(|_| number)
                        .map_or(Value::from(value.clone()), Value::from);
                    check(schema, &value, name, &mut flaws);
                }
            }
        }
        match (self.body.is_null(), body) {
            (true, Some(_)) => flaws.push("body: there is none".into()),
            (false, Some(body)) => check(&self.body, body, "body", &mut flaws),
            _ => {}
        }
        flaws
    }
}

/// The part of JSON Schema that the description uses. Stricter than GitHub: unknown fields are violations.
fn check(schema: &Value, value: &Value, at: &str, flaws: &mut Vec<String>) {
    if value.is_null() && schema["nullable"] == Value::Bool(true) {
        return;
    }
    for several in ["oneOf", "anyOf"] {
        if let Some(options) = schema[several].as_array() {
            let fits = |option: &Value| {
                // An option that only adds conditions repeats none of the properties.
                let mut inner = Vec::new();
                if option.get("properties").is_none() && option.get("type").is_none() {
                    required(option, value, at, &mut inner);
                } else {
                    check(option, value, at, &mut inner);
                }
                inner.is_empty()
            };
            if !options.iter().any(fits) {
                flaws.push(format!("{at}: fits none of {several}"));
            }
        }
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if let Some(wanted) = schema["type"].as_str()
        && wanted != kind
        && !(wanted == "number" && kind == "integer")
    {
        flaws.push(format!("{at}: is {kind}, not {wanted}"));
        return;
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        flaws.push(format!("{at}: {value} is none of {words:?}"));
    }
    if let (Some(most), Some(text)) = (schema["maxLength"].as_u64(), value.as_str())
        && text.chars().count() as u64 > most
    {
        flaws.push(format!("{at}: is longer than {most}"));
    }
    if let Some(items) = value.as_array() {
        items.iter().for_each(|item| check(&schema["items"], item, &format!("{at}[]"), flaws));
    }
    if let (Some(fields), Some(known)) = (value.as_object(), schema["properties"].as_object()) {
        for (name, value) in fields {
            match known.get(name) {
                Some(schema) => check(schema, value, &format!("{at}.{name}"), flaws),
                None => flaws.push(format!("{at}: no property `{name}`")),
            }
        }
    }
    required(schema, value, at, flaws);
}

fn required(schema: &Value, value: &Value, at: &str, flaws: &mut Vec<String>) {
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(name).is_none() {
            flaws.push(format!("{at}: `{name}` is missing"));
        }
    }
}

#[test]
fn what_does_not_fit_the_description_is_seen() {
    let all = operations();
    let find = |method, path| all.iter().find(|o| o.matches(method, path).is_some()).unwrap();
    let create = find("POST", "/repos/o/r/pulls");
    let good = serde_json::json!({"title": "t", "head": "h", "base": "b", "draft": false});
    assert_eq!(create.flaws(&[], Some(&good)), [""; 0]);
    for bad in [
        serde_json::json!({"title": "t", "head": "h"}),
        serde_json::json!({"title": "t", "head": 7, "base": "b"}),
        serde_json::json!({"title": "t", "head": "h", "base": "b", "color": "red"}),
    ] {
        assert!(!create.flaws(&[], Some(&bad)).is_empty(), "{bad}");
    }
    let list = find("GET", "/repos/o/r/pulls");
    assert!(!list.flaws(&[("state".into(), "merged".into())], None).is_empty());
    assert!(!list.flaws(&[("stat".into(), "open".into())], None).is_empty());
    assert_eq!(
        list.flaws(&[("state".into(), "open".into()), ("per_page".into(), "5".into())], None),
        [""; 0]
    );
}
