//! Reads the commands that clients start in a sandbox, if the project has a policy for them, and asks the
//! [`Gate`] whether it permits them.
//!
//! The request is read whole, decoded, and re-encoded: agentd never sees a byte that it could interpret
//! differently. A request that cannot be decoded is refused.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use coffer_core::ProjectId;
use coffer_core::command::RefusedCommand;
use coffer_shares::{Full as NoPlace, Shares};
use coffer_wire::envd::process::StartRequest;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, RETRY_AFTER,
    TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use prost::Message;
use serde::Serialize;
use subtle::ConstantTimeEq;

use super::directory::{Gate, Guard};

/// A longer request is refused: environment and arguments of a command that the kernel would take are shorter.
const LONGEST: usize = 2 << 20;
const WITHIN: Duration = Duration::from_secs(30);

const START: &str = "/process.Process/Start";
const ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
const STREAM_ENCODING: HeaderName = HeaderName::from_static("connect-content-encoding");
const STREAM_JSON: &str = "application/connect+json";
const STREAM_BINARY: &str = "application/connect+proto";
const ENVELOPE_HEADER: usize = 5;
const END: u8 = 0b10;

/// A request that does not reach the sandbox.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) answer: Box<Response<Body>>,
    /// The command to report; `None` for clients without the token.
    pub(super) what: Option<RefusedCommand>,
}

/// Whether `path` could lead to agentd's `Start`, however it is spelled.
pub(super) fn could_start(path: &str) -> bool {
    if path == START {
        return true;
    }
    // Nearly all paths end here.
    if !path.contains('%') && !contains_ignoring_case(path, "start") {
        return false;
    }
    let mut decoded = path.to_string();
    for _ in 0..3 {
        decoded = percent_decode_str(&decoded).decode_utf8_lossy().into_owned();
    }
    contains_ignoring_case(&decoded, "process") && contains_ignoring_case(&decoded, "start")
}

fn contains_ignoring_case(text: &str, wanted: &str) -> bool {
    text.as_bytes().windows(wanted.len()).any(|window| window.eq_ignore_ascii_case(wanted.as_bytes()))
}

/// Whether a client has the sandbox's access token, if there is one.
pub(super) fn has_token(headers: &HeaderMap, guard: &Guard) -> bool {
    let Some(token) = &guard.access_token else { return true };
    let mut given = headers.get_all(ACCESS_TOKEN).iter();
    match (given.next(), given.next()) {
        (Some(given), None) => bool::from(given.as_bytes().ct_eq(token.as_bytes())),
        _ => false,
    }
}

/// Passes a request that may start its command. For a refused one, the caller handles the rest of the body.
pub(super) async fn look(
    mut parts: Parts,
    body: &mut Incoming,
    (gate, guard): (&dyn Gate, &Guard),
    (project, looks): (ProjectId, &Shares<ProjectId>),
) -> Result<Request<Full<Bytes>>, Refused> {
    if !has_token(&parts.headers, guard) {
        return Err(Refused { answer: Box::new(stranger()), what: None });
    }
    let codec = Codec::of(&parts.headers);
    let unclear = |why: &str| {
        let why = format!("{why}, so the project's command policy cannot be checked");
        Refused::new(codec, RefusedCommand { words: Vec::new(), why, rule: None })
    };
    if parts.uri.path() != START {
        return Err(unclear("the path is not spelled in the usual way"));
    }
    let Some(codec) = codec else {
        return Err(unclear("the content type is not one of a stream"));
    };
    if [CONTENT_ENCODING, STREAM_ENCODING].iter().any(|name| is_encoded(&parts.headers, name)) {
        return Err(unclear("the request is compressed"));
    }
    let _place = match looks.take(project).await {
        Ok(place) => place,
        Err(full) => return Err(Refused { answer: Box::new(busy(&full)), what: None }),
    };
    let bytes = match tokio::time::timeout(WITHIN, read(body)).await {
        Ok(read) => read.map_err(unclear)?,
        Err(_) => return Err(unclear("the request did not arrive in time")),
    };
    let message = one_envelope(&bytes).ok_or_else(|| unclear("the request is not one plain message"))?;
    let start = codec.decode(message).ok_or_else(|| unclear("the message cannot be read"))?;
    gate.permit(project, &words(&start)).map_err(|what| Refused::new(Some(codec), what))?;

    let written = envelope(0, &codec.encode(&start));
    // Send one length, that of the new body.
    parts.headers.remove(TRANSFER_ENCODING);
    parts.headers.remove(EXPECT);
    parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(written.len()));
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(codec.name()));
    Ok(Request::from_parts(parts, Full::new(written)))
}

