use coffer_core::Code;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorShape {
    pub code: Code,
    /// For people.
    pub message: String,
    /// How to fix it, if there is a way.
    pub hint: Option<String>,
    /// Details for programs, if there are any: for `quota_exceeded` its `quota`, `limit`, `used` and `asked`.
    #[schema(value_type = Option<Object>)]
    pub details: Option<serde_json::Value>,
    /// The id of this request in the server's log and in the audit log.
    pub request_id: String,
}
