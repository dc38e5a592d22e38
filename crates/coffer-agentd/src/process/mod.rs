//! The processes of the sandbox: starts, watches, feeds and ends them.
//!
//! All of it runs on the one thread of the runtime. Starting a process and registering its pid happen without
//! a pause in between, so the reaper always knows whose exit it has found.

mod exit;
mod output;
mod pump;
mod service;
mod service_start;
mod spawn;
mod tree;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use coffer_core::sync::Mutex;
use coffer_wire::agentd::{Init, OutputStream};
use coffer_wire::envd::process::process_event::EndEvent;
use coffer_wire::envd::process::{ProcessConfig, ProcessInfo, Pty, StartRequest};
use prost::Message as _;
use rustix::process::{Signal, WaitOptions, WaitStatus};
use rustix::termios::Winsize;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::account::{Account, Accounts};
use crate::connect::{Code, RpcError};
use crate::journal::Journal;
use crate::path;
use crate::readiness;
use output::Output;
use pump::Source;
pub(crate) use service::call;
use spawn::{Ends, Io, Spec};

/// Most running processes that clients started.
const PROCESS_LIMIT: usize = 1024;

/// How long an exit and its output are kept for late clients: ten minutes in which the sandbox ran, rounded
/// to a sweep.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
const REMEMBERED_SWEEPS: u64 = 60;

/// Most ended processes that are kept, and most bytes that they hold together.
const REMEMBERED_LIMIT: usize = 256;
const REMEMBERED_SIZE: u64 = 16 << 20;

/// How long to wait for a process that does not read its input.
const INPUT_LIMIT: Duration = Duration::from_secs(60);

/// The default search path of commands.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A process that a client started.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    config: ProcessConfig,
    /// The memory of that configuration.
    config_size: u64,
    tag: Option<String>,
    input: Input,
    /// How long its input may wait to be read.
    patience: Option<Duration>,
    output: Arc<Output>,
    /// The wait status, once it has ended.
    exited: watch::Sender<Option<WaitStatus>>,
    timed_out: AtomicBool,
}

/// Empty once closed, or if not requested.
#[derive(Debug)]
enum Input {
    Pipe(tokio::sync::Mutex<Option<AsyncFd<OwnedFd>>>),
    Terminal(Mutex<Option<Terminal>>),
}

type Terminal = Arc<AsyncFd<OwnedFd>>;

/// All processes that clients started and that can still be referred to.
#[derive(Debug)]
pub(crate) struct Processes {
    known: Mutex<Known>,
    journal: Arc<Journal>,
}

#[derive(Debug, Default)]
struct Known {
    by_pid: HashMap<u32, Arc<Process>>,
    /// Oldest end first, each with the number of sweeps before it.
    ended: VecDeque<(u64, Arc<Process>)>,
    sweeps: u64,
    sweeping: bool,
}

impl Processes {
    pub(crate) fn new(journal: Arc<Journal>) -> Self {
        Self { known: Mutex::default(), journal }
    }

