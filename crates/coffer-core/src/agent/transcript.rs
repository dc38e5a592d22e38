//! Transcripts: what an agent did in a turn, as typed entries, whatever the format of its output.
//!
//! A [`Scribe`] numbers and bounds the entries. The same output always gives the same numbers and versions, so a
//! server that reads a log again writes no entry twice.

mod call;
mod entry;
mod json;
mod line;
mod markdown;
mod scribe;
mod text;

pub(super) use call::{Ended, todos};
pub use entry::{CallState, Change, EditKind, EntryBody, Todo, TodoState};
pub(super) use json::{count, items, name};
pub use markdown::{Heading, markdown};
pub use scribe::{Room, Scribe};
pub use text::Text;
pub(super) use text::cut;
