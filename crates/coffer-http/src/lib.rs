//! What every client of ours over HTTP needs: a bounded client that dials only addresses its caller allows, and a
//! circuit breaker.
#![forbid(unsafe_code)]

mod address;
pub mod breaker;
mod client;

pub use address::{Address, BadUrl, Check, anywhere};
pub use client::{Client, Connection, Failure, Read, retry_after};
