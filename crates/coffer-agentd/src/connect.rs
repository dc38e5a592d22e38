//! The Connect protocol: codes, codecs, envelopes and both shapes of a call.
//!
//! An error of a unary call is an HTTP status with a JSON body. An error of a streaming call, even
//! an immediate one, is HTTP 200 and the last envelope: clients only look for it there.

use std::future::Future;

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::reply::{self, Reply};

/// The largest message a client may send; input to a process is the only large one.
pub(crate) const MESSAGE_LIMIT: usize = 16 << 20;

/// Frames that may wait for a slow reader beyond what the socket holds.
const FRAMES_QUEUED: usize = 4;

const FLAG_COMPRESSED: u8 = 0b01;
const FLAG_END: u8 = 0b10;
const ENVELOPE_HEADER: usize = 5;

/// The Connect codes we answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    ResourceExhausted,
    FailedPrecondition,
    OutOfRange,
    Unimplemented,
    Internal,
    DataLoss,
    Unauthenticated,
}

impl Code {
    fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::OutOfRange => "out_of_range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::DataLoss => "data_loss",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Unknown | Self::Internal | Self::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// Why a call failed, as reported to its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RpcError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl RpcError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    fn body(&self) -> ErrorBody<'_> {
        ErrorBody { code: self.code.name(), message: &self.message }
    }

    fn unary_reply(&self) -> Reply {
        reply::json(self.code.status(), &self.body())
    }
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
struct EndBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody<'a>>,
}

/// The encoding of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Json,
    Binary,
}

impl Codec {
    fn decode<M: Message + Default + DeserializeOwned>(self, bytes: &[u8]) -> Result<M, RpcError> {
        match self {
            // An absent body is the empty message, as it is in the binary form.
            Self::Json if bytes.is_empty() => Ok(M::default()),
            Self::Json => serde_json::from_slice(bytes)
                .map_err(|error| RpcError::invalid(format!("unmarshal message: {error}"))),
            Self::Binary => {
                M::decode(bytes).map_err(|error| RpcError::invalid(format!("unmarshal message: {error}")))
            }
        }
    }

    fn encode(self, message: &(impl Message + Serialize)) -> Result<Vec<u8>, RpcError> {
        match self {
            Self::Json => serde_json::to_vec(message)
                .map_err(|error| RpcError::internal(format!("marshal message: {error}"))),
            Self::Binary => Ok(message.encode_to_vec()),
        }
    }

    fn of(headers: &HeaderMap, json: &str, binary: &str) -> Option<Self> {
        let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        let essence = value.split(';').next()?.trim();
        if essence.eq_ignore_ascii_case(json) {
            Some(Self::Json)
        } else if essence.eq_ignore_ascii_case(binary) {
            Some(Self::Binary)
        } else {
            None
        }
    }

    fn unary(headers: &HeaderMap) -> Option<Self> {
        Self::of(headers, UNARY_JSON, UNARY_BINARY)
    }

    fn streaming(headers: &HeaderMap) -> Option<Self> {
        Self::of(headers, STREAM_JSON, STREAM_BINARY)
    }
}

const UNARY_JSON: &str = "application/json";
const UNARY_BINARY: &str = "application/proto";
const STREAM_JSON: &str = "application/connect+json";
const STREAM_BINARY: &str = "application/connect+proto";

/// A call with one request and one answer.
pub(crate) async fn unary<Request, Answer, Handler, Answering>(
    headers: &HeaderMap,
    body: Incoming,
    handler: Handler,
) -> Reply
where
    Request: Message + Default + DeserializeOwned,
    Answer: Message + Serialize,
    Handler: FnOnce(Request) -> Answering,
    Answering: Future<Output = Result<Answer, RpcError>>,
{
    let Some(codec) = Codec::unary(headers) else {
        return unsupported_media_type(UNARY_JSON, UNARY_BINARY);
    };
    let answered = async {
        refuse_compression(headers, header::CONTENT_ENCODING.as_str())?;
        let bytes = collect(body, MESSAGE_LIMIT).await?;
        let answer = handler(codec.decode(&bytes)?).await?;
        codec.encode(&answer)
    };
    match answered.await {
        Ok(bytes) => {
            let content_type = match codec {
                Codec::Json => UNARY_JSON,
                Codec::Binary => UNARY_BINARY,
            };
            with_type(bytes, content_type)
        }
        Err(error) => error.unary_reply(),
    }
}

