//! The caller's identity, and sign-in of the web UI: by the token of a one-time link or by a key, for a session of the browser.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use coffer_store::{Authenticated, NewSession};
use http::header::{ORIGIN, SET_COOKIE, USER_AGENT};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::keys::made;
use crate::app::App;
use crate::auth::{Anyone, Caller, Id, Read, key_in_body};
use crate::body::Checked;
use crate::context::Context;
use crate::credential;
use crate::error::ApiError;
use crate::names::check_name;
use coffer_api_types::keys::MadeKey;
use coffer_api_types::session::{
    BegunSession, EndedSessions, Identity, NewSessionRequest, OwnName, OwnProject, Session, SignIn,
    SignInLink,
};
use coffer_api_types::{ErrorShape, Page};
use coffer_core::clock::rfc3339;
use coffer_core::{Code, KeyId, KeyKind};
use coffer_proxy::{Client, PLAIN_COOKIE, SECURE_COOKIE};

/// How long a key from a link is valid: a working day.
const SESSION_MS: i64 = 12 * 3600 * 1000;
/// How long a link of a key is valid: a browser opens it at once.
const LINK_MS: i64 = 2 * 60 * 1000;

/// Describes the caller's key or session.
#[utoipa::path(
    get, path = "/api/v1/me", tag = "keys",
    responses((status = 200, body = Identity))
)]
pub(super) async fn me(
    State(app): State<Arc<App>>,
    Anyone(whom): Anyone,
) -> Result<Json<Identity>, ApiError> {
    let mut person = None;
    let (role, project, agent_id) = match &whom {
        Authenticated::Operator { .. } => ("operator".to_string(), None, None),
        Authenticated::Project(principal) => {
            let id = principal.scope.project();
            let project = app.store.project(&principal.scope, id).await.map_err(ApiError::store)?;
            let project = project.ok_or_else(|| ApiError::nothing("project", id))?;
            let project = OwnProject { id: id.to_string(), name: project.name };
            let agent = principal.scope.agent().map(|agent| agent.to_string());
            if let Some(id) = principal.person() {
                person = app.store.person(&principal.scope, id).await.map_err(ApiError::store)?;
            }
            (principal.role.to_string(), Some(project), agent)
        }
    };
    Ok(Json(Identity {
        role,
        key_id: whom.key().to_string(),
        actor: match &whom {
            Authenticated::Operator { key } => format!("operator:{key}"),
            Authenticated::Project(principal) => principal.actor.to_string(),
        },
        project,
        person_id: person.as_ref().map(|person| person.id.to_string()),
        name: person.map(|person| person.name),
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
    if caller.is_visiting() {
        let operator = app.store.operator();
        let made = app.store.create_sign_in_link(&operator, caller.scope.project(), LINK_MS).await;
        let link = made.map_err(ApiError::store)?;
        context.made(link.id());
        let expires_at = rfc3339(coffer_core::clock::now_ms() + LINK_MS);
        let shown = SignInLink { token: link.reveal().to_string(), expires_at };
        return Ok((StatusCode::CREATED, Json(shown)));
    }
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

/// Signs a browser in: begins a session with the rights of a one-time link, or of a key.
///
/// The browser gets half of the session's secret as a cookie that scripts cannot read, and the page gets the other half in the
/// answer. Only both together open anything. A session that the browser had ends. Keys of agents cannot begin sessions.
#[utoipa::path(
    post, path = "/api/v1/sessions", tag = "keys", security(()), request_body = NewSessionRequest,
    responses(
        (status = 201, body = BegunSession), (status = 400, body = ErrorShape), (status = 422, body = ErrorShape),
        (status = 401, body = ErrorShape, description = "the key is not valid"),
        (status = 403, body = ErrorShape, description = "the link is unknown, used or expired, or the key is an agent's"),
        (status = 429, body = ErrorShape), (status = 503, body = ErrorShape)
    )
)]
pub(super) async fn begin(
    State(app): State<Arc<App>>,
    client: Option<Extension<Client>>,
    headers: HeaderMap,
    context: Context,
    Checked(request): Checked<NewSessionRequest>,
) -> Result<(StatusCode, HeaderMap, Json<BegunSession>), ApiError> {
    credential::check_site(&headers)?;
    let client = client.map(|Extension(client)| client);
    let session = new_session(&app, &headers, client.as_ref());
    let lasting_ms = session.lasting_ms;
    let secret = match (request.token, request.key) {
        (Some(token), None) => {
            let peer = client.as_ref().map(|client| client.peer.ip());
            if let Some(peer) = peer {
                app.limiter.may_try(peer, &token).map_err(ApiError::too_fast)?;
            }
            let redeemed = app.store.redeem_link_for_session(&token, session).await;
            redeemed.map_err(ApiError::store)?.ok_or_else(|| {
                if let Some(peer) = peer {
                    app.limiter.refused(peer);
                }
                ApiError::of(Code::Forbidden, "this link was already used, or has expired")
                    .hint("sign in with a key, or get a new link: `coffer open`")
            })?
        }
        (None, Some(key)) => {
            let whom = key_in_body(&app, client.as_ref(), &key).await?;
            let begun = if whom.kind() == KeyKind::Agent {
                None
            } else {
                app.store.begin_session(&whom, session).await.map_err(ApiError::store)?
            };
            begun.ok_or_else(|| {
                ApiError::of(Code::Forbidden, "an agent's key cannot sign a browser in")
                    .hint("use a person's key, or ask a colleague for a sign-in link")
            })?
        }
        _ => return Err(ApiError::bad_request("send either `token` or `key`")),
    };
    if let Some(earlier) = credential::shown(&headers).ok().flatten()
        && let Some((whom, _)) = earlier.holder(&app).await?
        && whom.key() != secret.id()
    {
        app.store.end_sessions(&whom, Some(whom.key())).await.map_err(ApiError::store)?;
    }
    if let Some(whom) = app.store.still_valid(secret.reveal()).await.map_err(ApiError::store)? {
        context.authenticated(whom);
    }
    context.made(secret.id());
    let (cookie, page) = secret.halves().ok_or_else(ApiError::internal)?;
    let expires_at = rfc3339(coffer_core::clock::now_ms().saturating_add(lasting_ms));
    let begun = BegunSession { id: secret.id().to_string(), secret: page.to_string(), expires_at };
    Ok((StatusCode::CREATED, cookies(&headers, cookie, lasting_ms / 1000), Json(begun)))
}

/// The sessions of the caller: of the person, or of the key that began them.
#[utoipa::path(
    get, path = "/api/v1/sessions", tag = "keys",
    responses((status = 200, body = Page<Session>))
)]
pub(super) async fn sessions(
    State(app): State<Arc<App>>,
    Anyone(whom): Anyone,
) -> Result<Json<Page<Session>>, ApiError> {
    let rows = app.store.sessions(&whom).await.map_err(ApiError::store)?;
    let shown = rows.into_iter().map(|row| Session {
        current: row.id == whom.key(),
        id: row.id.to_string(),
        browser: row.browser,
        address: row.address,
        created_at: rfc3339(row.created_ms),
        last_used_at: rfc3339(row.last_used_ms),
        expires_at: rfc3339(row.expires_ms),
    });
    Ok(Json(Page::new(shown.collect(), None)))
}

