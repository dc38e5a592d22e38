//! Events.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventQuery {
    /// Only what happened to this: the id of a sandbox, a task, a competition or another thing.
    pub subject: Option<String>,
    /// Only these kinds, joined by commas; one that ends in `.*` means all that begin so.
    #[param(example = "sandbox.*")]
    #[param(value_type = Option<String>)]
    #[serde(default)]
    pub kind: Vec<String>,
}

/// Where to begin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AfterQuery {
    /// Begin after that sequence; at the newest by default.
    pub after: Option<u64>,
}
