//! Uploads for builds: contexts, and archives of images.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use futures_util::TryStreamExt as _;
use http::{StatusCode, header};

use crate::app::App;
use crate::auth::{Caller, Read, Write};
use crate::error::ApiError;
use coffer_api_types::ErrorShape;
use coffer_api_types::templates::TemplateFiles;
use coffer_core::Code;

fn shown(files: coffer_store::TemplateFiles) -> TemplateFiles {
    TemplateFiles { hash: files.hash, size_bytes: u64::try_from(files.size_bytes).unwrap_or(0) }
}

/// Uploads files for builds: a build context (a tar archive, plain or compressed with gzip or zstd), or an archive of an
/// image (`docker save`, or an OCI layout). They count in the quota `storage_mib`, and are deleted a day after
/// their last use.
#[utoipa::path(
    post, path = "/api/v1/template-files", tag = "templates",
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 201, body = TemplateFiles),
        (status = 413, body = ErrorShape, description = "it is larger than `builds.largest_upload`")
    )
)]
pub(in crate::v1) async fn upload(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    request: Request,
) -> Result<(StatusCode, Json<TemplateFiles>), ApiError> {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    if length == Some(0) {
        return Err(ApiError::bad_request("the request needs the files as its body"));
    }
    let contents = request.into_body().into_data_stream().map_err(|error| error.to_string());
    let files = app.builds.store_files(caller.scope.project(), None, length, contents).await?;
    Ok((StatusCode::CREATED, Json(shown(files))))
}

/// Whether files are still here, by their hash. They count as used.
#[utoipa::path(
    get, path = "/api/v1/template-files/{hash}", tag = "templates", params(("hash" = String, Path)),
    responses((status = 200, body = TemplateFiles))
)]
pub(in crate::v1) async fn uploaded(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(hash): Path<String>,
) -> Result<Json<TemplateFiles>, ApiError> {
    let missing = || {
        let shown: String = hash.chars().take(64).collect();
        ApiError::of(Code::NotFound, format!("files '{shown}' not found"))
    };
    if !coffer_build::is_hash(&hash) {
        return Err(missing());
    }
    let files = app.store.template_files(caller.scope.project(), &hash).await.map_err(ApiError::store)?;
    files.map(|files| Json(shown(files))).ok_or_else(missing)
}
