//! The files of a sandbox.
//!
//! agentd does all the work: it resolves paths inside the sandbox, and contents are streamed through here at
//! the speed of the slower side.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use coffer_core::ProjectId;
use coffer_wire::envd::filesystem::{
    EntryInfo, FileType, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest,
    MoveResponse, RemoveRequest, RemoveResponse, StatRequest, StatResponse,
};
use futures_util::TryStreamExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::exec::check_user;
use super::inside::{self, guest};
use super::page::Part;
use crate::app::App;
use crate::auth::{Caller, Named, Read, Write};
use crate::body::Checked;
use crate::error::ApiError;
use crate::query::Query;
use crate::upload::Upload;
use coffer_api_types::exec::WatchQuery;
use coffer_api_types::files::{Entry, FileAction, ListQuery, RemoveQuery, UserQuery};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::Code;
use coffer_guest::{Guest, GuestError, Reason, accepted};

/// agentd lists a hundred thousand entries at most.
const LONGEST_LIST: usize = 48 << 20;
const LONGEST_ENTRY: usize = 256 * 1024;
const LONGEST_PATH: usize = 4096;
const DEEPEST: u32 = 64;
/// How long opening a file may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Headers of agentd that are passed on; agentd is hostile and may send more.
const TOLD: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_DISPOSITION,
    header::ACCEPT_RANGES,
    header::ETAG,
    header::LAST_MODIFIED,
];
/// Headers of a client that select a part or a version of a file.
const ASKED: [HeaderName; 6] = [
    header::RANGE,
    header::IF_RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
];

fn shown(entry: EntryInfo) -> Entry {
    let kind = match FileType::try_from(entry.r#type) {
        _ if entry.is_symlink => "symlink",
        Ok(FileType::File) => "file",
        Ok(FileType::Directory) => "directory",
        Ok(FileType::Symlink) => "symlink",
        Ok(FileType::Unspecified) | Err(_) => "other",
    };
    let modified = entry.modified_time.and_then(|time| serde_json::to_value(time).ok());
    Entry {
        name: entry.name,
        path: entry.path,
        kind: kind.to_string(),
        size_bytes: entry.size,
        permissions: entry.permissions,
        owner: entry.owner,
        group: entry.group,
        modified_at: modified.and_then(|time| time.as_str().map(str::to_string)),
        symlink_target: entry.symlink_target,
    }
}

/// A position in a listing: the path of the last entry of the previous part.
#[derive(Debug)]
struct After(String);

impl std::str::FromStr for After {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(drop)?;
        String::from_utf8(bytes).map(Self).map_err(drop)
    }
}

fn user(query: UserQuery) -> Result<Option<String>, ApiError> {
    let UserQuery { user } = query;
    check_user(user.as_deref())?;
    Ok(user)
}

fn checked(path: &str) -> Result<&str, ApiError> {
    if path.len() > LONGEST_PATH || path.contains('\0') {
        return Err(ApiError::invalid("path", "is too long, or contains NUL"));
    }
    Ok(path)
}

/// Keeps read-only keys away from the kernel's files, which show the environments and the memory of
/// processes, secrets included. Links in `/dev` lead there, and so may `..`.
fn check_reader(path: &str, writer: &Result<Caller<Write>, ApiError>) -> Result<(), ApiError> {
    if writer.is_ok() || !may_lead_to_the_kernel(path) {
        return Ok(());
    }
    let message = "this key may only read, and `/proc`, `/sys`, `/dev` and paths with `..` need write";
    Err(ApiError::of(Code::Forbidden, message))
}

fn may_lead_to_the_kernel(path: &str) -> bool {
    let mut parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    let first = if path.starts_with('/') { parts.clone().next() } else { None };
    matches!(first, Some("proc" | "sys" | "dev")) || parts.any(|part| part == "..")
}

/// The path in the URL after `files/`: absolute, or below `~`.
fn path_of(parts: &Parts, id: &str) -> Result<String, ApiError> {
    let encoded = parts.uri.path().split_once("/files/").map(|(_, path)| path);
    let encoded = encoded.ok_or_else(|| ApiError::no_sandbox(id))?;
    let path = percent_encoding::percent_decode_str(encoded).decode_utf8();
    let path = path.map_err(|_| ApiError::bad_request("the path is not UTF-8"))?;
    checked(&path)?;
    Ok(if path == "~" || path.starts_with("~/") {
        path.into_owned()
    } else {
        format!("/{}", path.trim_start_matches('/'))
    })
}

/// agentd's own route for contents.
fn contents_of(path: &str, user: Option<&str>) -> String {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let user = user.map(|user| format!("&username={}", encode(user))).unwrap_or_default();
    format!("/files?path={}{user}", encode(path))
}