    /// Starts the requested process; `lifetime` ends it, with or without a client.
    fn start(
        self: &Arc<Self>,
        request: StartRequest,
        account: &Account,
        init: &Init,
        lifetime: Option<Duration>,
    ) -> Result<Arc<Process>, RpcError> {
        let config = request.process.ok_or_else(|| RpcError::invalid("the request has no process"))?;
        let cwd = config.cwd.as_deref().unwrap_or_default();
        let cwd = path::resolve(cwd, account, init.default_workdir.as_deref()).map_err(RpcError::invalid)?;
        check_cwd(&cwd)?;
        let env = environment(account, &init.env_vars, &config)?;
        let io = match &request.pty {
            Some(pty) => Io::Terminal(winsize(pty)?),
            None => Io::Pipes { stdin: request.stdin.unwrap_or(true) },
        };
        if self.lock().living() >= PROCESS_LIMIT {
            return Err(RpcError::new(
                Code::ResourceExhausted,
                format!("{PROCESS_LIMIT} processes are running already"),
            ));
        }
        let spec = Spec { command: &config.cmd, args: &config.args, env: &env, cwd: &cwd, account, io };
        let (pid, ends) = spawn::spawn(&spec).map_err(|error| start_error(&config.cmd, &error))?;
        let output = Output::waiting(request.piped);
        // Registering with the runtime fails only when descriptors run out; the process is then useless and
        // is ended.
        let (input, sources) = connect(ends).map_err(|error| {
            self.disown(pid);
            start_error(&config.cmd, &error)
        })?;
        let cwd = cwd.to_string_lossy();
        self.journal.started(pid, &command_line(&config), request.tag.as_deref(), &cwd, &account.name);
        if request.piped {
            self.journal.mute(pid);
        }
        let process = Arc::new(Process {
            pid,
            config_size: config.encoded_len() as u64,
            config,
            tag: request.tag,
            input,
            patience: (!request.piped).then_some(INPUT_LIMIT),
            output,
            exited: watch::Sender::default(),
            timed_out: AtomicBool::new(false),
        });
        self.lock().by_pid.insert(pid, Arc::clone(&process));
        let pumps = sources
            .into_iter()
            .map(|source| {
                let (pid, output) = (process.pid, Arc::clone(&process.output));
                let journal = Arc::clone(&self.journal);
                crate::task::spawn(async move { source.pump(pid, &output, &journal).await })
            })
            .collect();
        let all = Arc::clone(self);
        let watched = Arc::clone(&process);
        crate::task::spawn(async move { all.see_through(watched, pumps, lifetime).await });
        Ok(process)
    }

    /// Starts a shell that does nothing, so that the first command does not have to wait for the files that
    /// every program needs and for our own memory. It is not reported.
    pub(crate) fn rehearse() {
        let root = Account { name: "root".into(), uid: 0, gid: 0, home: "/".into(), groups: vec![0] };
        let _unreadable = Accounts::read();
        let spec = Spec {
            command: "/bin/bash",
            args: &["-c".into(), ":".into()],
            env: &[("PATH".into(), DEFAULT_PATH.into()), ("LANG".into(), "C.UTF-8".into())],
            cwd: Path::new("/"),
            account: &root,
            io: Io::Pipes { stdin: false },
        };
        // Not every template has a shell.
        let _unstarted = spawn::spawn(&spec);
    }

