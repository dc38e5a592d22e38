//! Webhooks and their deliveries.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use coffer_core::event::EventKind;
use coffer_core::{DeliveryId, Role, WebhookId};
use coffer_store::{
    DeliveryRow, DeliveryState, MOST_WEBHOOKS, NewWebhook as Row, Redelivery, SecretName, WebhookChange,
    WebhookKey, WebhookRecordError, WebhookRow,
};
use http::StatusCode;

use super::page::Part;
use super::repositories::field;
use crate::app::App;
use crate::auth::{Admin, Caller, Id, Need, Read};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::webhooks::{
    ChangedWebhook, Delivery, DeliveryDetail, DeliveryQuery, MadeWebhook, NewWebhook, SigningSecret, Webhook,
};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::Code;
use coffer_core::clock::{now_ms, rfc3339};
use coffer_work::webhooks::{new_key, ping};

const MOST_KINDS: usize = 50;
const LONGEST_TEXT: usize = 1000;

fn shown(row: WebhookRow, role: Role) -> Webhook {
    let url = match role {
        Role::Admin => row.url,
        // Only scheme and host.
        _ => format!("{}/…", row.url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/")),
    };
    Webhook {
        id: row.id.to_string(),
        url,
        events: row.events,
        secret: row.secret_name,
        context_id: row.context_id,
        description: row.description,
        enabled: row.enabled,
        disabled_reason: row.disabled_reason,
        waiting: row.waiting,
        failures: row.failures,
        failing_since: row.failing_since_ms.map(rfc3339),
        last_success_at: row.succeeded_ms.map(rfc3339),
        created_at: rfc3339(row.created_ms),
        updated_at: rfc3339(row.updated_ms),
    }
}

fn delivery(row: DeliveryRow) -> DeliveryDetail {
    let is_waiting = row.state == DeliveryState::Waiting;
    let delivery = Delivery {
        id: row.id.to_string(),
        event: row.event,
        kind: row.kind,
        state: row.state.as_str().to_string(),
        tries: row.tries,
        next_try_at: is_waiting.then(|| rfc3339(row.next_ms)),
        response_status: row.status,
        response: row.response,
        error: row.error,
        duration_ms: row.duration_ms,
        created_at: rfc3339(row.created_ms),
        ended_at: row.ended_ms.map(rfc3339),
    };
    DeliveryDetail { delivery, body: row.body }
}

fn record(error: WebhookRecordError, webhook: WebhookId) -> ApiError {
    match error {
        WebhookRecordError::NotFound => ApiError::nothing("webhook", webhook),
        WebhookRecordError::TooMany => {
            ApiError::conflict(format!("a project may have {MOST_WEBHOOKS} webhooks"))
                .hint("delete one with DELETE /api/v1/webhooks/{webhook}")
        }
        WebhookRecordError::Store(error) => ApiError::store(error),
    }
}

fn checked_kinds(kinds: &[String]) -> Result<(), ApiError> {
    let is_known = |wanted: &String| EventKind::ALL.iter().any(|kind| kind.fits(wanted));
    if !(1..=MOST_KINDS).contains(&kinds.len()) {
        return Err(ApiError::invalid("events", format!("must be 1 to {MOST_KINDS} kinds of events")));
    }
    match kinds.iter().position(|kind| !is_known(kind)) {
        None => Ok(()),
        Some(at) => Err(ApiError::invalid(
            &format!("events[{at}]"),
            "must be a kind such as `run.ended`, a beginning of some such as `task.*`, or `*`; docs/events.md lists all kinds",
        )),
    }
}

fn checked_text(name: &str, text: &str) -> Result<(), ApiError> {
    if text.len() <= LONGEST_TEXT && !text.chars().any(|letter| letter.is_control() && letter != '\n') {
        return Ok(());
    }
    Err(ApiError::invalid(name, format!("must have at most {LONGEST_TEXT} bytes and no control characters")))
}

fn checked_context(context: Option<&str>) -> Result<(), ApiError> {
    match context {
        Some("") => Err(ApiError::invalid("context_id", "must not be empty; leave it out for none")),
        Some(context) => checked_text("context_id", context),
        None => Ok(()),
    }
}

/// A secret that the project must have.
async fn stored_key(app: &App, caller: &Caller<Admin>, name: String) -> Result<WebhookKey, ApiError> {
    field::<SecretName>("secret", &name)?;
    let known = app.store.secrets(&caller.scope).await.map_err(ApiError::store)?;
    if !known.iter().any(|secret| secret.name == name) {
        return Err(ApiError::invalid("secret", format!("names secret '{name}', which does not exist"))
            .hint("create it first: PUT /api/v1/secrets/{name}; or leave it out to get a new key"));
    }
    Ok(WebhookKey::Stored(name))
}

/// Creates a webhook.
#[utoipa::path(
    post, path = "/api/v1/webhooks", tag = "webhooks", request_body = NewWebhook,
    responses((status = 201, body = MadeWebhook), (status = 409, body = ErrorShape, description = "there are too many"))
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Checked(new): Checked<NewWebhook>,
) -> Result<(StatusCode, Json<MadeWebhook>), ApiError> {
    app.webhooks.target(&new.url).map_err(|why| ApiError::invalid("url", why))?;
    checked_kinds(&new.events)?;
    checked_context(new.context_id.as_deref())?;
    checked_text("description", &new.description)?;
    let (key, signing_secret) = match new.secret {
        Some(name) => (stored_key(&app, &caller, name).await?, None),
        None => {
            let key = new_key();
            (WebhookKey::Own(key.clone()), Some(key.reveal().to_string()))
        }
    };
    let row = Row {
        url: new.url,
        events: new.events,
        context_id: new.context_id,
        description: new.description,
        key,
        enabled: new.enabled.unwrap_or(true),
    };
    let made = app.store.create_webhook(&caller.scope, row).await;
    let made = made.map_err(|error| record(error, WebhookId::generate()))?;
    context.made(made.id);
    let webhook = shown(made, Role::Admin);
    Ok((StatusCode::CREATED, Json(MadeWebhook { webhook, signing_secret })))
}

