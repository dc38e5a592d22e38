//! Builds: lists, logs and cancelling.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{Sse, sse};
use coffer_core::clock::rfc3339;
use coffer_core::{BuildId, BuildLogLevel, BuildState, Code};
use coffer_store::{BuildFilter, BuildLogLine, BuildRow, ProjectScope};
use futures_util::Stream;
use http::HeaderMap;

use super::show::{own, shown_build};
use crate::app::App;
use crate::auth::{Caller, Read, Write};
use crate::error::ApiError;
use crate::query::Query;
use crate::template_builds::shown_id;
use crate::v1::events::{KeyWatch, after};
use crate::v1::page::Part;
use coffer_api_types::events::AfterQuery;
use coffer_api_types::templates::{
    TemplateBuild, TemplateBuildLine, TemplateBuildLogQuery, TemplateBuildQuery,
};
use coffer_api_types::{ErrorShape, Page, PageQuery};

/// How long a stream may be silent before it sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long to wait for news before looking again: another server may run the build.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Lines read at once for a stream.
const AT_ONCE: u32 = 200;

fn shown_line((number, line): (i64, BuildLogLine)) -> TemplateBuildLine {
    TemplateBuildLine {
        number: u64::try_from(number).unwrap_or(0),
        at: rfc3339(line.at_ms),
        level: line.level.as_str().to_string(),
        step: line.step,
        message: line.message,
    }
}

async fn find(app: &App, scope: &ProjectScope, build: &str) -> Result<BuildRow, ApiError> {
    let missing = || {
        let shown: String = build.chars().take(64).collect();
        ApiError::of(Code::NotFound, format!("build '{shown}' not found"))
            .hint("GET /api/v1/template-builds lists builds")
    };
    let id = build.parse().map(BuildId::from_uuid).map_err(|_| missing())?;
    let row = app.store.build(scope, None, id).await.map_err(ApiError::store)?;
    row.ok_or_else(missing)
}

/// Lists builds of templates, newest first.
#[utoipa::path(
    get, path = "/api/v1/template-builds", tag = "templates", params(PageQuery, TemplateBuildQuery),
    responses((status = 200, body = Page<TemplateBuild>))
)]
pub(in crate::v1) async fn list_builds(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<TemplateBuildQuery>,
) -> Result<Json<Page<TemplateBuild>>, ApiError> {
    let part: Part<BuildId> = Part::of(page)?;
    let state = query.state.as_deref().map(|state| {
        BuildState::parse(state)
            .ok_or_else(|| ApiError::invalid("state", "must be waiting, building, ready or error"))
    });
    let template = match &query.template {
        Some(template) => Some(own(&app, &caller, template).await?.id),
        None => None,
    };
    let filter =
        BuildFilter { template, state: state.transpose()?, before: part.after, limit: part.to_fetch() };
    let rows = app.store.builds(&caller.scope, &filter).await.map_err(ApiError::store)?;
    Ok(Json(part.page(rows, |row| row.id.to_string(), |row| shown_build(&app, row))))
}

/// One build.
#[utoipa::path(
    get, path = "/api/v1/template-builds/{build}", tag = "templates", params(("build" = String, Path)),
    responses((status = 200, body = TemplateBuild))
)]
pub(in crate::v1) async fn show_build(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(build): Path<String>,
) -> Result<Json<TemplateBuild>, ApiError> {
    let row = find(&app, &caller.scope, &build).await?;
    Ok(Json(shown_build(&app, row)))
}

/// Cancels a build: it ends with an error, and its sandbox goes. One that has ended stays as it is.
#[utoipa::path(
    post, path = "/api/v1/template-builds/{build}/cancel", tag = "templates", params(("build" = String, Path)),
    responses(
        (status = 200, body = TemplateBuild),
        (status = 409, body = ErrorShape, description = "it has ended already")
    )
)]
pub(in crate::v1) async fn cancel_build(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Path(build): Path<String>,
) -> Result<Json<TemplateBuild>, ApiError> {
    let row = find(&app, &caller.scope, &build).await?;
    if matches!(row.state, BuildState::Ready | BuildState::Error) {
        let message = format!("build '{}' has ended: {}", shown_id(row.id), row.state.as_str());
        return Err(ApiError::of(Code::Conflict, message));
    }
    let row = app.builds.cancel(&caller.scope, row.id).await?;
    Ok(Json(shown_build(&app, row)))
}

