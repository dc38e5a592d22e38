//! Executions in sandboxes.

use coffer_core::event::{Event, ExecutionEnded, ExecutionStarted};
use coffer_core::{
    AgentId, ExecutionId, ExecutionSource, ExecutionState, KeyId, Millis, ProjectId, SandboxId,
};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use crate::columns::{id, optional_id, storable};
use crate::error::Doing;
use crate::segments::{self, SegmentRow};
use crate::select::Select;
use crate::{Scope, Store, StoreError, events};

const READ: &str = "read executions";
const WRITE: &str = "record executions";
/// Longest command in an event.
const LONGEST_TOLD: usize = 256;
const LONGEST_COMMAND: usize = 4096;
const LONGEST_WORD: usize = 256;

/// An execution that our own API requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewExecution {
    pub id: ExecutionId,
    /// The key that requested it.
    pub actor: Option<KeyId>,
    pub command: String,
    pub cwd: Option<String>,
    pub user: Option<String>,
    pub source: ExecutionSource,
    /// Set if it is code, which is `command` then.
    pub code: Option<CodeOf>,
}

/// Where code runs in a sandbox's code interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeOf {
    pub language: String,
    /// The context, if the caller named one.
    pub context: Option<String>,
}

/// An execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionRow {
    pub id: ExecutionId,
    pub project: ProjectId,
    pub sandbox: SandboxId,
    pub agent: Option<AgentId>,
    pub actor: Option<KeyId>,
    pub source: ExecutionSource,
    pub state: ExecutionState,
    pub command: String,
    pub cwd: Option<String>,
    pub user: Option<String>,
    /// Set if it is code. It has no process.
    pub code: Option<CodeOf>,
    /// The process, once agentd reported it.
    pub process: Option<Process>,
    pub started_ms: Millis,
    pub ended_ms: Option<Millis>,
    pub exit_code: Option<i64>,
    /// How it ended, in words.
    pub status: Option<String>,
    /// Of standard output or the terminal.
    pub main: Progress,
    /// Of standard error.
    pub error: Progress,
    /// Bytes that were written but are not stored: not read in time, or over the limit.
    pub lost_bytes: i64,
    /// Whether the limit of its output was reached.
    pub truncated: bool,
    /// The positions in the sandbox's log at which its records begin and end.
    pub positions: Option<(i64, i64)>,
}

/// The process of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pub boot: i64,
    pub pid: u32,
    /// The record of agentd's journal with its start.
    pub journal_offset: i64,
}

/// The progress of an output stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub read: i64,
    /// Bytes in the log; redaction makes them fewer or more.
    pub kept: i64,
}

impl ExecutionRow {
    /// A new execution.
    pub fn new(
        new: NewExecution,
        project: ProjectId,
        sandbox: SandboxId,
        agent: Option<AgentId>,
        at_ms: Millis,
    ) -> Self {
        let word = |text: String| cut(&text, LONGEST_WORD);
        Self {
            id: new.id,
            project,
            sandbox,
            agent,
            actor: new.actor,
            source: new.source,
            state: ExecutionState::Running,
            command: cut(&new.command, LONGEST_COMMAND),
            cwd: new.cwd.map(word),
            user: new.user.map(word),
            code: new.code.map(|code| CodeOf {
                language: cut(&code.language, LONGEST_WORD),
                context: code.context.map(word),
            }),
            process: None,
            started_ms: at_ms,
            ended_ms: None,
            exit_code: None,
            status: None,
            main: Progress::default(),
            error: Progress::default(),
            lost_bytes: 0,
            truncated: false,
            positions: None,
        }
    }

    /// Bytes of output that are stored.
    pub const fn kept_bytes(&self) -> i64 {
        self.main.kept + self.error.kept
    }

    /// Bytes of output that it wrote, as far as known.
    pub const fn total_bytes(&self) -> i64 {
        self.main.read + self.error.read
    }
}

/// A part of a sandbox's journal, to record together.
#[derive(Debug, Clone)]
pub struct Collected {
    pub sandbox: SandboxId,
    pub project: ProjectId,
    /// The journal's boot number and position after it; `None` if it did not come from there.
    pub journal: Option<(i64, i64)>,
    /// The changed segments.
    pub segments: Vec<SegmentRow>,
    /// The changed executions.
    pub executions: Vec<ExecutionRow>,
}

