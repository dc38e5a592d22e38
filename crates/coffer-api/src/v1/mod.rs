//! Our own REST API, under `/api/v1`. Its OpenAPI description is generated from these handlers.

mod agents;
mod artifacts;
mod audit;
mod board;
mod bounds;
mod budgets;
mod catalogue;
mod code;
mod competitions;
mod connections;
mod describe;
mod events;
mod exec;
mod executions;
mod files;
mod forks;
mod git;
mod host;
mod inside;
mod keys;
mod limits;
mod locate;
mod logs;
mod models;
mod page;
mod people;
mod policy;
mod projects;
mod pulls;
mod queue;
mod repositories;
mod samples;
mod sandboxes;
mod scrape;
mod search;
mod secrets;
mod session;
mod snapshots;
mod socket;
mod stream;
mod tasks;
mod templates;
mod transcripts;
mod usage;
mod volumes;
mod webhooks;

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use coffer_api_types::ErrorShape;
use coffer_api_types::host::Health;

use super::app::App;
use super::reach;

#[derive(OpenApi)]
#[openapi(
    info(title = "Cofferdam", description = "Sandboxes for coding agents, and the work done in them."),
    modifiers(&Keys),
    components(schemas(ErrorShape)),
    security(("api_key" = [])),
    servers((url = "/", description = "This server"))
)]
struct Description;

struct Keys;

impl Modify for Keys {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let header = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-KEY")));
        openapi.components.get_or_insert_default().add_security_scheme("api_key", header);
    }
}

