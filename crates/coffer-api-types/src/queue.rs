//! The queue of runs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many runs may hold a slot at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueLimits {
    /// Over all projects.
    pub in_all: u32,
    /// Of this project.
    pub per_project: Option<i64>,
}

/// Numbers of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueCounts {
    pub running: i64,
    pub queued: i64,
}

/// A run that waits for a slot, holds one, or is parked without one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = QueueRun)]
pub struct Run {
    pub run_id: String,
    /// `task`, or another kind of run.
    pub kind: String,
    /// Its task, if it is a task's run.
    pub task_id: Option<String>,
    /// `queued`, `running` or `parked`.
    pub state: String,
    /// Its position among the project's waiting runs, from 1 on.
    pub position: Option<usize>,
    pub created_at: String,
    pub started_at: Option<String>,
}

/// The project's queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    pub limits: QueueLimits,
    pub running: i64,
    /// Runs that wait for a person, as competitions do; they hold no slot.
    pub parked: i64,
    pub queued: i64,
    /// How long the oldest queued run has waited.
    pub oldest_wait_s: Option<i64>,
    /// Running ones first, then queued ones in the order in which they get a slot; the first 500.
    pub runs: Vec<Run>,
    /// All other projects together: they share the slots.
    pub elsewhere: QueueCounts,
}