/// A call with one request and many answers.
pub(crate) async fn server_stream<Request, Handler, Streaming>(
    headers: &HeaderMap,
    body: Incoming,
    handler: Handler,
) -> Reply
where
    Request: Message + Default + DeserializeOwned,
    Handler: FnOnce(Request, EventSink) -> Streaming,
    Streaming: Future<Output = Result<(), RpcError>> + Send + 'static,
{
    let Some(codec) = Codec::streaming(headers) else {
        return unsupported_media_type(STREAM_JSON, STREAM_BINARY);
    };
    // Read the whole request first: only then can the HTTP layer notice that a client disconnects.
    let request = async {
        refuse_compression(headers, "connect-content-encoding")?;
        let bytes = collect(body, MESSAGE_LIMIT + ENVELOPE_HEADER).await?;
        let mut envelopes = Envelopes::default();
        envelopes.feed(&bytes);
        match envelopes.take()? {
            Some(message) => codec.decode(&message),
            None => Err(RpcError::invalid("the request has no message")),
        }
    };
    let (sender, receiver) = mpsc::channel(FRAMES_QUEUED);
    match request.await {
        Ok(request) => {
            let sink = EventSink { codec, sender };
            let closing = sink.sender.clone();
            let streaming = handler(request, sink);
            crate::task::spawn(async move {
                let end = end_frame(streaming.await.err().as_ref());
                // A reader that is gone needs no end message.
                let _gone = closing.send(end).await;
            });
        }
        Err(error) => {
            let _always_room = sender.try_send(end_frame(Some(&error)));
        }
    }
    stream_reply(codec, receiver)
}

/// A call with many requests and one answer.
pub(crate) async fn client_stream<Request, Answer, Handler, Answering>(
    headers: &HeaderMap,
    body: Incoming,
    handler: Handler,
) -> Reply
where
    Request: Message + Default + DeserializeOwned,
    Answer: Message + Serialize,
    Handler: FnOnce(MessageSource<Request>) -> Answering,
    Answering: Future<Output = Result<Answer, RpcError>>,
{
    let Some(codec) = Codec::streaming(headers) else {
        return unsupported_media_type(STREAM_JSON, STREAM_BINARY);
    };
    let answered = async {
        refuse_compression(headers, "connect-content-encoding")?;
        let source =
            MessageSource { codec, body, envelopes: Envelopes::default(), request: std::marker::PhantomData };
        codec.encode(&handler(source).await?)
    };
    let (sender, receiver) = mpsc::channel(2);
    let end = match answered.await {
        Ok(bytes) => {
            let _always_room = sender.try_send(envelope(0, &bytes));
            end_frame(None)
        }
        Err(error) => end_frame(Some(&error)),
    };
    let _always_room = sender.try_send(end);
    stream_reply(codec, receiver)
}

/// The reader of a stream has gone away.
#[derive(Debug)]
pub(crate) struct Gone;

/// The output of a streaming handler.
#[derive(Debug, Clone)]
pub(crate) struct EventSink {
    codec: Codec,
    sender: mpsc::Sender<Bytes>,
}

impl EventSink {
    /// Waits while the reader is behind.
    pub(crate) async fn send(&self, message: &(impl Message + Serialize)) -> Result<(), Gone> {
        let bytes = self.codec.encode(message).map_err(|_| Gone)?;
        self.sender.send(envelope(0, &bytes)).await.map_err(|_| Gone)
    }

    /// Ends when the reader has gone away.
    pub(crate) async fn gone(&self) {
        self.sender.closed().await;
    }
}

/// The input of a client-streaming handler.
pub(crate) struct MessageSource<Request> {
    codec: Codec,
    body: Incoming,
    envelopes: Envelopes,
    request: std::marker::PhantomData<fn() -> Request>,
}

impl<Request: Message + Default + DeserializeOwned> MessageSource<Request> {
    /// The next message, or `None` after the client's last.
    pub(crate) async fn next(&mut self) -> Result<Option<Request>, RpcError> {
        loop {
            if let Some(message) = self.envelopes.take()? {
                return self.codec.decode(&message).map(Some);
            }
            match self.body.frame().await {
                None if self.envelopes.is_empty() => return Ok(None),
                None => return Err(RpcError::invalid("the request ends within a message")),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.envelopes.feed(data);
                    }
                }
                Some(Err(error)) => {
                    return Err(RpcError::new(Code::Unknown, format!("error streaming input: {error}")));
                }
            }
        }
    }
}

/// Splits bytes into envelopes.
#[derive(Debug, Default)]
struct Envelopes {
    buffer: BytesMut,
}

