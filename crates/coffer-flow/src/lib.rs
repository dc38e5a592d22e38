//! Durable runs: code with recorded steps, so that it continues where a dead server left it.
//!
//! A [`Kind`] is the code for runs of one kind. It calls [`Run::step`] with a name and the work; the result
//! of the work is in the journal before the call returns, and is read from there when the run is taken again.
//! A step that was in progress is run again, so steps look for their effect before they create it.
//!
//! ```text
//! let sandbox: String = run
//!     .step("sandbox")
//!     .within(Duration::from_secs(60))
//!     .undo(move |made, why| unmake(made, why))
//!     .run(move |start| make(start))
//!     .await?;
//! let commit: String = run.step("commit").nothing_to_undo().run(|_| commit(&sandbox)).await?;
//! ```
//!
//! A step says what undoes it before it can run, also if nothing does.
//!
//! A [`Runner`] executes the store's queue. Several processes may have one on the same database: exactly one
//! executes a run, by a fence that every write checks. See `docs/design/0008-durable-runs.md`.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

pub mod compete;
mod error;
mod execute;
mod persist;
mod run;
mod runner;
mod settings;
mod step;
pub mod task;

use coffer_store::{RunRow, RunState};
pub use error::{StepError, Stop};
pub use run::Run;
pub use runner::Runner;
pub use settings::{Clock, Settings, Tries};
pub use step::{Start, Step};

/// The code of one kind of runs.
#[async_trait::async_trait]
pub trait Kind: Send + Sync + 'static {
    /// The name of this kind.
    fn name(&self) -> &'static str;

    /// Executes the run by steps; code between them must have no effects. The result is recorded as the run's
    /// output.
    async fn execute(&self, run: &mut Run) -> Result<serde_json::Value, Stop>;

    /// Called when a run of this kind has ended and that is recorded. Not called for runs that end in the
    /// queue.
    fn ended(&self, _run: &RunRow, _how: RunState) {}
}
