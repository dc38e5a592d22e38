//! Why code did not run, or was not followed to its end.

use coffer_core::{Code as RefusalCode, Refusal};
use coffer_guest::interpreter::InterpreterError;
use coffer_guest::{GuestError, Reason};
use coffer_shares::Full;

use super::Language;
use crate::exec::ExecError;

/// Why code did not run, or its end is unknown.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error("the sandbox has no code interpreter")]
    Missing,
    #[error("context {0} not found")]
    NoContext(String),
    /// The interpreter refused it.
    #[error("{message}")]
    Refused { reason: Reason, message: String },
    #[error(transparent)]
    Busy(#[from] Full),
}

impl From<GuestError> for CodeError {
    fn from(error: GuestError) -> Self {
        Self::Exec(error.into())
    }
}

impl From<InterpreterError> for CodeError {
    fn from(error: InterpreterError) -> Self {
        match error {
            InterpreterError::Missing => Self::Missing,
            InterpreterError::Guest(error) => error.into(),
            InterpreterError::Refused { reason, message } => Self::Refused { reason, message },
        }
    }
}

impl CodeError {
    /// Whether the same code may run soon without any change.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Exec(error) => error.is_transient(),
            Self::Busy(_) => true,
            Self::Missing | Self::NoContext(_) => false,
            Self::Refused { reason, .. } => matches!(reason, Reason::Other | Reason::Exhausted),
        }
    }

    /// The refusal of a request about the sandbox `id`.
    pub fn explain(self, id: &str) -> Refusal {
        match self {
            Self::Exec(ExecError::Refused(refused)) => {
                let what = refused.words.first().cloned().unwrap_or_default();
                Refusal::new(RefusalCode::CommandRefused, format!("the code was not run: {}", refused.why)).hint(
                    format!("a project with a command policy runs code only if a rule allows `{what}`; PUT /api/v1/policy"),
                )
            }
            Self::Exec(error) => error.explain(id),
            Self::Missing => Refusal::new(RefusalCode::CodeInterpreterMissing, self.to_string()).hint(
                "create the sandbox from the template code-interpreter-v1; `coffer template build code-interpreter-v1` \
                 builds it, if it is not built",
            ),
            Self::NoContext(context) => Refusal::nothing("context", context),
            Self::Refused { reason, message } => match reason {
                Reason::NotFound => Refusal::new(RefusalCode::NotFound, message),
                Reason::Invalid => Refusal::new(RefusalCode::Invalid, message),
                Reason::Precondition | Reason::AlreadyExists => {
                    Refusal::conflict(message).hint("DELETE /api/v1/sandboxes/{id}/code/contexts/{context} removes one")
                }
                // What the interpreter says about a language that its template lacks.
                _ if message.contains("is not installed") => {
                    Refusal::new(RefusalCode::Invalid, message)
                        .hint(format!("the template code-interpreter-v1 has {}", Language::names()))
                }
                _ => {
                    tracing::warn!("a code interpreter failed: {message}");
                    Refusal::new(RefusalCode::Unavailable, "the code interpreter of the sandbox failed").hint(message)
                }
            },
            Self::Busy(full) => full.into(),
        }
    }
}
