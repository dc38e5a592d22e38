//! References to templates: `[namespace/]name[:tag]`.

use std::fmt;
use std::str::FromStr;

/// A reference to a template, lower-cased; a missing tag means `default`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TemplateRef {
    pub namespace: Option<String>,
    pub name: String,
    pub tag: Option<String>,
}

/// The text does not follow the grammar of template references.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template `{0}` is not of the form [namespace/]name[:tag] with letters, digits, - and _")]
pub struct BadTemplateRef(pub String);

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
}

fn is_tag(text: &str) -> bool {
    !text.is_empty() && text.split('.').all(|part| part.is_empty() || is_name(part)) && text.len() <= 128
}

impl FromStr for TemplateRef {
    type Err = BadTemplateRef;

    fn from_str(text: &str) -> Result<Self, BadTemplateRef> {
        let bad = || BadTemplateRef(text.chars().take(200).collect());
        let lower = text.trim().to_ascii_lowercase();
        let (path, tag) = match lower.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (lower.as_str(), None),
        };
        let (namespace, name) = match path.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, path),
        };
        if !is_name(name) || !namespace.is_none_or(is_name) || !tag.is_none_or(is_tag) {
            return Err(bad());
        }
        Ok(Self {
            namespace: namespace.map(String::from),
            name: name.to_string(),
            tag: tag.map(String::from),
        })
    }
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)?;
        match &self.tag {
            Some(tag) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn references_follow_the_grammar() {
        let parse = |text: &str| text.parse::<TemplateRef>().map(|r| r.to_string());
        assert_eq!(parse("base"), Ok("base".into()));
        assert_eq!(parse("Team/My_App:v1.2"), Ok("team/my_app:v1.2".into()));
        for bad in ["", "a/b/c", "a b", "../etc", "a:", ":x", "a:b:c", "é"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_reference_reads_back(text in "([a-z0-9_-]{1,9}/)?[a-z0-9_-]{1,9}(:[a-z0-9_.-]{1,9})?") {
            let reference: TemplateRef = text.parse().unwrap();
            prop_assert_eq!(reference.to_string(), text);
        }
    }
}
