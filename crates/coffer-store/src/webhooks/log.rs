//! The log of deliveries, and deliveries requested by hand.

use coffer_core::{DeliveryCause, DeliveryId, DeliveryState, Millis, ProjectId, WebhookId};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{CHANGE, READ};
use crate::columns::{first, id, moves, number, optional_text, storable, text, unreadable, unsigned};
use crate::error::Doing;
use crate::select::Select;
use crate::{Operator, ProjectScope, Store, StoreError, now_ms};

const COLUMNS: &str = "id, event, kind, body, state, tries, next_ms, status, response, error, duration_ms, \
                       created_ms, ended_ms";

/// Deliveries of deleted webhooks are not visible.
const LIVE: &str = "EXISTS (SELECT 1 FROM webhooks AS w WHERE w.id = webhook_sends.webhook_id \
                    AND w.removed_ms IS NULL)";

/// An event on its way to a webhook, over all tries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRow {
    pub id: DeliveryId,
    /// Its number in the project's log; `None` for a test.
    pub event: Option<i64>,
    pub kind: String,
    pub body: String,
    pub state: DeliveryState,
    pub tries: i64,
    pub next_ms: Millis,
    /// Of the last try.
    pub status: Option<u16>,
    pub response: Option<String>,
    pub error: Option<String>,
    pub duration_ms: Option<i64>,
    pub created_ms: Millis,
    pub ended_ms: Option<Millis>,
}

/// The result of requesting a delivery again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redelivery {
    Queued(Box<DeliveryRow>),
    /// It is being sent right now.
    UnderWay,
    NotFound,
}

impl Store {
    /// Deliveries before `before`, newest first.
    pub async fn deliveries(
        &self,
        scope: &ProjectScope,
        webhook: WebhookId,
        state: Option<DeliveryState>,
        before: Option<DeliveryId>,
        limit: u32,
    ) -> Result<Vec<DeliveryRow>, StoreError> {
        Select::new(COLUMNS, "webhook_sends")
            .filter("webhook_id = ?", webhook)
            .filter("project_id = ?", scope.project())
            .filter_if("state = ?", state.map(DeliveryState::as_str))
            .filter_by(LIVE)
            .newest_first("id", before, limit)
            .all(self.database(), READ, read)
            .await
    }

    /// One delivery of a webhook.
    pub async fn delivery(
        &self,
        scope: &ProjectScope,
        webhook: WebhookId,
        delivery: DeliveryId,
    ) -> Result<Option<DeliveryRow>, StoreError> {
        Select::new(COLUMNS, "webhook_sends")
            .filter("id = ?", delivery)
            .filter("webhook_id = ?", webhook)
            .filter("project_id = ?", scope.project())
            .filter_by(LIVE)
            .one(self.database(), READ, read)
            .await
    }

