//! The network settings of a sandbox, as stored in its row.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BadE2bSettings, E2bSettings, Policy};

/// Outbound and inbound settings. They may contain secrets: a proxy's password, values of headers.
///
/// The default opens nothing to the sandbox, and its own ports to everyone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSettings {
    /// Its network policy; secrets of the project by reference.
    pub policy: Policy,
    pub inbound: Inbound,
    /// E2B's form of the settings for E2B's clients, without secrets. It decides nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<E2bSettings>,
}

/// Access to a sandbox's own ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inbound {
    /// The `Host` header for its servers, with `${PORT}` for the port; the public one by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_host: Option<String>,
    /// The ports at which its servers speak HTTPS themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub https_ports: Vec<u16>,
    /// Whether anyone may reach them, without a traffic token.
    pub public: bool,
}

impl Default for Inbound {
    fn default() -> Self {
        Self { mask_host: None, https_ports: Vec::new(), public: true }
    }
}

/// The network settings of a row cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum BadNetworkSettings {
    #[error("the settings have an unknown form: {0}")]
    Form(#[from] serde_json::Error),
    #[error("the settings are invalid: {0}")]
    Meaning(#[from] BadE2bSettings),
}

impl NetworkSettings {
    /// Replaces unreadable settings: the sandbox reaches nothing, and needs a token.
    pub fn closed() -> Self {
        Self { inbound: Inbound { public: false, ..Inbound::default() }, ..Self::default() }
    }

    /// Parses a request in E2B's form; `internet` is its `allow_internet_access`.
    pub fn from_e2b(settings: Option<E2bSettings>, internet: Option<bool>) -> Result<Self, BadE2bSettings> {
        let Some(settings) = settings else {
            let policy = E2bSettings::default().policy(internet)?;
            return Ok(Self { policy, ..Self::default() });
        };
        let inbound = Inbound {
            mask_host: settings.mask_request_host.clone(),
            https_ports: settings.https_ports.clone().unwrap_or_default(),
            public: settings.allow_public_traffic.unwrap_or(true),
        };
        Ok(Self { policy: settings.policy(internet)?, inbound, shown: Some(settings.masked()) })
    }

    /// Parses the settings of a row. Rows of 0.1.0 have E2B's request or nothing, with `internet` in a
    /// separate column; they have no `inbound`, which every later row has.
    pub fn from_row(stored: Option<Value>, internet: Option<bool>) -> Result<Self, BadNetworkSettings> {
        match stored {
            Some(stored) if stored.get("inbound").is_some() => Ok(serde_json::from_value(stored)?),
            Some(old) => Ok(Self::from_e2b(Some(serde_json::from_value(old)?), internet)?),
            None => Ok(Self::from_e2b(None, internet)?),
        }
    }

    /// The settings after a change of the policy: inbound settings stay.
    #[must_use]
    pub fn updated(self, policy: Policy, outbound: E2bSettings) -> Self {
        let before = self.shown.unwrap_or_default();
        let shown = E2bSettings {
            allow_public_traffic: before.allow_public_traffic,
            mask_request_host: before.mask_request_host,
            https_ports: before.https_ports,
            ..outbound
        };
        Self { policy, inbound: self.inbound, shown: Some(shown.masked()) }
    }

    /// The settings without the headers that put secrets of the project into requests.
    #[must_use]
    pub fn without_references(self) -> Self {
        let shown = self.shown.map(E2bSettings::without_references);
        Self { policy: self.policy.without_references(), inbound: self.inbound, shown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Base;
    use serde_json::json;

    fn old(row: Value, internet: Option<bool>) -> NetworkSettings {
        NetworkSettings::from_row(Some(row), internet).unwrap()
    }

    fn policy(written: Value) -> Policy {
        serde_json::from_value(written).unwrap()
    }

    #[test]
    fn a_row_of_0_1_0_is_read_as_what_it_meant() {
        let read = old(
            json!({
                "allowOut": ["*.a.com"], "denyOut": ["0.0.0.0/0"], "maskRequestHost": "a.com:${PORT}",
                "httpsPorts": [8443], "allowPublicTraffic": false,
                "egressProxy": {"address": "p.com:1080", "username": "u", "password": "hidden"},
                "rules": {"b.com": [{"transform": {"headers": {"X": "hidden", "Y": "${secret:T}"}}}]},
            }),
            Some(true),
        );
        let expected = policy(json!({
            "base": "public", "allow": ["*.a.com"], "deny": ["0.0.0.0/0", "::/0"],
            "headers": [{"hosts": ["b.com"], "headers": {"x": "hidden", "y": "${secret:T}"}}],
        }));
        assert_eq!(read.policy.clone().through(None), expected);
        assert_eq!(read.policy.proxy().unwrap().login().unwrap().password(), "hidden");
        let inbound =
            Inbound { mask_host: Some("a.com:${PORT}".into()), https_ports: vec![8443], public: false };
        assert_eq!(read.inbound, inbound);
        let shown = serde_json::to_value(&read.shown).unwrap();
        assert_eq!(
            shown,
            json!({
                "allowOut": ["*.a.com"], "denyOut": ["0.0.0.0/0"], "maskRequestHost": "a.com:${PORT}",
                "httpsPorts": [8443], "allowPublicTraffic": false,
                "egressProxy": {"address": "p.com:1080", "username": "u"},
                "rules": {"b.com": [{"transform": {"headers": {"X": "***", "Y": "${secret:T}"}}}]},
            })
        );
    }

    #[test]
    fn a_row_of_0_1_0_with_our_own_policy_or_nothing_is_read() {
        let web = json!({"base": "web", "allow": ["a.com:22"]});
        let read = old(json!({"policy": web}), None);
        assert_eq!((read.policy, read.inbound), (policy(web), Inbound::default()));

        let read = |internet| NetworkSettings::from_row(None, internet).unwrap();
        assert_eq!(read(None).policy, Policy::of(Base::Public));
        let closed = policy(json!({"base": "public", "deny": ["0.0.0.0/0", "::/0"]}));
        assert_eq!((read(Some(false)).policy, read(Some(false)).shown), (closed.clone(), None));
        assert_eq!(old(json!({}), Some(false)).policy, closed);
    }

    #[test]
    fn settings_survive_a_row() {
        for request in [
            json!({}),
            json!({"policy": {"base": "web", "headers": [{"hosts": ["a.com"], "headers": {"x": "y"}}]}}),
            json!({"denyOut": ["8.8.8.8"], "maskRequestHost": "a.com", "allowPublicTraffic": false}),
            json!({"egressProxy": {"address": "p.com:1080", "username": "u", "password": "p"}}),
            json!({"rules": {"b.com": [{"transform": {"headers": {"X": "v"}}}]}, "httpsPorts": [1, 2]}),
        ] {
            let made = old(request.clone(), Some(true));
            let row = serde_json::to_value(&made).unwrap();
            // The separate column decides nothing once the policy is recorded.
            assert_eq!(NetworkSettings::from_row(Some(row), Some(false)).unwrap(), made, "{request}");
        }
        let none = NetworkSettings::from_e2b(None, Some(false)).unwrap();
        let row = serde_json::to_value(&none).unwrap();
        assert_eq!(row["inbound"], json!({"public": true}));
        assert_eq!(NetworkSettings::from_row(Some(row), None).unwrap(), none);
    }

    #[test]
    fn a_row_that_makes_no_sense_is_not_read() {
        for bad in [
            json!({"denyOut": ["a.com"]}),
            json!({"rules": "x"}),
            json!({"inbound": {"public": true}, "denyOut": []}),
            json!({"inbound": {}, "policy": {"base": "web"}}),
            json!([]),
        ] {
            assert!(NetworkSettings::from_row(Some(bad.clone()), None).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_update_clears_what_it_leaves_out_and_keeps_how_the_sandbox_is_reached() {
        let before = json!({
            "allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"], "maskRequestHost": "a.com",
            "allowPublicTraffic": false
        });
        let before = old(before, None);
        let change = E2bSettings { deny_out: Some(vec!["8.8.8.8".into()]), ..Default::default() };
        let after = before.clone().updated(change.policy(None).unwrap(), change);
        assert_eq!(after.policy, policy(json!({"base": "public", "deny": ["8.8.8.8"]})));
        assert_eq!(after.inbound, before.inbound);
        let expected =
            json!({"denyOut": ["8.8.8.8"], "maskRequestHost": "a.com", "allowPublicTraffic": false});
        assert_eq!(serde_json::to_value(after.shown).unwrap(), expected);
    }

    #[test]
    fn e2bs_references_mean_secrets_of_the_project() {
        let rule = |value: &str| json!({"rules": {"a.com": [{"transform": {"headers": {"X": value}}}]}});
        let settings = old(rule("Bearer ${e2b.secrets.a-b} ${secret:c}"), None);
        let names: Vec<_> = settings.policy.secret_names().into_iter().collect();
        assert_eq!(names, ["a-b", "c"]);
        let shown = serde_json::to_value(&settings.shown).unwrap();
        assert_eq!(shown, rule("Bearer ${e2b.secrets.a-b} ${secret:c}"), "as it was written");
        let left = old(rule("${e2b.secrets.a}"), None).without_references();
        assert!(left.policy.headers().is_empty());
        assert_eq!(serde_json::to_value(&left.shown).unwrap(), json!({"rules": {}}));
        for unsupported in ["${e2b.identity.tokens.a}", "${e2b.sandboxId}", "${e2b.secrets.a}${e2b.x}"] {
            let settings = serde_json::from_value(rule(unsupported)).unwrap();
            let refused = NetworkSettings::from_e2b(Some(settings), None).unwrap_err();
            assert!(refused.is_unsupported(), "{unsupported}: {refused}");
        }
    }

    #[test]
    fn rules_with_secrets_are_taken_out_and_others_stay() {
        let settings = old(
            json!({
                "policy": {"base": "web", "headers": [
                    {"hosts": ["a.com"], "headers": {"authorization": "Bearer ${secret:token}"}},
                    {"hosts": ["b.com"], "headers": {"x-team": "blue"}},
                ]},
                "rules": {
                    "c.com": [{"transform": {"headers": {"x": "${secret:other}"}}}],
                    "d.com": [{"transform": {"headers": {"x": "plain"}}}],
                },
            }),
            None,
        );
        let found: Vec<_> = settings.policy.secret_names().into_iter().collect();
        assert_eq!(found, ["other", "token"]);
        let left = settings.without_references();
        assert!(left.policy.secret_names().is_empty());
        let headers = json!([
            {"hosts": ["b.com"], "headers": {"x-team": "blue"}},
            {"hosts": ["d.com"], "headers": {"x": "plain"}},
        ]);
        assert_eq!(left.policy, policy(json!({"base": "web", "headers": headers})));
        assert_eq!(
            serde_json::to_value(left.shown).unwrap(),
            json!({
                "policy": {"base": "web", "headers": [{"hosts": ["b.com"], "headers": {"x-team": "***"}}]},
                "rules": {"d.com": [{"transform": {"headers": {"x": "***"}}}]},
            })
        );
    }
}
