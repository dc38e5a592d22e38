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
    /// Its environment, in plain: use `secrets` for what must not be seen. Null in a request keeps the existing value.
    /// Values of versions that hid them all are null in answers.
    #[serde(default)]
    pub env: BTreeMap<String, Option<String>>,
    /// Maps variables to names of secrets of the project. A name such as `~/.codex/auth.json` is a file with a login: it is
    /// kept in memory while the agent works, and one attempt at a time has it.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
    /// Its working directory, relative to the repository.
    #[serde(default)]
    pub working_directory: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<OutputShape>)]
    pub output: Option<OutputFormat>,
    /// The template of its sandboxes. If it is left out, a preset with a recipe gets that one's template, and others the
    /// server's default.
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
    /// Whether an attempt first runs the set-up that the repository brings (`.coffer/setup.sh` or `devcontainer.json`);
    /// yes by default.
    #[serde(default)]
    pub setup: Option<bool>,
}

/// A coding agent: it may own sandboxes, and works on tasks if it has a definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Agent {
    pub id: String,
    pub name: String,
    pub definition: Option<Definition>,
    /// How far its template is, if that comes with the program.
    pub template: Option<AgentTemplate>,
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
    /// How its program is installed; null if there is no package of it.
    #[serde(default)]
    pub recipe: Option<PresetRecipe>,
    /// Ways to sign in, the usual one first.
    #[serde(default)]
    pub logins: Vec<PresetLogin>,
}

/// How the program of a preset is installed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PresetRecipe {
    /// The template of the catalogue that has it.
    pub template: String,
    /// The template's state: `not_built`, `building`, `ready` or `failed`.
    pub state: String,
    /// The package, as its registry names it.
    pub package: String,
    /// The versions that are installed.
    pub versions: String,
    /// The version that was tested last.
    pub tested: String,
    /// The command line that installs it, for root.
    pub install: String,
    /// The least memory of its sandbox.
    pub memory_mib: u64,
    /// Whether it does not run without a model.
    pub needs_model: bool,
}

/// A way to sign in: a variable with the value of a secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PresetLogin {
    pub variable: String,
    /// What it is.
    pub about: String,
    /// The usual name of the secret.
    pub secret: String,
    /// The hosts that it is for.
    pub hosts: Vec<String>,
    /// Other variables that this way needs.
    pub env: BTreeMap<String, String>,
}

/// A template of the catalogue, and how far it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentTemplate {
    pub name: String,
    /// `not_built`, `building`, `ready` or `failed`.
    pub state: String,
    /// The step of its build, or why that failed.
    pub doing: Option<String>,
}

/// An agent of a preset to set up.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentSetup {
    /// The agent's name; the preset's by default. An agent of this name is changed.
    #[serde(default)]
    pub name: Option<String>,
    /// Its model; if it is left out, an existing agent keeps its own.
    #[serde(default)]
    pub model: Option<String>,
    /// The key or token with which it signs in. It is stored as a secret and never returned. May be left out if the
    /// secret exists.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 65_536)]
    pub key: Option<String>,
    /// The name of the secret; `logins` of the preset has the usual one.
    #[serde(default)]
    pub secret: Option<String>,
    /// The variable of the way to sign in; the first in `logins` of the preset by default.
    #[serde(default)]
    pub login: Option<String>,
    /// Variables of its environment, in addition to those that it has.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Another template than the preset's.
    #[serde(default)]
    pub template: Option<String>,
}

/// Without the key.
impl std::fmt::Debug for AgentSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentSetup")
            .field("name", &self.name)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// An agent that was set up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SetUpAgent {
    pub agent: Agent,
    /// The variable with which it signs in.
    pub variable: String,
    /// The secret whose value that has.
    pub secret: String,
}

/// The result of a test of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentTest {
    /// Whether its program started, signed in and answered.
    pub ok: bool,
    /// Why not, for programs: a code of a failed step, such as `agent_missing`.
    pub code: Option<String>,
    /// Why not, for people.
    pub message: Option<String>,
    pub template: String,
    /// What the program says about its version.
    pub version: Option<String>,
    /// The model, as the program reports it.
    pub model: Option<String>,
    /// What it answered.
    pub answer: Option<String>,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    /// As the program reports it, in the currency of its vendor.
    pub cost: Option<f64>,
    /// From the start of the sandbox to the answer.
    pub took_ms: i64,
}
