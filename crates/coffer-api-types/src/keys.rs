//! API keys.

use coffer_core::{AgentId, KeyKind, Role};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A new key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKeyRequest {
    /// For people, to tell keys apart.
    pub name: String,
    /// Its role; `write` by default.
    #[schema(value_type = Option<String>, example = "write")]
    pub role: Option<Role>,
    /// Its holder: `service` (a program of yours, the default) or `person`, whose approvals of pull requests
    /// count. Only a person's key can create a person's key.
    #[schema(value_type = Option<String>, example = "service")]
    pub kind: Option<KeyKind>,
    /// Creates a key of this agent, which sees only what that agent owns.
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Expires after this many seconds; never by default.
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
    /// Its first characters, to recognise it.
    pub prefix: String,
    pub created_at: String,
    pub expires_at: Option<String>,
    pub revoked_at: Option<String>,
    pub last_used_at: Option<String>,
}

/// A new key. The secret is returned only this once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MadeKey {
    pub id: String,
    pub key: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateRequest {
    /// How long the old key stays valid, in seconds; a day by default, 30 days at most.
    #[schema(minimum = 0, maximum = 2_592_000)]
    pub overlap_s: Option<i64>,
}
