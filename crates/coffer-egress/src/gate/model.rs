//! The model gateway's end in egress: passes requests of agents to the server, with a pass that the sandbox does
//! not have.
//!
//! Nothing is judged here but who asks: the server knows budgets, models and keys, and dials the provider. Headers
//! pass by list, because the server's port also serves sandboxes and the API by header.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use coffer_core::model::MODEL_NAME;
use coffer_core::network::{HostName, MODEL_ADDRESS, MODEL_PORT, Policy, RefusedKind};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::carry::{self, Answer, Sent, Target};
use super::{HEAD_PATIENCE, MOST_BUFFER, MOST_HEADERS, whole};
use crate::refusal::{Cause, Refused};
use crate::sandbox::Sandbox;

const LONGEST_PATH: usize = 1024;
const TLS_PORT: u16 = 443;

/// Request headers that are passed on, and beginnings of such.
const SENT: [&str; 9] = [
    "accept",
    "content-type",
    "content-encoding",
    "user-agent",
    "idempotency-key",
    "originator",
    "session_id",
    "x-app",
    "x-goog-api-client",
];
const SENT_BEGINNINGS: [&str; 5] = ["anthropic-", "openai-", "x-stainless-", "x-codex-", "x-claude-"];

/// Headers of an answer that are not.
const NOT_SHOWN: [HeaderName; 5] =
    [header::SET_COOKIE, header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TRAILER];

/// Whether a connection is to the gateway.
pub(crate) fn is_meant(policy: &Policy, to: std::net::SocketAddr) -> bool {
    policy.model().is_some() && to.ip() == MODEL_ADDRESS && [MODEL_PORT, TLS_PORT].contains(&to.port())
}

/// Whether a question is for the gateway's name.
pub(crate) fn is_asked(policy: &Policy, name: &HostName) -> bool {
    policy.model().is_some() && name.as_str() == MODEL_NAME
}

/// Serves a connection of an agent. Some clients take only HTTPS: for them there is a certificate of the
/// installation's own authority, which sandboxes trust.
pub(crate) async fn serve(sandbox: &Arc<Sandbox>, stream: TcpStream, port: u16) {
    if port != TLS_PORT {
        return converse(sandbox, stream).await;
    }
    let name = HostName::parse(MODEL_NAME).expect("a constant that is a name");
    let config = sandbox.authority().and_then(|authority| authority.inside(&name).ok());
    let Some(config) = config else {
        tracing::debug!("egress has no certificate authority yet");
        return crate::socket::abort(&stream);
    };
    let accepting = TlsAcceptor::from(config).accept(stream);
    let accepted = tokio::select! {
        biased;
        () = sandbox.stop.cancelled() => return,
        accepted = timeout(HEAD_PATIENCE, accepting) => accepted,
    };
    match accepted {
        Ok(Ok(stream)) => converse(sandbox, stream).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS with the model gateway failed"),
        Err(_) => {}
    }
}

async fn converse<S>(sandbox: &Arc<Sandbox>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut server = hyper::server::conn::http1::Builder::new();
    server
        .max_buf_size(MOST_BUFFER)
        .max_headers(MOST_HEADERS)
        .auto_date_header(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE);
    let passing = sandbox.clone();
    let service = service_fn(move |request| answer(passing.clone(), request));
    let connection = server.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        biased;
        () = sandbox.stop.cancelled() => {}
        served = connection => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection to the model gateway ended");
            }
        }
    }
}

async fn answer(sandbox: Arc<Sandbox>, request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
    let passed = pass(&sandbox, request).await;
    Ok(passed.unwrap_or_else(|(status, why)| {
        sandbox.counters.failed.fetch_add(1, Ordering::Relaxed);
        told(status, &why)
    }))
}

async fn pass(
    sandbox: &Arc<Sandbox>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, (StatusCode, String)> {
    let unavailable = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, why.to_string());
    let passing = sandbox.admit_model().map_err(|cause| {
        sandbox.refuse(
            Refused {
                kind: RefusedKind::Connection,
                name: HostName::parse(MODEL_NAME).ok(),
                address: Some(MODEL_ADDRESS.into()),
                port: Some(MODEL_PORT),
            },
            &cause,
        );
        match cause {
            Cause::SecretsUnknown => unavailable("the model gateway is starting, try again"),
            _ => (StatusCode::FORBIDDEN, "this sandbox has no access to models now".to_string()),
        }
    })?;
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if path.len() > LONGEST_PATH || !path.starts_with('/') || path.contains("..") || path.contains("//") {
        return Err((StatusCode::NOT_FOUND, "no such path at the model gateway".to_string()));
    }
    let route = &passing.route;
    let mut outgoing = Request::new(Sent::new(Bytes::new(), body));
    *outgoing.method_mut() = parts.method;
    let unusable = |_| unavailable("the model gateway has an unusable address");
    *outgoing.uri_mut() =
        format!("{}{path}", route.upstream.path()).parse::<Uri>().map_err(|_| unusable(()))?;
    let headers = outgoing.headers_mut();
    let host = HeaderValue::try_from(route.upstream.authority()).map_err(|_| unusable(()))?;
    headers.insert(header::HOST, host);
    copy_sent(&parts.headers, headers);
    if let Some(text) = &route.authorization {
        let mut value = HeaderValue::from_str(text.reveal()).map_err(|_| unusable(()))?;
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    let target = Target { host: route.upstream.host().clone(), on_site: false };
    let cut = passing.cut.clone();
    let answered = tokio::select! {
        biased;
        () = cut.cancelled() => Err("the sandbox lost its access to models".to_string()),
        answered = carry::send(sandbox, passing, target, outgoing) => answered,
    };
    let answer = answered.map_err(|why| {
        tracing::debug!(why, "a request to the model gateway failed");
        unavailable("the model gateway does not answer, try again")
    })?;
    sandbox.counters.opened.fetch_add(1, Ordering::Relaxed);
    let (mut parts, body) = answer.into_parts();
    for name in NOT_SHOWN {
        parts.headers.remove(name);
    }
    Ok(Response::from_parts(parts, body))
}

fn copy_sent(from: &HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        let is_sent = SENT.contains(&name.as_str())
            || SENT_BEGINNINGS.iter().any(|begins| name.as_str().starts_with(begins));
        if is_sent {
            to.append(name.clone(), value.clone());
        }
    }
}

/// Our own answer, in a shape that clients of every provider can read.
fn told(status: StatusCode, why: &str) -> Response<Answer> {
    let kind =
        if status == StatusCode::SERVICE_UNAVAILABLE { "overloaded_error" } else { "permission_error" };
    let body = serde_json::json!({
        "type": "error",
        "error": {"type": kind, "code": status.as_u16(), "message": why},
    });
    let mut answer = Response::new(whole(body.to_string().into_bytes()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
    }
    answer
}
