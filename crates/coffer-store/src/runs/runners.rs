//! Runners, and the runs they execute.

use coffer_core::event::{Event, RunKind};
use coffer_core::{Millis, RunCause, RunId, RunState, RunnerId, StepState};
use sqlx::{AnyConnection, Row};

use super::journal::RunHold;
use super::{RunRow, StepRow, read};
use crate::columns::{id, moves, states};
use crate::database::Durability;
use crate::error::Doing;
use crate::{Operator, Store, StoreError, competitions, events, now_ms, tasks};

const TAKE: &str = "take runs";
const WATCH: &str = "watch runners";

/// How long a run waits after its runner died, in units: nothing at first, then longer each time, so that a
/// run that kills its servers leaves them time in between.
const PAUSES: &str = "CASE WHEN takes < 2 THEN 0 WHEN takes = 2 THEN 1 WHEN takes = 3 THEN 8 ELSE 60 END";

/// Whether another installation may take a run to end it. If its installation is only restarting, that one
/// must do it, because only it can release what the run created. `$1` is now.
const ABANDONED: &str = "(cancel_ms <= $1 - 600000
                 AND NOT EXISTS (SELECT 1 FROM runners WHERE runners.place = runs.installation))";

/// How many runs may hold a slot at once. A project can have its own number. A parked run holds none, and
/// continues at once when it is woken, even beyond these limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    pub in_all: u32,
    pub per_project: u32,
}

/// A run that the caller is to execute.
#[derive(Debug, Clone)]
pub struct TakenRun {
    pub hold: RunHold,
    pub run: RunRow,
    pub steps: Vec<StepRow>,
}

impl TakenRun {
    /// The step that was in progress when it was left.
    pub fn under_way(&self) -> Option<&StepRow> {
        self.steps.iter().find(|step| step.state == StepState::UnderWay)
    }
}

