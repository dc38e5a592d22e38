//! Running commands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::fields::flag;

/// A command to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCommand {
    pub command: Program,
    /// Where it runs; the user's home by default.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Beside the sandbox's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Who runs it; the template's user by default.
    #[serde(default)]
    pub user: Option<String>,
    /// What it reads; nothing by default.
    #[serde(default)]
    pub stdin: Option<String>,
    /// When it is killed with all that it started, in seconds: 300 by default, and never in the background.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_s: Option<i64>,
    /// Answers as soon as it runs.
    #[serde(default)]
    pub background: bool,
    /// How much of each of its streams is answered, from the beginning; 1 MiB by default.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 8388608)]
    pub max_output_bytes: Option<i64>,
}

/// A line for `/bin/bash -l -c`, or a program with its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Command)]
pub enum Program {
    #[schema(example = "make test 2>&1 | tail -20")]
    Line(String),
    #[schema(example = json!(["git", "status"]))]
    Words(Vec<String>),
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ran {
    pub execution_id: String,
    pub pid: Option<u32>,
    /// Null where it was killed because its time was up.
    pub exit_code: Option<i64>,
    pub timed_out: bool,
    pub stdout: String,
    pub stderr: String,
    /// Whether it wrote more than is here.
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    /// How much it wrote in all.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub started_at: String,
    pub ended_at: String,
    pub duration_ms: i64,
}

/// A command that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Running {
    pub execution_id: String,
    pub pid: u32,
    pub started_at: String,
}

/// A process that was started through an API and runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    pub pid: u32,
    pub program: String,
    pub arguments: Vec<String>,
    pub cwd: Option<String>,
    /// By which its creator knows it; of executions of this API the id.
    pub tag: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SignalQuery {
    /// `KILL` (the default) or `TERM`.
    pub signal: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WatchQuery {
    /// `true` for who looks again and again: it wakes no sandbox, and is no use that keeps one from being idle.
    #[serde(default, deserialize_with = "flag")]
    pub watch: Option<bool>,
}
