//! E2B's volumes, and the content of one.
//!
//! Content is served by a sandbox of the server's own that mounts the volume (see `coffer_fleet::OpenVolume`).
//! Its requests carry the token of one volume instead of a key.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use coffer_core::clock::rfc3339;
use coffer_core::{Code, VolumeId};
use coffer_fleet::{FleetError, OpenVolume};
use coffer_guest::{Flow, GuestError};
use coffer_proxy::Client;
use coffer_store::{Secret, VolumeRow};
use coffer_wire::agentd::{VolumeEntry, VolumeEntryKind};
use coffer_wire::e2b::{NewVolume, Volume, VolumeAndToken, VolumeEntryStat};
use futures_util::StreamExt as _;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Full, Limited};
use serde::Deserialize;

use super::app::App;
use super::auth::{Caller, Read, Write};
use super::body;
use super::error::ApiError;
use super::upload::Upload;

/// Ten thousand entries with paths of usual length.
const LONGEST_LIST: usize = 16 << 20;
const LONGEST_ENTRY: usize = 256 * 1024;
const LONGEST_PATCH: usize = 4096;
const LONGEST_REFUSAL: usize = 64 * 1024;
const LONGEST_QUERY: usize = 16 * 1024;
/// How long an answer may take to begin; removing a large tree takes a while.
const PATIENCE: Duration = Duration::from_secs(120);

/// Volumes in all their calls are found by id alone.
async fn found(app: &App, caller: &Caller<Write>, id: &str) -> Result<VolumeRow, ApiError> {
    let unknown = || ApiError::fleet(FleetError::NoVolume(id.to_string()), "");
    let volume: VolumeId = id.parse().map_err(|_| unknown())?;
    app.store.volume(&caller.scope, volume).await.map_err(ApiError::store)?.ok_or_else(unknown)
}

fn with_token(row: VolumeRow) -> Result<VolumeAndToken, ApiError> {
    let lost = || {
        ApiError::of(Code::Unavailable, "the token of this volume needs a master key that is not here")
            .hint("an operator finds at /api/v1/admin/master-key which one")
    };
    let token = row.token.as_ref().map(Secret::reveal).ok_or_else(lost)?.to_string();
    Ok(VolumeAndToken { volume_id: row.id.to_string(), name: row.name.to_string(), token })
}

/// `POST /volumes`.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: super::context::Context,
    body::Body(new): body::Body<NewVolume>,
) -> Result<(StatusCode, Json<VolumeAndToken>), ApiError> {
    let name = new.name.parse().map_err(|error| ApiError::bad_request(format!("{error}")))?;
    let made = app.fleet.create_volume(caller.scope, name, app.volume_mib).await;
    let row = made.map_err(|error| ApiError::fleet(error, ""))?;
    context.made(row.id);
    Ok((StatusCode::CREATED, Json(with_token(row)?)))
}

/// `GET /volumes`.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
) -> Result<Json<Vec<Volume>>, ApiError> {
    let rows = app.store.volumes(&caller.scope).await.map_err(ApiError::store)?;
    let shown = |row: VolumeRow| Volume { volume_id: row.id.to_string(), name: row.name.to_string() };
    Ok(Json(rows.into_iter().map(shown).collect()))
}

/// `GET /volumes/{id}`. The token can write, and so must the key.
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Path(id): Path<String>,
) -> Result<Json<VolumeAndToken>, ApiError> {
    with_token(found(&app, &caller, &id).await?).map(Json)
}

/// `DELETE /volumes/{id}`.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let row = found(&app, &caller, &id).await?;
    let deleted = app.fleet.delete_volume(caller.scope, row.id).await;
    deleted.map_err(|error| ApiError::fleet(error, ""))?;
    Ok(StatusCode::NO_CONTENT)
}

/// A request with the token of the volume in its path.
#[derive(Debug)]
pub(super) struct Content {
    row: VolumeRow,
    /// As the client sent it; agentd checks it.
    query: String,
}

