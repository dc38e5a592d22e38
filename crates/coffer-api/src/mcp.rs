//! `/mcp`: the tools of coffer-mcp over streamable HTTP.
//!
//! A request is authenticated here as any other. Each call of a tool is then a request to the server's own router with
//! the caller's key, so roles, kinds of keys, rates, quotas and the audit log apply to it as if the caller had sent it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use coffer_client::Transport;
use coffer_core::Code;
use coffer_mcp::http::{Answer, Caller as McpCaller, Service};
use futures_util::future::BoxFuture;
use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Uri};
use http_body_util::BodyExt as _;
use tower_service::Service as _;

use crate::app::App;
use crate::auth::{Caller, Read};
use crate::context;
use crate::error::ApiError;
use crate::here::base_url;

/// The route; `routes` are those that tools call.
pub(super) fn router(routes: Router) -> Router<Arc<App>> {
    let inside = Arc::new(Inside(routes));
    let answer = move |app: State<Arc<App>>, caller: Caller<Read>, request: Request| {
        answer(app, caller, request, inside)
    };
    Router::new().route(context::MCP, get(answer.clone()).post(answer.clone()).delete(answer))
}

async fn answer(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    request: Request,
    inside: Arc<Inside>,
) -> Result<Response, ApiError> {
    check_origin(request.headers(), app.domain.as_deref())?;
    let url = base_url(request.headers()).unwrap_or_else(|| "http://127.0.0.1".into());
    let client = coffer_client::Client::through(inside, &url, Some(caller.key.reveal()))
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let place = match Service::may_begin(&request) {
        true => Some(app.mcp_sessions.try_take(caller.scope.project()).map_err(ApiError::busy)?),
        false => None,
    };
    let place = place.map(|place| Box::new(place) as Box<dyn std::any::Any + Send + Sync>);
    match app.mcp.answer(request, McpCaller::new(client, caller.key_id.to_string()), place).await {
        Answer::Response(response) => Ok(response.map(Body::new).into_response()),
        // 404 tells a client to begin a new session.
        Answer::NoSession => {
            Err(ApiError::of(Code::NotFound, "this MCP session has ended, or is another key's")
                .hint("send `initialize` to begin a new one"))
        }
    }
}

/// Refuses pages of other sites. A name that an attacker points to this server (DNS rebinding) makes its page one of the
/// same site as the request, so comparing `Origin` and `Host` would not do: both must be names that are ours.
fn check_origin(headers: &HeaderMap, domain: Option<&str>) -> Result<(), ApiError> {
    let text =
        |name| headers.get(name).map(|value: &http::HeaderValue| value.to_str().unwrap_or("?").to_string());
    let is_browser = headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site");
    if !is_browser {
        return Ok(());
    }
    let origin =
        text(ORIGIN).map(|origin| host_of_origin(&origin).is_some_and(|host| is_ours(&host, domain)));
    let host = text(HOST).and_then(|host| host.parse::<Authority>().ok());
    let host = host.is_some_and(|host| is_ours(host.host(), domain));
    if host && origin != Some(false) {
        return Ok(());
    }
    let named = text(ORIGIN).unwrap_or_else(|| "another site".into());
    let message = format!("pages of {} may not use /mcp", named.chars().take(200).collect::<String>());
    Err(ApiError::of(Code::Forbidden, message)
        .hint("use it from this machine, or from the server's own domain"))
}

fn host_of_origin(origin: &str) -> Option<String> {
    let uri: Uri = origin.parse().ok()?;
    matches!(uri.scheme_str(), Some("http" | "https")).then(|| uri.host().map(str::to_string))?
}

/// Whether no one else can give out this name. Sandboxes have names below the domain and below `localhost`, so only these
/// names themselves are ours. An address is not resolved, so it cannot be pointed elsewhere.
fn is_ours(host: &str, domain: Option<&str>) -> bool {
    let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    let domain = domain.map(|domain| domain.split(':').next().unwrap_or(domain).to_ascii_lowercase());
    // E2B's SDKs call the API `api.<domain>`; sandboxes' names begin with a port.
    let in_domain = domain.is_some_and(|domain| host.strip_prefix("api.").unwrap_or(&host) == domain);
    host == "localhost" || in_domain || host.parse::<IpAddr>().is_ok()
}

/// The server's own routes, as a transport.
#[derive(Debug)]
struct Inside(Router);

impl Transport for Inside {
    fn send(
        &self,
        request: http::Request<coffer_client::Body>,
    ) -> BoxFuture<'_, io::Result<http::Response<coffer_client::Body>>> {
        let mut routes = self.0.clone();
        Box::pin(async move {
            let answer = match routes.call(request.map(Body::new)).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            Ok(answer.map(|body| body.map_err(io::Error::other).boxed_unsync()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn passes(host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        check_origin(&headers, Some("coffer.example.com")).is_ok()
    }

    #[test]
    fn programs_pass_and_pages_of_other_sites_do_not() {
        assert!(passes("127.0.0.1:3000", None) && passes("any.example", None));
        assert!(passes("localhost:3000", Some("http://localhost:6274")));
        assert!(passes("[::1]:3000", Some("http://[::1]:3000")));
        assert!(passes("coffer.example.com", Some("https://coffer.example.com")));
        assert!(passes("api.coffer.example.com", Some("https://api.coffer.example.com")));
        for origin in
            ["https://evil.example", "null", "file://", "https://coffer.example.com.evil.example", "x"]
        {
            assert!(!passes("127.0.0.1:3000", Some(origin)), "{origin}");
        }
    }

    #[test]
    fn a_name_that_is_pointed_here_is_no_origin_of_ours() {
        assert!(!passes("evil.example:3000", Some("http://evil.example:3000")));
        assert!(!passes("evil.example:3000", Some("http://localhost:3000")));
        // A sandbox's own pages.
        assert!(!passes("coffer.example.com", Some("https://3000-abc.coffer.example.com")));
        assert!(!passes("localhost:3000", Some("http://3000-abc.localhost:3000")));
    }
}
