//! Git LFS for repositories that this server stores, below `/git/<project>/<name>.git/info/lfs`: the batch API
//! with basic transfers. Callers that may fetch may download, callers that may push may upload. There are no
//! locks.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequest, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use coffer_forge::{LfsFound, LfsOid, Service};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue, header};
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::App;
use super::body::Checked;
use super::error::{ApiError, LFS_TYPE};
use super::git::enter;
use coffer_core::Code;

/// Git LFS asks for a hundred at a time.
const MOST_OBJECTS: usize = 1000;

pub(super) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/git/{project}/{repository}/info/lfs/objects/batch", post(batch))
        .route("/git/{project}/{repository}/info/lfs/objects/{oid}", get(download).put(upload))
        .route("/git/{project}/{repository}/info/lfs/{*rest}", axum::routing::any(nothing))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Operation {
    Download,
    Upload,
}

/// A batch request. Other fields, such as the ref, are ignored.
#[derive(Debug, Deserialize)]
struct Batch {
    operation: Operation,
    transfers: Option<Vec<String>>,
    objects: Vec<Object>,
    hash_algo: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Object {
    oid: String,
    size: u64,
}

impl Batch {
    fn objects(&self) -> Result<Vec<(LfsOid, u64)>, ApiError> {
        if self.objects.len() > MOST_OBJECTS {
            let message = format!("a batch has at most {MOST_OBJECTS} objects");
            return Err(
                ApiError::of(Code::PayloadTooLarge, message).hint("set lfs.transfer.batchSize to 100")
            );
        }
        let basic = |all: &Vec<String>| all.is_empty() || all.iter().any(|one| one == "basic");
        if !self.transfers.as_ref().is_none_or(basic) {
            return Err(ApiError::invalid("transfers", "must have `basic`, the only supported one"));
        }
        if self.hash_algo.as_ref().is_some_and(|name| name != "sha256") {
            return Err(ApiError::invalid("hash_algo", "must be `sha256`, the only supported one"));
        }
        let read = |object: &Object| {
            let oid = object.oid.parse::<LfsOid>().map_err(ApiError::forge);
            oid.map(|oid| (oid, object.size))
        };
        self.objects.iter().map(read).collect()
    }
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
    let objects = batch.objects()?;
    let found = app.forges.lfs_look(&entered.scope, &entered.row, &objects).await.map_err(ApiError::forge)?;
    let at = here(&headers, &coffer_forge::git_path(&entered.row))?;
    let told = |((oid, size), found): (&(LfsOid, u64), LfsFound)| {
        let refused = |code: u16, message: &str| json!({ "code": code, "message": message });
        let mut told = json!({ "oid": oid.to_string(), "size": size });
        match (batch.operation, found) {
            (Operation::Download, LfsFound::Here) => {
                told["actions"] = json!({ "download": { "href": format!("{at}/{oid}") } });
            }
            (Operation::Upload, LfsFound::Here) => {}
            (Operation::Upload, LfsFound::Absent) => {
                told["actions"] = json!({ "upload": { "href": format!("{at}/{oid}") } });
            }
            (Operation::Download, LfsFound::Absent | LfsFound::TooLarge) => {
                told["error"] = refused(404, "this repository has no such object");
            }
            (_, LfsFound::OtherLength) => {
                told["error"] = refused(422, "the object of that id has another length");
            }
            (Operation::Upload, LfsFound::TooLarge) => {
                told["error"] = refused(413, "the object is larger than this server accepts");
            }
        }
        told
    };
    let told: Vec<Value> = objects.iter().zip(found).map(told).collect();
    Ok(answer(&json!({ "transfer": "basic", "objects": told, "hash_algo": "sha256" })))
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
    Ok(answer(&json!({})))
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

fn answer(value: &Value) -> Response {
    let mut response = Body::from(value.to_string()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(LFS_TYPE));
    response
}
