//! The places that may answer a call, and what is known of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::ProjectId;
use coffer_core::model::{Asked, Call, ModelFallback, Provider};
use coffer_core::sync::Mutex;
use coffer_http::breaker::{Breaker, Policy};
use coffer_http::{Address, PrivateHosts};
use coffer_store::ModelKey;

use super::upstream::Upstream;

/// Places that are remembered; beyond that all begin anew.
const MOST_PLACES: usize = 10_000;
const LONGEST_URL: usize = 500;
const POLICY: Policy =
    Policy { failures: 5, pause: Duration::from_secs(10), longest_pause: Duration::from_secs(300) };

/// One place that may answer a call.
pub(super) struct Way {
    pub(super) upstream: Upstream,
    pub(super) call: Call,
    /// The request, if it is for another model than the agent asked for.
    pub(super) asked: Option<Asked>,
    pub(super) secret: String,
}

impl Way {
    pub(super) fn first(upstream: Upstream, call: Call, key: &ModelKey) -> Self {
        Self { upstream, call, asked: None, secret: key.secret.clone() }
    }
}

/// Whose place it is: nothing of it is shared by projects, nor by keys.
type Place = (ProjectId, Provider, String, String);

/// What is known of places.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<HashMap<Place, Arc<Breaker>>>);

impl Places {
    pub(super) fn of(&self, project: ProjectId, way: &Way) -> Arc<Breaker> {
        let place = (project, way.call.provider, way.upstream.address.origin(), way.secret.clone());
        let mut known = self.0.lock();
        if known.len() >= MOST_PLACES && !known.contains_key(&place) {
            known.clear();
        }
        known.entry(place).or_insert_with(|| Arc::new(Breaker::new("models", POLICY))).clone()
    }
}

/// Checks a fallback; the error says why it cannot be one.
pub(super) fn check(fallback: &ModelFallback, hosts: &PrivateHosts) -> Result<(), String> {
    if fallback.url.is_none() && fallback.secret.is_none() && fallback.model.is_none() {
        return Err("names neither `url`, `secret` nor `model`, so nothing would be different".into());
    }
    if let Some(url) = &fallback.url {
        let address = Address::parse(url).ok().filter(|address| {
            url.len() <= LONGEST_URL && !address.has_query() && !address.has_user() && !url.contains('#')
        });
        let Some(address) = address else {
            return Err("`url` must be a URL such as https://proxy.example.com/anthropic".into());
        };
        if !address.is_tls() && !hosts.has(address.host(), address.port()) {
            return Err("`url` must begin with https://".into());
        }
    }
    let is_model = |model: &String| (1..=200).contains(&model.len()) && !model.chars().any(char::is_control);
    if fallback.model.as_ref().is_some_and(|model| !is_model(model)) {
        return Err("`model` must have 1 to 200 characters".into());
    }
    if fallback.secret.as_ref().is_some_and(|name| name.parse::<coffer_store::SecretName>().is_err()) {
        return Err("`secret` is not a name of a secret".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fallback_changes_something_and_leads_outside() {
        let hosts = PrivateHosts::parse(["10.0.0.7"]).unwrap();
        let read = |json: serde_json::Value| check(&serde_json::from_value(json).unwrap(), &hosts);
        let of = |field: &str, value: &str| read(serde_json::json!({"provider": "anthropic", field: value}));
        assert_eq!(of("url", "https://proxy.example.com/anthropic"), Ok(()));
        assert_eq!(of("url", "http://10.0.0.7:8080/x"), Ok(()), "the operator vouches for it");
        assert_eq!(of("secret", "second"), Ok(()));
        assert_eq!(of("model", "claude-haiku-4-5"), Ok(()));
        for bad in ["http://proxy.example.com", "ftp://x", "https://u:p@x", "https://x/?a=b", "x", ""] {
            assert!(of("url", bad).is_err(), "{bad}");
        }
        assert!(read(serde_json::json!({"provider": "anthropic"})).is_err());
        assert!(of("secret", "a b").is_err() && of("model", "").is_err());
    }
}
