//! Tasks.
//!
//! `change` has people's changes, `attempts` those of runs, `talk` the messages.

mod attempts;
mod change;
mod issues;
mod questions;
mod review;
mod schedules;
mod talk;
mod triggers;

use coffer_core::event::{Event, TaskMoved};
use coffer_core::{
    AgentId, Attention, Millis, Priority, ProjectId, Question, RunId, TaskId, TaskIssue, TaskState,
};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use crate::columns::{id, json as to_json, optional_id, storable};
use crate::error::Doing;
use crate::search::containing;
use crate::select::Select;
use crate::{ProjectScope, Store, StoreError, events, now_ms};

pub use attempts::{Attempt, AttemptNote, StartTask};
pub(crate) use attempts::{begin, run_ended, run_started};
pub use change::{Place, TaskEdit};
pub use questions::{GivenAnswer, NewQuestion, QuestionRow, answer_signal};
pub use review::{AboutPull, Heard, LogReader, ProjectBehind, SaidThere};
pub use schedules::{Fired, Firing, MOST_OPEN, MOST_SCHEDULES, ScheduleError, ScheduleRow, ScheduleTerms};
pub use talk::TaskMessage;
pub use triggers::{PollDue, Remark, Triggered};

const READ: &str = "read tasks";
const CHANGE: &str = "change a task";
/// The distance between neighbours of a column, so that others fit in between.
const GAP: i64 = 1 << 20;

/// A task on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    pub id: TaskId,
    pub project: ProjectId,
    pub title: String,
    pub description: String,
    pub state: TaskState,
    pub attention: Option<Attention>,
    pub priority: Priority,
    pub place: i64,
    pub labels: Vec<String>,
    pub repository: Option<String>,
    pub base_branch: Option<String>,
    pub branch: Option<String>,
    pub agent: Option<AgentId>,
    pub model: Option<String>,
    pub check_command: Option<String>,
    pub budget_nanos: Option<i64>,
    pub context_id: Option<String>,
    /// The newest attempt.
    pub run: Option<RunId>,
    pub attempts: i64,
    pub pull_url: Option<String>,
    pub commit: Option<String>,
    pub created_by: Option<String>,
    pub version: i64,
    pub created_ms: Millis,
    pub updated_ms: Millis,
    pub archived_ms: Option<Millis>,
    /// Whether a review of its pull request starts the next attempt.
    pub starts_on_review: bool,
    /// The issue that it is for.
    pub issue: Option<TaskIssue>,
    /// How often an agent may correct its work after the check failed; the server's default without a value.
    pub check_tries: Option<i64>,
}

/// A new task.
#[derive(Debug, Clone)]
pub struct NewTask {
    pub title: String,
    pub description: String,
    pub state: TaskState,
    pub priority: Priority,
    pub labels: Vec<String>,
    pub repository: Option<String>,
    pub base_branch: Option<String>,
    pub agent: Option<AgentId>,
    pub model: Option<String>,
    pub check_command: Option<String>,
    pub budget_nanos: Option<i64>,
    pub context_id: Option<String>,
    /// The caller that requested it.
    pub actor: String,
}

/// The order of a list of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskOrder {
    /// The newest first.
    #[default]
    Newest,
    /// The order of the board's columns.
    Board,
}

/// Selects tasks and a part of the list.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    pub state: Option<TaskState>,
    pub agent: Option<AgentId>,
    pub label: Option<String>,
    pub priority: Option<Priority>,
    pub repository: Option<String>,
    pub context_id: Option<String>,
    /// Only tasks whose title or id has these words, in any case and order.
    pub words: Vec<String>,
    /// Only tasks that need a person, or only others.
    pub attention: Option<bool>,
    pub archived: bool,
    pub order: TaskOrder,
    /// The place and the id of the last one of the previous part.
    pub after: Option<(i64, TaskId)>,
    pub limit: u32,
}

/// One change of a task's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskMove {
    pub from: Option<TaskState>,
    pub to: TaskState,
    pub reason: String,
    pub actor: Option<String>,
    pub at_ms: Millis,
}

