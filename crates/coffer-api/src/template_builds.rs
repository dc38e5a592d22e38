//! Builds of templates, as E2B's SDKs and command line drive them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use coffer_core::clock::rfc3339;
use coffer_core::{
    BuildId, BuildLogLevel, BuildPlan, BuildSource, BuildStep, BuildStepKind, Code, StartCommand, TemplateId,
    TemplateRef,
};
use coffer_store::{BuildLogLine, BuildLogPage, BuildRow, NewBuild, ProjectScope, TemplateSize};
use coffer_wire::e2b::{
    BuildLogEntry, BuildReason, BuildRequest, BuildStart, BuildStartStep, BuildStatus, FilesLink,
    RequestedBuild, TagRequest, Tagged, TemplateTag, UntagRequest,
};
use futures_util::TryStreamExt as _;
use http::{HeaderMap, StatusCode, header};

use super::app::App;
use super::auth::{Caller, Read, Write};
use super::body::Body;
use super::context::Context;
use super::error::ApiError;
use super::here;
use super::query::Pairs;
use coffer_build::BuildError;

/// SDKs read the log by pages of this size.
const PAGE: i64 = 100;
/// Most tags of one request.
pub(crate) const MOST_TAGS: usize = 50;
const SMALLEST_MEMORY_MB: u64 = 128;

impl From<BuildError> for ApiError {
    fn from(error: BuildError) -> Self {
        if let BuildError::Disk(error) = &error {
            tracing::error!("could not store uploaded files: {error}");
        }
        error.explain().into()
    }
}

/// `POST /v3/templates`: records a build whose steps follow.
pub(super) async fn request(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    Body(request): Body<BuildRequest>,
) -> Result<(StatusCode, Json<RequestedBuild>), ApiError> {
    let named = request.name.as_deref().or(request.alias.as_deref());
    let named = named.map(|name| own_name(&caller.scope, name)).transpose()?;
    let mut tags: Vec<String> = named.iter().filter_map(|named| named.tag.clone()).collect();
    for tag in request.tags.iter().flatten() {
        // `name:tag` is accepted for its tag.
        tags.push(tag_of(tag)?);
    }
    tags.dedup();
    if tags.len() > MOST_TAGS {
        return Err(ApiError::bad_request(format!("a build has at most {MOST_TAGS} tags")));
    }
    let new = NewBuild {
        name: named.map(|named| named.name),
        tags,
        size: size(&app, request.cpu_count, request.memory_mb)?,
        summary: None,
        created_by: Some(caller.key_id.to_string()),
    };
    let row = app.builds.request(&caller.scope, new).await?;
    context.made(row.template);
    let reply = RequestedBuild {
        template_id: row.template.to_string(),
        build_id: shown_id(row.id),
        public: false,
        names: vec![row.template_name.clone()],
        tags: row.tags,
        aliases: vec![row.template_name],
    };
    Ok((StatusCode::ACCEPTED, Json(reply)))
}

fn size(app: &App, cpu_count: Option<u32>, memory_mb: Option<u64>) -> Result<TemplateSize, ApiError> {
    if cpu_count.is_some_and(|count| count == 0 || count > 1024) {
        return Err(ApiError::bad_request("cpuCount must be between 1 and 1024"));
    }
    if memory_mb.is_some_and(|size| !(SMALLEST_MEMORY_MB..=1 << 24).contains(&size)) {
        return Err(ApiError::bad_request(format!("memoryMB must be at least {SMALLEST_MEMORY_MB}")));
    }
    // What equals the default stays the default, whatever that will be.
    Ok(TemplateSize {
        cpu_count: cpu_count.filter(|count| *count != app.limits.cpu_count),
        memory_mib: memory_mb.filter(|size| *size != app.limits.memory_mib),
        disk_mib: None,
    })
}

