//! Commands that run or ran, and their output.

use coffer_core::{AgentId, SandboxId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::fields::flag;

/// A process that a client started in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Execution {
    pub id: String,
    pub sandbox: String,
    /// The agent that owned the sandbox.
    pub agent: Option<String>,
    /// The key that requested it, if it came through this API.
    pub actor: Option<String>,
    /// `e2b` or `api`.
    #[schema(example = "api")]
    pub source: String,
    /// `running`; `exited`; `failed` if it never started; `lost` if its sandbox ended first.
    #[schema(example = "exited")]
    pub state: String,
    pub command: String,
    pub cwd: Option<String>,
    pub user: Option<String>,
    /// The language, if it is code for the code interpreter; `command` is its beginning then.
    pub language: Option<String>,
    /// The context of the code, if the caller named one.
    pub context_id: Option<String>,
    pub pid: Option<u32>,
    pub started_at: String,
    pub ended_at: Option<String>,
    pub exit_code: Option<i64>,
    /// How it ended, in words.
    pub status: Option<String>,
    /// Bytes of output that are stored.
    pub output_bytes: i64,
    /// Bytes that it wrote, as far as known.
    pub output_bytes_total: i64,
    /// Bytes that were not read in time, or exceeded the limit.
    pub output_bytes_lost: i64,
    /// Whether it wrote more than the limit of one execution.
    pub truncated: bool,
}

/// Filters executions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ExecutionQuery {
    /// Only of this sandbox.
    #[param(value_type = Option<String>)]
    pub sandbox: Option<SandboxId>,
    /// Only in sandboxes of this agent.
    #[param(value_type = Option<String>)]
    pub agent: Option<AgentId>,
    /// `running`, `exited`, `failed` or `lost`.
    pub state: Option<String>,
    /// Only those that started at this time or later.
    pub from: Option<String>,
    /// Only those that started at this time or earlier.
    pub until: Option<String>,
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Piece {
    /// `stdout`, `stderr` or `pty`.
    #[schema(example = "stdout")]
    pub stream: String,
    /// `output`; `gap` for lost output; `truncated` at the limit.
    #[schema(example = "output")]
    pub kind: String,
    /// Offset in the stored bytes of the stream.
    pub offset: i64,
    pub at: String,
    /// The output, if it is text.
    pub text: Option<String>,
    /// The output, if it is not text.
    pub base64: Option<String>,
    /// The number of bytes in a gap.
    pub missing_bytes: Option<i64>,
}

/// Selects a part of an execution's output.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OutputQuery {
    /// `stdout`, `stderr` or `pty`; all of them by default.
    pub stream: Option<String>,
    /// The offset in the stream to begin at; needs `stream`.
    pub from: Option<u64>,
    /// Begin about this many bytes before the end, at most 1 MiB. With `cursor` it has no effect.
    #[param(maximum = 1048576)]
    pub tail: Option<u32>,
    /// The `next` of the previous part.
    pub cursor: Option<String>,
    /// Return the bytes themselves, to the end.
    #[serde(default, deserialize_with = "flag")]
    pub raw: Option<bool>,
}

/// Part of an execution's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputPage {
    pub items: Vec<Piece>,
    /// Pass it as `cursor`; null once the execution has ended and all output was read.
    pub next: Option<String>,
    /// Whether some of the output before these items was deleted.
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
    /// Begin after this position; now by default.
    pub after: Option<String>,
}
