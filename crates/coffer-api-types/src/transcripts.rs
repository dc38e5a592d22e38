//! Transcripts: what agents did, entry by entry.

pub use coffer_core::agent::transcript::EntryBody;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// One entry of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TranscriptEntry {
    /// Its place, from 1; it never changes.
    pub sequence: i64,
    /// Grows with every change of any entry: the id of its message in a stream.
    pub change: i64,
    /// The attempt and the turn of its agent; 1 in a competition.
    pub attempt: i64,
    pub turn: i64,
    pub run_id: String,
    /// Whether a subagent did it.
    pub subagent: bool,
    /// When it began, or was said.
    pub at: String,
    /// When it last changed.
    pub updated_at: String,
    #[serde(flatten)]
    pub body: EntryBody,
}

/// Which entries.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TranscriptQuery {
    /// Only of this attempt.
    #[param(minimum = 1)]
    pub attempt: Option<i64>,
    /// Only of this turn of its attempt.
    #[param(minimum = 1)]
    pub turn: Option<i64>,
    /// Only so many of the last entries, instead of pages.
    #[param(minimum = 1, maximum = 200)]
    pub last: Option<i64>,
    /// `json` or `markdown` (`md`) returns all entries as a file; otherwise there are pages.
    pub format: Option<String>,
}
