//! Tasks that start when they are assigned or moved, where the project's settings say so.

use coffer_core::{AgentId, TaskState};
use coffer_store::{StartTask, TaskRow, TaskRules};

use super::row::actor;
use super::work::{begin, check_ready};
use crate::app::App;
use crate::auth::{Caller, Write};
use crate::error::ApiError;

/// What a change does to a task, as far as rules look at it.
pub(super) struct Asked {
    /// The agent that the task is given.
    pub(super) agent: Option<AgentId>,
    /// The column that it is moved to.
    pub(super) state: Option<TaskState>,
    pub(super) has_repository: bool,
}

/// Why a task starts by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cause(&'static str);

/// Whether a change starts the task. Refuses the change if it would and the task lacks something, so that either both
/// happen or nothing.
pub(super) async fn cause(
    app: &App,
    caller: &Caller<Write>,
    before: Option<&TaskRow>,
    asked: &Asked,
) -> Result<Option<Cause>, ApiError> {
    let rules = rules(app, caller).await?;
    let (was, had) = (before.map(|row| row.state), before.and_then(|row| row.agent));
    let is_assigned = rules.start_on_assign && asked.agent.is_some() && asked.agent != had;
    let is_moved = rules.start_on_move
        && asked.state == Some(TaskState::InProgress)
        && was != Some(TaskState::InProgress);
    let cause = match (is_moved, is_assigned) {
        (true, _) => Cause("moved to in progress"),
        (false, true) => Cause("given to an agent"),
        (false, false) => return Ok(None),
    };
    // To assign a task that has no repository yet is planning.
    if !asked.has_repository && !is_moved {
        return Ok(None);
    }
    check_ready(app, caller, asked.agent.or(had), asked.has_repository).await?;
    Ok(Some(cause))
}

/// Starts a task for that reason.
pub(super) async fn start(
    app: &App,
    caller: &Caller<Write>,
    task: &TaskRow,
    Cause(reason): Cause,
) -> Result<TaskRow, ApiError> {
    let order = StartTask { agent: None, model: None, replace: false, reason, actor: actor(caller) };
    begin(app, caller, task, order).await
}

async fn rules(app: &App, caller: &Caller<Write>) -> Result<TaskRules, ApiError> {
    let found = app.store.project_settings(&caller.scope, caller.scope.project()).await;
    Ok(found.map_err(ApiError::store)?.map(|found| found.settings.tasks).unwrap_or_default())
}
