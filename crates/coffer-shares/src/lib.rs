//! Pools that tenants share, so that no tenant takes the places of the others.
//!
//! A [`Pool`] says how many places there are and how many of them one tenant may hold; [`POOLS`] lists every pool of the
//! installation. [`Shares`] hands the places out:
//!
//! - a tenant never holds more than its share, and never more than half of what is free, so that several busy tenants
//!   together leave room for the next one;
//! - a tenant that waits for more places delays only itself: a place that becomes free goes to the waiting tenant
//!   that holds the fewest;
//! - the wait is bounded in time and in number, and ends with [`Full`], which names the pool and its setting.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod pools;
mod refusal;
mod settings;
mod shares;

pub use pools::{POOLS, Pool, pool};
pub use settings::{PoolSettings, network_of};
pub use shares::{Full, Place, Shares};
