//! `GET /metrics`, for Prometheus.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;

use crate::app::App;
use crate::auth::Operating;
use crate::error::ApiError;
use crate::scrape::scrape;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics. For operators, unless the settings make them public.
pub(super) async fn show(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    if !app.telemetry.public {
        let (mut parts, _) = request.into_parts();
        Operating::from_request_parts(&mut parts, &app).await?;
    }
    let text = scrape(&app.telemetry, &app.fleet, &app.store, &app.events, &app.forges).await;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
