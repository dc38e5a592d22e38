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
mod private;

pub use address::{Address, BadUrl, Check, anywhere};
pub use client::{Client, Connection, Pieces, Read, retry_after};
pub use failure::{Failure, NotAllowed};
pub use private::{PrivateHosts, class_of, is_own, may_dial};
