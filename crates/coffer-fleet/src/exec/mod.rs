//! Commands in sandboxes: the one service that the API, git and agents use.
//!
//! [`Exec`] connects to the sandbox, checks the project's command policy, records the execution and starts it.
//! E2B's own `Start` passes through the proxy instead, which checks the same policy by
//! [`Commands`](crate::commands::Commands).

mod error;
mod reach;
mod run;
mod service;

pub use error::ExecError;
pub use reach::reach;
pub use run::{Captured, Command, End, Run, Step, end, processes};
pub use service::{CommandResult, Exec};
