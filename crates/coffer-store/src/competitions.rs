//! Competitions: their entries, progress and winners.
//!
//! `begin` creates them, `progress` is written by their runs, `pick` by people.

mod begin;
mod pick;
mod progress;

use std::collections::BTreeMap;

use coffer_core::compete::{CompetitionState, CompetitionTerms, DiffSize, EntryState, Rule};
use coffer_core::{AgentId, CompetitionId, ExecutionId, Millis, ProjectId, RunId, SandboxId, TaskId};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::columns::{id, number, optional_id};
use crate::error::Doing;
use crate::select::Select;
use crate::{Operator, ProjectScope, RunFailure, Store, StoreError, TaskError};

pub use begin::{NewCompetition, NewEntry};
pub use pick::COMPETITION_PICKED;
pub use progress::{CompetitionNote, EntryNote};
pub(crate) use progress::{run_ended, run_started};

const READ: &str = "read competitions";
const CHANGE: &str = "change a competition";

/// A competition on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompetitionRow {
    pub id: CompetitionId,
    pub project: ProjectId,
    pub run: RunId,
    /// The task of which it is an attempt.
    pub task: Option<TaskId>,
    pub terms: CompetitionTerms,
    pub state: CompetitionState,
    /// The sandbox that is forked.
    pub sandbox: Option<SandboxId>,
    pub base_commit: Option<String>,
    pub decide_by_ms: Option<Millis>,
    pub winner: Option<i64>,
    pub picked_by: Option<String>,
    pub pull_url: Option<String>,
    pub error: Option<RunFailure>,
    pub created_by: String,
    pub created_ms: Millis,
    pub updated_ms: Millis,
    pub ended_ms: Option<Millis>,
}

/// An entry of a competition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryRow {
    pub number: i64,
    pub label: String,
    pub agent: AgentId,
    pub model: Option<String>,
    pub prompt: Option<String>,
    pub budget_nanos: Option<i64>,
    pub state: EntryState,
    pub sandbox: Option<SandboxId>,
    pub execution: Option<ExecutionId>,
    pub exit_code: Option<i64>,
    pub check: Option<CheckNote>,
    pub diff: Option<DiffSize>,
    pub duration_ms: Option<i64>,
    pub cost_nanos: Option<i64>,
    pub agent_cost_nanos: Option<i64>,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    pub rank: Option<i64>,
    pub reasons: Vec<String>,
    pub branch: Option<String>,
    pub commit: Option<String>,
    pub summary: Option<String>,
    pub error: Option<RunFailure>,
    pub started_ms: Option<Millis>,
    pub ended_ms: Option<Millis>,
}

impl EntryRow {
    /// Whether it has something that could win.
    pub const fn can_win(&self) -> bool {
        matches!(self.state, EntryState::Done) && self.commit.is_some()
    }

    /// The cost of its sandbox and its agent together, as far as known.
    pub fn whole_cost_nanos(&self) -> Option<i64> {
        match (self.cost_nanos, self.agent_cost_nanos) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        }
    }
}

/// The result of the check command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckNote {
    pub passed: bool,
    pub exit_code: Option<i64>,
    pub execution: Option<ExecutionId>,
}

/// The patch of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPatch {
    pub text: String,
    /// Whether it was longer than the stored part.
    pub is_cut: bool,
}

/// Selects competitions and a part of the list; newest first.
#[derive(Debug, Clone, Default)]
pub struct CompetitionFilter {
    pub state: Option<CompetitionState>,
    pub task: Option<TaskId>,
    pub context_id: Option<String>,
    /// The last one of the previous part.
    pub after: Option<CompetitionId>,
    pub limit: u32,
}

/// Why a competition was not created or changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CompetitionError {
    #[error("competition not found")]
    NotFound,
    #[error("it has no entry {0}")]
    NoEntry(i64),
    #[error("entry {0} cannot win")]
    CannotWin(i64),
    /// It does not wait for a pick.
    #[error("it is {}", .0.as_str())]
    NotWaiting(CompetitionState),
    #[error("agent {0} not found")]
    NoAgent(AgentId),
    #[error("the idempotency key was used for a different request")]
    KeyReused,
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

const COLUMNS: &str = "id, project_id, run_id, task_id, title, prompt, repository, source_id, base_branch, template, \
                       prepare_command, check_command, rule, budget_nanos, decide_within_s, context_id, state, \
                       sandbox_id, base_commit, decide_by_ms, winner, picked_by, pull_url, error, created_by, \
                       created_ms, updated_ms, ended_ms";
