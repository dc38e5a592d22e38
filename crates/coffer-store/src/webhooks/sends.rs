//! Deliveries: written with the webhook's position, claimed by one server at a time, and settled by it.

use coffer_core::event::{Event, WebhookDisabled};
use coffer_core::{DeliveryCause, DeliveryId, DeliveryState, Millis, ProjectId, WebhookId};
use sqlx::{AnyConnection, Row};

use super::{CHANGE, COLUMNS, READ, WebhookRow, hold_project, purpose, read};
use crate::columns::{first, id, moves, number, optional_text, states, storable, text};
use crate::error::Doing;
use crate::{Operator, Secret, Store, StoreError, WebhookKey, events};

const QUEUE: &str = "queue deliveries";
const SEND: &str = "take deliveries";
/// Tasks in one query.
const ASKED_AT_ONCE: usize = 100;

/// An event for a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDelivery {
    pub event: i64,
    pub kind: String,
    pub body: String,
}

/// A webhook with unread events of its project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookBehind {
    pub webhook: WebhookRow,
    /// The project's newest event.
    pub newest: i64,
}

/// A webhook with deliveries that can be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebhookDue {
    pub webhook: WebhookId,
    pub project: ProjectId,
    pub failures: i64,
}

/// A delivery that the caller is to send.
#[derive(Debug, Clone)]
pub struct DueDelivery {
    pub id: DeliveryId,
    pub webhook: WebhookId,
    pub project: ProjectId,
    pub url: String,
    /// `None` if its own key is sealed under a missing master key.
    pub key: Option<WebhookKey>,
    pub kind: String,
    pub body: String,
    /// This one included.
    pub tries: i64,
    /// Failures of the webhook before this.
    pub failures: i64,
}

/// The result of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendReport {
    pub status: Option<u16>,
    /// The beginning of the answer.
    pub response: Option<String>,
    pub error: Option<String>,
    pub duration_ms: i64,
    pub outcome: SendOutcome,
}

/// The outcome for the delivery and its webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    Delivered,
    /// Retry at this time; `None` for never. The webhook is not tried for a while, and disabled if it has
    /// failed since before `disable_before_ms`.
    Failed {
        next_ms: Option<Millis>,
        rest_until_ms: Millis,
        disable_before_ms: Millis,
    },
    /// The receiver wants no more events.
    Gone,
}

/// Numbers of deliveries, over all projects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WebhookLoad {
    pub waiting: i64,
    /// When the oldest waiting delivery was written.
    pub oldest_ms: Option<Millis>,
    pub failing: i64,
    pub disabled: i64,
}

