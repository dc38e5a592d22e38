//! Connections to forges.

use coffer_core::forge::ForgeKind;
pub use coffer_core::forge::records::{MissingPermission, Permissions};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A way to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewConnection {
    pub name: String,
    /// `github`.
    #[schema(value_type = String, example = "github")]
    pub kind: ForgeKind,
    /// `https://api.github.com` unless said otherwise; `https://HOST/api/v3` for GitHub Enterprise.
    pub base_url: Option<String>,
    /// The secret with the token or, for an App, its private key.
    #[schema(example = "github-token")]
    pub secret: String,
    /// For a GitHub App.
    pub app: Option<AppIds>,
    /// The secret that webhooks are signed with; without one none are taken.
    pub webhook_secret: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppIds {
    pub app_id: i64,
    pub installation_id: i64,
}

/// A way to a forge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Connection {
    pub id: String,
    pub name: String,
    pub kind: String,
    pub base_url: String,
    /// The name of the secret with the token or key; never its value.
    pub secret: String,
    pub app: Option<AppIds>,
    pub webhook_secret: Option<String>,
    /// Where the forge is to send webhooks, below this server's address.
    pub webhook_path: String,
    pub created_at: String,
}

/// Which repository.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RemoteQuery {
    /// `owner/name`, as on the forge.
    #[serde(default)]
    #[param(required = true)]
    pub repository: String,
}

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Taken {
    /// `recorded`, `ignored` (it is about nothing here) or `repeated`.
    pub outcome: String,
}
