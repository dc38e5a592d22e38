use coffer_core::Code;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorShape {
    pub code: Code,
    /// For people.
    pub message: String,
    /// What to do about it, where there is something.
    pub hint: Option<String>,
    /// Facts for programs, where there are some: for `quota_exceeded` its `quota`, `limit`, `used` and `asked`.
    #[schema(value_type = Option<Object>)]
    pub details: Option<serde_json::Value>,
    /// Names this request in the server's log and in the audit log.
    pub request_id: String,
}
