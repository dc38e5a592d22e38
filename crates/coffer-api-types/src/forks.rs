//! Forks, and how sandboxes descend from each other.

use std::collections::BTreeMap;

use coffer_core::Code;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sandboxes::Sandbox;

/// A new fork request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewFork {
    /// How many forks; 1 by default.
    #[schema(minimum = 1, maximum = 100)]
    pub count: Option<u32>,
    /// How long they live, in seconds; the project's default, or an hour.
    #[schema(minimum = 1)]
    pub timeout_s: Option<i64>,
    /// Whether the forks continue the source's processes. True is refused if that is not possible; by default
    /// they do if possible.
    pub memory: Option<bool>,
    /// Added to the source's metadata; wins over it.
    pub metadata: BTreeMap<String, String>,
    /// Added to the source's metadata; wins over it.
    pub env: BTreeMap<String, String>,
    /// Variables that get the value of a secret of the project in the forks, by its name. Forks do not get
    /// the secrets that the source was granted.
    #[schema(example = json!({"GITHUB_TOKEN": "github"}))]
    pub secrets: BTreeMap<String, String>,
    /// Grants the forks every secret that the source has, in its environment and in headers.
    pub inherit_secrets: bool,
}

/// The result of a fork request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Fork {
    /// One for each requested fork, in order.
    pub children: Vec<Child>,
    /// Whether they continue the source's processes.
    pub memory: bool,
    /// Why not, if `memory` was left out.
    pub note: Option<String>,
}

/// A fork, or why it failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Child {
    pub sandbox: Option<Sandbox>,
    pub error: Option<ChildError>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChildError {
    pub code: Code,
    pub message: String,
    pub hint: Option<String>,
}

/// A sandbox with its ancestors and all their descendants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Family {
    pub sandbox_id: String,
    /// The oldest recorded ancestor.
    pub root_id: String,
    /// From the root to the parent of the sandbox.
    pub ancestors: Vec<String>,
    /// The tree: parents before their children, each followed by its descendants.
    pub nodes: Vec<Node>,
    /// Whether there are more than the answer has.
    pub truncated: bool,
}

/// One sandbox in the tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    pub id: String,
    /// Null for the root, and if the parent's record was deleted.
    pub parent_id: Option<String>,
    /// Steps from the root.
    pub depth: u32,
    /// How it was created: `created`, `fork` or `snapshot`.
    pub origin: String,
    /// Forks of one request have the same.
    pub snapshot_id: Option<String>,
    pub fork_position: Option<i64>,
    pub state: String,
    pub template: String,
    pub created_at: String,
}
