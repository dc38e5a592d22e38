//! A client of agentd for our own API: files, processes and their output.
//!
//! Long answers are streamed. Each message is bounded, and a stream ends with the sandbox.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use coffer_wire::agentd::{Unpack, Unpacked};
use coffer_wire::envd::process::process_event::Event;
use coffer_wire::envd::process::{StartRequest, StartResponse};
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use prost::Message;
use serde::Deserialize;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_util::task::AbortOnDropHandle;

use super::{AgentError, ask_for_tunnel, connect};
use crate::Target;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer may take to begin, and a stream may be silent.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often an idle stream sends a keepalive.
const KEEPALIVE_S: u32 = 20;
/// The longest refusal of agentd.
const LONGEST_REFUSAL: usize = 64 * 1024;
/// The longest message of a stream: agentd's own have some 32 KiB.
const LONGEST_MESSAGE: usize = 4 << 20;
const ENVELOPE_HEADER: usize = 5;
const COMPRESSED: u8 = 0b01;
const END: u8 = 0b10;

/// The agentd of a running sandbox.
#[derive(Debug)]
pub struct Guest {
    target: Target,
    token: Option<String>,
}

/// Why a call to agentd failed.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// agentd refused it.
    #[error("{message}")]
    Refused { reason: Reason, message: String },
    #[error("the sandbox ended or was paused during the call")]
    Gone,
    #[error("nothing listens on port {0} of the sandbox")]
    PortClosed(u16),
}

/// Why agentd refused, by its own codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    NotFound,
    /// The token does not allow this.
    Forbidden,
    AlreadyExists,
    Invalid,
    /// The state inside does not allow it.
    Precondition,
    /// A resource inside is used up.
    Exhausted,
    /// The process timed out.
    TimedOut,
    Other,
}

impl Reason {
    /// RPCs have names for codes, plain routes repeat the status.
    fn of(code: &str) -> Self {
        match code {
            "not_found" | "404" => Self::NotFound,
            "403" => Self::Forbidden,
            "already_exists" => Self::AlreadyExists,
            "invalid_argument" | "unauthenticated" | "out_of_range" | "400" | "401" | "422" => Self::Invalid,
            "failed_precondition" => Self::Precondition,
            "resource_exhausted" | "507" => Self::Exhausted,
            "deadline_exceeded" => Self::TimedOut,
            _ => {
                tracing::debug!(code, "agentd refused with an unknown code");
                Self::Other
            }
        }
    }
}

impl Guest {
    pub fn new(target: Target, token: Option<String>) -> Self {
        Self { target, token }
    }

