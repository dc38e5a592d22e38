//! Refusals and traffic of a sandbox.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::HostName;
use crate::Millis;

/// The kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedKind {
    /// A connection, before any byte was sent.
    Connection,
    /// A connection that was open when the policy changed.
    Cut,
    /// A DNS question.
    Question,
}

/// One refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Counts all refusals of a sandbox, from 1.
    pub sequence: u64,
    pub at_ms: Millis,
    pub kind: RefusedKind,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<HostName>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub port: Option<u16>,
    /// `never:private`, `deny:0.0.0.0/0`, `base:web`, `limit:connections` and the like.
    pub rule: String,
}

/// The latest refusals of a sandbox, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Refusals {
    pub refusals: Vec<Refusal>,
    /// How many there were in all; pass it as `after` the next time.
    pub total: u64,
    /// How many of the requested ones are no longer kept.
    pub forgotten: u64,
}

/// The traffic of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes from the sandbox that were passed on.
    pub sent_bytes: u64,
    /// Bytes to the sandbox that were passed on.
    pub received_bytes: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Connections that were ever opened to the outside.
    pub opened: u64,
    /// Connections that were allowed, but that the other end did not accept.
    pub failed: u64,
    pub questions: u64,
    pub refused: u64,
}
