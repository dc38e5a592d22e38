//! The policy of a sandbox.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Entry, Proxy};

/// What may be reached where no list says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// Nothing.
    #[default]
    None,
    /// Ports 80 and 443 of public addresses.
    Web,
    /// Every port of public addresses.
    Public,
}

impl Base {
    pub(super) fn opens(self, port: u16) -> bool {
        match self {
            Self::None => false,
            Self::Web => port == 80 || port == 443,
            Self::Public => true,
        }
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Web => "web",
            Self::Public => "public",
        })
    }
}

/// What a sandbox may reach: a base and lists of exceptions, of which the allow list wins.
///
/// The default opens nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Policy {
    base: Base,
    allow: Vec<Entry>,
    deny: Vec<Entry>,
    proxy: Option<Proxy>,
}

/// The lists of a policy are too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a policy may allow and deny at most {} entries each", Policy::MOST_ENTRIES)]
pub struct BadPolicy;

impl Policy {
    /// The most entries of each list.
    pub const MOST_ENTRIES: usize = 1000;

    /// Makes a policy of a base alone.
    pub const fn of(base: Base) -> Self {
        Self { base, allow: Vec::new(), deny: Vec::new(), proxy: None }
    }

    /// Makes a policy; the lists are bounded, because every connection walks them.
    pub fn new(base: Base, allow: Vec<Entry>, deny: Vec<Entry>) -> Result<Self, BadPolicy> {
        if allow.len() > Self::MOST_ENTRIES || deny.len() > Self::MOST_ENTRIES {
            return Err(BadPolicy);
        }
        Ok(Self { base, allow, deny, proxy: None })
    }

    /// The same, but all that it allows goes through `proxy`. What the proxy reaches is its own affair.
    #[must_use]
    pub fn through(mut self, proxy: Option<Proxy>) -> Self {
        self.proxy = proxy;
        self
    }

    /// The same without secrets, to be shown.
    #[must_use]
    pub fn shown(mut self) -> Self {
        self.proxy = self.proxy.map(Proxy::without_password);
        self
    }

    pub fn base(&self) -> Base {
        self.base
    }

    pub fn allow(&self) -> &[Entry] {
        &self.allow
    }

    pub fn deny(&self) -> &[Entry] {
        &self.deny
    }

    /// Where connections go through, if not straight out.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }
}

/// A policy as it is written down, before its bounds are checked.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    base: Base,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deny: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proxy: Option<Proxy>,
}

impl TryFrom<Written> for Policy {
    type Error = BadPolicy;

    fn try_from(written: Written) -> Result<Self, BadPolicy> {
        Ok(Self::new(written.base, written.allow, written.deny)?.through(written.proxy))
    }
}

impl From<Policy> for Written {
    fn from(policy: Policy) -> Self {
        Self { base: policy.base, allow: policy.allow, deny: policy.deny, proxy: policy.proxy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_policy_survives_json() {
        let policy =
            Policy::new(Base::Web, vec!["*.a.com:22".parse().unwrap()], vec!["8.8.8.8".parse().unwrap()])
                .unwrap();
        let written = serde_json::to_value(&policy).unwrap();
        assert_eq!(written, json!({"base": "web", "allow": ["*.a.com:22"], "deny": ["8.8.8.8"]}));
        assert_eq!(serde_json::from_value::<Policy>(written).unwrap(), policy);
        let proxied = policy.through(Some(Proxy::new("a.com:1080", Some("me"), Some("hunter2")).unwrap()));
        let written = serde_json::to_value(&proxied).unwrap();
        assert_eq!(serde_json::from_value::<Policy>(written).unwrap(), proxied);
        assert!(!serde_json::to_string(&proxied.shown()).unwrap().contains("hunter2"));
    }

    #[test]
    fn lists_are_bounded_and_fields_known() {
        let many = vec!["a.com"; Policy::MOST_ENTRIES + 1];
        assert!(serde_json::from_value::<Policy>(json!({"base": "none", "allow": many})).is_err());
        assert!(serde_json::from_value::<Policy>(json!({"base": "none", "alow": []})).is_err());
        assert_eq!(Policy::default(), Policy::of(Base::None));
    }
}
