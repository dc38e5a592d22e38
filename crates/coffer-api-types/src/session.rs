//! Who a key is, and signing in.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whose a key is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Identity {
    /// `read`, `write` or `admin` in its project, or `operator`.
    #[schema(example = "write")]
    pub role: String,
    pub key_id: String,
    /// None where it is an operator's.
    pub project: Option<OwnProject>,
    /// The agent whose it is, which sees only its own sandboxes.
    pub agent_id: Option<String>,
    /// Where ports of sandboxes are reached, as `<port>-<id>.<domain>`.
    pub domain: Option<String>,
    pub version: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OwnProject {
    pub id: String,
    pub name: String,
}

/// The token of a one-time link.
#[derive(Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    pub token: String,
}

/// Without the token, which is as good as a key.
impl std::fmt::Debug for SignIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignIn").finish_non_exhaustive()
    }
}
