//! HTTP for outgoing requests: a bounded client that dials only addresses its caller allows, and a circuit
//! breaker.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod address;
pub mod breaker;
mod client;
mod failure;

pub use address::{Address, BadUrl, Check, anywhere};
pub use client::{Client, Connection, Read, retry_after};
pub use failure::{Failure, NotAllowed};