/// Why a task was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TaskError {
    #[error("task not found")]
    NotFound,
    #[error("the task has changed since it was read")]
    Changed,
    #[error("agent {0} not found")]
    NoAgent(AgentId),
    /// An attempt is in progress.
    #[error("an attempt is in progress")]
    Busy,
    #[error("no attempt is in progress")]
    Idle,
    #[error("no agent is working")]
    NoTurn,
    #[error("no attempt waits for an answer")]
    NotAsked,
    #[error("the question cannot be answered so")]
    WrongAnswer(Question),
    /// What is spent, in billionths.
    #[error("the new budget is spent already")]
    BudgetTooSmall(i64),
    #[error("the task is archived")]
    Archived,
    #[error("task {0} is not in that column")]
    NoNeighbour(TaskId),
    #[error(transparent)]
    Store(#[from] StoreError),
}

const COLUMNS: &str = "id, project_id, title, description, state, attention, priority, place, labels, repository, \
                       base_branch, branch, agent_id, model, check_command, budget_nanos, context_id, run_id, \
                       attempts, pull_url, commit_id, created_by, version, created_ms, updated_ms, archived_ms, on_review, \
                       issue, check_tries";

/// The data of a move.
struct Moved<'a> {
    task: TaskId,
    project: ProjectId,
    from: Option<TaskState>,
    to: TaskState,
    reason: &'a str,
    actor: Option<&'a str>,
    now: Millis,
}

impl Store {
    /// Creates a task, at the end of its column.
    pub async fn create_task(&self, scope: &ProjectScope, new: NewTask) -> Result<TaskRow, TaskError> {
        let project = scope.project();
        let create = self.database().write("create a task", move |connection| {
            Box::pin(async move { insert(connection, project, new).await })
        });
        create.await
    }

    /// The branches of an agent's tasks in a repository, which the agent may push to.
    pub async fn task_branches(
        &self,
        scope: &ProjectScope,
        agent: AgentId,
        repository: &str,
    ) -> Result<Vec<String>, StoreError> {
        let rows = sqlx::query(
            "SELECT DISTINCT branch FROM tasks
             WHERE project_id = $1 AND agent_id = $2 AND repository = $3 AND branch IS NOT NULL",
        )
        .bind(scope.project())
        .bind(agent)
        .bind(repository)
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(|row| row.try_get("branch").doing(READ)).collect()
    }

    /// The task of this id, if the scope sees it: an agent sees only its own.
    pub async fn task(&self, scope: &ProjectScope, task: TaskId) -> Result<Option<TaskRow>, StoreError> {
        Select::new(COLUMNS, "tasks")
            .filter("id = ?", task)
            .filter("project_id = ?", scope.project())
            .filter_if("agent_id = ?", scope.agent())
            .one(self.database(), READ, read)
            .await
    }

