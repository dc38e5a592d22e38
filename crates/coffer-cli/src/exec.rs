//! `run`, `exec`, `sh`: commands in sandboxes, as if they ran here.

use std::io::IsTerminal as _;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use coffer_api_types::sandboxes::NewSandbox;
use coffer_client::{Client, Command, End, Handle, Input, Output, Process, Signal};
use tokio::io::AsyncReadExt as _;

use crate::context::Context;
use crate::failure::{Failure, INTERRUPTED, NOT_RUN, Outcome, TIMED_OUT};
use crate::sandboxes::{self, Shape};
use crate::terminal::{self, Raw, Resized};
use crate::{pairs, printer};

const PIECE: usize = 64 << 10;

/// How a command runs; for `exec` and `run`.
#[derive(Debug, Args)]
pub(crate) struct Manner {
    /// Its working directory
    #[arg(short, long, value_name = "DIR")]
    cwd: Option<String>,
    /// The user that runs it
    #[arg(short, long, value_name = "NAME")]
    user: Option<String>,
    /// Kill it after this time, such as 90s or 5m
    #[arg(long, value_name = "DURATION", value_parser = pairs::seconds)]
    timeout: Option<i64>,
    /// Give it a terminal; the default if stdin and stdout are one
    #[arg(short, long)]
    tty: bool,
    /// Give it no terminal
    #[arg(short = 'T', long, conflicts_with = "tty")]
    no_tty: bool,
    /// Give it an empty stdin
    #[arg(short = 'N', long)]
    no_stdin: bool,
    /// Pass stdin on: always done
    #[arg(short, long, hide = true)]
    interactive: bool,
}

impl Manner {
    fn wants_terminal(&self) -> bool {
        let attached = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        self.tty || (attached && !self.no_tty && !self.no_stdin)
    }

    /// One word is a line for the shell, several are a program and its arguments; none is a shell.
    fn command(&self, words: Vec<String>) -> Command {
        let terminal = self.wants_terminal();
        let mut command = match words.as_slice() {
            [] => Command::words(["/bin/bash", "-l"].map(str::to_string)),
            [line] => Command::shell(line.clone()),
            _ => Command::words(words),
        };
        command.cwd.clone_from(&self.cwd);
        command.user.clone_from(&self.user);
        command.timeout = self.timeout.map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
        command.stdin = !self.no_stdin && (terminal || !terminal::stdin_is_null());
        if terminal {
            command.terminal = Some(terminal::size());
            let name = std::env::var("TERM").ok().filter(|name| !name.is_empty());
            command.env.insert("TERM".into(), name.unwrap_or_else(|| "xterm-256color".into()));
        }
        command
    }
}

/// Run a command in a sandbox and exit with its exit code
///
/// One word is a line for the shell: `coffer exec box 'make test | tail'`. Several are a program and its arguments.
#[derive(Debug, Args)]
pub struct Exec {
    /// The sandbox: its id, the beginning of it, or its name
    sandbox: String,
    /// A variable for it; NAME alone takes its value from here. May be repeated
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    #[command(flatten)]
    manner: Manner,
    /// The command
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let mut command = self.manner.command(self.command);
        command.env.extend(pairs::variables(&self.env)?);
        let id = sandboxes::resolve(context, &self.sandbox).await.map_err(not_run)?;
        attach(&context.client, &id, &command).await.map_err(not_run)
    }
}

/// Open a shell in a sandbox
#[derive(Debug, Args)]
pub struct Sh {
    /// The sandbox
    sandbox: String,
    #[command(flatten)]
    manner: Manner,
}

impl Sh {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let command = self.manner.command(vec![]);
        let id = sandboxes::resolve(context, &self.sandbox).await.map_err(not_run)?;
        attach(&context.client, &id, &command).await.map_err(not_run)
    }
}

/// Create a sandbox, run a command in it, and destroy it
#[derive(Debug, Args)]
pub struct Run {
    /// The template or snapshot to start from [default: base]
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    manner: Manner,
    /// Keep the sandbox, and print its id to stderr
    #[arg(long)]
    keep: bool,
    /// The command; a shell by default
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Run {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let new = self.shape.new_sandbox(self.template.as_deref())?;
        let command = self.manner.command(self.command);
        made_and_destroyed(context, &new, self.keep, async |id| {
            attach(&context.client, id, &command).await.map_err(not_run)
        })
        .await
    }
}

