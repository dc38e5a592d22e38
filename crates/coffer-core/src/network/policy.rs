//! The network policy of a sandbox.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::header::Opened;
use super::{BadHeader, Entry, GitRoute, HeaderName, HeaderRule, HeaderText, HostName, ModelRoute, Proxy};
use crate::ProjectId;

/// What may be reached if no list matches.
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

impl Base {
    const fn is_within(self, other: Self) -> bool {
        matches!((self, other), (Self::None, _) | (Self::Web, Self::Web) | (_, Self::Public))
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

/// A base and lists of exceptions, of which the allow list wins.
///
/// The default opens nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Policy {
    base: Base,
    allow: Vec<Entry>,
    deny: Vec<Entry>,
    proxy: Option<Proxy>,
    headers: Vec<HeaderRule>,
    git: Vec<GitRoute>,
    model: Option<ModelRoute>,
    withheld: bool,
    project: Option<ProjectId>,
}

/// A policy exceeds its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    #[error("a policy may allow and deny at most {} entries each", Policy::MOST_ENTRIES)]
    Entries,
    #[error(
        "a policy may have at most {} rules for headers, each with 1 to {} hosts and 1 to {} headers, and \
         {} bytes of headers in all",
        Policy::MOST_RULES,
        HeaderRule::MOST_HOSTS,
        HeaderRule::MOST_HEADERS,
        Policy::MOST_HEADER_BYTES
    )]
    Headers,
    #[error("a policy may have at most {} routes for git, with different names", Policy::MOST_ROUTES)]
    Git,
    #[error("the way to models must lead to the server")]
    Model,
}

impl Policy {
    /// The most entries of each list.
    pub const MOST_ENTRIES: usize = 1000;
    const MOST_RULES: usize = 32;
    const MOST_HEADER_BYTES: usize = 128 * 1024;
    /// The most repositories at the gate.
    pub const MOST_ROUTES: usize = 32;

    /// Creates a policy from a base only.
    pub const fn of(base: Base) -> Self {
        Self {
            base,
            allow: Vec::new(),
            deny: Vec::new(),
            proxy: None,
            headers: Vec::new(),
            git: Vec::new(),
            model: None,
            withheld: false,
            project: None,
        }
    }

    /// Creates a policy; the lists are bounded, because every connection walks them.
    pub fn new(base: Base, allow: Vec<Entry>, deny: Vec<Entry>) -> Result<Self, BadPolicy> {
        if allow.len() > Self::MOST_ENTRIES || deny.len() > Self::MOST_ENTRIES {
            return Err(BadPolicy::Entries);
        }
        Ok(Self { allow, deny, ..Self::of(base) })
    }

    /// The same, but all allowed connections go through `proxy`, which decides what it reaches.
    #[must_use]
    pub fn through(mut self, proxy: Option<Proxy>) -> Self {
        self.proxy = proxy;
        self
    }

    /// The same, counted for a project's share. It opens and closes nothing.
    #[must_use]
    pub fn of_project(mut self, project: ProjectId) -> Self {
        self.project = Some(project);
        self
    }

    /// The project of its sandbox, if set.
    pub fn project(&self) -> Option<ProjectId> {
        self.project
    }

    /// Whether it opens nothing beyond `base`: no other port, proxy, or header.
    pub fn is_within(&self, base: Base) -> bool {
        let opens = |entry: &Entry| base == Base::Public || entry.ports.are_all(|port| base.opens(port));
        self.proxy.is_none()
            && self.headers.is_empty()
            && self.git.is_empty()
            && self.model.is_none()
            && self.base.is_within(base)
            && self.allow.iter().all(opens)
    }

    /// The same, with headers that egress adds to requests.
    pub fn with_headers(mut self, headers: Vec<HeaderRule>) -> Result<Self, BadPolicy> {
        let fits = |rule: &HeaderRule| {
            (1..=HeaderRule::MOST_HOSTS).contains(&rule.hosts.len())
                && (1..=HeaderRule::MOST_HEADERS).contains(&rule.headers.len())
        };
        let bytes: usize = headers.iter().map(HeaderRule::bytes).sum();
        if headers.len() > Self::MOST_RULES
            || bytes > Self::MOST_HEADER_BYTES
            || !(self.withheld || headers.iter().all(fits))
        {
            return Err(BadPolicy::Headers);
        }
        self.headers = headers;
        Ok(self)
    }

    /// The same, with repositories at the git gate.
    pub fn with_git(mut self, routes: Vec<GitRoute>) -> Result<Self, BadPolicy> {
        let slugs: std::collections::HashSet<_> = routes.iter().map(|route| &route.slug).collect();
        if routes.len() > Self::MOST_ROUTES || slugs.len() < routes.len() {
            return Err(BadPolicy::Git);
        }
        self.git = routes;
        Ok(self)
    }

    /// The same, with a way to the model gateway.
    pub fn with_model(mut self, route: Option<ModelRoute>) -> Result<Self, BadPolicy> {
        if !route.as_ref().is_none_or(ModelRoute::is_to_server) {
            return Err(BadPolicy::Model);
        }
        self.model = route;
        Ok(self)
    }

