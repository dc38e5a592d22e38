//! Git LFS for repositories that this server stores, below `/git/<project>/<name>.git/info/lfs`: the batch API
//! with basic transfers. Callers that may fetch may download, callers that may push may upload. There are no
//! locks.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use coffer_forge::{LfsFound, LfsOid, Service};
use coffer_wire::lfs::{Answer, Batch, Located, MOST_OBJECTS, Object, Operation};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue, header};
use serde::Serialize;

use super::app::App;
use super::body::Checked;
use super::error::{ApiError, LFS_TYPE};
use super::git::enter;
use coffer_core::Code;

pub(super) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/git/{project}/{repository}/info/lfs/objects/batch", post(batch))
        .route("/git/{project}/{repository}/info/lfs/objects/{oid}", get(download).put(upload))
        .route("/git/{project}/{repository}/info/lfs/{*rest}", axum::routing::any(nothing))
}

/// The objects of a batch, if it can be served. Other fields, such as the ref, are ignored.
fn wanted(batch: &Batch) -> Result<Vec<(LfsOid, u64)>, ApiError> {
    if batch.objects.len() > MOST_OBJECTS {
        let message = format!("a batch has at most {MOST_OBJECTS} objects");
        return Err(ApiError::of(Code::PayloadTooLarge, message).hint("set lfs.transfer.batchSize to 100"));
    }
    if !batch.takes_basic() {
        return Err(ApiError::invalid("transfers", "must have `basic`, the only supported one"));
    }
    if !batch.is_sha256() {
        return Err(ApiError::invalid("hash_algo", "must be `sha256`, the only supported one"));
    }
    let read = |object: &Object| {
        let oid = object.oid.parse::<LfsOid>().map_err(ApiError::forge);
        oid.map(|oid| (oid, object.size))
    };
    batch.objects.iter().map(read).collect()
}

async fn batch(
    State(app): State<Arc<App>>,
    Path(place): Path<(String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    // Before reading the body.
    let mut entered = enter(&app, &mut parts, &place, Service::UploadPack).await?;
    let headers = parts.headers.clone();
    let Checked(batch) = Checked::<Batch>::from_request(Request::new(body), &()).await?;
    if batch.operation == Operation::Upload {
        entered = enter(&app, &mut parts, &place, Service::ReceivePack).await?;
    }
    let objects = wanted(&batch)?;
    let found = app.forges.lfs_look(&entered.scope, &entered.row, &objects).await.map_err(ApiError::forge)?;
    let at = here(&headers, &coffer_forge::git_path(&entered.row))?;
    let locate = |((oid, size), found): (&(LfsOid, u64), LfsFound)| {
        let (name, size) = (oid.to_string(), *size);
        match (batch.operation, found) {
            (Operation::Download, LfsFound::Here) => {
                Located::at(name, size, "download", format!("{at}/{oid}"))
            }
            (Operation::Upload, LfsFound::Here) => Located::present(name, size),
            (Operation::Upload, LfsFound::Absent) => Located::at(name, size, "upload", format!("{at}/{oid}")),
            (Operation::Download, LfsFound::Absent | LfsFound::TooLarge) => {
                Located::refused(name, size, 404, "this repository has no such object")
            }
            (_, LfsFound::OtherLength) => {
                Located::refused(name, size, 422, "the object of that id has another length")
            }
            (Operation::Upload, LfsFound::TooLarge) => {
                Located::refused(name, size, 413, "the object is larger than this server accepts")
            }
        }
    };
    Ok(answer(Answer::basic(objects.iter().zip(found).map(locate).collect())))
}

async fn download(
    State(app): State<Arc<App>>,
    Path((project, repository, oid)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let entered = enter(&app, &mut parts, &(project, repository), Service::UploadPack).await?;
    let oid = oid.parse::<LfsOid>().map_err(ApiError::forge)?;
    let found = app.forges.lfs_get(&entered.scope, &entered.row, &oid).await;
    let (length, object) = found.map_err(ApiError::forge)?;
    let mut response = Body::from_stream(object).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    // A browser must not show an object as a page: any tenant can write its contents.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    Ok(response)
}

async fn upload(
    State(app): State<Arc<App>>,
    Path((project, repository, oid)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let entered = enter(&app, &mut parts, &(project, repository), Service::ReceivePack).await?;
    let oid = oid.parse::<LfsOid>().map_err(ApiError::forge)?;
    let length = match parts.headers.get(header::CONTENT_LENGTH) {
        Some(length) => length.to_str().ok().and_then(|length| length.parse().ok()),
        // Without a length and an encoding, the body is empty.
        None => (!parts.headers.contains_key(header::TRANSFER_ENCODING)).then_some(0),
    };
    let length = length.ok_or_else(|| ApiError::bad_request("an object needs a Content-Length"))?;
    let body = body.into_data_stream().map(|piece| piece.map_err(|error| error.to_string())).boxed();
    let put = app.forges.lfs_put(&entered.scope, &entered.row, &oid, length, body).await;
    put.map_err(ApiError::forge)?;
    Ok(answer(serde_json::Map::new()))
}

/// Other requests of Git LFS, such as locks, are answered as by servers without them.
async fn nothing(
    State(app): State<Arc<App>>,
    Path((project, repository, _)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    enter(&app, &mut parts, &(project, repository), Service::UploadPack).await?;
    Err(ApiError::of(Code::NotFound, "this server supports only objects of Git LFS"))
}

/// The address of a repository's objects, for the caller.
fn here(headers: &HeaderMap, path: &str) -> Result<String, ApiError> {
    let here =
        super::here::base_url(headers).ok_or_else(|| ApiError::bad_request("the request has no Host"))?;
    Ok(format!("{here}{path}/info/lfs/objects"))
}

fn answer(value: impl Serialize) -> Response {
    let mut response = Json(value).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(LFS_TYPE));
    response
}
