//! Calls of language models: which requests pass the model gateway, what they may cost at most, what they did
//! cost, and at which prices. docs/design/0023-model-gateway.md has the whole picture.

mod allow;
mod answer;
mod asked;
mod bound;
mod call;
mod fallback;
mod json;
mod prices;
mod provider;
mod refusal;

pub use allow::{BadModelPattern, ModelPattern, ModelPolicy};
pub use answer::{AnswerReader, Read};
pub use asked::{Asked, BadCall};
pub use bound::InputBound;
pub use call::{Call, CallKind, NotACall};
pub use fallback::{MOST_FALLBACKS, ModelFallback, ModelTry, TryOutcome};
pub use json::Json;
pub use prices::{BadPrices, Price, Prices, Used};
pub use provider::{KeyHeader, Provider, key_of, keys};
pub use refusal::refusal_body;

/// The name of the gateway inside a sandbox.
pub const MODEL_NAME: &str = "model.coffer.internal";
