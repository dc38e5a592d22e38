//! Breakers of this server's dependencies; how they work is in [`coffer_forge::breaker`].

mod engine;

pub(crate) use coffer_forge::breaker::{Breaker, Policy};
pub(crate) use engine::{GuardedEngine, HostFailures};
