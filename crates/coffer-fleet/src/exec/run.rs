//! A command that runs in a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use coffer_core::{ExecutionId, KeyId, Millis};
use coffer_store::{ExecutionSource, NewExecution};
use coffer_wire::envd::process::process_event::data_event::Output as Data;
use coffer_wire::envd::process::process_event::{EndEvent, Event};
use coffer_wire::envd::process::process_input::Input;
use coffer_wire::envd::process::process_selector::Selector;
use coffer_wire::envd::process::{
    CloseStdinRequest, CloseStdinResponse, ListRequest, ListResponse, ProcessConfig, ProcessInput,
    ProcessSelector, SendInputRequest, SendInputResponse, SendSignalRequest, SendSignalResponse, Signal,
    StartRequest,
};

use super::ExecError;
use crate::fleet::Record;
use crate::output::Output;
use coffer_core::clock::now_ms;
use coffer_guest::{Events, Guest, GuestError, Reason};

/// How long to wait for a killed command to end.
const KILLED_WITHIN: Duration = Duration::from_secs(5);
/// Bounds agentd's list of processes.
const LONGEST_LIST: usize = 16 << 20;

/// A command to run: a list of arguments, never a shell line.
#[derive(Debug, Clone, Default)]
pub struct Command {
    pub words: Vec<String>,
    /// The command as shown to people; its words by default.
    pub shown: Option<String>,
    /// Its working directory: the user's home by default; a relative path is below it.
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    pub stdin: Option<Bytes>,
    pub timeout: Option<Duration>,
    /// How much of each stream the answer has.
    pub most: usize,
}

impl Command {
    /// Its entry in the record of executions.
    pub(super) fn record(&self, id: ExecutionId, actor: Option<KeyId>) -> NewExecution {
        NewExecution {
            id,
            actor,
            command: self.shown.clone().unwrap_or_else(|| self.words.join(" ")),
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            source: ExecutionSource::Api,
            code: None,
        }
    }
}

/// A started command.
#[derive(Debug)]
pub struct Run {
    pub id: ExecutionId,
    pub pid: u32,
    guest: Arc<Guest>,
    events: Events,
    pub started_ms: Millis,
    pub started: Instant,
}

/// Records the command and starts it.
pub(super) async fn begin(
    output: Arc<Output>,
    record: Arc<Record>,
    guest: Guest,
    id: ExecutionId,
    command: Command,
    actor: Option<KeyId>,
) -> Result<Run, ExecError> {
    let announced = command.record(id, actor);
    let (program, arguments) = command.words.split_first().expect("checked not to be empty");
    let start = StartRequest {
        process: Some(ProcessConfig {
            cmd: program.clone(),
            args: arguments.to_vec(),
            envs: command.env.clone().into_iter().collect(),
            cwd: command.cwd.clone(),
        }),
        pty: None,
        // The record and the process are matched by this tag.
        tag: Some(id.to_string()),
        stdin: Some(command.stdin.is_some()),
        offsets: false,
        piped: false,
    };
    let (started_ms, started) = (now_ms(), Instant::now());
    let starting = async {
        let mut events = guest.start(command.user.as_deref(), &start, command.timeout).await?;
        match events.next().await? {
            Some(Event::Start(start)) => Ok((start.pid, events)),
            _ => Err(GuestError::Refused {
                reason: Reason::Other,
                message: "the command did not start".into(),
            }),
        }
    };
    let (announced, begun) = tokio::join!(output.announce(&record, announced), starting);
    let (pid, events) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            if let Err(error) = output.abandon(&record, id, &error.to_string()).await {
                tracing::warn!(sandbox.id = %record.id, "could not record that an execution failed: {error}");
            }
            // A missing user, directory or program is an error of the request, not of the path.
            return Err(match error {
                GuestError::Refused { reason: Reason::NotFound, message } => ExecError::BadCommand(message),
                error => error.into(),
            });
        }
    };
    let guest = Arc::new(guest);
    if let Err(error) = announced {
        let _gone = end(&guest, pid, Signal::Sigkill).await;
        return Err(error.into());
    }
    if let Some(stdin) = command.stdin {
        // Concurrently with its output: a program that writes before it reads would block forever otherwise.
        output.spawn_until_stop(feed(guest.clone(), pid, stdin));
    }
    Ok(Run { id, pid, guest, events, started_ms, started })
}