/// The whole of a body that is not too long.
async fn read(body: &mut Incoming) -> Result<Bytes, &'static str> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| "the request ended too early")?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > LONGEST {
            return Err("the request is too long");
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// The program and its arguments.
fn words(start: &StartRequest) -> Vec<String> {
    let process = start.process.clone().unwrap_or_default();
    std::iter::once(process.cmd).chain(process.args).collect()
}

impl Refused {
    fn new(codec: Option<Codec>, what: RefusedCommand) -> Self {
        Self { answer: Box::new(denied(codec, &what.why)), what: Some(what) }
    }
}

fn is_encoded(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get_all(name).iter().any(|value| !matches!(value.as_bytes(), b"" | b"identity"))
}

/// How a stream's messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Codec {
    Json,
    Binary,
}

impl Codec {
    /// By the content type, if there is exactly one.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let mut types = headers.get_all(CONTENT_TYPE).iter();
        let (Some(named), None) = (types.next(), types.next()) else { return None };
        let essence = named.to_str().ok()?.split(';').next()?.trim();
        [Self::Json, Self::Binary].into_iter().find(|codec| essence.eq_ignore_ascii_case(codec.name()))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Json => STREAM_JSON,
            Self::Binary => STREAM_BINARY,
        }
    }

    fn decode(self, message: &[u8]) -> Option<StartRequest> {
        match self {
            Self::Json if message.is_empty() => Some(StartRequest::default()),
            Self::Json => serde_json::from_slice(message).ok(),
            Self::Binary => StartRequest::decode(message).ok(),
        }
    }

    fn encode(self, message: &StartRequest) -> Vec<u8> {
        match self {
            Self::Json => serde_json::to_vec(message).expect("strings, numbers and maps of strings"),
            Self::Binary => message.encode_to_vec(),
        }
    }
}

/// The payload, if there is exactly one uncompressed message and nothing after it.
fn one_envelope(bytes: &[u8]) -> Option<&[u8]> {
    let (head, payload) = bytes.split_first_chunk::<ENVELOPE_HEADER>()?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    (head[0] == 0 && usize::try_from(length) == Ok(payload.len())).then_some(payload)
}

fn envelope(flags: u8, payload: &[u8]) -> Bytes {
    let length = u32::try_from(payload.len()).expect("far below 4 GiB");
    [&[flags][..], &length.to_be_bytes(), payload].concat().into()
}

#[derive(Serialize)]
struct Problem<'a> {
    code: &'static str,
    message: &'a str,
}

/// The project has reached its limit of requests being checked. SDKs treat the status as a rate limit.
fn busy(full: &NoPlace) -> Response<Body> {
    let message = format!("{full}; {}", full.hint());
    let error = Problem { code: "resource_exhausted", message: &message };
    let mut answer = answer(StatusCode::TOO_MANY_REQUESTS, "application/json", json(&error).into());
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(full.retry_after_s()));
    answer
}

/// As Connect reports an error: in a stream it is the last message.
fn denied(codec: Option<Codec>, why: &str) -> Response<Body> {
    #[derive(Serialize)]
    struct Last<'a> {
        error: Problem<'a>,
    }
    let message = format!("the command was not started: {why}");
    let error = Problem { code: "permission_denied", message: &message };
    match codec {
        Some(codec) => answer(StatusCode::OK, codec.name(), envelope(END, &json(&Last { error }))),
        None => answer(StatusCode::FORBIDDEN, "application/json", json(&error).into()),
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain strings")
}

/// agentd's answer to a client without its token.
fn stranger() -> Response<Body> {
    let text = r#"{"code":401,"message":"unauthorized access, please provide a valid access token or method signing if supported"}"#;
    answer(StatusCode::UNAUTHORIZED, "application/json", Bytes::from_static(text.as_bytes()))
}

fn answer(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}
