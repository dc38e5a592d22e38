//! Which models a project allows, and what is kept of their calls.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ModelFallback;

const LONGEST: usize = 200;
const MOST_PATTERNS: usize = 200;

/// The name of a model, or its beginning and `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelPattern(String);

/// The text is not a pattern of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a model is 1 to 200 letters, digits and `._-/:`, with `*` at the end for every ending")]
pub struct BadModelPattern;

impl ModelPattern {
    pub fn fits(&self, model: &str) -> bool {
        let model = model.to_ascii_lowercase();
        match self.0.strip_suffix('*') {
            Some(begins) => model.starts_with(begins),
            None => model == self.0,
        }
    }
}

impl FromStr for ModelPattern {
    type Err = BadModelPattern;

    fn from_str(text: &str) -> Result<Self, BadModelPattern> {
        let begins = text.strip_suffix('*').unwrap_or(text);
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-/:".contains(&b);
        let good = (1..=LONGEST).contains(&text.len()) && begins.bytes().all(fits);
        if good { Ok(Self(text.to_ascii_lowercase())) } else { Err(BadModelPattern) }
    }
}

impl fmt::Display for ModelPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Serialize for ModelPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ModelPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A project's rules for models.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelPolicy {
    /// The models that agents may call through the gateway; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<ModelPattern>>,
    /// Whether requests and answers are kept with the record of a call.
    pub keep_bodies: bool,
    /// Tried in their order when a provider is overloaded, fails or is away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<ModelFallback>,
}

impl ModelPolicy {
    pub fn allows(&self, model: &str) -> bool {
        self.allow.as_ref().is_none_or(|allow| allow.iter().any(|pattern| pattern.fits(model)))
    }

    /// Whether it is within bounds.
    pub fn is_small(&self) -> bool {
        self.allow.as_ref().is_none_or(|allow| allow.len() <= MOST_PATTERNS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_allowed_by_name_or_beginning() {
        let policy: ModelPolicy =
            serde_json::from_str(r#"{"allow": ["claude-haiku-*", "gpt-6-luna"]}"#).unwrap();
        for (model, is_allowed) in [
            ("claude-haiku-4-5", true),
            ("Claude-Haiku-4-5", true),
            ("claude-opus-5", false),
            ("gpt-6-luna", true),
            ("gpt-6-luna-2", false),
            ("", false),
        ] {
            assert_eq!(policy.allows(model), is_allowed, "{model}");
        }
        assert!(ModelPolicy::default().allows("anything"));
        assert!(!ModelPolicy { allow: Some(Vec::new()), ..ModelPolicy::default() }.allows("anything"));
        for bad in ["", "a*b", "a b", "**", "ä"] {
            assert!(bad.parse::<ModelPattern>().is_err(), "{bad}");
        }
    }
}