/// Which executions to show; newest first.
#[derive(Debug, Clone, Default)]
pub struct ExecutionFilter {
    /// Only those before this one.
    pub before: Option<ExecutionId>,
    pub sandbox: Option<SandboxId>,
    pub agent: Option<AgentId>,
    pub state: Option<ExecutionState>,
    pub started_from_ms: Option<Millis>,
    pub started_until_ms: Option<Millis>,
    /// Only code.
    pub is_code: bool,
    pub limit: u32,
}

const COLUMNS: &str = "id, project_id, sandbox_id, agent_id, actor_key, source, state, command, cwd, user_name, boot, \
     pid, journal_offset, started_ms, ended_ms, exit_code, status, read_main, read_error, kept_main, kept_error, \
     lost_bytes, truncated, first_position, last_position, language, code_context";

impl Store {
    /// Records an execution before, or while, it starts.
    pub async fn begin_execution(&self, execution: ExecutionRow) -> Result<(), StoreError> {
        let write = self.database().write(WRITE, move |connection| {
            Box::pin(async move {
                if insert(connection, &execution).await? {
                    tell_start(connection, &execution).await?;
                }
                Ok(())
            })
        });
        write.await
    }

    /// Records part of a journal: executions with their events, segments, and the position. Ended executions
    /// stay ended.
    pub async fn record_collected(&self, collected: Collected) -> Result<(), StoreError> {
        let write = self.database().write(WRITE, move |connection| {
            Box::pin(async move {
                if let Some((boot, next)) = collected.journal {
                    sqlx::query(
                        "INSERT INTO journal_positions (sandbox_id, project_id, boot, next) VALUES ($1, $2, $3, $4)
                         ON CONFLICT (sandbox_id) DO UPDATE SET boot = $3, next = $4",
                    )
                    .bind(collected.sandbox)
                    .bind(collected.project)
                    .bind(boot)
                    .bind(next)
                    .execute(&mut *connection)
                    .await
                    .doing(WRITE)?;
                }
                for segment in &collected.segments {
                    segments::put(connection, segment).await?;
                }
                // Events come last: they lock the project's counter.
                let mut told = Vec::new();
                for execution in &collected.executions {
                    let new = insert(connection, execution).await?;
                    let ended = update(connection, execution).await?;
                    told.push((execution, new, ended));
                }
                for (execution, new, ended) in told {
                    if new {
                        tell_start(connection, execution).await?;
                    }
                    if ended {
                        tell_end(connection, execution).await?;
                    }
                }
                Ok(())
            })
        });
        write.await
    }

    /// Ends every running execution of a sandbox, with this state.
    pub async fn end_executions(
        &self,
        sandbox: SandboxId,
        only: Option<ExecutionId>,
        state: ExecutionState,
        status: &str,
        at_ms: Millis,
    ) -> Result<u64, StoreError> {
        let status = cut(status, LONGEST_WORD);
        let write = self.database().write(WRITE, move |connection| {
            Box::pin(async move {
                let sql = format!(
                    "UPDATE executions SET state = $1, status = $2, ended_ms = $3
                     WHERE sandbox_id = $4 AND state = 'running' AND ($5 IS NULL OR id = $5) RETURNING {COLUMNS}"
                );
                let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(state.as_str())
                    .bind(status)
                    .bind(at_ms)
                    .bind(sandbox)
                    .bind(only)
                    .fetch_all(&mut *connection)
                    .await
                    .doing(WRITE)?;
                for row in &rows {
                    tell_end(connection, &read(row)?).await?;
                }
                Ok(rows.len() as u64)
            })
        });
        write.await
    }

    /// Ends the code that an earlier server of this installation left running: its connections died with it.
    pub async fn lose_code_executions(&self, before_ms: Millis, at_ms: Millis) -> Result<u64, StoreError> {
        let installation = self.installation();
        let write = self.database().write(WRITE, move |connection| {
            Box::pin(async move {
                let sql = format!(
                    "UPDATE executions SET state = 'lost', status = 'the server stopped while it ran', ended_ms = $1
                     WHERE state = 'running' AND language IS NOT NULL AND started_ms < $2 AND sandbox_id IN (
                         SELECT id FROM sandboxes WHERE $3 IS NULL OR installation IS NULL OR installation = $3)
                     RETURNING {COLUMNS}"
                );
                let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(at_ms)
                    .bind(before_ms)
                    .bind(installation)
                    .fetch_all(&mut *connection)
                    .await
                    .doing(WRITE)?;
                for row in &rows {
                    tell_end(connection, &read(row)?).await?;
                }
                Ok(rows.len() as u64)
            })
        });
        write.await
    }

