//! The node's connection to egress, and the state that egress should have.
//!
//! One task owns both. While egress is disconnected the task records changes; a new egress process gets all
//! of the state, one that kept running only the differences. The node keeps the sockets of sandboxes that it
//! created, so connections wait in their backlogs meanwhile; those of adopted sandboxes are reopened when
//! egress lacks them, because then no process has them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::SandboxId;
use coffer_core::network::{Policy, Refusals, Traffic};
use coffer_wire::egress::{
    EgressError, EgressErrorCode, FromEgress, PROTOCOL, Reply, Request, ToEgress, send,
};
use coffer_wire::node::{NodeError, NodeErrorCode};
use coffer_wire::rpc::Connection;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::listeners::Listeners;
use super::redirect::Families;

/// How often to try to connect to egress.
const RETRY: Duration = Duration::from_millis(50);
/// Log a warning after this many failed attempts to connect.
const TRIES_BEFORE_TELLING: u32 = 100;
/// An egress that takes longer than this for one request has stalled.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests that may be in progress; more wait in the inbox.
const UNDER_WAY: usize = 256;

type Done = oneshot::Sender<Result<(), NodeError>>;

#[derive(Debug)]
pub(super) enum Ask {
    Serve { sandbox: SandboxId, policy: Policy, way: Way, done: Option<Done> },
    Replace { sandbox: SandboxId, policy: Policy, done: Done },
    End { sandbox: SandboxId },
    Refusals { sandbox: SandboxId, after: u64, answer: oneshot::Sender<Result<Refusals, NodeError>> },
    Traffic { answer: oneshot::Sender<HashMap<SandboxId, Traffic>> },
}

pub(super) fn silent() -> NodeError {
    NodeError::new(NodeErrorCode::Unavailable, "egress does not answer")
}

/// How egress gets a sandbox's connections.
#[derive(Debug)]
pub(super) enum Way {
    Open(Listeners),
    /// A process in the namespace, by its pidfd. An earlier node opened the sockets, which egress may have.
    Inside(Arc<OwnedFd>),
}

/// What egress should know about a sandbox.
#[derive(Debug)]
struct Served {
    policy: Policy,
    way: Way,
    /// Egress confirmed that it has these sockets.
    given: bool,
    /// The counters last reported by egress, and the sum of its predecessors'.
    last: Traffic,
    before: Traffic,
}

impl Served {
    fn traffic(&self) -> Traffic {
        let (before, last) = (&self.before, &self.last);
        // Egress has fewer rights than the node: none of its numbers may cause a panic here.
        Traffic {
            sent_bytes: before.sent_bytes.saturating_add(last.sent_bytes),
            received_bytes: before.received_bytes.saturating_add(last.received_bytes),
            open: last.open,
            opened: before.opened.saturating_add(last.opened),
            failed: before.failed.saturating_add(last.failed),
            questions: before.questions.saturating_add(last.questions),
            // The number of the last refusal, from which later ones are requested: each egress counts its
            // own.
            refused: last.refused,
        }
    }
}

/// The request that a reply belongs to.
#[derive(Debug)]
enum Pending {
    Add(SandboxId, Option<Done>),
    Replace(SandboxId, Done),
    Remove,
    Refusals(oneshot::Sender<Result<Refusals, NodeError>>),
    Traffic(oneshot::Sender<HashMap<SandboxId, Traffic>>),
}

#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    families: Option<Families>,
    inbox: mpsc::Receiver<Ask>,
    sandboxes: HashMap<SandboxId, Served>,
    /// They wait for a policy, and the connection broke.
    unsure: Vec<Done>,
    /// No process listens at the socket, so nothing is open.
    down: bool,
}

impl Client {
    pub(super) fn new(socket: PathBuf, families: Option<Families>, inbox: mpsc::Receiver<Ask>) -> Self {
        Self { socket, families, inbox, sandboxes: HashMap::new(), unsure: Vec::new(), down: false }
    }

