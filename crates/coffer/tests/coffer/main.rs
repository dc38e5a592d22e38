//! `coffer` as people start it: the built binary, its output and its exit codes.
#![expect(clippy::unwrap_used, reason = "tests")]

mod arguments;
mod egress;
mod harness;
mod living;
mod output;
