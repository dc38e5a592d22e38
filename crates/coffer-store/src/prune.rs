//! Removing what is old, a bounded number of rows at a time.

use coffer_core::{Millis, ProjectId};
use sqlx::{AnyConnection, Row};

use crate::error::Doing;
use crate::{Operator, ProjectScope, Store, StoreError, competitions, runs};

const PRUNE: &str = "remove old records";

/// What is older than these times is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cutoffs {
    /// Sandboxes, runs and competitions that have ended.
    pub records_ms: Millis,
    pub events_ms: Millis,
    pub audit_ms: Millis,
}

/// How many rows were removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    pub sandboxes: u64,
    pub events: u64,
    pub audit: u64,
    pub runs: u64,
    pub competitions: u64,
    /// What entries of competitions changed, where the competition stays.
    pub patches: u64,
}

impl Pruned {
    /// Whether there may be more of any of them.
    pub const fn reached(&self, batch: u32) -> bool {
        let batch = batch as u64;
        self.sandboxes >= batch
            || self.events >= batch
            || self.audit >= batch
            || self.runs >= batch
            || self.competitions >= batch
            || self.patches >= batch
    }
}

impl Store {
    /// Removes up to `batch` of each kind of record of a project; without one, of what is no project's.
    ///
    /// Events go from the oldest on, so that those which stay have no gaps. A sandbox stays as long as
    /// output of it is kept.
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
                let sandboxes = prune_sandboxes(connection, project, cutoffs.records_ms, batch).await?;
                let runs = runs::queue::prune(connection, project, cutoffs.records_ms, batch).await?;
                let competitions =
                    competitions::prune(connection, project, cutoffs.records_ms, batch).await?;
                let patches =
                    competitions::prune_patches(connection, project, cutoffs.records_ms, batch).await?;
                Ok(Pruned { sandboxes, events, audit, runs, competitions, patches })
            })
        });
        prune.await
    }

    /// The newest event of the project that was removed for its age; 0 where none was.
    pub async fn pruned_event(&self, scope: &ProjectScope) -> Result<i64, StoreError> {
        let row = sqlx::query("SELECT pruned_event FROM projects WHERE id = $1")
            .bind(scope.project().to_string())
            .fetch_optional(self.database().readers())
            .await
            .doing(PRUNE)?;
        row.map_or(Ok(0), |row| row.try_get("pruned_event").doing(PRUNE))
    }
}

async fn prune_sandboxes(
    connection: &mut AnyConnection,
    project: ProjectId,
    before_ms: Millis,
    batch: u32,
) -> Result<u64, StoreError> {
    let removed = sqlx::query(
        "DELETE FROM sandboxes WHERE id IN (
             SELECT s.id FROM sandboxes AS s
             WHERE s.project_id = $1 AND s.ended_ms < $2
                 AND NOT EXISTS (SELECT 1 FROM output_segments AS o WHERE o.sandbox_id = s.id AND o.state <> 'pruned')
             ORDER BY s.ended_ms LIMIT $3)",
    )
    .bind(project.to_string())
    .bind(before_ms)
    .bind(i64::from(batch))
    .execute(connection)
    .await
    .doing(PRUNE)?;
    Ok(removed.rows_affected())
}

async fn prune_events(
    connection: &mut AnyConnection,
    project: ProjectId,
    before_ms: Millis,
    batch: u32,
) -> Result<u64, StoreError> {
    // Up to the first that is young enough: times may go back with the clock, numbers do not.
    let oldest =
        sqlx::query("SELECT sequence, at_ms FROM events WHERE project_id = $1 ORDER BY sequence LIMIT $2")
            .bind(project.to_string())
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
        .bind(project.to_string())
        .bind(last)
        .execute(&mut *connection)
        .await
        .doing(PRUNE)?;
    sqlx::query("UPDATE projects SET pruned_event = $1 WHERE id = $2 AND pruned_event < $1")
        .bind(last)
        .bind(project.to_string())
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
        .bind(project.map(|project| project.to_string()))
        .bind(before_ms)
        .bind(i64::from(batch))
        .execute(connection)
        .await
        .doing(PRUNE)?;
    Ok(removed.rows_affected())
}
