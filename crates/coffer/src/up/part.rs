//! One part that `up` started: this same binary in another role.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::orphans::OwnChildren;
use crate::printer::HostUnusable;

/// A dead part is back within a second; one that keeps dying is tried less often.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A part that ran this long was healthy, and its pauses start over.
const HEALTHY: Duration = Duration::from_secs(1);

/// Limit of a part's ready message.
const LONGEST_LINE: u64 = 64 * 1024;

/// Environment variables that are passed to the server: it faces the network, and must not see what else root
/// has there.
const SERVER_SEES: [&str; 4] = ["PATH", "LANG", "LC_ALL", "TZ"];
const SERVER_SEES_ALL_OF: [&str; 3] = ["RUST_", "PG", "SSL_CERT_"];
/// Variables that are not passed to the privileged parts: they get settings as arguments, and no secrets.
/// Only `up` talks to systemd.
const NODE_LACKS: [&str; 5] = ["COFFER_", "E2B_", "GITHUB_", "NOTIFY_SOCKET", "WATCHDOG_"];

/// A running part and how to start it again.
#[derive(Debug)]
pub(super) struct Part {
    role: &'static str,
    arguments: Vec<String>,
    /// Lines for its standard input, sent whenever they change.
    news: Option<watch::Receiver<String>>,
    teller: Option<AbortOnDropHandle<()>>,
    child: Child,
    /// Its pid, until its end was collected.
    pid: Option<Pid>,
    children: OwnChildren,
}

impl Part {
    /// Starts this binary in `role`.
    pub(super) fn start(
        role: &'static str,
        arguments: Vec<String>,
        children: &OwnChildren,
    ) -> anyhow::Result<Self> {
        let child = spawn(role, &arguments)?;
        let pid = known(&child, children);
        let children = children.clone();
        Ok(Self { role, arguments, news: None, teller: None, child, pid, children })
    }

    /// Sets the input of this part, and of each restarted one.
    pub(super) fn tell(&mut self, news: watch::Receiver<String>) {
        self.news = Some(news);
        self.begin_to_tell();
    }

    fn begin_to_tell(&mut self) {
        let input = self.child.stdin.take();
        #[expect(clippy::disallowed_methods, reason = "aborted when its handle is dropped")]
        let telling = input.zip(self.news.clone()).map(|(input, news)| tokio::spawn(tell(input, news)));
        self.teller = telling.map(AbortOnDropHandle::new);
    }

