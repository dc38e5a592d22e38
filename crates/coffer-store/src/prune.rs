//! Deletes old rows, a bounded number at a time.

use coffer_core::{Millis, ProjectId};
use sqlx::{AnyConnection, Row};

use crate::error::Doing;
use crate::{Operator, ProjectScope, Store, StoreError};

const PRUNE: &str = "remove old records";

/// Rows older than these times are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cutoffs {
    /// Sandboxes, runs and competitions that have ended.
    pub records_ms: Millis,
    pub events_ms: Millis,
    pub audit_ms: Millis,
}

/// Numbers of deleted rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    pub sandboxes: u64,
    pub events: u64,
    pub audit: u64,
    pub runs: u64,
    pub competitions: u64,
    /// Patches of entries whose competition stays.
    pub patches: u64,
    /// Records of calls of models. What they cost stays in the usage.
    pub model_calls: u64,
}

impl Pruned {
    /// Whether there may be more of any kind.
    pub const fn reached(&self, batch: u32) -> bool {
        let batch = batch as u64;
        self.sandboxes >= batch
            || self.events >= batch
            || self.audit >= batch
            || self.runs >= batch
            || self.competitions >= batch
            || self.patches >= batch
            || self.model_calls >= batch
    }
}

impl Store {
    /// Deletes up to `batch` rows of each kind of a project; without one, of rows that belong to no project.
    ///
    /// Events are deleted from the oldest on, so that the rest has no gaps.
    pub async fn prune(
        &self,
        _: &Operator,
        project: Option<ProjectId>,
        cutoffs: Cutoffs,
        batch: u32,
    ) -> Result<Pruned, StoreError> {
        let prune = self.database().write(PRUNE, move |connection| {
            Box::pin(async move {
                let audit = prune_audit(connection, project, cutoffs.audit_ms, batch).await?;
                let Some(project) = project else { return Ok(Pruned { audit, ..Pruned::default() }) };
                let events = prune_events(connection, project, cutoffs.events_ms, batch).await?;
                let ended = Ended { project, before_ms: cutoffs.records_ms, batch };
                let sandboxes = ended.remove(connection, SANDBOXES).await?;
                let runs = ended.remove(connection, RUNS).await?;
                let competitions = ended.remove(connection, COMPETITIONS).await?;
                let patches = ended.remove(connection, PATCHES).await?;
                let model_calls = ended.remove(connection, MODEL_CALLS).await?;
                Ok(Pruned { sandboxes, events, audit, runs, competitions, patches, model_calls })
            })
        });
        prune.await
    }

    /// The newest event of the project that was deleted because of its age; 0 if none was.
    pub async fn pruned_event(&self, scope: &ProjectScope) -> Result<i64, StoreError> {
        let row = sqlx::query("SELECT pruned_event FROM projects WHERE id = $1")
            .bind(scope.project())
            .fetch_optional(self.database().readers())
            .await
            .doing(PRUNE)?;
        row.map_or(Ok(0), |row| row.try_get("pruned_event").doing(PRUNE))
    }
}

/// A sandbox stays as long as its output.
const SANDBOXES: &str = "
    DELETE FROM sandboxes WHERE id IN (
        SELECT s.id FROM sandboxes AS s
        WHERE s.project_id = $1 AND s.ended_ms < $2
            AND NOT EXISTS (SELECT 1 FROM output_segments AS o WHERE o.sandbox_id = s.id AND o.state <> 'pruned')
        ORDER BY s.ended_ms LIMIT $3)";

/// With their steps and signals. The results of attempts stay with the task; a stuck run waits for a person.
const RUNS: &str = "
    DELETE FROM runs WHERE id IN (
        SELECT id FROM runs
        WHERE project_id = $1 AND ended_ms < $2 AND state IN ('done', 'failed', 'cancelled')
        ORDER BY ended_ms LIMIT $3)";

/// With their entries. Attempts at tasks are deleted with their tasks.
const COMPETITIONS: &str = "
    DELETE FROM competitions WHERE id IN (
        SELECT id FROM competitions
        WHERE project_id = $1 AND task_id IS NULL AND ended_ms < $2 ORDER BY ended_ms LIMIT $3)";

/// Of the competitions that stay.
const PATCHES: &str = "
    UPDATE competition_entries SET patch = NULL WHERE (competition_id, number) IN (
        SELECT e.competition_id, e.number FROM competition_entries AS e
            JOIN competitions AS c ON c.id = e.competition_id
        WHERE c.project_id = $1 AND c.ended_ms < $2 AND e.patch IS NOT NULL
        ORDER BY c.ended_ms LIMIT $3)";

const MODEL_CALLS: &str = "
    DELETE FROM model_calls WHERE id IN (
        SELECT id FROM model_calls WHERE project_id = $1 AND ended_ms < $2 ORDER BY ended_ms LIMIT $3)";

/// A batch of one project's rows that ended before a time.
struct Ended {
    project: ProjectId,
    before_ms: Millis,
    batch: u32,
}

impl Ended {
    async fn remove(&self, connection: &mut AnyConnection, how: &'static str) -> Result<u64, StoreError> {
        let removed = sqlx::query(how)
            .bind(self.project)
            .bind(self.before_ms)
            .bind(i64::from(self.batch))
            .execute(connection)
            .await
            .doing(PRUNE)?;
        Ok(removed.rows_affected())
    }
}

async fn prune_events(
    connection: &mut AnyConnection,
    project: ProjectId,
    before_ms: Millis,
    batch: u32,
) -> Result<u64, StoreError> {
    // Up to the first that is young enough: times may go back with the clock, sequences do not.
    let oldest =
        sqlx::query("SELECT sequence, at_ms FROM events WHERE project_id = $1 ORDER BY sequence LIMIT $2")
            .bind(project)
            .bind(i64::from(batch))
            .fetch_all(&mut *connection)
            .await
            .doing(PRUNE)?;
    let mut last = None;
    for row in &oldest {
        if row.try_get::<Millis, _>("at_ms").doing(PRUNE)? >= before_ms {
            break;
        }
        last = Some(row.try_get::<i64, _>("sequence").doing(PRUNE)?);
    }
    let Some(last) = last else { return Ok(0) };
    let removed = sqlx::query("DELETE FROM events WHERE project_id = $1 AND sequence <= $2")
        .bind(project)
        .bind(last)
        .execute(&mut *connection)
        .await
        .doing(PRUNE)?;
    sqlx::query("UPDATE projects SET pruned_event = $1 WHERE id = $2 AND pruned_event < $1")
        .bind(last)
        .bind(project)
        .execute(connection)
        .await
        .doing(PRUNE)?;
    Ok(removed.rows_affected())
}

async fn prune_audit(
    connection: &mut AnyConnection,
    project: Option<ProjectId>,
    before_ms: Millis,
    batch: u32,
) -> Result<u64, StoreError> {
    // Ids sort by time.
    let whose = match project {
        Some(_) => "project_id = $1",
        None => "project_id IS NULL AND $1 IS NULL",
    };
    let delete = format!(
        "DELETE FROM audit WHERE at_ms < $2 AND id IN (
             SELECT id FROM audit WHERE {whose} ORDER BY id LIMIT $3)"
    );
    let removed = sqlx::query(sqlx::AssertSqlSafe(delete))
        .bind(project)
        .bind(before_ms)
        .bind(i64::from(batch))
        .execute(connection)
        .await
        .doing(PRUNE)?;
    Ok(removed.rows_affected())
}
