//! Artifacts: stored results of runs.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use coffer_core::ArtifactId;
use coffer_store::{ArtifactError, ArtifactFilter, ArtifactKind, ArtifactLinks, ArtifactRow, MOST_ARTIFACTS};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderValue, StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_util::io::ReaderStream;

use super::files::{copied_out, path_in_body};
use super::page::Part;
use crate::app::App;
use crate::auth::{Caller, Id, Read, Write};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::artifacts::{Artifact, ArtifactQuery, NewArtifact, UploadQuery};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::Code;
use coffer_core::clock::rfc3339;
use coffer_work::artifacts::{KeepError, Label, OpenError};

const LONGEST_NAME: usize = 255;
const LONGEST_TYPE: usize = 127;
const LONGEST_TEXT: usize = 1000;
const LONGEST_URL: usize = 2048;
const UNKNOWN_TYPE: &str = "application/octet-stream";

fn shown(row: ArtifactRow) -> Artifact {
    Artifact {
        id: row.id.to_string(),
        kind: row.kind.as_str().to_string(),
        name: row.name,
        content_type: row.content_type,
        size_bytes: row.size_bytes,
        sha256: row.sha256,
        url: row.url,
        description: row.description,
        run_id: row.links.run.map(|run| run.to_string()),
        task_id: row.links.task.map(|task| task.to_string()),
        sandbox_id: row.links.sandbox.map(|sandbox| sandbox.to_string()),
        context_id: row.links.context_id,
        created_by: row.created_by,
        created_at: rfc3339(row.created_ms),
    }
}

fn refusal(error: KeepError) -> ApiError {
    match error {
        KeepError::TooLarge(most) => {
            ApiError::of(Code::PayloadTooLarge, format!("an artifact may have at most {most} bytes"))
                .hint("an operator can raise `artifacts.most_per_artifact`")
        }
        KeepError::Broken(why) => ApiError::bad_request(format!("could not read the contents: {why}")),
        KeepError::TooSlow => ApiError::of(Code::RequestTimeout, "the contents arrived too slowly")
            .hint("send at least 32 KiB a second"),
        KeepError::Busy(full) => ApiError::busy(full),
        KeepError::OverQuota(over) => ApiError::over_storage(&over),
        KeepError::DiskLow(low) => ApiError::disk_low(low),
        KeepError::Record(ArtifactError::NoSuch(what)) => {
            ApiError::invalid(&format!("{what}_id"), format!("names no {what} of this project"))
        }
        KeepError::Record(ArtifactError::OverQuota { used, limit }) => {
            let message = format!("the project's artifacts have {used} bytes, and may have {limit}");
            ApiError::of(Code::QuotaExceeded, message)
                .details(serde_json::json!({ "quota": "artifacts", "limit": limit, "used": used }))
                .hint(
                    "delete some with DELETE /api/v1/artifacts/{artifact}; an operator can raise \
                       `artifacts.most_per_project`",
                )
        }
        KeepError::Record(ArtifactError::TooMany) => {
            ApiError::of(Code::QuotaExceeded, format!("a project may have {MOST_ARTIFACTS} artifacts"))
                .details(serde_json::json!({ "quota": "artifact_count", "limit": MOST_ARTIFACTS }))
                .hint("delete some with DELETE /api/v1/artifacts/{artifact}")
        }
        KeepError::Record(ArtifactError::Store(error)) => ApiError::store(error),
        KeepError::Disk(error) => {
            tracing::error!("could not write an artifact: {error}");
            ApiError::of(Code::Unavailable, "the server could not store this: its disk is full or failing")
                .retry_after(5)
        }
    }
}

fn kind_of(text: &str) -> Result<ArtifactKind, ApiError> {
    let known = ArtifactKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join("`, `");
    ArtifactKind::parse(text).ok_or_else(|| ApiError::invalid("kind", format!("must be one of `{known}`")))
}

fn checked_name(name: &str) -> Result<(), ApiError> {
    let odd = |letter: char| letter.is_control() || letter == '/' || letter == '\\';
    let fits = (1..=LONGEST_NAME).contains(&name.len()) && name != "." && name != "..";
    if fits && !name.chars().any(odd) {
        return Ok(());
    }
    let wanted = format!("must have 1 to {LONGEST_NAME} bytes, no control character, no `/` and no `\\`");
    Err(ApiError::invalid("name", wanted))
}

/// `type/subtype`, and parameters as plain text.
fn checked_type(text: &str) -> Result<(), ApiError> {
    let token = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    let essence = text.split(';').next().unwrap_or_default().trim();
    let fits = essence.split_once('/').is_some_and(|(kind, subtype)| token(kind) && token(subtype));
    if fits && text.len() <= LONGEST_TYPE && text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return Ok(());
    }
    Err(ApiError::invalid("content_type", "must be a media type such as `text/plain; charset=utf-8`"))
}

fn checked_text(field: &str, text: &str) -> Result<(), ApiError> {
    if text.len() <= LONGEST_TEXT && !text.chars().any(|letter| letter.is_control() && letter != '\n') {
        return Ok(());
    }
    let wanted = format!("must have at most {LONGEST_TEXT} bytes and no control characters");
    Err(ApiError::invalid(field, wanted))
}

