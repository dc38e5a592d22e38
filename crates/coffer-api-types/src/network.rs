//! The network policy of a sandbox, and the connections that it refused.

use coffer_core::network::{Policy, Refusal, Traffic};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reach {
    #[schema(value_type = PolicyShape)]
    pub policy: Policy,
    /// As of the newest sample, at most some seconds old.
    #[schema(value_type = TrafficShape)]
    pub traffic: Traffic,
    /// The latest, oldest first.
    #[schema(value_type = Vec<RefusalShape>)]
    pub refusals: Vec<Refusal>,
    /// How many there were in all; pass it as `after` the next time.
    pub total: u64,
    /// How many of the requested ones are no longer kept.
    pub forgotten: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ReachQuery {
    /// Only the refusals after this number.
    pub after: Option<u64>,
}

/// A network policy: a base, and lists of exceptions, of which the allow list wins.
#[derive(Debug, ToSchema)]
#[schema(as = Policy)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub struct PolicyShape {
    /// `none`, `web` (ports 80 and 443) or `public`.
    #[schema(example = "web")]
    base: String,
    /// Names, `*.`names, addresses and blocks, each with `:port` or `:from-to` unless all ports are meant.
    #[schema(example = json!(["*.example.com:22"]))]
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
    /// Headers that egress adds to requests to named hosts.
    headers: Option<Vec<HeaderRuleShape>>,
}

/// Headers for some hosts. Egress terminates TLS to them, under an authority that sandboxes trust.
#[derive(Debug, ToSchema)]
#[schema(as = HeaderRule)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) struct HeaderRuleShape {
    /// Names, or `*.` and a name, with `:port` if HTTPS is not at 443.
    #[schema(example = json!(["api.example.com"]), min_items = 1, max_items = 32)]
    hosts: Vec<String>,
    /// Values may refer to secrets.
    #[schema(example = json!({"Authorization": "Bearer ${secret:NAME}"}))]
    headers: std::collections::BTreeMap<String, String>,
    /// Also adds them to plain HTTP at port 80; not by default. Refused for a secret that is limited to
    /// hosts, unless the secret itself allows it.
    plain_http: Option<bool>,
}

/// A refused connection or DNS question.
#[derive(Debug, ToSchema)]
#[schema(as = Refusal)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) struct RefusalShape {
    sequence: u64,
    at_ms: i64,
    /// `connection`, `cut` (it was open when the policy changed) or `question`.
    kind: String,
    name: Option<String>,
    address: Option<String>,
    port: Option<u16>,
    #[schema(example = "never:private")]
    rule: String,
}

/// Bytes and connections of a sandbox.
#[derive(Debug, ToSchema)]
#[schema(as = Traffic)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) struct TrafficShape {
    sent_bytes: u64,
    received_bytes: u64,
    open: u64,
    opened: u64,
    failed: u64,
    questions: u64,
    refused: u64,
}
