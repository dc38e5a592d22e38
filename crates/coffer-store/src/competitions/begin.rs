//! Creates competitions, alone or as an attempt at a task.

use coffer_core::compete::{CompetitionState, CompetitionTerms, EntryState};
use coffer_core::event::{CompetitionCreated, Event};
use coffer_core::{AgentId, CompetitionId, Millis, ProjectId, RunId, TaskId};
use serde_json::json;
use sqlx::{AnyConnection, Row};

use super::{COLUMNS, CompetitionError, CompetitionRow, READ, read};
use crate::columns::{first, storable};
use crate::error::Doing;
use crate::projects::lock_project;
use crate::runs::{self, NewRun};
use crate::tasks::{self, StartTask, TaskRow};
use crate::{ProjectScope, Store, StoreError, events, now_ms};

const BEGIN: &str = "begin a competition";
/// The kind of runs that are competitions.
const KIND: &str = "compete";
/// The default rank, between urgent and low.
const USUAL_RANK: i64 = 2;

/// A new competition.
#[derive(Debug, Clone)]
pub struct NewCompetition {
    pub terms: CompetitionTerms,
    pub entries: Vec<NewEntry>,
    /// The caller that requested it.
    pub actor: String,
    /// The key of the request, and a digest of the request.
    pub idempotency: Option<(String, String)>,
}

/// A new entry.
#[derive(Debug, Clone)]
pub struct NewEntry {
    pub label: String,
    pub agent: AgentId,
    pub model: Option<String>,
    pub prompt: Option<String>,
    pub budget_nanos: Option<i64>,
}

impl Store {
    /// Creates a competition and queues its run. The same key returns the existing one.
    pub async fn create_competition(
        &self,
        scope: &ProjectScope,
        new: NewCompetition,
    ) -> Result<CompetitionRow, CompetitionError> {
        let (project, here) = (scope.project(), self.installation());
        let begin = self.database().write(BEGIN, move |connection| {
            Box::pin(async move {
                if let Some(earlier) = earlier(connection, project, &new).await? {
                    return Ok(earlier);
                }
                let (competition, run, now) = (CompetitionId::generate(), RunId::generate(), now_ms());
                let row = insert(connection, project, competition, run, None, &new, now).await?;
                let new = NewRun {
                    id: run,
                    kind: KIND,
                    subject: competition.to_string(),
                    input: json!({ "competition": competition }),
                    rank: USUAL_RANK,
                };
                runs::insert(connection, project, &new, now).await?;
                runs::place(connection, run, here).await?;
                Ok(row)
            })
        });
        begin.await
    }

    /// Starts an attempt at a task that is a competition.
    pub async fn compete_for_task(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        start: StartTask,
        new: NewCompetition,
    ) -> Result<(TaskRow, CompetitionId), CompetitionError> {
        let (scope, here) = (*scope, self.installation());
        let begin = self.database().write(BEGIN, move |connection| {
            Box::pin(async move {
                let (competition, now) = (CompetitionId::generate(), now_ms());
                let attempt =
                    tasks::begin(connection, &scope, task, start, Some((KIND, competition))).await?;
                let (row, run) = attempt;
                runs::place(connection, run, here).await?;
                insert(connection, scope.project(), competition, run, Some(task), &new, now).await?;
                Ok((row, competition))
            })
        });
        begin.await
    }
}

/// The competition of an earlier equal request.
async fn earlier(
    connection: &mut AnyConnection,
    project: ProjectId,
    new: &NewCompetition,
) -> Result<Option<CompetitionRow>, CompetitionError> {
    let Some((key, print)) = &new.idempotency else { return Ok(None) };
    // Of two concurrent requests, the second finds what the first created.
    lock_project(connection, project, BEGIN).await?;
    let sql = format!(
        "SELECT {COLUMNS}, idempotency_print FROM competitions WHERE project_id = $1 AND idempotency_key = $2"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(project)
        .bind(key.clone())
        .fetch_optional(connection)
        .await
        .doing(READ)?;
    let Some(row) = row else { return Ok(None) };
    let known: Option<String> = row.try_get("idempotency_print").doing(READ)?;
    if known.as_ref() != Some(print) {
        return Err(CompetitionError::KeyReused);
    }
    Ok(Some(read(&row)?))
}

async fn insert(
    connection: &mut AnyConnection,
    project: ProjectId,
    competition: CompetitionId,
    run: RunId,
    task: Option<TaskId>,
    new: &NewCompetition,
    now: Millis,
) -> Result<CompetitionRow, CompetitionError> {
    let text = |text: &Option<String>| text.as_deref().map(storable);
    let (terms, (key, print)) = (&new.terms, new.idempotency.clone().unzip());
    let sql = format!(
        "INSERT INTO competitions (id, project_id, run_id, task_id, title, prompt, repository, source_id,
             base_branch, template, prepare_command, check_command, rule, budget_nanos, decide_within_s, context_id,
             state, created_by, idempotency_key, idempotency_print, created_ms, updated_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, {}, $17, $18, $19, $20, $20)
         RETURNING {COLUMNS}",
        first::<CompetitionState>()
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(competition)
        .bind(project)
        .bind(run)
        .bind(task)
        .bind(storable(&terms.title))
        .bind(storable(&terms.prompt))
        .bind(text(&terms.repository))
        .bind(terms.source)
        .bind(text(&terms.base_branch))
        .bind(text(&terms.template))
        .bind(text(&terms.prepare_command))
        .bind(text(&terms.check_command))
        .bind(terms.rule.as_str())
        .bind(terms.budget_nanos)
        .bind(terms.decide_within_s)
        .bind(text(&terms.context_id))
        .bind(new.actor.clone())
        .bind(key)
        .bind(print)
        .bind(now)
        .fetch_one(&mut *connection)
        .await
        .doing(BEGIN)?;
    for (number, entry) in (1i64..).zip(&new.entries) {
        insert_entry(connection, project, competition, number, entry).await?;
    }
    let event = Event::CompetitionCreated(CompetitionCreated {
        competition,
        run,
        task,
        title: terms.title.clone(),
        entries: new.entries.len(),
        rule: terms.rule,
        actor: new.actor.clone(),
    });
    events::record(connection, project, competition, event, now).await?;
    Ok(read(&row)?)
}

async fn insert_entry(
    connection: &mut AnyConnection,
    project: ProjectId,
    competition: CompetitionId,
    number: i64,
    entry: &NewEntry,
) -> Result<(), CompetitionError> {
    let known = sqlx::query("SELECT id FROM agents WHERE id = $1 AND project_id = $2 AND removed_ms IS NULL")
        .bind(entry.agent)
        .bind(project)
        .fetch_optional(&mut *connection)
        .await
        .doing(BEGIN)?;
    if known.is_none() {
        return Err(CompetitionError::NoAgent(entry.agent));
    }
    let inserted = sqlx::query(
        "INSERT INTO competition_entries
             (competition_id, number, project_id, label, agent_id, model, prompt, budget_nanos, state)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(competition)
    .bind(number)
    .bind(project)
    .bind(storable(&entry.label))
    .bind(entry.agent)
    .bind(entry.model.as_deref().map(storable))
    .bind(entry.prompt.as_deref().map(storable))
    .bind(entry.budget_nanos)
    .bind(EntryState::Queued.as_str().to_string())
    .execute(connection)
    .await;
    inserted.map(drop).doing(BEGIN).map_err(|error: StoreError| error.into())
}
