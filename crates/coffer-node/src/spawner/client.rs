//! The node's side of the spawner: one task owns the socket, others send it requests.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use super::progress::Progress;
use super::request::{SpawnRequest, SpawnerNews};
use super::{Spawner, launch, packet};

/// A new spawner is tried this long after one ended.
const RETRY: Duration = Duration::from_millis(100);

/// A process that is setting itself up to be a sandbox.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) progress: Progress,
    /// Layers whose file system could not map ids.
    pub(crate) plain_layers: u32,
    /// The wait status, unless the spawner ended first.
    pub(crate) exited: oneshot::Receiver<i32>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnError {
    #[error("{0}")]
    Refused(String),
    #[error("the spawner ended before it answered")]
    Lost,
    #[error("the spawner sent an unexpected answer")]
    Garbled,
}

type Answer = oneshot::Sender<Result<Spawned, SpawnError>>;

/// Sends requests to the spawner; starts it again whenever it ended.
#[derive(Debug, Clone)]
pub(crate) struct SpawnerClient {
    asks: mpsc::Sender<(SpawnRequest, Vec<OwnedFd>, Answer)>,
}

impl SpawnerClient {
    /// The future serves until every client is dropped.
    pub(crate) fn new(spawner: Spawner) -> (Self, impl Future<Output = ()> + Send) {
        let (asks, inbox) = mpsc::channel(256);
        (Self { asks }, own(spawner, inbox))
    }

