//! Refusals, as callers get them.

use std::fmt;

use serde_json::Value;

use crate::Code;

/// Why something was refused: a code for programs, a message and a hint for people.
///
/// Errors of the domain turn into refusals. The API maps them to the wire (an HTTP status, E2B's texts). The
/// message has no internal details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub message: String,
    /// How to fix it, if there is a way.
    pub hint: Option<String>,
    /// After how many seconds a retry helps.
    pub retry_after_s: Option<u32>,
    /// Details for programs.
    pub details: Option<Value>,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, retry_after_s: None, details: None }
    }

    /// A field of the request has a value that is not allowed.
    pub fn invalid(field: &str, why: impl fmt::Display) -> Self {
        debug_assert!(!field.ends_with(':'), "`{field}` is not a field name: the message continues after it");
        Self::new(Code::Invalid, format!("{field} {why}"))
    }

    /// The thing does not exist or belongs to another project; the two look the same.
    pub fn nothing(kind: &str, id: impl fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("{kind} {id} not found"))
    }

    /// The same for a sandbox, in the words that E2B's clients know.
    pub fn no_sandbox(id: &str) -> Self {
        let id: String = id.chars().take(64).collect();
        Self::new(Code::NotFound, format!("sandbox '{id}' not found"))
    }

    /// The current state does not allow this.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(Code::Conflict, message)
    }

    /// The server failed. The cause is in its log, not in the answer.
    pub fn internal() -> Self {
        Self::new(Code::Internal, "the server failed to do this; its log says why")
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }
}