async fn stat(guest: &Guest, user: Option<&str>, path: &str) -> Result<Option<EntryInfo>, ApiError> {
    let request = StatRequest { path: path.to_string() };
    let found: Result<StatResponse, _> =
        guest.call("/filesystem.Filesystem/Stat", user, &request, LONGEST_ENTRY).await;
    match found {
        Ok(found) => Ok(found.entry),
        Err(GuestError::Refused { reason: Reason::NotFound, .. }) => Ok(None),
        Err(error) => Err(inside::refusal(error)),
    }
}

fn is_directory(entry: &EntryInfo) -> bool {
    entry.r#type == i32::from(FileType::Directory)
}

fn missing(path: &str) -> ApiError {
    let shown: String = path.chars().take(200).collect();
    ApiError::of(Code::NotFound, format!("file '{shown}' not found in the sandbox"))
}

fn directory(path: &str) -> ApiError {
    let shown: String = path.chars().take(200).collect();
    ApiError::conflict(format!("'{shown}' is a directory"))
}

/// Lists a directory, directories before their contents.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path), PageQuery, ListQuery, UserQuery, WatchQuery),
    responses(
        (status = 200, body = Page<Entry>),
        (status = 404, body = ErrorShape, description = "no such sandbox or directory"),
        (status = 409, body = ErrorShape, description = "the sandbox does not run")
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    writer: Result<Caller<Write>, ApiError>,
    named: Named<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<ListQuery>,
    Query(who): Query<UserQuery>,
    Query(watch): Query<WatchQuery>,
) -> Result<Json<Page<Entry>>, ApiError> {
    let part: Part<After> = Part::of(page)?;
    let depth = query.depth.unwrap_or(1);
    if !(1..=DEEPEST).contains(&depth) {
        return Err(ApiError::invalid("depth", format!("must be between 1 and {DEEPEST}")));
    }
    let user = user(who)?;
    let path = checked(query.path.as_deref().unwrap_or_default())?.to_string();
    check_reader(&path, &writer)?;
    let guest = inside::guest_for(&app, &named.record, &named.id, &watch).await?;
    listing(&app, named.record.project, &guest, user.as_deref(), path, depth, &part).await.map(Json)
}

async fn listing(
    app: &App,
    project: ProjectId,
    guest: &Guest,
    user: Option<&str>,
    path: String,
    depth: u32,
    part: &Part<After>,
) -> Result<Page<Entry>, ApiError> {
    let request = ListDirRequest { path, depth };
    let _room = app.listings.take(project).await.map_err(ApiError::busy)?;
    let listed: Result<ListDirResponse, _> =
        guest.call("/filesystem.Filesystem/ListDir", user, &request, LONGEST_LIST).await;
    let mut entries = listed.map_err(inside::refusal)?.entries;
    // The whole list is fetched each time, so a part begins where the previous one ended even if files
    // changed.
    let order = |path: &str| path.split('/').map(str::to_string).collect::<Vec<_>>();
    entries.sort_by_cached_key(|entry| order(&entry.path));
    if let Some(After(after)) = &part.after {
        let after = order(after);
        entries.retain(|entry| order(&entry.path) > after);
    }
    entries.truncate(part.to_fetch() as usize);
    Ok(part.page(entries, |entry| URL_SAFE_NO_PAD.encode(&entry.path), shown))
}

/// A file's contents, in part with `Range`; for a directory its entries, as `GET /files` returns them.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(
        ("id" = String, Path), ("path" = String, Path, description = "absolute, or `~/…`"),
        ("Range" = Option<String>, Header, description = "`bytes=0-99`"),
        PageQuery, UserQuery, WatchQuery
    ),
    responses(
        (status = 200, content_type = "*/*", body = String, description = "the contents, or a directory's entries"),
        (status = 206, content_type = "*/*", body = String), (status = 304, description = "not changed"),
        (status = 409, body = ErrorShape), (status = 412, description = "changed"),
        (status = 416, description = "the range is not in the file")
    )
)]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    writer: Result<Caller<Write>, ApiError>,
    named: Named<Read>,
    Query(page): Query<PageQuery>,
    Query(who): Query<UserQuery>,
    Query(watch): Query<WatchQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    contents(&app, &named, &writer, (page, who, watch), &request.into_parts().0).await
}

