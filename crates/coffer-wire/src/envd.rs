//! E2B's envd messages, generated from `proto/`: binary by prost, JSON by pbjson.

/// Processes: start, attach, feed, signal.
#[allow(
    missing_debug_implementations,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub mod process {
    include!(concat!(env!("OUT_DIR"), "/process.rs"));
    include!(concat!(env!("OUT_DIR"), "/process.serde.rs"));
}

/// Files: describe, list, move, remove, watch.
#[allow(
    missing_debug_implementations,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub mod filesystem {
    include!(concat!(env!("OUT_DIR"), "/filesystem.rs"));
    include!(concat!(env!("OUT_DIR"), "/filesystem.serde.rs"));
}

pub use pbjson_types::Timestamp;
