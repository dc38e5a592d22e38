//! Lists, page by page.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Pass it as `cursor` to get the next part; null at the end.
    pub next: Option<String>,
}

impl<T> Page<T> {
    pub const fn new(items: Vec<T>, next: Option<String>) -> Self {
        Self { items, next }
    }
}

/// Selects a part of a list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// How many at most, 1 to 200; 50 by default.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// The `next` of the previous part.
    pub cursor: Option<String>,
}