/// Ends one of the caller's sessions; the current one too, which signs the browser out.
#[utoipa::path(
    delete, path = "/api/v1/sessions/{session}", tag = "keys", params(("session" = String, Path)),
    responses((status = 204))
)]
pub(super) async fn end(
    State(app): State<Arc<App>>,
    Anyone(whom): Anyone,
    headers: HeaderMap,
    Id(session): Id<KeyId>,
) -> Result<(StatusCode, HeaderMap), ApiError> {
    let ended = app.store.end_sessions(&whom, Some(session)).await.map_err(ApiError::store)?;
    if ended == 0 {
        return Err(ApiError::nothing("session", session));
    }
    let gone = if session == whom.key() { cookies(&headers, "", 0) } else { HeaderMap::new() };
    Ok((StatusCode::NO_CONTENT, gone))
}

/// Signs the caller out everywhere: ends all sessions, and sign-in links that were not used yet.
#[utoipa::path(
    delete, path = "/api/v1/sessions", tag = "keys",
    responses((status = 200, body = EndedSessions))
)]
pub(super) async fn end_all(
    State(app): State<Arc<App>>,
    Anyone(whom): Anyone,
    headers: HeaderMap,
) -> Result<(HeaderMap, Json<EndedSessions>), ApiError> {
    let ended = app.store.end_sessions(&whom, None).await.map_err(ApiError::store)?;
    Ok((cookies(&headers, "", 0), Json(EndedSessions { ended: ended as u64 })))
}

