//! The queue of runs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many runs may hold a slot at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueLimits {
    /// Of all projects.
    pub in_all: u32,
    /// Of this one.
    pub per_project: Option<i64>,
}

/// How many there are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueCounts {
    pub running: i64,
    pub queued: i64,
}

/// A run that waits for a slot, holds one, or is parked without.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = QueueRun)]
pub struct Run {
    pub run_id: String,
    /// `task`, or another kind of run.
    pub kind: String,
    /// What it is about, for a task's.
    pub task_id: Option<String>,
    /// `queued`, `running` or `parked`.
    pub state: String,
    /// Among the project's that wait, from 1 on.
    pub position: Option<usize>,
    pub created_at: String,
    pub started_at: Option<String>,
}

/// The project's queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    pub limits: QueueLimits,
    pub running: i64,
    /// Those that wait for a person, as competitions do; they hold no slot.
    pub parked: i64,
    pub queued: i64,
    /// How long the one has waited that waits longest.
    pub oldest_wait_s: Option<i64>,
    /// Those that have begun, then those that wait for a slot in the order in which they get one; the first 500.
    pub runs: Vec<Run>,
    /// Of all other projects together: they share the slots.
    pub elsewhere: QueueCounts,
}
