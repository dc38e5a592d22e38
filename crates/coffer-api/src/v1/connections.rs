//! Connections to forges, and their webhooks.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use coffer_api_types::connections::{
    AppIds, Connection, NewConnection, Permissions, ReachableQuery, RemoteQuery, Taken,
};
use coffer_api_types::repositories::RemoteRepository;
use coffer_core::ConnectionId;
use coffer_core::forge::ForgeKind;
use coffer_forge::{Delivery, GITHUB, WebhookError};
use coffer_store::{
    ConnectionRow, ConnectionTerms, Credential, ForgeRecordError, NewConnection as Row, SecretName,
};
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::page::Part;
use super::repositories::{field, forge_part, listed};
use crate::app::App;
use crate::auth::{Admin, Caller, Id, Read};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::names::check_name;
use crate::query::Query;
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::Code;
use coffer_core::clock::rfc3339;
use coffer_proxy::Client;

/// The longest delivery; GitHub's usually have a few tens of KiB.
const LONGEST_DELIVERY: usize = 4 << 20;
const DELIVERED_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);

fn shown(row: ConnectionRow) -> Connection {
    let (secret, app, user) = match row.terms.credential {
        Credential::Token { secret } => (secret, None, None),
        Credential::App { secret, app_id, installation_id } => {
            (secret, Some(AppIds { app_id, installation_id }), None)
        }
        Credential::Basic { user, secret } => (secret, None, Some(user)),
    };
    Connection {
        webhook_path: format!("/api/v1/forge/webhooks/{}", row.id),
        id: row.id.to_string(),
        name: row.name,
        kind: row.kind.as_str().to_string(),
        base_url: row.base_url,
        secret,
        app,
        user,
        webhook_secret: row.terms.webhook_secret,
        created_at: rfc3339(row.created_ms),
    }
}

fn record(error: ForgeRecordError, what: &str) -> ApiError {
    match error {
        ForgeRecordError::NotFound => ApiError::nothing("connection", what),
        ForgeRecordError::Store(error) => ApiError::store(error),
        ForgeRecordError::Taken { .. } => ApiError::conflict(format!("connection '{what}' exists already")),
        ForgeRecordError::TooMany(most) => {
            ApiError::conflict(format!("a project may have {most} connections"))
        }
        ForgeRecordError::InUse | ForgeRecordError::Raced => {
            ApiError::conflict(format!("connection {what} is used by repositories"))
                .hint("remove those repositories first")
        }
    }
}

/// Refuses fields that belong to another kind of forge.
fn check_fields_of_kind(new: &NewConnection) -> Result<(), ApiError> {
    if new.kind != ForgeKind::Git {
        return match new.user {
            Some(_) => Err(ApiError::invalid("user", "is for connections of kind `git`")),
            None => Ok(()),
        };
    }
    let Some(user) = &new.user else {
        return Err(ApiError::invalid("user", "is missing: with a token, most servers take any name")
            .hint("GitLab and Gitea take `git`"));
    };
    // Of the header, `:` ends the name.
    let fits = |c: char| !c.is_control() && c != ':';
    if !(1..=100).contains(&user.chars().count()) || !user.chars().all(fits) {
        return Err(ApiError::invalid("user", "has 1 to 100 characters, without `:`"));
    }
    if new.app.is_some() || new.webhook_secret.is_some() {
        return Err(ApiError::invalid("kind", "`git` has neither an App nor webhooks"));
    }
    Ok(())
}