impl Store {
    /// Webhooks with unread events and fewer than `most_waiting` waiting deliveries: the log keeps the rest.
    pub async fn webhooks_behind(
        &self,
        _: &Operator,
        most_waiting: i64,
        limit: u32,
    ) -> Result<Vec<WebhookBehind>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS}, (SELECT last_event FROM projects AS p WHERE p.id = webhooks.project_id) AS newest
             FROM webhooks
             WHERE enabled = 1
                 AND position < (SELECT last_event FROM projects AS p WHERE p.id = webhooks.project_id)
                 AND (SELECT COUNT(*) FROM webhook_sends AS s
                     WHERE s.webhook_id = webhooks.id AND s.state = 'waiting') < $1
             ORDER BY updated_ms, id LIMIT $2"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(most_waiting)
            .bind(i64::from(limit))
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter()
            .map(|row| Ok(WebhookBehind { webhook: read(row)?, newest: number(row, "newest")? }))
            .collect()
    }

    /// Which of these are tasks of a context.
    pub async fn subjects_of_context(
        &self,
        _: &Operator,
        project: ProjectId,
        context_id: &str,
        subjects: &[String],
    ) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        for some in subjects.chunks(ASKED_AT_ONCE) {
            let places: Vec<String> = (3..3 + some.len()).map(|place| format!("${place}")).collect();
            let sql = format!(
                "SELECT id FROM tasks WHERE project_id = $1 AND context_id = $2 AND id IN ({})",
                places.join(", ")
            );
            let mut query = sqlx::query(sqlx::AssertSqlSafe(sql));
            query = query.bind(project).bind(storable(context_id));
            for subject in some {
                query = query.bind(subject.clone());
            }
            let rows = query.fetch_all(self.database().readers()).await.doing(READ)?;
            for row in &rows {
                found.push(text(row, "id")?);
            }
        }
        Ok(found)
    }

    /// Moves a webhook from `webhook.position` to `to` and writes these deliveries. Returns false, and writes
    /// nothing, if another server has, or if the webhook was disabled or changed meanwhile.
    pub async fn queue_deliveries(
        &self,
        _: &Operator,
        webhook: &WebhookRow,
        to: i64,
        deliveries: Vec<NewDelivery>,
        now: Millis,
    ) -> Result<bool, StoreError> {
        let (of, project) = (webhook.id, webhook.project);
        let (from, as_of) = (webhook.position, webhook.updated_ms);
        let queue = self.database().write(QUEUE, move |connection| {
            Box::pin(async move {
                let moved = sqlx::query(
                    "UPDATE webhooks SET position = $1
                     WHERE id = $2 AND position = $3 AND enabled = 1 AND updated_ms = $4",
                )
                .bind(to)
                .bind(of)
                .bind(from)
                .bind(as_of)
                .execute(&mut *connection)
                .await
                .doing(QUEUE)?;
                if moved.rows_affected() == 0 {
                    return Ok(false);
                }
                for new in deliveries {
                    insert(connection, of, project, &new, now).await?;
                }
                Ok(true)
            })
        });
        queue.await
    }

    /// Webhooks with deliveries to send now, working ones first.
    pub async fn webhooks_due(
        &self,
        _: &Operator,
        now: Millis,
        limit: u32,
    ) -> Result<Vec<WebhookDue>, StoreError> {
        let rows = sqlx::query(
            "SELECT w.id, w.project_id, w.failures FROM webhooks AS w
             WHERE w.removed_ms IS NULL AND EXISTS (SELECT 1 FROM webhook_sends AS s
                 WHERE s.webhook_id = w.id AND s.state = 'waiting' AND s.next_ms <= $1 AND s.held_until_ms <= $1
                     AND (s.asked = 1 OR (w.enabled = 1 AND w.rests_until_ms <= $1)))
             ORDER BY w.failures, w.id LIMIT $2",
        )
        .bind(now)
        .bind(i64::from(limit))
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter()
            .map(|row| {
                Ok(WebhookDue {
                    webhook: id(row, "id")?,
                    project: id(row, "project_id")?,
                    failures: number(row, "failures")?,
                })
            })
            .collect()
    }

    /// Claims up to `most` deliveries of a webhook for `holder`, until `until`: after that another server may
    /// claim them.
    pub async fn claim_deliveries(
        &self,
        _: &Operator,
        webhook: WebhookId,
        holder: &str,
        now: Millis,
        until: Millis,
        most: usize,
    ) -> Result<Vec<DueDelivery>, StoreError> {
        let (holder, vault) = (holder.to_string(), self.vault().clone());
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let claim = self.database().write(SEND, move |connection| {
            Box::pin(async move {
                let rows = sqlx::query(
                    "UPDATE webhook_sends SET holder = $1, held_until_ms = $2, tries = tries + 1
                     WHERE id IN (
                         SELECT s.id FROM webhook_sends AS s JOIN webhooks AS w ON w.id = s.webhook_id
                         WHERE s.webhook_id = $3 AND s.state = 'waiting' AND s.next_ms <= $4
                             AND s.held_until_ms <= $4 AND w.removed_ms IS NULL
                             AND (s.asked = 1 OR (w.enabled = 1 AND w.rests_until_ms <= $4))
                         ORDER BY s.next_ms, s.id LIMIT $5)
                         AND state = 'waiting' AND held_until_ms <= $4
                     RETURNING id, kind, body, tries",
                )
                .bind(holder)
                .bind(until)
                .bind(webhook)
                .bind(now)
                .bind(most)
                .fetch_all(&mut *connection)
                .await
                .doing(SEND)?;
                if rows.is_empty() {
                    return Ok(Vec::new());
                }
                let of = sqlx::query(
                    "SELECT project_id, url, secret_name, key_secret, failures FROM webhooks WHERE id = $1",
                )
                .bind(webhook)
                .fetch_one(&mut *connection)
                .await
                .doing(SEND)?;
                let project: ProjectId = id(&of, "project_id")?;
                let own = optional_text(&of, "key_secret")?;
                let key = match optional_text(&of, "secret_name")? {
                    Some(name) => Some(WebhookKey::Stored(name)),
                    None => own
                        .and_then(|sealed| vault.open_text(project, &purpose(webhook), &sealed).ok())
                        .map(|text| WebhookKey::Own(Secret::from(text))),
                };
                let (url, failures) = (text(&of, "url")?, number(&of, "failures")?);
                rows.iter()
                    .map(|row| {
                        Ok(DueDelivery {
                            id: id(row, "id")?,
                            webhook,
                            project,
                            url: url.clone(),
                            key: key.clone(),
                            kind: text(row, "kind")?,
                            body: text(row, "body")?,
                            tries: number(row, "tries")?,
                            failures,
                        })
                    })
                    .collect::<Result<Vec<_>, StoreError>>()
            })
        });
        claim.await
    }

    /// Releases the claims of an earlier server of this name: a data directory has one server at a time.
    pub async fn free_deliveries(&self, _: &Operator, holder: &str) -> Result<u64, StoreError> {
        let holder = holder.to_string();
        let free = self.database().write(SEND, move |connection| {
            Box::pin(async move {
                let freed = sqlx::query(
                    "UPDATE webhook_sends SET holder = NULL, held_until_ms = 0
                     WHERE holder = $1 AND state = 'waiting'",
                )
                .bind(holder)
                .execute(connection)
                .await
                .doing(SEND)?;
                Ok::<_, StoreError>(freed.rows_affected())
            })
        });
        free.await
    }

    /// Records the result of a try by `holder`. Returns false if another server has the delivery.
    pub async fn settle_delivery(
        &self,
        _: &Operator,
        holder: &str,
        due: &DueDelivery,
        report: SendReport,
        now: Millis,
    ) -> Result<bool, StoreError> {
        let holder = holder.to_string();
        let (delivery, webhook, project, tries) = (due.id, due.webhook, due.project, due.tries);
        let settle = self.database().write(SEND, move |connection| {
            Box::pin(async move {
                let (cause, next_ms) = match report.outcome {
                    SendOutcome::Delivered => (DeliveryCause::Delivered, None),
                    SendOutcome::Failed { next_ms: Some(next), .. } => (DeliveryCause::TryFailed, Some(next)),
                    SendOutcome::Failed { next_ms: None, .. } | SendOutcome::Gone => {
                        (DeliveryCause::GivenUp, None)
                    }
                };
                // This may disable the webhook, which records an event.
                if report.outcome != SendOutcome::Delivered {
                    hold_project(connection, project).await?;
                }
                let sql = format!(
                    "UPDATE webhook_sends SET state = {}, next_ms = COALESCE($1, next_ms), holder = NULL,
                         held_until_ms = 0, status = $2, response = $3, error = $4, duration_ms = $5, ended_ms = $6
                     WHERE id = $7 AND holder = $8 AND tries = $9 AND state IN ({})",
                    moves::<DeliveryState>(cause),
                    states::<DeliveryState>(cause),
                );
                let settled = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(next_ms)
                .bind(report.status.map(i64::from))
                .bind(report.response.as_deref().map(storable))
                .bind(report.error.as_deref().map(storable))
                .bind(report.duration_ms)
                .bind(next_ms.is_none().then_some(now))
                .bind(delivery)
                .bind(holder)
                .bind(tries)
                .execute(&mut *connection)
                .await
                .doing(SEND)?;
                if settled.rows_affected() == 0 {
                    return Ok(false);
                }
                match report.outcome {
                    SendOutcome::Delivered => worked(connection, webhook, now).await?,
                    SendOutcome::Gone => disable(connection, project, webhook, "gone", now).await?,
                    SendOutcome::Failed { rest_until_ms, disable_before_ms, .. } => {
                        let since = failed(connection, webhook, rest_until_ms, now).await?;
                        if since.is_some_and(|since| since < disable_before_ms) {
                            disable(connection, project, webhook, "failing", now).await?;
                        }
                    }
                }
                Ok(true)
            })
        });
        settle.await
    }

    /// Numbers of deliveries.
    pub async fn webhook_load(&self, _: &Operator) -> Result<WebhookLoad, StoreError> {
        let row = sqlx::query(
            "SELECT (SELECT COUNT(*) FROM webhook_sends WHERE state = 'waiting' AND webhook_id NOT IN (
                     SELECT id FROM webhooks WHERE removed_ms IS NOT NULL)) AS waiting,
                 (SELECT MIN(created_ms) FROM webhook_sends WHERE state = 'waiting' AND webhook_id NOT IN (
                     SELECT id FROM webhooks WHERE removed_ms IS NOT NULL)) AS oldest_ms,
                 (SELECT COUNT(*) FROM webhooks WHERE enabled = 1 AND failures > 0) AS failing,
                 (SELECT COUNT(*) FROM webhooks WHERE enabled = 0 AND disabled_reason <> 'asked'
                     AND removed_ms IS NULL) AS disabled",
        )
        .fetch_one(self.database().readers())
        .await
        .doing(READ)?;
        Ok(WebhookLoad {
            waiting: number(&row, "waiting")?,
            oldest_ms: row.try_get("oldest_ms").doing(READ)?,
            failing: number(&row, "failing")?,
            disabled: number(&row, "disabled")?,
        })
    }
}

