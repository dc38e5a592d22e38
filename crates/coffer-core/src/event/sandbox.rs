//! Payloads of events about sandboxes and the work in them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::network::Refusal;
use crate::{
    ArtifactId, ArtifactKind, BuildId, ExecutionId, ExecutionSource, ExecutionState, GitOperationId, KeyId,
    RunId, SandboxId, SandboxState, SnapshotId, StateName, TaskId, VolumeId,
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxMoved {
    /// `None` for a new one.
    pub from: Option<StateName>,
    pub to: SandboxState,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxForked {
    /// The snapshot that the forks started from.
    pub snapshot_id: SnapshotId,
    pub children: Vec<SandboxId>,
    /// How many forks were requested.
    pub asked: u64,
    /// Whether they continue processes.
    pub memory: bool,
    /// Why not.
    pub note: Option<String>,
    pub paused_us: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRefused {
    /// The latest refusals.
    pub refusals: Vec<Refusal>,
    /// How many there were since the last such event.
    pub refused: u64,
    /// The sequence of the last one.
    pub sequence: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanRemoved {
    /// The remains.
    pub had: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRefused {
    pub command: String,
    pub reason: String,
    /// The rule that refused it; `None` if none matches or the command is unclear.
    pub rule: Option<usize>,
    pub source: ExecutionSource,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionStarted {
    pub execution: ExecutionId,
    pub command: String,
    pub source: ExecutionSource,
    pub actor: Option<KeyId>,
    /// The language, if it is code for the code interpreter; `command` is its beginning then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionEnded {
    pub execution: ExecutionId,
    pub state: ExecutionState,
    pub exit_code: Option<i64>,
    /// How it ended, in words.
    pub status: Option<String>,
    /// How many bytes it wrote.
    pub bytes: i64,
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotCreating {
    pub snapshot_id: SnapshotId,
    pub name: Option<String>,
    pub tag: String,
    pub memory: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReady {
    pub snapshot_id: SnapshotId,
    pub name: Option<String>,
    pub tag: String,
    pub memory: bool,
    /// Why it has no memory although that was requested.
    pub note: Option<String>,
    pub files_bytes: u64,
    pub memory_bytes: u64,
    pub paused_us: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotGone {
    pub snapshot_id: SnapshotId,
    pub name: Option<String>,
    pub tag: String,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeNote {
    pub volume_id: VolumeId,
    pub name: String,
    pub size_mib: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitStarted {
    pub operation: GitOperationId,
    /// `clone`, `commit`, `push` and the like.
    pub kind: String,
    pub repository: String,
    pub actor: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitSucceeded {
    pub operation: GitOperationId,
    pub kind: String,
    pub repository: String,
    /// The result of the operation; its shape depends on `kind`.
    pub result: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFailed {
    pub operation: GitOperationId,
    pub kind: String,
    pub repository: String,
    pub error: GitFailure,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFailure {
    pub code: Option<String>,
    pub message: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactNote {
    pub artifact: ArtifactId,
    pub kind: ArtifactKind,
    pub name: String,
    pub size_bytes: i64,
    pub url: Option<String>,
    pub run: Option<RunId>,
    pub task: Option<TaskId>,
    pub sandbox: Option<SandboxId>,
    pub context_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateBuild {
    pub build_id: BuildId,
    /// The template's name.
    pub name: String,
    /// The tags that name the build once it is ready.
    pub tags: Vec<String>,
    /// Why it failed.
    pub reason: Option<String>,
    /// The step that failed: `base`, `finalize` or its number.
    pub step: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateGone {
    pub name: String,
}
