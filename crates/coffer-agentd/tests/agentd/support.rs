//! One agentd per test, and a client that speaks to it.

use std::convert::Infallible;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

pub(crate) type AnyBody = UnsyncBoxBody<Bytes, Infallible>;

/// No step here takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Agentd {
    child: Child,
    behind_unshare: bool,
    pub(crate) dir: tempfile::TempDir,
    socket: PathBuf,
}

impl Agentd {
    /// Starts one that runs everything as root, the user of these tests.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Other users must be able to access it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).unwrap();
        let socket = dir.path().join("agentd.sock");
        let child = Command::new(env!("CARGO_BIN_EXE_coffer-agentd"))
            .arg("--socket")
            .arg(&socket)
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let agentd = Self { child, behind_unshare: false, dir, socket };
        within(async {
            while UnixStream::connect(&agentd.socket).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        agentd
    }

    /// Starts one as the first process of a pid namespace, with its listener as descriptor 3, like a node.
    /// `None` if the machine does not allow that.
    pub(crate) async fn start_first() -> Option<Self> {
        let unshare = ["--net", "--pid", "--fork", "--mount-proc", "--kill-child"];
        let allowed = Command::new("unshare").args(unshare).arg("true").status();
        if !allowed.is_ok_and(|status| status.success()) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agentd.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let mut command = Command::new("unshare");
        command.args(unshare).arg(env!("CARGO_BIN_EXE_coffer-agentd")).stdin(Stdio::null()).env_clear();
        let inherited = listener.as_raw_fd();
        // SAFETY: what runs between fork and exec only copies a descriptor, which allocates nothing.
        unsafe {
            command.pre_exec(move || as_descriptor_three(inherited));
        }
        let child = command.spawn().unwrap();
        // From here on only agentd has it, so that its end is noticed.
        drop(listener);
        Some(Self { child, behind_unshare: true, dir, socket })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).await.unwrap()
    }

    /// A fresh connection with its own request on it.
    pub(crate) async fn send(&self, request: Request<AnyBody>) -> Response<Incoming> {
        let stream = self.connect().await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        within(sender.send_request(request)).await.unwrap()
    }

    pub(crate) async fn call(&self, request: Request<AnyBody>) -> Answer {
        let (parts, body) = self.send(request).await.into_parts();
        let body = within(body.collect()).await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, target: &str, headers: &[(&str, &str)]) -> Answer {
        self.call(request(Method::GET, target, headers, "")).await
    }

    pub(crate) async fn post(
        &self,
        target: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        self.call(request(Method::POST, target, headers, body)).await
    }

    pub(crate) async fn init(&self, init: Value) {
        let answer = self.post("/init", &[], init.to_string()).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{answer:?}");
    }

    /// A unary call that succeeds.
    pub(crate) async fn rpc(&self, method: &str, message: Value) -> Value {
        let answer = self.try_rpc(method, message).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        assert_eq!(answer.header("content-type"), "application/json");
        answer.json()
    }

    pub(crate) async fn try_rpc(&self, method: &str, message: Value) -> Answer {
        let headers = [("content-type", "application/json"), ("connect-protocol-version", "1")];
        self.post(&format!("/{method}"), &headers, message.to_string()).await
    }

    /// The status and code of a unary call that fails.
    pub(crate) async fn rpc_error(&self, method: &str, message: Value) -> (u16, String) {
        let answer = self.try_rpc(method, message).await;
        let body = answer.json();
        assert!(body["message"].is_string(), "{body}");
        (answer.status.as_u16(), body["code"].as_str().unwrap().to_owned())
    }

    pub(crate) async fn stream(&self, method: &str, message: Value) -> Events {
        self.stream_with(method, message, &[]).await
    }

    pub(crate) async fn stream_with(&self, method: &str, message: Value, headers: &[(&str, &str)]) -> Events {
        let mut all = vec![("content-type", "application/connect+json")];
        all.extend_from_slice(headers);
        let body = envelope(&message);
        let response = self.send(request(Method::POST, &format!("/{method}"), &all, body)).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "application/connect+json");
        Events { body: response.into_body(), buffer: BytesMut::new() }
    }

    /// Starts `bash -c script` and returns its pid with the rest of its events.
    pub(crate) async fn bash(&self, script: &str) -> (u32, Events) {
        self.bash_with(script, json!({}), &[]).await
    }

    pub(crate) async fn bash_with(
        &self,
        script: &str,
        more: Value,
        headers: &[(&str, &str)],
    ) -> (u32, Events) {
        let mut message = json!({
            "process": {"cmd": "/bin/bash", "args": ["-c", script], "cwd": "/"},
            "stdin": false,
        });
        for (name, value) in more.as_object().unwrap() {
            message[name] = value.clone();
        }
        let mut events = self.stream_with("process.Process/Start", message, headers).await;
        let start = events.next().await;
        let pid = start["event"]["start"]["pid"].as_u64().unwrap_or_else(|| panic!("{start}"));
        (u32::try_from(pid).unwrap(), events)
    }
}

