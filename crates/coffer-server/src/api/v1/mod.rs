//! Our own REST, under `/api/v1`. The description in OpenAPI is made from these handlers.

mod agents;
mod audit;
mod events;
mod keys;
mod page;
mod projects;
mod sandboxes;

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use serde::Serialize;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{App, reach};

/// Why a request was not done.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorShape {
    /// One of a closed list; clients may decide by it.
    #[schema(example = "not_found")]
    code: String,
    /// For people.
    message: String,
    /// What to do about it, where there is something.
    hint: Option<String>,
    /// Names this request in the server's log and in the audit log.
    request_id: String,
}

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
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(sandboxes::detail, sandboxes::destroy))
        .routes(routes!(sandboxes::pause))
        .routes(routes!(sandboxes::resume))
        .routes(routes!(sandboxes::extend))
        .routes(routes!(sandboxes::history))
        .routes(routes!(reach::show, reach::replace))
        .routes(routes!(projects::own, projects::rename))
        .routes(routes!(projects::create, projects::list))
        .routes(routes!(projects::create_key))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(keys::rotate))
        .routes(routes!(agents::create, agents::list))
        .routes(routes!(agents::detail, agents::remove))
        .routes(routes!(audit::list))
        .routes(routes!(events::list))
        .routes(routes!(events::stream))
}

/// The routes, with their description at `/api/v1/openapi.json` and a page to read it at `/api/v1/docs`.
pub(super) fn router() -> Router<Arc<App>> {
    let (router, openapi) = described().split_for_parts();
    let openapi: Arc<str> = openapi.to_pretty_json().expect("a description is plain data").into();
    router
        .route(
            "/api/v1/openapi.json",
            get(move || async move {
                ([(http::header::CONTENT_TYPE, "application/json")], openapi.to_string()).into_response()
            }),
        )
        .route("/api/v1/docs", get(|| async { Html(include_str!("docs.html")) }))
}

/// The description as text, as it is kept in the repository.
#[cfg(test)]
fn description() -> String {
    let mut text = described().split_for_parts().1.to_pretty_json().unwrap();
    text.push('\n');
    text
}

#[derive(Debug, Serialize, ToSchema)]
struct Health {
    status: &'static str,
    version: &'static str,
}

/// Whether the server runs.
#[utoipa::path(get, path = "/api/v1/health", tag = "server", security(()), responses((status = 200, body = Health)))]
async fn health() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// Whether the server can do its work: its records and the host of its sandboxes answer.
#[utoipa::path(
    get, path = "/api/v1/ready", tag = "server", security(()),
    responses((status = 200, body = Health), (status = 503, body = ErrorShape))
)]
async fn ready(
    axum::extract::State(app): axum::extract::State<Arc<App>>,
) -> Result<Json<Health>, super::error::ApiError> {
    app.store.answers().await.map_err(super::error::ApiError::store)?;
    app.fleet.engine_answers().await.map_err(|error| super::error::ApiError::fleet(error, ""))?;
    Ok(Json(Health { status: "ready", version: env!("CARGO_PKG_VERSION") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `COFFER_UPDATE=1 cargo test -p coffer-server openapi` writes it anew.
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
        let openapi = described().split_for_parts().1;
        let openapi = serde_json::to_value(openapi).unwrap();
        for (path, operations) in openapi["paths"].as_object().unwrap() {
            assert!(path.starts_with("/api/v1/"), "{path}");
            for (method, operation) in operations.as_object().unwrap() {
                let responses = operation["responses"].as_object().unwrap();
                let public = operation["security"] == serde_json::json!([{}]);
                assert!(public || responses.contains_key("401"), "{method} {path} hides 401");
            }
        }
    }
}
