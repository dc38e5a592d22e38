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
    /// The caller, as events, comments and the audit log name it.
    #[schema(example = "person:01m7hgzyb7e0b8qjrrkdabm52v")]
    pub actor: String,
    /// Null for an operator's key.
    pub project: Option<OwnProject>,
    /// The person who holds the key or the session, if their name is known.
    pub person_id: Option<String>,
    /// The person's name.
    pub name: Option<String>,
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

/// What a browser signs in with: the token of a one-time link, or a key. One of them.
#[derive(Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSessionRequest {
    pub token: Option<String>,
    /// A key of a person, a service or an operator.
    pub key: Option<String>,
}

/// Without the token and the key.
impl std::fmt::Debug for NewSessionRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSessionRequest").finish_non_exhaustive()
    }
}

/// A session of a browser that began. The browser gets one half of its secret as a cookie; the page keeps this one.
#[derive(Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BegunSession {
    pub id: String,
    /// What pages send as the header `X-Coffer-Session`. It opens nothing without the cookie.
    pub secret: String,
    pub expires_at: String,
}

/// Without the secret.
impl std::fmt::Debug for BegunSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BegunSession").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A session of a browser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    pub id: String,
    #[schema(example = "Firefox on Linux")]
    pub browser: String,
    /// The network that it was begun from, without the host's part.
    #[schema(example = "192.0.2.x")]
    pub address: String,
    pub created_at: String,
    pub last_used_at: String,
    pub expires_at: String,
    /// Whether it is the session of this request.
    pub current: bool,
}

/// How many sessions ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EndedSessions {
    pub ended: u64,
}

/// A name for the caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnName {
    pub name: String,
}