    /// Ended sandboxes of this installation with executions recorded as running.
    pub async fn sandboxes_with_lost_executions(&self) -> Result<Vec<SandboxId>, StoreError> {
        let rows = sqlx::query(
            "SELECT DISTINCT sandbox_id FROM executions WHERE state = 'running' AND sandbox_id IN (
                 SELECT id FROM sandboxes WHERE state NOT IN ('creating', 'running', 'paused')
                     AND ($1 IS NULL OR installation IS NULL OR installation = $1)) LIMIT 1000",
        )
        .bind(self.installation())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(|row| id(row, "sandbox_id")).collect()
    }

    /// How far a sandbox's journal is recorded: the start of agentd, and the next record.
    pub async fn journal_position(&self, sandbox: SandboxId) -> Result<Option<(i64, i64)>, StoreError> {
        let row = sqlx::query("SELECT boot, next FROM journal_positions WHERE sandbox_id = $1")
            .bind(sandbox)
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.map(|row| Ok((row.try_get("boot").doing(READ)?, row.try_get("next").doing(READ)?))).transpose()
    }

    /// The execution of that id, if the scope sees it.
    pub async fn execution(
        &self,
        scope: &impl Scope,
        execution: ExecutionId,
    ) -> Result<Option<ExecutionRow>, StoreError> {
        Select::new(COLUMNS, "executions")
            .filter("id = ?", execution)
            .filter_if("project_id = ?", scope.only())
            .filter_if("agent_id = ?", scope.only_of())
            .one(self.database(), READ, read)
            .await
    }

    /// The executions in scope that match the filter, newest first.
    pub async fn executions(
        &self,
        scope: &impl Scope,
        filter: &ExecutionFilter,
    ) -> Result<Vec<ExecutionRow>, StoreError> {
        let select = Select::new(COLUMNS, "executions");
        let select = if filter.is_code { select.filter_by("language IS NOT NULL") } else { select };
        select
            .filter_if("project_id = ?", scope.only())
            .filter_if("agent_id = ?", scope.only_of())
            .filter_if("sandbox_id = ?", filter.sandbox)
            .filter_if("agent_id = ?", filter.agent)
            .filter_if("state = ?", filter.state.map(ExecutionState::as_str))
            .filter_if("started_ms >= ?", filter.started_from_ms)
            .filter_if("started_ms <= ?", filter.started_until_ms)
            .newest_first("id", filter.before, filter.limit)
            .all(self.database(), READ, read)
            .await
    }
}

/// Returns whether it is new.
async fn insert(connection: &mut AnyConnection, row: &ExecutionRow) -> Result<bool, StoreError> {
    let inserted = sqlx::query(
        "INSERT INTO executions (id, project_id, sandbox_id, agent_id, actor_key, source, state, command, cwd,
             user_name, started_ms, language, code_context)
         VALUES ($1, $2, $3, $4, $5, $6, 'running', $7, $8, $9, $10, $11, $12) ON CONFLICT (id) DO NOTHING",
    )
    .bind(row.id)
    .bind(row.project)
    .bind(row.sandbox)
    .bind(row.agent)
    .bind(row.actor)
    .bind(row.source.as_str())
    .bind(row.command.clone())
    .bind(row.cwd.clone())
    .bind(row.user.clone())
    .bind(row.started_ms)
    .bind(row.code.as_ref().map(|code| code.language.clone()))
    .bind(row.code.as_ref().and_then(|code| code.context.clone()))
    .execute(connection)
    .await
    .doing(WRITE)?;
    Ok(inserted.rows_affected() == 1)
}

