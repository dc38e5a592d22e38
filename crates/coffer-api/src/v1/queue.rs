//! The queue of runs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_store::{QueueLoad, QueuedRun, RunState};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::auth::{Caller, Read};
use crate::error::ApiError;
use coffer_core::Code;
use coffer_core::clock::{now_ms, rfc3339};

/// Runs of one project that are shown.
const MOST_SHOWN: u32 = 500;

/// How many runs may hold a slot at once.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct QueueLimits {
    /// Of all projects.
    in_all: u32,
    /// Of this one.
    per_project: Option<i64>,
}

/// How many there are.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct QueueCounts {
    running: i64,
    queued: i64,
}

/// A run that waits for a slot, holds one, or is parked without.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueueRun)]
pub(super) struct Run {
    run_id: String,
    /// `task`, or another kind of run.
    kind: String,
    /// What it is about, for a task's.
    task_id: Option<String>,
    /// `queued`, `running` or `parked`.
    state: &'static str,
    /// Among the project's that wait, from 1 on.
    position: Option<usize>,
    created_at: String,
    started_at: Option<String>,
}

/// The project's queue.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Queue {
    limits: QueueLimits,
    running: i64,
    /// Those that wait for a person, as competitions do; they hold no slot.
    parked: i64,
    queued: i64,
    /// How long the one has waited that waits longest.
    oldest_wait_s: Option<i64>,
    /// Those that have begun, then those that wait for a slot in the order in which they get one; the first 500.
    runs: Vec<Run>,
    /// Of all other projects together: they share the slots.
    elsewhere: QueueCounts,
}

fn shown(runs: Vec<QueuedRun>) -> Vec<Run> {
    let mut waiting = 0;
    let run = |run: QueuedRun| {
        let is_queued = run.state == RunState::Queued;
        waiting += usize::from(is_queued);
        Run {
            run_id: run.id.to_string(),
            task_id: (run.kind == "task").then_some(run.subject),
            kind: run.kind,
            state: run.state.as_str(),
            position: is_queued.then_some(waiting),
            created_at: rfc3339(run.created_ms),
            started_at: run.started_ms.map(rfc3339),
        }
    };
    runs.into_iter().map(run).collect()
}

/// What is under way in the project, what waits for a slot, and how many there are.
#[utoipa::path(
    get, path = "/api/v1/queue", tag = "tasks",
    responses((status = 200, body = Queue))
)]
pub(super) async fn show(State(app): State<Arc<App>>, caller: Caller<Read>) -> Result<Json<Queue>, ApiError> {
    if caller.scope.agent().is_some() {
        return Err(ApiError::of(Code::Forbidden, "the queue is the project's, not an agent's")
            .hint("GET /api/v1/tasks shows an agent its own"));
    }
    let (operator, project) = (app.store.operator(), caller.scope.project());
    let runs = app.store.queue(&caller.scope, MOST_SHOWN).await.map_err(ApiError::store)?;
    let own: QueueLoad = app.store.queue_load(&operator, Some(project)).await.map_err(ApiError::store)?;
    let all = app.store.queue_load(&operator, None).await.map_err(ApiError::store)?;
    let quotas = app.store.quotas(&caller.scope, project).await.map_err(ApiError::store)?;
    Ok(Json(Queue {
        limits: QueueLimits {
            in_all: app.most_runs,
            per_project: quotas.and_then(|quotas| quotas.in_force.runs),
        },
        running: own.held,
        parked: own.parked,
        queued: own.queued,
        oldest_wait_s: own.oldest_ms.map(|oldest| (now_ms() - oldest).max(0) / 1000),
        runs: shown(runs),
        elsewhere: QueueCounts {
            running: (all.held - own.held).max(0),
            queued: (all.queued - own.queued).max(0),
        },
    }))
}