async fn feed(guest: Arc<Guest>, pid: u32, stdin: Bytes) {
    let process = Some(selector(pid));
    let input = Some(ProcessInput { input: Some(Input::Stdin(stdin)) });
    let sent: Result<SendInputResponse, _> = guest
        .call("/process.Process/SendInput", None, &SendInputRequest { process: process.clone(), input }, 1024)
        .await;
    let closed: Result<CloseStdinResponse, _> =
        guest.call("/process.Process/CloseStdin", None, &CloseStdinRequest { process }, 1024).await;
    if let Err(error) = sent.map(drop).and(closed.map(drop)) {
        // A command need not read its input.
        tracing::debug!("a command did not read its input: {error}");
    }
}

fn selector(pid: u32) -> ProcessSelector {
    ProcessSelector { selector: Some(Selector::Pid(pid)) }
}

pub async fn end(guest: &Guest, pid: u32, signal: Signal) -> Result<SendSignalResponse, GuestError> {
    let request = SendSignalRequest { process: Some(selector(pid)), signal: signal.into() };
    guest.call("/process.Process/SendSignal", None, &request, 1024).await
}

/// Sends a signal to the process of an execution, and to its children.
pub(super) async fn signal_tagged(guest: &Guest, id: ExecutionId, signal: i32) -> Result<(), GuestError> {
    let process = Some(ProcessSelector { selector: Some(Selector::Tag(id.to_string())) });
    let request = SendSignalRequest { process, signal };
    let ended: SendSignalResponse = guest.call("/process.Process/SendSignal", None, &request, 1024).await?;
    let SendSignalResponse {} = ended;
    Ok(())
}

pub async fn processes(guest: &Guest) -> Result<ListResponse, GuestError> {
    guest.call("/process.Process/List", None, &ListRequest {}, LONGEST_LIST).await
}

/// The beginning of a stream, and its total length.
#[derive(Debug, Default)]
pub struct Captured {
    pub bytes: Vec<u8>,
    pub total: u64,
}

impl Captured {
    pub fn add(&mut self, data: &[u8], most: usize) {
        let room = most.saturating_sub(self.bytes.len()).min(data.len());
        self.bytes.extend_from_slice(&data[..room]);
        self.total += data.len() as u64;
    }

    pub fn is_cut(&self) -> bool {
        self.total > self.bytes.len() as u64
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// How a command ended.
#[derive(Debug)]
pub enum End {
    Exited(EndEvent),
    TimedOut,
}

/// An event of a running command.
#[derive(Debug)]
pub enum Step {
    Stdout(Bytes),
    Stderr(Bytes),
    Nothing,
    End(End),
}

impl Run {
    pub async fn step(&mut self) -> Result<Step, GuestError> {
        let event = match self.events.next().await {
            Ok(event) => event,
            Err(GuestError::Refused { reason: Reason::TimedOut, .. }) => {
                self.gone().await;
                return Ok(Step::End(End::TimedOut));
            }
            Err(error) => return Err(error),
        };
        Ok(match event {
            Some(Event::Data(data)) => match data.output {
                Some(Data::Stdout(data) | Data::Pty(data)) => Step::Stdout(data),
                Some(Data::Stderr(data)) => Step::Stderr(data),
                None => Step::Nothing,
            },
            Some(Event::End(end)) => Step::End(End::Exited(end)),
            Some(Event::Start(_) | Event::Keepalive(_)) => Step::Nothing,
            None => {
                let message = "agentd did not report the end of the command".to_string();
                return Err(GuestError::Refused { reason: Reason::Other, message });
            }
        })
    }

    /// agentd kills it when it reports the timeout; this waits until it is gone.
    async fn gone(&self) {
        let killed = async {
            while processes(&self.guest)
                .await
                .is_ok_and(|all| all.processes.iter().any(|it| it.pid == self.pid))
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(KILLED_WITHIN, killed).await.is_err() {
            tracing::warn!("process {} still exists after it was killed", self.pid);
        }
    }

    /// Waits for its end; returns how it ended and its output.
    pub async fn wait(mut self, most: usize) -> Result<(Self, End, Captured, Captured), ExecError> {
        let (mut stdout, mut stderr) = (Captured::default(), Captured::default());
        let end = loop {
            match self.step().await? {
                Step::Stdout(data) => stdout.add(&data, most),
                Step::Stderr(data) => stderr.add(&data, most),
                Step::Nothing => {}
                Step::End(end) => break end,
            }
        };
        Ok((self, end, stdout, stderr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_is_kept_and_all_is_counted() {
        let mut kept = Captured::default();
        kept.add(b"abc", 5);
        assert!(!kept.is_cut());
        kept.add(b"defgh", 5);
        assert_eq!((kept.text(), kept.total, kept.is_cut()), ("abcde".into(), 8, true));
    }
}
