//! Secrets, and the key that they are sealed under.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::fields::named;

/// A value for a secret.
#[derive(Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewValue {
    /// Text of 1 to 65536 bytes without NUL. It is never returned.
    #[schema(min_length = 1, max_length = 65_536)]
    pub value: String,
    /// Restricts it to headers for these hosts (names, or `*.` and a name), and keeps it out of every
    /// sandbox's environment. If left out, an existing secret keeps its hosts; `null` allows any.
    #[serde(default, deserialize_with = "named", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, example = json!(["api.example.com"]))]
    pub hosts: Option<Option<Vec<String>>>,
    /// Allows headers to carry it over plain HTTP although it is limited to hosts; everyone on the path can
    /// read it then. If left out, an existing secret keeps its setting.
    pub plain_http: Option<bool>,
}

/// Without the value.
impl std::fmt::Debug for NewValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewValue").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    pub name: String,
    /// Counts its values from 1.
    pub version: i64,
    pub hosts: Option<Vec<String>>,
    /// Whether headers may carry it over plain HTTP although it is limited to hosts.
    pub plain_http: bool,
    pub created_at: String,
    pub updated_at: String,
}

/// The master key, by its id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MasterKey {
    pub id: String,
    /// Earlier master keys that are still available.
    pub previous: Vec<String>,
    /// `file`, which can be rotated by the API, or `setting`.
    pub source: String,
    /// Missing master keys, and how much cannot be read without them.
    pub missing: Vec<Missing>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Missing {
    pub id: String,
    pub projects: i64,
    pub secrets: i64,
    /// Live sandboxes whose environment, tokens and network settings cannot be read.
    pub sandboxes: i64,
}
