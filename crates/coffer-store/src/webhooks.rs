//! Webhooks.
//!
//! A webhook has a position in its project's event log. [`Store::queue_deliveries`] moves it and writes a
//! delivery for each wanted event, in one transaction, so that no event is lost or written twice, however many
//! servers run; `sends` has the outcome of deliveries.

mod log;
mod sends;

use coffer_core::event::{Event, Nothing, WebhookTerms};
use coffer_core::{Millis, ProjectId, WebhookId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use crate::columns::{from_json, id, json as to_json, number, optional_text, storable, text};
use crate::error::Doing;
use crate::projects::lock_and_read_project;
use crate::select::Select;
use crate::{ProjectScope, Secret, Store, StoreError, events, now_ms};

pub use log::{DeliveryRow, Redelivery};
pub use sends::{DueDelivery, NewDelivery, SendOutcome, SendReport, WebhookBehind, WebhookDue, WebhookLoad};

const READ: &str = "read webhooks";
const CHANGE: &str = "change a webhook";

/// Most webhooks of a project.
pub const MOST_WEBHOOKS: i64 = 50;

/// A webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRow {
    pub id: WebhookId,
    pub project: ProjectId,
    pub url: String,
    /// Kinds of events, or `task.*`, or `*`.
    pub events: Vec<String>,
    /// Only events about this context.
    pub context_id: Option<String>,
    pub description: String,
    /// The project's secret that signs it; `None` if it has its own key.
    pub secret_name: Option<String>,
    pub enabled: bool,
    pub disabled_reason: Option<String>,
    /// The newest event that was examined.
    pub position: i64,
    /// Waiting deliveries.
    pub waiting: i64,
    /// Failures since it last worked.
    pub failures: i64,
    pub failing_since_ms: Option<Millis>,
    pub succeeded_ms: Option<Millis>,
    pub created_ms: Millis,
    pub updated_ms: Millis,
}

/// The key that signs deliveries.
#[derive(Debug, Clone)]
pub enum WebhookKey {
    /// A secret of the project, by name.
    Stored(String),
    /// Its own key.
    Own(Secret),
}

/// A new webhook.
#[derive(Debug, Clone)]
pub struct NewWebhook {
    pub url: String,
    pub events: Vec<String>,
    pub context_id: Option<String>,
    pub description: String,
    pub key: WebhookKey,
    pub enabled: bool,
}

/// Changes to a webhook; `None` leaves a field as it is.
#[derive(Debug, Clone, Default)]
pub struct WebhookChange {
    pub url: Option<String>,
    pub events: Option<Vec<String>>,
    pub context_id: Option<Option<String>>,
    pub description: Option<String>,
    pub key: Option<WebhookKey>,
    pub enabled: Option<bool>,
}

/// Why a webhook was not created or changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WebhookRecordError {
    #[error("webhook not found")]
    NotFound,
    #[error("a project may have at most {MOST_WEBHOOKS} webhooks")]
    TooMany,
    #[error(transparent)]
    Store(#[from] StoreError),
}

const COLUMNS: &str = "id, project_id, url, events, context_id, description, secret_name, enabled, \
                       disabled_reason, position, failures, failing_since_ms, succeeded_ms, created_ms, \
                       updated_ms, (SELECT COUNT(*) FROM webhook_sends AS s \
                           WHERE s.webhook_id = webhooks.id AND s.state = 'waiting') AS waiting";

fn purpose(webhook: WebhookId) -> String {
    format!("webhooks/{webhook}/key_secret")
}

