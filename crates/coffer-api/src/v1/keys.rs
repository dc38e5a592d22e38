//! The project's API keys.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::{KeyId, KeyKind, Role};
use coffer_store::{ApiKeyInfo, ApiKeySecret, NewKey};
use http::StatusCode;

use crate::app::App;
use crate::auth::{Admin, Caller, Id};
use crate::body::{Checked, MaybeChecked};
use crate::context::Context;
use crate::error::ApiError;
use crate::names::check_name;
use coffer_api_types::keys::{Key, MadeKey, NewKeyRequest, RotateRequest};
use coffer_api_types::{ErrorShape, Page};
use coffer_core::Code;
use coffer_core::clock::{now_ms, rfc3339};

const LONGEST_OVERLAP_S: i64 = 30 * 24 * 3600;
const USUAL_OVERLAP_S: i64 = 24 * 3600;

pub(super) fn made(secret: &ApiKeySecret) -> (StatusCode, Json<MadeKey>) {
    (StatusCode::CREATED, Json(MadeKey { id: secret.id().to_string(), key: secret.reveal().to_string() }))
}

fn shown(key: ApiKeyInfo) -> Key {
    Key {
        id: key.id.to_string(),
        name: key.name,
        role: key.role,
        kind: key.kind,
        agent_id: key.agent.map(|agent| agent.to_string()),
        prefix: key.prefix,
        created_at: rfc3339(key.created_ms),
        expires_at: key.expires_ms.map(rfc3339),
        revoked_at: key.revoked_ms.map(rfc3339),
        last_used_at: key.last_used_ms.map(rfc3339),
    }
}

pub(super) fn checked(request: NewKeyRequest) -> Result<NewKey, ApiError> {
    check_name(&request.name)?;
    let expires_ms = match request.expires_in_s {
        None => None,
        Some(seconds) if seconds >= 1 => Some(now_ms().saturating_add(seconds.saturating_mul(1000))),
        Some(_) => return Err(ApiError::invalid("expires_in_s", "must be at least 1")),
    };
    if request.agent_id.is_some() && request.role == Some(Role::Admin) {
        return Err(ApiError::invalid("role", "of an agent's key must be read or write"));
    }
    let kind = match (request.kind, request.agent_id) {
        (None | Some(KeyKind::Agent), Some(_)) => KeyKind::Agent,
        (None | Some(KeyKind::Service), None) => KeyKind::Service,
        (Some(KeyKind::Person), None) => KeyKind::Person,
        (Some(_), Some(_)) => return Err(ApiError::invalid("kind", "of an agent's key must be agent")),
        (Some(_), None) => return Err(ApiError::invalid("kind", "must be person or service")),
    };
    Ok(NewKey {
        name: request.name,
        role: request.role.unwrap_or(Role::Write),
        kind,
        agent: request.agent_id,
        expires_ms,
    })
}

/// A service with a person's key could approve with it.
fn by_person(caller: &Caller<Admin>, kind: KeyKind) -> Result<(), ApiError> {
    if kind == KeyKind::Person && caller.kind != KeyKind::Person {
        return Err(ApiError::of(Code::Forbidden, "only a person's key can create keys for people")
            .hint("ask an admin of the project, or an operator"));
    }
    Ok(())
}

/// Creates a key for this project.
#[utoipa::path(
    post, path = "/api/v1/keys", tag = "keys", request_body = NewKeyRequest,
    responses((status = 201, body = MadeKey), (status = 404, body = ErrorShape, description = "no such agent"))
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Checked(request): Checked<NewKeyRequest>,
) -> Result<(StatusCode, Json<MadeKey>), ApiError> {
    let key = checked(request)?;
    by_person(&caller, key.kind)?;
    if let Some(agent) = key.agent {
        let known = app.store.agent(&caller.scope, agent).await.map_err(ApiError::store)?;
        known.ok_or_else(|| ApiError::nothing("agent", agent))?;
    }
    let project = caller.scope.project();
    let secret = app.store.create_key(&app.store.operator(), project, key).await.map_err(ApiError::store)?;
    context.made(secret.id());
    Ok(made(&secret))
}

/// The keys of this project, oldest first, revoked ones included.
#[utoipa::path(
    get, path = "/api/v1/keys", tag = "keys",
    responses((status = 200, body = Page<Key>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
) -> Result<Json<Page<Key>>, ApiError> {
    let keys = app.store.keys(&caller.scope).await.map_err(ApiError::store)?;
    Ok(Json(Page::new(keys.into_iter().map(shown).collect(), None)))
}

/// Revokes a key at once.
#[utoipa::path(
    delete, path = "/api/v1/keys/{key}", tag = "keys", params(("key" = String, Path)),
    responses((status = 204), (status = 409, body = ErrorShape, description = "it is the caller's own key"))
)]
pub(super) async fn revoke(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(key): Id<KeyId>,
) -> Result<StatusCode, ApiError> {
    if key == caller.key_id {
        return Err(
            ApiError::conflict("a key cannot revoke itself").hint("use another admin key of the project")
        );
    }
    let revoked = app.store.revoke_key(&caller.scope, key).await.map_err(ApiError::store)?;
    if revoked { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::nothing("key", key)) }
}

/// Creates a key's successor with the same rights; the old one stays valid for a while.
#[utoipa::path(
    post, path = "/api/v1/keys/{key}/rotate", tag = "keys", params(("key" = String, Path)),
    request_body = Option<RotateRequest>,
    responses((status = 201, body = MadeKey))
)]
pub(super) async fn rotate(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(key): Id<KeyId>,
    MaybeChecked(request): MaybeChecked<RotateRequest>,
) -> Result<(StatusCode, Json<MadeKey>), ApiError> {
    let overlap_s = request.overlap_s.unwrap_or(USUAL_OVERLAP_S);
    if !(0..=LONGEST_OVERLAP_S).contains(&overlap_s) {
        return Err(ApiError::invalid("overlap_s", format!("must be between 0 and {LONGEST_OVERLAP_S}")));
    }
    let keys = app.store.keys(&caller.scope).await.map_err(ApiError::store)?;
    if let Some(old) = keys.iter().find(|old| old.id == key) {
        by_person(&caller, old.kind)?;
    }
    let secret = app.store.rotate_key(&caller.scope, key, overlap_s * 1000).await;
    Ok(made(&secret.map_err(|error| ApiError::name(error, "key", key))?))
}