impl FromRequestParts<Arc<App>> for Content {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let refused = || ApiError::of(Code::Unauthorized, "invalid volume token");
        let Path(id) = Path::<String>::from_request_parts(parts, app).await.map_err(|_| refused())?;
        let token = bearer(&parts.headers).ok_or_else(|| {
            ApiError::of(Code::Unauthorized, "no volume token; send it as Authorization: Bearer")
        })?;
        let client = parts.extensions.get::<Client>();
        let peer = client.map(|client| client.peer.ip());
        if let Some(peer) = peer {
            app.limiter.may_try(peer, token).map_err(ApiError::too_fast)?;
        }
        let row = match id.parse::<VolumeId>() {
            Ok(volume) => app.store.volume(&app.store.operator(), volume).await.map_err(ApiError::store)?,
            Err(_) => None,
        };
        // A volume that does not exist looks like a wrong token.
        let Some(row) = row.filter(|row| row.opens_with(token)) else {
            if let Some(peer) = peer {
                app.limiter.refused(peer);
            }
            return Err(refused());
        };
        if let Some(context) = parts.extensions.get::<Arc<super::context::Of>>() {
            context.by_token(row.project, row.id);
        }
        if let Some(client) = client {
            client.count_for(Some(row.project)).map_err(ApiError::busy)?;
        }
        let query = parts.uri.query().unwrap_or_default().to_string();
        if query.len() > LONGEST_QUERY {
            return Err(ApiError::bad_request("the path is too long"));
        }
        Ok(Self { row, query })
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

impl Content {
    async fn open(&self, app: &App) -> Result<OpenVolume, ApiError> {
        app.fleet.open_volume(&self.row).await.map_err(|error| ApiError::fleet(error, ""))
    }

    fn uri(&self, what: &str) -> String {
        format!("/coffer/volume/{what}?{}", self.query)
    }

