//! Forks, and how sandboxes descend from each other.

use std::collections::BTreeMap;

use coffer_core::Code;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sandboxes::Sandbox;

/// A fork to be made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewFork {
    /// How many children; 1 by default.
    #[schema(minimum = 1, maximum = 100)]
    pub count: Option<u32>,
    /// How long they live, in seconds; by default what the project says, or an hour.
    #[schema(minimum = 1)]
    pub timeout_s: Option<i64>,
    /// Whether the children go on with the source's processes. True is refused where that cannot be; by default
    /// they do where it can.
    pub memory: Option<bool>,
    /// Beside that of the source, or instead of it.
    pub metadata: BTreeMap<String, String>,
    /// Beside that of the source, or instead of it.
    pub env: BTreeMap<String, String>,
    /// Variables that get the value of a secret of the project in the children, by its name. What the source was
    /// granted, they are not.
    #[schema(example = json!({"GITHUB_TOKEN": "github"}))]
    pub secrets: BTreeMap<String, String>,
    /// Grants the children every secret that the source has, in its environment and in headers.
    pub inherit_secrets: bool,
}

/// What became of a fork.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Fork {
    /// One for each child that was asked for, in order.
    pub children: Vec<Child>,
    /// Whether they go on with the source's processes.
    pub memory: bool,
    /// Why not, where that was not asked for.
    pub note: Option<String>,
}

/// A child, or why there is none.
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

/// A sandbox with all that came from the same beginning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Family {
    pub sandbox_id: String,
    /// The oldest ancestor that is remembered.
    pub root_id: String,
    /// From the root to the parent of the sandbox.
    pub ancestors: Vec<String>,
    /// The tree: parents before their children, each followed by all that came from it.
    pub nodes: Vec<Node>,
    /// Whether there are more than are told.
    pub truncated: bool,
}

/// One sandbox in the tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    pub id: String,
    /// Null for the root, and where the parent is no longer remembered.
    pub parent_id: Option<String>,
    /// Steps from the root.
    pub depth: u32,
    /// `created`, `fork` or `snapshot`: how it came to be.
    pub origin: String,
    /// Children of one fork have one in common.
    pub snapshot_id: Option<String>,
    pub fork_position: Option<i64>,
    pub state: String,
    pub template: String,
    pub created_at: String,
}