/// The headers of `GET`, without the contents.
#[utoipa::path(
    head, path = "/api/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(
        ("id" = String, Path), ("path" = String, Path, description = "absolute, or `~/…`"),
        PageQuery, UserQuery, WatchQuery
    ),
    responses(
        (status = 200), (status = 206), (status = 304), (status = 400), (status = 401), (status = 404), (status = 409),
        (status = 412), (status = 416), (status = 422), (status = 429), (status = 503)
    )
)]
pub(super) async fn look(
    State(app): State<Arc<App>>,
    writer: Result<Caller<Write>, ApiError>,
    named: Named<Read>,
    Query(page): Query<PageQuery>,
    Query(who): Query<UserQuery>,
    Query(watch): Query<WatchQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    contents(&app, &named, &writer, (page, who, watch), &request.into_parts().0).await
}

async fn contents(
    app: &App,
    named: &Named<Read>,
    writer: &Result<Caller<Write>, ApiError>,
    (page, who, watch): (PageQuery, UserQuery, WatchQuery),
    parts: &Parts,
) -> Result<Response, ApiError> {
    let path = path_of(parts, &named.id)?;
    check_reader(&path, writer)?;
    let user = user(who)?;
    let guest = inside::guest_for(app, &named.record, &named.id, &watch).await?;
    let mut wanted = contents_of(&path, user.as_deref());
    if writer.is_err() {
        // A link inside may lead anywhere, which only agentd can check.
        wanted.push_str("&kernel=false");
    }
    let mut asked = guest.request(parts.method.clone(), &wanted, None);
    for name in &ASKED {
        for value in parts.headers.get_all(name) {
            asked = asked.header(name, value);
        }
    }
    let asked = asked.body(http_body_util::Empty::<Bytes>::new()).map_err(|_| ApiError::internal())?;
    let answer = guest.send(asked, Some(PATIENCE)).await.map_err(inside::refusal)?;
    let status = answer.status();
    let conditional =
        [StatusCode::NOT_MODIFIED, StatusCode::PRECONDITION_FAILED, StatusCode::RANGE_NOT_SATISFIABLE];
    if !status.is_success() && !conditional.contains(&status) {
        // A refusal of a HEAD request has no body.
        return match stat(&guest, user.as_deref(), &path).await? {
            None => Err(missing(&path)),
            Some(entry) if is_directory(&entry) && parts.method == Method::HEAD => Err(directory(&path)),
            Some(entry) if is_directory(&entry) => {
                let part = Part::of(page)?;
                Ok(Json(listing(app, named.record.project, &guest, user.as_deref(), path, 1, &part).await?)
                    .into_response())
            }
            Some(_) => Err(match accepted(answer).await {
                Ok(_) => ApiError::internal(),
                Err(error) => inside::refusal(error),
            }),
        };
    }
    let mut headers = HeaderMap::new();
    for name in TOLD {
        if let Some(value) = answer.headers().get(&name) {
            headers.insert(name, value.clone());
        }
    }
    // The contents must never act as a page of this server.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    let body = if conditional.contains(&status) { Body::empty() } else { Body::new(answer.into_body()) };
    Ok((status, headers, body).into_response())
}

/// Writes a file, and creates missing parent directories.
#[utoipa::path(
    put, path = "/api/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path, description = "absolute, or `~/…`"), UserQuery),
    request_body(content = String, content_type = "application/octet-stream", description = "the contents"),
    responses(
        (status = 200, body = Entry, description = "replaced"), (status = 201, body = Entry, description = "new"),
        (status = 409, body = ErrorShape, description = "the sandbox does not run, or it is a directory")
    )
)]
pub(super) async fn write(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Query(who): Query<UserQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let path = path_of(&parts, &named.id)?;
    let user = user(who)?;
    let guest = guest(&app, &named.record, &named.id).await?;
    let before = stat(&guest, user.as_deref(), &path).await?;
    if before.as_ref().is_some_and(is_directory) {
        return Err(directory(&path));
    }
    let mut upload = guest
        .request(Method::POST, &contents_of(&path, user.as_deref()), None)
        .header(header::CONTENT_TYPE, "application/octet-stream");
    if let Some(length) = parts.headers.get(header::CONTENT_LENGTH) {
        upload = upload.header(header::CONTENT_LENGTH, length);
    }
    let upload = upload.body(Upload::new(body)).map_err(|_| ApiError::internal())?;
    let answer = guest.send(upload, None).await.map_err(inside::refusal)?;
    let written = accepted(answer).await.map_err(inside::refusal)?;
    // agentd answers with the list of written files, which is this one.
    let _drained = Limited::new(written.into_body(), LONGEST_ENTRY).collect().await;
    let entry = stat(&guest, user.as_deref(), &path).await?.ok_or_else(|| missing(&path))?;
    let status = if before.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(shown(entry))).into_response())
}