    /// Sends a request without a body, or with a short one.
    async fn ask(
        &self,
        app: &App,
        method: Method,
        what: &str,
        body: Option<Bytes>,
    ) -> Result<(OpenVolume, http::Response<Flow>), ApiError> {
        let open = self.open(app).await?;
        let request = open.guest.request(method, &self.uri(what), None);
        let request = request.body(Full::new(body.unwrap_or_default())).map_err(|_| ApiError::internal())?;
        let answer = open.guest.send(request, Some(PATIENCE)).await.map_err(failed)?;
        Ok((open, accepted(answer).await?))
    }
}

/// The keeper's own failure.
fn failed(error: GuestError) -> ApiError {
    tracing::warn!("the keeper of a volume failed: {}", coffer_core::chain(&error));
    ApiError::of(Code::Unavailable, "the volume does not answer right now").retry_after(1)
}

/// Turns agentd's refusals into ours.
async fn accepted(answer: http::Response<Flow>) -> Result<http::Response<Flow>, ApiError> {
    #[derive(Deserialize)]
    struct Problem {
        message: String,
    }
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = Limited::new(answer.into_body(), LONGEST_REFUSAL).collect();
    let body = tokio::time::timeout(PATIENCE, body).await.ok().and_then(Result::ok);
    let told = body.and_then(|body| serde_json::from_slice::<Problem>(&body.to_bytes()).ok());
    let message = told.map_or_else(|| format!("the volume answered with {status}"), |told| told.message);
    Err(match status {
        StatusCode::BAD_REQUEST => ApiError::bad_request(message),
        StatusCode::NOT_FOUND => ApiError::of(Code::NotFound, message),
        StatusCode::CONFLICT => ApiError::conflict(message),
        StatusCode::INSUFFICIENT_STORAGE => ApiError::of(Code::DiskLow, "the volume is full"),
        _ => {
            tracing::warn!("the keeper of a volume refused: {message}");
            ApiError::of(Code::Internal, "the volume failed to do this")
        }
    })
}

async fn read_json<T: serde::de::DeserializeOwned>(
    answer: http::Response<Flow>,
    longest: usize,
) -> Result<T, ApiError> {
    let body = Limited::new(answer.into_body(), longest).collect();
    let body = tokio::time::timeout(PATIENCE, body).await.ok().and_then(Result::ok);
    let read = body.and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
    read.ok_or_else(|| {
        ApiError::of(Code::Unavailable, "the volume answered what makes no sense").retry_after(1)
    })
}

fn shown(entry: VolumeEntry) -> VolumeEntryStat {
    let kind = match entry.kind {
        VolumeEntryKind::Unknown => "unknown",
        VolumeEntryKind::File => "file",
        VolumeEntryKind::Directory => "directory",
        VolumeEntryKind::Symlink => "symlink",
    };
    VolumeEntryStat {
        name: entry.name,
        kind: kind.to_string(),
        path: entry.path,
        size: entry.size,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        atime: rfc3339(entry.atime_ms),
        mtime: rfc3339(entry.mtime_ms),
        ctime: rfc3339(entry.ctime_ms),
        target: entry.target,
    }
}

/// `GET /volumecontent/{id}/path`.
pub(super) async fn stat(
    State(app): State<Arc<App>>,
    content: Content,
) -> Result<Json<VolumeEntryStat>, ApiError> {
    let (_open, answer) = content.ask(&app, Method::GET, "path", None).await?;
    Ok(Json(shown(read_json(answer, LONGEST_ENTRY).await?)))
}

/// `PATCH /volumecontent/{id}/path`.
pub(super) async fn patch(
    State(app): State<Arc<App>>,
    content: Content,
    request: Request,
) -> Result<Json<VolumeEntryStat>, ApiError> {
    let body = Limited::new(request.into_body(), LONGEST_PATCH).collect();
    let body = tokio::time::timeout(PATIENCE, body).await;
    let body =
        body.map_err(|_| ApiError::of(Code::RequestTimeout, "the request body did not arrive in time"))?;
    let body = body.map_err(|_| ApiError::bad_request("the body is too long, or broke off"))?.to_bytes();
    let (_open, answer) = content.ask(&app, Method::PATCH, "path", Some(body)).await?;
    Ok(Json(shown(read_json(answer, LONGEST_ENTRY).await?)))
}

/// `DELETE /volumecontent/{id}/path`.
pub(super) async fn remove(State(app): State<Arc<App>>, content: Content) -> Result<StatusCode, ApiError> {
    content.ask(&app, Method::DELETE, "path", None).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `GET /volumecontent/{id}/dir`.
pub(super) async fn list_directory(
    State(app): State<Arc<App>>,
    content: Content,
) -> Result<Json<Vec<VolumeEntryStat>>, ApiError> {
    let _room = app.listings.take(content.row.project).await.map_err(ApiError::busy)?;
    let (_open, answer) = content.ask(&app, Method::GET, "dir", None).await?;
    let entries: Vec<VolumeEntry> = read_json(answer, LONGEST_LIST).await?;
    Ok(Json(entries.into_iter().map(shown).collect()))
}

/// `POST /volumecontent/{id}/dir`.
pub(super) async fn make_directory(
    State(app): State<Arc<App>>,
    content: Content,
) -> Result<(StatusCode, Json<VolumeEntryStat>), ApiError> {
    let (_open, answer) = content.ask(&app, Method::POST, "dir", None).await?;
    Ok((StatusCode::CREATED, Json(shown(read_json(answer, LONGEST_ENTRY).await?))))
}

/// `GET /volumecontent/{id}/file`.
pub(super) async fn read(State(app): State<Arc<App>>, content: Content) -> Result<Response, ApiError> {
    let open = content.open(&app).await?;
    let request = open.guest.request(Method::GET, &content.uri("file"), None);
    let request = request.body(Empty::<Bytes>::new()).map_err(|_| ApiError::internal())?;
    let answer = open.guest.send(request, Some(PATIENCE)).await.map_err(failed)?;
    let answer = accepted(answer).await?;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
    if let Some(length) = answer.headers().get(header::CONTENT_LENGTH) {
        headers.insert(header::CONTENT_LENGTH, length.clone());
    }
    // The keeper stays as long as the client reads.
    let pieces = answer.into_body().into_data_stream().map(move |piece| {
        let _open = &open;
        piece
    });
    Ok((StatusCode::OK, headers, Body::from_stream(pieces)).into_response())
}

/// `PUT /volumecontent/{id}/file`.
pub(super) async fn write(
    State(app): State<Arc<App>>,
    content: Content,
    request: Request,
) -> Result<(StatusCode, Json<VolumeEntryStat>), ApiError> {
    let open = content.open(&app).await?;
    let (parts, body) = request.into_parts();
    let mut upload = open.guest.request(Method::PUT, &content.uri("file"), None);
    if let Some(length) = parts.headers.get(header::CONTENT_LENGTH) {
        upload = upload.header(header::CONTENT_LENGTH, length);
    }
    let upload = upload.body(Upload::new(body)).map_err(|_| ApiError::internal())?;
    let answer = open.guest.send(upload, None).await.map_err(failed)?;
    let entry = read_json(accepted(answer).await?, LONGEST_ENTRY).await?;
    Ok((StatusCode::CREATED, Json(shown(entry))))
}