async fn insert(
    connection: &mut AnyConnection,
    webhook: WebhookId,
    project: ProjectId,
    new: &NewDelivery,
    now: Millis,
) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO webhook_sends (id, webhook_id, project_id, event, kind, body, state, asked, next_ms, created_ms)
         VALUES ($1, $2, $3, $4, $5, $6, {}, 0, $7, $7) ON CONFLICT DO NOTHING",
        first::<DeliveryState>()
    );
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(DeliveryId::generate().to_string())
        .bind(webhook)
        .bind(project)
        .bind(new.event)
        .bind(new.kind.clone())
        .bind(storable(&new.body))
        .bind(now)
        .execute(connection)
        .await
        .doing(QUEUE)?;
    Ok(())
}

async fn worked(connection: &mut AnyConnection, webhook: WebhookId, now: Millis) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE webhooks SET failures = 0, failing_since_ms = NULL, rests_until_ms = 0, succeeded_ms = $1
         WHERE id = $2",
    )
    .bind(now)
    .bind(webhook)
    .execute(connection)
    .await
    .doing(SEND)?;
    Ok(())
}

/// Counts a failure; returns since when it fails, if it is still enabled.
async fn failed(
    connection: &mut AnyConnection,
    webhook: WebhookId,
    rest_until_ms: Millis,
    now: Millis,
) -> Result<Option<Millis>, StoreError> {
    let row = sqlx::query(
        "UPDATE webhooks SET failures = failures + 1, failing_since_ms = COALESCE(failing_since_ms, $1),
             rests_until_ms = CASE WHEN rests_until_ms > $2 THEN rests_until_ms ELSE $2 END
         WHERE id = $3 RETURNING failing_since_ms, enabled",
    )
    .bind(now)
    .bind(rest_until_ms)
    .bind(webhook)
    .fetch_optional(connection)
    .await
    .doing(SEND)?;
    let Some(row) = row else { return Ok(None) };
    let since: Option<Millis> = row.try_get("failing_since_ms").doing(SEND)?;
    Ok(since.filter(|_| number(&row, "enabled").is_ok_and(|enabled| enabled != 0)))
}

