//! Saving the processes of a sandbox to disk, where the host can.

use coffer_wire::node::{NodeError, NodeErrorCode};

/// Why memory cannot be saved here; nothing where it can.
pub(crate) fn lacks() -> Option<String> {
    Some("this version of the node saves files only".into())
}

/// The refusal of whatever needs memory to be saved.
pub(crate) fn unsupported() -> NodeError {
    let why = lacks().unwrap_or_default();
    NodeError::new(NodeErrorCode::Unsupported, format!("memory cannot be saved here: {why}"))
}
