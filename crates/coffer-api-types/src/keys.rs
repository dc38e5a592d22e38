//! API keys.

use coffer_core::{AgentId, KeyKind, Role};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A key to be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKeyRequest {
    /// For people, to tell keys apart.
    pub name: String,
    /// What it may do; `write` by default.
    #[schema(value_type = Option<String>, example = "write")]
    pub role: Option<Role>,
    /// What holds it: `service` (a program of yours, the default) or `person`, whose approvals of pull requests count.
    /// Only people make keys for people.
    #[schema(value_type = Option<String>, example = "service")]
    pub kind: Option<KeyKind>,
    /// Makes it the key of an agent, which can touch only what that agent owns.
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Refused after so many seconds; never by default.
    #[schema(minimum = 1)]
    pub expires_in_s: Option<i64>,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    pub id: String,
    pub name: String,
    #[schema(value_type = String, example = "write")]
    pub role: Role,
    /// `person`, `service` or `agent`.
    #[schema(value_type = String, example = "service")]
    pub kind: KeyKind,
    pub agent_id: Option<String>,
    /// Its first characters, by which its owner knows it.
    pub prefix: String,
    pub created_at: String,
    pub expires_at: Option<String>,
    pub revoked_at: Option<String>,
    pub last_used_at: Option<String>,
}

/// A new key. The secret is shown this once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MadeKey {
    pub id: String,
    pub key: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateRequest {
    /// How long the old key goes on, in seconds; a day by default, 30 days at most.
    #[schema(minimum = 0, maximum = 2_592_000)]
    pub overlap_s: Option<i64>,
}
