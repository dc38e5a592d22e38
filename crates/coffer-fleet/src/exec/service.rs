//! Runs commands in sandboxes, each permitted by policy and recorded.

use std::sync::Arc;

use bytes::Bytes;
use coffer_core::{ExecutionId, KeyId};
use coffer_guest::{Guest, GuestError, Reason, Wake};
use coffer_wire::envd::process::Signal;

use super::run::{self, Command, End, Run};
use super::{ExecError, reach};
use crate::commands::Commands;
use crate::fleet::{Fleet, Record};
use crate::output::Output;

/// E2B's messages have no name for it.
const SIGINT: i32 = 2;

/// The result of a command, as the sandbox reports it: do not trust it.
#[derive(Debug)]
pub struct CommandResult {
    /// `None` if it timed out.
    pub exit_code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
    /// Whether it wrote more than was kept.
    pub is_cut: bool,
}

impl CommandResult {
    pub fn succeeded(&self) -> bool {
        self.exit_code == Some(0)
    }
}

/// Runs commands in sandboxes.
#[derive(Debug, Clone)]
pub struct Exec {
    pub fleet: Arc<Fleet>,
    pub commands: Arc<Commands>,
    pub output: Arc<Output>,
}

impl Exec {
    /// The contents of a small file of the default user; `None` if there is none. Unlike a command's output, nothing of it is
    /// in a log.
    pub async fn file(
        &self,
        record: &Arc<Record>,
        path: &str,
        most: usize,
    ) -> Result<Option<Bytes>, ExecError> {
        Ok(reach(&self.fleet, record, Wake::LooksOn).await?.file(None, path, most).await?)
    }

    /// Runs a command to its end.
    pub async fn run(
        &self,
        record: &Arc<Record>,
        command: Command,
        actor: Option<KeyId>,
    ) -> Result<CommandResult, ExecError> {
        let most = command.most;
        let guest = self.admit(record, &command).await?;
        let run = self.start(record, guest, ExecutionId::generate(), command, actor).await?;
        let (_, end, stdout, stderr) = run.wait(most).await?;
        Ok(CommandResult {
            exit_code: match end {
                End::Exited(end) => Some(end.exit_code),
                End::TimedOut => None,
            },
            is_cut: stdout.is_cut() || stderr.is_cut(),
            stdout: stdout.bytes,
            stderr: String::from_utf8_lossy(&stderr.bytes).into_owned(),
        })
    }

    /// Starts a command that continues without its caller. It is recorded before it runs: if `id` has no
    /// record, or no process, it never ran.
    pub async fn launch(
        &self,
        record: &Arc<Record>,
        id: ExecutionId,
        command: Command,
    ) -> Result<(), ExecError> {
        let guest = self.admit(record, &command).await?;
        self.output.announce(record, command.record(id, None)).await?;
        self.start(record, guest, id, command, None).await.map(drop)
    }

    /// Connects to the sandbox, if the project's policy permits the command.
    pub async fn admit(&self, record: &Arc<Record>, command: &Command) -> Result<Guest, ExecError> {
        let guest = reach(&self.fleet, record, Wake::ByPolicy).await?;
        self.commands.permit(record, &command.words).await.map_err(ExecError::Refused)?;
        Ok(guest)
    }

    /// Starts an admitted command. The start continues if its caller disconnects: a command recorded as
    /// running must run.
    pub async fn start(
        &self,
        record: &Arc<Record>,
        guest: Guest,
        id: ExecutionId,
        command: Command,
        actor: Option<KeyId>,
    ) -> Result<Run, ExecError> {
        let start = run::begin(self.output.clone(), record.clone(), guest, id, command, actor);
        self.fleet.spawn_step(start).await.unwrap_or(Err(ExecError::Broken))
    }

    /// The executions that run in a sandbox now, as its agentd reports.
    pub async fn running(&self, record: &Arc<Record>) -> Result<Vec<ExecutionId>, ExecError> {
        let guest = reach(&self.fleet, record, Wake::ByPolicy).await?;
        let listed = run::processes(&guest).await?;
        let tags = listed.processes.into_iter().filter_map(|process| process.tag);
        Ok(tags.filter_map(|tag| tag.parse().ok()).collect())
    }

    /// Kills an execution and its children; succeeds if it has already ended.
    pub async fn kill(&self, record: &Arc<Record>, id: ExecutionId) -> Result<(), ExecError> {
        self.signal(record, id, Signal::Sigkill.into()).await
    }

    /// Sends an execution what Ctrl-C sends; an agentd of an earlier version refuses that.
    pub async fn interrupt(&self, record: &Arc<Record>, id: ExecutionId) -> Result<(), ExecError> {
        self.signal(record, id, SIGINT).await
    }

    /// Asks an execution and its children to end; succeeds if it has already ended.
    pub async fn terminate(&self, record: &Arc<Record>, id: ExecutionId) -> Result<(), ExecError> {
        self.signal(record, id, Signal::Sigterm.into()).await
    }

    async fn signal(&self, record: &Arc<Record>, id: ExecutionId, signal: i32) -> Result<(), ExecError> {
        let guest = reach(&self.fleet, record, Wake::ByPolicy).await?;
        match run::signal_tagged(&guest, id, signal).await {
            Ok(()) | Err(GuestError::Refused { reason: Reason::NotFound, .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
