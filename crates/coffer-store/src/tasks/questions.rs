//! An attempt that waits for a person: the question, its one answer, and the wish to interrupt a turn.
//!
//! The answer is in the question's row; the signal to the run only wakes it. So an answer and the end of the time to
//! give one cannot both win, and a repeated step asks nothing twice.

use coffer_core::event::{Event, TaskAnswered, TaskInterrupted};
use coffer_core::{Answer, Attention, Millis, ProjectId, Question, RunId, TaskId};
use serde_json::json;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use super::change::hold;
use super::{CHANGE, READ, TaskError};
use crate::columns::{id, name, number, optional_text, storable, text};
use crate::error::Doing;
use crate::runs::{self, RunError};
use crate::{JournalError, ProjectScope, RunFailure, Store, StoreError, attention, events, now_ms};

const COLUMNS: &str = "run_id, number, project_id, task_id, kind, message, spent_nanos, budget_nanos, asked_ms, until_ms, \
                       answer, new_budget_nanos, answered_by, answered_ms";
/// The kind of runs whose turns can be interrupted.
const KIND: &str = "task";

/// The signal that wakes a run that waits for the answer to this question.
pub fn answer_signal(number: i64) -> String {
    format!("answer-{number}")
}

/// A question to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewQuestion {
    /// The turn after which it is asked; there is one question for each.
    pub number: i64,
    pub kind: Question,
    pub message: String,
    pub spent_nanos: Option<i64>,
    pub budget_nanos: Option<i64>,
    /// Until when an answer counts.
    pub until_ms: Millis,
}

/// A question on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionRow {
    pub run: RunId,
    pub project: ProjectId,
    pub task: TaskId,
    pub number: i64,
    pub kind: Question,
    pub message: String,
    pub spent_nanos: Option<i64>,
    pub budget_nanos: Option<i64>,
    pub asked_ms: Millis,
    pub until_ms: Millis,
    /// `None` while it is open.
    pub answer: Option<Answer>,
    pub new_budget_nanos: Option<i64>,
    pub answered_by: Option<String>,
    pub answered_ms: Option<Millis>,
}

/// A person's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenAnswer {
    pub answer: Answer,
    /// The new budget, with [`Answer::Raise`].
    pub budget_nanos: Option<i64>,
}

impl Store {
    /// Asks a person, once for each number, and gives the task attention. Returns the question as it was asked.
    pub async fn ask_person(
        &self,
        run: RunId,
        fence: i64,
        new: NewQuestion,
    ) -> Result<QuestionRow, JournalError> {
        let ask = self.database().write("ask a person", move |connection| {
            Box::pin(async move {
                runs::hold(connection, run, fence).await?;
                if let Some(known) = question(connection, run, new.number).await? {
                    return Ok(known);
                }
                let now = now_ms();
                let sql = format!(
                    "INSERT INTO task_questions (run_id, number, project_id, task_id, kind, message, spent_nanos,
                         budget_nanos, asked_ms, until_ms)
                     SELECT run_id, $2, project_id, task_id, $3, $4, $5, $6, $7, $8
                     FROM task_attempts WHERE run_id = $1 RETURNING {COLUMNS}"
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(run)
                    .bind(new.number)
                    .bind(new.kind.as_str())
                    .bind(RunFailure::storable(&new.message))
                    .bind(new.spent_nanos)
                    .bind(new.budget_nanos)
                    .bind(now)
                    .bind(new.until_ms)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let row = row.ok_or_else(|| super::unreadable("its run has no attempt"))?;
                let asked = read(&row)?;
                let wanted =
                    Attention { code: asked.kind.attention().into(), message: asked.message.clone(), step: None };
                attention::wanted(connection, asked.project, asked.task, run, wanted, now).await?;
                Ok(asked)
            })
        });
        ask.await
    }

    /// The question that the newest attempt at a task waits for, if it does.
    pub async fn open_question(
        &self,
        scope: &ProjectScope,
        task: TaskId,
    ) -> Result<Option<QuestionRow>, StoreError> {
        let sql = open_sql();
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(task)
            .bind(scope.project())
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.as_ref().map(read).transpose()
    }

    /// Answers the open question of a task, and wakes its run.
    pub async fn answer_question(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        given: GivenAnswer,
        actor: &str,
    ) -> Result<QuestionRow, TaskError> {
        let (scope, actor) = (*scope, actor.to_string());
        let answer = self.database().write("answer a question", move |connection| {
            Box::pin(async move { answer(connection, &scope, task, given, &actor).await })
        });
        answer.await
    }

