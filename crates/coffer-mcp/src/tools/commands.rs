//! Commands in a sandbox: run and wait, start, read output.

use std::collections::BTreeMap;
use std::time::Duration;

use coffer_api_types::exec::{NewCommand, Program, SignalQuery};
use coffer_api_types::executions::OutputQuery;
use coffer_client::{Client, RunEnd, RunStep};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::bounds::{MOST_BYTES, USUAL_BYTES, bounded};
use crate::cut::{Cut, whole_length};
use crate::tool::{Call, Effect, Failure, Outcome, Tool};

/// How often a client hears that a command still runs.
pub(super) const TELL_EVERY: Duration = Duration::from_secs(2);
/// How often a waiting read asks again.
const ASK_EVERY: Duration = Duration::from_millis(300);
const LONGEST_WAIT_S: u32 = 60;

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "run_command",
            "Run a command",
            "Run a shell command line in a sandbox and wait for its end. Returns exit code, stdout and stderr; long output \
             is cut in the middle. Cancelling the call kills the command. For servers and other things that do not end, \
             use start_process.",
            Effect::Destroys { again: false },
            run,
        ),
        Tool::new(
            "start_process",
            "Start a process",
            "Start a shell command line in the background and return at once, with an execution_id for read_process.",
            Effect::Destroys { again: false },
            start,
        ),
        Tool::new(
            "read_process",
            "Read a process's output",
            "State and output of a command, running or ended, from any offset: also the part that run_command left out.",
            Effect::Reads,
            read,
        ),
    ]
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunInput {
    /// The sandbox.
    sandbox_id: String,
    /// A line for `bash -l -c`.
    command: String,
    /// Working directory; the user's home by default.
    #[serde(default)]
    cwd: Option<String>,
    /// Added to the sandbox's environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The user that runs it; the template's user by default.
    #[serde(default)]
    user: Option<String>,
    /// Standard input; empty by default.
    #[serde(default)]
    stdin: Option<String>,
    /// After how many seconds it is killed; 300 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = 86400))]
    timeout_s: Option<u32>,
    /// How many bytes of each stream the result has; 16384 by default, at most 65536.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65536))]
    max_output_bytes: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Ran {
    /// For read_process.
    execution_id: String,
    /// Null if it timed out.
    exit_code: Option<i64>,
    timed_out: bool,
    stdout: String,
    stderr: String,
    /// How many bytes it wrote in all.
    stdout_bytes: u64,
    stderr_bytes: u64,
    /// Where the part of stdout that is left out begins: pass it to read_process as stdout_offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_rest: Option<u64>,
    /// The same for stderr.
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_rest: Option<u64>,
    duration_ms: i64,
}

async fn run(call: Call, input: RunInput) -> Result<Outcome<Ran>, Failure> {
    let most = bounded(input.max_output_bytes, USUAL_BYTES, MOST_BYTES);
    let command = NewCommand {
        command: Program::Line(input.command),
        cwd: input.cwd,
        env: input.env,
        user: input.user,
        stdin: input.stdin,
        timeout_s: input.timeout_s.map(i64::from),
        background: false,
        max_output_bytes: None,
    };
    let started = tokio::select! {
        run = call.client.exec_stream(&input.sandbox_id, &command) => run?,
        () = call.cancelled() => return Err(cancelled("it did not start, or the server kills it at its timeout")),
    };
    let mut watch = Watch { pid: None, last: String::new(), stdout: Cut::new(most), stderr: Cut::new(most) };
    match watch.follow(&call, started).await? {
        Some(end) => Ok(watch.outcome(end)),
        None => {
            // The stream has no owner any more, so the command would run on to its timeout.
            let killed = match watch.pid {
                Some(pid) => {
                    call.client.kill_process(&input.sandbox_id, pid, &SignalQuery::default()).await.is_ok()
                }
                None => false,
            };
            Err(cancelled(if killed {
                "the command was killed"
            } else {
                "the command ends by itself or at its timeout"
            }))
        }
    }
}

pub(super) fn cancelled(what: &str) -> Failure {
    let message = format!("the client cancelled the call; {what}");
    Failure { code: "cancelled".into(), message, hint: None, request_id: None }
}

/// A command that is being followed.
struct Watch {
    pid: Option<u32>,
    /// The newest line of output, for progress.
    last: String,
    stdout: Cut,
    stderr: Cut,
}

impl Watch {
    /// Returns how it ended, or `None` if the client cancelled the call.
    async fn follow(&mut self, call: &Call, mut run: coffer_client::Run) -> Result<Option<RunEnd>, Failure> {
        let began = Instant::now();
        let mut ticks = interval(TELL_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            tokio::select! {
                step = run.next() => match step? {
                    Some(RunStep::Started { pid, .. }) => self.pid = Some(pid),
                    Some(RunStep::Stdout(text)) => {
                        self.note(&text);
                        self.stdout.add(text.as_bytes());
                    }
                    Some(RunStep::Stderr(text)) => {
                        self.note(&text);
                        self.stderr.add(text.as_bytes());
                    }
                    Some(RunStep::Ended(end)) => return Ok(Some(end)),
                    None => return Err(coffer_client::Error::BrokenOff(None).into()),
                },
                () = call.cancelled() => return Ok(None),
                _ = ticks.tick(), if call.wants_progress() => {
                    let written = self.stdout.total() + self.stderr.total();
                    let seconds = began.elapsed().as_secs_f64();
                    call.tell(seconds, format!("{seconds:.0} s, {written} bytes of output: {}", self.last)).await;
                }
            }
        }
    }

    fn note(&mut self, text: &str) {
        if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
            self.last = line.chars().take(120).collect();
        }
    }

    fn outcome(self, end: RunEnd) -> Outcome<Ran> {
        let (stdout_rest, stderr_rest) = (self.stdout.gap(), self.stderr.gap());
        let ran = Ran {
            execution_id: end.execution_id,
            exit_code: end.exit_code,
            timed_out: end.timed_out,
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            stdout_bytes: end.stdout_bytes,
            stderr_bytes: end.stderr_bytes,
            stdout_rest,
            stderr_rest,
            duration_ms: end.duration_ms,
        };
        let mut text = match ran.exit_code {
            Some(code) => format!("exit code {code} after {} ms", ran.duration_ms),
            None => format!("killed at its timeout after {} ms", ran.duration_ms),
        };
        for (name, output, rest) in
            [("stdout", &ran.stdout, stdout_rest), ("stderr", &ran.stderr, stderr_rest)]
        {
            if !output.is_empty() {
                text.push_str(&format!("\n--- {name}\n{}", output.trim_end()));
            }
            if let Some(rest) = rest {
                let id = &ran.execution_id;
                text.push_str(&format!(
                    "\n--- the rest: read_process with execution_id {id} and {name}_offset {rest}"
                ));
            }
        }
        Outcome::new(text, ran)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StartInput {
    /// The sandbox.
    sandbox_id: String,
    /// A line for `bash -l -c`.
    command: String,
    /// Working directory; the user's home by default.
    #[serde(default)]
    cwd: Option<String>,
    /// Added to the sandbox's environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The user that runs it; the template's user by default.
    #[serde(default)]
    user: Option<String>,
    /// After how many seconds it is killed; never by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = 86400))]
    timeout_s: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Started {
    /// For read_process.
    execution_id: String,
    pid: u32,
    started_at: String,
}

async fn start(call: Call, input: StartInput) -> Result<Outcome<Started>, Failure> {
    let command = NewCommand {
        command: Program::Line(input.command),
        cwd: input.cwd,
        env: input.env,
        user: input.user,
        stdin: None,
        timeout_s: input.timeout_s.map(i64::from),
        background: true,
        max_output_bytes: None,
    };
    let made = call.client.exec_in_background(&input.sandbox_id, &command).await?;
    let text = format!(
        "runs as process {}; read_process with execution_id {} shows its output",
        made.pid, made.execution_id
    );
    Ok(Outcome::new(
        text,
        Started { execution_id: made.execution_id, pid: made.pid, started_at: made.started_at },
    ))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadInput {
    /// Of run_command or start_process.
    execution_id: String,
    /// The first byte of stdout to return; 0 by default.
    #[serde(default)]
    stdout_offset: u64,
    /// The first byte of stderr to return; 0 by default.
    #[serde(default)]
    stderr_offset: u64,
    /// How many bytes of each stream; 16384 by default, at most 65536.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65536))]
    max_bytes: Option<u32>,
    /// How long to wait for new output or the end, in seconds; 0 by default, at most 60.
    #[serde(default)]
    #[schemars(range(max = 60))]
    wait_s: u32,
}

/// A part of a stream.
#[derive(Debug, Serialize, JsonSchema)]
struct Part {
    text: String,
    /// Pass it as the offset of the next read.
    next_offset: u64,
    /// Whether more is stored already.
    more: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Read {
    execution_id: String,
    sandbox_id: String,
    /// `running`, `exited`, `failed` or `lost`.
    state: String,
    exit_code: Option<i64>,
    command: String,
    stdout: Part,
    stderr: Part,
}

async fn read(call: Call, input: ReadInput) -> Result<Outcome<Read>, Failure> {
    let most = bounded(input.max_bytes, USUAL_BYTES, MOST_BYTES);
    let until = Instant::now() + Duration::from_secs(input.wait_s.min(LONGEST_WAIT_S).into());
    loop {
        // The state first: output of an execution that has ended is complete.
        let execution = call.client.execution(&input.execution_id).await?;
        let stdout = part(&call.client, &input.execution_id, "stdout", input.stdout_offset, most).await?;
        let stderr = part(&call.client, &input.execution_id, "stderr", input.stderr_offset, most).await?;
        let is_news = execution.state != "running" || !stdout.text.is_empty() || !stderr.text.is_empty();
        if !is_news && Instant::now() < until {
            tokio::select! {
                () = sleep(ASK_EVERY) => continue,
                () = call.cancelled() => return Err(cancelled("the process runs on")),
            }
        }
        let read = Read {
            execution_id: input.execution_id,
            sandbox_id: execution.sandbox,
            state: execution.state,
            exit_code: execution.exit_code,
            command: execution.command.chars().take(500).collect(),
            stdout,
            stderr,
        };
        let code = read.exit_code.map(|code| format!(" with code {code}")).unwrap_or_default();
        let mut text = format!("{}{code}", read.state);
        for (name, part) in [("stdout", &read.stdout), ("stderr", &read.stderr)] {
            if !part.text.is_empty() {
                let more = if part.more { ", more is stored" } else { "" };
                text.push_str(&format!(
                    "\n--- {name} to offset {}{more}\n{}",
                    part.next_offset,
                    part.text.trim_end()
                ));
            }
        }
        return Ok(Outcome::new(text, read));
    }
}

async fn part(
    client: &Client,
    execution: &str,
    stream: &str,
    from: u64,
    most: usize,
) -> Result<Part, Failure> {
    let query = OutputQuery { stream: Some(stream.into()), from: Some(from), ..OutputQuery::default() };
    let mut content = client.execution_output(execution, &query).await?;
    let mut bytes = Vec::new();
    while bytes.len() <= most
        && let Some(piece) = content.next().await?
    {
        bytes.extend_from_slice(&piece);
    }
    let more = bytes.len() > most;
    bytes.truncate(most);
    if more {
        bytes.truncate(whole_length(&bytes));
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Part { text, next_offset: from + bytes.len() as u64, more })
}
