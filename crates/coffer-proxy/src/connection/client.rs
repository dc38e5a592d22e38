//! The client's side of a connection, as its requests see it.

use std::net::{IpAddr, SocketAddr};

use coffer_core::ProjectId;
use coffer_shares::{Full, network_of};
use tokio_util::sync::CancellationToken;

use super::busy::{HeldMidway, Midway};
use super::seats::{Holder, Taken};

/// The client's connection, in the extensions of every request.
#[derive(Debug, Clone)]
pub struct Client {
    pub peer: SocketAddr,
    abort: CancellationToken,
    midway: Midway,
    seat: Option<Taken>,
}

impl Client {
    pub fn new(peer: SocketAddr, abort: CancellationToken, midway: Midway) -> Self {
        Self { peer, abort, midway, seat: None }
    }

    /// The same, with its place among the port's connections.
    pub fn seated(self, seat: Taken) -> Self {
        Self { seat: Some(seat), ..self }
    }

    /// The same for a request that a trusted proxy passed on for `sender`; the connection counts for it.
    pub fn sent_by(&self, sender: IpAddr) -> Result<Self, Full> {
        if let Some(seat) = &self.seat {
            seat.count_for_address(sender)?;
        }
        let peer = if sender == self.peer.ip() { self.peer } else { SocketAddr::new(sender, 0) };
        Ok(Self { peer, ..self.clone() })
    }

    /// The holder whose share its requests count against.
    pub fn holder(&self) -> Holder {
        let seated = self.seat.as_ref().and_then(Taken::holder);
        seated.unwrap_or_else(|| Holder::Address(network_of(self.peer.ip())))
    }

    /// From now on the connection counts for a project, or for operators, and no longer for an address.
    pub fn count_for(&self, project: Option<ProjectId>) -> Result<(), Full> {
        self.seat.as_ref().map_or(Ok(()), |seat| seat.count_for(project))
    }

    /// While this is held, what the client sends belongs to its current request, even if that has its answer.
    pub fn hold_midway(&self) -> HeldMidway {
        self.midway.hold()
    }

    /// Resets the connection (TCP RST), whatever is in progress on it. SDKs use this to tell a sandbox that
    /// died from a stream that ended. After an upgrade the proxy owns the connection: call this, then drop
    /// it.
    pub fn abort(&self) {
        self.abort.cancel();
    }
}
