//! Events.

pub use coffer_core::event::RecordedEvent as Event;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventQuery {
    /// Only events of this subject: the id of a sandbox, a task, a competition or another thing.
    pub subject: Option<String>,
    /// Only these kinds, joined by commas; `sandbox.*` means all with that prefix.
    #[param(example = "sandbox.*")]
    #[param(value_type = Option<String>)]
    #[serde(default)]
    pub kind: Vec<String>,
}

/// Where to begin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AfterQuery {
    /// Begin after this sequence; at the newest by default.
    pub after: Option<u64>,
}