    /// The way to the model gateway, if there is one.
    pub fn model(&self) -> Option<&ModelRoute> {
        self.model.as_ref()
    }

    /// The repositories at the git gate.
    pub fn git(&self) -> &[GitRoute] {
        &self.git
    }

    /// The same, with each header's value replaced by `change`.
    pub fn map_headers<E>(
        mut self,
        mut change: impl FnMut(&HeaderRule, &HeaderText) -> Result<HeaderText, E>,
    ) -> Result<Self, E> {
        for rule in &mut self.headers {
            let changed = rule.headers.iter().map(|(name, text)| Ok((name.clone(), change(rule, text)?)));
            rule.headers = changed.collect::<Result<_, E>>()?;
        }
        Ok(self)
    }

    /// The same without secrets, for display: a header's value is shown only if it is a reference.
    #[must_use]
    pub fn shown(mut self) -> Self {
        self.proxy = self.proxy.map(Proxy::without_password);
        let hidden = |_: &HeaderRule, text: &HeaderText| -> Result<HeaderText, BadHeader> {
            if text.refers_to_secrets() { Ok(text.clone()) } else { HeaderText::parse("***") }
        };
        // Routes are internal to the server.
        self.git.clear();
        self.model = None;
        self.project = None;
        self.clone().map_headers(hidden).unwrap_or(self)
    }

    /// The same without secrets, for storage where they are not allowed. Connections that need them are
    /// refused until the full policy is set again.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        let has_login = self.proxy.as_ref().is_some_and(|proxy| proxy.login().is_some());
        let needs_login = |route: &GitRoute| route.authorization.is_some();
        let has_pass = self.model.as_ref().is_some_and(|route| route.authorization.is_some());
        self.withheld |=
            has_login || has_pass || !self.headers.is_empty() || self.git.iter().any(needs_login);
        self.proxy = self.proxy.map(Proxy::without_password);
        self.headers.iter_mut().for_each(|rule| rule.headers.clear());
        for route in &mut self.git {
            (route.authorization, route.push) = (None, None);
        }
        if let Some(route) = &mut self.model {
            route.authorization = None;
        }
        self
    }

    /// The same without the headers that refer to secrets of the project. Their hosts stay reachable.
    #[must_use]
    pub fn without_references(mut self) -> Self {
        self.headers.retain(|rule| !rule.headers.values().any(HeaderText::refers_to_secrets));
        self
    }

    /// The names of the project's secrets that headers refer to.
    pub fn secret_names(&self) -> BTreeSet<String> {
        let texts = self.headers.iter().flat_map(|rule| rule.headers.values());
        texts.flat_map(HeaderText::secret_names).map(String::from).collect()
    }

    /// Whether [`without_secrets`](Self::without_secrets) removed something.
    pub fn is_withheld(&self) -> bool {
        self.withheld
    }

    /// Whether it contains secrets: a proxy's, or values of headers.
    pub fn has_secrets(&self) -> bool {
        !self.withheld && *self != self.clone().without_secrets()
    }

    pub fn headers(&self) -> &[HeaderRule] {
        &self.headers
    }

    /// Whether a name could matter for the headers of a connection to this port.
    pub fn has_headers_at(&self, port: u16) -> bool {
        self.headers.iter().any(|rule| rule.is_about_port(port))
    }

    /// How a connection is terminated to add headers, if any apply.
    pub fn opens_for_headers(&self, name: &HostName, port: u16) -> Option<Opened> {
        let mut opened = self.headers.iter().filter_map(|rule| rule.opens(name, port));
        let first = opened.next()?;
        Some(if opened.any(|other| other == Opened::Tls) { Opened::Tls } else { first })
    }

    /// The headers for requests to a host; later rules win.
    pub fn headers_for(&self, name: &HostName, port: u16) -> Vec<(&HeaderName, &HeaderText)> {
        let mut found = std::collections::BTreeMap::new();
        for rule in self.headers.iter().filter(|rule| rule.opens(name, port).is_some()) {
            found.extend(rule.headers.iter());
        }
        found.into_iter().collect()
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

    /// The proxy of connections, if any.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }
}

/// A policy as written, before its bounds are checked.
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<HeaderRule>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    git: Vec<GitRoute>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<ModelRoute>,
    /// Secrets were removed before it was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    withheld: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    project: Option<ProjectId>,
}

impl TryFrom<Written> for Policy {
    type Error = BadPolicy;

    fn try_from(written: Written) -> Result<Self, BadPolicy> {
        let mut policy = Self::new(written.base, written.allow, written.deny)?.through(written.proxy);
        (policy.withheld, policy.project) = (written.withheld, written.project);
        policy.with_headers(written.headers)?.with_git(written.git)?.with_model(written.model)
    }
}

