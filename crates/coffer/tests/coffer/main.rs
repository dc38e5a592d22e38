//! `coffer` as people start it: the built binary, its output and its exit codes.
#![expect(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

mod arguments;
mod client;
mod doctor;
mod egress;
mod harness;
mod living;
mod output;