/// Creates a sandbox, works in it, and destroys it.
pub(crate) async fn made_and_destroyed(
    context: &Context,
    new: &NewSandbox,
    keep: bool,
    work: impl AsyncFnOnce(&str) -> Outcome,
) -> Outcome {
    // An interrupted create is finished first: otherwise nobody would destroy the sandbox.
    let mut making = std::pin::pin!(sandboxes::make(context, new));
    let mut interrupted = false;
    let sandbox = loop {
        tokio::select! {
            made = &mut making => break made.map_err(not_run)?,
            _ = tokio::signal::ctrl_c(), if !interrupted => interrupted = true,
        }
    };
    let ran = if interrupted { Ok(INTERRUPTED) } else { work(&sandbox.id).await };
    if keep && !interrupted {
        printer::note(&format!("kept sandbox {}", sandbox.id));
        return ran;
    }
    match context.client.destroy_sandbox(&sandbox.id).await {
        // It may have ended by itself.
        Err(error) if !error.is_not_found() => {
            let failure = Failure::from(error);
            printer::note(&format!("warning: could not destroy sandbox {}: {}", sandbox.id, failure.message));
        }
        _ => {}
    }
    ran
}

/// Other codes are the command's own.
pub(crate) fn not_run(failure: Failure) -> Failure {
    failure.exit(NOT_RUN)
}

/// Runs a command with this program's stdin, stdout and stderr, and returns its exit code.
async fn attach(client: &Client, sandbox: &str, command: &Command) -> Outcome {
    let guest = client.guest(sandbox).await?;
    let process = match guest.start(command).await {
        Ok(process) => process,
        Err(error) => return Err(explain(client, sandbox, error).await),
    };
    let has_terminal = command.terminal.is_some();
    let raw = if has_terminal && std::io::stdin().is_terminal() { Some(Raw::enter()?) } else { None };
    let handle = process.handle();
    let input = command.stdin.then(|| process.input());
    let interrupted = std::cell::Cell::new(false);
    let exit = tokio::select! {
        exit = copy(process) => if interrupted.get() { Ok(INTERRUPTED) } else { exit },
        never = feed(input) => match never {},
        never = resize(&handle, has_terminal) => match never {},
        // In raw mode Ctrl-C is a key like any other.
        () = interrupt(&handle, &interrupted), if raw.is_none() => Ok(INTERRUPTED),
    };
    drop(raw);
    exit
}

/// The proxy does not know a sandbox that does not run; the server does, and why.
async fn explain(client: &Client, sandbox: &str, error: coffer_client::Error) -> Failure {
    match client.sandbox(sandbox).await {
        Ok(found) if found.state != "running" => {
            let failure = Failure::new(format!("sandbox {sandbox} is {}", found.state));
            if found.state == "paused" { failure.hint(format!("`coffer resume {sandbox}`")) } else { failure }
        }
        _ => error.into(),
    }
}

async fn copy(mut process: Process) -> Outcome {
    while let Some(output) = process.next().await? {
        let written = match output {
            Output::Stdout(bytes) | Output::Terminal(bytes) => printer::raw(&bytes, false),
            Output::Stderr(bytes) => printer::raw(&bytes, true),
            Output::Ended(end) => return Ok(exit_code(&end)),
        };
        if written.is_err() {
            // The reader has gone (`| head`): as with a local command, this one ends.
            let _best_effort = process.handle().signal(Signal::Terminate).await;
            return Ok(128 + 13);
        }
    }
    Ok(NOT_RUN)
}

fn exit_code(end: &End) -> u8 {
    if end.timed_out {
        printer::note("timed out");
        return TIMED_OUT;
    }
    match (end.exit_code, end.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(NOT_RUN),
        (None, Some(signal)) => 128_u8.saturating_add(signal),
        (None, None) => {
            printer::note(&end.status);
            NOT_RUN
        }
    }
}

/// Copies stdin until its end; the process then reads its end too.
async fn feed(input: Option<Input>) -> std::convert::Infallible {
    if let Some(input) = input {
        let mut stdin = tokio::io::stdin();
        let mut piece = vec![0; PIECE];
        loop {
            match stdin.read(&mut piece).await {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    if input.send(Bytes::copy_from_slice(&piece[..count])).await.is_err() {
                        break;
                    }
                }
            }
        }
        // A process that ended or closed its stdin takes no more; its output says why.
        let _best_effort = input.finish().await;
    }
    std::future::pending().await
}

async fn resize(handle: &Handle, has_terminal: bool) -> std::convert::Infallible {
    if has_terminal && let Ok(mut resized) = Resized::watch() {
        loop {
            resized.next().await;
            let _best_effort = handle.resize(terminal::size()).await;
        }
    }
    std::future::pending().await
}

/// Returns after Ctrl-C, when the command was ended; the second one kills it.
async fn interrupt(handle: &Handle, interrupted: &std::cell::Cell<bool>) {
    let _first = tokio::signal::ctrl_c().await;
    interrupted.set(true);
    let end = async {
        let _best_effort = handle.signal(Signal::Terminate).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    tokio::select! {
        () = end => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    let _best_effort = handle.signal(Signal::Kill).await;
}
