//! The messages of agentd's process API that this client uses, and their framing.
//!
//! They are those of `coffer-wire/proto/process.proto`, by number. That crate is not used here: its other half is the
//! node's protocol over Unix sockets, which does not compile everywhere. Tests with real sandboxes would fail if the
//! two differed.

use std::collections::HashMap;

use bytes::{Buf as _, Bytes, BytesMut};
use prost::Message;
use serde::Deserialize;

use crate::error::{Error, Refusal};

const HEADER: usize = 5;
const COMPRESSED: u8 = 0b01;
const END: u8 = 0b10;
/// agentd's own messages have some 32 KiB.
const LONGEST: usize = 4 << 20;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Size {
    #[prost(uint32, tag = "1")]
    pub(crate) cols: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) rows: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pty {
    #[prost(message, optional, tag = "1")]
    pub(crate) size: Option<Size>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessConfig {
    #[prost(string, tag = "1")]
    pub(crate) cmd: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) args: Vec<String>,
    #[prost(map = "string, string", tag = "3")]
    pub(crate) envs: HashMap<String, String>,
    #[prost(string, optional, tag = "4")]
    pub(crate) cwd: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Selector {
    #[prost(uint32, tag = "1")]
    pub(crate) pid: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessInput {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub(crate) stdin: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) pty: Option<Bytes>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Offsets {
    #[prost(uint64, tag = "1")]
    pub(crate) stdout: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) stderr: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) pty: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StartRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) process: Option<ProcessConfig>,
    #[prost(message, optional, tag = "2")]
    pub(crate) pty: Option<Pty>,
    #[prost(bool, optional, tag = "4")]
    pub(crate) stdin: Option<bool>,
    #[prost(bool, tag = "1000")]
    pub(crate) offsets: bool,
    #[prost(bool, tag = "1002")]
    pub(crate) piped: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConnectRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) process: Option<Selector>,
    #[prost(bool, tag = "1000")]
    pub(crate) offsets: bool,
    #[prost(message, optional, tag = "1001")]
    pub(crate) resume_from: Option<Offsets>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UpdateRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) process: Option<Selector>,
    #[prost(message, optional, tag = "2")]
    pub(crate) pty: Option<Pty>,
}

/// `StreamInput`: exactly one of the fields.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamInput {
    #[prost(message, optional, tag = "1")]
    pub(crate) start: Option<StreamStart>,
    #[prost(message, optional, tag = "2")]
    pub(crate) data: Option<StreamData>,
    #[prost(message, optional, tag = "3")]
    pub(crate) keepalive: Option<Nothing>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamStart {
    #[prost(message, optional, tag = "1")]
    pub(crate) process: Option<Selector>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamData {
    #[prost(message, optional, tag = "2")]
    pub(crate) input: Option<ProcessInput>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SignalRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) process: Option<Selector>,
    #[prost(int32, tag = "2")]
    pub(crate) signal: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CloseStdinRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) process: Option<Selector>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Nothing {}

/// The answers of `Start` and `Connect`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StartResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) event: Option<ProcessEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessEvent {
    #[prost(message, optional, tag = "1")]
    pub(crate) start: Option<StartEvent>,
    #[prost(message, optional, tag = "2")]
    pub(crate) data: Option<DataEvent>,
    #[prost(message, optional, tag = "3")]
    pub(crate) end: Option<EndEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StartEvent {
    #[prost(uint32, tag = "1")]
    pub(crate) pid: u32,
    #[prost(message, optional, tag = "1000")]
    pub(crate) offsets: Option<Offsets>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DataEvent {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub(crate) stdout: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) stderr: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) pty: Option<Bytes>,
    #[prost(uint64, optional, tag = "1000")]
    pub(crate) offset: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EndEvent {
    #[prost(sint32, tag = "1")]
    pub(crate) exit_code: i32,
    #[prost(bool, tag = "2")]
    pub(crate) exited: bool,
    #[prost(string, tag = "3")]
    pub(crate) status: String,
    #[prost(string, optional, tag = "4")]
    pub(crate) error: Option<String>,
}

/// A message with its length before it.
pub(crate) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(HEADER + length);
    framed.extend_from_slice(&[0]);
    framed.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    message.encode(&mut framed).expect("a buffer in memory grows");
    framed.freeze()
}

/// What a stream has next.
pub(crate) enum Next {
    Message(Bytes),
    /// The stream is complete.
    End,
    /// More bytes are needed.
    Nothing,
}

/// Takes the next whole message from the beginning of `held`. The last message is the stream's own result.
pub(crate) fn take(held: &mut BytesMut) -> Result<Next, Error> {
    let Some((head, _)) = held.split_first_chunk::<HEADER>() else { return Ok(Next::Nothing) };
    let (flags, length) = (head[0], u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize);
    if length > LONGEST || flags & COMPRESSED != 0 {
        return Err(Error::Unreadable("the sandbox sent an unexpected message".into()));
    }
    if held.len() < HEADER + length {
        return Ok(Next::Nothing);
    }
    held.advance(HEADER);
    let payload = held.split_to(length).freeze();
    if flags & END == 0 {
        return Ok(Next::Message(payload));
    }
    #[derive(Deserialize)]
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
        serde_json::from_slice(&payload).map_err(|error| Error::Unreadable(error.to_string()))?;
    match last.error {
        None => Ok(Next::End),
        Some(Problem { code, message }) => {
            let status = http::StatusCode::OK;
            let (hint, details, request_id, retry_after) = (None, None, None, None);
            let refusal = Refusal { status, code, message, hint, details, request_id, retry_after };
            Err(Error::Refused(Box::new(refusal)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_whole_out_of_any_pieces() {
        let message = Selector { pid: 300 };
        let mut bytes = frame(&message).to_vec();
        bytes.extend_from_slice(b"\x02\0\0\0\x02{}");
        for size in 1..bytes.len() {
            let (mut held, mut found) = (BytesMut::new(), Vec::new());
            for piece in bytes.chunks(size) {
                held.extend_from_slice(piece);
                loop {
                    match take(&mut held).unwrap() {
                        Next::Nothing => break,
                        Next::End => found.push(None),
                        Next::Message(payload) => found.push(Some(Selector::decode(payload).unwrap())),
                    }
                }
            }
            assert_eq!(found, [Some(message.clone()), None]);
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_by_its_head() {
        let mut held = BytesMut::from(&b"\0\xff\xff\xff\xff"[..]);
        assert!(take(&mut held).is_err());
    }

    #[test]
    fn a_stream_that_ends_with_an_error_is_a_refusal() {
        let text = br#"{"error": {"code": "deadline_exceeded", "message": "late"}}"#;
        let mut held = BytesMut::new();
        held.extend_from_slice(&[2, 0, 0, 0, u8::try_from(text.len()).unwrap()]);
        held.extend_from_slice(text);
        let error = take(&mut held).err().unwrap();
        assert_eq!((error.code(), error.to_string().as_str()), (Some("deadline_exceeded"), "late"));
    }
}