impl Store {
    /// Registers a runner, and removes earlier ones of its place. Runs that are left behind repeatedly wait a
    /// multiple of `unit_ms`.
    pub async fn enter_runner(
        &self,
        _: &Operator,
        place: &str,
        unit_ms: Millis,
    ) -> Result<RunnerId, StoreError> {
        let (runner, place) = (RunnerId::generate(), place.to_string());
        let enter = self.database().write(WATCH, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let before = sqlx::query("DELETE FROM runners WHERE place = $1 RETURNING id")
                    .bind(place.clone())
                    .fetch_all(&mut *connection)
                    .await
                    .doing(WATCH)?;
                for row in &before {
                    free(connection, id(row, "id")?, now, unit_ms).await?;
                }
                sqlx::query("INSERT INTO runners (id, place, beat, started_ms) VALUES ($1, $2, 0, $3)")
                    .bind(runner)
                    .bind(place)
                    .bind(now)
                    .execute(connection)
                    .await
                    .doing(WATCH)?;
                Ok(runner)
            })
        });
        enter.await
    }

    /// Raises the runner's heartbeat; returns false if it was removed.
    pub async fn beat(&self, _: &Operator, runner: RunnerId) -> Result<bool, StoreError> {
        // A heartbeat need not survive a crash of the host.
        let beat = self.database().write_to(Durability::Cached, WATCH, move |connection| {
            Box::pin(async move {
                let beaten = sqlx::query("UPDATE runners SET beat = beat + 1 WHERE id = $1")
                    .bind(runner)
                    .execute(connection)
                    .await
                    .doing(WATCH)?;
                Ok(beaten.rows_affected() > 0)
            })
        });
        beat.await
    }

    /// All runners and their heartbeats.
    pub async fn runners(&self, _: &Operator) -> Result<Vec<(RunnerId, i64)>, StoreError> {
        let rows = sqlx::query("SELECT id, beat FROM runners")
            .fetch_all(self.database().readers())
            .await
            .doing(WATCH)?;
        rows.iter().map(|row| Ok((id(row, "id")?, row.try_get("beat").doing(WATCH)?))).collect()
    }

    /// Removes a runner whose heartbeat is still `beat`, and releases its runs. Returns whether it did.
    pub async fn bury_runner(
        &self,
        _: &Operator,
        runner: RunnerId,
        beat: i64,
        unit_ms: Millis,
    ) -> Result<bool, StoreError> {
        let bury = self.database().write(WATCH, move |connection| {
            Box::pin(async move {
                let gone = sqlx::query("DELETE FROM runners WHERE id = $1 AND beat = $2")
                    .bind(runner)
                    .bind(beat)
                    .execute(&mut *connection)
                    .await
                    .doing(WATCH)?;
                if gone.rows_affected() == 0 {
                    return Ok(false);
                }
                free(connection, runner, now_ms(), unit_ms).await?;
                Ok(true)
            })
        });
        bury.await
    }

    /// Removes a runner that stops in order: its runs can be taken at once, and this does not count against
    /// them.
    pub async fn leave_runner(&self, _: &Operator, runner: RunnerId) -> Result<(), StoreError> {
        let leave = self.database().write(WATCH, move |connection| {
            Box::pin(async move {
                sqlx::query("DELETE FROM runners WHERE id = $1")
                    .bind(runner)
                    .execute(&mut *connection)
                    .await
                    .doing(WATCH)?;
                sqlx::query(
                    "UPDATE runs SET owner = NULL, fence = fence + 1, wake_ms = $1,
                         takes = CASE WHEN takes > 0 THEN takes - 1 ELSE 0 END
                     WHERE owner = $2",
                )
                .bind(now_ms())
                .bind(runner)
                .execute(connection)
                .await
                .doing(WATCH)?;
                Ok(())
            })
        });
        leave.await
    }

    /// Takes up to `most` runs of these kinds: first started ones without a runner, then queued ones while
    /// there are slots.
    pub async fn take_runs(
        &self,
        operator: &Operator,
        runner: RunnerId,
        kinds: &[&'static str],
        slots: Slots,
        most: usize,
        now: Millis,
    ) -> Result<Vec<TakenRun>, StoreError> {
        if most == 0 || kinds.is_empty() || !self.any_to_take(now).await? {
            return Ok(Vec::new());
        }
        let (kinds, here) = (kinds.to_vec(), self.installation());
        let take = self.database().write(TAKE, move |connection| {
            Box::pin(async move {
                // Lock the gate: only its holder assigns slots.
                sqlx::query("UPDATE run_gate SET opened = opened + 1 WHERE id = 1")
                    .execute(&mut *connection)
                    .await
                    .doing(TAKE)?;
                // Lock the runner's row too: removing this runner waits, and then releases these runs as
                // well.
                let known = sqlx::query("UPDATE runners SET beat = beat WHERE id = $1")
                    .bind(runner)
                    .execute(&mut *connection)
                    .await
                    .doing(TAKE)?;
                if known.rows_affected() == 0 {
                    return Ok(Vec::new());
                }
                let mut taken = Vec::new();
                while taken.len() < most {
                    let next = match next_begun(connection, &kinds, &here, now).await? {
                        Some(begun) => Some(begun),
                        None => next_queued(connection, &kinds, &here, slots, now).await?,
                    };
                    let Some(next) = next else { break };
                    // `None` if it was cancelled in between; then it is not found again.
                    taken.extend(take(connection, runner, next).await?);
                }
                let mut runs = Vec::new();
                for (hold, run, first) in taken {
                    if first {
                        competitions::run_started(connection, run.project, run.id, now).await?;
                        tasks::run_started(connection, run.id, now).await?;
                        let event = Event::RunStarted(RunKind { run: run.id, kind: run.kind.clone() });
                        events::record(connection, run.project, &run.subject, event, now).await?;
                    }
                    runs.push((hold, run));
                }
                Ok(runs)
            })
        });
        let taken: Result<_, StoreError> = take.await;
        let mut runs = Vec::new();
        for (hold, run) in taken? {
            let steps = self.journal(operator, &hold).await?;
            runs.push(TakenRun { hold, run, steps });
        }
        Ok(runs)
    }

    /// The runs of a runner that are to be cancelled.
    pub async fn runs_to_cancel(&self, _: &Operator, runner: RunnerId) -> Result<Vec<RunId>, StoreError> {
        let rows = sqlx::query(
            "SELECT id FROM runs WHERE owner = $1 AND cancel_ms IS NOT NULL AND unwinding IS NULL",
        )
        .bind(runner)
        .fetch_all(self.database().readers())
        .await
        .doing(WATCH)?;
        rows.iter().map(|row| id(row, "id")).collect()
    }

    /// How many runs wait for a slot, and how many hold one.
    pub async fn run_load(&self, _: &Operator) -> Result<(i64, i64), StoreError> {
        let row = sqlx::query(
            "SELECT (SELECT COUNT(*) FROM runs WHERE state = 'queued') AS queued,
                 (SELECT COUNT(*) FROM runs WHERE state = 'running') AS held",
        )
        .fetch_one(self.database().readers())
        .await
        .doing(WATCH)?;
        Ok((row.try_get("queued").doing(WATCH)?, row.try_get("held").doing(WATCH)?))
    }

    /// Whether there is anything to take, before locking the gate.
    async fn any_to_take(&self, now: Millis) -> Result<bool, StoreError> {
        let sql = format!(
            "SELECT CASE WHEN EXISTS (SELECT 1 FROM runs WHERE state = 'queued'
                     AND ($2 IS NULL OR installation IS NULL OR installation = $2))
                 OR EXISTS (SELECT 1 FROM runs
                     WHERE owner IS NULL AND state IN ('running', 'parked') AND wake_ms <= $1
                     AND ($2 IS NULL OR installation IS NULL OR installation = $2 OR {ABANDONED}))
                 THEN 1 ELSE 0 END AS any_to_take"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(now)
            .bind(self.installation())
            .fetch_one(self.database().readers())
            .await
            .doing(TAKE)?;
        Ok(row.try_get::<i64, _>("any_to_take").doing(TAKE)? == 1)
    }
}

