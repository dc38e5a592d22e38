//! The node's part of a sandbox's network: it directs all outgoing traffic of a sandbox to sockets that
//! egress holds, and sends egress the policy. It never reads that traffic.
//!
//! - [`redirect`] sets up a network namespace with [`netlink`] messages; process 1 does so for itself.
//! - [`listeners`] are the sockets inside, opened there and passed up.
//! - [`client`] is the one connection to egress. It has the wanted state of every sandbox, so that a
//!   restarted egress gets all of it.
//!
//! `docs/design/0002-egress.md` has the whole picture.

mod client;
mod listeners;
mod netlink;
mod redirect;

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::SandboxId;
use coffer_core::network::{Policy, Refusals, Traffic};
use coffer_wire::node::NodeError;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::features::{Feature, Features};

pub(crate) use client::Client;
use client::{Ask, Way, silent};
pub(crate) use listeners::Listeners;
pub(crate) use redirect::{Families, NAME_SERVER, set_up};

/// A new sandbox waits this long for egress; after that egress gets it when it can, and until then it has no network.
const SERVE_PATIENCE: Duration = Duration::from_secs(2);
/// A policy change fails after this long if egress does not answer.
const REPLACE_PATIENCE: Duration = Duration::from_secs(5);
/// Figures come from the last time if egress takes longer.
const FIGURES_PATIENCE: Duration = Duration::from_secs(1);
/// Requests to the client that may wait in its inbox.
///
/// An absent egress does not fill it: the client then records each request at once, so 10,000 creates pass through
/// as fast as they arrive, and their number is limited by what the node has for sandboxes. It fills only while egress
/// is connected and slow, or gets its whole state again. Then callers wait for room, each for its own patience, and
/// fail with `Unavailable`. Only the end of a sandbox waits as long as it takes: a lost one would leave sockets of a
/// dead sandbox in egress. That wait ends, because the client drops an egress that has stalled.
const INBOX: usize = 1024;

/// Sets up the network namespace that a process is in, as process 1 does for itself, and opens the sockets.
pub(crate) fn set_up_in(
    process: BorrowedFd<'_>,
    families: Option<Families>,
) -> std::io::Result<Option<Listeners>> {
    use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
    std::thread::scope(|scope| {
        // A separate thread, which stays in those namespaces until it ends.
        let setting = std::thread::Builder::new().spawn_scoped(scope, || -> std::io::Result<_> {
            move_into_thread_name_spaces(process, ThreadNameSpaceType::NETWORK)?;
            set_up(families)?;
            Ok(families.map(Listeners::open).transpose()?)
        })?;
        setting.join().map_err(|_| std::io::Error::other("a thread panicked"))?
    })
}

/// The network as the other parts of the node use it.
#[derive(Debug)]
pub(crate) struct Network {
    families: Option<Families>,
    asks: mpsc::Sender<Ask>,
}

impl Network {
    /// Probes the host, if a network is wanted. The client connects when it is run.
    pub(crate) fn open(socket: PathBuf, wanted: bool, features: &mut Features) -> (Self, Client) {
        let probed = (wanted && features.has(Feature::Nftables)).then(redirect::probe).transpose();
        let families = probed.unwrap_or_else(|errno| {
            features.lack(Feature::Nftables, format!("the kernel cannot redirect connections: {errno}"));
            None
        });
        let (asks, inbox) = mpsc::channel(INBOX);
        (Self { families, asks }, Client::new(socket, families, inbox))
    }

    /// The address families of a new network namespace; `None` if sandboxes have no network.
    pub(crate) fn families(&self) -> Option<Families> {
        self.families
    }

    /// Begins to serve a sandbox. Returns at once; the caller can wait for the answer.
    pub(crate) fn serve(&self, sandbox: SandboxId, policy: &Policy, listeners: Option<Listeners>) -> Serving {
        let Some(listeners) = listeners else { return Serving { sandbox, progress: Progress::NoNetwork } };
        let (done, heard) = oneshot::channel();
        let way = Way::Open(listeners);
        let ask = Ask::Serve { sandbox, policy: policy.clone(), way, done: Some(done) };
        let progress = match self.asks.try_send(ask) {
            Ok(()) => Progress::Asked(heard),
            Err(TrySendError::Full(ask)) => {
                Progress::NoRoom { asks: self.asks.clone(), ask: Box::new(ask), heard }
            }
            Err(TrySendError::Closed(_)) => Progress::NoNetwork,
        };
        Serving { sandbox, progress }
    }