const ENTRY_COLUMNS: &str = "number, label, agent_id, model, prompt, budget_nanos, state, sandbox_id, execution_id, \
                             exit_code, check_passed, check_exit_code, check_execution_id, diff_files, diff_added, \
                             diff_removed, duration_ms, cost_nanos, agent_cost_nanos, input_tokens, output_tokens, \
                             rank, reasons, branch, commit_id, summary, error, started_ms, ended_ms";

/// Numbers of competitions that are not over, and of their entries, by state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompetitionLoad {
    pub competitions: Vec<(CompetitionState, i64)>,
    pub entries: Vec<(EntryState, i64)>,
}

impl Store {
    /// The numbers over all projects.
    pub async fn competition_load(&self, _: &Operator) -> Result<CompetitionLoad, StoreError> {
        let all = "SELECT state, COUNT(*) AS number FROM competitions WHERE ended_ms IS NULL GROUP BY state";
        let rows = sqlx::query(all).fetch_all(self.database().readers()).await.doing(READ)?;
        let mut load = CompetitionLoad::default();
        for row in &rows {
            load.competitions.push((state(row)?, number(row, "number")?));
        }
        let rows = sqlx::query(
            "SELECT e.state AS state, COUNT(*) AS number FROM competition_entries AS e
                 JOIN competitions AS c ON c.id = e.competition_id
             WHERE c.ended_ms IS NULL GROUP BY e.state",
        )
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        for row in &rows {
            load.entries.push((entry_state(row)?, number(row, "number")?));
        }
        Ok(load)
    }

    /// The competition of that id, if it is in scope.
    pub async fn competition(
        &self,
        scope: &ProjectScope,
        competition: CompetitionId,
    ) -> Result<Option<CompetitionRow>, StoreError> {
        Select::new(COLUMNS, "competitions")
            .filter("id = ?", competition)
            .filter("project_id = ?", scope.project())
            .one(self.database(), READ, read)
            .await
    }

    /// The competitions in scope that match the filter.
    pub async fn competitions(
        &self,
        scope: &ProjectScope,
        filter: &CompetitionFilter,
    ) -> Result<Vec<CompetitionRow>, StoreError> {
        Select::new(COLUMNS, "competitions")
            .filter("project_id = ?", scope.project())
            .filter_if("state = ?", filter.state.map(CompetitionState::as_str))
            .filter_if("task_id = ?", filter.task)
            .filter_if("context_id = ?", filter.context_id.as_deref())
            .newest_first("id", filter.after, filter.limit)
            .all(self.database(), READ, read)
            .await
    }

