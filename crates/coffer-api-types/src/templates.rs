//! What sandboxes are made from.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A template that sandboxes can be made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    pub name: String,
    /// Changes with every build.
    pub build: String,
    /// Whether sandboxes that name no template are made from it.
    pub is_default: bool,
    /// Whom commands run as unless they say otherwise.
    pub user: String,
    /// Where commands run unless they say otherwise; the user's home where it is null.
    pub workdir: Option<String>,
}
