//! The wire formats between Cofferdam's parts, and to its clients.
//!
//! - [`node`]: the server's RPC to a node, with its framing.
//! - [`rpc`]: the client side that both RPCs share.
//! - [`egress`]: the node's RPC to egress, with sockets as descriptors.
//! - [`agentd`]: the server's control routes of agentd, in addition to E2B's envd protocol.
//! - `envd` (feature of that name): the messages of E2B's protocol to agentd, generated.
//! - [`e2b`]: E2B's REST API, as clients speak it to the server.
//! - [`lfs`]: Git LFS's batch API, as clients speak it to the server and to the git gate.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

pub mod agentd;
pub mod e2b;
pub mod egress;
#[cfg(feature = "envd")]
pub mod envd;
pub mod lfs;
pub mod node;
pub mod rpc;