/// The project's webhooks, oldest first.
#[utoipa::path(
    get, path = "/api/v1/webhooks", tag = "webhooks", params(PageQuery),
    responses((status = 200, body = Page<Webhook>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Webhook>>, ApiError> {
    not_an_agents(&caller)?;
    let part = Part::of(page)?;
    let rows = app.store.webhooks(&caller.scope, part.after, part.to_fetch()).await;
    let rows = rows.map_err(ApiError::store)?;
    Ok(Json(part.page(rows, |row| row.id.to_string(), |row| shown(row, caller.role))))
}

/// Refuses agents' keys: deliveries have all events of the project, not only those about the agent.
fn not_an_agents<N: Need>(caller: &Caller<N>) -> Result<(), ApiError> {
    match caller.scope.agent() {
        None => Ok(()),
        Some(_) => Err(ApiError::of(Code::Forbidden, "an agent's key cannot see the project's webhooks")
            .hint("GET /api/v1/events shows an agent its own events")),
    }
}

async fn found(app: &App, caller: &Caller<impl Need>, webhook: WebhookId) -> Result<WebhookRow, ApiError> {
    let row = app.store.webhook(&caller.scope, webhook).await.map_err(ApiError::store)?;
    row.ok_or_else(|| ApiError::nothing("webhook", webhook))
}

/// One webhook.
#[utoipa::path(
    get, path = "/api/v1/webhooks/{webhook}", tag = "webhooks", params(("webhook" = String, Path)),
    responses((status = 200, body = Webhook))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(webhook): Id<WebhookId>,
) -> Result<Json<Webhook>, ApiError> {
    not_an_agents(&caller)?;
    Ok(Json(shown(found(&app, &caller, webhook).await?, caller.role)))
}

/// Changes a webhook.
#[utoipa::path(
    patch, path = "/api/v1/webhooks/{webhook}", tag = "webhooks", request_body = ChangedWebhook,
    params(("webhook" = String, Path)),
    responses((status = 200, body = Webhook))
)]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(webhook): Id<WebhookId>,
    Checked(request): Checked<ChangedWebhook>,
) -> Result<Json<Webhook>, ApiError> {
    if let Some(url) = &request.url {
        app.webhooks.target(url).map_err(|why| ApiError::invalid("url", why))?;
    }
    if let Some(kinds) = &request.events {
        checked_kinds(kinds)?;
    }
    checked_context(request.context_id.as_ref().and_then(|context| context.as_deref()))?;
    checked_text("description", request.description.as_deref().unwrap_or_default())?;
    let key = match request.secret {
        Some(name) => Some(stored_key(&app, &caller, name).await?),
        None => None,
    };
    let change = WebhookChange {
        url: request.url,
        events: request.events,
        context_id: request.context_id,
        description: request.description,
        key,
        enabled: request.enabled,
    };
    let changed = app.store.change_webhook(&caller.scope, webhook, change).await;
    let changed = changed.map_err(|error| record(error, webhook))?;
    app.webhooks.wake();
    Ok(Json(shown(changed, Role::Admin)))
}

/// Deletes a webhook, its waiting deliveries, and its log.
#[utoipa::path(
    delete, path = "/api/v1/webhooks/{webhook}", tag = "webhooks", params(("webhook" = String, Path)),
    responses((status = 204))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(webhook): Id<WebhookId>,
) -> Result<StatusCode, ApiError> {
    match app.store.remove_webhook(&caller.scope, webhook).await.map_err(ApiError::store)? {
        true => {
            app.webhooks.clear();
            Ok(StatusCode::NO_CONTENT)
        }
        false => Err(ApiError::nothing("webhook", webhook)),
    }
}

