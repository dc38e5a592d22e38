//! Writes of a competition's run. Each write checks the run's fence: a server that lost the run writes
//! nothing.

use coffer_core::agent::AgentProgress;
use coffer_core::compete::{
    CompetitionCause, CompetitionOutcome, CompetitionState, DiffSize, EntryState, Placing,
};
use coffer_core::event::{CompetitionEntry, CompetitionMoved, CompetitionRanked, CompetitionWinner, Event};
use coffer_core::life::Life as _;
use coffer_core::{
    Attention, CompetitionId, ExecutionId, Millis, ProjectId, RunId, SandboxId, StepCode, TaskId,
};
use sqlx::{AnyConnection, Row};

use super::{CHANGE, CheckNote, EntryPatch, state};
use crate::columns::{bigint, id, json as to_json, optional_id, storable};
use crate::error::Doing;
use crate::{JournalError, RunFailure, RunState, Store, StoreError, attention, events, now_ms, runs};

const LONGEST_SUMMARY: usize = 16 * 1024;

/// Progress of a competition. `None` leaves a field as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompetitionNote {
    pub state: Option<CompetitionState>,
    pub sandbox: Option<SandboxId>,
    pub base_commit: Option<String>,
    pub decide_by_ms: Option<Millis>,
    /// The winner, and who or what decided.
    pub winner: Option<(i64, String)>,
    pub pull_url: Option<String>,
}

/// Progress of an entry. `None` leaves a field as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryNote {
    pub state: Option<EntryState>,
    pub sandbox: Option<SandboxId>,
    pub execution: Option<ExecutionId>,
    pub exit_code: Option<i64>,
    pub check: Option<CheckNote>,
    pub diff: Option<DiffSize>,
    pub patch: Option<EntryPatch>,
    pub duration_ms: Option<i64>,
    pub cost_nanos: Option<i64>,
    pub agent_cost_nanos: Option<i64>,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    pub branch: Option<String>,
    pub commit: Option<String>,
    pub summary: Option<String>,
    pub error: Option<RunFailure>,
    /// The agent's current action: emitted as an event, but not stored.
    pub doing: Option<AgentProgress>,
}

/// The competition of a run whose row is locked.
struct Held {
    competition: CompetitionId,
    project: ProjectId,
    state: CompetitionState,
    winner: Option<i64>,
    task: Option<TaskId>,
    run: RunId,
    now: Millis,
}

impl Store {
    /// Records the progress of a competition, if `fence` is still its run's.
    pub async fn note_competition(
        &self,
        run: RunId,
        fence: i64,
        note: CompetitionNote,
    ) -> Result<(), JournalError> {
        let write = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let held = hold(connection, run, fence).await?;
                put(connection, &held, note).await
            })
        });
        write.await
    }

    /// Records the progress of an entry, if `fence` is still its run's.
    pub async fn note_entry(
        &self,
        run: RunId,
        fence: i64,
        number: i64,
        note: EntryNote,
    ) -> Result<(), JournalError> {
        let write = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let held = hold(connection, run, fence).await?;
                put_entry(connection, &held, number, note).await
            })
        });
        write.await
    }

    /// Records the ranking with its reasons, if `fence` is still its run's.
    pub async fn rank_entries(
        &self,
        run: RunId,
        fence: i64,
        placings: Vec<Placing>,
    ) -> Result<(), JournalError> {
        let write = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let held = hold(connection, run, fence).await?;
                for placing in &placings {
                    sqlx::query(
                        "UPDATE competition_entries SET rank = $1, reasons = $2
                         WHERE competition_id = $3 AND number = $4",
                    )
                    .bind(placing.rank)
                    .bind(to_json(&placing.reasons))
                    .bind(held.competition)
                    .bind(placing.number)
                    .execute(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                }
                let ranked = CompetitionRanked { competition: held.competition, places: placings };
                tell(connection, &held, Event::CompetitionRanked(ranked)).await
            })
        });
        write.await
    }

    /// Closes picking and returns the winner, if one was picked in time.
    pub async fn settle_competition(&self, run: RunId, fence: i64) -> Result<Option<i64>, JournalError> {
        let write = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let held = hold(connection, run, fence).await?;
                if held.winner.is_none() && held.state == CompetitionState::Waiting {
                    let note =
                        CompetitionNote { state: Some(CompetitionState::Judging), ..Default::default() };
                    put(connection, &held, note).await?;
                }
                Ok(held.winner)
            })
        });
        write.await
    }
}

async fn hold(connection: &mut AnyConnection, run: RunId, fence: i64) -> Result<Held, JournalError> {
    runs::hold(connection, run, fence).await?;
    let row = sqlx::query(
        "UPDATE competitions SET run_id = run_id WHERE run_id = $1 RETURNING id, project_id, state, winner, task_id",
    )
    .bind(run)
    .fetch_optional(connection)
    .await
    .doing(CHANGE)?;
    let row = row.ok_or_else(|| super::unreadable("its run has no competition"))?;
    Ok(Held {
        competition: id(&row, "id")?,
        project: id(&row, "project_id")?,
        state: state(&row)?,
        winner: row.try_get("winner").doing(CHANGE)?,
        task: optional_id(&row, "task_id")?,
        run,
        now: now_ms(),
    })
}

