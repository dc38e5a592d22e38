//! The daemon inside a sandbox: its first process, which speaks E2B's envd protocol.
//!
//! It gets a listening Unix socket as descriptor 3, on which the server speaks HTTP/1.1: all of envd's routes
//! and the control routes of [`coffer_wire::agentd`]. Callers inside the sandbox get the same without the
//! control routes on port 49983.
//!
//! The same program, started in a sandbox as `agentd sftp` or `agentd dial`, serves one SSH client with the rights of the
//! user that started it ([`sftp`], [`dial`]): every sandbox has it, whatever its template lacks.
//!
//! One thread runs everything; work that may wait for a disk goes to a small pool. Everything that a client or
//! the sandbox sends is bounded, in size and in number.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod account;
mod agent;
mod clock;
mod conduit;
mod connect;
mod control;
mod dial;
mod entrance;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod headers;
mod journal;
mod listen;
mod metrics;
mod path;
mod process;
mod query;
mod readiness;
mod reply;
mod residence;
mod route;
mod sftp;
mod signature;
mod task;
mod tunnel;
mod unpack;
mod volume;

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};

use crate::agent::Agent;
use crate::entrance::Entrance;

/// Threads for file work; each costs a stack.
const FILE_THREADS: usize = 16;
const FILE_THREAD_IDLE: Duration = Duration::from_secs(5);

/// A sandbox without an owner after this time is in the warm pool, and has time to prepare.
const QUIET: Duration = Duration::from_millis(10);

/// Runs agentd as the process's arguments say.
pub fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let outcome = match words.next().as_deref().and_then(OsStr::to_str) {
        Some("sftp") => sftp::serve(io::stdin().lock(), io::stdout().lock()),
        Some("dial") => dial::connect(words),
        _ => be_first(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agentd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The daemon.
fn be_first() -> io::Result<()> {
    arguments().and_then(|sockets| {
        prepare();
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(FILE_THREADS)
            .thread_keep_alive(FILE_THREAD_IDLE)
            .build()?
            .block_on(run(sockets))
    })
}

/// The listeners.
#[derive(Debug)]
enum Sockets {
    /// In a sandbox: descriptor 3, and envd's port on loopback if it is free.
    Inherited,
    /// Elsewhere: a given path, and a port only if one is named.
    Own { path: PathBuf, tcp: Option<SocketAddr> },
}

fn arguments() -> io::Result<Sockets> {
    let usage =
        || io::Error::other("usage: coffer-agentd [sftp | dial TARGET | --socket PATH [--tcp ADDRESS:PORT]]");
    let mut arguments = std::env::args_os().skip(1);
    let (mut path, mut tcp) = (None, None);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(usage)?;
        match name.to_str() {
            Some("--socket") => path = Some(std::path::absolute(value)?),
            Some("--tcp") => {
                let address = value.to_str().and_then(|value| value.parse().ok());
                tcp = Some(address.ok_or_else(usage)?);
            }
            _ => return Err(usage()),
        }
    }
    match (path, tcp) {
        (Some(path), tcp) => Ok(Sockets::Own { path, tcp }),
        (None, None) => Ok(Sockets::Inherited),
        (None, Some(_)) => Err(usage()),
    }
}

/// The duties of a first process.
fn prepare() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // Adopt orphans even if we are not the first process.
    if std::process::id() != 1 {
        let own = rustix::process::Pid::from_raw(1);
        let _unsupported = rustix::process::set_child_subreaper(own);
    }
    residence::settle();
    // Do not keep the start directory in use.
    let _unreadable = std::env::set_current_dir("/");
}

async fn run(sockets: Sockets) -> io::Result<()> {
    let mut children = signal(SignalKind::child())?;
    let agent = Agent::new();
    let entrance = Entrance::new(Arc::clone(&agent));
    let listener = match sockets {
        Sockets::Inherited => {
            for address in [
                SocketAddr::from((Ipv4Addr::LOCALHOST, coffer_wire::agentd::PORT)),
                SocketAddr::from((Ipv6Addr::LOCALHOST, coffer_wire::agentd::PORT)),
            ] {
                // Loopback may lack one of the two, and the server needs neither.
                if let Ok(listener) = TcpListener::bind(address).await {
                    crate::task::spawn(listen::serve_tcp(Arc::clone(&agent), listener));
                }
            }
            // Bind before other programs run that could take its name. Without it, memory cannot be saved.
            if let Ok(control) = control::bind() {
                crate::task::spawn(control::serve(control, Arc::clone(&entrance)));
            }
            listen::inherited()?
        }
        Sockets::Own { path, tcp } => {
            if let Some(address) = tcp {
                let listener = TcpListener::bind(address).await?;
                crate::task::spawn(listen::serve_tcp(Arc::clone(&agent), listener));
            }
            std::os::unix::net::UnixListener::bind(path)?
        }
    };
    listener.set_nonblocking(true)?;
    entrance.open(UnixListener::from_std(listener)?);
    if std::process::id() == 1 {
        let agent = Arc::clone(&agent);
        crate::task::spawn(async move {
            tokio::time::sleep(QUIET).await;
            if agent.is_nobodys() {
                process::Processes::rehearse();
            }
        });
    }
    // A first process must never return: the sandbox would end.
    loop {
        agent.processes.reap();
        if children.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
