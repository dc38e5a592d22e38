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
    /// Its working directory; the user's home by default.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Added to the sandbox's own environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The user that runs it; the template's user by default.
    #[serde(default)]
    pub user: Option<String>,
    /// Its standard input; empty by default.
    #[serde(default)]
    pub stdin: Option<String>,
    /// After how many seconds it is killed with all its children: 300 by default, and never in the
    /// background.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_s: Option<i64>,
    /// Answer as soon as it runs.
    #[serde(default)]
    pub background: bool,
    /// How many bytes of each stream the answer has, from the beginning; 1 MiB by default.
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

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ran {
    pub execution_id: String,
    pub pid: Option<u32>,
    /// Null if it was killed because it timed out.
    pub exit_code: Option<i64>,
    pub timed_out: bool,
    pub stdout: String,
    pub stderr: String,
    /// Whether it wrote more than the answer has.
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    /// How many bytes it wrote in all.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub started_at: String,
    pub ended_at: String,
    pub duration_ms: i64,
}

/// A command that runs in the background.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Running {
    pub execution_id: String,
    pub pid: u32,
    pub started_at: String,
}

/// A running process that was started through an API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    pub pid: u32,
    pub program: String,
    pub arguments: Vec<String>,
    pub cwd: Option<String>,
    /// The tag that its creator gave it; for executions of this API their id.
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
    /// Set by pollers: the request neither wakes a paused sandbox nor counts as activity.
    #[serde(default, deserialize_with = "flag")]
    pub watch: Option<bool>,
}