async fn put(
    connection: &mut AnyConnection,
    held: &Held,
    mut note: CompetitionNote,
) -> Result<(), JournalError> {
    let asks =
        |state: &CompetitionState| matches!(state, CompetitionState::Judging | CompetitionState::Waiting);
    // A repeated step must not ask again after a person has picked.
    note.state = note.state.filter(|state| held.winner.is_none() || !asks(state));
    let to = match note.state.and_then(CompetitionCause::of) {
        Some(cause) => Some(held.state.after(cause).map_err(StoreError::Refused)?),
        None => None,
    };
    let (winner, picked_by) = note.winner.clone().unzip();
    sqlx::query(
        "UPDATE competitions SET state = COALESCE($1, state), sandbox_id = COALESCE($2, sandbox_id),
             base_commit = COALESCE($3, base_commit), decide_by_ms = COALESCE($4, decide_by_ms),
             winner = COALESCE($5, winner), picked_by = COALESCE($6, picked_by), pull_url = COALESCE($7, pull_url),
             updated_ms = $8
         WHERE id = $9",
    )
    .bind(to.map(|state| state.as_str()))
    .bind(note.sandbox)
    .bind(note.base_commit)
    .bind(note.decide_by_ms)
    .bind(winner)
    .bind(picked_by.clone())
    .bind(note.pull_url.as_deref().map(storable))
    .bind(held.now)
    .bind(held.competition)
    .execute(&mut *connection)
    .await
    .doing(CHANGE)?;
    if let Some(entry) = winner.filter(|_| held.winner != winner) {
        let won = CompetitionWinner { competition: held.competition, entry, by: picked_by };
        tell(connection, held, Event::CompetitionWinner(won)).await?;
    }
    if let Some(to) = to.filter(|to| *to != held.state) {
        let (competition, from) = (held.competition, held.state);
        let moved = CompetitionMoved { competition, from, to, pull_url: note.pull_url, error: None };
        tell(connection, held, Event::CompetitionState(moved)).await?;
        if let Some(task) = held.task {
            match (from, to) {
                (_, CompetitionState::Waiting) => {
                    let message = "the competition has ended: pick the entry that wins".to_string();
                    let asked = Attention { code: StepCode::PickWanted.into(), message, step: None };
                    attention::wanted(connection, held.project, task, held.run, asked, held.now).await?;
                }
                (CompetitionState::Waiting, _) => {
                    attention::given(connection, held.project, task, StepCode::PickWanted, held.now).await?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

async fn put_entry(
    connection: &mut AnyConnection,
    held: &Held,
    number: i64,
    note: EntryNote,
) -> Result<(), JournalError> {
    let event = Event::CompetitionEntry(CompetitionEntry {
        competition: held.competition,
        number,
        state: note.state,
        sandbox: note.sandbox,
        execution: note.execution,
        exit_code: note.exit_code,
        passed: note.check.map(|check| check.passed),
        diff: note.diff,
        duration_ms: note.duration_ms,
        commit: note.commit.clone(),
        error: note.error.clone(),
        agent_cost_nanos: note.agent_cost_nanos,
        input_tokens: note.input_tokens,
        output_tokens: note.output_tokens,
        doing: note.doing,
    });
    let summary = note.summary.map(|text| storable(&text[..text.floor_char_boundary(LONGEST_SUMMARY)]));
    let begins = note.state == Some(EntryState::Working);
    let ends = note.state.is_some_and(EntryState::is_over);
    let (patch, cut) = note.patch.map(|patch| (storable(&patch.text), i64::from(patch.is_cut))).unzip();
    let entry = sqlx::query(
        "UPDATE competition_entries SET state = COALESCE($1, state), sandbox_id = COALESCE($2, sandbox_id),
             execution_id = COALESCE($3, execution_id), exit_code = COALESCE($4, exit_code),
             check_passed = COALESCE($5, check_passed), check_exit_code = COALESCE($6, check_exit_code),
             check_execution_id = COALESCE($7, check_execution_id), diff_files = COALESCE($8, diff_files),
             diff_added = COALESCE($9, diff_added), diff_removed = COALESCE($10, diff_removed),
             duration_ms = COALESCE($11, duration_ms), cost_nanos = COALESCE($12, cost_nanos),
             agent_cost_nanos = COALESCE($13, agent_cost_nanos), input_tokens = COALESCE($14, input_tokens),
             output_tokens = COALESCE($15, output_tokens), branch = COALESCE($16, branch),
             commit_id = COALESCE($17, commit_id), summary = COALESCE($18, summary), error = COALESCE($19, error),
             patch = COALESCE($20, patch), patch_cut = COALESCE($21, patch_cut),
             started_ms = COALESCE(started_ms, $22), ended_ms = COALESCE($23, ended_ms)
         WHERE competition_id = $24 AND number = $25 RETURNING project_id, sandbox_id",
    )
    .bind(note.state.map(|state| state.as_str()))
    .bind(note.sandbox)
    .bind(note.execution)
    .bind(note.exit_code)
    .bind(note.check.map(|check| i64::from(check.passed)))
    .bind(note.check.and_then(|check| check.exit_code))
    .bind(note.check.and_then(|check| check.execution))
    .bind(note.diff.map(|diff| bigint(diff.files)))
    .bind(note.diff.map(|diff| bigint(diff.added)))
    .bind(note.diff.map(|diff| bigint(diff.removed)))
    .bind(note.duration_ms)
    .bind(note.cost_nanos)
    .bind(note.agent_cost_nanos)
    .bind(note.input_tokens)
    .bind(note.output_tokens)
    .bind(note.branch)
    .bind(note.commit)
    .bind(summary)
    .bind(note.error.as_ref().map(to_json))
    .bind(patch)
    .bind(cut)
    .bind(begins.then_some(held.now))
    .bind(ends.then_some(held.now))
    .bind(held.competition)
    .bind(number)
    .fetch_optional(&mut *connection)
    .await
    .doing(CHANGE)?;
    if note.agent_cost_nanos.is_some()
        && let Some(entry) = entry
        && let Some(sandbox) = crate::columns::optional_id(&entry, "sandbox_id")?
    {
        let project = crate::columns::id(&entry, "project_id")?;
        crate::spending::count_reported(connection, project, sandbox).await?;
    }
    sqlx::query("UPDATE competitions SET updated_ms = $1 WHERE id = $2")
        .bind(held.now)
        .bind(held.competition)
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
    tell(connection, held, event).await
}

async fn tell(connection: &mut AnyConnection, held: &Held, event: Event) -> Result<(), JournalError> {
    events::record(connection, held.project, held.competition, event, held.now).await?;
    Ok(())
}

/// The competition of a run and its state, with its row held until the transaction ends.
async fn of_run(
    connection: &mut AnyConnection,
    run: RunId,
) -> Result<Option<(CompetitionId, CompetitionState)>, StoreError> {
    let row = sqlx::query("UPDATE competitions SET run_id = run_id WHERE run_id = $1 RETURNING id, state")
        .bind(run.to_string())
        .fetch_optional(connection)
        .await
        .doing(CHANGE)?;
    row.map(|row| Ok((id(&row, "id")?, state(&row)?))).transpose()
}

/// Part of the transaction in which a run begins.
pub(crate) async fn run_started(
    connection: &mut AnyConnection,
    project: ProjectId,
    run: RunId,
    now: Millis,
) -> Result<(), StoreError> {
    let Some((competition, from)) = of_run(connection, run).await? else { return Ok(()) };
    let Ok(to) = from.after(CompetitionCause::Started) else { return Ok(()) };
    sqlx::query("UPDATE competitions SET state = $1, updated_ms = $2 WHERE id = $3")
        .bind(to.as_str().to_string())
        .bind(now)
        .bind(competition)
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
    let moved = CompetitionMoved { competition, from, to, pull_url: None, error: None };
    events::record(connection, project, competition, Event::CompetitionState(moved), now).await
}

/// Part of the transaction in which a run ends: updates its competition, if it has one.
pub(crate) async fn run_ended(
    connection: &mut AnyConnection,
    project: ProjectId,
    run: RunId,
    ended: RunState,
    failure: Option<&RunFailure>,
    now: Millis,
) -> Result<(), StoreError> {
    let outcome = match ended {
        RunState::Done => CompetitionOutcome::Decided,
        RunState::Cancelled => CompetitionOutcome::Cancelled,
        _ => CompetitionOutcome::Failed,
    };
    let Some((competition, from)) = of_run(connection, run).await? else { return Ok(()) };
    // Refused if the end is written a second time, because the answer to the first was lost.
    let Ok(to) = from.after(CompetitionCause::Ended(outcome)) else { return Ok(()) };
    sqlx::query(
        "UPDATE competitions SET state = $1, error = $2, ended_ms = $3, updated_ms = $3, decide_by_ms = NULL
         WHERE id = $4",
    )
    .bind(to.as_str())
    .bind(failure.map(to_json))
    .bind(now)
    .bind(competition)
    .execute(&mut *connection)
    .await
    .doing(CHANGE)?;
    sqlx::query(
        "UPDATE competition_entries SET state = $1, ended_ms = $2
         WHERE competition_id = $3 AND state NOT IN ('done', 'failed', 'cancelled')",
    )
    .bind(EntryState::Cancelled.as_str().to_string())
    .bind(now)
    .bind(competition)
    .execute(&mut *connection)
    .await
    .doing(CHANGE)?;
    let moved = CompetitionMoved { competition, from, to, pull_url: None, error: failure.cloned() };
    events::record(connection, project, competition, Event::CompetitionState(moved), now).await
}
