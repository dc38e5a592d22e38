//! Egress over real sockets, all of them on loopback.
//!
//! The internet is a table: a public address leads to a listener of the test, and every other address leads
//! nowhere.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]
#![allow(clippy::unwrap_used, reason = "a test may end by panic")]

mod connections;
mod control;
mod forbidden;
mod gate;
mod headers;
mod lfs;
mod mirrors;
mod models;
mod names;
mod policies;
mod proxy;
mod redirect;
mod upstream;
mod world;