    /// Queues a test delivery, which is not an event. `None` if the webhook does not exist.
    pub async fn queue_test(
        &self,
        scope: &ProjectScope,
        webhook: WebhookId,
        kind: &'static str,
        body: String,
    ) -> Result<Option<DeliveryRow>, StoreError> {
        let project = scope.project();
        let queue = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let sql = format!(
                    "INSERT INTO webhook_sends
                         (id, webhook_id, project_id, kind, body, state, asked, next_ms, created_ms)
                     SELECT $1, id, project_id, $2, $3, {}, 1, $4, $4 FROM webhooks
                     WHERE id = $5 AND project_id = $6 AND removed_ms IS NULL RETURNING {COLUMNS}",
                    first::<DeliveryState>()
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(DeliveryId::generate())
                    .bind(kind)
                    .bind(storable(&body))
                    .bind(now_ms())
                    .bind(webhook)
                    .bind(project)
                    .fetch_optional(connection)
                    .await
                    .doing(CHANGE)?;
                row.as_ref().map(read).transpose()
            })
        });
        queue.await
    }

    /// Sends a delivery again, with as many tries as a new one.
    pub async fn redeliver(
        &self,
        scope: &ProjectScope,
        webhook: WebhookId,
        delivery: DeliveryId,
    ) -> Result<Redelivery, StoreError> {
        let project = scope.project();
        let queue = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let sql = format!(
                    "UPDATE webhook_sends SET state = {}, asked = 1, tries = 0, next_ms = $1,
                         ended_ms = NULL, holder = NULL
                     WHERE id = $2 AND webhook_id = $3 AND project_id = $4 AND held_until_ms <= $1 AND {LIVE}
                     RETURNING {COLUMNS}",
                    moves::<DeliveryState>(DeliveryCause::Redelivered),
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(now)
                    .bind(delivery)
                    .bind(webhook)
                    .bind(project)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                if let Some(row) = row {
                    return Ok(Redelivery::Queued(Box::new(read(&row)?)));
                }
                let known = sqlx::query(sqlx::AssertSqlSafe(format!(
                    "SELECT id FROM webhook_sends
                     WHERE id = $1 AND webhook_id = $2 AND project_id = $3 AND {LIVE}"
                )))
                .bind(delivery)
                .bind(webhook)
                .bind(project)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                Ok::<_, StoreError>(known.map_or(Redelivery::NotFound, |_| Redelivery::UnderWay))
            })
        });
        queue.await
    }

    /// Deletes up to `batch` deliveries that ended before `before_ms`. Returns how many.
    pub async fn prune_deliveries(
        &self,
        _: &Operator,
        project: ProjectId,
        before_ms: Millis,
        batch: u32,
    ) -> Result<u64, StoreError> {
        const PRUNE: &str = "remove old deliveries";
        let prune = self.database().write(PRUNE, move |connection| {
            Box::pin(async move {
                let removed = sqlx::query(
                    "DELETE FROM webhook_sends WHERE id IN (
                         SELECT id FROM webhook_sends WHERE project_id = $1 AND ended_ms < $2
                         ORDER BY ended_ms LIMIT $3)",
                )
                .bind(project)
                .bind(before_ms)
                .bind(i64::from(batch))
                .execute(connection)
                .await
                .doing(PRUNE)?;
                Ok::<_, StoreError>(removed.rows_affected())
            })
        });
        prune.await
    }

    /// Deletes up to `batch` deliveries of deleted webhooks, and webhooks that have none left. Returns how
    /// many deliveries.
    pub async fn clear_removed_webhooks(&self, _: &Operator, batch: u32) -> Result<u64, StoreError> {
        const CLEAR: &str = "delete removed webhooks";
        let clear = self.database().write(CLEAR, move |connection| {
            Box::pin(async move {
                let removed = sqlx::query(
                    "DELETE FROM webhook_sends WHERE id IN (
                         SELECT s.id FROM webhook_sends AS s JOIN webhooks AS w ON w.id = s.webhook_id
                         WHERE w.removed_ms IS NOT NULL LIMIT $1)",
                )
                .bind(i64::from(batch))
                .execute(&mut *connection)
                .await
                .doing(CLEAR)?;
                sqlx::query(
                    "DELETE FROM webhooks WHERE removed_ms IS NOT NULL AND NOT EXISTS (
                         SELECT 1 FROM webhook_sends AS s WHERE s.webhook_id = webhooks.id)",
                )
                .execute(&mut *connection)
                .await
                .doing(CLEAR)?;
                Ok::<_, StoreError>(removed.rows_affected())
            })
        });
        clear.await
    }
}

fn read(row: &AnyRow) -> Result<DeliveryRow, StoreError> {
    let state = text(row, "state")?;
    let known = DeliveryState::parse(&state);
    let status: Option<i64> = row.try_get("status").doing(READ)?;
    Ok(DeliveryRow {
        id: id(row, "id")?,
        event: row.try_get("event").doing(READ)?,
        kind: text(row, "kind")?,
        body: text(row, "body")?,
        state: known.ok_or_else(|| unreadable("state", state))?,
        tries: number(row, "tries")?,
        next_ms: number(row, "next_ms")?,
        status: status.map(|_| unsigned(row, "status")).transpose()?,
        response: optional_text(row, "response")?,
        error: optional_text(row, "error")?,
        duration_ms: row.try_get("duration_ms").doing(READ)?,
        created_ms: number(row, "created_ms")?,
        ended_ms: row.try_get("ended_ms").doing(READ)?,
    })
}
