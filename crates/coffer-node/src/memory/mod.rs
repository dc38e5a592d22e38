//! Saving the processes of a sandbox to disk, where the host can.
//!
//! CRIU does the work; this module prepares and checks it. `docs/design/0006-memory.md` has the recipe.
//!
//! - [`criu`] finds the program and asks whether it works on this kernel.
//! - [`control`] makes agentd close its listener before a dump and take a new one afterwards.
//! - [`hook`] is the point in the middle: everything is frozen, and the node decides whether to continue.
//! - [`fork`] adapts an image for another sandbox.
//! - [`mod@dump`] writes an image; [`image`] lists the files that belong to it, and [`cipher`] encrypts them.
//! - [`places`] is where images are stored: sealed, and checked before use.
//! - [`deadlock`] handles a kill at the wrong moment.

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
use criu::NoCriu;
pub(crate) use criu::{Criu, complains, complaints};
pub(crate) use deadlock::{deadlocked, watch_leftovers};
pub(crate) use dump::{Afterwards, DumpError, dump};
pub(crate) use hook::{Hook, Moment};
pub(crate) use image::Image;
pub(crate) use places::{Images, Opened, Place};

/// Determined once, when the first node of this process starts.
static TOOL: OnceLock<Result<Criu, NoCriu>> = OnceLock::new();

/// Whether memory can be saved here, and if not, why. Takes a moment the first time.
pub(crate) fn probe() -> &'static Result<Criu, NoCriu> {
    TOOL.get_or_init(criu::probe)
}

/// Why memory cannot be saved here; `None` if it can.
pub fn lacks() -> Option<String> {
    probe().as_ref().err().map(|why| coffer_core::chain(why))
}

/// The tool that saves memory, or the error for requests that need it.
pub(crate) fn tool() -> Result<&'static Criu, NodeError> {
    probe().as_ref().map_err(|_| unsupported())
}

/// The error for requests that need memory to be saved.
pub(crate) fn unsupported() -> NodeError {
    let why = lacks().unwrap_or_else(|| "this version of the node does not support it".into());
    NodeError::new(NodeErrorCode::Unsupported, format!("memory cannot be saved here: {why}"))
}
