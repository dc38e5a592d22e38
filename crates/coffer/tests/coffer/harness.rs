//! A `coffer up` of the test's own, and just enough HTTP to talk to it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) fn coffer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coffer"));
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if ["COFFER_", "E2B_", "GITHUB_"].iter().any(|start| name_text.starts_with(start)) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Why this machine cannot run sandboxes, if it cannot; printed, so that nobody takes a skip for a pass.
pub(crate) fn cannot_run_sandboxes() -> bool {
    let mkfs = Command::new("mkfs.btrfs").arg("--version").output();
    let why = if !rustix::process::geteuid().is_root() {
        "not root"
    } else if !mkfs.is_ok_and(|output| output.status.success()) {
        "mkfs.btrfs is not installed"
    } else {
        return false;
    };
    eprintln!("SKIPPED: {why}");
    true
}

/// A data directory of the test's own; however the test ends, nothing stays behind.
pub(crate) struct Home {
    temp: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.temp.path().join("data")
    }

    /// Mounts and loop devices of this machine that belong to it.
    pub(crate) fn left_over(&self) -> Vec<String> {
        let data = self.data();
        let data = data.to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut left: Vec<String> =
            mounts.lines().filter(|line| line.contains(data)).map(str::to_string).collect();
        for device in std::fs::read_dir("/sys/block").unwrap().flatten() {
            let backing = device.path().join("loop/backing_file");
            let backing = std::fs::read_to_string(backing).unwrap_or_default();
            if backing.contains(data) {
                left.push(backing);
            }
        }
        left
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.left_over().is_empty() {
            Up::start(&self.data(), &["--ephemeral"]).end(Signal::TERM);
        }
    }
}

/// A running `coffer up`; dropped, it is killed.
pub(crate) struct Up {
    child: Child,
    pub(crate) listen: SocketAddr,
    pub(crate) key: String,
}

impl Up {
    /// Starts it on `data` and waits until it is ready.
    pub(crate) fn start(data: &Path, arguments: &[&str]) -> Self {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(data.with_extension("log"));
        let mut child = coffer()
            .args(["up", "--no-build", "--pool-size", "1GiB", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut output = child.stdout.take().unwrap();
        while !said.contains("The operator's key") {
            let mut piece = [0; 4096];
            let read = output.read(&mut piece).unwrap();
            let log = || std::fs::read_to_string(data.with_extension("log")).unwrap_or_default();
            assert!(read > 0, "coffer up ended before it was ready: {said}\n{}", log());
            said.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
        let env = std::fs::read_to_string(data.join("env")).unwrap();
        let value = |name: &str| {
            let line = env.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            line.unwrap_or_else(|| panic!("no {name} in {env}")).to_string()
        };
        let listen = value("COFFER_URL").strip_prefix("http://").unwrap().parse().unwrap();
        let key = value("COFFER_API_KEY");
        // This output is no terminal: it may be a journal that more people read than may have keys.
        assert!(!said.contains(&key) && !said.contains("#token="), "{said}");
        Self { child, listen, key }
    }

    /// The pid of the part in this role.
    pub(crate) fn part(&self, role: &str) -> Option<Pid> {
        let up = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{up}/task/{up}/children")).unwrap();
        let mut pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.find_map(|pid: i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            (line.split(|&byte| byte == 0).nth(1)? == role.as_bytes()).then(|| Pid::from_raw(pid))?
        })
    }

    /// Kills a part the hard way and returns how long requests then went unanswered.
    pub(crate) fn kill_part(&self, role: &str, answers: impl Fn() -> bool) -> Duration {
        let before = self.part(role).unwrap_or_else(|| panic!("there is no {role}"));
        kill_process(before, Signal::KILL).unwrap();
        let since = Instant::now();
        while self.part(role).is_none_or(|now| now == before) || !answers() {
            assert!(since.elapsed() < Duration::from_secs(10), "the {role} did not come back");
            std::thread::sleep(Duration::from_millis(5));
        }
        since.elapsed()
    }

    /// Sends a signal to `up` itself.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it with `signal` and waits for that.
    pub(crate) fn end(mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.child.wait().unwrap()
    }

    /// A request to the API; status 0 when nobody answered.
    pub(crate) fn api(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let headers = format!("X-API-KEY: {}\r\n", self.key);
        http(self.listen, method, path, &headers, body).unwrap_or((0, Value::Null))
    }

    pub(crate) fn create(&self) -> String {
        let (status, made) =
            self.api("POST", "/v2/sandboxes", &json!({"templateID": "base", "timeout": 300}));
        assert_eq!(status, 201, "{made}");
        made["sandboxID"].as_str().unwrap().to_string()
    }

    /// Whether a sandbox's own agent answers through the proxy.
    pub(crate) fn answers(&self, sandbox: &str) -> bool {
        let headers = format!("E2b-Sandbox-Id: {sandbox}\r\nE2b-Sandbox-Port: 49983\r\n");
        let answer = http(self.listen, "GET", "/health", &headers, &Value::Null);
        answer.is_ok_and(|(status, _)| status == 204)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn http(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &Value,
) -> std::io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    write!(stream, "{head}{headers}Content-Length: {length}\r\n\r\n{body}")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or(std::io::ErrorKind::InvalidData)?;
    Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}