impl Store {
    /// Creates a webhook, which gets events from now on.
    pub async fn create_webhook(
        &self,
        scope: &ProjectScope,
        new: NewWebhook,
    ) -> Result<WebhookRow, WebhookRecordError> {
        let (webhook, project) = (WebhookId::generate(), scope.project());
        let (secret_name, sealed) = self.seal_webhook_key(project, webhook, &new.key).await?;
        let create = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let newest = hold_project(connection, project).await?;
                let live = sqlx::query(
                    "SELECT COUNT(*) AS live FROM webhooks WHERE project_id = $1 AND removed_ms IS NULL",
                )
                .bind(project)
                .fetch_one(&mut *connection)
                .await
                .doing(CHANGE)?;
                if number(&live, "live")? >= MOST_WEBHOOKS {
                    return Err(WebhookRecordError::TooMany);
                }
                let sql = format!(
                    "INSERT INTO webhooks (id, project_id, url, events, context_id, description, secret_name,
                         key_secret, enabled, disabled_reason, position, created_ms, updated_ms)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12) RETURNING {COLUMNS}"
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(webhook)
                    .bind(project)
                    .bind(storable(&new.url))
                    .bind(to_json(&new.events))
                    .bind(new.context_id.as_deref().map(storable))
                    .bind(storable(&new.description))
                    .bind(secret_name)
                    .bind(sealed)
                    .bind(i64::from(new.enabled))
                    .bind((!new.enabled).then_some("asked"))
                    .bind(newest)
                    .bind(now)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let row = read(&row)?;
                told(connection, &row, Event::WebhookCreated, now).await?;
                Ok(row)
            })
        });
        create.await
    }

    /// The webhook of that id.
    pub async fn webhook(
        &self,
        scope: &ProjectScope,
        webhook: WebhookId,
    ) -> Result<Option<WebhookRow>, StoreError> {
        Select::new(COLUMNS, "webhooks")
            .filter("id = ?", webhook)
            .filter("project_id = ?", scope.project())
            .filter_by("removed_ms IS NULL")
            .one(self.database(), READ, read)
            .await
    }

    /// Webhooks after `after`, oldest first.
    pub async fn webhooks(
        &self,
        scope: &ProjectScope,
        after: Option<WebhookId>,
        limit: u32,
    ) -> Result<Vec<WebhookRow>, StoreError> {
        Select::new(COLUMNS, "webhooks")
            .filter("project_id = ?", scope.project())
            .filter_by("removed_ms IS NULL")
            .oldest_first("id", after, limit)
            .all(self.database(), READ, read)
            .await
    }

    /// Changes a webhook. One that is enabled again gets events from then on, without its earlier failures.
    pub async fn change_webhook(
        &self,
        scope: &ProjectScope,
        webhook: WebhookId,
        change: WebhookChange,
    ) -> Result<WebhookRow, WebhookRecordError> {
        let project = scope.project();
        let key = match &change.key {
            Some(key) => Some(self.seal_webhook_key(project, webhook, key).await?),
            None => None,
        };
        let change = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let newest = hold_project(connection, project).await?;
                let before = hold(connection, project, webhook).await?;
                let begins = change.enabled == Some(true) && !before.enabled;
                let (secret_name, sealed) = key.clone().unwrap_or_default();
                let sql = format!(
                    "UPDATE webhooks SET url = COALESCE($1, url), events = COALESCE($2, events),
                         context_id = CASE WHEN $3 = 1 THEN $4 ELSE context_id END,
                         description = COALESCE($5, description),
                         secret_name = CASE WHEN $6 = 1 THEN $7 ELSE secret_name END,
                         key_secret = CASE WHEN $6 = 1 THEN $8 ELSE key_secret END,
                         enabled = COALESCE($9, enabled),
                         disabled_reason = CASE WHEN $9 IS NULL THEN disabled_reason
                             WHEN $9 = 0 THEN COALESCE(disabled_reason, 'asked') END,
                         position = CASE WHEN $10 = 1 THEN $11 ELSE position END,
                         failures = CASE WHEN $10 = 1 THEN 0 ELSE failures END,
                         failing_since_ms = CASE WHEN $10 = 1 THEN NULL ELSE failing_since_ms END,
                         rests_until_ms = CASE WHEN $10 = 1 OR $1 IS NOT NULL THEN 0 ELSE rests_until_ms END,
                         updated_ms = $12
                     WHERE id = $13 AND project_id = $14 RETURNING {COLUMNS}"
                );
                let context = change.context_id.as_ref();
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(change.url.as_deref().map(storable))
                    .bind(change.events.as_ref().map(to_json))
                    .bind(i64::from(context.is_some()))
                    .bind(context.and_then(|context| context.as_deref()).map(storable))
                    .bind(change.description.as_deref().map(storable))
                    .bind(i64::from(key.is_some()))
                    .bind(secret_name)
                    .bind(sealed)
                    .bind(change.enabled.map(i64::from))
                    .bind(i64::from(begins))
                    .bind(newest)
                    .bind(now)
                    .bind(webhook)
                    .bind(project)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let row = read(&row)?;
                told(connection, &row, Event::WebhookChanged, now).await?;
                Ok(row)
            })
        });
        change.await
    }

    /// Deletes a webhook; returns whether it existed. It and its log are no longer visible, and its key is
    /// deleted, but the log may be long: [`Store::clear_removed_webhooks`] deletes it bit by bit.
    pub async fn remove_webhook(&self, scope: &ProjectScope, webhook: WebhookId) -> Result<bool, StoreError> {
        let project = scope.project();
        let remove = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                hold_project(connection, project).await?;
                let removed = sqlx::query(
                    "UPDATE webhooks SET removed_ms = $1, enabled = 0, secret_name = NULL, key_secret = NULL
                     WHERE id = $2 AND project_id = $3 AND removed_ms IS NULL",
                )
                .bind(now)
                .bind(webhook)
                .bind(project)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                if removed.rows_affected() == 0 {
                    return Ok(false);
                }
                events::record(connection, project, webhook, Event::WebhookRemoved(Nothing {}), now).await?;
                Ok(true)
            })
        });
        remove.await
    }

    async fn seal_webhook_key(
        &self,
        project: ProjectId,
        webhook: WebhookId,
        key: &WebhookKey,
    ) -> Result<(Option<String>, Option<String>), StoreError> {
        match key {
            WebhookKey::Stored(name) => Ok((Some(name.clone()), None)),
            WebhookKey::Own(secret) => {
                self.vault().ready(self.database(), project).await?;
                let sealed = self.vault().seal(project, &purpose(webhook), secret.reveal())?;
                Ok((None, Some(sealed)))
            }
        }
    }
}