    /// Serves until all senders are gone. Connects after `adopted`, when all adopted sandboxes have been sent:
    /// any other is removed from egress. It ends without connecting if adoption failed.
    pub(crate) async fn run(mut self, mut adopted: oneshot::Receiver<()>) {
        let Some(families) = self.families else { return };
        loop {
            tokio::select! {
                outcome = &mut adopted => match outcome {
                    Ok(()) => break,
                    Err(_) => return,
                },
                ask = self.inbox.recv() => match ask {
                    Some(ask) => self.note(ask),
                    None => return,
                },
            }
        }
        // They were sent before, but may still be in the inbox.
        while let Ok(ask) = self.inbox.try_recv() {
            self.note(ask);
        }
        let mut tries = 0;
        loop {
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => {
                    tries = 0;
                    self.down = false;
                    match self.converse(stream, families).await {
                        Ok(()) => return,
                        Err(error) => tracing::warn!("lost egress: {error}"),
                    }
                    // Drop callers that gave up: they would pile up if the connection keeps breaking.
                    self.unsure.retain(|done| !done.is_closed());
                }
                Err(error) => {
                    self.down = true;
                    self.unsure.drain(..).for_each(tell_done);
                    tries += 1;
                    if tries == TRIES_BEFORE_TELLING {
                        tracing::warn!(
                            "no egress at `{}` ({error}): sandboxes have no network",
                            self.socket.display()
                        );
                    }
                }
            }
            let pause = sleep(RETRY);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    ask = self.inbox.recv() => match ask {
                        Some(ask) => self.note(ask),
                        None => return,
                    },
                }
            }
        }
    }

    /// Records a change of what egress should know, while it is disconnected.
    fn note(&mut self, ask: Ask) {
        match ask {
            Ask::Serve { sandbox, policy, way, done } => {
                self.sandboxes.insert(sandbox, served(policy, way));
                // It has no network until egress has it, so the policy is in force at once.
                done.into_iter().for_each(tell_done);
            }
            Ask::Replace { sandbox, policy, done } => {
                if let Some(served) = self.sandboxes.get_mut(&sandbox) {
                    served.policy = policy;
                }
                if self.down {
                    tell_done(done);
                } else {
                    self.unsure.push(done);
                }
            }
            Ask::End { sandbox } => {
                self.sandboxes.remove(&sandbox);
            }
            Ask::Refusals { answer, .. } => {
                let _ = answer.send(Err(silent()));
            }
            Ask::Traffic { answer } => {
                let _ = answer.send(self.figures());
            }
        }
    }

    /// Talks to one egress until the connection breaks, or all senders are gone.
    async fn converse(&mut self, stream: UnixStream, families: Families) -> io::Result<()> {
        let mut line = Line(Connection::new(stream));
        let ended = self.carry(&mut line, families).await;
        for pending in line.0.abandon() {
            match pending {
                Pending::Replace(_, done) => self.unsure.push(done),
                Pending::Add(_, done) => done.into_iter().for_each(tell_done),
                Pending::Traffic(answer) => drop(answer.send(self.figures())),
                // Dropping the sender tells the caller that no answer will come.
                Pending::Remove | Pending::Refusals(_) => {}
            }
        }
        ended
    }

    async fn carry(&mut self, line: &mut Line, families: Families) -> io::Result<()> {
        match line.call(Request::Hello { protocol: PROTOCOL }, &[]).await? {
            Ok(Reply::Hello { protocol: PROTOCOL }) => {}
            other => return Err(unexpected(&other)),
        }
        self.agree(line, families).await?;
        tracing::info!("egress serves {} sandboxes", self.sandboxes.len());
        self.unsure.drain(..).for_each(tell_done);
        loop {
            let may_ask = line.0.under_way() < UNDER_WAY;
            tokio::select! {
                // Replies first: an egress that cannot write them does not read either.
                biased;
                reply = line.0.receive() => {
                    let FromEgress { id, result } = reply?;
                    if let Some(pending) = line.0.finish(id) {
                        self.hear(pending, result);
                    }
                }
                ask = self.inbox.recv(), if may_ask => match ask {
                    Some(ask) => self.pass_on(line, ask).await?,
                    None => return Ok(()),
                },
                // Without a reply there is no room for more requests, and the inbox fills.
                () = sleep(PATIENCE), if !may_ask => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    /// Brings the set of sandboxes and policies in egress to the wanted state.
    async fn agree(&mut self, line: &mut Line, families: Families) -> io::Result<()> {
        let known = match line.call(Request::Traffic, &[]).await? {
            Ok(Reply::Traffic { sandboxes }) => sandboxes,
            other => return Err(unexpected(&other)),
        };
        for &(sandbox, _) in known.iter().filter(|(sandbox, _)| !self.sandboxes.contains_key(sandbox)) {
            line.expect_done(Request::Remove { sandbox }, &[]).await?;
        }
        let known: HashSet<_> = known.into_iter().map(|(sandbox, _)| sandbox).collect();
        for (&sandbox, served) in &mut self.sandboxes {
            let policy = served.policy.clone();
            if known.contains(&sandbox) {
                if policy.is_withheld() && matches!(served.way, Way::Inside(_)) {
                    // Egress has the whole policy; the server will send it to us.
                    continue;
                }
                if served.given || matches!(served.way, Way::Inside(_)) {
                    line.expect_done(Request::ReplacePolicy { sandbox, policy }, &[]).await?;
                    continue;
                }
                // It was restarted while the connection was down: egress has its old sockets.
                line.expect_done(Request::Remove { sandbox }, &[]).await?;
            }
            served.before = served.traffic();
            served.last = Traffic::default();
            if let Way::Inside(process) = &served.way {
                let process = process.clone();
                let opening = move || Listeners::open_in(process.as_fd(), families);
                match tokio::task::spawn_blocking(opening).await.map_err(io::Error::other)? {
                    Ok(listeners) => served.way = Way::Open(listeners),
                    // It has just died, or a program inside uses the ports.
                    Err(error) => {
                        tracing::warn!(sandbox.id = %sandbox, "sandbox {sandbox} has no network: {error}");
                        continue;
                    }
                }
            }
            if let Way::Open(listeners) = &served.way {
                let (request, descriptors) = add(sandbox, policy, listeners);
                served.given = line.expect_done(request, &descriptors).await?;
            }
        }
        Ok(())
    }

    /// Records a change of what egress should know, and sends it.
    async fn pass_on(&mut self, line: &mut Line, ask: Ask) -> io::Result<()> {
        match ask {
            Ask::Serve { sandbox, policy, way, done } => {
                let served = served(policy.clone(), way);
                let sent = match &served.way {
                    Way::Open(listeners) => {
                        let (request, descriptors) = add(sandbox, policy, listeners);
                        line.send(request, &descriptors, Pending::Add(sandbox, done)).await
                    }
                    // Adopted before the connection was up; there are no others.
                    Way::Inside(_) => Ok(()),
                };
                self.sandboxes.insert(sandbox, served);
                sent
            }
            Ask::Replace { sandbox, policy, done } => {
                let Some(served) = self.sandboxes.get_mut(&sandbox) else {
                    tell_done(done);
                    return Ok(());
                };
                served.policy = policy.clone();
                let pending = Pending::Replace(sandbox, done);
                line.send(Request::ReplacePolicy { sandbox, policy }, &[], pending).await
            }
            Ask::End { sandbox } => {
                self.sandboxes.remove(&sandbox);
                line.send(Request::Remove { sandbox }, &[], Pending::Remove).await
            }
            Ask::Refusals { sandbox, after, answer } => {
                line.send(Request::Refusals { sandbox, after }, &[], Pending::Refusals(answer)).await
            }
            Ask::Traffic { answer } => line.send(Request::Traffic, &[], Pending::Traffic(answer)).await,
        }
    }

    fn hear(&mut self, pending: Pending, result: Result<Reply, EgressError>) {
        match pending {
            Pending::Add(sandbox, done) => {
                if let (Ok(_), Some(served)) = (&result, self.sandboxes.get_mut(&sandbox)) {
                    served.given = true;
                }
                let answer = result.map(|_| ()).map_err(refused);
                if answer.is_err() {
                    self.sandboxes.remove(&sandbox);
                }
                done.into_iter().for_each(|done| drop(done.send(answer.clone())));
            }
            Pending::Replace(sandbox, done) => {
                let answer = match result {
                    // It could not be added, so nothing is open.
                    Err(EgressError { code: EgressErrorCode::UnknownSandbox, .. }) => Ok(()),
                    result => result.map(|_| ()).map_err(refused),
                };
                if let Err(error) = &answer {
                    tracing::error!(
                        sandbox.id = %sandbox,
                        "egress rejected the network policy of sandbox {sandbox}: {error}"
                    );
                }
                let _ = done.send(answer);
            }
            Pending::Remove => {}
            Pending::Refusals(answer) => {
                let _ = answer.send(match result {
                    Ok(Reply::Refusals(refusals)) => Ok(refusals),
                    Ok(_) => Err(silent()),
                    // Without processes it has no network, so egress refused nothing.
                    Err(EgressError { code: EgressErrorCode::UnknownSandbox, .. }) => Ok(Refusals::default()),
                    Err(error) => Err(refused(error)),
                });
            }
            Pending::Traffic(answer) => {
                if let Ok(Reply::Traffic { sandboxes }) = result {
                    for (sandbox, traffic) in sandboxes {
                        if let Some(served) = self.sandboxes.get_mut(&sandbox) {
                            served.last = traffic;
                        }
                    }
                }
                let _ = answer.send(self.figures());
            }
        }
    }

    fn figures(&self) -> HashMap<SandboxId, Traffic> {
        self.sandboxes.iter().map(|(&sandbox, served)| (sandbox, served.traffic())).collect()
    }
}

fn served(policy: Policy, way: Way) -> Served {
    Served { policy, way, given: false, last: Traffic::default(), before: Traffic::default() }
}

fn tell_done(done: Done) {
    // The caller may have timed out.
    let _ = done.send(Ok(()));
}

fn add(sandbox: SandboxId, policy: Policy, listeners: &Listeners) -> (Request, Vec<BorrowedFd<'_>>) {
    let each = listeners.of_each_kind();
    (Request::Add { sandbox, policy, tcp: each, dns_udp: each, dns_tcp: each }, listeners.all())
}

fn refused(error: EgressError) -> NodeError {
    let code = match error.code {
        EgressErrorCode::NoCapacity => NodeErrorCode::NoCapacity,
        EgressErrorCode::ProtocolMismatch
        | EgressErrorCode::UnknownSandbox
        | EgressErrorCode::BadDescriptors => NodeErrorCode::Internal,
    };
    NodeError::new(code, format!("egress refused: {error}"))
}

fn unexpected(answer: &Result<Reply, EgressError>) -> io::Error {
    let why = match answer {
        Ok(_) => "it sent an unexpected answer".to_string(),
        Err(error) => error.to_string(),
    };
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A connection to egress and its pending requests.
struct Line(Connection<FromEgress, Pending>);

impl Line {
    async fn write(&mut self, id: u64, request: Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let frame = ToEgress { id, request };
        let writer = &*self.0.writer();
        timeout(PATIENCE, send(writer.as_ref(), &frame, descriptors)).await?
    }

    async fn send(
        &mut self,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
        pending: Pending,
    ) -> io::Result<()> {
        let id = self.0.begin(pending);
        self.write(id, request, descriptors).await
    }

    /// Sends a request and waits for the answer; only while no other request is pending.
    async fn call(
        &mut self,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Result<Reply, EgressError>> {
        let id = self.0.number();
        self.write(id, request, descriptors).await?;
        match timeout(PATIENCE, self.0.receive()).await?? {
            reply if reply.id == id => Ok(reply.result),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it sent an unexpected answer")),
        }
    }

    /// A call whose refusal concerns one sandbox only, and is logged.
    async fn expect_done(&mut self, request: Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let answer = self.call(request, descriptors).await?;
        if let Err(error) = &answer {
            tracing::error!("egress refused to add a sandbox again: {error}");
        }
        Ok(answer.is_ok())
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
