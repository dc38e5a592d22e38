//! Calls of models through the gateway, and a project's rules for them.

use coffer_core::{AgentId, RunId, SandboxId, TaskId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Selects calls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ModelCallQuery {
    /// Only of this task.
    #[param(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// Only of this run: an attempt at a task, or a competition.
    #[param(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    /// Only of this agent.
    #[param(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Only from this sandbox.
    #[param(value_type = Option<String>)]
    pub sandbox_id: Option<SandboxId>,
}

/// A call of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelCall {
    pub id: String,
    pub sandbox_id: String,
    pub agent_id: Option<String>,
    pub task_id: Option<String>,
    pub run_id: Option<String>,
    /// `anthropic`, `openai` or `gemini`.
    pub provider: String,
    /// `messages`, `responses`, `chat` or `generate`.
    pub kind: String,
    /// The model that the agent asked for.
    pub model: String,
    /// The model that answered, as the provider names it.
    pub answered_by: Option<String>,
    /// `answered`, `failed` (the provider's error), `broken` (it broke off), `aborted` (the agent did not wait),
    /// `lost` (the server stopped), `refused` (by the gateway); null while it is in progress.
    pub outcome: Option<String>,
    /// The status of the provider's answer.
    pub status: Option<i64>,
    /// All input, including what was read from a cache and written to one.
    pub input_tokens: i64,
    pub cached_tokens: i64,
    pub cache_write_tokens: i64,
    pub output_tokens: i64,
    /// In the server's currency; null if the model has no price, or while it is in progress.
    pub cost: Option<f64>,
    /// The most it can cost, reserved while it is in progress.
    pub reserved: f64,
    /// The provider did not say what it used: the cost is the most it can be.
    pub estimated: bool,
    pub began_at: String,
    /// Until the answer began.
    pub first_byte_ms: Option<i64>,
    /// Until the answer ended.
    pub duration_ms: Option<i64>,
    pub error: Option<String>,
    /// Where the call went, in order, if its first try was not the only one.
    #[serde(default)]
    pub tries: Vec<ModelTry>,
}

/// One try of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelTry {
    /// The provider, or the host of a fallback.
    pub place: String,
    pub model: String,
    /// `answered`, `overloaded` (429, 529), `failed` (another error), `unreachable`, or `paused`: not tried, because it failed
    /// several times in a row a moment ago.
    pub outcome: String,
    pub status: Option<i64>,
    /// Until its answer began.
    pub duration_ms: i64,
}

/// A call with its bodies, if the project keeps them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelCallDetail {
    #[serde(flatten)]
    pub call: ModelCall,
    /// The request as it was sent, at most 1 MiB; null if it was not kept.
    pub request: Option<String>,
    /// The answer as it came, at most 1 MiB; null if it was not kept.
    pub answer: Option<String>,
}

/// A project's rules for models.
#[derive(Debug, ToSchema)]
#[schema(as = ModelPolicy)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub struct ModelPolicyShape {
    /// The models that agents may call through the gateway: names, or beginnings with `*` at the end. Null for all.
    #[schema(max_items = 200, example = json!(["claude-haiku-*"]))]
    allow: Option<Vec<String>>,
    /// Whether requests and answers are kept, sealed, with the records of calls.
    keep_bodies: Option<bool>,
    /// Tried in their order when a provider is overloaded (429, 529), fails (5xx) or cannot be reached before its answer begins.
    #[schema(max_items = 12)]
    fallbacks: Option<Vec<ModelFallbackShape>>,
}

/// Another way to answer calls of a provider's API. What is not named stays as it is.
#[derive(Debug, ToSchema)]
#[schema(as = ModelFallback)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub struct ModelFallbackShape {
    /// Whose calls: `anthropic`, `openai` or `gemini`.
    #[schema(example = "anthropic")]
    provider: String,
    /// Another endpoint with the same API; HTTPS, at a public address unless the operator allows its host.
    #[schema(example = "https://proxy.example.com/anthropic")]
    url: Option<String>,
    /// The secret with its key.
    secret: Option<String>,
    /// The header of the key: `bearer`, `api_key` or `goog_api_key`.
    header: Option<String>,
    /// Another model.
    model: Option<String>,
}

/// The prices of a model, for a million tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelPrice {
    pub model: String,
    pub input: f64,
    /// Input that was read from a cache.
    pub cached: f64,
    pub output: f64,
}

/// The price table that calls are charged at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelPrices {
    /// The day on which the newest part of the table was put together.
    pub as_of: String,
    pub currency: String,
    /// Where the current prices are.
    pub sources: Vec<String>,
    pub models: Vec<ModelPrice>,
}
