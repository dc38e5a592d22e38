//! Commands in a sandbox: output as bytes, stdin, signals and terminals, by agentd's process API through the server.
//!
//! The process does not notice when the network or the server goes away. [`Process::next`] counts the bytes that it has
//! and continues exactly after them.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use prost::Message as _;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::client::{Client, accepted};
use crate::connection::{Body, Flow, full};
use crate::error::Error;
use crate::wire::{self, Next};

/// agentd's own port in a sandbox.
const AGENTD: HeaderValue = HeaderValue::from_static("49983");
const KEEPALIVE_S: HeaderValue = HeaderValue::from_static("20");
/// How long a stream may be silent.
const SILENT: Duration = Duration::from_secs(60);
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How long a lost process is looked for.
const SEARCH: Duration = Duration::from_secs(120);
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// Pieces of input that wait to be sent.
const MOST_PIECES: usize = 8;
/// What one message of input has at most.
const LARGEST_PIECE: usize = 64 << 10;

/// A command to start.
#[derive(Debug, Clone, Default)]
pub struct Command {
    pub program: String,
    pub arguments: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// The user's home by default.
    pub cwd: Option<String>,
    /// The template's user by default.
    pub user: Option<String>,
    /// A terminal of this size instead of pipes.
    pub terminal: Option<TerminalSize>,
    /// Whether it has a standard input; otherwise that is empty.
    pub stdin: bool,
    /// It is killed after this time.
    pub timeout: Option<Duration>,
    /// Its streams are a protocol of programs: they wait for each other without a limit, and the log has no output.
    pub piped: bool,
}

impl Command {
    /// A line for `/bin/bash -l -c`, as `POST …/exec` runs it.
    pub fn shell(line: impl Into<String>) -> Self {
        let arguments = vec!["-l".into(), "-c".into(), line.into()];
        Self { program: "/bin/bash".into(), arguments, ..Self::default() }
    }

    /// A program and its arguments. The first word names the program; it is looked up in `PATH`.
    pub fn words(words: impl IntoIterator<Item = String>) -> Self {
        let mut words = words.into_iter();
        let program = words.next().unwrap_or_default();
        Self { program, arguments: words.collect(), ..Self::default() }
    }
}

/// Columns and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

/// A signal that agentd can send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    HangUp,
    Interrupt,
    Quit,
    Abort,
    Kill,
    User1,
    User2,
    Pipe,
    Alarm,
    Terminate,
}

impl Signal {
    /// By its name in SSH and in shells, without `SIG`.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "HUP" => Self::HangUp,
            "INT" => Self::Interrupt,
            "QUIT" => Self::Quit,
            "ABRT" => Self::Abort,
            "KILL" => Self::Kill,
            "USR1" => Self::User1,
            "USR2" => Self::User2,
            "PIPE" => Self::Pipe,
            "ALRM" => Self::Alarm,
            "TERM" => Self::Terminate,
            _ => return None,
        })
    }

    fn number(self) -> i32 {
        match self {
            Self::HangUp => 1,
            Self::Interrupt => 2,
            Self::Quit => 3,
            Self::Abort => 6,
            Self::Kill => 9,
            Self::User1 => 10,
            Self::User2 => 12,
            Self::Pipe => 13,
            Self::Alarm => 14,
            Self::Terminate => 15,
        }
    }
}

/// What a process does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    Terminal(Bytes),
    /// The last one.
    Ended(End),
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// `None` if a signal ended it, or the timeout did.
    pub exit_code: Option<i32>,
    /// In words: `exit status 1`, `signal: killed`.
    pub status: String,
    pub timed_out: bool,
}

impl End {
    /// The number of the signal that ended it, if this is known.
    pub fn signal(&self) -> Option<u8> {
        let name = self.status.strip_prefix("signal: ")?;
        let name = name.trim_end_matches(" (core dumped)");
        Some(match name {
            "hangup" => 1,
            "interrupt" => 2,
            "quit" => 3,
            "illegal instruction" => 4,
            "trace/breakpoint trap" => 5,
            "aborted" => 6,
            "bus error" => 7,
            "floating point exception" => 8,
            "killed" => 9,
            "user defined signal 1" => 10,
            "segmentation fault" => 11,
            "user defined signal 2" => 12,
            "broken pipe" => 13,
            "alarm clock" => 14,
            "terminated" => 15,
            "cpu time limit exceeded" => 24,
            "file size limit exceeded" => 25,
            "bad system call" => 31,
            other => return other.strip_prefix("signal ")?.parse().ok(),
        })
    }
}

/// The inside of one sandbox.
#[derive(Debug, Clone)]
pub struct Guest {
    client: Client,
    sandbox: String,
    token: Option<HeaderValue>,
}

