//! Commands that run or ran, and their output.

use coffer_core::{AgentId, SandboxId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::fields::flag;

/// A process that somebody started in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Execution {
    pub id: String,
    pub sandbox: String,
    /// The agent that owned the sandbox.
    pub agent: Option<String>,
    /// The key that asked for it, where it came by this API.
    pub actor: Option<String>,
    /// `e2b` or `api`.
    #[schema(example = "api")]
    pub source: String,
    /// `running`; `exited`; `failed`, where it never started; `lost`, where its sandbox ended first.
    #[schema(example = "exited")]
    pub state: String,
    pub command: String,
    pub cwd: Option<String>,
    pub user: Option<String>,
    pub pid: Option<u32>,
    pub started_at: String,
    pub ended_at: Option<String>,
    pub exit_code: Option<i64>,
    /// How it ended, in words.
    pub status: Option<String>,
    /// Bytes of output that are kept.
    pub output_bytes: i64,
    /// Bytes that it wrote, as far as is known.
    pub output_bytes_total: i64,
    /// Bytes of those that were never read, or too many to keep.
    pub output_bytes_lost: i64,
    /// Whether it wrote more than is kept of one execution.
    pub truncated: bool,
}

/// Which executions to show.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ExecutionQuery {
    /// Those of this sandbox.
    #[param(value_type = Option<String>)]
    pub sandbox: Option<SandboxId>,
    /// Those in sandboxes of this agent.
    #[param(value_type = Option<String>)]
    pub agent: Option<AgentId>,
    /// `running`, `exited`, `failed` or `lost`.
    pub state: Option<String>,
    /// Those that started then or later.
    pub from: Option<String>,
    /// Those that started then or earlier.
    pub until: Option<String>,
}

/// Something that an execution wrote at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Piece {
    /// `stdout`, `stderr` or `pty`.
    #[schema(example = "stdout")]
    pub stream: String,
    /// `output`; `gap`, where output was never heard of; `truncated`, where it became too much.
    #[schema(example = "output")]
    pub kind: String,
    /// Bytes that are kept of the stream before this.
    pub offset: i64,
    pub at: String,
    /// What was written, where it is text.
    pub text: Option<String>,
    /// What was written, where it is not.
    pub base64: Option<String>,
    /// Bytes that a gap stands for.
    pub missing_bytes: Option<i64>,
}

/// Which part of an execution's output.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OutputQuery {
    /// `stdout`, `stderr` or `pty`; all of them by default.
    pub stream: Option<String>,
    /// The offset in the stream to begin at; needs `stream`.
    pub from: Option<u64>,
    /// The `next` of the part before.
    pub cursor: Option<String>,
    /// The bytes themselves, to the end.
    #[serde(default, deserialize_with = "flag")]
    pub raw: Option<bool>,
}

/// Part of an execution's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputPage {
    pub items: Vec<Piece>,
    /// Pass it on as `cursor`; null once the execution is over and all was read.
    pub next: Option<String>,
    /// Whether some of the output before these items is no longer kept.
    pub pruned: bool,
}

/// Output of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecutionOutput {
    pub execution: String,
    #[serde(flatten)]
    pub piece: Piece,
}

/// Where to begin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PlaceQuery {
    /// Begin after that place; now by default.
    pub after: Option<String>,
}
