//! People's decisions: picking the winner, and cancelling.

use coffer_core::compete::CompetitionCause;
use coffer_core::event::{CompetitionMoved, CompetitionWinner, Event};
use coffer_core::life::Life as _;
use coffer_core::{CompetitionId, ProjectId, RunId, StepCode};
use serde_json::json;
use sqlx::AnyConnection;

use super::{CHANGE, COLUMNS, CompetitionError, CompetitionRow, ENTRY_COLUMNS, read, read_entry};
use crate::columns::id;
use crate::error::Doing;
use crate::runs::{self, RunError};
use crate::{ProjectScope, Store, attention, events, now_ms};

/// The signal that wakes a run waiting for a pick. The winner is in the competition's row.
pub const COMPETITION_PICKED: &str = "winner";

impl Store {
    /// Picks the winner of a competition that waits for a pick. Picking the same one again changes nothing.
    pub async fn pick_winner(
        &self,
        scope: &ProjectScope,
        competition: CompetitionId,
        entry: i64,
        actor: &str,
    ) -> Result<CompetitionRow, CompetitionError> {
        let (project, actor) = (scope.project(), actor.to_string());
        let pick = self.database().write("pick a winner", move |connection| {
            Box::pin(async move { pick(connection, project, competition, entry, &actor).await })
        });
        pick.await
    }

    /// Cancels a competition; its run releases its resources.
    pub async fn cancel_competition(
        &self,
        scope: &ProjectScope,
        competition: CompetitionId,
        reason: &str,
    ) -> Result<CompetitionRow, CompetitionError> {
        let (project, reason) = (scope.project(), crate::RunFailure::storable(reason));
        let cancel = self.database().write("cancel a competition", move |connection| {
            Box::pin(async move {
                let run = run_of(connection, project, competition).await?;
                match runs::cancel(connection, Some(project), run, reason).await {
                    Ok(()) => {}
                    Err(RunError::Store(error)) => return Err(error.into()),
                    Err(_) => {
                        let row = held(connection, project, competition).await?;
                        return Err(CompetitionError::NotWaiting(row.state));
                    }
                }
                held(connection, project, competition).await
            })
        });
        cancel.await
    }
}

async fn run_of(
    connection: &mut AnyConnection,
    project: ProjectId,
    competition: CompetitionId,
) -> Result<RunId, CompetitionError> {
    let row = sqlx::query("SELECT run_id FROM competitions WHERE id = $1 AND project_id = $2")
        .bind(competition)
        .bind(project)
        .fetch_optional(connection)
        .await
        .doing(CHANGE)?;
    Ok(id(&row.ok_or(CompetitionError::NotFound)?, "run_id")?)
}

/// The competition, with its row locked until the transaction ends.
async fn held(
    connection: &mut AnyConnection,
    project: ProjectId,
    competition: CompetitionId,
) -> Result<CompetitionRow, CompetitionError> {
    let sql = format!(
        "UPDATE competitions SET updated_ms = updated_ms WHERE id = $1 AND project_id = $2 RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(competition)
        .bind(project)
        .fetch_optional(connection)
        .await
        .doing(CHANGE)?;
    Ok(read(&row.ok_or(CompetitionError::NotFound)?)?)
}

async fn pick(
    connection: &mut AnyConnection,
    project: ProjectId,
    competition: CompetitionId,
    entry: i64,
    actor: &str,
) -> Result<CompetitionRow, CompetitionError> {
    let run = run_of(connection, project, competition).await?;
    // Lock the run's row before the competition's: writers of a run use the same order.
    sqlx::query("UPDATE runs SET rank = rank WHERE id = $1")
        .bind(run)
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
    let before = held(connection, project, competition).await?;
    let sql = format!(
        "SELECT {ENTRY_COLUMNS} FROM competition_entries
         WHERE competition_id = $1 AND project_id = $2 AND number = $3"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(competition)
        .bind(project)
        .bind(entry)
        .fetch_optional(&mut *connection)
        .await
        .doing(CHANGE)?;
    let row = read_entry(&row.ok_or(CompetitionError::NoEntry(entry))?)?;
    if before.winner == Some(entry) {
        return Ok(before);
    }
    let from = before.state;
    let to = from.after(CompetitionCause::Picked).map_err(|_| CompetitionError::NotWaiting(from))?;
    if !row.can_win() {
        return Err(CompetitionError::CannotWin(entry));
    }
    let now = now_ms();
    let sql = format!(
        "UPDATE competitions SET state = $1, winner = $2, picked_by = $3, updated_ms = $4
         WHERE id = $5 AND state = $6 RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(to.as_str().to_string())
        .bind(entry)
        .bind(actor)
        .bind(now)
        .bind(competition)
        .bind(from.as_str())
        .fetch_one(&mut *connection)
        .await
        .doing(CHANGE)?;
    match runs::signal(connection, Some(project), run, COMPETITION_PICKED.into(), json!({ "entry": entry }))
        .await
    {
        Ok(_) => {}
        Err(RunError::Store(error)) => return Err(error.into()),
        Err(_) => return Err(CompetitionError::NotWaiting(from)),
    }
    if let Some(task) = before.task {
        attention::given(connection, project, task, StepCode::PickWanted, now).await?;
    }
    let winner = CompetitionWinner { competition, entry, by: Some(actor.to_string()) };
    events::record(connection, project, competition, Event::CompetitionWinner(winner), now).await?;
    let moved = CompetitionMoved { competition, from, to, pull_url: None, error: None };
    events::record(connection, project, competition, Event::CompetitionState(moved), now).await?;
    Ok(read(&row)?)
}
