//! Templates that are built when an agent needs them.

use coffer_core::Refusal;

/// How far a template is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StockState {
    Ready,
    /// It is being built, or waits for that; for people.
    Building(String),
    /// It could not be built; for people.
    Failed(String),
}

/// Templates that come with the program, and are built when they are needed.
#[async_trait::async_trait]
pub trait Stock: std::fmt::Debug + Send + Sync {
    /// How far a template is. With `ask` its build begins, unless it is ready, being built, or failed a moment ago.
    async fn state(&self, template: &str, ask: bool) -> Result<StockState, Refusal>;
}
