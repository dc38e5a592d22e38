//! The audit log.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A request that changed something, was not allowed, or read files, logs, output or artifacts; or the use of a secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Audited {
    pub id: String,
    /// `key:<id>`, `agent:<id>`, `operator:<id>`, `token:<sandbox>`, `sandbox:<id>`, `server` or `unknown`.
    pub actor: String,
    /// The method and the route; `secret.used` where a sandbox was given the secret `subject`; `audit.dropped` where as many
    /// reads as `subject` says did not fit.
    #[schema(example = "POST /api/v1/sandboxes")]
    pub action: String,
    /// The id of what it was about.
    pub subject: Option<String>,
    pub status: u16,
    /// The refusal's code.
    pub code: Option<String>,
    pub request_id: String,
    pub at: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    pub actor: Option<String>,
    pub action: Option<String>,
    pub subject: Option<String>,
}
