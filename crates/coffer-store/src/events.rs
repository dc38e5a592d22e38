//! The event log of projects.

use coffer_core::event::{Event, EventKind};
use coffer_core::{Millis, ProjectId, SandboxId, SnapshotId};
use sqlx::{AnyConnection, Row};

use crate::deferred::{self, NewEvent};
use crate::error::Doing;
use crate::{ChangeError, EventRow, ProjectScope, Quotas, Scope, Store, StoreError, columns, quotas};

const MOST_EVENTS: u32 = 1000;

/// How many events are scanned for one answer if no index helps.
const WINDOW: i64 = 20_000;

/// Selects events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only about this subject.
    pub subject: Option<String>,
    /// Only of these kinds, all if empty; `task.*` means all with that prefix.
    pub kinds: Vec<String>,
    pub after: i64,
    pub limit: u32,
}

/// The matching events.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundEvents {
    /// Oldest first.
    pub events: Vec<EventRow>,
    /// Where to continue, if the scan stopped before the end of the log with fewer events than wanted.
    pub looked_to: Option<i64>,
}

impl Store {
    /// The project's events after `sequence`, oldest first, at most 1000; for an agent those of its sandboxes
    /// and tasks.
    pub async fn events(
        &self,
        scope: &ProjectScope,
        after: i64,
        limit: u32,
    ) -> Result<Vec<EventRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT sequence, subject, kind, payload, at_ms FROM events AS e
             WHERE project_id = $1 AND sequence > $2 AND ($3 IS NULL OR EXISTS (
                 SELECT 1 FROM sandboxes AS s WHERE s.id = e.subject AND s.agent_id = $3)
                 OR EXISTS (SELECT 1 FROM tasks AS t WHERE t.id = e.subject AND t.agent_id = $3))
             ORDER BY sequence LIMIT $4",
        )
        .bind(scope.project())
        .bind(after)
        .bind(scope.agent())
        .bind(i64::from(limit.min(MOST_EVENTS)))
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(event).collect()
    }

    /// The project's matching events, oldest first, at most 1000; for an agent as in [`Store::events`].
    pub async fn find_events(
        &self,
        scope: &ProjectScope,
        filter: &EventFilter,
    ) -> Result<FoundEvents, StoreError> {
        let limit = filter.limit.min(MOST_EVENTS);
        // Subjects have an index; kinds do not.
        let scans = filter.subject.is_none() && !filter.kinds.is_empty();
        let to = if scans { filter.after.saturating_add(WINDOW) } else { i64::MAX };
        let newest = if scans { self.newest_event(scope).await? } else { 0 };
        let mut sql = "SELECT sequence, subject, kind, payload, at_ms FROM events AS e
             WHERE project_id = $1 AND sequence > $2 AND sequence <= $3 AND ($4 IS NULL OR EXISTS (
                 SELECT 1 FROM sandboxes AS s WHERE s.id = e.subject AND s.agent_id = $4)
                 OR EXISTS (SELECT 1 FROM tasks AS t WHERE t.id = e.subject AND t.agent_id = $4))"
            .to_string();
        let mut texts = Vec::new();
        if let Some(subject) = &filter.subject {
            texts.push(columns::storable(subject));
            sql.push_str(&format!(" AND subject = ${}", 4 + texts.len()));
        }
        let mut kinds = Vec::new();
        for kind in &filter.kinds {
            let place = 5 + texts.len();
            let (text, is_so) = match kind.strip_suffix('*') {
                None => (kind.as_str(), format!("kind = ${place}")),
                Some(begins) => (begins, format!("substr(kind, 1, {}) = ${place}", begins.chars().count())),
            };
            texts.push(columns::storable(text));
            kinds.push(is_so);
        }
        if !kinds.is_empty() {
            sql.push_str(&format!(" AND ({})", kinds.join(" OR ")));
        }
        sql.push_str(&format!(" ORDER BY sequence LIMIT {limit}"));
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(scope.project())
            .bind(filter.after)
            .bind(to)
            .bind(scope.agent());
        for text in texts {
            query = query.bind(text);
        }
        let rows = query.fetch_all(self.database().readers()).await.doing(READ)?;
        let events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        let is_short = events.len() < limit as usize;
        Ok(FoundEvents { events, looked_to: (scans && is_short && to < newest).then_some(to) })
    }

    /// The sequence of the project's newest event; 0 if nothing has happened.
    pub async fn newest_event(&self, scope: &ProjectScope) -> Result<i64, StoreError> {
        let row = sqlx::query("SELECT last_event FROM projects WHERE id = $1")
            .bind(scope.project())
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.map_or(Ok(0), |row| row.try_get("last_event").doing(READ))
    }

    /// The newest event of that kind about a sandbox.
    pub async fn last_event_of(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        kind: EventKind,
    ) -> Result<Option<EventRow>, StoreError> {
        self.last_event_like(scope, sandbox, kind, "%").await
    }

    /// The event of a fork that used this snapshot, once the fork is over.
    pub async fn fork_by_way_of(
        &self,
        scope: &impl Scope,
        source: SandboxId,
        snapshot: SnapshotId,
    ) -> Result<Option<EventRow>, StoreError> {
        let names = format!(r#"%"snapshot_id":"{snapshot}"%"#);
        self.last_event_like(scope, source, EventKind::SandboxForked, &names).await
    }

    async fn last_event_like(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        kind: EventKind,
        payload: &str,
    ) -> Result<Option<EventRow>, StoreError> {
        // Search through its project, whose events are ordered.
        let row = sqlx::query(
            "SELECT sequence, subject, kind, payload, at_ms FROM events
             WHERE project_id = (SELECT project_id FROM sandboxes
                     WHERE id = $1 AND ($2 IS NULL OR project_id = $2 OR agent_id = $2))
                 AND subject = $1 AND kind = $3 AND payload LIKE $4
             ORDER BY sequence DESC LIMIT 1",
        )
        .bind(sandbox)
        .bind(scope.owner())
        .bind(kind.as_str())
        .bind(payload)
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        row.as_ref().map(event).transpose()
    }

    /// Appends an event about a sandbox that changes no state.
    pub async fn record_event_of(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        event: Event,
        at_ms: Millis,
    ) -> Result<(), ChangeError> {
        let owner = scope.owner();
        let recorded = self.database().tell(RECORD, move |connection| {
            Box::pin(async move {
                let project = sqlx::query(
                    "SELECT project_id FROM sandboxes
                     WHERE id = $1 AND ($2 IS NULL OR project_id = $2 OR agent_id = $2)",
                )
                .bind(sandbox)
                .bind(owner)
                .fetch_optional(&mut *connection)
                .await
                .doing(RECORD)?;
                let Some(project) = project else { return Err(ChangeError::NotFound) };
                let project = columns::id(&project, "project_id")?;
                record(connection, project, sandbox, event, at_ms).await?;
                Ok(())
            })
        });
        recorded.await
    }
}