/// Releases the runs of a dead runner.
async fn free(
    connection: &mut AnyConnection,
    runner: RunnerId,
    now: Millis,
    unit_ms: Millis,
) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE runs SET owner = NULL, fence = fence + 1, wake_ms = $1 + $2 * {PAUSES} WHERE owner = $3"
    );
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now)
        .bind(unit_ms)
        .bind(runner)
        .execute(connection)
        .await
        .doing(WATCH)?;
    Ok(())
}

/// `$first, $first+1, …` for each kind.
fn places(kinds: &[&'static str], first: usize) -> String {
    let places: Vec<String> = (first..first + kinds.len()).map(|place| format!("${place}")).collect();
    places.join(", ")
}

/// A run belongs to its installation, whose host has its sandbox. If that installation is gone, any other may
/// take it to end it.
async fn next_begun(
    connection: &mut AnyConnection,
    kinds: &[&'static str],
    here: &Option<String>,
    now: Millis,
) -> Result<Option<RunId>, StoreError> {
    let sql = format!(
        "SELECT id FROM runs WHERE owner IS NULL AND state IN ('running', 'parked') AND wake_ms <= $1
             AND ($2 IS NULL OR installation IS NULL OR installation = $2 OR {ABANDONED})
             AND kind IN ({})
         ORDER BY wake_ms LIMIT 1",
        places(kinds, 3)
    );
    let mut query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(now).bind(here.clone());
    for kind in kinds {
        query = query.bind(kind);
    }
    let row = query.fetch_optional(connection).await.doing(TAKE)?;
    row.map(|row| id(&row, "id")).transpose()
}

async fn next_queued(
    connection: &mut AnyConnection,
    kinds: &[&'static str],
    here: &Option<String>,
    slots: Slots,
    now: Millis,
) -> Result<Option<RunId>, StoreError> {
    let sql = format!(
        "WITH held AS (
             SELECT project_id, COUNT(*) AS slots FROM runs WHERE state = 'running' GROUP BY project_id)
         SELECT r.id FROM runs AS r JOIN projects AS p ON p.id = r.project_id
             LEFT JOIN held ON held.project_id = r.project_id
         WHERE r.state = 'queued' AND r.wake_ms <= $1 AND COALESCE(held.slots, 0) < COALESCE(p.most_runs, $2)
             AND (SELECT COALESCE(SUM(slots), 0) FROM held) < $3
             AND NOT EXISTS (SELECT 1 FROM runs AS other
                 WHERE other.project_id = r.project_id AND other.subject = r.subject
                     AND other.state IN ('running', 'parked'))
             AND ($4 IS NULL OR r.installation IS NULL OR r.installation = $4)
             AND r.kind IN ({})
         ORDER BY COALESCE(held.slots, 0), r.rank, r.id LIMIT 1",
        places(kinds, 5)
    );
    let mut query = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now)
        .bind(i64::from(slots.per_project))
        .bind(i64::from(slots.in_all))
        .bind(here.clone());
    for kind in kinds {
        query = query.bind(kind);
    }
    let row = query.fetch_optional(connection).await.doing(TAKE)?;
    row.map(|row| id(&row, "id")).transpose()
}

/// Assigns a run to the runner; also returns whether that starts it.
async fn take(
    connection: &mut AnyConnection,
    runner: RunnerId,
    run: RunId,
) -> Result<Option<(RunHold, RunRow, bool)>, StoreError> {
    let sql = format!(
        "UPDATE runs SET owner = $1, fence = fence + 1, takes = takes + 1, state = {},
             started_ms = COALESCE(started_ms, $2)
         WHERE id = $3 AND state = $4 AND state IN ({}) AND owner IS NULL RETURNING fence, {}",
        moves::<RunState>(RunCause::Taken),
        states::<RunState>(RunCause::Taken),
        super::COLUMNS
    );
    let before = sqlx::query("SELECT state FROM runs WHERE id = $1")
        .bind(run)
        .fetch_one(&mut *connection)
        .await
        .doing(TAKE)?;
    let before: String = before.try_get("state").doing(TAKE)?;
    let first = before == RunState::Queued.as_str();
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(runner)
        .bind(now_ms())
        .bind(run)
        .bind(before)
        .fetch_optional(connection)
        .await
        .doing(TAKE)?;
    let Some(row) = row else { return Ok(None) };
    let run = read(&row)?;
    let fence = row.try_get("fence").doing(TAKE)?;
    let hold =
        RunHold { run: run.id, project: run.project, subject: run.subject.clone(), owner: runner, fence };
    Ok(Some((hold, run, first)))
}
