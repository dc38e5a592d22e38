//! The git gate: connects git in a sandbox to its repositories, with credentials that the sandbox does not
//! have.
//!
//! ```text
//! git ──plain HTTP──► which repository? ──► may it? ──► commands of a push ──► rebuilt, with the token ──► forge
//! ```
//!
//! Git LFS uses the same path; [`lfs`] has its specifics.
//!
//! Every request is judged by the current policy, and again whenever the policy changes, so a push does not
//! outlive its window. docs/design/0010-git.md has the whole picture.

mod ask;
mod carry;
mod lfs;
pub(crate) mod model;
mod push;
mod rule;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coffer_core::git::gate::{CREDENTIAL_REFUSED, CREDENTIAL_UNKNOWN, FORGE_UNUSABLE};
use coffer_core::network::{GATE_ADDRESS, GATE_NAME, GATE_PORT, HostName, Policy, RefusedKind};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub(crate) use ask::Service;
use ask::{Ask, Asked};
use carry::{Answer, Sent, Target};
pub(crate) use lfs::Seal;
#[cfg(any(test, fuzzing))]
pub(crate) use push::fuzz;
use push::{CommandReader, Wanted};
pub(crate) use rule::GitRule;

use crate::refusal::{Cause, Refused};
use crate::sandbox::{Passing, Sandbox};

const MOST_BUFFER: usize = 64 * 1024;
const MOST_HEADERS: usize = 64;
/// How long a head may take, including the wait for the next request, and the commands of a push.
const HEAD_PATIENCE: Duration = Duration::from_secs(60);
/// How much of a refused push is read, so that the reason is not lost.
const MOST_DRAINED: usize = 256 * 1024 * 1024;
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);

/// Request headers that are passed on.
const SENT: [HeaderName; 6] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::USER_AGENT,
    HeaderName::from_static("git-protocol"),
];

/// Whether a connection is to the gate.
pub(crate) fn is_meant(policy: &Policy, to: std::net::SocketAddr) -> bool {
    !policy.git().is_empty() && to == (GATE_ADDRESS, GATE_PORT).into()
}

/// Whether a question is for the gate's name.
pub(crate) fn is_asked(policy: &Policy, name: &HostName) -> bool {
    !policy.git().is_empty() && name.as_str() == GATE_NAME
}

/// Serves a connection of git.
pub(crate) async fn serve(sandbox: &Arc<Sandbox>, stream: TcpStream) {
    let gate = Arc::new(Gate { sandbox: sandbox.clone() });
    let mut server = hyper::server::conn::http1::Builder::new();
    server
        .max_buf_size(MOST_BUFFER)
        .max_headers(MOST_HEADERS)
        .auto_date_header(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE);
    let service = service_fn(move |request| gate.clone().answer(request));
    let connection = server.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        biased;
        () = sandbox.stop.cancelled() => {}
        served = connection => {
            if let Err(error) = served {
                tracing::debug!(%error, "a git connection ended");
            }
        }
    }
}

struct Gate {
    sandbox: Arc<Sandbox>,
}

/// Our own answer instead of the forge's.
struct Instead(Box<Response<Answer>>);

