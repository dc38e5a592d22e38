//! Artifacts.

use coffer_core::{RunId, SandboxId, TaskId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A new artifact: exactly one of `text`, `content_base64`, `path` and `url`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewArtifact {
    /// The file name for downloads; without `/`. The last part of `path` by default.
    #[schema(max_length = 255)]
    pub name: Option<String>,
    /// `file`, `diff`, `link`, `report`, `finding` or `log`; `link` for a `url`, `file` otherwise by default.
    pub kind: Option<String>,
    /// `text/plain` for a text, `application/octet-stream` otherwise by default.
    pub content_type: Option<String>,
    #[serde(default)]
    pub description: String,
    /// Contents as text; at most 1 MiB, the limit of a request.
    pub text: Option<String>,
    /// The same for any bytes.
    pub content_base64: Option<String>,
    /// A file of the sandbox `sandbox_id`; the server copies it.
    pub path: Option<String>,
    /// A link, such as a pull request's address; `http` or `https`.
    pub url: Option<String>,
    #[schema(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    /// The run's task by default.
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    #[schema(value_type = Option<String>)]
    pub sandbox_id: Option<SandboxId>,
    /// A research task, a hypothesis: any name. The task's context by default.
    #[schema(max_length = 1000)]
    pub context_id: Option<String>,
}

/// A stored artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Artifact {
    pub id: String,
    pub kind: String,
    pub name: String,
    pub content_type: String,
    pub size_bytes: i64,
    /// Of the contents; null for a link.
    pub sha256: Option<String>,
    /// Of a link.
    pub url: Option<String>,
    pub description: String,
    pub run_id: Option<String>,
    pub task_id: Option<String>,
    pub sandbox_id: Option<String>,
    pub context_id: Option<String>,
    /// The key or agent that created it, or the task of its run.
    pub created_by: String,
    pub created_at: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ArtifactQuery {
    pub kind: Option<String>,
    #[param(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    #[param(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    #[param(value_type = Option<String>)]
    pub sandbox_id: Option<SandboxId>,
    pub context_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct UploadQuery {
    /// The file name for downloads; without `/`.
    #[serde(default)]
    #[param(required = true)]
    pub name: String,
    pub description: Option<String>,
}
