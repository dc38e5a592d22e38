//! Git's own protocol over HTTP, for repositories that this server stores: `/git/<project>/<name>.git/…`.
//!
//! The password of Basic authentication is a key of the project, or a pass; the name does not matter.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use coffer_core::forge::ForgeKind;
use coffer_forge::{GitAccess, Incoming, Service};
use coffer_store::{ProjectScope, RepositoryRow};
use futures_util::StreamExt;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};

use super::app::App;
use super::auth::{Caller, Need, Read, Write};
use super::error::ApiError;
use super::query::Pairs;
use coffer_core::Code;
use coffer_proxy::Client;
use coffer_work::git::Branches;

pub(super) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/git/{project}/{repository}/info/refs", get(refs))
        .route("/git/{project}/{repository}/git-upload-pack", post(fetch))
        .route("/git/{project}/{repository}/git-receive-pack", post(push))
}

/// A caller that is allowed to do what it asked for.
pub(super) struct Entered {
    pub(super) scope: ProjectScope,
    pub(super) row: RepositoryRow,
    actor: String,
    /// The access of a pass; a key has its role instead.
    access: Option<GitAccess>,
}

async fn refs(
    State(app): State<Arc<App>>,
    Path(place): Path<(String, String)>,
    query: Pairs,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let service = query.text("service").and_then(|name| name.parse::<Service>().ok());
    let service = service.ok_or_else(|| {
        // A request without a service uses the dumb protocol, which only reads files.
        ApiError::of(Code::Forbidden, "this server speaks git's smart protocol only; use git 1.6.6 or newer")
    })?;
    let entered = enter(&app, &mut parts, &place, service).await?;
    let told = app.forges.advertise(&entered.scope, &entered.row, service, protocol(&parts.headers)).await;
    let told = told.map_err(ApiError::forge)?;
    Ok(answer(&format!("application/x-{}-advertisement", service.as_str()), Body::from(told)))
}