    /// The answer to a question of a run; if there is none, nobody can answer it any more.
    pub async fn settle_question(
        &self,
        run: RunId,
        fence: i64,
        number: i64,
    ) -> Result<QuestionRow, JournalError> {
        let settle = self.database().write("settle a question", move |connection| {
            Box::pin(async move {
                runs::hold(connection, run, fence).await?;
                let known = question(connection, run, number).await?;
                let known = known.ok_or_else(|| super::unreadable("it was not asked"))?;
                if known.answer.is_some() {
                    return Ok(known);
                }
                Ok(close(connection, &known, Answer::Unanswered, None, None).await?)
            })
        });
        settle.await
    }

    /// Asks the agent of a task to stop its turn. Refused if none is working.
    pub async fn interrupt_task(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        actor: &str,
    ) -> Result<(), TaskError> {
        let (scope, actor) = (*scope, actor.to_string());
        let interrupt = self.database().write("interrupt an agent", move |connection| {
            Box::pin(async move {
                // The run first: a turn that ends now sees this, or this sees that it has ended.
                let row = sqlx::query(
                    "UPDATE runs SET rank = rank WHERE kind = $1 AND project_id = $2 AND state = 'running'
                         AND id = (SELECT run_id FROM tasks WHERE id = $3 AND project_id = $2)
                     RETURNING id",
                )
                .bind(KIND)
                .bind(scope.project())
                .bind(task)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                hold(connection, &scope, task).await?;
                let run: RunId = id(&row.ok_or(TaskError::NoTurn)?, "id")?;
                let turn = turn_under_way(connection, run).await?.ok_or(TaskError::NoTurn)?;
                let asked = sqlx::query(
                    "UPDATE task_attempts SET interrupt_turn = $1, interrupt_by = $2
                     WHERE run_id = $3 AND (interrupt_turn IS NULL OR interrupt_turn <> $1)",
                )
                .bind(turn)
                .bind(actor.clone())
                .bind(run)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                if asked.rows_affected() > 0 {
                    let event = Event::TaskInterrupted(TaskInterrupted { run, actor });
                    events::record(connection, scope.project(), task, event, now_ms()).await?;
                }
                Ok(())
            })
        });
        interrupt.await
    }

    /// Who asked to stop this turn of a run, if somebody did.
    pub async fn interrupted_by(&self, run: RunId, turn: i64) -> Result<Option<String>, StoreError> {
        let row =
            sqlx::query("SELECT interrupt_by FROM task_attempts WHERE run_id = $1 AND interrupt_turn = $2")
                .bind(run)
                .bind(turn)
                .fetch_optional(self.database().readers())
                .await
                .doing(READ)?;
        Ok(row.as_ref().map(|row| optional_text(row, "interrupt_by")).transpose()?.flatten())
    }
}

/// The number of the agent's turn that a run is at.
async fn turn_under_way(connection: &mut AnyConnection, run: RunId) -> Result<Option<i64>, StoreError> {
    let row = sqlx::query(
        "SELECT name FROM run_steps WHERE run_id = $1 AND state = 'under_way' AND name LIKE 'agent-%'
         ORDER BY position DESC LIMIT 1",
    )
    .bind(run)
    .fetch_optional(connection)
    .await
    .doing(READ)?;
    let name = row.as_ref().map(|row| text(row, "name")).transpose()?;
    Ok(name.and_then(|name| name.strip_prefix("agent-")?.parse().ok()))
}

/// The open question of the newest attempt at a task.
fn open_sql() -> String {
    format!(
        "SELECT {COLUMNS} FROM task_questions
         WHERE task_id = $1 AND project_id = $2 AND answer IS NULL
             AND run_id = (SELECT t.run_id FROM tasks AS t WHERE t.id = $1)
         ORDER BY number DESC LIMIT 1"
    )
}

async fn question(
    connection: &mut AnyConnection,
    run: RunId,
    number: i64,
) -> Result<Option<QuestionRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM task_questions WHERE run_id = $1 AND number = $2");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(run)
        .bind(number)
        .fetch_optional(connection)
        .await
        .doing(READ)?;
    row.as_ref().map(read).transpose()
}

