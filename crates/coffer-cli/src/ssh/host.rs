//! A sandbox as an SSH host: sessions are processes, and so are forwarded connections.

use bytes::Bytes;
use coffer_client::{Command, End, Error, Guest, Handle, Input, Output, Process, Signal, TerminalSize};
use coffer_ssh::{Channel, Event, Host, Start, Stream, Target, Terminal, Tunnel};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::place::ANY_USER;
use crate::failure::Failure;

/// agentd, in every sandbox.
const AGENTD: &str = "/run/coffer/agentd";
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];
/// What `ssh` itself exits with when it failed.
const FAILED: u32 = 255;
/// Of what a connection that could not be made has to say.
const LONGEST_REASON: usize = 1024;

#[derive(Debug)]
pub(super) struct Inside {
    guest: Guest,
}

impl Inside {
    pub(super) fn new(guest: Guest) -> Self {
        Self { guest }
    }
}

impl Host for Inside {
    fn run(
        &self,
        user: &str,
        start: Start,
        terminal: Option<Terminal>,
        env: Vec<(String, String)>,
        channel: Channel,
    ) -> BoxFuture<'static, ()> {
        let mut command = piped(user);
        command.env = env.into_iter().collect();
        if let Some(terminal) = terminal {
            command.terminal = Some(size(terminal.columns, terminal.rows));
            command.env.insert("TERM".into(), terminal.name);
        }
        let (guest, has_terminal) = (self.guest.clone(), command.terminal.is_some());
        async move {
            match begin(&guest, command, start).await {
                Ok(process) => attend(process, channel, has_terminal).await,
                Err(error) => {
                    let text = format!("coffer: {}\r\n", Failure::from(error).message);
                    if channel.output(Stream::Stderr, text.into()).await.is_ok() {
                        channel.finish(&coffer_ssh::End::Exited(FAILED)).await;
                    }
                }
            }
        }
        .boxed()
    }

    fn connect(&self, user: &str, target: Target) -> BoxFuture<'static, Result<Tunnel, String>> {
        let mut command = piped(user);
        command.program = AGENTD.into();
        command.arguments = match target {
            Target::Tcp { host, port } => vec!["dial".into(), host, port.to_string()],
            Target::Unix(path) => vec!["dial".into(), path],
        };
        let guest = self.guest.clone();
        async move {
            let failed = |error: Error| Failure::from(error).message;
            let mut process = guest.start(&command).await.map_err(failed)?;
            let rest = connected(&mut process).await?;
            let tunnel: Tunnel = Box::new(move |channel: Channel| carry(process, rest, channel).boxed());
            Ok(tunnel)
        }
        .boxed()
    }
}

/// A command whose streams belong to the SSH client.
fn piped(user: &str) -> Command {
    let user = (user != ANY_USER).then(|| user.to_string());
    Command { user, stdin: true, piped: true, ..Command::default() }
}

fn size(columns: u32, rows: u32) -> TerminalSize {
    let side = |side: u32, usual: u16| u16::try_from(side).ok().filter(|side| *side > 0).unwrap_or(usual);
    TerminalSize { columns: side(columns, 80), rows: side(rows, 24) }
}

/// Starts it, with the first shell that there is.
async fn begin(guest: &Guest, mut command: Command, start: Start) -> Result<Process, Error> {
    let words = match start {
        Start::Sftp => {
            (command.program, command.arguments) = (AGENTD.into(), vec!["sftp".into()]);
            return guest.start(&command).await;
        }
        Start::Shell => vec!["-l".to_string()],
        Start::Command(line) => vec!["-c".to_string(), line],
    };
    let [first, second] = SHELLS;
    command.arguments = words;
    command.program = first.into();
    match guest.start(&command).await {
        Err(error)
            if error.code() == Some("invalid_argument") && error.to_string().contains("No such file") =>
        {
            command.program = second.into();
            guest.start(&command).await
        }
        started => started,
    }
}

/// Passes everything on, both ways, until the process has ended or the client has gone.
async fn join(process: &mut Process, channel: &Channel) -> (Handle, Option<coffer_ssh::End>) {
    let (handle, input) = (process.handle(), process.input());
    let ended = tokio::select! {
        ended = drain(process, channel) => ended,
        never = feed(input, channel) => match never {},
        () = control(&handle, channel) => None,
    };
    (handle, ended)
}

/// A session: a process and its channel.
async fn attend(mut process: Process, channel: Channel, has_terminal: bool) {
    let (handle, ended) = join(&mut process, &channel).await;
    match ended {
        Some(end) => channel.finish(&end).await,
        // The client is gone: a terminal hangs up. Pipes are closed by agentd soon, so that a program that uses them ends,
        // and one that went to the background, as editors' servers do, stays.
        None if !has_terminal => {}
        None => {
            let _ended_by_itself = handle.signal(Signal::HangUp).await;
        }
    }
}

