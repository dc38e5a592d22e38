//! Where a call goes, and with which headers.

use coffer_core::model::{Call, KeyHeader, Provider};
use coffer_core::network::HostName;
use coffer_http::{Address, Check, anywhere, is_own, may_dial};
use coffer_store::{ModelKey, Secret, SecretValues};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::error::ModelError;
use super::settings::ModelSettings;

/// Headers of agents that are passed on, and beginnings of such. Those that choose who pays are not among them.
const SENT: [&str; 8] = [
    "accept",
    "user-agent",
    "idempotency-key",
    "originator",
    "session_id",
    "x-app",
    "x-goog-api-client",
    "openai-beta",
];
const SENT_BEGINNINGS: [&str; 4] = ["anthropic-", "x-stainless-", "x-codex-", "x-claude-"];

/// Headers of answers that are passed on, and beginnings of such: limits of the provider are the agent's to see.
const SHOWN: [&str; 9] = [
    "content-type",
    "cache-control",
    "retry-after",
    "retry-after-ms",
    "request-id",
    "x-request-id",
    "x-should-retry",
    "openai-processing-ms",
    "openai-model",
];
const SHOWN_BEGINNINGS: [&str; 3] = ["anthropic-ratelimit-", "x-ratelimit-", "x-codex-"];

/// The version that Anthropic's API needs if the client names none.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// A provider's address with a key that may be sent there.
pub(super) struct Upstream {
    pub(super) address: Address,
    /// Whether the operator named the address, or vouches for its host.
    is_vouched: bool,
    /// Whether it is the provider's usual place, or the operator's for it.
    pub(super) is_own: bool,
    key: Secret,
    header: KeyHeader,
}

impl Upstream {
    /// The provider's address, if the secret may be sent there.
    pub(super) fn of(
        settings: &ModelSettings,
        provider: Provider,
        key: &ModelKey,
        values: &SecretValues,
    ) -> Result<Self, ModelError> {
        let missing = || ModelError::NoSecret(key.secret.clone());
        let place = settings.address(provider).ok_or_else(missing)?;
        Ok(Self { is_own: true, ..Self::at(place, key, values)? })
    }

    /// Another address, if the secret may be sent there.
    pub(super) fn at(
        (address, is_vouched): (Address, bool),
        key: &ModelKey,
        values: &SecretValues,
    ) -> Result<Self, ModelError> {
        let missing = || ModelError::NoSecret(key.secret.clone());
        let secret = values.get(&key.secret).ok_or_else(missing)?;
        if let Some(hosts) = &secret.hosts {
            let host = HostName::parse(address.host()).ok();
            if !host.is_some_and(|host| hosts.iter().any(|pattern| pattern.matches(&host))) {
                return Err(ModelError::OtherHost(key.secret.clone(), address.host().to_string()));
            }
            if !address.is_tls() && !secret.plain_http {
                return Err(ModelError::PlainHttp(key.secret.clone()));
            }
        }
        let value = secret.value.clone().ok_or_else(missing)?;
        if HeaderValue::from_str(value.reveal().trim()).is_err() {
            return Err(ModelError::NoHeader(key.secret.clone()));
        }
        Ok(Self { address, is_vouched, is_own: false, key: value, header: key.header })
    }

    /// What may be dialled: the operator's own place wherever it is, and else only public addresses.
    pub(super) fn check(&self) -> Check<'static> {
        if self.is_vouched {
            return &anywhere;
        }
        &|address| {
            may_dial(false, address, is_own).map_err(|class| format!("a {class} address is refused").into())
        }
    }

    /// The path of a call below the provider's own.
    pub(super) fn path(&self, call: &Call) -> String {
        format!("{}{}", self.address.path().trim_end_matches('/'), call.path)
    }

    /// The headers of the request.
    pub(super) fn headers(&self, provider: Provider, from: &HeaderMap) -> HeaderMap {
        let mut to = HeaderMap::new();
        for (name, value) in from {
            let is_sent = SENT.contains(&name.as_str())
                || SENT_BEGINNINGS.iter().any(|begins| name.as_str().starts_with(begins));
            if is_sent {
                to.append(name.clone(), value.clone());
            }
        }
        if provider == Provider::Anthropic {
            to.entry("anthropic-version").or_insert(HeaderValue::from_static(ANTHROPIC_VERSION));
        }
        to.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Answers are read on their way.
        to.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Ok(host) = HeaderValue::from_str(self.address.host_header()) {
            to.insert(header::HOST, host);
        }
        let key = self.key.reveal().trim();
        let (name, value) = match self.header {
            KeyHeader::Bearer => (header::AUTHORIZATION, format!("Bearer {key}")),
            KeyHeader::ApiKey => (HeaderName::from_static("x-api-key"), key.to_string()),
            KeyHeader::GoogApiKey => (HeaderName::from_static("x-goog-api-key"), key.to_string()),
        };
        if let Ok(mut value) = HeaderValue::from_str(&value) {
            value.set_sensitive(true);
            to.insert(name, value);
        }
        to
    }

    /// A text of the provider's without the key, should it quote it.
    pub(super) fn without_key(&self, text: &str) -> String {
        text.replace(self.key.reveal().trim(), "[redacted]")
    }
}

/// The headers of an answer for the agent.
pub(super) fn shown(from: &HeaderMap) -> HeaderMap {
    let mut to = HeaderMap::new();
    for (name, value) in from {
        let is_shown = SHOWN.contains(&name.as_str())
            || SHOWN_BEGINNINGS.iter().any(|begins| name.as_str().starts_with(begins));
        if is_shown {
            to.append(name.clone(), value.clone());
        }
    }
    to
}
