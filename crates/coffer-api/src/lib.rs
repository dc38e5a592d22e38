//! E2B's REST API and our own.
//!
//! A handler authenticates, checks the request into domain types, calls the domain once and maps the outcome.
//! Success codes are exact, and E2B's routes refuse in E2B's shape: SDKs depend on both.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod app;
mod auth;
mod body;
mod browser;
mod check;
mod context;
mod credential;
mod e2b;
mod error;
mod git;
mod here;
mod kinds;
mod lfs;
mod list;
mod logs;
mod mcp;
mod metrics;
mod models;
mod names;
mod query;
mod reach;
mod sandboxes;
mod scrape;
mod secrets;
mod show;
mod snapshots;
mod template_builds;
mod templates;
mod ui;
mod upload;
mod v1;
mod volumes;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::routing::{get, patch, post, put};
use http::{Method, Uri};

pub use app::{App, SessionSettings};
use coffer_core::Code;
pub use coffer_mcp::http::Service as Mcp;
pub use e2b::{E2B_ROUTES, E2bRoute, Support};
use error::ApiError;
use error::Shape;
pub use ui::UiFile;

/// The refusal for a request that got no place on the port, in our own shape.
pub fn refuse(full: coffer_shares::Full) -> axum::response::Response {
    let id = coffer_core::AuditId::generate();
    error::Unrendered::render(
        axum::response::IntoResponse::into_response(ApiError::busy(full)),
        Shape::Own,
        id,
    )
    .0
}

/// The paths of E2B's API that the router has, for the test that compares them with [`E2B_ROUTES`].
pub fn e2b_paths() -> Vec<&'static str> {
    e2b_routes().paths
}

fn e2b_routes() -> e2b::Routes {
    e2b::Routes::default()
        .route("/health", get(|| async { "OK" }))
        .route("/sandboxes", get(list::running).post(sandboxes::create_v1))
        .route("/v2/sandboxes", get(list::page).post(sandboxes::create_v2))
        .route("/sandboxes/metrics", get(metrics::newest))
        .route("/sandboxes/{id}", get(sandboxes::detail).delete(sandboxes::destroy))
        .route("/sandboxes/{id}/timeout", post(sandboxes::timeout))
        .route("/sandboxes/{id}/refreshes", post(sandboxes::refresh))
        .route("/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/sandboxes/{id}/resume", post(sandboxes::resume))
        .route("/sandboxes/{id}/connect", post(sandboxes::connect_v1))
        .route("/v2/sandboxes/{id}/connect", post(sandboxes::connect_v2))
        .route("/sandboxes/{id}/network", put(sandboxes::network))
        .route("/sandboxes/{id}/metrics", get(metrics::series))
        .route("/sandboxes/{id}/logs", get(logs::v1))
        .route("/v2/sandboxes/{id}/logs", get(logs::v2))
        .route("/sandboxes/{id}/fork", post(snapshots::fork))
        .route("/sandboxes/{id}/snapshots", post(snapshots::create))
        .route("/snapshots", get(snapshots::list))
        .route("/teams", get(templates::teams))
        .route("/templates", get(templates::list))
        .route("/v2/templates", get(templates::list).post(template_builds::request))
        .route("/v3/templates", post(template_builds::request))
        .route("/templates/aliases/{alias}", get(templates::alias))
        .route("/templates/tags", post(template_builds::tag).delete(template_builds::untag))
        .route("/templates/uploads/{token}", put(template_builds::upload))
        .route("/templates/{id}", get(templates::detail).delete(templates::delete).patch(templates::update))
        .route("/templates/{id}/tags", get(template_builds::tags))
        .route("/templates/{id}/files/{hash}", get(template_builds::files))
        .route("/templates/{id}/builds/{build}/status", get(template_builds::status))
        .route("/v2/templates/{id}", patch(templates::update))
        .route("/v2/templates/{id}/builds/{build}", post(template_builds::start))
        .route("/volumes", get(volumes::list).post(volumes::create))
        .route("/volumes/{id}", get(volumes::detail).delete(volumes::delete))
        .route("/volumecontent/{id}/path", get(volumes::stat).patch(volumes::patch).delete(volumes::remove))
        .route("/volumecontent/{id}/dir", get(volumes::list_directory).post(volumes::make_directory))
        .route("/volumecontent/{id}/file", get(volumes::read).put(volumes::write))
        .route("/secrets", get(secrets::list).post(secrets::create))
        .route("/secrets/{secret}", get(secrets::show).post(secrets::update).delete(secrets::delete))
}

/// Every route.
pub fn router(app: App, ui: &'static [UiFile]) -> Router {
    let app = Arc::new(app);
    let e2b = e2b_routes().router.fallback(unknown).method_not_allowed_fallback(wrong_method);
    let accompanied = |routes: Router<Arc<App>>, shape: Shape| {
        let accompany = move |state: State<Arc<App>>, request: Request, next: Next| {
            context::accompany(state, shape, request, next)
        };
        routes.layer(axum::middleware::from_fn_with_state(app.clone(), accompany))
    };
    let routes = accompanied(e2b, Shape::E2b)
        .merge(accompanied(v1::router().method_not_allowed_fallback(wrong_method), Shape::Own))
        .merge(accompanied(git::router(), Shape::Plain))
        .merge(accompanied(lfs::router(), Shape::Lfs))
        .merge(accompanied(ui::router(ui), Shape::Own))
        // Not accompanied: calls have records of their own, and refusals are in the shapes of providers.
        .merge(models::router())
        .layer(axum::middleware::from_fn(browser::admit))
        .with_state(app.clone());
    // Its tools call the other routes, so it is not among them. Pages of other sites may not read its answers.
    let mcp = accompanied(mcp::router(routes.clone()).method_not_allowed_fallback(wrong_method), Shape::Own);
    routes.merge(mcp.with_state(app))
}

async fn unknown(method: Method, uri: Uri) -> ApiError {
    if let Some(refusal) = e2b::refusal(uri.path()) {
        return refusal;
    }
    let path: String = uri.path().chars().take(200).collect();
    let refusal = ApiError::of(Code::NotFound, format!("{method} {path} not found"));
    if error::is_own(uri.path()) {
        refusal.hint("GET /api/v1/openapi.json lists every path")
    } else {
        refusal
    }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(200).collect();
    let refusal = ApiError::of(Code::MethodNotAllowed, format!("{path} does not take {method}"));
    if error::is_own(uri.path()) {
        refusal.hint("the header Allow names the methods that it takes")
    } else {
        refusal
    }
}
