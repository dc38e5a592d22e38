//! Commands in sandboxes: the one way in for the API, git and agents.
//!
//! [`Exec`] reaches the sandbox, asks the project's policy on commands, puts the execution on record and starts it. E2B's
//! own `Start` passes through the proxy instead, which asks [`Commands`](crate::commands::Commands) for the same policy.

mod error;
mod reach;
mod run;
mod service;

pub use error::ExecError;
pub use reach::reach;
pub use run::{Captured, Command, End, Run, Step, end, processes};
pub use service::{CommandResult, Exec};