fn level(query: &TemplateBuildLogQuery) -> Result<BuildLogLevel, ApiError> {
    let Some(text) = query.level.as_deref() else { return Ok(BuildLogLevel::Info) };
    BuildLogLevel::parse(text).ok_or_else(|| ApiError::invalid("level", "must be debug, info, warn or error"))
}

/// The log of a build, oldest line first.
#[utoipa::path(
    get, path = "/api/v1/template-builds/{build}/log", tag = "templates",
    params(("build" = String, Path), PageQuery, TemplateBuildLogQuery),
    responses((status = 200, body = Page<TemplateBuildLine>))
)]
pub(in crate::v1) async fn build_log(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(build): Path<String>,
    Query(page): Query<PageQuery>,
    Query(query): Query<TemplateBuildLogQuery>,
) -> Result<Json<Page<TemplateBuildLine>>, ApiError> {
    let part: Part<u32> = Part::of(page)?;
    let level = level(&query)?;
    let row = find(&app, &caller.scope, &build).await?;
    let after = part.after.map_or(-1, i64::from);
    let lines = app.store.build_log_after(&caller.scope, row.id, after, level, part.to_fetch()).await;
    let lines = lines.map_err(ApiError::store)?;
    Ok(Json(part.page(lines, |(number, _)| number.to_string(), shown_line)))
}

/// Follows a build: its lines as events `line`, then `end` with the build, after which the stream ends.
///
/// The id of an event is the number of the line: a reader that reconnects with `Last-Event-ID` (or `after`) misses
/// nothing.
#[utoipa::path(
    get, path = "/api/v1/template-builds/{build}/stream", tag = "templates",
    params(
        ("build" = String, Path),
        ("Last-Event-ID" = Option<i64>, Header, description = "the same, as browsers send it"),
        TemplateBuildLogQuery, AfterQuery
    ),
    responses((status = 200, content_type = "text/event-stream", body = String))
)]
pub(in crate::v1) async fn follow_build(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(build): Path<String>,
    headers: HeaderMap,
    Query(query): Query<TemplateBuildLogQuery>,
    Query(position): Query<AfterQuery>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, ApiError> {
    let after = after(&headers, &position)?.unwrap_or(-1);
    let level = level(&query)?;
    let row = find(&app, &caller.scope, &build).await?;
    let key = KeyWatch::new(&app.store, caller.key.clone());
    let follower = Follower {
        app,
        scope: caller.scope,
        build: row.id,
        level,
        after,
        lines: VecDeque::new(),
        over: false,
    };
    let events = futures_util::stream::unfold((follower, key), async |(mut follower, mut key)| {
        let event = key.until_revoked(follower.next()).await?;
        Some((Ok(event), (follower, key)))
    });
    Ok(Sse::new(events).keep_alive(sse::KeepAlive::new().interval(HEARTBEAT).text("alive")))
}

/// A reader of a build that may run.
struct Follower {
    app: Arc<App>,
    scope: ProjectScope,
    build: BuildId,
    level: BuildLogLevel,
    after: i64,
    /// Read but not sent yet.
    lines: VecDeque<(i64, BuildLogLine)>,
    over: bool,
}

impl Follower {
    /// The next line, the end, or nothing after it. A database that does not answer ends the stream too: the client
    /// reconnects where it was.
    async fn next(&mut self) -> Option<sse::Event> {
        while !self.over {
            if let Some(line) = self.lines.pop_front() {
                self.after = line.0;
                let data = serde_json::to_string(&shown_line(line)).expect("a line is plain data");
                return Some(sse::Event::default().id(self.after.to_string()).event("line").data(data));
            }
            // Before the lines are read, so that none that comes meanwhile is missed.
            let news = self.app.builds.news(self.build);
            let row = self.app.store.build(&self.scope, None, self.build).await.ok()?;
            let lines =
                self.app.store.build_log_after(&self.scope, self.build, self.after, self.level, AT_ONCE);
            self.lines = lines.await.ok()?.into();
            if !self.lines.is_empty() {
                continue;
            }
            let Some(row) = row else {
                // Its template was deleted.
                self.over = true;
                break;
            };
            if matches!(row.state, BuildState::Ready | BuildState::Error) {
                self.over = true;
                let data =
                    serde_json::to_string(&shown_build(&self.app, row)).expect("a build is plain data");
                return Some(sse::Event::default().event("end").data(data));
            }
            let changed = async {
                match news {
                    Some(mut news) => drop(news.changed().await),
                    None => std::future::pending().await,
                }
            };
            let _looked = tokio::time::timeout(LOOK_AGAIN, changed).await;
        }
        None
    }
}
