//! The caller's identity, and sign-in of the web UI with the token of a one-time link.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use coffer_store::Authenticated;
use http::StatusCode;

use super::keys::made;
use crate::app::App;
use crate::auth::{Anyone, Caller, Read};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use coffer_api_types::ErrorShape;
use coffer_api_types::keys::MadeKey;
use coffer_api_types::session::{Identity, OwnProject, SignIn, SignInLink};
use coffer_core::Code;
use coffer_core::clock::rfc3339;
use coffer_proxy::Client;

/// How long a key from a link is valid: a working day.
const SESSION_MS: i64 = 12 * 3600 * 1000;
/// How long a link of a key is valid: a browser opens it at once.
const LINK_MS: i64 = 2 * 60 * 1000;

/// Describes the caller's key.
#[utoipa::path(
    get, path = "/api/v1/me", tag = "keys",
    responses((status = 200, body = Identity))
)]
pub(super) async fn me(
    State(app): State<Arc<App>>,
    Anyone(whom): Anyone,
) -> Result<Json<Identity>, ApiError> {
    let (role, project, agent_id) = match &whom {
        Authenticated::Operator { .. } => ("operator".to_string(), None, None),
        Authenticated::Project(principal) => {
            let id = principal.scope.project();
            let project = app.store.project(&principal.scope, id).await.map_err(ApiError::store)?;
            let project = project.ok_or_else(|| ApiError::nothing("project", id))?;
            let project = OwnProject { id: id.to_string(), name: project.name };
            let agent = principal.scope.agent().map(|agent| agent.to_string());
            (principal.role.to_string(), Some(project), agent)
        }
    };
    Ok(Json(Identity {
        role,
        key_id: whom.key().to_string(),
        project,
        agent_id,
        domain: app.domain.clone(),
        version: env!("CARGO_PKG_VERSION").to_string(),
    }))
}

/// Creates a one-time link that signs a browser in with the rights of the caller's key.
///
/// It is valid for two minutes. The key that it is exchanged for has the caller's project, role and kind; it ends with the
/// caller's key, and after 12 hours. Keys of agents cannot create links.
#[utoipa::path(
    post, path = "/api/v1/sign-in-links", tag = "keys",
    responses((status = 201, body = SignInLink))
)]
pub(super) async fn create_link(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    context: Context,
) -> Result<(StatusCode, Json<SignInLink>), ApiError> {
    let made = app.store.create_link_of_key(&caller.scope, caller.key_id, LINK_MS).await;
    let Some((link, expires_ms)) = made.map_err(ApiError::store)? else {
        return Err(ApiError::of(
            Code::Forbidden,
            "this key cannot create a link: it has ended, or is an agent's",
        ));
    };
    context.made(link.id());
    let shown = SignInLink { token: link.reveal().to_string(), expires_at: rfc3339(expires_ms) };
    Ok((StatusCode::CREATED, Json(shown)))
}

/// Exchanges the token of a one-time link, as `coffer up` prints it and `POST /api/v1/sign-in-links` creates it, for a key that expires after 12 hours.
///
/// A token can be exchanged once.
#[utoipa::path(
    post, path = "/api/v1/sign-in", tag = "keys", security(()), request_body = SignIn,
    responses(
        (status = 201, body = MadeKey), (status = 400, body = ErrorShape), (status = 422, body = ErrorShape),
        (status = 403, body = ErrorShape, description = "the link is unknown, used or expired"),
        (status = 429, body = ErrorShape), (status = 503, body = ErrorShape)
    )
)]
pub(super) async fn sign_in(
    State(app): State<Arc<App>>,
    client: Option<Extension<Client>>,
    context: Context,
    Checked(SignIn { token }): Checked<SignIn>,
) -> Result<(StatusCode, Json<MadeKey>), ApiError> {
    let peer = client.map(|Extension(client)| client.peer.ip());
    if let Some(peer) = peer {
        app.limiter.may_try(peer, &token).map_err(ApiError::too_fast)?;
    }
    let redeemed = app.store.redeem_sign_in_link(&token, "web UI", SESSION_MS);
    let Some(secret) = redeemed.await.map_err(ApiError::store)? else {
        if let Some(peer) = peer {
            app.limiter.refused(peer);
        }
        return Err(ApiError::of(Code::Forbidden, "this link was already used, or has expired")
            .hint("sign in with a key, or get a new link: `coffer open`"));
    };
    if let Some(whom) = app.store.authenticate(secret.reveal()).await.map_err(ApiError::store)? {
        context.authenticated(whom);
    }
    context.made(secret.id());
    Ok(made(&secret))
}