impl Drop for Agentd {
    fn drop(&mut self) {
        // `unshare`, if in between, waits for agentd and leaves nothing behind that way.
        let pid = self.pid();
        let below = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let below = below.split_ascii_whitespace().next().and_then(|pid| pid.parse().ok());
        match below.filter(|_| self.behind_unshare).and_then(rustix::process::Pid::from_raw) {
            Some(agentd) => drop(rustix::process::kill_process(agentd, rustix::process::Signal::KILL)),
            None => drop(self.child.kill()),
        }
        let _reaped = self.child.wait();
    }
}

fn as_descriptor_three(fd: i32) -> std::io::Result<()> {
    // SAFETY: both are plain numbers; a wrong one is an error.
    match unsafe { libc::dup2(fd, 3) } {
        3 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A stream's messages.
pub(crate) struct Events {
    body: Incoming,
    buffer: BytesMut,
}

impl Events {
    /// The next envelope: its flags and message, or `None` when the body ends.
    pub(crate) async fn envelope(&mut self) -> Option<(u8, Value)> {
        loop {
            if self.buffer.len() >= 5 {
                let length = u32::from_be_bytes(self.buffer[1..5].try_into().unwrap()) as usize;
                if self.buffer.len() >= 5 + length {
                    let flags = self.buffer[0];
                    self.buffer.advance(5);
                    let payload = self.buffer.split_to(length);
                    return Some((flags, serde_json::from_slice(&payload).unwrap()));
                }
            }
            let frame = within(self.body.frame()).await?.unwrap();
            self.buffer.extend_from_slice(frame.data_ref().unwrap());
        }
    }

    pub(crate) async fn next(&mut self) -> Value {
        let (flags, message) = self.envelope().await.expect("the stream goes on");
        assert_eq!(flags, 0, "{message}");
        message
    }

    /// The error of the last envelope.
    pub(crate) async fn error(&mut self) -> Value {
        let (flags, message) = self.envelope().await.expect("a last envelope");
        assert_eq!(flags, 2, "{message}");
        assert_eq!(self.envelope().await, None, "nothing follows the last envelope");
        message["error"].clone()
    }

    /// Everything up to the end of the process.
    pub(crate) async fn finish(mut self) -> Finished {
        let mut finished = Finished::default();
        loop {
            let message = self.next().await;
            let event = &message["event"];
            if let Some(data) = event.get("data") {
                for (name, to) in [
                    ("stdout", &mut finished.stdout),
                    ("stderr", &mut finished.stderr),
                    ("pty", &mut finished.pty),
                ] {
                    if let Some(bytes) = data.get(name) {
                        to.push_str(&String::from_utf8_lossy(&unbase64(bytes)));
                    }
                }
            } else if event.get("keepalive").is_some() {
                finished.keepalives += 1;
            } else if event.get("end").is_some() {
                finished.end = event["end"].clone();
                assert_eq!(self.error().await, Value::Null);
                return finished;
            }
        }
    }
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Finished {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) pty: String,
    pub(crate) keepalives: usize,
    pub(crate) end: Value,
}

pub(crate) fn request(
    method: Method,
    target: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Request<AnyBody> {
    let mut request = Request::builder().method(method).uri(target).header("host", "sandbox");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.into()).boxed_unsync()).unwrap()
}

pub(crate) fn envelope(message: &Value) -> Vec<u8> {
    let payload = message.to_string();
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(payload.as_bytes());
    framed
}

pub(crate) fn base64(data: &[u8]) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, data)
}

pub(crate) fn unbase64(value: &Value) -> Vec<u8> {
    base64::Engine::decode(&base64::engine::general_purpose::STANDARD, value.as_str().unwrap()).unwrap()
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes far too long")
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("never: {what}");
}

/// Running processes whose command line contains `needle`.
pub(crate) fn running(needle: &str) -> usize {
    processes()
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ").contains(needle)
        })
        .count()
}

/// Zombie children of `parent`.
pub(crate) fn zombies(parent: u32) -> usize {
    processes()
        .filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            rest.trim_start().starts_with(&format!("Z {parent} "))
        })
        .count()
}

fn processes() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The peak memory of a process, in bytes.
pub(crate) fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}
