//! The queue of runs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_store::{QueueLoad, QueuedRun, RunState};

use crate::app::App;
use crate::auth::{Caller, Read};
use crate::error::ApiError;
use coffer_api_types::queue::{Queue, QueueCounts, QueueLimits, Run};
use coffer_core::Code;
use coffer_core::clock::{now_ms, rfc3339};

/// Most runs of one project in an answer.
const MOST_SHOWN: u32 = 500;

fn shown(runs: Vec<QueuedRun>) -> Vec<Run> {
    let mut waiting = 0;
    let run = |run: QueuedRun| {
        let is_queued = run.state == RunState::Queued;
        waiting += usize::from(is_queued);
        Run {
            run_id: run.id.to_string(),
            task_id: (run.kind == "task").then_some(run.subject),
            kind: run.kind,
            state: run.state.as_str().to_string(),
            position: is_queued.then_some(waiting),
            created_at: rfc3339(run.created_ms),
            started_at: run.started_ms.map(rfc3339),
        }
    };
    runs.into_iter().map(run).collect()
}

/// The project's running and queued runs, with counts.
#[utoipa::path(
    get, path = "/api/v1/queue", tag = "tasks",
    responses((status = 200, body = Queue))
)]
pub(super) async fn show(State(app): State<Arc<App>>, caller: Caller<Read>) -> Result<Json<Queue>, ApiError> {
    if caller.scope.agent().is_some() {
        return Err(ApiError::of(Code::Forbidden, "an agent's key cannot see the project's queue")
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
