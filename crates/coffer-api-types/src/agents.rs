//! Agents and their definitions.

use std::collections::BTreeMap;

use coffer_core::agent::{AgentLimits, ModelAccess, OutputFormat, Preset};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAgent {
    /// Unique in the project.
    pub name: String,
    /// How it is run; an agent without one only owns sandboxes and acts by its keys.
    #[serde(default)]
    pub definition: Option<Definition>,
}

/// The agent's program.
#[derive(Debug, ToSchema)]
#[schema(as = AgentPreset, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum PresetShape {
    ClaudeCode,
    Codex,
    Gemini,
    Opencode,
    Aider,
    Goose,
    Cursor,
    Amp,
    Qwen,
    Copilot,
    Custom,
}

/// The format of its output.
#[derive(Debug, ToSchema)]
#[schema(as = AgentOutput, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum OutputShape {
    Text,
    ClaudeStream,
    CodexStream,
    GeminiStream,
    OpencodeStream,
    GooseStream,
    Aider,
}

/// How an agent calls models.
#[derive(Debug, ToSchema)]
#[schema(as = ModelAccess, rename_all = "lowercase")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum ModelAccessShape {
    Gateway,
    Direct,
    Anthropic,
    OpenAi,
    Gemini,
}

/// Limits of one attempt.
#[derive(Debug, ToSchema)]
#[schema(as = AgentLimits)]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) struct LimitsShape {
    /// How long it may work; an hour by default.
    #[schema(minimum = 1, maximum = 86400)]
    timeout_s: Option<i64>,
    /// Processors of its sandbox, within the project's quota `cpus`; the server's default if null.
    #[schema(minimum = 1, maximum = 1024)]
    cpu_count: Option<u32>,
    /// Memory of its sandbox, within the project's quota `memory_mib`; the server's default if null.
    #[schema(minimum = 64, maximum = 16777216)]
    memory_mib: Option<u32>,
}

/// How an agent is run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AgentDefinition)]
pub struct Definition {
    #[schema(value_type = PresetShape)]
    pub preset: Preset,
    /// A program and its arguments instead of the preset's, with `{prompt}` and optionally `{model}` in them.
    #[serde(default)]
    pub command: Option<Vec<String>>,
    #[serde(default)]
    pub model: Option<String>,
    /// The template of its prompt; `{{title}}`, `{{description}}`, `{{messages}}`, `{{branch}}` and
    /// `{{check}}` are filled in.
    #[serde(default)]
    pub prompt: Option<String>,
    /// Its environment. Values are not returned: they are null in answers, and null in a request keeps the
    /// existing value.
    #[serde(default)]
    pub env: BTreeMap<String, Option<String>>,
    /// Maps variables to names of secrets of the project.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
    /// Its working directory, relative to the repository.
    #[serde(default)]
    pub working_directory: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<OutputShape>)]
    pub output: Option<OutputFormat>,
    /// The template of its sandboxes.
    #[serde(default)]
    pub template: Option<String>,
    #[serde(default)]
    #[schema(value_type = LimitsShape)]
    pub limits: AgentLimits,
    /// How it calls models: `gateway` (its keys stay outside the sandbox) or `direct` (its keys are in its
    /// environment). By default through the gateway, if its secrets have a key under a name that the preset uses. A
    /// provider's name does the same for a program that is not a preset, with its only secret as the key.
    #[serde(default)]
    #[schema(value_type = Option<ModelAccessShape>)]
    pub model_access: Option<ModelAccess>,
}

/// A coding agent: it may own sandboxes, and works on tasks if it has a definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Agent {
    pub id: String,
    pub name: String,
    pub definition: Option<Definition>,
    /// Whether its definition cannot be read because a master key is missing.
    pub sealed: bool,
    pub version: i64,
    pub created_at: String,
}

/// A preset: a known agent program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PresetInfo {
    #[schema(value_type = PresetShape)]
    pub preset: Preset,
    pub title: String,
    /// Whether it takes a model.
    pub takes_model: bool,
    /// The variable that its key is usually in.
    pub usual_secret: Option<String>,
    #[schema(value_type = OutputShape)]
    pub output: OutputFormat,
    /// Its command, with a placeholder for the prompt.
    pub command: Vec<String>,
}
