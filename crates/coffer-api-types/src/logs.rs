//! The logs of sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::fields::flag;

/// A line of a sandbox's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    pub at: String,
    /// `debug`, `info`, `warn` or `error`.
    #[schema(example = "info")]
    pub level: String,
    /// `sandbox`, `process`, `stdout`, `stderr` or `pty`.
    #[schema(example = "stdout")]
    pub source: String,
    /// Its execution, if it has one.
    pub execution: Option<String>,
    pub message: String,
}

/// Selects lines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// Lines that contain this text.
    pub search: Option<String>,
    /// Lines of this level or above: `debug`, `info`, `warn` or `error`.
    pub level: Option<String>,
    /// Lines of these sources, separated by commas: `sandbox`, `process`, `stdout`, `stderr`, `pty`.
    #[param(value_type = Option<String>)]
    #[serde(default)]
    pub source: Vec<String>,
    /// Lines of this time or later.
    pub from: Option<String>,
    /// Lines of this time or earlier.
    pub until: Option<String>,
    /// How many at most, 1 to 1000; 200 by default.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// The `next` of the previous part.
    pub cursor: Option<String>,
}

/// The form of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FormQuery {
    /// The whole log as a text file.
    #[serde(default, deserialize_with = "flag")]
    pub download: Option<bool>,
}

/// A line and its sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FoundLine {
    pub sandbox_id: String,
    #[serde(flatten)]
    pub line: LogLine,
}
