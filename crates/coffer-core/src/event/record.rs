//! How the API and webhooks show an event.

use serde::{Deserialize, Serialize};

/// An event of a project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Event))]
pub struct RecordedEvent {
    /// Counts from 1 in each project, without gaps.
    pub sequence: i64,
    /// The id of its subject.
    pub subject: String,
    /// A later server may have further kinds.
    #[cfg_attr(feature = "schema", schema(value_type = super::EventKind, example = "sandbox.running"))]
    pub kind: String,
    pub payload: serde_json::Value,
    pub at: String,
}