/// `GET /templates/{id}/files/{hash}`: whether the files of a `COPY` step are here, and a link to upload them.
pub(super) async fn files(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Path((_, hash)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<FilesLink>), ApiError> {
    if !coffer_build::is_hash(&hash) {
        return Err(ApiError::bad_request("the hash of files is a SHA-256 in hex"));
    }
    let upload = app.builds.upload_link(caller.scope.project(), &hash).await?;
    let base = here::base_url(&headers).ok_or_else(|| ApiError::bad_request("the request has no Host"))?;
    let url = Some(format!("{base}/templates/uploads/{}", upload.token));
    Ok((StatusCode::CREATED, Json(FilesLink { present: upload.present, url })))
}

/// `PUT /templates/uploads/{token}`: the token is the permission, so there is no key.
pub(super) async fn upload(
    State(app): State<Arc<App>>,
    Path(token): Path<String>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let contents = request.into_body().into_data_stream().map_err(|error| error.to_string());
    app.builds.upload(&token, length, contents).await?;
    Ok(StatusCode::CREATED)
}

/// `POST /v2/templates/{id}/builds/{build}`: starts a build.
pub(super) async fn start(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Path((template, build)): Path<(String, String)>,
    Body(start): Body<BuildStart>,
) -> Result<StatusCode, ApiError> {
    let (template, build) = ids(&template, &build)?;
    let registry = start.from_image_registry.as_ref().map(ToString::to_string);
    let plan = plan(start)?;
    app.builds.begin(&caller.scope, template, build, plan, registry).await?;
    Ok(StatusCode::ACCEPTED)
}

fn plan(start: BuildStart) -> Result<BuildPlan, ApiError> {
    let source = match (start.from_image, start.from_template) {
        (Some(image), None) => BuildSource::Image(image),
        (None, Some(template)) => BuildSource::Template(template),
        _ => return Err(ApiError::bad_request("a build needs either fromImage or fromTemplate")),
    };
    let filled = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    let (command, ready) = (filled(start.start_cmd), filled(start.ready_cmd));
    let steps = start.steps.into_iter().enumerate().map(|(index, step)| {
        let BuildStartStep { kind, args, files_hash, force } = step;
        let named = BuildStepKind::parse(&kind.to_ascii_uppercase());
        let kind = named.ok_or_else(|| {
            let known: Vec<&str> = BuildStepKind::ALL.iter().map(|kind| kind.as_str()).collect();
            let kind: String = kind.chars().take(50).collect();
            ApiError::bad_request(format!("step {}: '{kind}' is not one of {}", index + 1, known.join(", ")))
        })?;
        let step = BuildStep::new(kind, args.unwrap_or_default());
        Ok(BuildStep { files_hash, force: force.unwrap_or(false), ..step })
    });
    Ok(BuildPlan {
        source,
        steps: steps.collect::<Result<_, ApiError>>()?,
        start: (command.is_some() || ready.is_some()).then_some(StartCommand { command, ready }),
        force: start.force.unwrap_or(false),
        platform: None,
    })
}

/// `GET /templates/{id}/builds/{build}/status`, with a page of the log.
pub(super) async fn status(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path((template, build)): Path<(String, String)>,
    query: Pairs,
) -> Result<Json<BuildStatus>, ApiError> {
    let row = find(&app, &caller.scope, &template, &build).await?;
    let level = query.text("level").map(|text| BuildLogLevel::parse(text).ok_or(text)).transpose();
    let level = level.map_err(|text| {
        let text: String = text.chars().take(50).collect();
        ApiError::bad_request(format!("level '{text}' is not one of debug, info, warn, error"))
    })?;
    let page = BuildLogPage {
        offset: query.number("logsOffset")?.unwrap_or(0),
        limit: u32::try_from(query.number("limit")?.unwrap_or(PAGE).clamp(1, PAGE)).unwrap_or(100),
        level: level.unwrap_or(BuildLogLevel::Info),
    };
    let lines = app.store.build_log(&caller.scope, row.id, page).await.map_err(ApiError::store)?;
    let entries: Vec<BuildLogEntry> = lines.iter().map(entry).collect();
    Ok(Json(BuildStatus {
        template_id: row.template.to_string(),
        build_id: shown_id(row.id),
        status: row.state.as_str().to_string(),
        logs: lines.iter().map(|line| line.message.clone()).collect(),
        log_entries: entries,
        reason: row.failure.map(|failure| BuildReason {
            message: failure.message,
            step: failure.step,
            log_entries: Vec::new(),
        }),
    }))
}

fn entry(line: &BuildLogLine) -> BuildLogEntry {
    BuildLogEntry {
        timestamp: rfc3339(line.at_ms),
        message: line.message.clone(),
        level: line.level.as_str().to_string(),
        step: line.step.clone(),
    }
}

/// `POST /templates/tags`: more tags for a build.
pub(super) async fn tag(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Body(request): Body<TagRequest>,
) -> Result<(StatusCode, Json<Tagged>), ApiError> {
    let target = own_name(&caller.scope, &request.target)?;
    let tags = request.tags.iter().map(|tag| tag_of(tag)).collect::<Result<Vec<_>, _>>()?;
    if tags.is_empty() || tags.len() > MOST_TAGS {
        return Err(ApiError::bad_request(format!("tags must have 1 to {MOST_TAGS} entries")));
    }
    let current = target.tag.as_deref().unwrap_or(coffer_fleet::DEFAULT_TAG);
    let tagged = app.store.tag_template(&caller.scope, &target.name, current, tags.clone()).await;
    let build = tagged.map_err(|error| ApiError::from(BuildError::from(error)))?;
    Ok((StatusCode::CREATED, Json(Tagged { tags, build_id: shown_id(build) })))
}

/// `DELETE /templates/tags`.
pub(super) async fn untag(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Body(request): Body<UntagRequest>,
) -> Result<StatusCode, ApiError> {
    let named = own_name(&caller.scope, &request.name)?;
    let mut tags = request.tags.iter().map(|tag| tag_of(tag)).collect::<Result<Vec<_>, _>>()?;
    tags.extend(named.tag);
    if tags.is_empty() {
        return Err(ApiError::bad_request("tags must not be empty"));
    }
    let untagged = app.store.untag_template(&caller.scope, &named.name, tags).await;
    untagged.map_err(|error| ApiError::from(BuildError::from(error)))?;
    Ok(StatusCode::NO_CONTENT)
}

/// `GET /templates/{id}/tags`.
pub(super) async fn tags(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(id): Path<String>,
) -> Result<Json<Vec<TemplateTag>>, ApiError> {
    let template = app.store.template(&caller.scope, &id).await.map_err(ApiError::store)?;
    let template = template.ok_or_else(|| ApiError::from(BuildError::NotFound(shorten(&id))))?;
    let tags = app.store.template_tags(&caller.scope, template.id).await.map_err(ApiError::store)?;
    let tags = tags.into_iter().map(|tag| TemplateTag {
        tag: tag.tag,
        build_id: shown_id(tag.build),
        created_at: rfc3339(tag.created_ms),
    });
    Ok(Json(tags.collect()))
}

/// A build's id as E2B shows it.
pub(crate) fn shown_id(build: BuildId) -> String {
    build.to_uuid().to_string()
}

pub(crate) async fn find(
    app: &App,
    scope: &ProjectScope,
    template: &str,
    build: &str,
) -> Result<BuildRow, ApiError> {
    let (template, build) = ids(template, build)?;
    let row = app.store.build(scope, Some(template), build).await.map_err(ApiError::store)?;
    row.ok_or_else(|| ApiError::of(Code::NotFound, format!("build '{}' not found", shown_id(build))))
}

fn ids(template: &str, build: &str) -> Result<(TemplateId, BuildId), ApiError> {
    let missing =
        |what: &str, id: &str| ApiError::of(Code::NotFound, format!("{what} '{}' not found", shorten(id)));
    let template = template.parse().map_err(|_| missing("template", template))?;
    let build = build.parse().map(BuildId::from_uuid).map_err(|_| missing("build", build))?;
    Ok((template, build))
}

/// A reference to a template of the caller's project.
pub(crate) fn own_name(scope: &ProjectScope, name: &str) -> Result<TemplateRef, ApiError> {
    let reference: TemplateRef = name.parse().map_err(|error| ApiError::bad_request(format!("{error}")))?;
    match &reference.namespace {
        Some(namespace) if *namespace != scope.project().to_string() => {
            Err(ApiError::bad_request(format!("'{namespace}' is not this project")))
        }
        _ => Ok(reference),
    }
}

/// A tag, or the tag of `name:tag`.
pub(crate) fn tag_of(text: &str) -> Result<String, ApiError> {
    let tag = text.rsplit(':').next().unwrap_or(text);
    let reference = format!("x:{tag}").parse::<TemplateRef>().ok().and_then(|reference| reference.tag);
    // The tag endpoints of E2B read UUIDs as ids of builds.
    let is_id = tag.parse::<uuid::Uuid>().is_ok();
    reference
        .filter(|_| !is_id)
        .ok_or_else(|| ApiError::bad_request(format!("'{}' is not a tag", shorten(tag))))
}

fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}
