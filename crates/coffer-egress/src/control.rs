//! The node's control connection: sets sandboxes and their policies, and reads refusals and traffic.
//!
//! One node at a time. If a node errs or disconnects, only its connection ends: sandboxes are still served,
//! and the next node finds them by [`Request::Traffic`].

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use coffer_wire::egress::{
    EgressError, EgressErrorCode, FromEgress, MOST_DESCRIPTORS, PROTOCOL, Reply, Request, ToEgress, receive,
};
use coffer_wire::node::write_frame;
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::socket::PAUSE_AFTER_ERROR;
use crate::{Descriptors, Egress, Listeners, NoSuchSandbox, NotAdded};

/// A node that reads no answer for this long counts as hung.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves clients that connect as root or as our own user. Never returns; drop it to stop.
#[expect(clippy::disallowed_methods, reason = "aborted when its handle is dropped")]
pub async fn serve(egress: Arc<Egress>, listener: UnixListener) {
    // Aborted with this, too: after a stop there are no sandboxes to control.
    let mut current: Option<AbortOnDropHandle<()>> = None;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("could not accept the node: {error}");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                continue;
            }
        };
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == 0 || peer.uid() == geteuid().as_raw() => {}
            Ok(peer) => {
                tracing::warn!("refused a control connection of uid {}", peer.uid());
                continue;
            }
            Err(error) => {
                tracing::warn!("could not get the credentials of a control connection: {error}");
                continue;
            }
        }
        if let Some(before) = current.take() {
            // The last request is done or was never begun, and the next connection's first request waits for
            // it.
            before.abort();
            let _ = before.await;
        }
        let egress = Arc::clone(&egress);
        current = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            match converse(&egress, stream).await {
                Ok(()) => tracing::debug!("the node disconnected"),
                Err(error) => tracing::warn!("the node's connection broke: {error}"),
            }
        })));
    }
}

async fn converse(egress: &Egress, stream: UnixStream) -> io::Result<()> {
    let (from_node, mut to_node) = stream.into_split();
    let mut greeted = false;
    while let Some((ToEgress { id, request }, descriptors)) = receive(from_node.as_ref()).await? {
        let result = match request {
            Request::Hello { protocol: PROTOCOL } => {
                greeted = true;
                tracing::info!("node connected");
                Ok(Reply::Hello { protocol: PROTOCOL })
            }
            Request::Hello { .. } => Err(mismatch()),
            _ if !greeted => Err(mismatch()),
            request => answer(egress, request, descriptors),
        };
        let unlike = matches!(&result, Err(EgressError { code: EgressErrorCode::ProtocolMismatch, .. }));
        let reply = FromEgress { id, result };
        timeout(PATIENCE, write_frame(&mut to_node, &reply)).await??;
        if unlike {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the node speaks another protocol"));
        }
    }
    Ok(())
}

/// Handles a request; unneeded descriptors are closed.
fn answer(egress: &Egress, request: Request, descriptors: Vec<OwnedFd>) -> Result<Reply, EgressError> {
    if !matches!(request, Request::Add { .. }) && !descriptors.is_empty() {
        return Err(bad_descriptors("only `add` may carry descriptors"));
    }
    match request {
        Request::Hello { .. } => Err(mismatch()),
        Request::Add { sandbox, policy, tcp, dns_udp, dns_tcp } => {
            let descriptors = sort(descriptors, [tcp, dns_udp, dns_tcp])?;
            if egress.replace_policy(sandbox, policy.clone()).is_ok() {
                return Ok(Reply::Done);
            }
            let listeners =
                Listeners::adopt(descriptors).map_err(|error| bad_descriptors(&error.to_string()))?;
            egress.add(sandbox, policy, listeners).map_err(not_added)?;
            Ok(Reply::Done)
        }
        Request::Remove { sandbox } => {
            // An unknown sandbox counts as removed.
            let _ = egress.remove(sandbox);
            Ok(Reply::Done)
        }
        Request::ReplacePolicy { sandbox, policy } => {
            let cut = egress.replace_policy(sandbox, policy).map_err(unknown)?;
            Ok(Reply::Replaced { cut })
        }
        Request::Refusals { sandbox, after } => {
            Ok(Reply::Refusals(egress.refusals(sandbox, after).map_err(unknown)?))
        }
        Request::Traffic => {
            let known = egress.list().into_iter();
            let sandboxes = known.filter_map(|id| Some((id, egress.traffic(id).ok()?))).collect();
            Ok(Reply::Traffic { sandboxes })
        }
    }
}

/// Assigns the descriptors to their kinds, in order.
fn sort(descriptors: Vec<OwnedFd>, counts: [usize; 3]) -> Result<Descriptors, EgressError> {
    let promised = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    if promised != Some(descriptors.len()) || descriptors.len() > MOST_DESCRIPTORS {
        return Err(bad_descriptors("the number of descriptors differs from the announced one"));
    }
    if counts[0] == 0 {
        return Err(bad_descriptors("no listener for connections was sent"));
    }
    let mut rest = descriptors.into_iter();
    let mut next = |count| rest.by_ref().take(count).collect();
    Ok(Descriptors { tcp: next(counts[0]), dns_udp: next(counts[1]), dns_tcp: next(counts[2]) })
}

fn error(code: EgressErrorCode, message: impl Into<String>) -> EgressError {
    EgressError { code, message: message.into() }
}

fn mismatch() -> EgressError {
    error(EgressErrorCode::ProtocolMismatch, format!("this egress speaks protocol {PROTOCOL}, after a hello"))
}

fn bad_descriptors(why: &str) -> EgressError {
    error(EgressErrorCode::BadDescriptors, why)
}

fn unknown(unknown: NoSuchSandbox) -> EgressError {
    error(EgressErrorCode::UnknownSandbox, unknown.to_string())
}

fn not_added(why: NotAdded) -> EgressError {
    match why {
        NotAdded::Full(_) => error(EgressErrorCode::NoCapacity, why.to_string()),
        NotAdded::AlreadyThere(_) => bad_descriptors(&why.to_string()),
    }
}