    fn disown(&self, pid: u32) {
        if let Some(pid) = tree::as_pid(pid) {
            let _gone = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// Follows a process to its end and a while beyond.
    async fn see_through(
        self: Arc<Self>,
        process: Arc<Process>,
        pumps: Vec<JoinHandle<()>>,
        lifetime: Option<Duration>,
    ) {
        let status = tokio::select! {
            status = process.exit() => status,
            () = lived(lifetime) => {
                process.timed_out.store(true, Ordering::Relaxed);
                tree::kill_all(process.pid).await;
                process.exit().await
            }
            () = process.abandoned() => {
                // As if the other ends of its pipes, or its terminal, were closed: it reads an end, and may not write.
                pumps.iter().for_each(JoinHandle::abort);
                process.close_input().await;
                process.exit().await
            }
        };
        let end = match status {
            Some(status) => exit::end_event(status.as_raw()),
            None => EndEvent {
                exit_code: -1,
                exited: false,
                status: "unknown".to_owned(),
                error: Some("the exit of the process was not seen".to_owned()),
            },
        };
        pump::drained(&process.output, &pumps).await;
        self.journal.ended(process.pid, end.exit_code, &end.status);
        process.output.end(end);
        self.remember(Arc::clone(&process));
        // It may be kept for long, and descriptors are few.
        process.close_input().await;
    }

    fn remember(self: Arc<Self>, process: Arc<Process>) {
        let mut known = self.lock();
        let now = known.sweeps;
        known.ended.push_back((now, process));
        known.forget();
        let sweeping = std::mem::replace(&mut known.sweeping, true);
        drop(known);
        if !sweeping {
            crate::task::spawn(self.sweep());
        }
    }

    /// Drops ended processes after a while, one task for all of them.
    async fn sweep(self: Arc<Self>) {
        loop {
            lived(Some(SWEEP_EVERY)).await;
            let mut known = self.lock();
            known.sweeps += 1;
            known.forget();
            if known.ended.is_empty() {
                known.sweeping = false;
                return;
            }
        }
    }

    /// Reaps every ended child, ours and orphans.
    pub(crate) fn reap(&self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let Ok(pid) = u32::try_from(pid.as_raw_nonzero().get()) else {
                continue;
            };
            let process = self.lock().by_pid.get(&pid).map(Arc::clone);
            if let Some(process) = process {
                process.note_exit(status);
            }
        }
    }

    /// Whether it is still running.
    pub(crate) fn lives(&self, pid: u32) -> bool {
        self.lock().by_pid.get(&pid).is_some_and(|process| !process.output.has_ended())
    }

    fn list(&self) -> Vec<ProcessInfo> {
        let known = self.lock();
        let mut infos: Vec<_> = known
            .by_pid
            .values()
            .filter(|process| !process.output.has_ended())
            .map(|process| ProcessInfo {
                config: Some(process.config.clone()),
                pid: process.pid,
                tag: process.tag.clone(),
            })
            .collect();
        infos.sort_by_key(|info| info.pid);
        infos
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }
}

impl Known {
    fn living(&self) -> usize {
        self.by_pid.len().saturating_sub(self.ended.len())
    }

    /// Drops ended processes that are old, too many, or hold too much.
    fn forget(&mut self) {
        let mut held: u64 = self.ended.iter().map(|(_, process)| process.size()).sum();
        while let Some((ended, process)) = self.ended.front() {
            let old = self.sweeps - ended > REMEMBERED_SWEEPS;
            if !old && self.ended.len() <= REMEMBERED_LIMIT && held <= REMEMBERED_SIZE {
                break;
            }
            held -= process.size();
            let pid = process.pid;
            // The pid may already belong to another process.
            if self.by_pid.get(&pid).is_some_and(|known| Arc::ptr_eq(known, process)) {
                self.by_pid.remove(&pid);
            }
            self.ended.pop_front();
        }
    }
}

impl Process {
    fn note_exit(&self, status: WaitStatus) {
        self.exited.send_replace(Some(status));
    }

    async fn exit(&self) -> Option<WaitStatus> {
        let mut exited = self.exited.subscribe();
        exited.wait_for(Option::is_some).await.ok().and_then(|status| *status)
    }

    /// Waits until the client of a piped process is gone for good.
    async fn abandoned(&self) {
        if !self.output.is_patient() {
            return std::future::pending().await;
        }
        while !self.output.is_abandoned() {
            tokio::time::sleep(SWEEP_EVERY).await;
        }
    }

    /// Signals the whole process group: signalling only a shell would leave its command running.
    fn signal(&self, signal: Signal) -> Result<(), RpcError> {
        let pid =
            tree::as_pid(self.pid).ok_or_else(|| RpcError::internal("the process has no usable pid"))?;
        rustix::process::kill_process_group(pid, signal)
            .or_else(|_| rustix::process::kill_process(pid, signal))
            .map_err(|error| RpcError::internal(format!("error sending signal to process: {error}")))
    }

    /// The memory that keeping it takes.
    fn size(&self) -> u64 {
        self.output.held() + self.config_size
    }

    fn terminal(&self, otherwise: &str) -> Result<Terminal, RpcError> {
        let Input::Terminal(terminal) = &self.input else {
            return Err(failed(otherwise));
        };
        let terminal = terminal.lock();
        terminal.clone().ok_or_else(|| failed("the terminal is closed"))
    }

