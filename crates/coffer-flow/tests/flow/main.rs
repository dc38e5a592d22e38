//! Durable runs on both databases, with servers that die wherever they can.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

mod cancel;
mod compete;
mod kill;
mod logs;
mod outside;
mod queue;
mod retry;
mod ring;
mod servers;
mod shop;
mod stadium;
mod standstill;
mod task;
mod waits;
mod world;