fn event(row: &sqlx::any::AnyRow) -> Result<EventRow, StoreError> {
    let payload: String = row.try_get("payload").doing(READ)?;
    Ok(EventRow {
        sequence: row.try_get("sequence").doing(READ)?,
        subject: row.try_get("subject").doing(READ)?,
        kind: row.try_get("kind").doing(READ)?,
        payload: serde_json::from_str(&payload)
            .map_err(|error| StoreError::Unreadable { what: "event", why: error.to_string() })?,
        at_ms: row.try_get("at_ms").doing(READ)?,
    })
}

const READ: &str = "read events";
const RECORD: &str = "record an event";

/// Appends to the log of `project`. If it is not deferred, it locks the project's row until the commit, so it
/// comes last in its transaction.
pub(crate) async fn record(
    connection: &mut AnyConnection,
    project: ProjectId,
    subject: impl ToString,
    event: Event,
    at_ms: Millis,
) -> Result<(), StoreError> {
    let event = NewEvent::new(project, subject, &event, at_ms);
    match deferred::defer(event) {
        Ok(()) => Ok(()),
        Err(event) => append(connection, event).await.map(drop),
    }
}

/// Appends at once, and returns the quotas on the project's row, which it locks.
pub(crate) async fn record_holding(
    connection: &mut AnyConnection,
    project: ProjectId,
    subject: impl ToString,
    event: Event,
    at_ms: Millis,
) -> Result<Quotas, StoreError> {
    append(connection, NewEvent::new(project, subject, &event, at_ms)).await
}

async fn append(connection: &mut AnyConnection, event: NewEvent) -> Result<Quotas, StoreError> {
    let counter = sqlx::query(
        "UPDATE projects SET last_event = last_event + 1 WHERE id = $1
         RETURNING last_event, most_sandboxes, most_cpus, most_memory_mib, most_disk_mib, most_forks, most_runs,
             most_storage_mib",
    )
    .bind(event.project)
    .fetch_one(&mut *connection)
    .await
    .doing(RECORD)?;
    let sequence: i64 = counter.try_get("last_event").doing(RECORD)?;
    sqlx::query(
        "INSERT INTO events (project_id, sequence, subject, kind, payload, at_ms)
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(event.project)
    .bind(sequence)
    .bind(event.subject)
    .bind(event.kind)
    .bind(event.payload)
    .bind(event.at_ms)
    .execute(connection)
    .await
    .doing(RECORD)?;
    quotas::of_project(&counter)
}
