//! The records of calls.

use coffer_core::model::ModelTry;
use coffer_core::{AgentId, Millis, ModelCallId, ProjectId, RunId, SandboxId, TaskId};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::columns::{from_json, id, optional_id, optional_text, text};
use crate::error::Doing;
use crate::select::Select;
use crate::{ProjectScope, Scope as _, Store, StoreError};

const READ: &str = "read calls of models";
const COLUMNS: &str = "id, project_id, sandbox_id, agent_id, task_id, run_id, provider, kind, model, answered_by, \
                       outcome, status, reserved_nanos, input_tokens, cached_tokens, cache_write_tokens, \
                       output_tokens, cost_nanos, is_estimated, began_ms, first_byte_ms, ended_ms, error, tries";

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCallRow {
    pub id: ModelCallId,
    pub project: ProjectId,
    pub sandbox: SandboxId,
    pub agent: Option<AgentId>,
    pub task: Option<TaskId>,
    pub run: Option<RunId>,
    pub provider: String,
    pub kind: String,
    pub model: String,
    pub answered_by: Option<String>,
    /// `None` while it is in progress.
    pub outcome: Option<String>,
    pub status: Option<i64>,
    pub reserved_nanos: i64,
    /// Includes what was read from a cache and written to one.
    pub input_tokens: i64,
    pub cached_tokens: i64,
    pub cache_write_tokens: i64,
    pub output_tokens: i64,
    pub cost_nanos: Option<i64>,
    pub is_estimated: bool,
    pub began_ms: Millis,
    pub first_byte_ms: Option<Millis>,
    pub ended_ms: Option<Millis>,
    pub error: Option<String>,
    /// Empty if the first try was the only one.
    pub tries: Vec<ModelTry>,
}

/// The bodies of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelBodies {
    pub request: String,
    pub answer: String,
}

/// Selects calls.
#[derive(Debug, Clone, Default)]
pub struct ModelCallFilter {
    pub task: Option<TaskId>,
    pub run: Option<RunId>,
    pub agent: Option<AgentId>,
    pub sandbox: Option<SandboxId>,
    /// Only older ones.
    pub before: Option<ModelCallId>,
    pub limit: u32,
}

/// What a sealed body is sealed for.
pub(super) fn purpose(call: ModelCallId, what: &str) -> String {
    format!("model-call/{call}/{what}")
}

impl Store {
    /// Calls of the project, the newest first; for an agent's key, only its own.
    pub async fn model_calls(
        &self,
        scope: &ProjectScope,
        filter: &ModelCallFilter,
    ) -> Result<Vec<ModelCallRow>, StoreError> {
        Select::new(COLUMNS, "model_calls")
            .filter("project_id = ?", scope.project())
            .filter_if("agent_id = ?", scope.only_of())
            .filter_if("task_id = ?", filter.task)
            .filter_if("run_id = ?", filter.run)
            .filter_if("agent_id = ?", filter.agent)
            .filter_if("sandbox_id = ?", filter.sandbox)
            .newest_first("id", filter.before, filter.limit)
            .all(self.database(), READ, read)
            .await
    }

    /// What the calls of a run cost, in billionths. Calls in progress count with what was reserved for them.
    pub async fn run_model_cost(&self, scope: &ProjectScope, run: RunId) -> Result<i64, StoreError> {
        let row = sqlx::query(
            "SELECT CAST(COALESCE(SUM(CASE WHEN ended_ms IS NULL THEN reserved_nanos
                 ELSE COALESCE(cost_nanos, 0) END), 0) AS BIGINT) AS cost_nanos
             FROM model_calls WHERE run_id = $1 AND project_id = $2",
        )
        .bind(run)
        .bind(scope.project())
        .fetch_one(self.database().readers())
        .await
        .doing(READ)?;
        row.try_get("cost_nanos").doing(READ)
    }

    /// A call of the project, with its bodies if they were kept and can be read.
    pub async fn model_call(
        &self,
        scope: &ProjectScope,
        call: ModelCallId,
    ) -> Result<Option<(ModelCallRow, Option<ModelBodies>)>, StoreError> {
        let columns = format!("{COLUMNS}, request_sealed, answer_sealed");
        let found = Select::new(&columns, "model_calls")
            .filter("id = ?", call)
            .filter("project_id = ?", scope.project())
            .filter_if("agent_id = ?", scope.only_of())
            .one(self.database(), READ, |row| {
                let sealed = (optional_text(row, "request_sealed")?, optional_text(row, "answer_sealed")?);
                Ok((read(row)?, sealed))
            })
            .await?;
        let Some((row, (request, answer))) = found else { return Ok(None) };
        self.vault().ready(self.database(), scope.project()).await?;
        let open = |what: &str, text: Option<String>| {
            self.vault().open_text(scope.project(), &purpose(call, what), &text?).ok()
        };
        let bodies = open("request", request).zip(open("answer", answer));
        Ok(Some((row, bodies.map(|(request, answer)| ModelBodies { request, answer }))))
    }
}

fn read(row: &AnyRow) -> Result<ModelCallRow, StoreError> {
    let number = |column: &str| row.try_get::<i64, _>(column).doing(READ);
    let maybe = |column: &str| row.try_get::<Option<i64>, _>(column).doing(READ);
    Ok(ModelCallRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        sandbox: id(row, "sandbox_id")?,
        agent: optional_id(row, "agent_id")?,
        task: optional_id(row, "task_id")?,
        run: optional_id(row, "run_id")?,
        provider: text(row, "provider")?,
        kind: text(row, "kind")?,
        model: text(row, "model")?,
        answered_by: optional_text(row, "answered_by")?,
        outcome: optional_text(row, "outcome")?,
        status: maybe("status")?,
        reserved_nanos: number("reserved_nanos")?,
        input_tokens: number("input_tokens")?,
        cached_tokens: number("cached_tokens")?,
        cache_write_tokens: number("cache_write_tokens")?,
        output_tokens: number("output_tokens")?,
        cost_nanos: maybe("cost_nanos")?,
        is_estimated: number("is_estimated")? != 0,
        began_ms: number("began_ms")?,
        first_byte_ms: maybe("first_byte_ms")?,
        ended_ms: maybe("ended_ms")?,
        error: optional_text(row, "error")?,
        tries: match optional_text(row, "tries")? {
            Some(tries) => from_json(&tries, "tries")?,
            None => Vec::new(),
        },
    })
}
