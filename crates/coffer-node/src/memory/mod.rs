//! Saving the processes of a sandbox to disk, where the host can.
//!
//! CRIU does the work; this is what stands around it. `docs/design/0006-memory.md` has the recipe.
//!
//! - [`criu`] finds the program and asks whether it works on this kernel.
//! - [`control`] has agentd give up its listener before a dump and take another afterwards.
//! - [`hook`] is the moment in the middle: everything stands still, and we say whether to go on.
//! - [`fork`] makes an image that of another sandbox.
//! - [`mod@dump`] writes an image; [`image`] says what belongs to it, and [`cipher`] is what it is under on disk.
//! - [`places`] is where images lie: sealed, and checked before they are used again.
//! - [`deadlock`] is what a kill at the wrong moment leads to, and the way out of it.

mod cipher;
mod control;
mod criu;
mod deadlock;
mod dump;
mod fork;
mod hook;
mod image;
mod places;

use std::sync::OnceLock;

use coffer_wire::node::{NodeError, NodeErrorCode};

pub(crate) use control::order;
pub(crate) use criu::{Criu, complains, complaints};
pub(crate) use deadlock::{deadlocked, watch_leftovers};
pub(crate) use dump::{Afterwards, dump};
pub(crate) use hook::{Hook, Moment};
pub(crate) use image::Image;
pub(crate) use places::{Images, Opened, Place};

/// Found out once, when the first node of this process starts.
static TOOL: OnceLock<Result<Criu, String>> = OnceLock::new();

/// Whether memory can be saved here, and if not, why. Takes a moment the first time.
pub(crate) fn probe() -> &'static Result<Criu, String> {
    TOOL.get_or_init(criu::probe)
}

/// Why memory cannot be saved here; nothing where it can.
pub(crate) fn lacks() -> Option<String> {
    probe().as_ref().err().cloned()
}

/// What saves memory, or the refusal of whatever needs it.
pub(crate) fn tool() -> Result<&'static Criu, NodeError> {
    probe().as_ref().map_err(|_| unsupported())
}

/// The refusal of whatever needs memory to be saved.
pub(crate) fn unsupported() -> NodeError {
    let why = lacks().unwrap_or_else(|| "this version of the node does not".into());
    NodeError::new(NodeErrorCode::Unsupported, format!("memory cannot be saved here: {why}"))
}
