//! What a caller is told when something is refused, whatever way the call came.

use std::fmt;

use serde_json::Value;

use crate::Code;

/// Why something was not done: a code for programs, a message and a hint for people.
///
/// Errors of the domain explain themselves as a refusal. What it becomes on the wire (an HTTP status, E2B's texts) is for
/// the API to say. Its message names nothing internal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub message: String,
    /// What to do about it, where there is something.
    pub hint: Option<String>,
    /// Waiting helps, and for how long.
    pub retry_after_s: Option<u32>,
    /// What a program may want to know of it.
    pub details: Option<Value>,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, retry_after_s: None, details: None }
    }

    /// A field of the request has a value that is not allowed.
    pub fn invalid(field: &str, why: impl fmt::Display) -> Self {
        debug_assert!(!field.ends_with(':'), "`{field}` is no field: the message goes on after the name");
        Self::new(Code::Invalid, format!("{field} {why}"))
    }

    /// The thing does not exist or belongs to another project; the two look the same.
    pub fn nothing(kind: &str, id: impl fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("there is no {kind} {id}"))
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

    /// The server failed. The cause belongs in its log, not in the answer.
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