    /// The entries of a competition, by number.
    pub async fn competition_entries(
        &self,
        scope: &ProjectScope,
        competition: CompetitionId,
    ) -> Result<Vec<EntryRow>, StoreError> {
        let sql = format!(
            "SELECT {ENTRY_COLUMNS} FROM competition_entries WHERE competition_id = $1 AND project_id = $2
             ORDER BY number"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(competition)
            .bind(scope.project())
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(read_entry).collect()
    }

    /// The entries of each of these competitions, by number.
    pub async fn entries_of_competitions(
        &self,
        scope: &ProjectScope,
        competitions: &[CompetitionId],
    ) -> Result<BTreeMap<CompetitionId, Vec<EntryRow>>, StoreError> {
        let mut all: BTreeMap<CompetitionId, Vec<EntryRow>> = BTreeMap::new();
        if competitions.is_empty() {
            return Ok(all);
        }
        let places: Vec<String> = (2..competitions.len() + 2).map(|place| format!("${place}")).collect();
        let sql = format!(
            "SELECT competition_id, {ENTRY_COLUMNS} FROM competition_entries
             WHERE project_id = $1 AND competition_id IN ({}) ORDER BY competition_id, number",
            places.join(", ")
        );
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(scope.project());
        for competition in competitions {
            query = query.bind(competition);
        }
        for row in &query.fetch_all(self.database().readers()).await.doing(READ)? {
            all.entry(id(row, "competition_id")?).or_default().push(read_entry(row)?);
        }
        Ok(all)
    }

    /// The patch of an entry; `None` if there is none yet, or no such entry.
    pub async fn entry_patch(
        &self,
        scope: &ProjectScope,
        competition: CompetitionId,
        number: i64,
    ) -> Result<Option<EntryPatch>, StoreError> {
        let row = sqlx::query(
            "SELECT patch, patch_cut FROM competition_entries
             WHERE competition_id = $1 AND project_id = $2 AND number = $3 AND patch IS NOT NULL",
        )
        .bind(competition)
        .bind(scope.project())
        .bind(number)
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        row.map(|row| {
            let cut: i64 = row.try_get("patch_cut").doing(READ)?;
            Ok(EntryPatch { text: row.try_get("patch").doing(READ)?, is_cut: cut != 0 })
        })
        .transpose()
    }
}

fn unreadable(why: impl ToString) -> StoreError {
    StoreError::Unreadable { what: "competition", why: why.to_string() }
}

fn failure(row: &AnyRow) -> Result<Option<RunFailure>, StoreError> {
    let text: Option<String> = row.try_get("error").doing(READ)?;
    text.map(|text| serde_json::from_str(&text).map_err(unreadable)).transpose()
}

fn state(row: &AnyRow) -> Result<CompetitionState, StoreError> {
    let text: String = row.try_get("state").doing(READ)?;
    CompetitionState::parse(&text).ok_or_else(|| unreadable(format!("unknown state `{text}`")))
}

fn entry_state(row: &AnyRow) -> Result<EntryState, StoreError> {
    let text: String = row.try_get("state").doing(READ)?;
    EntryState::parse(&text).ok_or_else(|| unreadable(format!("unknown state `{text}` of an entry")))
}

fn read(row: &AnyRow) -> Result<CompetitionRow, StoreError> {
    let text = |column: &str| row.try_get::<Option<String>, _>(column).doing(READ);
    let number = |column: &str| row.try_get::<Option<i64>, _>(column).doing(READ);
    let rule: String = row.try_get("rule").doing(READ)?;
    Ok(CompetitionRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        run: id(row, "run_id")?,
        task: optional_id(row, "task_id")?,
        terms: CompetitionTerms {
            title: row.try_get("title").doing(READ)?,
            prompt: row.try_get("prompt").doing(READ)?,
            repository: text("repository")?,
            source: optional_id(row, "source_id")?,
            base_branch: text("base_branch")?,
            template: text("template")?,
            prepare_command: text("prepare_command")?,
            check_command: text("check_command")?,
            rule: Rule::parse(&rule).ok_or_else(|| unreadable(format!("unknown rule `{rule}`")))?,
            budget_nanos: number("budget_nanos")?,
            decide_within_s: row.try_get("decide_within_s").doing(READ)?,
            context_id: text("context_id")?,
        },
        state: state(row)?,
        sandbox: optional_id(row, "sandbox_id")?,
        base_commit: text("base_commit")?,
        decide_by_ms: number("decide_by_ms")?,
        winner: number("winner")?,
        picked_by: text("picked_by")?,
        pull_url: text("pull_url")?,
        error: failure(row)?,
        created_by: row.try_get("created_by").doing(READ)?,
        created_ms: row.try_get("created_ms").doing(READ)?,
        updated_ms: row.try_get("updated_ms").doing(READ)?,
        ended_ms: number("ended_ms")?,
    })
}

fn read_entry(row: &AnyRow) -> Result<EntryRow, StoreError> {
    let text = |column: &str| row.try_get::<Option<String>, _>(column).doing(READ);
    let number = |column: &str| row.try_get::<Option<i64>, _>(column).doing(READ);
    let count = |column: &str| {
        let count = number(column)?.map(u64::try_from).transpose();
        count.map_err(|_| unreadable(format!("{column} is negative")))
    };
    let check = match number("check_passed")? {
        None => None,
        Some(passed) => Some(CheckNote {
            passed: passed != 0,
            exit_code: number("check_exit_code")?,
            execution: optional_id(row, "check_execution_id")?,
        }),
    };
    let diff = match (count("diff_files")?, count("diff_added")?, count("diff_removed")?) {
        (Some(files), Some(added), Some(removed)) => Some(DiffSize { files, added, removed }),
        _ => None,
    };
    let reasons = text("reasons")?.map(|text| serde_json::from_str(&text).map_err(unreadable)).transpose()?;
    Ok(EntryRow {
        number: row.try_get("number").doing(READ)?,
        label: row.try_get("label").doing(READ)?,
        agent: id(row, "agent_id")?,
        model: text("model")?,
        prompt: text("prompt")?,
        budget_nanos: number("budget_nanos")?,
        state: entry_state(row)?,
        sandbox: optional_id(row, "sandbox_id")?,
        execution: optional_id(row, "execution_id")?,
        exit_code: number("exit_code")?,
        check,
        diff,
        duration_ms: number("duration_ms")?,
        cost_nanos: number("cost_nanos")?,
        agent_cost_nanos: number("agent_cost_nanos")?,
        input_tokens: number("input_tokens")?,
        output_tokens: number("output_tokens")?,
        rank: number("rank")?,
        reasons: reasons.unwrap_or_default(),
        branch: text("branch")?,
        commit: text("commit_id")?,
        summary: text("summary")?,
        error: failure(row)?,
        started_ms: number("started_ms")?,
        ended_ms: number("ended_ms")?,
    })
}