    fn resize(&self, pty: &Pty) -> Result<(), RpcError> {
        let terminal = self.terminal("tty not assigned to process")?;
        rustix::termios::tcsetwinsize(terminal.get_ref(), winsize(pty)?)
            .map_err(|error| RpcError::internal(format!("error resizing tty: {error}")))
    }

    async fn write_stdin(&self, data: &[u8]) -> Result<(), RpcError> {
        let Input::Pipe(pipe) = &self.input else {
            return Err(failed("tty assigned to process, input should be written to the pty, not the stdin"));
        };
        let pipe = pipe.lock().await;
        match &*pipe {
            Some(pipe) => write_all(pipe, data, "stdin", self.patience).await,
            None => Err(failed("stdin not enabled or closed")),
        }
    }

    async fn write_terminal(&self, data: &[u8]) -> Result<(), RpcError> {
        let otherwise = "tty not assigned to process, input should be written to the stdin, not the tty";
        write_all(&*self.terminal(otherwise)?, data, "tty", self.patience).await
    }

    async fn close_stdin(&self) -> Result<(), RpcError> {
        if let Input::Terminal(_) = self.input {
            return Err(failed("cannot close stdin of a PTY process, send Ctrl+D (0x04) instead"));
        }
        self.close_input().await;
        Ok(())
    }

    async fn close_input(&self) {
        match &self.input {
            Input::Pipe(pipe) => drop(pipe.lock().await.take()),
            Input::Terminal(terminal) => {
                drop(terminal.lock().take());
            }
        }
    }
}

/// Registers our ends of the descriptors with the runtime.
fn connect(ends: Ends) -> io::Result<(Input, Vec<Source>)> {
    match ends {
        Ends::Terminal(master) => {
            let fd = Arc::new(readiness::register(master)?);
            let source = Source { fd: Arc::clone(&fd), stream: OutputStream::Pty };
            Ok((Input::Terminal(Mutex::new(Some(fd))), vec![source]))
        }
        Ends::Pipes { stdin, stdout, stderr } => {
            let stdin = stdin.map(readiness::register).transpose()?;
            let sources = vec![
                Source { fd: Arc::new(readiness::register(stdout)?), stream: OutputStream::Stdout },
                Source { fd: Arc::new(readiness::register(stderr)?), stream: OutputStream::Stderr },
            ];
            Ok((Input::Pipe(tokio::sync::Mutex::new(stdin)), sources))
        }
    }
}

/// Waits for this much time in which the sandbox ran. A pause freezes this process too, and shows as a sleep
/// that took far longer than requested; the time of a paused command does not count.
async fn lived(lifetime: Option<Duration>) {
    const STEP: Duration = Duration::from_secs(5);
    let Some(mut rest) = lifetime else {
        return std::future::pending().await;
    };
    while !rest.is_zero() {
        let step = rest.min(STEP);
        let slept = Instant::now();
        tokio::time::sleep(step).await;
        rest = rest.saturating_sub(slept.elapsed().min(step + STEP));
    }
}

pub(crate) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn write_all(
    fd: &AsyncFd<OwnedFd>,
    data: &[u8],
    what: &str,
    patience: Option<Duration>,
) -> Result<(), RpcError> {
    let writing = async {
        let mut rest = data;
        while !rest.is_empty() {
            let mut ready = fd.writable().await?;
            match ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), rest)?)) {
                Err(_would_block) => {}
                Ok(Ok(written)) => rest = &rest[written..],
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
            }
        }
        Ok(())
    };
    let written = tokio::select! {
        written = writing => written,
        () = until(patience.map(|patience| Instant::now() + patience)) => {
            return Err(RpcError::new(Code::DeadlineExceeded, format!("the process does not read its {what}")));
        }
    };
    written.map_err(|error| {
        let message = format!("error writing to {what}: {error}");
        if error.kind() == io::ErrorKind::BrokenPipe { failed(message) } else { RpcError::internal(message) }
    })
}

