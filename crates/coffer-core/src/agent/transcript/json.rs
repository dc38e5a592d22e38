//! Values of agents' JSON: nothing in it is trusted beyond being shown.

use serde_json::Value;

use super::text::cut;

const LONGEST_NAME: usize = 200;
/// Most tokens that an agent may report: more is nonsense.
pub(super) const MOST_TOKENS: u64 = 1 << 50;

pub(in crate::agent) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(in crate::agent) fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default().min(MOST_TOKENS)
}

/// A short text that is not empty.
pub(in crate::agent) fn name(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(|text| cut(text, LONGEST_NAME))
}

/// The first of these members that is text.
pub(super) fn first<'a>(value: &'a Value, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| value[*name].as_str())
}
