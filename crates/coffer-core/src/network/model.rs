//! The way from a sandbox to the model gateway of the server.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::{GitHost, GitUpstream, HeaderText};

/// The gateway's address inside a sandbox, which no host has: egress answers connections to it.
pub const MODEL_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 81);
pub const MODEL_PORT: u16 = 80;

/// Where egress sends requests for models, and as whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRoute {
    /// The server itself.
    pub upstream: GitUpstream,
    /// The value of `Authorization`: a pass that only egress and the server know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization: Option<HeaderText>,
}

impl ModelRoute {
    /// Whether it leads to the server, and not to any other host.
    pub fn is_to_server(&self) -> bool {
        matches!(self.upstream.host(), GitHost::Server(_))
    }
}