    /// Waits for the end and collects it.
    async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        let ended = self.child.wait().await;
        if let Some(pid) = self.pid.take() {
            self.children.remove(pid);
        }
        ended
    }

    /// Takes the place of a child that ended.
    fn replace(&mut self, child: Child) {
        self.pid = known(&child, &self.children);
        self.child = child;
        self.begin_to_tell();
    }

    /// Arguments for the next restart.
    pub(super) fn set_arguments(&mut self, arguments: Vec<String>) {
        self.arguments = arguments;
    }

    /// Waits until the part accepts connections on `socket`.
    pub(super) async fn reachable(&mut self, socket: &Path, within: Duration) -> anyhow::Result<()> {
        let connected = async {
            while UnixStream::connect(socket).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = connected => Ok(()),
            ended = self.ended() => Err(self.died_early(ended)),
            () = tokio::time::sleep(within) => {
                anyhow::bail!("the {} did not start within {} s", self.role, within.as_secs())
            }
        }
    }

    /// Waits for the line of JSON that a part prints when it is ready.
    pub(super) async fn first_line<T: DeserializeOwned>(&mut self, within: Duration) -> anyhow::Result<T> {
        let output = self.child.stdout.take().context("standard output was already taken")?;
        // A part sends a few hundred bytes.
        let mut lines = BufReader::new(output.take(LONGEST_LINE)).lines();
        let line = tokio::select! {
            line = lines.next_line() => line?,
            () = tokio::time::sleep(within) => {
                anyhow::bail!("the {} was not ready within {} s", self.role, within.as_secs())
            }
        };
        match line {
            Some(line) => serde_json::from_str(&line)
                .with_context(|| format!("unexpected output of the {}: `{line}`", self.role)),
            None => {
                let ended = self.ended().await;
                Err(self.died_early(ended))
            }
        }
    }

    fn died_early(&self, ended: std::io::Result<ExitStatus>) -> anyhow::Error {
        match ended {
            Ok(status) if status.code() == Some(HostUnusable::EXIT.into()) => HostUnusable::new(
                "this host cannot run sandboxes; the reason is above",
                "docs/kernels.md lists what a host needs",
            )
            .into(),
            Ok(status) => {
                anyhow::anyhow!("the {} ended before it was ready ({status}); its error is above", self.role)
            }
            Err(error) => anyhow::anyhow!(error).context(format!("could not wait for the {}", self.role)),
        }
    }

    /// Starts the part again whenever it ends. Never returns; drop it to stop watching.
    pub(super) async fn keep_running(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let since = Instant::now();
            let ended = self.ended().await;
            if since.elapsed() > HEALTHY {
                pause = FIRST_PAUSE;
            }
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            tracing::error!("the {} ended ({how}); starting it again", self.role);
            loop {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                match spawn(self.role, &self.arguments) {
                    Ok(child) => break self.replace(child),
                    Err(error) => tracing::error!("{error:#}"),
                }
            }
        }
    }

    /// Waits for a part that ends by itself, so that it does not stay behind as a zombie. Never returns.
    pub(super) async fn run_once(&mut self) {
        if self.pid.is_some() {
            match self.ended().await {
                Ok(status) if status.success() => tracing::info!("the {} has ended", self.role),
                Ok(status) => tracing::warn!("the {} failed ({status}); its error is above", self.role),
                Err(error) => tracing::warn!("could not wait for the {}: {error}", self.role),
            }
        }
        std::future::pending().await
    }

    /// Asks the part to stop, and ends it if it has not within `patience`.
    pub(super) async fn stop(&mut self, patience: Duration) {
        // Only while it runs: afterwards another process may have its pid.
        let Some(pid) = self.child.id().and(self.pid) else { return };
        let _ = kill(pid, Signal::SIGTERM);
        if tokio::time::timeout(patience, self.ended()).await.is_err() {
            tracing::warn!("the {} did not stop within {} s; killing it", self.role, patience.as_secs());
            let _ = self.child.kill().await;
        }
    }
}

/// Writes each new value as a line, until the reader is gone.
async fn tell(mut input: ChildStdin, mut news: watch::Receiver<String>) {
    loop {
        let line = format!("{}\n", news.borrow_and_update().as_str());
        if input.write_all(line.as_bytes()).await.is_err() || news.changed().await.is_err() {
            return;
        }
    }
}

/// Registers a child that is waited for here, so that the orphan reaper leaves it alone.
fn known(child: &Child, children: &OwnChildren) -> Option<Pid> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
    pid.inspect(|&pid| children.add(pid))
}

fn spawn(role: &'static str, arguments: &[String]) -> anyhow::Result<Child> {
    // The same file that runs here, even if it was replaced by another version.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(std::env::args_os().next().unwrap_or_else(|| "coffer".into()));
    match role {
        "server" | "preflight" => {
            command.env_clear().envs(std::env::vars_os().filter(|(name, _)| server_sees(name)));
        }
        // They have no use for any, and are the first that a sandbox or a push would break into.
        "egress" | "git" => drop(command.env_clear()),
        _ => {
            let kept = |name: &OsStr| !starts_with(name, &NODE_LACKS);
            command.env_clear().envs(std::env::vars_os().filter(|(name, _)| kept(name)));
        }
    }
    command
        .arg(role)
        .args(arguments)
        .stdin(if matches!(role, "egress" | "server") { Stdio::piped() } else { Stdio::null() })
        .stdout(if matches!(role, "server" | "preflight") { Stdio::piped() } else { Stdio::null() })
        // Ctrl-C at the terminal must reach `up` alone, which then stops the parts in order.
        .process_group(0)
        .spawn()
        .with_context(|| format!("could not start the {role}"))
}

fn server_sees(name: &OsStr) -> bool {
    SERVER_SEES.contains(&&*name.to_string_lossy()) || starts_with(name, &SERVER_SEES_ALL_OF)
}

fn starts_with(name: &OsStr, starts: &[&str]) -> bool {
    starts.iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()))
}