    /// A request builder for `user`, or the sandbox's default user.
    pub fn request(&self, method: Method, path: &str, user: Option<&str>) -> request::Builder {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, HeaderValue::from_static("sandbox"));
        if let Some(token) = self.token.as_deref().and_then(|token| HeaderValue::from_str(token).ok()) {
            request = request.header("x-access-token", token);
        }
        if let Some(user) = user {
            request = request
                .header(header::AUTHORIZATION, format!("Basic {}", STANDARD.encode(format!("{user}:"))));
        }
        request
    }

    /// Sends a request and returns once the answer begins.
    pub async fn send<B>(
        &self,
        request: Request<B>,
        patience: Option<Duration>,
    ) -> Result<Response<Flow>, GuestError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.exchange(None, request, patience).await
    }

    /// The same to a port inside the sandbox. What listens there is no more trusted than agentd.
    pub async fn send_to_port<B>(
        &self,
        port: u16,
        request: Request<B>,
        patience: Option<Duration>,
    ) -> Result<Response<Flow>, GuestError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.exchange(Some(port), request, patience).await
    }

    async fn exchange<B>(
        &self,
        port: Option<u16>,
        request: Request<B>,
        patience: Option<Duration>,
    ) -> Result<Response<Flow>, GuestError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.target.activity.note();
        let exchange = async {
            let connected = tokio::time::timeout(CONNECT_WITHIN, connect(&self.target.socket)).await;
            let mut stream =
                connected.map_err(|_| AgentError::Late(CONNECT_WITHIN))?.map_err(AgentError::Refused)?;
            if let Some(port) = port {
                let asked = tokio::time::timeout(CONNECT_WITHIN, ask_for_tunnel(&mut stream, port)).await;
                let asked = asked.map_err(|_| AgentError::Late(CONNECT_WITHIN))?;
                match asked.map_err(|error| AgentError::Cut(error.to_string()))? {
                    StatusCode::OK => {}
                    StatusCode::BAD_GATEWAY => return Err(GuestError::PortClosed(port)),
                    status => return Err(AgentError::Status(status).into()),
                }
            }
            let broken = |error: hyper::Error| AgentError::Cut(error.to_string());
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
            #[expect(clippy::disallowed_methods, reason = "aborted when its handle is dropped")]
            let driver = AbortOnDropHandle::new(tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!("a connection to agentd ended: {error}");
                }
            }));
            let response = sender.send_request(request).await.map_err(broken)?;
            let flow = |body| Flow {
                body,
                target: self.target.clone(),
                gone: Box::pin(self.target.gone.clone().cancelled_owned()),
                _driver: driver,
            };
            Ok::<_, GuestError>(response.map(flow))
        };
        tokio::select! {
            biased;
            () = self.target.gone.cancelled() => Err(GuestError::Gone),
            answer = exchange => answer,
            // An upload has no time limit.
            () = after(patience) => Err(AgentError::Late(patience.unwrap_or_default()).into()),
        }
    }

    /// A unary call, with an answer of at most `longest` bytes.
    pub async fn call<A: Message + Default>(
        &self,
        path: &str,
        user: Option<&str>,
        message: &impl Message,
        longest: usize,
    ) -> Result<A, GuestError> {
        let request = self
            .request(Method::POST, path, user)
            .header(header::CONTENT_TYPE, "application/proto")
            .body(Full::new(Bytes::from(message.encode_to_vec())))
            .expect("fixed paths and checked values");
        let call = async {
            let answer = self.send(request, None).await?;
            let answer = accepted(answer).await?;
            let body = Limited::new(answer.into_body(), longest).collect().await;
            let body = body.map_err(|error| AgentError::Nonsense(error.to_string()))?.to_bytes();
            Ok(A::decode(body).map_err(|error| AgentError::Nonsense(error.to_string()))?)
        };
        tokio::time::timeout(PATIENCE, call).await.unwrap_or(Err(AgentError::Late(PATIENCE).into()))
    }

    /// Unpacks an archive inside the sandbox, however long that takes: the caller sets the limit. A refusal has
    /// agentd's message, and the archive may then be unpacked in part. Dropping the future cancels it.
    pub async fn unpack<B>(&self, how: &Unpack, archive: B) -> Result<Unpacked, GuestError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let order = serde_json::to_string(how).expect("plain strings and numbers");
        let path = format!("/coffer/unpack?order={}", utf8_percent_encode(&order, NON_ALPHANUMERIC));
        let activity = self.target.activity.clone();
        let archive = archive.map_frame(move |frame| {
            activity.note();
            frame
        });
        let request = self
            .request(Method::POST, &path, None)
            .header(header::CONTENT_TYPE, "application/x-tar")
            .body(archive)
            .map_err(|error| AgentError::Nonsense(error.to_string()))?;
        let answer = accepted(self.send(request, None).await?).await?;
        let body = Limited::new(answer.into_body(), LONGEST_REFUSAL).collect();
        let body = tokio::time::timeout(PATIENCE, body).await.map_err(|_| AgentError::Late(PATIENCE))?;
        let body = body.map_err(|error| AgentError::Nonsense(error.to_string()))?.to_bytes();
        Ok(serde_json::from_slice(&body).map_err(|error| AgentError::Nonsense(error.to_string()))?)
    }

    /// The contents of a file of at most `most` bytes, for `user` or the default one; `None` if there is none. Nothing of it is
    /// in a log.
    pub async fn file(
        &self,
        user: Option<&str>,
        path: &str,
        most: usize,
    ) -> Result<Option<Bytes>, GuestError> {
        let path = utf8_percent_encode(path, NON_ALPHANUMERIC);
        let request = self.request(Method::GET, &format!("/files?path={path}"), user);
        let request = request.body(Empty::<Bytes>::new()).expect("fixed paths and checked values");
        let answer = match accepted(self.send(request, Some(PATIENCE)).await?).await {
            Err(GuestError::Refused { reason: Reason::NotFound, .. }) => return Ok(None),
            answer => answer?,
        };
        let body = Limited::new(answer.into_body(), most).collect();
        let body = tokio::time::timeout(PATIENCE, body).await.map_err(|_| AgentError::Late(PATIENCE))?;
        Ok(Some(body.map_err(|error| AgentError::Nonsense(error.to_string()))?.to_bytes()))
    }

    /// Starts a process that runs no longer than `lifetime`, and follows it.
    pub async fn start(
        &self,
        user: Option<&str>,
        start: &StartRequest,
        lifetime: Option<Duration>,
    ) -> Result<Events, GuestError> {
        let message = start.encode_to_vec();
        let length = u32::try_from(message.len()).map_err(|_| AgentError::Nonsense("too long".into()))?;
        let body = [&[0][..], &length.to_be_bytes(), &message].concat();
        let mut request = self
            .request(Method::POST, "/process.Process/Start", user)
            .header(header::CONTENT_TYPE, "application/connect+proto")
            .header("keepalive-ping-interval", KEEPALIVE_S);
        if let Some(lifetime) = lifetime {
            request = request.header("connect-timeout-ms", lifetime.as_millis().to_string());
        }
        let request = request.body(Full::new(Bytes::from(body))).expect("fixed paths and checked values");
        let answer = accepted(self.send(request, Some(PATIENCE)).await?).await?;
        Ok(Events { body: answer.into_body(), buffer: BytesMut::new() })
    }
}