fn described() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(health))
        .routes(routes!(ready))
        .routes(routes!(host::show))
        .routes(routes!(host::inspect))
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(sandboxes::list_all))
        .routes(routes!(sandboxes::detail, sandboxes::destroy))
        .routes(routes!(sandboxes::pause))
        .routes(routes!(sandboxes::resume))
        .routes(routes!(sandboxes::extend))
        .routes(routes!(sandboxes::history))
        .routes(routes!(samples::list))
        .routes(routes!(templates::list, templates::request::build))
        .routes(routes!(templates::detail, templates::remove))
        .routes(routes!(templates::files::upload))
        .routes(routes!(templates::files::uploaded))
        .routes(routes!(templates::builds::list_builds))
        .routes(routes!(templates::builds::show_build))
        .routes(routes!(templates::builds::cancel_build))
        .routes(routes!(templates::builds::build_log))
        .routes(routes!(templates::builds::follow_build))
        .routes(routes!(catalogue::list))
        .routes(routes!(catalogue::detail))
        .routes(routes!(catalogue::build))
        .routes(routes!(snapshots::create))
        .routes(routes!(snapshots::list))
        .routes(routes!(snapshots::detail, snapshots::remove))
        .routes(routes!(snapshots::rollback))
        .routes(routes!(forks::fork))
        .routes(routes!(forks::lineage))
        .routes(routes!(competitions::create, competitions::list))
        .routes(routes!(competitions::detail))
        .routes(routes!(competitions::diff))
        .routes(routes!(competitions::compare))
        .routes(routes!(competitions::winner))
        .routes(routes!(competitions::cancel))
        .routes(routes!(reach::show, reach::replace))
        .routes(routes!(projects::own, projects::rename))
        .routes(routes!(projects::create, projects::list))
        .routes(routes!(projects::create_key))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(keys::rotate))
        .routes(routes!(session::me))
        .routes(routes!(session::sign_in))
        .routes(routes!(session::create_link))
        .routes(routes!(session::begin, session::sessions, session::end_all))
        .routes(routes!(session::end))
        .routes(routes!(session::name_me))
        .routes(routes!(people::list, people::create))
        .routes(routes!(people::rename, people::remove))
        .routes(routes!(people::invite))
        .routes(routes!(people::actors))
        .routes(routes!(agents::create, agents::list))
        .routes(routes!(agents::detail, agents::remove))
        .routes(routes!(agents::define))
        .routes(routes!(agents::trial::run))
        .routes(routes!(agents::presets::list))
        .routes(routes!(agents::presets::set_up))
        .routes(routes!(tasks::create, tasks::list))
        .routes(routes!(tasks::detail, tasks::change, tasks::remove))
        .routes(routes!(tasks::start))
        .routes(routes!(tasks::cancel))
        .routes(routes!(tasks::interrupt))
        .routes(routes!(tasks::question))
        .routes(routes!(tasks::answer))
        .routes(routes!(tasks::say, tasks::messages))
        .routes(routes!(tasks::attempts))
        .routes(routes!(tasks::schedules::create, tasks::schedules::list))
        .routes(routes!(tasks::schedules::detail, tasks::schedules::change, tasks::schedules::remove))
        .routes(routes!(tasks::schedules::run))
        .routes(routes!(tasks::newest_attempts))
        .routes(routes!(tasks::history))
        .routes(routes!(transcripts::of_task))
        .routes(routes!(transcripts::stream_of_task))
        .routes(routes!(transcripts::of_entry))
        .routes(routes!(transcripts::stream_of_entry))
        .routes(routes!(tasks::steps))
        .routes(routes!(queue::show))
        .routes(routes!(audit::list))
        .routes(routes!(limits::own_settings, limits::set_own_settings))
        .routes(routes!(limits::settings, limits::set_settings))
        .routes(routes!(limits::own_quotas))
        .routes(routes!(limits::quotas, limits::set_quotas))
        .routes(routes!(limits::heartbeat))
        .routes(routes!(usage::own))
        .routes(routes!(usage::all))
        .routes(routes!(usage::prices))
        .routes(routes!(models::list))
        .routes(routes!(models::detail))
        .routes(routes!(models::policy, models::set_policy))
        .routes(routes!(models::prices))
        .routes(routes!(budgets::create, budgets::list))
        .routes(routes!(budgets::detail, budgets::replace, budgets::remove))
        .routes(routes!(events::list))
        .routes(routes!(events::stream))
        .routes(routes!(executions::list))
        .routes(routes!(executions::detail))
        .routes(routes!(executions::output))
        .routes(routes!(executions::of_sandbox))
        .routes(routes!(logs::search))
        .routes(routes!(logs::find))
        .routes(routes!(search::find))
        .routes(routes!(stream::follow))
        .routes(routes!(socket::open))
        .routes(routes!(socket::open_sandbox))
        .routes(routes!(exec::exec))
        .routes(routes!(code::run))
        .routes(routes!(code::contexts::list, code::contexts::create))
        .routes(routes!(code::contexts::restart))
        .routes(routes!(code::contexts::remove))
        .routes(routes!(code::notebook::export))
        .routes(routes!(exec::list))
        .routes(routes!(exec::kill))
        .routes(routes!(files::list, files::act))
        .routes(routes!(files::read, files::look, files::write, files::remove))
        .routes(routes!(secrets::list))
        .routes(routes!(secrets::put, secrets::remove))
        .routes(routes!(secrets::master_key))
        .routes(routes!(secrets::rotate))
        .routes(routes!(volumes::create, volumes::list))
        .routes(routes!(volumes::detail, volumes::remove))
        .routes(routes!(policy::show, policy::replace))
        .routes(routes!(policy::check))
        .routes(routes!(connections::create, connections::list))
        .routes(routes!(connections::detail, connections::remove))
        .routes(routes!(connections::permissions))
        .routes(routes!(connections::repositories))
        .routes(routes!(connections::webhook))
        .routes(routes!(artifacts::create, artifacts::list))
        .routes(routes!(artifacts::upload))
        .routes(routes!(artifacts::detail, artifacts::remove))
        .routes(routes!(artifacts::content))
        .routes(routes!(webhooks::create, webhooks::list))
        .routes(routes!(webhooks::detail, webhooks::change, webhooks::remove))
        .routes(routes!(webhooks::rotate))
        .routes(routes!(webhooks::test))
        .routes(routes!(webhooks::deliveries))
        .routes(routes!(webhooks::delivery_detail))
        .routes(routes!(webhooks::redeliver))
        .routes(routes!(git::clone))
        .routes(routes!(git::create_branch))
        .routes(routes!(git::status))
        .routes(routes!(git::diff))
        .routes(routes!(git::commit))
        .routes(routes!(git::push))
        .routes(routes!(git::pull_request))
        .routes(routes!(git::operations))
        .routes(routes!(repositories::create, repositories::list))
        .routes(routes!(repositories::detail, repositories::change, repositories::remove))
        .routes(routes!(repositories::import))
        .routes(routes!(repositories::branches))
        .routes(routes!(repositories::protections))
        .routes(routes!(repositories::protection, repositories::protect, repositories::unprotect))
        .routes(routes!(pulls::create, pulls::list))
        .routes(routes!(pulls::detail, pulls::change))
        .routes(routes!(pulls::diff))
        .routes(routes!(pulls::mergeability))
        .routes(routes!(pulls::compare))
        .routes(routes!(pulls::file))
        .routes(routes!(pulls::merge))
        .routes(routes!(pulls::comment, pulls::comments))
        .routes(routes!(pulls::review, pulls::reviews))
        .routes(routes!(pulls::line_comments))
        .routes(routes!(pulls::change_line_comment, pulls::delete_line_comment))
        .routes(routes!(pulls::reply))
        .routes(routes!(pulls::set_status, pulls::statuses))
        .routes(routes!(pulls::create_issue, pulls::issues))
        .routes(routes!(pulls::issue, pulls::change_issue))
        .routes(routes!(pulls::comment_issue, pulls::issue_comments))
}

/// Another path for the handler of `exec`.
const EXECUTE: &str = "/api/v1/sandboxes/{id}/execute";