    /// The tasks in scope that match the filter.
    pub async fn tasks(&self, scope: &ProjectScope, filter: &TaskFilter) -> Result<Vec<TaskRow>, StoreError> {
        let (beyond, order) = match filter.order {
            TaskOrder::Newest => ("$11 IS NULL OR id < $10", "id DESC"),
            TaskOrder::Board => ("$10 IS NULL OR place > $11 OR (place = $11 AND id > $10)", "place, id"),
        };
        let words: String = (0..filter.words.len())
            .map(|at| format!(" AND LOWER(title || ' ' || id) LIKE ${} ESCAPE '\\'", at + 14))
            .collect();
        let sql = format!(
            "SELECT {COLUMNS} FROM tasks
             WHERE project_id = $1 AND ($2 IS NULL OR agent_id = $2) AND ($3 IS NULL OR state = $3)
                 AND ($4 IS NULL OR agent_id = $4) AND ($5 IS NULL OR priority = $5)
                 AND ($6 IS NULL OR repository = $6) AND ($7 IS NULL OR context_id = $7)
                 AND ($8 IS NULL OR id IN (SELECT task_id FROM task_labels WHERE project_id = $1 AND label = $8))
                 AND ($9 IS NULL OR CASE WHEN attention IS NULL THEN 0 ELSE 1 END = $9)
                 AND ({beyond}) AND CASE WHEN archived_ms IS NULL THEN 0 ELSE 1 END = $12{words}
             ORDER BY {order} LIMIT $13"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(scope.project())
            .bind(scope.agent())
            .bind(filter.state.map(|state| state.as_str()))
            .bind(filter.agent)
            .bind(filter.priority.map(Priority::rank))
            .bind(filter.repository.clone())
            .bind(filter.context_id.clone())
            .bind(filter.label.clone())
            .bind(filter.attention.map(i64::from))
            .bind(filter.after.map(|(_, task)| task))
            .bind(filter.after.map(|(place, _)| place))
            .bind(i64::from(filter.archived))
            .bind(i64::from(filter.limit));
        let query = filter.words.iter().fold(query, |query, word| query.bind(containing(word)));
        let rows = query.fetch_all(self.database().readers()).await.doing(READ)?;
        rows.iter().map(read).collect()
    }

    /// The state changes of a task, oldest first.
    pub async fn task_history(
        &self,
        scope: &ProjectScope,
        task: TaskId,
    ) -> Result<Vec<TaskMove>, StoreError> {
        let rows = sqlx::query(
            "SELECT from_state, to_state, reason, actor, at_ms FROM task_history
             WHERE task_id = $1 AND project_id = $2 ORDER BY position",
        )
        .bind(task)
        .bind(scope.project())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter()
            .map(|row| {
                let from: Option<String> = row.try_get("from_state").doing(READ)?;
                let to: String = row.try_get("to_state").doing(READ)?;
                Ok(TaskMove {
                    from: from.map(|from| state(&from)).transpose()?,
                    to: state(&to)?,
                    reason: row.try_get("reason").doing(READ)?,
                    actor: row.try_get("actor").doing(READ)?,
                    at_ms: row.try_get("at_ms").doing(READ)?,
                })
            })
            .collect()
    }
}

async fn insert(
    connection: &mut AnyConnection,
    project: ProjectId,
    new: NewTask,
) -> Result<TaskRow, TaskError> {
    const DOING: &str = "create a task";
    if let Some(agent) = new.agent {
        check_agent(connection, project, agent).await?;
    }
    let (task, now) = (TaskId::generate(), now_ms());
    let place = last_place(connection, project, new.state).await? + GAP;
    let sql = format!(
        "INSERT INTO tasks (id, project_id, title, description, state, priority, place, labels, repository,
             base_branch, agent_id, model, check_command, budget_nanos, context_id, created_by, created_ms, updated_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $17)
         RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(task)
        .bind(project)
        .bind(storable(&new.title))
        .bind(storable(&new.description))
        .bind(new.state.as_str())
        .bind(new.priority.rank())
        .bind(place)
        .bind(to_json(&new.labels))
        .bind(new.repository.as_deref().map(storable))
        .bind(new.base_branch.as_deref().map(storable))
        .bind(new.agent)
        .bind(new.model.as_deref().map(storable))
        .bind(new.check_command.as_deref().map(storable))
        .bind(new.budget_nanos)
        .bind(new.context_id.as_deref().map(storable))
        .bind(new.actor.clone())
        .bind(now)
        .fetch_one(&mut *connection)
        .await
        .doing(DOING)?;
    set_labels(connection, project, task, &new.labels).await?;
    let (to, actor) = (new.state, new.actor.as_str());
    moved(connection, &Moved { task, project, from: None, to, reason: "created", actor: Some(actor), now })
        .await?;
    Ok(read(&row)?)
}

/// Records a move, in the task's history and in the log.
async fn moved(connection: &mut AnyConnection, moved: &Moved<'_>) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO task_history (task_id, position, project_id, from_state, to_state, reason, actor, at_ms)
         SELECT $1, COUNT(*), $2, $3, $4, $5, $6, $7 FROM task_history WHERE task_id = $1",
    )
    .bind(moved.task)
    .bind(moved.project)
    .bind(moved.from.map(|from| from.as_str()))
    .bind(moved.to.as_str())
    .bind(moved.reason)
    .bind(moved.actor.map(String::from))
    .bind(moved.now)
    .execute(&mut *connection)
    .await
    .doing(CHANGE)?;
    let told = TaskMoved {
        from: moved.from,
        to: moved.to,
        reason: moved.reason.to_string(),
        actor: moved.actor.map(str::to_string),
    };
    let event = if moved.from.is_some() { Event::TaskMoved(told) } else { Event::TaskCreated(told) };
    events::record(connection, moved.project, moved.task, event, moved.now).await
}