/// Part of a transaction: what a person says to a task whose attempt was interrupted lets it go on.
pub(super) async fn go_on_if_interrupted(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    task: TaskId,
    actor: &str,
) -> Result<(), TaskError> {
    let given = GivenAnswer { answer: Answer::GoOn, budget_nanos: None };
    match answer(connection, scope, task, given, actor).await {
        Ok(_) | Err(TaskError::NotAsked | TaskError::WrongAnswer(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn answer(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    task: TaskId,
    given: GivenAnswer,
    actor: &str,
) -> Result<QuestionRow, TaskError> {
    let project = scope.project();
    // Lock the run's row before the task's: writers of a run use the same order.
    sqlx::query(
        "UPDATE runs SET rank = rank
         WHERE project_id = $2 AND id = (SELECT run_id FROM tasks WHERE id = $1 AND project_id = $2)",
    )
    .bind(task)
    .bind(project)
    .execute(&mut *connection)
    .await
    .doing(CHANGE)?;
    hold(connection, scope, task).await?;
    let row = sqlx::query(sqlx::AssertSqlSafe(open_sql()))
        .bind(task)
        .bind(project)
        .fetch_optional(&mut *connection)
        .await
        .doing(READ)?;
    let asked = read(&row.ok_or(TaskError::NotAsked)?)?;
    if !asked.kind.takes(given.answer) {
        return Err(TaskError::WrongAnswer(asked.kind));
    }
    let budget = given.budget_nanos.filter(|_| given.answer == Answer::Raise);
    if given.answer == Answer::Raise {
        let spent = asked.spent_nanos.unwrap_or(0).max(asked.budget_nanos.unwrap_or(0));
        if budget.is_none_or(|budget| budget <= spent) {
            return Err(TaskError::BudgetTooSmall(spent));
        }
        sqlx::query(
            "UPDATE tasks SET budget_nanos = $1, version = version + 1 WHERE id = $2 AND project_id = $3",
        )
        .bind(budget)
        .bind(task)
        .bind(project)
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
    }
    let answered = close(connection, &asked, given.answer, budget, Some(actor)).await?;
    let (signal, payload) = (answer_signal(asked.number), json!({ "answer": given.answer }));
    match runs::signal(connection, Some(project), asked.run, signal, payload).await {
        Ok(_) => Ok(answered),
        Err(RunError::Store(error)) => Err(error.into()),
        // The attempt has ended meanwhile.
        Err(_) => Err(TaskError::NotAsked),
    }
}

/// Part of the transaction in which a run ends: nobody needs to answer it any more.
pub(super) async fn withdraw(connection: &mut AnyConnection, run: RunId) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE task_questions SET answer = $1, answered_ms = $2 WHERE run_id = $3 AND answer IS NULL",
    )
    .bind(Answer::Unanswered.as_str())
    .bind(now_ms())
    .bind(run)
    .execute(connection)
    .await
    .doing(CHANGE)
    .map(drop)
}

/// Closes an open question.
async fn close(
    connection: &mut AnyConnection,
    asked: &QuestionRow,
    answer: Answer,
    budget: Option<i64>,
    actor: Option<&str>,
) -> Result<QuestionRow, StoreError> {
    let now = now_ms();
    let sql = format!(
        "UPDATE task_questions SET answer = $1, new_budget_nanos = $2, answered_by = $3, answered_ms = $4
         WHERE run_id = $5 AND number = $6 AND answer IS NULL RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(answer.as_str())
        .bind(budget)
        .bind(actor.map(storable))
        .bind(now)
        .bind(asked.run)
        .bind(asked.number)
        .fetch_optional(&mut *connection)
        .await
        .doing(CHANGE)?;
    let answered = read(&row.ok_or_else(|| super::unreadable("it was answered meanwhile"))?)?;
    let (project, task) = (asked.project, asked.task);
    attention::given(connection, project, task, asked.kind.attention(), now).await?;
    let event = Event::TaskAnswered(TaskAnswered {
        run: asked.run,
        question: asked.kind,
        answer,
        budget_nanos: budget,
        actor: actor.map(String::from),
    });
    events::record(connection, project, task, event, now).await?;
    Ok(answered)
}

fn read(row: &AnyRow) -> Result<QuestionRow, StoreError> {
    let optional = |column: &str| row.try_get::<Option<i64>, _>(column).doing(READ);
    let answer = optional_text(row, "answer")?;
    let answer =
        answer.map(|text| Answer::parse(&text).ok_or_else(|| super::unreadable(format!("answer `{text}`"))));
    Ok(QuestionRow {
        run: id(row, "run_id")?,
        project: id(row, "project_id")?,
        task: id(row, "task_id")?,
        number: number(row, "number")?,
        kind: name(row, "kind", Question::parse)?,
        message: text(row, "message")?,
        spent_nanos: optional("spent_nanos")?,
        budget_nanos: optional("budget_nanos")?,
        asked_ms: number(row, "asked_ms")?,
        until_ms: number(row, "until_ms")?,
        answer: answer.transpose()?,
        new_budget_nanos: optional("new_budget_nanos")?,
        answered_by: optional_text(row, "answered_by")?,
        answered_ms: optional("answered_ms")?,
    })
}
