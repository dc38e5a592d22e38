//! Files in a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::fields::flag;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    pub name: String,
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`.
    pub kind: String,
    pub size_bytes: i64,
    /// As `ls` shows them.
    #[schema(example = "-rw-r--r--")]
    pub permissions: String,
    pub owner: String,
    pub group: String,
    pub modified_at: Option<String>,
    pub symlink_target: Option<String>,
}

/// An action on files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileAction {
    /// Creates a directory, and missing parents.
    Mkdir { path: String },
    /// Moves a file or a directory; replaces `to` if possible.
    Move { path: String, to: String },
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// The directory; the template's working directory by default. A relative one is below the user's home.
    pub path: Option<String>,
    /// How many levels of directories, 1 to 64; 1 by default.
    #[param(minimum = 1, maximum = 64)]
    pub depth: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct UserQuery {
    /// The user whose home `~` is and who owns new files; the template's user by default.
    pub user: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Whether to delete a directory with its contents; without it, a directory is 409.
    #[serde(default, deserialize_with = "flag")]
    pub recursive: Option<bool>,
}