async fn check_agent(
    connection: &mut AnyConnection,
    project: ProjectId,
    agent: AgentId,
) -> Result<(), TaskError> {
    let known = sqlx::query("SELECT id FROM agents WHERE id = $1 AND project_id = $2 AND removed_ms IS NULL")
        .bind(agent)
        .bind(project)
        .fetch_optional(connection)
        .await
        .doing(CHANGE)?;
    known.map(drop).ok_or(TaskError::NoAgent(agent))
}

async fn last_place(
    connection: &mut AnyConnection,
    project: ProjectId,
    state: TaskState,
) -> Result<i64, StoreError> {
    let row = sqlx::query(
        "SELECT COALESCE(MAX(place), 0) AS place FROM tasks WHERE project_id = $1 AND state = $2",
    )
    .bind(project)
    .bind(state.as_str())
    .fetch_one(connection)
    .await
    .doing(READ)?;
    row.try_get("place").doing(READ)
}

async fn set_labels(
    connection: &mut AnyConnection,
    project: ProjectId,
    task: TaskId,
    labels: &[String],
) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM task_labels WHERE task_id = $1")
        .bind(task)
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
    for label in labels {
        sqlx::query(
            "INSERT INTO task_labels (project_id, label, task_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        )
        .bind(project)
        .bind(label.clone())
        .bind(task)
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
    }
    Ok(())
}

fn unreadable(why: impl ToString) -> StoreError {
    StoreError::Unreadable { what: "task", why: why.to_string() }
}

fn state(text: &str) -> Result<TaskState, StoreError> {
    TaskState::parse(text).ok_or_else(|| unreadable(format!("unknown state `{text}`")))
}

fn read(row: &AnyRow) -> Result<TaskRow, StoreError> {
    let text = |column: &str| row.try_get::<Option<String>, _>(column).doing(READ);
    let rank: i64 = row.try_get("priority").doing(READ)?;
    let priority = Priority::ALL.iter().copied().find(|priority| priority.rank() == rank);
    let (attention, issue) = (text("attention")?, text("issue")?);
    Ok(TaskRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        title: row.try_get("title").doing(READ)?,
        description: row.try_get("description").doing(READ)?,
        state: state(&row.try_get::<String, _>("state").doing(READ)?)?,
        attention: attention.map(|text| serde_json::from_str(&text).map_err(unreadable)).transpose()?,
        priority: priority.ok_or_else(|| unreadable("its priority is unknown"))?,
        place: row.try_get("place").doing(READ)?,
        labels: serde_json::from_str(&row.try_get::<String, _>("labels").doing(READ)?).map_err(unreadable)?,
        repository: text("repository")?,
        base_branch: text("base_branch")?,
        branch: text("branch")?,
        agent: optional_id(row, "agent_id")?,
        model: text("model")?,
        check_command: text("check_command")?,
        budget_nanos: row.try_get("budget_nanos").doing(READ)?,
        context_id: text("context_id")?,
        run: optional_id(row, "run_id")?,
        attempts: row.try_get("attempts").doing(READ)?,
        pull_url: text("pull_url")?,
        commit: text("commit_id")?,
        created_by: text("created_by")?,
        version: row.try_get("version").doing(READ)?,
        created_ms: row.try_get("created_ms").doing(READ)?,
        updated_ms: row.try_get("updated_ms").doing(READ)?,
        archived_ms: row.try_get("archived_ms").doing(READ)?,
        starts_on_review: row.try_get::<String, _>("on_review").doing(READ)? == "start",
        issue: issue.map(|text| serde_json::from_str(&text).map_err(unreadable)).transpose()?,
        check_tries: row.try_get("check_tries").doing(READ)?,
    })
}