fn checked_url(url: &str) -> Result<(), ApiError> {
    let plain = url.len() <= LONGEST_URL && url.bytes().all(|byte| byte.is_ascii_graphic());
    let uri: Option<http::Uri> = url.parse().ok().filter(|_| plain);
    // Other schemes could run code when a person opens the link.
    let is_web = |uri: http::Uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
    };
    match uri.is_some_and(is_web) {
        true => Ok(()),
        false => Err(ApiError::invalid("url", "must be an http:// or https:// address without a password")),
    }
}

fn checked_label(label: &Label) -> Result<(), ApiError> {
    checked_name(&label.name)?;
    checked_type(&label.content_type)?;
    checked_text("description", &label.description)?;
    match label.links.context_id.as_deref() {
        Some("") => Err(ApiError::invalid("context_id", "must not be empty; leave it out for none")),
        Some(context) => checked_text("context_id", context),
        None => Ok(()),
    }
}

fn links_of(query: ArtifactQuery) -> ArtifactLinks {
    let ArtifactQuery { run_id, task_id, sandbox_id, context_id, .. } = query;
    ArtifactLinks { run: run_id, task: task_id, sandbox: sandbox_id, context_id }
}

/// Creates an artifact from a text, bytes, a file of a sandbox, or a link.
#[utoipa::path(
    post, path = "/api/v1/artifacts", tag = "artifacts", request_body = NewArtifact,
    responses(
        (status = 201, body = Artifact),
        (status = 404, body = ErrorShape, description = "no such sandbox, or no such file there"),
        (status = 409, body = ErrorShape, description = "the sandbox does not run, or it is a directory"),
        (status = 408, body = ErrorShape, description = "the contents arrived too slowly"),
        (status = 507, body = ErrorShape)
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    Checked(new): Checked<NewArtifact>,
) -> Result<(StatusCode, Json<Artifact>), ApiError> {
    let given = [&new.text, &new.content_base64, &new.path, &new.url];
    if given.iter().filter(|given| given.is_some()).count() != 1 {
        let why = "exactly one of `text`, `content_base64`, `path` and `url` must be given";
        return Err(ApiError::of(Code::Invalid, why));
    }
    let usual_kind = if new.url.is_some() { ArtifactKind::Link } else { ArtifactKind::File };
    let kind = new.kind.as_deref().map(kind_of).transpose()?.unwrap_or(usual_kind);
    let usual_type = if new.text.is_some() { "text/plain; charset=utf-8" } else { UNKNOWN_TYPE };
    let name = match (new.name, &new.path, &new.url) {
        (Some(name), ..) => name,
        (None, Some(path), _) => path.rsplit('/').next().unwrap_or_default().to_string(),
        (None, None, Some(_)) => "link".to_string(),
        (None, None, None) => return Err(ApiError::invalid("name", "must be given for contents")),
    };
    let links = ArtifactLinks {
        run: new.run_id,
        task: new.task_id,
        sandbox: new.sandbox_id,
        context_id: new.context_id,
    };
    let label = Label {
        kind,
        name,
        content_type: new.content_type.unwrap_or_else(|| usual_type.to_string()),
        description: new.description,
        links,
        once_key: None,
        actor: caller.actor(),
    };
    checked_label(&label)?;
    let whole = |bytes: Vec<u8>| stream::iter([Ok::<_, String>(Bytes::from(bytes))]);
    let kept = if let Some(url) = new.url {
        checked_url(&url)?;
        app.artifacts.keep_link(&caller.scope, label, url).await
    } else if let Some(text) = new.text {
        app.artifacts.keep(&caller.scope, label, whole(text.into_bytes())).await
    } else if let Some(base64) = new.content_base64 {
        let bytes = STANDARD.decode(base64);
        let bytes = bytes.map_err(|_| ApiError::invalid("content_base64", "is not base64"))?;
        app.artifacts.keep(&caller.scope, label, whole(bytes)).await
    } else {
        let path = path_in_body(new.path.as_deref().unwrap_or_default())?;
        let Some(sandbox) = new.sandbox_id else {
            return Err(ApiError::invalid("sandbox_id", "must name the sandbox of `path`"));
        };
        let record = app.fleet.find(&caller.scope, sandbox);
        let record = record.ok_or_else(|| ApiError::no_sandbox(&sandbox.to_string()))?;
        let file = copied_out(&app, &record, path).await?;
        app.artifacts.keep(&caller.scope, label, Box::pin(file)).await
    };
    let kept = kept.map_err(refusal)?;
    context.made(kept.id);
    Ok((StatusCode::CREATED, Json(shown(kept))))
}

