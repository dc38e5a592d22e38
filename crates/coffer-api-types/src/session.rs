//! The identity of a key, and sign-in.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The identity of a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Identity {
    /// `read`, `write` or `admin` in its project, or `operator`.
    #[schema(example = "write")]
    pub role: String,
    pub key_id: String,
    /// Null for an operator's key.
    pub project: Option<OwnProject>,
    /// The agent of the key, which sees only its own sandboxes.
    pub agent_id: Option<String>,
    /// The domain of sandboxes' ports, as `<port>-<id>.<domain>`.
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

/// A link that signs a browser in, once.
#[derive(Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignInLink {
    /// What `POST /api/v1/sign-in` takes. The address of the web UI with `#token=` and this signs in.
    pub token: String,
    pub expires_at: String,
}

/// Without the token, which is as good as a key.
impl std::fmt::Debug for SignInLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignInLink").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}
