//! Templates of sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    pub name: String,
    /// Changes with every build.
    pub build: String,
    /// Whether it is the default template.
    pub is_default: bool,
    /// The default user of commands.
    pub user: String,
    /// The default working directory of commands; null means the user's home.
    pub workdir: Option<String>,
}
