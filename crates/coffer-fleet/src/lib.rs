//! Sandboxes, without HTTP: their life, commands in them, their output, limits and usage.
//!
//! [`Fleet`] owns every live sandbox and is the only caller of the engine. [`exec`] runs commands, [`code`] runs code,
//! [`output`] stores their output, [`commands`] checks which are permitted. [`limits`], [`usage`] and [`audit`] bound and
//! record what callers do. Errors turn into a [`Refusal`](coffer_core::Refusal); the API maps that to a
//! response.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

pub mod audit;
pub mod code;
pub mod commands;
pub mod events;
pub mod exec;
mod fleet;
mod follow;
mod guarded_engine;
pub mod limits;
pub mod network;
pub mod output;
mod preflight;
pub mod usage;

pub use fleet::{
    Books, Boot, Busy, Connected, CreateSpec, DEFAULT_TAG, DEFAULT_TEMPLATE, Fleet, FleetError, ForkSpec,
    Forked, IfSilent, MemoryWish, MountWish, OpenVolume, Record, SecretUse, SharedTemplates, SnapshotSpec,
    Step, describe, secret_variables,
};
pub use follow::Follower;
pub use guarded_engine::{GuardedEngine, HostFailures};
pub use preflight::{PreflightError, is_preflight, preflight};
