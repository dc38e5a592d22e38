//! The model gateway: carries agents' calls of models to their providers, with keys that no sandbox has, within
//! budgets. docs/design/0023-model-gateway.md has the whole picture.
//!
//! ```text
//! agent ──► egress, adds the pass ──► whose grant? ──► which call? ──► allowed? ──► reserve ──► send, with the key
//!   ◄───────────────────── answer, as it comes ◄───── read usage ◄──── settle ◄──────────────── provider
//! ```
//!
//! [`Models`] keeps the grants; `call` has the way of one call until it is sent, `carry` the rest.

mod answers;
mod call;
mod carry;
mod error;
mod fallback;
mod pace;
mod service;
mod settings;
mod shapes;
mod upstream;
mod ways;
mod worth;

pub use answers::{FailedAnswer, Streak};
pub use call::Entered;
pub use error::ModelError;
pub use service::{Grant, GrantOrder, Models, Spending};
pub use settings::{ModelConfig, ModelSettings};
pub use shapes::{MOST_BODY, ModelAnswer, ModelRequest};
