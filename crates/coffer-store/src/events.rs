//! The event log: what happened in a project, in order.

use coffer_core::{Millis, ProjectId};
use sqlx::{AnyConnection, Row};

use crate::error::Doing;
use crate::{Event, ProjectScope, Store, StoreError};

const MOST_EVENTS: u32 = 1000;

impl Store {
    /// The project's events after `sequence`, oldest first, at most 1000.
    pub async fn events(
        &self,
        scope: &ProjectScope,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        let rows = sqlx::query(
            "SELECT sequence, subject, kind, payload, at_ms FROM events
             WHERE project_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3",
        )
        .bind(scope.project().to_string())
        .bind(after)
        .bind(i64::from(limit.min(MOST_EVENTS)))
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        let event = |row: &sqlx::any::AnyRow| {
            let payload: String = row.try_get("payload").doing(READ)?;
            Ok(Event {
                sequence: row.try_get("sequence").doing(READ)?,
                subject: row.try_get("subject").doing(READ)?,
                kind: row.try_get("kind").doing(READ)?,
                payload: serde_json::from_str(&payload)
                    .map_err(|error| StoreError::Unreadable { what: "event", why: error.to_string() })?,
                at_ms: row.try_get("at_ms").doing(READ)?,
            })
        };
        rows.iter().map(event).collect()
    }
}

const READ: &str = "read events";
const RECORD: &str = "record an event";

/// Appends to the log of `project`. It holds the project's counter until the commit, so it comes last in
/// its transaction.
pub(crate) async fn record(
    connection: &mut AnyConnection,
    project: ProjectId,
    subject: String,
    kind: String,
    payload: &serde_json::Value,
    at_ms: Millis,
) -> Result<(), StoreError> {
    let counter =
        sqlx::query("UPDATE projects SET last_event = last_event + 1 WHERE id = $1 RETURNING last_event")
            .bind(project.to_string())
            .fetch_one(&mut *connection)
            .await
            .doing(RECORD)?;
    let sequence: i64 = counter.try_get("last_event").doing(RECORD)?;
    sqlx::query(
        "INSERT INTO events (project_id, sequence, subject, kind, payload, at_ms)
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(project.to_string())
    .bind(sequence)
    .bind(subject)
    .bind(kind)
    .bind(payload.to_string())
    .bind(at_ms)
    .execute(connection)
    .await
    .doing(RECORD)
    .map(drop)
}
