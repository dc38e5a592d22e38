//! The node's RPC to egress, over a Unix stream socket.
//!
//! Frames are those of [`crate::node`]: a big-endian `u32` length, then that much JSON; requests carry
//! a number that their reply repeats. The node sends [`ToEgress`], egress answers [`FromEgress`]. The
//! sockets of [`Request::Add`] come as descriptors (`SCM_RIGHTS`) with the first byte of its length.
//! One node at a time: a new connection is a new node, and ends the one before.

use coffer_core::SandboxId;
use coffer_core::network::{Policy, Refusals, Traffic};
use serde::{Deserialize, Serialize};

/// Raised whenever a frame's meaning changes.
pub const PROTOCOL: u32 = 1;

/// What an [`Request::Add`] brings, in this order: on IPv4 and, where the sandbox has it, on IPv6 each
/// a TCP listener for connections; then likewise UDP sockets for questions; then TCP listeners for them.
pub const MOST_DESCRIPTORS: usize = 6;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToEgress {
    pub id: u64,
    pub request: Request,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FromEgress {
    pub id: u64,
    pub result: Result<Reply, EgressError>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    Hello {
        protocol: u32,
    },
    /// Begins to serve a sandbox. Of one that is served already only the policy is replaced, and the
    /// descriptors are closed.
    Add {
        sandbox: SandboxId,
        policy: Policy,
        /// How many descriptors there are of each kind.
        tcp: usize,
        dns_udp: usize,
        dns_tcp: usize,
    },
    /// Unknown ids are fine.
    Remove {
        sandbox: SandboxId,
    },
    /// When it is answered, no connection is open or will be opened that the policy forbids.
    ReplacePolicy {
        sandbox: SandboxId,
        policy: Policy,
    },
    Refusals {
        sandbox: SandboxId,
        after: u64,
    },
    /// What each sandbox has used; also tells who is served.
    Traffic,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Reply {
    Hello {
        protocol: u32,
    },
    Done,
    /// So many open connections the new policy cut.
    Replaced {
        cut: usize,
    },
    Refusals(Refusals),
    Traffic {
        sandboxes: Vec<(SandboxId, Traffic)>,
    },
}

/// Why egress refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct EgressError {
    pub code: EgressErrorCode,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressErrorCode {
    ProtocolMismatch,
    UnknownSandbox,
    /// The descriptors are not what the request says.
    BadDescriptors,
    /// As many sandboxes as there are descriptors for.
    NoCapacity,
}