/// Creates a connection to a forge. Its address cannot change later, so its token is never sent elsewhere.
#[utoipa::path(
    post, path = "/api/v1/forge/connections", tag = "forge", request_body = NewConnection,
    responses((status = 201, body = Connection), (status = 409, body = ErrorShape, description = "the name is taken"))
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Checked(new): Checked<NewConnection>,
) -> Result<(StatusCode, Json<Connection>), ApiError> {
    check_name(&new.name)?;
    let base_url = match (new.kind, new.base_url.as_deref()) {
        (ForgeKind::GitHub, url) => app.forges.address(url.unwrap_or(GITHUB)),
        (ForgeKind::Git, Some(url)) => app.forges.plain_address(url),
        (ForgeKind::Git, None) => {
            return Err(ApiError::invalid("base_url", "is missing: the git server's address"));
        }
        (ForgeKind::Local, _) => {
            let why = "must be `github` or `git`; local repositories need no connection";
            return Err(ApiError::invalid("kind", why));
        }
    };
    let base_url = base_url.map_err(ApiError::forge)?;
    check_fields_of_kind(&new)?;
    let known = app.store.secrets(&caller.scope).await.map_err(ApiError::store)?;
    let secret = |name: &str, text: String| {
        field::<SecretName>(name, &text)?;
        if !known.iter().any(|secret| secret.name == text) {
            return Err(ApiError::invalid(name, format!("names secret '{text}', which does not exist"))
                .hint("create it first: PUT /api/v1/secrets/{name}"));
        }
        Ok(text)
    };
    let name = secret("secret", new.secret)?;
    let credential = match new.app {
        None => match new.user {
            Some(user) => Credential::Basic { user, secret: name },
            None => Credential::Token { secret: name },
        },
        Some(AppIds { app_id, installation_id }) if app_id > 0 && installation_id > 0 => {
            Credential::App { secret: name, app_id, installation_id }
        }
        Some(_) => return Err(ApiError::invalid("app", "must have ids above 0")),
    };
    let webhook_secret = new.webhook_secret.map(|text| secret("webhook_secret", text)).transpose()?;
    let terms = ConnectionTerms { credential, webhook_secret };
    let row = Row { name: new.name.clone(), kind: new.kind, base_url, terms };
    let made = app.store.create_connection(&caller.scope, row).await;
    let made = made.map_err(|error| record(error, &new.name))?;
    context.made(made.id);
    Ok((StatusCode::CREATED, Json(shown(made))))
}

/// Lists the project's connections, oldest first.
#[utoipa::path(
    get, path = "/api/v1/forge/connections", tag = "forge", params(PageQuery),
    responses((status = 200, body = Page<Connection>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Connection>>, ApiError> {
    let part = Part::of(page)?;
    let rows = app.store.connections(&caller.scope, part.after, part.to_fetch()).await;
    Ok(Json(part.page(rows.map_err(ApiError::store)?, |row| row.id.to_string(), shown)))
}

/// One connection.
#[utoipa::path(
    get, path = "/api/v1/forge/connections/{connection}", tag = "forge", params(("connection" = String, Path)),
    responses((status = 200, body = Connection))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(connection): Id<ConnectionId>,
) -> Result<Json<Connection>, ApiError> {
    let found = app.store.connection(&caller.scope, connection).await.map_err(ApiError::store)?;
    found.map(|row| Json(shown(row))).ok_or_else(|| ApiError::nothing("connection", connection))
}

/// Deletes a connection that no repository uses.
#[utoipa::path(
    delete, path = "/api/v1/forge/connections/{connection}", tag = "forge",
    params(("connection" = String, Path)),
    responses((status = 204), (status = 409, body = ErrorShape, description = "repositories use it"))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(connection): Id<ConnectionId>,
) -> Result<StatusCode, ApiError> {
    let removed = app.store.remove_connection(&caller.scope, connection).await;
    removed.map_err(|error| record(error, &connection.to_string()))?;
    app.forges.disconnected(connection);
    Ok(StatusCode::NO_CONTENT)
}

/// Checks whether the credential suffices for all steps of a task on a repository, and lists missing
/// permissions.
#[utoipa::path(
    get, path = "/api/v1/forge/connections/{connection}/permissions", tag = "forge",
    params(("connection" = String, Path), RemoteQuery),
    responses((status = 200, body = Permissions), (status = 409, body = ErrorShape))
)]
pub(super) async fn permissions(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(connection): Id<ConnectionId>,
    Query(query): Query<RemoteQuery>,
) -> Result<Json<Permissions>, ApiError> {
    let told = app.forges.permissions(&caller.scope, connection, &query.repository).await;
    told.map(Json).map_err(ApiError::forge)
}