/// Stores the body of the request as an artifact, up to the largest size of an artifact.
#[utoipa::path(
    post, path = "/api/v1/artifacts/upload", tag = "artifacts", params(UploadQuery, ArtifactQuery),
    request_body(content = String, content_type = "*/*"),
    responses(
        (status = 201, body = Artifact),
        (status = 408, body = ErrorShape, description = "the contents arrived too slowly"),
        (status = 413, body = ErrorShape), (status = 507, body = ErrorShape)
    )
)]
pub(super) async fn upload(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    Query(upload): Query<UploadQuery>,
    Query(query): Query<ArtifactQuery>,
    request: Request,
) -> Result<(StatusCode, Json<Artifact>), ApiError> {
    let said = request.headers().get(header::CONTENT_TYPE);
    let content_type = said.map(|said| said.to_str().unwrap_or_default()).unwrap_or(UNKNOWN_TYPE).to_string();
    let label = Label {
        kind: query.kind.as_deref().map(kind_of).transpose()?.unwrap_or(ArtifactKind::File),
        name: upload.name,
        content_type,
        description: upload.description.unwrap_or_default(),
        links: links_of(query),
        once_key: None,
        actor: caller.actor(),
    };
    checked_label(&label)?;
    let body = request.into_body().into_data_stream().map_err(|_| "the connection ended".to_string());
    let kept = app.artifacts.keep(&caller.scope, label, body.boxed()).await.map_err(refusal)?;
    context.made(kept.id);
    Ok((StatusCode::CREATED, Json(shown(kept))))
}

/// Lists artifacts, newest first.
#[utoipa::path(
    get, path = "/api/v1/artifacts", tag = "artifacts", params(PageQuery, ArtifactQuery),
    responses((status = 200, body = Page<Artifact>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<ArtifactQuery>,
) -> Result<Json<Page<Artifact>>, ApiError> {
    let part = Part::of(page)?;
    let filter = ArtifactFilter {
        kind: query.kind.as_deref().map(kind_of).transpose()?,
        links: links_of(query),
        before: part.after,
        limit: part.to_fetch(),
    };
    let rows = app.store.artifacts(&caller.scope, &filter).await.map_err(ApiError::store)?;
    Ok(Json(part.page(rows, |row| row.id.to_string(), shown)))
}

async fn found(app: &App, caller: &Caller<Read>, artifact: ArtifactId) -> Result<ArtifactRow, ApiError> {
    let row = app.store.artifact(&caller.scope, artifact).await.map_err(ApiError::store)?;
    row.ok_or_else(|| ApiError::nothing("artifact", artifact))
}

/// One artifact, without its contents.
#[utoipa::path(
    get, path = "/api/v1/artifacts/{artifact}", tag = "artifacts", params(("artifact" = String, Path)),
    responses((status = 200, body = Artifact))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(artifact): Id<ArtifactId>,
) -> Result<Json<Artifact>, ApiError> {
    Ok(Json(shown(found(&app, &caller, artifact).await?)))
}

/// The contents, always as a file to save: a page of its creator must not run at this server's address.
#[utoipa::path(
    get, path = "/api/v1/artifacts/{artifact}/content", tag = "artifacts", params(("artifact" = String, Path)),
    responses(
        (status = 200, content_type = "*/*", body = String),
        (status = 409, body = ErrorShape, description = "it is a link"), (status = 410, body = ErrorShape),
        (status = 421, body = ErrorShape, description = "another installation stores it")
    )
)]
pub(super) async fn content(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(artifact): Id<ArtifactId>,
) -> Result<Response, ApiError> {
    let row = found(&app, &caller, artifact).await?;
    let Some(sha256) = &row.sha256 else {
        return Err(ApiError::conflict(format!("artifact {artifact} is a link and has no contents"))
            .hint("its `url` is the address"));
    };
    let file = app.artifacts.open(&row).await.map_err(|error| match error {
        OpenError::Elsewhere => ApiError::of(Code::OtherInstallation, error.to_string())
            .hint("ask the server of that installation"),
        OpenError::Lost => ApiError::of(Code::Gone, format!("artifact {artifact}: {error}")),
        OpenError::Disk(error) => {
            tracing::error!("could not read artifact {artifact}: {error}");
            ApiError::internal()
        }
    })?;
    let mut answer = Body::from_stream(ReaderStream::with_capacity(file, 64 << 10)).into_response();
    let name = utf8_percent_encode(&row.name, NON_ALPHANUMERIC);
    let headers = [
        (header::CONTENT_TYPE, row.content_type.clone()),
        (header::CONTENT_LENGTH, row.size_bytes.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename*=UTF-8''{name}")),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_string()),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'".to_string()),
        (header::ETAG, format!("\"{sha256}\"")),
    ];
    for (header, value) in headers {
        let value = HeaderValue::try_from(value).map_err(|_| ApiError::internal())?;
        answer.headers_mut().insert(header, value);
    }
    Ok(answer)
}

/// Deletes an artifact and its contents.
#[utoipa::path(
    delete, path = "/api/v1/artifacts/{artifact}", tag = "artifacts", params(("artifact" = String, Path)),
    responses((status = 204))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(artifact): Id<ArtifactId>,
) -> Result<StatusCode, ApiError> {
    if caller.scope.agent().is_some() {
        return Err(ApiError::of(Code::Forbidden, "an agent's key cannot delete artifacts"));
    }
    match app.artifacts.remove(&caller.scope, artifact).await.map_err(ApiError::store)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::nothing("artifact", artifact)),
    }
}