/// Deletes a file, or a directory with `recursive=true`.
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/files/{*path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path, description = "absolute, or `~/…`"), UserQuery, RemoveQuery),
    responses(
        (status = 204),
        (status = 409, body = ErrorShape, description = "the sandbox does not run, or it is a directory")
    )
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Query(who): Query<UserQuery>,
    Query(query): Query<RemoveQuery>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let path = path_of(&request.into_parts().0, &named.id)?;
    let user = user(who)?;
    let recursive = query.recursive == Some(true);
    let guest = guest(&app, &named.record, &named.id).await?;
    let entry = stat(&guest, user.as_deref(), &path).await?.ok_or_else(|| missing(&path))?;
    if is_directory(&entry) && !entry.is_symlink && !recursive {
        return Err(directory(&path).hint("recursive=true deletes it with its contents"));
    }
    let request = RemoveRequest { path };
    let removed: Result<RemoveResponse, _> =
        guest.call("/filesystem.Filesystem/Remove", user.as_deref(), &request, LONGEST_ENTRY).await;
    removed.map_err(inside::refusal)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Creates a directory, or moves a file or directory.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/files", tag = "files", params(("id" = String, Path), UserQuery),
    request_body = FileAction,
    responses(
        (status = 200, body = Entry, description = "moved"), (status = 201, body = Entry, description = "made"),
        (status = 409, body = ErrorShape, description = "the sandbox does not run, or it exists")
    )
)]
pub(super) async fn act(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Query(who): Query<UserQuery>,
    Checked(action): Checked<FileAction>,
) -> Result<(StatusCode, Json<Entry>), ApiError> {
    let user = user(who)?;
    let (FileAction::Mkdir { path } | FileAction::Move { path, .. }) = &action;
    if checked(path)?.is_empty() {
        return Err(ApiError::invalid("path", "must not be empty"));
    }
    let guest = guest(&app, &named.record, &named.id).await?;
    let user = user.as_deref();
    let (status, entry) = match action {
        FileAction::Mkdir { path } => {
            let request = MakeDirRequest { path };
            let made: Result<MakeDirResponse, _> =
                guest.call("/filesystem.Filesystem/MakeDir", user, &request, LONGEST_ENTRY).await;
            (StatusCode::CREATED, made.map_err(inside::refusal)?.entry)
        }
        FileAction::Move { path, to } => {
            if checked(&to)?.is_empty() {
                return Err(ApiError::invalid("to", "must not be empty"));
            }
            let request = MoveRequest { source: path, destination: to };
            let moved: Result<MoveResponse, _> =
                guest.call("/filesystem.Filesystem/Move", user, &request, LONGEST_ENTRY).await;
            (StatusCode::OK, moved.map_err(inside::refusal)?.entry)
        }
    };
    let entry = entry.ok_or_else(|| ApiError::of(Code::Unavailable, "the sandbox's answer has no entry"))?;
    Ok((status, Json(shown(entry))))
}

/// A path in a body: absolute, or below `~`.
pub(super) fn path_in_body(path: &str) -> Result<&str, ApiError> {
    match checked(path)? {
        path if path.starts_with('/') || path.starts_with("~/") => Ok(path),
        _ => Err(ApiError::invalid("path", "must be absolute, or begin with `~/`")),
    }
}

/// Streams a file of a sandbox, to be stored elsewhere.
pub(super) async fn copied_out(
    app: &App,
    record: &Arc<coffer_fleet::Record>,
    path: &str,
) -> Result<impl futures_util::Stream<Item = Result<Bytes, String>> + Send + use<>, ApiError> {
    let guest = guest(app, record, &record.id.to_string()).await?;
    let entry = stat(&guest, None, path).await?.ok_or_else(|| missing(path))?;
    if is_directory(&entry) {
        return Err(directory(path).hint("pack it first, for example with `tar`"));
    }
    let asked = guest.request(Method::GET, &contents_of(path, None), None);
    let asked = asked.body(http_body_util::Empty::<Bytes>::new()).map_err(|_| ApiError::internal())?;
    let answer = guest.send(asked, Some(PATIENCE)).await.map_err(inside::refusal)?;
    let answer = accepted(answer).await.map_err(inside::refusal)?;
    Ok(answer.into_body().into_data_stream().map_err(|error| error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::may_lead_to_the_kernel;

    #[test]
    fn ways_to_the_kernels_files_are_known() {
        for path in [
            "/proc",
            "/proc/1/environ",
            "//proc/1/mem",
            "/./sys/x",
            "/dev/fd/../environ",
            "~/../../proc/1/environ",
            "a/..",
        ] {
            assert!(may_lead_to_the_kernel(path), "{path}");
        }
        for path in ["", "~", "proc", "~/proc", "/home/user/proc", "/etc/hostname", "/home/a..b"] {
            assert!(!may_lead_to_the_kernel(path), "{path}");
        }
    }
}