async fn fetch(
    State(app): State<Arc<App>>,
    Path(place): Path<(String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    let service = Service::UploadPack;
    let (mut parts, body) = request.into_parts();
    let entered = enter(&app, &mut parts, &place, service).await?;
    let pack = app.forges.upload_pack(&entered.scope, &entered.row, incoming(&parts, body, service)?).await;
    let pack = pack.map_err(ApiError::forge)?;
    Ok(answer("application/x-git-upload-pack-result", Body::from_stream(pack)))
}

async fn push(
    State(app): State<Arc<App>>,
    Path(place): Path<(String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    let service = Service::ReceivePack;
    let (mut parts, body) = request.into_parts();
    let entered = enter(&app, &mut parts, &place, service).await?;
    let Entered { scope, row, actor, access } = entered;
    let incoming = incoming(&parts, body, service)?;
    let report = app.forges.receive_pack(&scope, &row, &actor, access, incoming).await;
    let report: Bytes = report.map_err(ApiError::forge)?;
    Ok(answer("application/x-git-receive-pack-result", Body::from(report)))
}

fn answer(kind: &str, body: Body) -> Response {
    let mut response = body.into_response();
    let kind = HeaderValue::try_from(kind).expect("a media type is text");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn protocol(headers: &HeaderMap) -> Option<&str> {
    headers.get("git-protocol").and_then(|shown| shown.to_str().ok())
}

fn incoming(parts: &Parts, body: Body, service: Service) -> Result<Incoming, ApiError> {
    let text = |name| parts.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    // Refuse other types: a web page in a browser could send them.
    if text(header::CONTENT_TYPE) != Some(format!("application/x-{}-request", service.as_str()).as_str()) {
        return Err(ApiError::bad_request("this is not a git request"));
    }
    let gzip = match text(header::CONTENT_ENCODING) {
        None | Some("identity") => false,
        Some("gzip" | "x-gzip") => true,
        Some(_) => return Err(ApiError::bad_request("the only supported compression of a body is gzip")),
    };
    let protocol = protocol(&parts.headers).map(str::to_string);
    let body = body.into_data_stream().map(|piece| piece.map_err(|error| error.to_string())).boxed();
    Ok(Incoming { body, gzip, protocol })
}

/// Authenticates the caller and checks its access.
pub(super) async fn enter(
    app: &Arc<App>,
    parts: &mut Parts,
    (project, repository): &(String, String),
    service: Service,
) -> Result<Entered, ApiError> {
    let name = repository.strip_suffix(".git").unwrap_or(repository);
    let shown: String = name.chars().take(64).collect();
    let nothing = || ApiError::nothing("repository", &shown);
    let password = basic_password(&parts.headers);
    let (scope, actor, access) = match password.as_deref().and_then(|password| app.forges.pass(password)) {
        Some(pass) => {
            if pass.repository.to_string() != name && !is(app, &pass.scope, pass.repository, name).await? {
                return Err(nothing());
            }
            if service == Service::ReceivePack && pass.access == GitAccess::Fetch {
                return Err(ApiError::of(Code::Forbidden, "this password is only for fetching"));
            }
            if let Some(client) = parts.extensions.get::<Client>() {
                client.count_for(Some(pass.scope.project())).map_err(ApiError::busy)?;
            }
            (pass.scope, pass.actor, Some(pass.access))
        }
        None => {
            let (scope, actor) = by_key(app, parts, password, service).await?;
            (scope, actor, None)
        }
    };
    if *project != scope.project().to_string() {
        return Err(nothing());
    }
    let row = app.store.repository(&scope, name).await.map_err(ApiError::store)?.ok_or_else(nothing)?;
    if row.kind != ForgeKind::Local {
        return Err(ApiError::conflict(format!(
            "repository {shown} is not on this server: clone it from its own forge"
        )));
    }
    super::here::check_keeper(app, &row)?;
    let access = match (access, Branches::of(&app.store, &scope, &row).await.map_err(ApiError::store)?) {
        (None, Branches::OfTasks(branches)) => Some(GitAccess::PushAny(branches)),
        (access, _) => access,
    };
    Ok(Entered { scope, row, actor, access })
}

/// Whether a repository has this name.
async fn is(
    app: &App,
    scope: &ProjectScope,
    id: coffer_core::RepositoryId,
    name: &str,
) -> Result<bool, ApiError> {
    let found = app.store.repository(scope, name).await.map_err(ApiError::store)?;
    Ok(found.is_some_and(|row| row.id == id))
}

async fn by_key(
    app: &Arc<App>,
    parts: &mut Parts,
    password: Option<String>,
    service: Service,
) -> Result<(ProjectScope, String), ApiError> {
    if let Some(password) = password {
        let Ok(mut key) = HeaderValue::try_from(password) else {
            return Err(ApiError::of(Code::Unauthorized, "the password must be an API key"));
        };
        key.set_sensitive(true);
        parts.headers.insert("x-api-key", key);
    }
    match service {
        Service::UploadPack => admitted(Caller::<Read>::from_request_parts(parts, app).await?),
        Service::ReceivePack => admitted(Caller::<Write>::from_request_parts(parts, app).await?),
    }
}

fn admitted<N: Need>(caller: Caller<N>) -> Result<(ProjectScope, String), ApiError> {
    Ok((caller.scope, caller.actor()))
}

/// The password of `Authorization: Basic`.
fn basic_password(headers: &HeaderMap) -> Option<String> {
    let (scheme, text) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || text.len() > 1024 {
        return None;
    }
    let text = base64::engine::general_purpose::STANDARD.decode(text.trim()).ok()?;
    let text = String::from_utf8(text).ok()?;
    // Some clients send a token as the name, without a password.
    let (name, password) = text.split_once(':')?;
    Some(if password.is_empty() { name.to_string() } else { password.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_the_key() {
        let headers = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::try_from(value).unwrap());
            headers
        };
        let basic = |text: &str| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text));
        assert_eq!(basic_password(&headers(&basic("any:e2b_1"))).as_deref(), Some("e2b_1"));
        assert_eq!(basic_password(&headers(&basic("e2b_1:"))).as_deref(), Some("e2b_1"));
        assert_eq!(basic_password(&headers(&basic("a:b:c"))).as_deref(), Some("b:c"));
        for bad in ["Bearer x", "Basic", "Basic !!!", &basic("none")] {
            assert_eq!(basic_password(&headers(bad)), None, "{bad}");
        }
    }
}