fn failed(message: impl Into<String>) -> RpcError {
    RpcError::new(Code::FailedPrecondition, message)
}

fn winsize(pty: &Pty) -> Result<Winsize, RpcError> {
    let size = pty.size.unwrap_or_default();
    let side = |value: u32| {
        u16::try_from(value)
            .map_err(|_| RpcError::invalid(format!("a terminal cannot be {value} wide or high")))
    };
    Ok(Winsize { ws_row: side(size.rows)?, ws_col: side(size.cols)?, ws_xpixel: 0, ws_ypixel: 0 })
}

fn check_cwd(cwd: &Path) -> Result<(), RpcError> {
    match std::fs::metadata(cwd) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(RpcError::invalid(format!("cwd '{}' is not a directory", cwd.display()))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(RpcError::invalid(format!("cwd '{}' does not exist", cwd.display())))
        }
        Err(error) => Err(RpcError::invalid(format!("cwd '{}' cannot be used: {error}", cwd.display()))),
    }
}

/// The user's own variables, then the sandbox's, then the request's; the last one wins.
fn environment(
    account: &Account,
    sandbox: &BTreeMap<String, String>,
    config: &ProcessConfig,
) -> Result<Vec<(String, String)>, RpcError> {
    let path = std::env::var("PATH").unwrap_or_else(|_| DEFAULT_PATH.to_owned());
    let home = account.home.to_string_lossy().into_owned();
    let mut env: BTreeMap<String, String> = BTreeMap::from([
        ("PATH".to_owned(), path),
        ("HOME".to_owned(), home),
        ("USER".to_owned(), account.name.clone()),
        ("LOGNAME".to_owned(), account.name.clone()),
        ("E2B_SANDBOX".to_owned(), "true".to_owned()),
    ]);
    for (name, value) in sandbox.iter().chain(&config.envs) {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(RpcError::invalid(format!("environment variable {name:?} cannot be set")));
        }
        env.insert(name.clone(), value.clone());
    }
    Ok(env.into_iter().collect())
}

/// Running out of a resource is worth a retry; anything else is the request's fault.
fn start_error(command: &str, error: &io::Error) -> RpcError {
    let code = match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ENOSPC) => {
            Code::ResourceExhausted
        }
        _ => Code::InvalidArgument,
    };
    RpcError::new(code, format!("error starting process '{command}': {error}"))
}

fn command_line(config: &ProcessConfig) -> String {
    let mut line = config.cmd.clone();
    for arg in &config.args {
        line.push(' ');
        line.push_str(arg);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> Arc<Process> {
        let output = Output::new();
        output.end(EndEvent::default());
        Arc::new(Process {
            pid,
            config: ProcessConfig::default(),
            config_size: 0,
            tag: None,
            input: Input::Pipe(tokio::sync::Mutex::new(None)),
            patience: None,
            output,
            exited: watch::Sender::default(),
            timed_out: AtomicBool::new(false),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn ended_processes_are_remembered_for_a_while_and_no_more_than_so_many() {
        let processes = Arc::new(Processes::new(Arc::default()));
        let end = |pid| {
            let process = process(pid);
            processes.lock().by_pid.insert(pid, Arc::clone(&process));
            Arc::clone(&processes).remember(process);
        };
        let remembered = || processes.lock().by_pid.len();
        (0..300).for_each(end);
        assert_eq!((remembered(), processes.lock().living()), (REMEMBERED_LIMIT, 0));
        tokio::time::sleep(SWEEP_EVERY * 59).await;
        assert_eq!(remembered(), REMEMBERED_LIMIT);
        // A process that got the pid of another outlives the record of that one.
        end(299);
        tokio::time::sleep(SWEEP_EVERY * 3).await;
        assert_eq!(remembered(), 1);
        tokio::time::sleep(SWEEP_EVERY * 60).await;
        assert_eq!(remembered(), 0);
        assert!(!processes.lock().sweeping, "nothing runs for nobody");
    }
}