    /// Serves a sandbox that a previous node created, and that egress may have already. Blocks while the inbox is
    /// full.
    pub(crate) fn take_up(&self, sandbox: SandboxId, policy: &Policy, process: BorrowedFd<'_>) {
        match process.try_clone_to_owned() {
            Ok(process) => {
                let way = Way::Inside(Arc::new(process));
                let ask = Ask::Serve { sandbox, policy: policy.clone(), way, done: None };
                let _ = self.asks.blocking_send(ask);
            }
            Err(error) => {
                tracing::error!(sandbox.id = %sandbox, "sandbox {sandbox} has no network: {error}");
            }
        }
    }

    /// Applies a policy. Afterwards no connection is open that it forbids.
    pub(crate) async fn replace(&self, sandbox: SandboxId, policy: &Policy) -> Result<(), NodeError> {
        if self.families.is_none() {
            return Ok(());
        }
        let (done, heard) = oneshot::channel();
        let ask = Ask::Replace { sandbox, policy: policy.clone(), done };
        match self.ask(ask, heard, REPLACE_PATIENCE).await {
            Ok(answer) => answer,
            Err(Unanswered::Closed) => Ok(()),
            Err(Unanswered::Silent) => Err(silent()),
        }
    }

    /// Ends a sandbox's network. Its namespace ends once egress has closed its sockets.
    pub(crate) async fn end(&self, sandbox: SandboxId) {
        let _ = self.asks.send(Ask::End { sandbox }).await;
    }

    /// [`Self::end`] for a thread that may block.
    pub(crate) fn end_blocking(&self, sandbox: SandboxId) {
        let _ = self.asks.blocking_send(Ask::End { sandbox });
    }

    pub(crate) async fn refusals(&self, sandbox: SandboxId, after: u64) -> Result<Refusals, NodeError> {
        if self.families.is_none() {
            return Ok(Refusals::default());
        }
        let (answer, heard) = oneshot::channel();
        let asked = self.ask(Ask::Refusals { sandbox, after, answer }, heard, REPLACE_PATIENCE).await;
        asked.map_err(|_| silent())?
    }

    /// Traffic of each sandbox, as reported by egress.
    pub(crate) async fn traffic(&self) -> HashMap<SandboxId, Traffic> {
        let (answer, heard) = oneshot::channel();
        self.ask(Ask::Traffic { answer }, heard, FIGURES_PATIENCE).await.unwrap_or_default()
    }

    /// Sends a request and waits for the answer; `patience` counts for both.
    async fn ask<T>(
        &self,
        ask: Ask,
        heard: oneshot::Receiver<T>,
        patience: Duration,
    ) -> Result<T, Unanswered> {
        let asked = async {
            self.asks.send(ask).await.map_err(|_| Unanswered::Closed)?;
            heard.await.map_err(|_| Unanswered::Silent)
        };
        tokio::time::timeout(patience, asked).await.unwrap_or(Err(Unanswered::Silent))
    }
}

enum Unanswered {
    /// There is no client, because sandboxes have no network.
    Closed,
    Silent,
}

/// A sandbox that egress is about to serve.
#[derive(Debug)]
#[must_use = "until it is waited for, the policy may not be in force"]
pub(crate) struct Serving {
    sandbox: SandboxId,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    NoNetwork,
    Asked(oneshot::Receiver<Result<(), NodeError>>),
    NoRoom { asks: mpsc::Sender<Ask>, ask: Box<Ask>, heard: oneshot::Receiver<Result<(), NodeError>> },
}

impl Serving {
    /// Waits until the policy is in force. An unreachable egress is not a failure: it gets the sandbox when
    /// it is back, and until then nothing is open. An egress that is too slow to take the request is a
    /// failure.
    pub(crate) async fn in_force(self) -> Result<(), NodeError> {
        let Self { sandbox, progress } = self;
        let deadline = Instant::now() + SERVE_PATIENCE;
        let heard = match progress {
            Progress::NoNetwork => return Ok(()),
            Progress::Asked(heard) => heard,
            Progress::NoRoom { asks, ask, heard } => match timeout_at(deadline, asks.send(*ask)).await {
                Ok(Ok(())) => heard,
                Ok(Err(_)) => return Ok(()),
                Err(_) => return Err(silent()),
            },
        };
        match timeout_at(deadline, heard).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Ok(()),
            Err(_) => {
                tracing::warn!(sandbox.id = %sandbox, "egress is slow: sandbox {sandbox} has no network yet");
                Ok(())
            }
        }
    }
}
