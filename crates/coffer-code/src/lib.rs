//! The code interpreter inside a sandbox: E2B's service on port 49999, in front of Jupyter kernels
//! ([design 0018](../../../docs/design/0018-code-interpreter.md)).
//!
//! ```text
//! keeper ─► serve ─► route ─► contexts ─► context ─► kernel ─► jupyter, bash
//!                      └────► stream: what a call answers, line by line
//! ```
//!
//! Everything here is inside the sandbox and trusts nobody; what a client or a kernel sends is bounded.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod context;
mod contexts;
mod envs;
mod keeper;
mod kernel;
mod language;
mod line;
mod place;
mod process;
mod route;
mod serve;
mod service;
mod stream;
mod task;

use std::process::ExitCode;

/// Runs the program as its arguments say: without any it keeps the service running, `serve` is the service.
pub fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        None => keeper::keep(),
        Some("serve") => serve::run(),
        Some(other) => Err(std::io::Error::other(format!(
            "`{other}` is no command; there is `serve`, and without a command it is kept running"
        ))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coffer-code: {error}");
            ExitCode::FAILURE
        }
    }
}