    pub(crate) async fn spawn(
        &self,
        request: SpawnRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Spawned, SpawnError> {
        let (answer, answered) = oneshot::channel();
        self.asks.send((request, descriptors, answer)).await.map_err(|_| SpawnError::Lost)?;
        answered.await.map_err(|_| SpawnError::Lost)?
    }
}

async fn own(mut spawner: Spawner, mut inbox: mpsc::Receiver<(SpawnRequest, Vec<OwnedFd>, Answer)>) {
    let mut next_token = 0;
    loop {
        let Spawner { program, arguments, socket, mut process } = spawner;
        // SAFETY: an `OwnedFd` stays open, and the same descriptor, until it is dropped.
        let ended = match unsafe { AsyncFd::register(socket) } {
            Ok(socket) => carry(&socket, &mut inbox, &mut next_token).await,
            Err(error) => Ended::Broken(error.to_string()),
        };
        // It ends by itself now that its socket is closed.
        let _ = tokio::task::spawn_blocking(move || process.wait()).await;
        match ended {
            Ended::ClientsGone => return,
            Ended::Broken(why) => tracing::error!("the spawner ended ({why}); starting another"),
        }
        spawner = loop {
            match launch(&program, &arguments) {
                Ok((socket, process)) => break Spawner { program, arguments, socket, process },
                Err(error) => tracing::error!("could not start a spawner: {error}"),
            }
            tokio::time::sleep(RETRY).await;
        };
    }
}

enum Ended {
    ClientsGone,
    Broken(String),
}

/// Pending requests of one spawner. Dropping it fails all of them.
#[derive(Default)]
struct Waiting {
    answers: HashMap<u64, Answer>,
    exits: HashMap<u64, oneshot::Sender<i32>>,
}

/// A request on its way out.
struct Outgoing {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

async fn carry(
    socket: &AsyncFd<OwnedFd>,
    inbox: &mut mpsc::Receiver<(SpawnRequest, Vec<OwnedFd>, Answer)>,
    next_token: &mut u64,
) -> Ended {
    let mut waiting = Waiting::default();
    let mut outgoing: Option<Outgoing> = None;
    loop {
        // Read answers even while a request waits for room: a socket holds few packets, and the spawner reads
        // no request while it waits to send.
        let step = tokio::select! {
            ready = socket.readable() => ready.map_err(|error| error.to_string()).and_then(|mut ready| {
                match packet::receive(socket.get_ref(), RecvFlags::DONTWAIT) {
                    Ok(Some((bytes, descriptors))) => {
                        let news = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
                        waiting.hear(news, descriptors);
                        Ok(())
                    }
                    Ok(None) => Err("it closed its socket".into()),
                    Err(Errno::AGAIN) => {
                        ready.clear_ready();
                        Ok(())
                    }
                    Err(errno) => Err(errno.to_string()),
                }
            }),
            ready = socket.writable(), if outgoing.is_some() => {
                ready.map_err(|error| error.to_string()).and_then(|mut ready| {
                    let Some(Outgoing { bytes, descriptors }) = &outgoing else { return Ok(()) };
                    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                    match packet::send(socket.get_ref(), bytes, &descriptors, SendFlags::DONTWAIT) {
                        Ok(()) => {
                            outgoing = None;
                            Ok(())
                        }
                        Err(Errno::AGAIN) => {
                            ready.clear_ready();
                            Ok(())
                        }
                        Err(errno) => Err(errno.to_string()),
                    }
                })
            }
            ask = inbox.recv(), if outgoing.is_none() => {
                let Some((mut request, descriptors, answer)) = ask else { return Ended::ClientsGone };
                *next_token += 1;
                request.token = *next_token;
                waiting.answers.insert(request.token, answer);
                serde_json::to_vec(&request).map_err(|error| error.to_string()).map(|bytes| {
                    outgoing = Some(Outgoing { bytes, descriptors });
                })
            }
        };
        if let Err(why) = step {
            return Ended::Broken(why);
        }
    }
}

impl Waiting {
    fn hear(&mut self, news: SpawnerNews, descriptors: Vec<OwnedFd>) {
        match news {
            SpawnerNews::Spawned { token, pid, plain_layers } => {
                let Some(answer) = self.answers.remove(&token) else { return };
                let mut descriptors = descriptors.into_iter();
                let (Some(pidfd), Some(progress)) = (descriptors.next(), descriptors.next()) else {
                    let _ = answer.send(Err(SpawnError::Garbled));
                    return;
                };
                let (exits, exited) = oneshot::channel();
                self.exits.insert(token, exits);
                let progress = Progress::of(progress);
                let _ = answer.send(Ok(Spawned { pid, pidfd, progress, plain_layers, exited }));
            }
            SpawnerNews::Refused { token, why } => {
                if let Some(answer) = self.answers.remove(&token) {
                    let _ = answer.send(Err(SpawnError::Refused(why)));
                }
            }
            SpawnerNews::Exited { token, status } => {
                if let Some(exits) = self.exits.remove(&token) {
                    let _ = exits.send(status);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawner::request::{LayerForm, OverlayRecipe};

    fn request() -> SpawnRequest {
        SpawnRequest {
            token: 0,
            uid_base: 0,
            cgroup: None,
            overlays: Vec::new(),
            agentd: "/agentd".into(),
            binds: Vec::new(),
            volumes: Vec::new(),
            hostname: "x".into(),
            cpus: Vec::new(),
            tmpfs_bytes: 0,
            recipe: OverlayRecipe { layers: LayerForm::Detached, volatile: true },
            sysfs: true,
            network: None,
            gated: false,
            restore: None,
        }
    }

    /// A spawner that sends more packets than a socket holds before it reads.
    fn stubborn(socket: &OwnedFd, asks: usize) {
        let tell = |news| {
            let bytes = serde_json::to_vec(&news).unwrap();
            packet::send(socket, &bytes, &[], SendFlags::empty()).unwrap();
        };
        for _ in 0..2000 {
            tell(SpawnerNews::Exited { token: 0, status: 0 });
        }
        for _ in 0..asks {
            let (bytes, _) = packet::receive(socket, RecvFlags::empty()).unwrap().unwrap();
            let SpawnRequest { token, .. } = serde_json::from_slice(&bytes).unwrap();
            tell(SpawnerNews::Refused { token, why: "no".into() });
        }
    }

    #[tokio::test]
    async fn neither_side_waits_for_the_other_to_listen() {
        const ASKS: usize = 2000;
        let (ours, theirs) = packet::pair().unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        let spawner = std::thread::spawn(move || stubborn(&theirs, ASKS));
        let (asks, mut inbox) = mpsc::channel(256);
        let client = SpawnerClient { asks };
        let carried = tokio::spawn(async move {
            // SAFETY: an `OwnedFd` stays open, and the same descriptor, until it is dropped.
            let socket = unsafe { AsyncFd::register(ours) }.unwrap();
            carry(&socket, &mut inbox, &mut 0).await
        });
        let all = futures_util::future::join_all((0..ASKS).map(|_| client.spawn(request(), Vec::new())));
        let answers = tokio::time::timeout(Duration::from_secs(20), all).await.expect("all are answered");
        assert!(answers.iter().all(|answer| matches!(answer, Err(SpawnError::Refused(_)))));
        spawner.join().unwrap();
        drop(client);
        carried.await.unwrap();
    }
}