impl Client {
    /// The inside of a sandbox. Asks the server for its access token, which wakes nothing.
    pub async fn guest(&self, sandbox: &str) -> Result<Guest, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Detail {
            envd_access_token: Option<String>,
        }
        let path = format!("/sandboxes/{}", crate::client::inside(sandbox));
        let detail: Detail = self.get(&path).await?;
        let token = detail.envd_access_token.map(|token| HeaderValue::from_str(&token)).transpose();
        let mut token = token.map_err(|_| Error::Unreadable("the sandbox's token is not text".into()))?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        Ok(Guest { client: self.clone(), sandbox: sandbox.to_string(), token })
    }
}

impl Guest {
    pub fn sandbox(&self) -> &str {
        &self.sandbox
    }

    fn headers(&self, user: Option<&str>) -> Result<HeaderMap, Error> {
        let mut headers = HeaderMap::new();
        let sandbox = HeaderValue::from_str(&self.sandbox);
        headers.insert(
            "e2b-sandbox-id",
            sandbox.map_err(|_| Error::Unreadable("the sandbox's id is not text".into()))?,
        );
        headers.insert("e2b-sandbox-port", AGENTD);
        headers.insert("connect-protocol-version", HeaderValue::from_static("1"));
        // The project's key is not for sandboxes to see: agentd has its own token.
        if let Some(token) = &self.token {
            headers.insert("x-access-token", token.clone());
        }
        if let Some(user) = user {
            let basic = format!("Basic {}", STANDARD.encode(format!("{user}:")));
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&basic).map_err(|_| Error::BadKey)?);
        }
        Ok(headers)
    }

    async fn post(
        &self,
        method: &str,
        mut headers: HeaderMap,
        kind: &'static str,
        body: Body,
    ) -> Result<Flow, Error> {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        let path = format!("/process.Process/{method}");
        Ok(accepted(self.client.send_raw(Method::POST, &path, headers, body).await?).await?.into_body())
    }

    async fn unary(&self, method: &str, message: &impl prost::Message) -> Result<(), Error> {
        let body = full(message.encode_to_vec());
        let call = self.post(method, self.headers(None)?, "application/proto", body);
        let answer =
            tokio::time::timeout(ANSWER_WITHIN, call).await.map_err(|_| Error::Late(ANSWER_WITHIN))??;
        answer.whole(64 << 10).await.map(drop)
    }

    async fn stream(
        &self,
        method: &str,
        headers: HeaderMap,
        message: &impl prost::Message,
    ) -> Result<Flow, Error> {
        let mut headers = headers;
        headers.insert("keepalive-ping-interval", KEEPALIVE_S);
        let call = self.post(method, headers, "application/connect+proto", full(wire::frame(message)));
        tokio::time::timeout(ANSWER_WITHIN, call).await.map_err(|_| Error::Late(ANSWER_WITHIN))?
    }

    /// Starts a command and waits until it runs.
    pub async fn start(&self, command: &Command) -> Result<Process, Error> {
        let request = wire::StartRequest {
            process: Some(wire::ProcessConfig {
                cmd: command.program.clone(),
                args: command.arguments.clone(),
                envs: command.env.clone().into_iter().collect(),
                cwd: command.cwd.clone(),
            }),
            pty: command.terminal.map(pty),
            stdin: Some(command.stdin),
            offsets: true,
            piped: command.piped,
        };
        let mut headers = self.headers(command.user.as_deref())?;
        if let Some(timeout) = command.timeout {
            headers.insert(
                "connect-timeout-ms",
                HeaderValue::from(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            );
        }
        let flow = self.stream("Start", headers, &request).await?;
        let mut process = Process {
            guest: self.clone(),
            pid: 0,
            is_terminal: command.terminal.is_some(),
            open: Some((flow, BytesMut::new())),
            have: wire::Offsets::default(),
            early: None,
            has_ended: false,
        };
        loop {
            match process.read().await? {
                Event::Started(pid) => {
                    process.pid = pid;
                    return Ok(process);
                }
                Event::Output(output) => {
                    process.early = Some(output);
                    return Ok(process);
                }
                Event::Nothing => {}
            }
        }
    }
}

fn pty(size: TerminalSize) -> wire::Pty {
    wire::Pty { size: Some(wire::Size { cols: size.columns.into(), rows: size.rows.into() }) }
}

/// A started process.
#[derive(Debug)]
pub struct Process {
    guest: Guest,
    pid: u32,
    is_terminal: bool,
    open: Option<(Flow, BytesMut)>,
    /// Bytes of each stream that were returned.
    have: wire::Offsets,
    /// What came before its start was reported.
    early: Option<Output>,
    has_ended: bool,
}

