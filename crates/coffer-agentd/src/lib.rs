//! The daemon inside a sandbox: its first process, and E2B's envd to those who use it.
//!
//! It is handed a listening Unix socket as descriptor 3, on which the server speaks HTTP/1.1: all of
//! envd's surface and the control routes of [`coffer_wire::agentd`]. Callers inside the sandbox get
//! the same surface without the control routes on port 49983.
//!
//! One thread runs everything; what may wait for a disk goes to a small pool beside it. Everything a
//! client or the sandbox sends is bounded, in size and in number.
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
mod signature;
mod task;
mod tunnel;

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

/// A sandbox that is nobody's after this long waits for its owner, and has time to prepare.
const QUIET: Duration = Duration::from_millis(10);

/// Runs agentd as the process's arguments say.
pub fn main() -> ExitCode {
    let outcome = arguments().and_then(|sockets| {
        prepare();
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(FILE_THREADS)
            .thread_keep_alive(FILE_THREAD_IDLE)
            .build()?
            .block_on(run(sockets))
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agentd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Where to listen.
#[derive(Debug)]
enum Sockets {
    /// In a sandbox: descriptor 3, and envd's port on loopback where that is free.
    Inherited,
    /// Anywhere else: a path of its own, and a port only if one is named.
    Own { path: PathBuf, tcp: Option<SocketAddr> },
}

fn arguments() -> io::Result<Sockets> {
    let usage = || io::Error::other("usage: coffer-agentd [--socket PATH [--tcp ADDRESS:PORT]]");
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

/// What a first process owes to those it starts and to those left to it.
fn prepare() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // Orphans come to us even where we are not the first process.
    if std::process::id() != 1 {
        let own = rustix::process::Pid::from_raw(1);
        let _unsupported = rustix::process::set_child_subreaper(own);
    }
    residence::settle();
    // The directory we were started in must not stay in use for our sake.
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
                // Loopback may lack one of the two, and the server does not need either.
                if let Ok(listener) = TcpListener::bind(address).await {
                    crate::task::spawn(listen::serve_tcp(Arc::clone(&agent), listener));
                }
            }
            // Before anybody else runs in here who could take its name. Without it memory cannot be saved.
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
    // A first process never returns: with it the sandbox would end.
    loop {
        agent.processes.reap();
        if children.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