/// Creates a new key for the webhook, which signs the next deliveries.
#[utoipa::path(
    post, path = "/api/v1/webhooks/{webhook}/rotate", tag = "webhooks", params(("webhook" = String, Path)),
    responses(
        (status = 200, body = SigningSecret),
        (status = 409, body = ErrorShape, description = "it is signed with a secret of the project")
    )
)]
pub(super) async fn rotate(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(webhook): Id<WebhookId>,
) -> Result<Json<SigningSecret>, ApiError> {
    if let Some(name) = found(&app, &caller, webhook).await?.secret_name {
        return Err(ApiError::conflict(format!("webhook {webhook} is signed with the secret '{name}'"))
            .hint("replace its value: PUT /api/v1/secrets/{name}"));
    }
    let key = new_key();
    let change = WebhookChange { key: Some(WebhookKey::Own(key.clone())), ..WebhookChange::default() };
    let changed = app.store.change_webhook(&caller.scope, webhook, change).await;
    changed.map_err(|error| record(error, webhook))?;
    Ok(Json(SigningSecret { signing_secret: key.reveal().to_string() }))
}

/// Sends a test (`webhook.ping`), also if the webhook is disabled.
#[utoipa::path(
    post, path = "/api/v1/webhooks/{webhook}/test", tag = "webhooks", params(("webhook" = String, Path)),
    responses((status = 202, body = DeliveryDetail))
)]
pub(super) async fn test(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(webhook): Id<WebhookId>,
) -> Result<(StatusCode, Json<DeliveryDetail>), ApiError> {
    let kind = EventKind::WebhookPing.as_str();
    let queued = app.store.queue_test(&caller.scope, webhook, kind, ping(webhook, now_ms())).await;
    let queued = queued.map_err(ApiError::store)?.ok_or_else(|| ApiError::nothing("webhook", webhook))?;
    app.webhooks.wake();
    Ok((StatusCode::ACCEPTED, Json(delivery(queued))))
}

/// The deliveries to a webhook, newest first.
#[utoipa::path(
    get, path = "/api/v1/webhooks/{webhook}/deliveries", tag = "webhooks",
    params(("webhook" = String, Path), PageQuery, DeliveryQuery),
    responses((status = 200, body = Page<Delivery>))
)]
pub(super) async fn deliveries(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(webhook): Id<WebhookId>,
    Query(page): Query<PageQuery>,
    Query(query): Query<DeliveryQuery>,
) -> Result<Json<Page<Delivery>>, ApiError> {
    not_an_agents(&caller)?;
    let part = Part::of(page)?;
    let state = match query.state.as_deref() {
        None => None,
        Some(text) => Some(
            DeliveryState::parse(text)
                .ok_or_else(|| ApiError::invalid("state", "must be `waiting`, `delivered` or `failed`"))?,
        ),
    };
    found(&app, &caller, webhook).await?;
    let rows = app.store.deliveries(&caller.scope, webhook, state, part.after, part.to_fetch()).await;
    let rows = rows.map_err(ApiError::store)?;
    Ok(Json(part.page(rows, |row| row.id.to_string(), |row| delivery(row).delivery)))
}

/// The two ids of a path; a malformed one is not found.
fn both(path: (String, String)) -> Result<(WebhookId, DeliveryId), ApiError> {
    let short = |text: &String| text.chars().take(64).collect::<String>();
    let webhook = path.0.parse().map_err(|_| ApiError::nothing("webhook", short(&path.0)))?;
    let delivery = path.1.parse().map_err(|_| ApiError::nothing("delivery", short(&path.1)))?;
    Ok((webhook, delivery))
}

/// One delivery, with its body.
#[utoipa::path(
    get, path = "/api/v1/webhooks/{webhook}/deliveries/{delivery}", tag = "webhooks",
    params(("webhook" = String, Path), ("delivery" = String, Path)),
    responses((status = 200, body = DeliveryDetail))
)]
pub(super) async fn delivery_detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(path): Path<(String, String)>,
) -> Result<Json<DeliveryDetail>, ApiError> {
    not_an_agents(&caller)?;
    let (webhook, id) = both(path)?;
    let row = app.store.delivery(&caller.scope, webhook, id).await.map_err(ApiError::store)?;
    row.map(|row| Json(delivery(row))).ok_or_else(|| ApiError::nothing("delivery", id))
}

/// Sends a delivery again, under the same id, with as many tries as a new one.
#[utoipa::path(
    post, path = "/api/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", tag = "webhooks",
    params(("webhook" = String, Path), ("delivery" = String, Path)),
    responses(
        (status = 202, body = DeliveryDetail),
        (status = 409, body = ErrorShape, description = "it is being sent right now")
    )
)]
pub(super) async fn redeliver(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Path(path): Path<(String, String)>,
) -> Result<(StatusCode, Json<DeliveryDetail>), ApiError> {
    let (webhook, id) = both(path)?;
    match app.store.redeliver(&caller.scope, webhook, id).await.map_err(ApiError::store)? {
        Redelivery::Queued(row) => {
            app.webhooks.wake();
            Ok((StatusCode::ACCEPTED, Json(delivery(*row))))
        }
        Redelivery::UnderWay => {
            Err(ApiError::conflict(format!("delivery {id} is being sent right now")).retry_after(1))
        }
        Redelivery::NotFound => Err(ApiError::nothing("delivery", id)),
    }
}
