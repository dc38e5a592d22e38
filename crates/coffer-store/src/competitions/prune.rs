//! Removing competitions that are long over.

use coffer_core::{Millis, ProjectId};
use sqlx::AnyConnection;

use crate::StoreError;
use crate::error::Doing;

const PRUNE: &str = "remove old competitions";

/// Removes up to `batch` competitions that ended before `before_ms`, with their entries. Those that are attempts at tasks
/// go with their tasks.
pub(crate) async fn prune(
    connection: &mut AnyConnection,
    project: ProjectId,
    before_ms: Millis,
    batch: u32,
) -> Result<u64, StoreError> {
    let removed = sqlx::query(
        "DELETE FROM competitions WHERE id IN (
             SELECT id FROM competitions
             WHERE project_id = $1 AND task_id IS NULL AND ended_ms < $2 ORDER BY ended_ms LIMIT $3)",
    )
    .bind(project.to_string())
    .bind(before_ms)
    .bind(i64::from(batch))
    .execute(connection)
    .await
    .doing(PRUNE)?;
    Ok(removed.rows_affected())
}

/// Removes up to `batch` patches of those that stay, likewise.
pub(crate) async fn prune_patches(
    connection: &mut AnyConnection,
    project: ProjectId,
    before_ms: Millis,
    batch: u32,
) -> Result<u64, StoreError> {
    let removed = sqlx::query(
        "UPDATE competition_entries SET patch = NULL WHERE (competition_id, number) IN (
             SELECT e.competition_id, e.number FROM competition_entries AS e
                 JOIN competitions AS c ON c.id = e.competition_id
             WHERE c.project_id = $1 AND c.ended_ms < $2 AND e.patch IS NOT NULL
             ORDER BY c.ended_ms LIMIT $3)",
    )
    .bind(project.to_string())
    .bind(before_ms)
    .bind(i64::from(batch))
    .execute(connection)
    .await
    .doing(PRUNE)?;
    Ok(removed.rows_affected())
}