impl From<Policy> for Written {
    fn from(policy: Policy) -> Self {
        let Policy { base, allow, deny, proxy, headers, git, model, withheld, project } = policy;
        Self { base, allow, deny, proxy, headers, git, model, withheld, project }
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
    fn a_policy_is_within_a_base_that_opens_all_that_it_opens() {
        let policy = |written: serde_json::Value| serde_json::from_value::<Policy>(written).unwrap();
        for within in [
            json!({"base": "none"}),
            json!({"base": "web", "deny": ["1.1.1.1"]}),
            json!({"base": "none", "allow": ["a.com:443", "*.b.com:80"]}),
        ] {
            assert!(policy(within.clone()).is_within(Base::Web), "{within}");
        }
        for wider in [
            json!({"base": "public"}),
            json!({"base": "none", "allow": ["a.com"]}),
            json!({"base": "web", "allow": ["*:22"]}),
            json!({"base": "none", "allow": ["a.com:80-443"]}),
            json!({"base": "none", "headers": [{"hosts": ["a.com"], "headers": {"X-Ref": "y"}}]}),
        ] {
            assert!(!policy(wider.clone()).is_within(Base::Web), "{wider}");
        }
        assert!(policy(json!({"base": "public", "allow": ["a.com", "*:22"]})).is_within(Base::Public));
        let proxied = Policy::of(Base::None).through(Some(Proxy::new("a.com:1080", None, None).unwrap()));
        assert!(!proxied.is_within(Base::Public));
    }

    #[test]
    fn what_is_written_down_has_no_secrets_and_says_so() {
        let whole: Policy = serde_json::from_value(json!({
            "base": "web",
            "headers": [
                {"hosts": ["a.com"], "headers": {"Authorization": "Bearer hidden", "X-Ref": "${secret:N}"}},
                {"hosts": ["*.a.com", "a.com:8443"], "headers": {"X-Ref": "later"}, "plain_http": true},
            ],
        }))
        .unwrap();
        assert!(whole.has_secrets() && !whole.is_withheld());
        assert!(!format!("{whole:?}").contains("hidden"));
        let shown = serde_json::to_string(&whole.clone().shown()).unwrap();
        assert!(!shown.contains("hidden") && shown.contains("${secret:N}"), "{shown}");
        let text = serde_json::to_string(&whole.clone().without_secrets()).unwrap();
        assert!(!text.contains("hidden") && !text.contains("secret:"), "{text}");
        let kept: Policy = serde_json::from_str(&text).unwrap();
        assert!(kept.is_withheld() && !kept.has_secrets());
        let name = |text: &str| text.parse::<HostName>().unwrap();
        assert_eq!(kept.opens_for_headers(&name("a.com"), 443), Some(Opened::Tls));
        assert!(!Policy::of(Base::Web).without_secrets().is_withheld());

        assert_eq!(whole.headers_for(&name("a.com"), 443).len(), 2);
        assert_eq!(whole.headers_for(&name("a.com"), 8443).len(), 1);
        assert_eq!(whole.opens_for_headers(&name("x.a.com"), 80), Some(Opened::Plain));
        assert_eq!(whole.opens_for_headers(&name("b.com"), 443), None);
        assert!(whole.has_headers_at(80) && !whole.has_headers_at(22));
    }

    #[test]
    fn routes_are_written_down_without_credentials_and_windows() {
        let until = 1;
        let route = json!({
            "slug": "app", "upstream": "https://github.com/o/app.git", "authorization": "Basic hidden",
            "push": {"reference": "refs/heads/task-1", "expects": "0".repeat(40), "until_ms": until},
        });
        let policy = |routes: serde_json::Value| {
            serde_json::from_value::<Policy>(json!({"base": "none", "git": routes}))
        };
        let whole = policy(json!([route])).unwrap();
        assert_eq!(serde_json::from_value::<Policy>(serde_json::to_value(&whole).unwrap()).unwrap(), whole);
        assert!(!format!("{whole:?}").contains("hidden"));
        let kept = whole.clone().without_secrets();
        assert!(kept.is_withheld() && kept.git()[0].push.is_none(), "{kept:?}");
        assert!(!serde_json::to_string(&kept).unwrap().contains("hidden"));
        assert!(whole.shown().git().is_empty());
        assert!(policy(json!([route, route])).is_err(), "one name, one repository");
        assert!(policy(json!([{"slug": "a", "upstream": "https://10.0.0.1/a"}])).is_err());
    }

    #[test]
    fn lists_are_bounded_and_fields_known() {
        let many = vec!["a.com"; Policy::MOST_ENTRIES + 1];
        assert!(serde_json::from_value::<Policy>(json!({"base": "none", "allow": many})).is_err());
        assert!(serde_json::from_value::<Policy>(json!({"base": "none", "alow": []})).is_err());
        assert_eq!(Policy::default(), Policy::of(Base::None));
        let rule = json!({"hosts": ["a.com"], "headers": {"a": "b"}});
        for bad in [
            json!([{"hosts": [], "headers": {"a": "b"}}]),
            json!([{"hosts": ["a.com"], "headers": {}}]),
            json!(vec![rule; 33]),
        ] {
            assert!(serde_json::from_value::<Policy>(json!({"base": "none", "headers": bad})).is_err());
        }
    }
}
