//! The model gateway's route, `/model/<provider>/…`: what egress passes on for agents in sandboxes.
//!
//! The caller's pass is the only credential; keys of the API open nothing here. Refusals are in the shapes of the
//! providers, because the clients of these read them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use bytes::{Bytes, BytesMut};
use coffer_core::model::{Provider, refusal_body};
use coffer_proxy::Client;
use coffer_work::models::{Entered, MOST_BODY, ModelAnswer, ModelError, ModelRequest};
use futures_util::stream;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;

use super::app::App;

/// How long a body may take, piece by piece.
const BODY_WITHIN: Duration = Duration::from_secs(60);

pub(super) fn router() -> Router<Arc<App>> {
    Router::new().route("/model/{*rest}", any(call))
}

async fn call(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().strip_prefix("/model").unwrap_or_default().to_string();
    let provider = path.split('/').nth(1).and_then(Provider::parse);
    match pass(&app, parts, path, body).await {
        Ok(answer) => shown(answer),
        Err(error) => refused(provider, &error),
    }
}

async fn pass(app: &App, parts: Parts, path: String, body: Body) -> Result<ModelAnswer, ModelError> {
    let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|text| text.to_str().ok());
    let mut entered = app.models.enter(authorization)?;
    if let Some(client) = parts.extensions.get::<Client>() {
        client.count_for(Some(entered.project()))?;
    }
    let body = read(app, &mut entered, &parts, body).await?;
    let request = ModelRequest {
        method: parts.method.to_string(),
        path,
        query: parts.uri.query().map(str::to_string),
        headers: parts.headers,
        body,
    };
    Ok(app.models.call(entered, request).await)
}

/// Reads a body, as far as the project's share of memory allows.
async fn read(app: &App, entered: &mut Entered, parts: &Parts, mut body: Body) -> Result<Bytes, ModelError> {
    let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|text| text.to_str().ok()?.parse().ok());
    app.models.make_room(entered, length.unwrap_or(0))?;
    let mut read = BytesMut::new();
    loop {
        let frame =
            tokio::time::timeout(BODY_WITHIN, body.frame()).await.map_err(|_| ModelError::Unfinished)?;
        let Some(frame) = frame else { return Ok(read.freeze()) };
        let Ok(data) = frame.map_err(|_| ModelError::Unfinished)?.into_data() else { continue };
        if read.len() + data.len() > MOST_BODY {
            return Err(ModelError::TooLong);
        }
        app.models.make_room(entered, read.len() + data.len())?;
        read.extend_from_slice(&data);
    }
}

fn shown(answer: ModelAnswer) -> Response {
    let ModelAnswer { status, headers, body } = answer;
    let pieces = stream::unfold(body, |mut body| async move { Some((body.recv().await?, body)) });
    let mut response = Response::new(Body::from_stream(pieces));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    *response.headers_mut() = headers;
    response
}

fn refused(provider: Option<Provider>, error: &ModelError) -> Response {
    let status = error.status();
    let body = refusal_body(provider, status, &format!("Cofferdam: {}", error.told()));
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if matches!(status, 429 | 503) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
    }
    response
}
