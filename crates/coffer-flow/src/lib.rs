//! Durable runs: code whose steps are on record, so that it goes on where a dead server left it.
//!
//! A [`Kind`] is code for runs of one kind. It calls [`Run::step`] with a name and the work; what the work
//! returns is in the journal before the call does, and is read from there when the run is taken up again. A
//! step that was under way is run again, so steps look for their effect before they make it.
//!
//! ```text
//! let sandbox: String = run
//!     .step("sandbox")
//!     .within(Duration::from_secs(60))
//!     .or_undo(move |start| make(start), move |made, why| unmake(made, why))
//!     .await?;
//! let commit: String = run.step("commit").run(|_| commit(&sandbox)).await?;
//! ```
//!
//! A [`Runner`] executes what is queued in the store. Several processes may have one on the same database:
//! exactly one acts for a run, by a fence that every write shows. See `docs/design/0008-durable-runs.md`.
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

use coffer_store::RunState;
pub use error::{StepError, Stop};
pub use run::Run;
pub use runner::Runner;
pub use settings::{Clock, Settings, Tries};
pub use step::{Start, Step};

/// The code of one kind of runs.
#[async_trait::async_trait]
pub trait Kind: Send + Sync + 'static {
    /// What runs of this kind bear.
    fn name(&self) -> &'static str;

    /// Does what the run is for, by steps; between them it must have no effects. What it returns is on record
    /// as the run's output.
    async fn execute(&self, run: &mut Run) -> Result<serde_json::Value, Stop>;

    /// Hears how a run of this kind ended, once that is on record. What ends in the queue was never this kind's.
    fn ended(&self, _how: RunState) {}
}
