//! `[code]`: limits of code in the code interpreter.

use coffer_core::settings::{ByteSize, Period};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[code]`: limits of code that runs through `POST /api/v1/sandboxes/{id}/code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CodeSettings {
    /// When code is interrupted, unless its request says otherwise.
    pub timeout: Period,
    /// The longest timeout that a request may have.
    pub longest_timeout: Period,
    /// Output and results of one execution in its answer, and the longest line of the interpreter; at most 256 MiB. The
    /// rest of the output is only stored.
    pub most_output: ByteSize,
    /// Stored code and results of one execution; a result that does not fit is left out. Output has its own limit,
    /// `output.most_per_execution`.
    pub most_kept: ByteSize,
}

impl Default for CodeSettings {
    fn default() -> Self {
        Self {
            timeout: Period::secs(30),
            longest_timeout: Period::secs(3600),
            most_output: ByteSize::mib(16),
            most_kept: ByteSize::mib(8),
        }
    }
}