/// Serves and describes [`EXECUTE`].
fn with_alias(router: OpenApiRouter<Arc<App>>) -> OpenApiRouter<Arc<App>> {
    let mut router = router.route(EXECUTE, post(exec::exec));
    let paths = &mut router.get_openapi_mut().paths.paths;
    let mut item = paths["/api/v1/sandboxes/{id}/exec"].clone();
    if let Some(operation) = &mut item.post {
        operation.summary = Some("The same as `exec`.".to_string());
        operation.description = None;
    }
    paths.insert(EXECUTE.to_string(), item);
    router
}

/// Every route, with the whole description.
fn whole() -> OpenApiRouter<Arc<App>> {
    let mut router = with_alias(described());
    describe::complete(router.get_openapi_mut());
    router
}

/// The routes, with their description at `/api/v1/openapi.json` and a page for it at `/api/v1/docs`.
pub(super) fn router() -> Router<Arc<App>> {
    let (router, openapi) = whole().split_for_parts();
    let allowed = super::query::Allowed::of(&openapi);
    let openapi: Arc<str> = openapi.to_pretty_json().expect("a description is plain data").into();
    router
        .route(
            "/api/v1/openapi.json",
            get(move || async move {
                ([(http::header::CONTENT_TYPE, "application/json")], openapi.to_string()).into_response()
            }),
        )
        .route("/metrics", get(scrape::show))
        .route("/api/v1/docs", get(docs))
        .layer(axum::middleware::from_fn(move |request, next| allowed.clone().check(request, next)))
}

const DOCS: &str = include_str!("docs.html");

/// A page that shows the description. Only its own script and style may run in it.
async fn docs() -> Response {
    let mut page = Html(DOCS).into_response();
    let (script, style) = (digest_of("script"), digest_of("style"));
    let policy = format!(
        "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    let policy = http::HeaderValue::try_from(policy).expect("digests are ASCII");
    crate::ui::guard(page.headers_mut(), policy);
    page
}

/// The digest of the only element of that name, as a content security policy writes it.
fn digest_of(element: &str) -> String {
    let text = DOCS.split_once(&format!("<{element}>")).map_or("", |(_, rest)| rest);
    let text = text.split_once(&format!("</{element}>")).map_or("", |(text, _)| text);
    crate::ui::digest_of(text)
}

/// The description as text, as committed in the repository.
#[cfg(test)]
fn description() -> String {
    let mut text = whole().split_for_parts().1.to_pretty_json().unwrap();
    text.push('\n');
    text
}

fn health_of(status: &str) -> Health {
    Health { status: status.to_string(), version: env!("CARGO_PKG_VERSION").to_string() }
}

/// Whether the server runs.
#[utoipa::path(get, path = "/api/v1/health", tag = "server", security(()), responses((status = 200, body = Health)))]
async fn health() -> Json<Health> {
    Json(health_of("ok"))
}

/// Callers want to know soon whether the server is ready.
const READY_PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// Whether the server can work: its database and the host of its sandboxes answer.
#[utoipa::path(
    get, path = "/api/v1/ready", tag = "server", security(()),
    responses((status = 200, body = Health), (status = 503, body = ErrorShape))
)]
async fn ready(
    axum::extract::State(app): axum::extract::State<Arc<App>>,
) -> Result<Json<Health>, super::error::ApiError> {
    app.store.answers().await.map_err(super::error::ApiError::store)?;
    let answers = tokio::time::timeout(READY_PATIENCE, app.fleet.engine_answers()).await;
    let late = |_| {
        let message = "the host of the sandboxes does not answer right now";
        super::error::ApiError::of(coffer_core::Code::Unavailable, message).retry_after(1)
    };
    answers.map_err(late)?.map_err(|error| super::error::ApiError::fleet(error, ""))?;
    Ok(Json(health_of("ready")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `COFFER_UPDATE=1 cargo test -p coffer-api openapi` rewrites it.
    #[test]
    fn the_openapi_in_the_repository_is_that_of_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        if std::env::var_os("COFFER_UPDATE").is_some() {
            std::fs::write(path, description()).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == description(),
            "docs/openapi.json is out of date: run this test with COFFER_UPDATE=1"
        );
    }

    #[test]
    fn every_path_is_ours_and_every_refusal_is_described() {
        let openapi = whole().split_for_parts().1;
        let openapi = serde_json::to_value(openapi).unwrap();
        let mut names = std::collections::HashSet::new();
        for (path, operations) in openapi["paths"].as_object().unwrap() {
            assert!(path.starts_with("/api/v1/"), "{path}");
            for (method, operation) in operations.as_object().unwrap() {
                let responses = operation["responses"].as_object().unwrap();
                let public = operation["security"] == serde_json::json!([{}]);
                assert!(public || responses.contains_key("401"), "{method} {path} hides 401");
                assert!(
                    names.insert(operation["operationId"].to_string()),
                    "{method} {path} has another's name"
                );
                assert!(
                    responses.values().all(|response| response["description"].is_string()),
                    "{method} {path}"
                );
            }
        }
    }
}