enum Event {
    Started(u32),
    Output(Output),
    Nothing,
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it does next; `None` after [`Output::Ended`]. A lost connection is opened again where it was.
    pub async fn next(&mut self) -> Result<Option<Output>, Error> {
        if let Some(early) = self.early.take() {
            return Ok(Some(early));
        }
        while !self.has_ended {
            match self.read().await {
                Ok(Event::Output(output)) => {
                    self.has_ended = matches!(output, Output::Ended(_));
                    return Ok(Some(output));
                }
                Ok(Event::Started(_) | Event::Nothing) => {}
                Err(error) if error.code() == Some("deadline_exceeded") => {
                    self.has_ended = true;
                    let end = End { exit_code: None, status: "timed out".into(), timed_out: true };
                    return Ok(Some(Output::Ended(end)));
                }
                Err(error) if error.is_transient() => self.attach_again(error).await?,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Looks for the process until it is found, refused or [`SEARCH`] has passed.
    async fn attach_again(&mut self, lost: Error) -> Result<(), Error> {
        self.open = None;
        let search = async {
            let mut wait = SHORTEST_WAIT;
            let mut resume_from = Some(self.have);
            loop {
                let process = Some(wire::Selector { pid: self.pid });
                let request = wire::ConnectRequest { process, offsets: true, resume_from };
                match self.guest.stream("Connect", self.guest.headers(None)?, &request).await {
                    Ok(flow) => return Ok(flow),
                    // What follows is no longer kept: continue with what is.
                    Err(error) if error.code() == Some("out_of_range") && resume_from.is_some() => {
                        resume_from = None
                    }
                    Err(error) if error.is_transient() => {
                        tokio::time::sleep(wait).await;
                        wait = (wait * 2).min(LONGEST_WAIT);
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let found = tokio::time::timeout(SEARCH, search).await.unwrap_or(Err(lost))?;
        self.open = Some((found, BytesMut::new()));
        Ok(())
    }

    async fn read(&mut self) -> Result<Event, Error> {
        let (flow, held) = self.open.as_mut().ok_or(Error::BrokenOff(None))?;
        let payload = loop {
            match wire::take(held)? {
                Next::Message(payload) => break payload,
                Next::End => return Err(Error::BrokenOff(None)),
                Next::Nothing => {}
            }
            let piece =
                tokio::time::timeout(SILENT, flow.next()).await.map_err(|_| Error::Late(SILENT))??;
            held.extend_from_slice(&piece.ok_or(Error::BrokenOff(None))?);
        };
        let response = wire::StartResponse::decode(payload);
        let event = response.map_err(|error| Error::Unreadable(error.to_string()))?.event.unwrap_or_default();
        if let Some(start) = event.start {
            return Ok(Event::Started(start.pid));
        }
        if let Some(end) = event.end {
            let exit_code = end.exited.then_some(end.exit_code);
            let status = end.error.filter(|_| end.status.is_empty()).unwrap_or(end.status);
            return Ok(Event::Output(Output::Ended(End { exit_code, status, timed_out: false })));
        }
        Ok(event.data.and_then(|data| self.have.add(data)).map_or(Event::Nothing, Event::Output))
    }

    /// Its standard input, or the keyboard of its terminal. Open at most one at a time.
    pub fn input(&self) -> Input {
        Input::open(self.guest.clone(), self.pid, self.is_terminal)
    }

    /// Controls it from another task, while this one reads.
    pub fn handle(&self) -> Handle {
        Handle { guest: self.guest.clone(), pid: self.pid }
    }
}

impl wire::Offsets {
    /// Counts a piece. agentd may begin earlier than asked: then the beginning is known already.
    fn add(&mut self, data: wire::DataEvent) -> Option<Output> {
        let (bytes, have, make): (Bytes, &mut u64, fn(Bytes) -> Output) =
            match (data.stdout, data.stderr, data.pty) {
                (Some(bytes), _, _) => (bytes, &mut self.stdout, Output::Stdout),
                (_, Some(bytes), _) => (bytes, &mut self.stderr, Output::Stderr),
                (_, _, Some(bytes)) => (bytes, &mut self.pty, Output::Terminal),
                (None, None, None) => return None,
            };
        let offset = data.offset.unwrap_or(*have);
        let known = usize::try_from(have.saturating_sub(offset)).unwrap_or(usize::MAX).min(bytes.len());
        let fresh = bytes.slice(known..);
        *have = (*have).max(offset + bytes.len() as u64);
        (!fresh.is_empty()).then(|| make(fresh))
    }
}

/// Signals a process and resizes its terminal.
#[derive(Debug, Clone)]
pub struct Handle {
    guest: Guest,
    pid: u32,
}

impl Handle {
    /// Signals the process and everything in its group.
    pub async fn signal(&self, signal: Signal) -> Result<(), Error> {
        let process = Some(wire::Selector { pid: self.pid });
        let request = wire::SignalRequest { process, signal: signal.number() };
        self.guest.unary("SendSignal", &request).await
    }

    pub async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        let process = Some(wire::Selector { pid: self.pid });
        self.guest.unary("Update", &wire::UpdateRequest { process, pty: Some(pty(size)) }).await
    }
}

/// What is sent to a process. Dropping it without [`Input::finish`] leaves the process's stdin open.
#[derive(Debug)]
pub struct Input {
    pieces: mpsc::Sender<Bytes>,
    sent: AbortOnDropHandle<Result<(), Error>>,
    guest: Guest,
    pid: u32,
    is_terminal: bool,
}

impl Input {
    fn open(guest: Guest, pid: u32, is_terminal: bool) -> Self {
        let (pieces, waiting) = mpsc::channel::<Bytes>(MOST_PIECES);
        let sender = guest.clone();
        #[expect(clippy::disallowed_methods, reason = "aborted when its handle is dropped")]
        let sent = AbortOnDropHandle::new(tokio::spawn(async move {
            let process = Some(wire::Selector { pid });
            let start =
                wire::StreamInput { start: Some(wire::StreamStart { process }), ..Default::default() };
            let first = futures_util::stream::iter([wire::frame(&start)]);
            let rest = futures_util::stream::unfold(waiting, async |mut waiting| {
                let piece = waiting.recv().await?;
                Some((piece, waiting))
            });
            let rest = futures_util::StreamExt::map(rest, move |piece| {
                let input = match is_terminal {
                    true => wire::ProcessInput { stdin: None, pty: Some(piece) },
                    false => wire::ProcessInput { stdin: Some(piece), pty: None },
                };
                let data = Some(wire::StreamData { input: Some(input) });
                wire::frame(&wire::StreamInput { data, ..Default::default() })
            });
            let frames = futures_util::StreamExt::chain(first, rest);
            let frames = futures_util::StreamExt::map(frames, |bytes| Ok::<_, io::Error>(Frame::data(bytes)));
            let body = StreamBody::new(frames).boxed_unsync();
            let flow =
                sender.post("StreamInput", sender.headers(None)?, "application/connect+proto", body).await?;
            let mut held = BytesMut::from(&flow.whole(64 << 10).await?[..]);
            // The answer is one message and the result.
            while let Next::Message(_) = wire::take(&mut held)? {}
            Ok(())
        }));
        Self { pieces, sent, guest, pid, is_terminal }
    }

    /// Sends bytes; waits while the process does not read. An error means that it no longer takes any.
    pub async fn send(&self, bytes: Bytes) -> Result<(), Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(LARGEST_PIECE));
            self.pieces.send(piece).await.map_err(|_| Error::BrokenOff(None))?;
        }
        Ok(())
    }

    /// Waits until everything was taken, and closes stdin: the process reads its end.
    pub async fn finish(self) -> Result<(), Error> {
        let Self { pieces, sent, guest, pid, is_terminal } = self;
        drop(pieces);
        sent.await.map_err(|error| Error::BrokenOff(Some(Box::new(error))))??;
        if is_terminal {
            return Ok(());
        }
        let process = Some(wire::Selector { pid });
        guest.unary("CloseStdin", &wire::CloseStdinRequest { process }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, text: &str) -> wire::DataEvent {
        let stdout = Some(Bytes::from(text.to_string()));
        wire::DataEvent { stdout, stderr: None, pty: None, offset: Some(offset) }
    }

    #[test]
    fn bytes_that_come_twice_are_returned_once() {
        let mut have = wire::Offsets::default();
        assert_eq!(have.add(piece(0, "abc")), Some(Output::Stdout("abc".into())));
        assert_eq!(have.add(piece(0, "abc")), None);
        assert_eq!(have.add(piece(1, "bcd")), Some(Output::Stdout("d".into())));
        assert_eq!(have.add(piece(9, "z")), Some(Output::Stdout("z".into())));
        assert_eq!(have.stdout, 10);
    }

    #[test]
    fn ends_by_signals_have_their_number() {
        let end = |status: &str| End { exit_code: None, status: status.into(), timed_out: false }.signal();
        assert_eq!(end("signal: killed"), Some(9));
        assert_eq!(end("signal: segmentation fault (core dumped)"), Some(11));
        assert_eq!(end("signal: signal 40"), Some(40));
        assert_eq!(end("exit status 1"), None);
    }
}