async fn after(patience: Option<Duration>) {
    match patience {
        Some(patience) => tokio::time::sleep(patience).await,
        None => std::future::pending().await,
    }
}

/// Turns agentd's refusals into errors.
pub async fn accepted(answer: Response<Flow>) -> Result<Response<Flow>, GuestError> {
    #[derive(Deserialize)]
    struct Problem {
        code: serde_json::Value,
        message: String,
    }
    let status = answer.status();
    if status.is_success() || status == StatusCode::NOT_MODIFIED {
        return Ok(answer);
    }
    let body = Limited::new(answer.into_body(), LONGEST_REFUSAL).collect();
    let body = tokio::time::timeout(PATIENCE, body).await.map_err(|_| AgentError::Late(PATIENCE))?;
    let body = body.map_err(|_| AgentError::Status(status))?.to_bytes();
    let Ok(Problem { code, message }) = serde_json::from_slice(&body) else {
        return Err(AgentError::Status(status).into());
    };
    let code = code.as_str().map_or_else(|| status.as_u16().to_string(), str::to_string);
    Err(GuestError::Refused { reason: Reason::of(&code), message })
}

/// The body of an answer, with its connection.
pub struct Flow {
    body: Incoming,
    target: Target,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
    _driver: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flow").field("sandbox", &self.target.sandbox).finish_non_exhaustive()
    }
}

impl Body for Flow {
    type Data = Bytes;
    type Error = GuestError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GuestError>>> {
        if self.gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(GuestError::Gone)));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.target.activity.note();
        Poll::Ready(frame.map(|frame| frame.map_err(|error| AgentError::Cut(error.to_string()).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The events of a started process.
#[derive(Debug)]
pub struct Events {
    body: Flow,
    buffer: BytesMut,
}

impl Events {
    /// The next event; `None` after the last. A timeout of the process is a refusal, [`Reason::TimedOut`].
    pub async fn next(&mut self) -> Result<Option<Event>, GuestError> {
        loop {
            if let Some((flags, payload)) = self.take()? {
                if flags & END != 0 {
                    return ended(&payload).map(|()| None);
                }
                let response = StartResponse::decode(payload);
                let response = response.map_err(|error| AgentError::Nonsense(error.to_string()))?;
                match response.event.and_then(|event| event.event) {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await;
            match frame.map_err(|_| AgentError::Late(PATIENCE))? {
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(error),
                None => {
                    return Err(AgentError::Cut("the stream ended without its last message".into()).into());
                }
            }
        }
    }

    /// The next complete message.
    fn take(&mut self) -> Result<Option<(u8, Bytes)>, GuestError> {
        let Some((head, _)) = self.buffer.split_first_chunk::<ENVELOPE_HEADER>() else { return Ok(None) };
        let (flags, length) = (head[0], u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize);
        if length > LONGEST_MESSAGE || flags & COMPRESSED != 0 {
            return Err(AgentError::Nonsense("an unexpected message".into()).into());
        }
        if self.buffer.len() < ENVELOPE_HEADER + length {
            return Ok(None);
        }
        self.buffer.advance(ENVELOPE_HEADER);
        Ok(Some((flags, self.buffer.split_to(length).freeze())))
    }
}

/// The result in the last message of a stream.
fn ended(payload: &[u8]) -> Result<(), GuestError> {
    #[derive(Deserialize, Default)]
    struct Last {
        error: Option<Problem>,
    }
    #[derive(Deserialize)]
    struct Problem {
        code: String,
        #[serde(default)]
        message: String,
    }
    let last: Last =
        serde_json::from_slice(payload).map_err(|error| AgentError::Nonsense(error.to_string()))?;
    match last.error {
        None => Ok(()),
        Some(Problem { code, message }) => Err(GuestError::Refused { reason: Reason::of(&code), message }),
    }
}