/// Disables it; waiting deliveries can be requested again by hand.
async fn disable(
    connection: &mut AnyConnection,
    project: ProjectId,
    webhook: WebhookId,
    reason: &'static str,
    now: Millis,
) -> Result<(), StoreError> {
    let disabled = sqlx::query(
        "UPDATE webhooks SET enabled = 0, disabled_reason = $1, failures = failures + $2, updated_ms = $3
         WHERE id = $4 AND enabled = 1",
    )
    .bind(reason)
    .bind(i64::from(reason == "gone"))
    .bind(now)
    .bind(webhook)
    .execute(&mut *connection)
    .await
    .doing(CHANGE)?;
    if disabled.rows_affected() == 0 {
        return Ok(());
    }
    let sql = format!(
        "UPDATE webhook_sends SET state = {}, ended_ms = $1, error = 'the webhook was disabled'
         WHERE webhook_id = $2 AND state IN ({}) AND asked = 0 AND holder IS NULL",
        moves::<DeliveryState>(DeliveryCause::GivenUp),
        states::<DeliveryState>(DeliveryCause::GivenUp),
    );
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now)
        .bind(webhook)
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
    let event = Event::WebhookDisabled(WebhookDisabled { reason: reason.to_string() });
    events::record(connection, project, webhook, event, now).await
}