impl Envelopes {
    fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The payload of the next envelope, once it has arrived completely.
    fn take(&mut self) -> Result<Option<Bytes>, RpcError> {
        let Some((head, _)) = self.buffer.split_first_chunk::<ENVELOPE_HEADER>() else {
            return Ok(None);
        };
        let flags = head[0];
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if flags & FLAG_COMPRESSED != 0 {
            return Err(RpcError::internal("received a compressed message without an agreed compression"));
        }
        if length > MESSAGE_LIMIT {
            return Err(too_large());
        }
        if self.buffer.len() < ENVELOPE_HEADER + length {
            return Ok(None);
        }
        self.buffer.advance(ENVELOPE_HEADER);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

/// Fuzzing: input gives the same result whole and in pieces, and is bounded.
#[cfg(any(test, fuzzing))]
pub fn fuzz_envelope(data: &[u8]) {
    use coffer_wire::envd::process::{StartRequest, StreamInputRequest};

    let Some((piece, wire)) = data.split_first() else { return };
    let read = |piece: usize| {
        let mut envelopes = Envelopes::default();
        let mut payloads = Vec::new();
        for bytes in wire.chunks(piece) {
            envelopes.feed(bytes);
            loop {
                match envelopes.take() {
                    Ok(Some(payload)) => payloads.push(payload),
                    Ok(None) => break,
                    Err(error) => return (payloads, Err(error.code)),
                }
            }
        }
        (payloads, Ok(envelopes.buffer.len()))
    };
    let (payloads, end) = read(usize::from(*piece).max(1));
    let whole = read(usize::MAX);
    assert_eq!((&payloads, end), (&whole.0, whole.1), "pieces of {piece} read otherwise");
    let taken: usize = payloads.iter().map(|payload| ENVELOPE_HEADER + payload.len()).sum();
    match end {
        Ok(left) => assert_eq!(taken + left, wire.len()),
        Err(_) => assert!(taken + ENVELOPE_HEADER <= wire.len()),
    }
    for payload in payloads {
        assert!(payload.len() <= MESSAGE_LIMIT);
        for codec in [Codec::Json, Codec::Binary] {
            let _ = codec.decode::<StartRequest>(&payload);
            if let Ok(message) = codec.decode::<StreamInputRequest>(&payload) {
                let written = codec.encode(&message).expect("what was read can be written");
                assert_eq!(codec.decode(&written), Ok(message), "written and read again");
            }
        }
    }
}

fn envelope(flags: u8, payload: &[u8]) -> Bytes {
    let mut framed = Vec::with_capacity(ENVELOPE_HEADER + payload.len());
    framed.push(flags);
    // Our messages are chunks of output or pages of entries, far below 4 GiB.
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(payload);
    framed.into()
}

fn end_frame(error: Option<&RpcError>) -> Bytes {
    let body = EndBody { error: error.map(RpcError::body) };
    let payload = serde_json::to_vec(&body).unwrap_or_else(|_| b"{}".to_vec());
    envelope(FLAG_END, &payload)
}

fn stream_reply(codec: Codec, receiver: mpsc::Receiver<Bytes>) -> Reply {
    let frames = stream::unfold(receiver, |mut receiver| async move {
        let bytes = receiver.recv().await?;
        Some((Ok(Frame::data(bytes)), receiver))
    });
    let mut reply = Response::new(StreamBody::new(frames).boxed_unsync());
    let content_type = match codec {
        Codec::Json => STREAM_JSON,
        Codec::Binary => STREAM_BINARY,
    };
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

fn with_type(bytes: Vec<u8>, content_type: &'static str) -> Reply {
    let mut reply = Response::new(reply::full(bytes));
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

fn unsupported_media_type(json: &'static str, binary: &'static str) -> Reply {
    let mut reply = reply::empty(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let accepted = format!("{json}, {binary}");
    if let Ok(value) = HeaderValue::from_str(&accepted) {
        reply.headers_mut().insert("accept-post", value);
    }
    reply
}

fn refuse_compression(headers: &HeaderMap, name: &str) -> Result<(), RpcError> {
    match headers.get(name).map(HeaderValue::as_bytes) {
        None | Some(b"" | b"identity") => Ok(()),
        Some(other) => Err(RpcError::new(
            Code::Unimplemented,
            format!(
                "unknown compression {:?}: supported encodings are identity",
                String::from_utf8_lossy(other)
            ),
        )),
    }
}

fn too_large() -> RpcError {
    RpcError::new(Code::ResourceExhausted, format!("message is larger than {MESSAGE_LIMIT} bytes"))
}

/// The whole body, up to `limit` bytes.
async fn collect(body: Incoming, limit: usize) -> Result<Bytes, RpcError> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Err(error) => Err(RpcError::new(Code::Unknown, format!("could not read the request: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_come_out_whole_however_they_arrive() {
        let mut wire = envelope(0, b"one").to_vec();
        wire.extend_from_slice(&envelope(0, b""));
        wire.extend_from_slice(&envelope(FLAG_END, b"{}"));
        let mut envelopes = Envelopes::default();
        let mut seen = Vec::new();
        for byte in wire {
            envelopes.feed(&[byte]);
            while let Some(payload) = envelopes.take().unwrap() {
                seen.push(payload);
            }
        }
        assert_eq!(seen, ["one", "", "{}"]);
    }

    #[test]
    fn an_oversized_envelope_is_refused_before_it_is_buffered() {
        let mut envelopes = Envelopes::default();
        envelopes.feed(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(envelopes.take().unwrap_err().code, Code::ResourceExhausted);
    }

    #[test]
    fn the_end_frame_carries_the_error() {
        let error = RpcError::not_found("no \"x\"");
        assert_eq!(&end_frame(None)[..], b"\x02\0\0\0\x02{}");
        assert_eq!(&end_frame(Some(&error))[5..], br#"{"error":{"code":"not_found","message":"no \"x\""}}"#);
    }
}