impl Gate {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
        Ok(self.pass(request).await.unwrap_or_else(|Instead(answer)| *answer))
    }

    async fn pass(&self, request: Request<Incoming>) -> Result<Response<Answer>, Instead> {
        let (parts, mut body) = request.into_parts();
        let asked = Asked::read(&parts.method, &parts.uri).map_err(|rule| self.refuse(&Cause::Git(rule)))?;
        let ask = match asked {
            Asked::Git(ask) => ask,
            Asked::Lfs(ask) => return self.pass_lfs(ask, &parts, body).await,
        };
        let admitted = self.sandbox.admit_git(&ask.slug, ask.service);
        let passing = admitted.map_err(|cause| self.refuse(&cause))?;
        let mut first = Bytes::new();
        if !ask.refs {
            self.check_body(&ask, &parts.headers)?;
        }
        if ask.service == Service::Push && !ask.refs {
            first = self.judge(&passing, &mut body).await?;
        }
        let outgoing = self.outgoing(&ask, &passing, &parts.headers, Sent::new(first, body))?;
        let target = Target::of(&passing.route);
        let answer = self.carry(passing, target, outgoing).await.map_err(|why| self.failed(&why))?;
        let status = answer.status();
        if status == StatusCode::UNAUTHORIZED {
            return Err(self.failed(CREDENTIAL_REFUSED));
        }
        if status.is_redirection() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.failed("it redirects to another address, and redirects are not followed"));
        }
        Ok(shown(answer))
    }

    /// Sends a request, and aborts it when it may no longer pass.
    async fn carry(
        &self,
        passing: Passing,
        target: Target,
        outgoing: Request<Sent>,
    ) -> Result<Response<Answer>, String> {
        let cut = passing.cut.clone();
        let answered = tokio::select! {
            biased;
            () = cut.cancelled() => Err("the push window was closed during the request".to_string()),
            answered = carry::send(&self.sandbox, passing, target, outgoing) => answered,
        };
        if answered.is_ok() {
            self.sandbox.counters.opened.fetch_add(1, Ordering::Relaxed);
        }
        answered
    }

    /// Checks that a body is what git would send. Git does not compress pushes, and a compressed one could
    /// not be read here.
    fn check_body(&self, ask: &Ask, headers: &HeaderMap) -> Result<(), Instead> {
        let typed = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == ask.content_type().as_str());
        let plain = headers.get(header::CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
        if typed && (plain || ask.service == Service::Fetch) {
            Ok(())
        } else {
            Err(self.refuse(&Cause::Git(GitRule::Service)))
        }
    }

    /// Reads and judges the commands of a push; returns the bytes read.
    async fn judge(&self, passing: &Passing, body: &mut Incoming) -> Result<Bytes, Instead> {
        let mut reader = CommandReader::default();
        let reading = timeout(HEAD_PATIENCE, read(&mut reader, body)).await;
        let wanted = match reading.unwrap_or(Err(GitRule::Protocol)) {
            Ok(wanted) => wanted,
            Err(rule) => return Err(self.refuse(&Cause::Git(rule))),
        };
        let window = passing.route.push.as_ref();
        let judged = window.map_or(Err(GitRule::PushClosed), |window| wanted.judge(window));
        if let Err(rule) = judged {
            return Err(self.report(&wanted, rule, body).await);
        }
        let (first, more) = reader.into_bytes();
        // Without a command, only git's question itself is passed on.
        if wanted.commands.is_empty() && (more || !has_ended(body).await) {
            return Err(self.refuse(&Cause::Git(GitRule::Protocol)));
        }
        Ok(first.into())
    }

    /// The request for the forge.
    fn outgoing(
        &self,
        ask: &Ask,
        passing: &Passing,
        headers: &HeaderMap,
        body: Sent,
    ) -> Result<Request<Sent>, Instead> {
        let route = &passing.route;
        let unusable = || self.failed("its address or credential is not valid in an HTTP request");
        let method = if ask.refs { http::Method::GET } else { http::Method::POST };
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = ask.path(route.upstream.path()).parse::<Uri>().map_err(|_| unusable())?;
        let host = HeaderValue::try_from(route.upstream.authority()).map_err(|_| unusable())?;
        request.headers_mut().insert(header::HOST, host);
        copy(headers, request.headers_mut(), &SENT);
        if let Some(text) = &route.authorization {
            let mut value = HeaderValue::from_str(text.reveal()).map_err(|_| unusable())?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        Ok(request)
    }

    /// Records a refusal and returns the reason.
    fn refuse(&self, cause: &Cause) -> Instead {
        self.record(cause);
        match cause {
            Cause::Git(rule) => told(rule.status(), rule.why(), &rule.to_string()),
            _ => told(StatusCode::SERVICE_UNAVAILABLE, CREDENTIAL_UNKNOWN, &cause.to_string()),
        }
    }

    fn record(&self, cause: &Cause) {
        let refused = Refused {
            kind: RefusedKind::Connection,
            name: HostName::parse(GATE_NAME).ok(),
            address: Some(GATE_ADDRESS.into()),
            port: Some(GATE_PORT),
        };
        self.sandbox.refuse(refused, cause);
    }

    /// Refuses a push in the form that git shows to its user.
    async fn report(&self, wanted: &Wanted, rule: GitRule, body: &mut Incoming) -> Instead {
        let Some(report) = wanted.report(rule.why()) else { return self.refuse(&Cause::Git(rule)) };
        self.record(&Cause::Git(rule));
        // git reads the answer once it has sent everything.
        let _ = timeout(DRAIN_PATIENCE, drain(body)).await;
        let mut answer = Response::new(whole(report));
        let kind = HeaderValue::from_static("application/x-git-receive-pack-result");
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
        Instead(Box::new(answer))
    }

    /// The forge cannot be reached, or its answer is not passed on.
    fn failed(&self, why: &str) -> Instead {
        self.count_failed();
        told(StatusCode::BAD_GATEWAY, &format!("{FORGE_UNUSABLE}: {why}"), "git:forge")
    }
}

impl Gate {
    fn count_failed(&self) {
        self.sandbox.counters.failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads until the commands are complete.
async fn read(reader: &mut CommandReader, body: &mut Incoming) -> Result<Wanted, GitRule> {
    loop {
        let frame = body.frame().await.ok_or(GitRule::Protocol)?.map_err(|_| GitRule::Protocol)?;
        let Ok(data) = frame.into_data() else { return Err(GitRule::Protocol) };
        if let Some(wanted) = reader.push(&data)? {
            return Ok(wanted.clone());
        }
    }
}

async fn drain(body: &mut Incoming) {
    let mut drained = 0;
    while drained < MOST_DRAINED {
        let Some(Ok(frame)) = body.frame().await else { return };
        drained += frame.data_ref().map_or(0, Bytes::len);
    }
}

/// Whether the body has ended.
async fn has_ended(body: &mut Incoming) -> bool {
    loop {
        match timeout(HEAD_PATIENCE, body.frame()).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
            _ => return false,
        }
    }
}

/// The forge's answer for git: without cookies, challenges and redirects.
fn shown(answer: Response<Answer>) -> Response<Answer> {
    const SHOWN: [HeaderName; 6] = [
        header::CONTENT_TYPE,
        header::CONTENT_ENCODING,
        header::CACHE_CONTROL,
        header::EXPIRES,
        header::PRAGMA,
        header::RETRY_AFTER,
    ];
    let (parts, body) = answer.into_parts();
    let mut shown = Response::new(body);
    *shown.status_mut() = parts.status;
    copy(&parts.headers, shown.headers_mut(), &SHOWN);
    shown
}

fn copy(from: &HeaderMap, to: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        if let Some(value) = from.get(name) {
            to.insert(name.clone(), value.clone());
        }
    }
}

/// Our own answer, which git shows to its user.
fn told(status: StatusCode, why: &str, rule: &str) -> Instead {
    let mut answer = Response::new(whole(format!("{why}\n").into_bytes()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if let Ok(rule) = HeaderValue::from_str(rule) {
        headers.insert("x-coffer-rule", rule);
    }
    Instead(Box::new(answer))
}

fn whole(bytes: Vec<u8>) -> Answer {
    Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync()
}
