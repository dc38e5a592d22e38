//! E2B's form of network settings, extended by our own policy, and its meaning.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    BadE2bNetwork, BadHeader, BadHeaderHost, BadPolicy, BadProxy, E2bNetwork, HeaderName, HeaderRule,
    HeaderText, Policy, Proxy, SECRET_REFERENCE, policy_from_e2b,
};

/// How E2B's clients refer to a secret of the project; its name and `}` follow.
pub const E2B_SECRET_REFERENCE: &str = "${e2b.secrets.";

fn refers_to_secret(value: &str) -> bool {
    value.contains(SECRET_REFERENCE) || value.contains(E2B_SECRET_REFERENCE)
}

/// Outbound and inbound settings, as E2B's clients write them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct E2bSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_servers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<E2bProxy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub https_ports: Option<Vec<u16>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<BTreeMap<String, Vec<E2bRule>>>,
    /// Not E2B's: our own form, instead of `allow_out` and `deny_out`, with ports and closed bases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct E2bProxy {
    pub address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<E2bProxyTls>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct E2bProxyTls {
    pub enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_cert: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct E2bRule {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transform: Option<E2bTransform>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct E2bTransform {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
}

impl E2bRule {
    fn refers_to_secrets(&self) -> bool {
        let headers = self.transform.as_ref().and_then(|transform| transform.headers.as_ref());
        headers.into_iter().flat_map(BTreeMap::values).any(|value| refers_to_secret(value))
    }
}

/// Invalid settings; the text is for the person who sent them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadE2bSettings {
    #[error(transparent)]
    Lists(#[from] BadE2bNetwork),
    #[error(
        "this server does not support workload identity tokens in rules; use a secret instead: \
         `${{e2b.secrets.NAME}}`"
    )]
    IdentityToken,
    #[error("rules for '{host}': {error}")]
    Header { host: String, error: BadHeader },
    #[error("rules: {0}")]
    Host(#[from] BadHeaderHost),
    #[error(transparent)]
    TooLarge(#[from] BadPolicy),
    #[error("this server does not support egressProxy tls; use a proxy without TLS")]
    ProxyTls,
    #[error("egressProxy: {0}")]
    Proxy(#[from] BadProxy),
    #[error("network.policy cannot be combined with allowOut, denyOut or allow_internet_access")]
    PolicyAndLists,
    #[error("network.policy cannot be `withheld`")]
    PolicyWithheld,
    #[error("network.policy cannot have routes for git: clone a repository into the sandbox instead")]
    PolicyWithGit,
    #[error("network.policy cannot have a proxy: set egressProxy instead")]
    PolicyWithProxy,
}

impl BadE2bSettings {
    /// Whether the settings are right but ask for something that this server does not have.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::IdentityToken | Self::ProxyTls)
    }
}

impl E2bSettings {
    /// The policy of these settings. `internet` is E2B's `allow_internet_access`, which is next to them in a
    /// request.
    pub fn policy(&self, internet: Option<bool>) -> Result<Policy, BadE2bSettings> {
        let policy = self.lists_or_own(internet)?;
        let policy = match &self.egress_proxy {
            Some(proxy) => policy.through(Some(proxy.read()?)),
            None => policy,
        };
        self.add_rules(policy)
    }

    /// Our own form or E2B's; both together would be ambiguous, so they are refused.
    fn lists_or_own(&self, internet: Option<bool>) -> Result<Policy, BadE2bSettings> {
        let e2b = E2bNetwork {
            internet,
            allow_out: self.allow_out.as_deref().unwrap_or_default(),
            deny_out: self.deny_out.as_deref().unwrap_or_default(),
            dns_servers: self.dns_servers.as_deref().unwrap_or_default(),
        };
        let Some(own) = &self.policy else { return Ok(policy_from_e2b(e2b)?) };
        if internet == Some(false) || !e2b.allow_out.is_empty() || !e2b.deny_out.is_empty() {
            return Err(BadE2bSettings::PolicyAndLists);
        }
        if own.is_withheld() {
            return Err(BadE2bSettings::PolicyWithheld);
        }
        if !own.git().is_empty() || own.model().is_some() {
            // A route may lead to this very host, so only the server creates them.
            return Err(BadE2bSettings::PolicyWithGit);
        }
        if own.proxy().is_some() {
            return Err(BadE2bSettings::PolicyWithProxy);
        }
        Ok(own.clone())
    }

    /// The same policy with E2B's rules, which come after its own.
    fn add_rules(&self, policy: Policy) -> Result<Policy, BadE2bSettings> {
        let mut headers = policy.headers().to_vec();
        for (host, rules) in self.rules.iter().flatten() {
            let of = rules.iter().filter_map(|rule| rule.transform.as_ref()?.headers.as_ref()).flatten();
            let read = |(name, text): (&String, &String)| {
                let text = text.replace(E2B_SECRET_REFERENCE, SECRET_REFERENCE);
                if text.contains("${e2b.") {
                    return Err(BadE2bSettings::IdentityToken);
                }
                let (name, text) = (HeaderName::parse(name), HeaderText::parse(&text));
                let wrong = |error| BadE2bSettings::Header { host: host.chars().take(80).collect(), error };
                Ok((name.map_err(wrong)?, text.map_err(wrong)?))
            };
            let of: BTreeMap<_, _> = of.map(read).collect::<Result<_, _>>()?;
            if !of.is_empty() {
                headers.push(HeaderRule { hosts: vec![host.parse()?], headers: of, plain_http: false });
            }
        }
        Ok(policy.with_headers(headers)?)
    }

    /// The settings for display: without the proxy's password, and without literal values of headers.
    #[must_use]
    pub fn masked(mut self) -> Self {
        if let Some(proxy) = &mut self.egress_proxy {
            proxy.password = None;
        }
        self.policy = self.policy.map(Policy::shown);
        for rule in self.rules.iter_mut().flat_map(BTreeMap::values_mut).flatten() {
            let headers = rule.transform.iter_mut().filter_map(|transform| transform.headers.as_mut());
            let values = headers.flat_map(BTreeMap::values_mut);
            for value in values.filter(|value| !refers_to_secret(value)) {
                *value = "***".to_string();
            }
        }
        self
    }

    /// The settings without the rules that put secrets of the project into requests.
    #[must_use]
    pub(super) fn without_references(mut self) -> Self {
        self.policy = self.policy.map(Policy::without_references);
        if let Some(hosts) = &mut self.rules {
            hosts.retain(|_, rules| !rules.iter().any(E2bRule::refers_to_secrets));
        }
        self
    }
}

impl E2bProxy {
    /// Connections must never bypass the proxy: unsupported settings are refused.
    fn read(&self) -> Result<Proxy, BadE2bSettings> {
        if self.tls.as_ref().is_some_and(|tls| tls.enabled) {
            return Err(BadE2bSettings::ProxyTls);
        }
        Ok(Proxy::new(&self.address, self.username.as_deref(), self.password.as_deref())?)
    }
}