/// Gives the person who holds this key or session a name, which records show from then on.
#[utoipa::path(
    put, path = "/api/v1/me/name", tag = "keys", request_body = OwnName,
    responses((status = 204), (status = 409, body = ErrorShape, description = "another person has the name"))
)]
pub(super) async fn name_me(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Checked(OwnName { name }): Checked<OwnName>,
) -> Result<StatusCode, ApiError> {
    check_name(&name)?;
    if caller.kind != KeyKind::Person || caller.is_visiting() {
        return Err(ApiError::of(Code::Forbidden, "only a person of the project has a name")
            .hint("sign in with a person's key or by a sign-in link"));
    }
    let named = app.store.name_holder(&caller.whom(), &name).await;
    named.map_err(|error| ApiError::name(error, "person", &name))?;
    Ok(StatusCode::NO_CONTENT)
}

fn new_session(app: &App, headers: &HeaderMap, client: Option<&Client>) -> NewSession {
    let ms = |period: coffer_core::settings::Period| {
        i64::try_from(std::time::Duration::from(period).as_millis()).unwrap_or(i64::MAX)
    };
    let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    NewSession {
        browser: browser(agent),
        address: client.map(|client| network(client.peer.ip())).unwrap_or_default(),
        lasting_ms: ms(app.sessions.lifetime),
        idle_ms: ms(app.sessions.idle),
    }
}

/// Sets the cookie, or deletes it if `value` is empty. The page says by its origin whether browsers take `Secure` from it.
fn cookies(headers: &HeaderMap, value: &str, lasting_s: i64) -> HeaderMap {
    let is_secure = headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let rest = format!("Path=/; Max-Age={lasting_s}; HttpOnly; SameSite=Strict");
    let cookie = if is_secure {
        format!("{SECURE_COOKIE}={value}; {rest}; Secure")
    } else {
        format!("{PLAIN_COOKIE}={value}; {rest}")
    };
    let mut answer = HeaderMap::new();
    answer.insert(SET_COOKIE, HeaderValue::try_from(cookie).expect("digits and letters"));
    answer
}

/// What people recognise a browser by.
fn browser(agent: &str) -> String {
    let first = |names: &[(&str, &'static str)]| {
        names.iter().find(|(mark, _)| agent.contains(mark)).map(|(_, name)| *name)
    };
    let program = first(&[
        ("Edg/", "Edge"),
        ("OPR/", "Opera"),
        ("Firefox/", "Firefox"),
        ("Chrome/", "Chrome"),
        ("Safari/", "Safari"),
    ]);
    let system = first(&[
        ("Android", "Android"),
        ("iPhone", "iPhone"),
        ("iPad", "iPad"),
        ("Windows", "Windows"),
        ("Mac OS X", "macOS"),
        ("CrOS", "ChromeOS"),
        ("Linux", "Linux"),
    ]);
    match (program, system) {
        (Some(program), Some(system)) => format!("{program} on {system}"),
        (Some(one), None) | (None, Some(one)) => one.to_string(),
        (None, None) => "another program".to_string(),
    }
}

/// An address without its host's part: enough to recognise a place, not to find a person.
fn network(address: std::net::IpAddr) -> String {
    match address.to_canonical() {
        address if address.is_loopback() => "this machine".to_string(),
        std::net::IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            format!("{a}.{b}.{c}.x")
        }
        std::net::IpAddr::V6(address) => {
            let [a, b, c, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}::x")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_recognised_by_program_system_and_network() {
        let firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";
        let edge = "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/142.0 Safari/537.36 Edg/142.0";
        assert_eq!(
            [firefox, edge, "curl/8", ""].map(browser),
            ["Firefox on Linux", "Edge on Windows", "another program", "another program",]
        );
        let networks = ["192.0.2.77", "::ffff:192.0.2.77", "2001:db8:1:2::7", "127.0.0.1", "::1"];
        assert_eq!(
            networks.map(|text| network(text.parse().unwrap())),
            ["192.0.2.x", "192.0.2.x", "2001:db8:1::x", "this machine", "this machine",]
        );
    }

    #[test]
    fn a_cookie_is_for_this_host_and_for_no_script() {
        let from = |origin| HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))]);
        let set = |headers| cookies(&headers, "ab", 60)[SET_COOKIE].to_str().unwrap().to_string();
        assert_eq!(
            set(from("https://coffer.example")),
            "__Host-coffer=ab; Path=/; Max-Age=60; HttpOnly; SameSite=Strict; Secure"
        );
        let plain = "coffer_session=ab; Path=/; Max-Age=60; HttpOnly; SameSite=Strict";
        assert_eq!(set(from("http://127.0.0.1:3000")), plain);
        assert_eq!(set(HeaderMap::new()), plain);
    }
}
