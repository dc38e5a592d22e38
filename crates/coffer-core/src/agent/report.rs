//! The state of an agent's work, as it reports it.

use serde::{Deserialize, Serialize};

/// Most tokens that an agent may report: more is nonsense.
const MOST_TOKENS: u64 = 1 << 50;

/// Tokens that an agent reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Includes those read from a cache.
    pub input: u64,
    pub cached: u64,
    pub output: u64,
}

impl Tokens {
    pub(super) fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input).min(MOST_TOKENS);
        self.cached = self.cached.saturating_add(other.cached).min(MOST_TOKENS);
        self.output = self.output.saturating_add(other.output).min(MOST_TOKENS);
    }

    pub(super) const fn is_none(&self) -> bool {
        self.input == 0 && self.cached == 0 && self.output == 0
    }
}

/// The state of an agent's work so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    /// The session by which it can be continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `None` if it did not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// In billionths of a dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nanos: Option<i64>,
    /// Its last message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The reason of its failure, as it reports: set while the last thing that it told is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub tools: u64,
    pub lines: u64,
    /// Lines that were too long to parse.
    pub passed_over: u64,
}
