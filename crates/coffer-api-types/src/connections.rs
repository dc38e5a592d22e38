//! Connections to forges.

use coffer_core::forge::ForgeKind;
pub use coffer_core::forge::records::{MissingPermission, Permissions};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A new connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewConnection {
    pub name: String,
    /// `github`, or `git` for any other git server over HTTPS.
    #[schema(value_type = String, example = "github")]
    pub kind: ForgeKind,
    /// `https://api.github.com` by default; `https://HOST/api/v3` for GitHub Enterprise, `https://HOST` of a git server.
    pub base_url: Option<String>,
    /// The secret with the token or password or, for an App, its private key.
    #[schema(example = "github-token")]
    pub secret: String,
    /// The user of a git server. With a token, most servers take any name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// For a GitHub App.
    pub app: Option<AppIds>,
    /// The secret that signs webhooks; without one, deliveries are refused.
    pub webhook_secret: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppIds {
    pub app_id: i64,
    pub installation_id: i64,
}

/// A connection to a forge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Connection {
    pub id: String,
    pub name: String,
    pub kind: String,
    pub base_url: String,
    /// The name of the secret with the token or key; never its value.
    pub secret: String,
    pub app: Option<AppIds>,
    /// The user of a git server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub webhook_secret: Option<String>,
    /// The path to which the forge sends webhooks, below this server's address.
    pub webhook_path: String,
    pub created_at: String,
}

/// Selects a repository.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RemoteQuery {
    /// `owner/name`, as on the forge.
    #[serde(default)]
    #[param(required = true)]
    pub repository: String,
}

/// Selects repositories of a forge.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ReachableQuery {
    /// A part of the name or the description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<String>,
}

/// The outcome of a delivery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Taken {
    /// `recorded`, `ignored` (its repository is not known here) or `repeated`.
    pub outcome: String,
}
