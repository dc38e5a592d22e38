//! The queue of runs, for display.

use coffer_core::{Millis, ProjectId, RunId, RunState};
use sqlx::Row;

use super::{READ, state};
use crate::columns::{id, number, text};
use crate::error::Doing;
use crate::{Operator, ProjectScope, Store, StoreError};

/// A run that waits for a slot, holds one, or is parked without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedRun {
    pub id: RunId,
    pub kind: String,
    pub subject: String,
    pub state: RunState,
    pub rank: i64,
    pub created_ms: Millis,
    pub started_ms: Option<Millis>,
}

/// The state of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueLoad {
    /// Runs that wait for a slot.
    pub queued: i64,
    /// Runs that hold a slot.
    pub held: i64,
    /// Runs that wait for a person or a time, and hold no slot.
    pub parked: i64,
    /// When the longest-waiting run was created.
    pub oldest_ms: Option<Millis>,
}

impl Store {
    /// The project's runs that are not over: started ones first, then queued ones in their order.
    pub async fn queue(&self, scope: &ProjectScope, limit: u32) -> Result<Vec<QueuedRun>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, kind, subject, state, rank, created_ms, started_ms FROM runs
             WHERE project_id = $1 AND state IN ('queued', 'running', 'parked')
             ORDER BY CASE WHEN state = 'queued' THEN 1 ELSE 0 END, rank, id LIMIT $2",
        )
        .bind(scope.project())
        .bind(i64::from(limit))
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter()
            .map(|row| {
                Ok(QueuedRun {
                    id: id(row, "id")?,
                    kind: text(row, "kind")?,
                    subject: text(row, "subject")?,
                    state: state(row)?,
                    rank: number(row, "rank")?,
                    created_ms: number(row, "created_ms")?,
                    started_ms: row.try_get("started_ms").doing(READ)?,
                })
            })
            .collect()
    }

    /// The state of the queue of a project, or of all.
    pub async fn queue_load(
        &self,
        _: &Operator,
        project: Option<ProjectId>,
    ) -> Result<QueueLoad, StoreError> {
        // Two parts, one for each partial index: ended runs are many, and none of them is read.
        let row = sqlx::query(
            "SELECT waits.queued AS queued, waits.oldest_ms AS oldest_ms, works.held AS held, works.parked AS parked FROM
                 (SELECT COUNT(*) AS queued, MIN(created_ms) AS oldest_ms FROM runs
                  WHERE state = 'queued' AND ($1 IS NULL OR project_id = $1)) AS waits,
                 (SELECT CAST(COALESCE(SUM(CASE WHEN state = 'running' THEN 1 ELSE 0 END), 0) AS BIGINT) AS held,
                      CAST(COALESCE(SUM(CASE WHEN state = 'parked' THEN 1 ELSE 0 END), 0) AS BIGINT) AS parked
                  FROM runs WHERE state IN ('running', 'parked') AND ($1 IS NULL OR project_id = $1)) AS works",
        )
        .bind(project)
        .fetch_one(self.database().readers())
        .await
        .doing(READ)?;
        Ok(QueueLoad {
            queued: number(&row, "queued")?,
            held: number(&row, "held")?,
            parked: number(&row, "parked")?,
            oldest_ms: row.try_get("oldest_ms").doing(READ)?,
        })
    }
}
