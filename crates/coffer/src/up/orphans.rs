//! Reaps sandboxes that outlived their node when they end: not every machine's process 1 does.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use coffer_core::sync::Mutex;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

/// The task that waits for one of our own children soon collects it.
const COLLECTED_WITHIN: Duration = Duration::from_millis(50);

/// The children that `up` itself started and waits for.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnChildren(Arc<Mutex<Vec<Pid>>>);

impl OwnChildren {
    pub(super) fn add(&self, child: Pid) {
        self.0.lock().push(child);
    }

    pub(super) fn remove(&self, child: Pid) {
        self.0.lock().retain(|known| *known != child);
    }

    fn has(&self, child: Pid) -> bool {
        self.0.lock().contains(&child)
    }
}

/// Becomes the parent of processes that dead parts leave behind, and reaps them when they end.
pub(super) fn adopt(own: OwnChildren) -> anyhow::Result<()> {
    nix::sys::prctl::set_child_subreaper(true).context("could not adopt orphans")?;
    let mut ended = signal(SignalKind::child()).context("could not listen for SIGCHLD")?;
    #[expect(clippy::disallowed_methods, reason = "reaps as long as the process lives")]
    tokio::spawn(async move {
        while ended.recv().await.is_some() {
            loop {
                match reap_one(&own) {
                    Looked::Reaped => {}
                    // It hides orphans behind it, and its end may have been the last signal for a while.
                    Looked::OneOfOurs => tokio::time::sleep(COLLECTED_WITHIN).await,
                    Looked::Nothing => break,
                }
            }
        }
    });
    Ok(())
}

/// The result of looking for ended children.
enum Looked {
    Reaped,
    OneOfOurs,
    Nothing,
}

fn reap_one(own: &OwnChildren) -> Looked {
    // Only look, do not reap: the status of our own children belongs to the task that waits for them.
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let Some(ended) = waitid(Id::All, look).ok().and_then(|status| status.pid()) else {
        return Looked::Nothing;
    };
    if own.has(ended) {
        return Looked::OneOfOurs;
    }
    match waitid(Id::Pid(ended), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG) {
        Ok(_) => Looked::Reaped,
        Err(_) => Looked::Nothing,
    }
}