/// Passes output on, and says how the process ended; `None` if the client has gone.
async fn drain(process: &mut Process, channel: &Channel) -> Option<coffer_ssh::End> {
    loop {
        let (stream, bytes) = match process.next().await {
            Ok(Some(Output::Stdout(bytes) | Output::Terminal(bytes))) => (Stream::Stdout, bytes),
            Ok(Some(Output::Stderr(bytes))) => (Stream::Stderr, bytes),
            Ok(Some(Output::Ended(end))) => return Some(how(&end)),
            Ok(None) => return Some(coffer_ssh::End::Exited(FAILED)),
            Err(error) => {
                let text = format!("coffer: {}\r\n", Failure::from(error).message);
                channel.output(Stream::Stderr, text.into()).await.ok()?;
                return Some(coffer_ssh::End::Exited(FAILED));
            }
        };
        channel.output(stream, bytes).await.ok()?;
    }
}

fn how(end: &End) -> coffer_ssh::End {
    let name = end.signal().and_then(|number| {
        Some(match number {
            1 => "HUP",
            2 => "INT",
            3 => "QUIT",
            4 => "ILL",
            6 => "ABRT",
            8 => "FPE",
            9 => "KILL",
            10 => "USR1",
            11 => "SEGV",
            12 => "USR2",
            13 => "PIPE",
            14 => "ALRM",
            15 => "TERM",
            _ => return None,
        })
    });
    match (end.exit_code, name, end.signal()) {
        (Some(code), _, _) => coffer_ssh::End::Exited(u32::try_from(code).unwrap_or(FAILED)),
        (None, Some(name), _) => coffer_ssh::End::Signalled(name.into(), end.status.clone()),
        (None, None, Some(number)) => coffer_ssh::End::Exited(128 + u32::from(number)),
        (None, None, None) => coffer_ssh::End::Exited(FAILED),
    }
}

/// Passes input on; its end too. Returns never: the process decides when it is over.
async fn feed(input: Input, channel: &Channel) -> std::convert::Infallible {
    while let Some(bytes) = channel.input().await {
        if input.send(bytes).await.is_err() {
            // It takes no more; what the client still sends is dropped, so that the window does not close.
            while channel.input().await.is_some() {}
            break;
        }
    }
    let _ended_already = input.finish().await;
    std::future::pending().await
}

/// Sizes and signals; returns when the client has gone.
async fn control(handle: &Handle, channel: &Channel) {
    loop {
        let _ended_already = match channel.event().await {
            Event::Resized { columns, rows } => handle.resize(size(columns, rows)).await,
            Event::Signal(name) => match Signal::named(&name) {
                Some(signal) => handle.signal(signal).await,
                None => Ok(()),
            },
            Event::Closed => return,
        };
    }
}

/// Waits until agentd says that it is connected; returns what came after that.
async fn connected(process: &mut Process) -> Result<Bytes, String> {
    let mut reason = Vec::new();
    loop {
        match process.next().await {
            Ok(Some(Output::Stdout(mut bytes))) if bytes.first() == Some(&0) => return Ok(bytes.split_off(1)),
            Ok(Some(Output::Stderr(bytes))) if reason.len() < LONGEST_REASON => {
                reason.extend_from_slice(&bytes)
            }
            Ok(Some(Output::Ended(_)) | None) => break,
            Ok(Some(_)) => {}
            Err(error) => return Err(Failure::from(error).message),
        }
    }
    reason.truncate(LONGEST_REASON);
    let reason = String::from_utf8_lossy(&reason);
    let reason = reason.trim();
    Err(reason.strip_prefix("agentd: ").unwrap_or(reason).to_string())
}

/// A forwarded connection: agentd and its channel.
async fn carry(mut process: Process, first: Bytes, channel: Channel) {
    if channel.output(Stream::Stdout, first).await.is_err() {
        return;
    }
    let (handle, ended) = join(&mut process, &channel).await;
    match ended {
        Some(_) => channel.finish(&coffer_ssh::End::Silent).await,
        None => {
            let _ended_by_itself = handle.signal(Signal::Kill).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_as_sshd_tells_them() {
        let end = |exit_code, status: &str| how(&End { exit_code, status: status.into(), timed_out: false });
        assert_eq!(end(Some(7), "exit status 7"), coffer_ssh::End::Exited(7));
        let killed = coffer_ssh::End::Signalled("KILL".into(), "signal: killed".into());
        assert_eq!(end(None, "signal: killed"), killed);
        assert_eq!(end(None, "signal: signal 40"), coffer_ssh::End::Exited(168));
        assert_eq!(end(None, "unknown"), coffer_ssh::End::Exited(255));
    }

    #[test]
    fn terminals_without_a_size_get_the_usual_one() {
        assert_eq!(size(0, 0), TerminalSize { columns: 80, rows: 24 });
        assert_eq!(size(132, 70_000), TerminalSize { columns: 132, rows: 24 });
    }
}