/// The repositories that a connection's credential can see, those that were pushed to last first.
#[utoipa::path(
    get, path = "/api/v1/forge/connections/{connection}/repositories", tag = "forge",
    params(("connection" = String, Path), ReachableQuery, PageQuery),
    responses((status = 200, body = Page<RemoteRepository>), (status = 409, body = ErrorShape))
)]
pub(super) async fn repositories(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(connection): Id<ConnectionId>,
    Query(query): Query<ReachableQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<RemoteRepository>>, ApiError> {
    let search = query.search.unwrap_or_default();
    if search.len() > 200 {
        return Err(ApiError::invalid("search", "must have at most 200 bytes"));
    }
    let found = app.forges.reachable(&caller.scope, connection, &search, forge_part(page)?).await;
    Ok(listed(found.map_err(ApiError::forge)?))
}

/// Receives webhooks of the forge. `X-Hub-Signature-256` must be valid; a delivery is recorded once.
#[utoipa::path(
    post, path = "/api/v1/forge/webhooks/{connection}", tag = "forge", security(()),
    params(
        ("connection" = String, Path), ("X-GitHub-Event" = String, Header),
        ("X-GitHub-Delivery" = String, Header), ("X-Hub-Signature-256" = String, Header)
    ),
    request_body(content = Object, content_type = "application/json"),
    responses(
        (status = 200, body = Taken), (status = 400, body = ErrorShape),
        (status = 401, body = ErrorShape, description = "the signature is wrong"),
        (status = 404, body = ErrorShape), (status = 408, body = ErrorShape), (status = 413, body = ErrorShape),
        (status = 429, body = ErrorShape), (status = 503, body = ErrorShape)
    )
)]
pub(super) async fn webhook(
    State(app): State<Arc<App>>,
    Id(connection): Id<ConnectionId>,
    axum::Extension(client): axum::Extension<Client>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Taken>, ApiError> {
    let peer = client.peer.ip();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let signature = text("x-hub-signature-256");
    app.limiter.may_try(peer, signature).map_err(ApiError::too_fast)?;
    let refused = |error| match error {
        WebhookError::Store(error) => ApiError::store(error),
        WebhookError::Invalid(why) => ApiError::bad_request(why),
        WebhookError::Unknown => {
            app.limiter.refused(peer);
            ApiError::nothing("connection that takes webhooks", connection)
        }
        WebhookError::Unsigned => {
            app.limiter.refused(peer);
            ApiError::of(Code::Unauthorized, "the signature of the delivery is wrong")
                .hint("the secret of the webhook on the forge must be the connection's webhook_secret")
        }
    };
    let door = app.forges.webhook_door(connection).await.map_err(refused)?;
    let body = Limited::new(body, LONGEST_DELIVERY).collect();
    let Ok(body) = tokio::time::timeout(DELIVERED_WITHIN, body).await else {
        return Err(ApiError::of(Code::RequestTimeout, "the delivery did not arrive in time"));
    };
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => {
            ApiError::of(Code::PayloadTooLarge, format!("a delivery has at most {LONGEST_DELIVERY} bytes"))
        }
        false => ApiError::bad_request("the connection ended before the whole delivery arrived"),
    })?;
    let named = (text("x-github-delivery"), text("x-github-event"), signature);
    let taken = app.forges.take_webhook(&door, named, &body.to_bytes()).await.map_err(refused)?;
    let outcome = match taken {
        Delivery::Recorded => "recorded",
        Delivery::Ignored => "ignored",
        Delivery::Repeated => "repeated",
    };
    Ok(Json(Taken { outcome: outcome.to_string() }))
}
