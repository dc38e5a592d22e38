//! The audit log.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A request that changed something, was not allowed, or read files, logs, output or artifacts; or the use of a secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Audited {
    pub id: String,
    /// `key:<id>`, `agent:<id>`, `operator:<id>`, `token:<sandbox>`, `sandbox:<id>`, `server` or `unknown`.
    pub actor: String,
    /// The method and the route; `secret.used` if a sandbox got the secret `subject`; `audit.dropped` if the
    /// number of reads in `subject` did not fit.
    #[schema(example = "POST /api/v1/sandboxes")]
    pub action: String,
    /// The id of the thing that it is about.
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