/// Locks the project's row, as appending to its log does, and returns its newest event. A change of a webhook
/// that records an event must lock the project first: two in different orders would deadlock.
async fn hold_project(connection: &mut AnyConnection, project: ProjectId) -> Result<i64, StoreError> {
    let row = lock_and_read_project(connection, project, "last_event", CHANGE).await?;
    number(&row.ok_or(sqlx::Error::RowNotFound).doing(CHANGE)?, "last_event")
}

async fn hold(
    connection: &mut AnyConnection,
    project: ProjectId,
    webhook: WebhookId,
) -> Result<WebhookRow, WebhookRecordError> {
    let sql = format!(
        "UPDATE webhooks SET enabled = enabled
         WHERE id = $1 AND project_id = $2 AND removed_ms IS NULL RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(webhook)
        .bind(project)
        .fetch_optional(connection)
        .await
        .doing(CHANGE)?;
    Ok(read(&row.ok_or(WebhookRecordError::NotFound)?)?)
}

async fn told(
    connection: &mut AnyConnection,
    row: &WebhookRow,
    kind: fn(WebhookTerms) -> Event,
    now: Millis,
) -> Result<(), StoreError> {
    // Not the whole address: for some receivers it is the credential.
    let host = row.url.split('/').nth(2).unwrap_or_default();
    let terms = WebhookTerms { host: host.to_string(), events: row.events.clone(), enabled: row.enabled };
    events::record(connection, row.project, row.id, kind(terms), now).await
}

fn read(row: &AnyRow) -> Result<WebhookRow, StoreError> {
    Ok(WebhookRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        url: text(row, "url")?,
        events: from_json(&text(row, "events")?, "events")?,
        context_id: optional_text(row, "context_id")?,
        description: text(row, "description")?,
        secret_name: optional_text(row, "secret_name")?,
        enabled: number(row, "enabled")? != 0,
        disabled_reason: optional_text(row, "disabled_reason")?,
        position: number(row, "position")?,
        waiting: number(row, "waiting")?,
        failures: number(row, "failures")?,
        failing_since_ms: row.try_get("failing_since_ms").doing(READ)?,
        succeeded_ms: row.try_get("succeeded_ms").doing(READ)?,
        created_ms: number(row, "created_ms")?,
        updated_ms: number(row, "updated_ms")?,
    })
}