/// Returns whether this ended it.
async fn update(connection: &mut AnyConnection, row: &ExecutionRow) -> Result<bool, StoreError> {
    let updated = sqlx::query(
        "UPDATE executions SET boot = $1, pid = $2, journal_offset = $3, cwd = $4, user_name = $5, state = $6,
             ended_ms = $7, exit_code = $8, status = $9, read_main = $10, read_error = $11, kept_main = $12,
             kept_error = $13, lost_bytes = $14, truncated = $15, first_position = $16, last_position = $17
         WHERE id = $18 AND sandbox_id = $19 AND state = 'running'",
    )
    .bind(row.process.map(|process| process.boot))
    .bind(row.process.map(|process| i64::from(process.pid)))
    .bind(row.process.map(|process| process.journal_offset))
    .bind(row.cwd.clone())
    .bind(row.user.clone())
    .bind(row.state.as_str())
    .bind(row.ended_ms)
    .bind(row.exit_code)
    .bind(row.status.as_deref().map(|status| cut(status, LONGEST_WORD)))
    .bind(row.main.read)
    .bind(row.error.read)
    .bind(row.main.kept)
    .bind(row.error.kept)
    .bind(row.lost_bytes)
    .bind(i64::from(row.truncated))
    .bind(row.positions.map(|(first, _)| first))
    .bind(row.positions.map(|(_, last)| last))
    .bind(row.id)
    .bind(row.sandbox)
    .execute(connection)
    .await
    .doing(WRITE)?;
    Ok(updated.rows_affected() == 1 && row.state != ExecutionState::Running)
}

async fn tell_start(connection: &mut AnyConnection, row: &ExecutionRow) -> Result<(), StoreError> {
    let event = Event::ExecutionStarted(ExecutionStarted {
        execution: row.id,
        command: cut(&row.command, LONGEST_TOLD),
        source: row.source,
        actor: row.actor,
        language: row.code.as_ref().map(|code| code.language.clone()),
    });
    events::record(connection, row.project, row.sandbox, event, row.started_ms).await
}

async fn tell_end(connection: &mut AnyConnection, row: &ExecutionRow) -> Result<(), StoreError> {
    let event = Event::ExecutionEnded(ExecutionEnded {
        execution: row.id,
        state: row.state,
        exit_code: row.exit_code,
        status: row.status.clone(),
        bytes: row.total_bytes(),
        truncated: row.truncated,
    });
    let at_ms = row.ended_ms.unwrap_or(row.started_ms);
    events::record(connection, row.project, row.sandbox, event, at_ms).await
}

fn cut(text: &str, longest: usize) -> String {
    storable(&text[..text.floor_char_boundary(longest)])
}

fn read(row: &AnyRow) -> Result<ExecutionRow, StoreError> {
    let unreadable = |why: String| StoreError::Unreadable { what: "execution", why };
    let number = |name: &str| row.try_get::<i64, _>(name).doing(READ);
    let optional = |name: &str| row.try_get::<Option<i64>, _>(name).doing(READ);
    let text = |name: &str| row.try_get::<String, _>(name).doing(READ);
    let state = text("state")?;
    let state = ExecutionState::parse(&state);
    let process = match (optional("boot")?, optional("pid")?, optional("journal_offset")?) {
        (Some(boot), Some(pid), Some(journal_offset)) => {
            let pid = u32::try_from(pid).map_err(|error| unreadable(error.to_string()))?;
            Some(Process { boot, pid, journal_offset })
        }
        _ => None,
    };
    Ok(ExecutionRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        sandbox: id(row, "sandbox_id")?,
        agent: optional_id(row, "agent_id")?,
        actor: optional_id(row, "actor_key")?,
        source: if text("source")? == "api" { ExecutionSource::Api } else { ExecutionSource::E2b },
        state: state.ok_or_else(|| unreadable("its state is unknown".into()))?,
        command: text("command")?,
        cwd: row.try_get("cwd").doing(READ)?,
        user: row.try_get("user_name").doing(READ)?,
        code: row
            .try_get::<Option<String>, _>("language")
            .doing(READ)?
            .map(|language| Ok(CodeOf { language, context: row.try_get("code_context").doing(READ)? }))
            .transpose()?,
        process,
        started_ms: number("started_ms")?,
        ended_ms: optional("ended_ms")?,
        exit_code: optional("exit_code")?,
        status: row.try_get("status").doing(READ)?,
        main: Progress { read: number("read_main")?, kept: number("kept_main")? },
        error: Progress { read: number("read_error")?, kept: number("kept_error")? },
        lost_bytes: number("lost_bytes")?,
        truncated: number("truncated")? != 0,
        positions: optional("first_position")?.zip(optional("last_position")?),
    })
}
