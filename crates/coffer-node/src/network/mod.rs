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
use tokio::sync::{mpsc, oneshot};

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
    asks: mpsc::UnboundedSender<Ask>,
}

impl Network {
    /// Probes the host, if a network is wanted. The client connects when it is run.
    pub(crate) fn open(socket: PathBuf, wanted: bool, features: &mut Features) -> (Self, Client) {
        let probed = (wanted && features.has(Feature::Nftables)).then(redirect::probe).transpose();
        let families = probed.unwrap_or_else(|errno| {
            features.lack(Feature::Nftables, format!("the kernel cannot redirect connections: {errno}"));
            None
        });
        let (asks, inbox) = mpsc::unbounded_channel();
        (Self { families, asks }, Client::new(socket, families, inbox))
    }

    /// The address families of a new network namespace; `None` if sandboxes have no network.
    pub(crate) fn families(&self) -> Option<Families> {
        self.families
    }

    /// Begins to serve a sandbox. At once; the answer can be waited for.
    pub(crate) fn serve(&self, sandbox: SandboxId, policy: &Policy, listeners: Option<Listeners>) -> Serving {
        let (done, heard) = oneshot::channel();
        let Some(listeners) = listeners else { return Serving(sandbox, None) };
        let way = Way::Open(listeners);
        let sent = self.asks.send(Ask::Serve { sandbox, policy: policy.clone(), way, done: Some(done) });
        Serving(sandbox, sent.is_ok().then_some(heard))
    }

    /// Serves a sandbox that a previous node created, and that egress may have already.
    pub(crate) fn take_up(&self, sandbox: SandboxId, policy: &Policy, process: BorrowedFd<'_>) {
        match process.try_clone_to_owned() {
            Ok(process) => {
                let way = Way::Inside(Arc::new(process));
                let _ = self.asks.send(Ask::Serve { sandbox, policy: policy.clone(), way, done: None });
            }
            Err(error) => {
                tracing::error!(sandbox.id = %sandbox, "sandbox {sandbox} has no network: {error}");
            }
        }
    }

    /// Applies a policy. Afterwards no connection is open that it forbids.
    pub(crate) async fn replace(&self, sandbox: SandboxId, policy: &Policy) -> Result<(), NodeError> {
        let (done, heard) = oneshot::channel();
        if self.families.is_none()
            || self.asks.send(Ask::Replace { sandbox, policy: policy.clone(), done }).is_err()
        {
            return Ok(());
        }
        match tokio::time::timeout(REPLACE_PATIENCE, heard).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(silent()),
        }
    }

    /// Ends a sandbox's network. Its namespace ends once egress has closed its sockets.
    pub(crate) fn end(&self, sandbox: SandboxId) {
        let _ = self.asks.send(Ask::End { sandbox });
    }

    pub(crate) async fn refusals(&self, sandbox: SandboxId, after: u64) -> Result<Refusals, NodeError> {
        if self.families.is_none() {
            return Ok(Refusals::default());
        }
        let (answer, heard) = oneshot::channel();
        self.asks.send(Ask::Refusals { sandbox, after, answer }).map_err(|_| silent())?;
        tokio::time::timeout(REPLACE_PATIENCE, heard).await.map_err(|_| silent())?.map_err(|_| silent())?
    }

    /// Traffic of each sandbox, as reported by egress.
    pub(crate) async fn traffic(&self) -> HashMap<SandboxId, Traffic> {
        let (answer, heard) = oneshot::channel();
        if self.asks.send(Ask::Traffic { answer }).is_err() {
            return HashMap::new();
        }
        let heard = tokio::time::timeout(FIGURES_PATIENCE, heard).await;
        heard.ok().and_then(Result::ok).unwrap_or_default()
    }
}

/// A sandbox that egress is about to serve.
#[derive(Debug)]
#[must_use = "until it is waited for, the policy may not be in force"]
pub(crate) struct Serving(SandboxId, Option<oneshot::Receiver<Result<(), NodeError>>>);

impl Serving {
    /// Waits until the policy is in force. An unreachable egress is not a failure: it gets the sandbox when
    /// it is back, and until then nothing is open.
    pub(crate) async fn in_force(self) -> Result<(), NodeError> {
        let Self(sandbox, Some(heard)) = self else { return Ok(()) };
        match tokio::time::timeout(SERVE_PATIENCE, heard).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Ok(()),
            Err(_) => {
                tracing::warn!(sandbox.id = %sandbox, "egress is slow: sandbox {sandbox} has no network yet");
                Ok(())
            }
        }
    }
}
