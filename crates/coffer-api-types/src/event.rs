use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happened in a project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Counts from 1 in each project, without gaps.
    pub sequence: i64,
    /// The id of what it happened to.
    pub subject: String,
    #[schema(example = "sandbox.running")]
    pub kind: String,
    pub payload: serde_json::Value,
    pub at: String,
}
