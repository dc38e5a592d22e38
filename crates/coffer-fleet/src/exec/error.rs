//! Why a command did not run.

use coffer_core::command::RefusedCommand;
use coffer_core::{Code, Refusal, chain};
use coffer_guest::{GuestError, Reason};
use coffer_store::StoreError;

/// Why a command did not run, or a sandbox was not reached.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("sandbox not found")]
    NotFound,
    #[error("the sandbox is paused")]
    Paused,
    #[error("the sandbox is being paused or resumed")]
    Transitioning,
    #[error("the host has no room to resume the sandbox now")]
    NoRoom,
    #[error("the command was not started: {}", .0.why)]
    Refused(RefusedCommand),
    /// The user, directory or program of the command does not exist.
    #[error("{0}")]
    BadCommand(String),
    #[error(transparent)]
    Guest(#[from] GuestError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("internal error")]
    Broken,
}

impl ExecError {
    /// Whether the same command may work soon without any change.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Paused | Self::Transitioning | Self::NoRoom | Self::Broken => true,
            Self::Guest(GuestError::Refused { reason, .. }) => {
                !matches!(reason, Reason::NotFound | Reason::Forbidden | Reason::Invalid)
            }
            Self::Guest(GuestError::Agent(_) | GuestError::Gone | GuestError::PortClosed(_)) => true,
            Self::Store(error) => error.is_transient(),
            Self::NotFound | Self::Refused(_) | Self::BadCommand(_) => false,
        }
    }

    /// The refusal of a request about the sandbox `id`.
    pub fn explain(&self, id: &str) -> Refusal {
        match self {
            Self::NotFound => Refusal::no_sandbox(id),
            Self::Paused => {
                Refusal::conflict(self.to_string()).hint("resume it first, or create it with auto_resume")
            }
            Self::Transitioning => Refusal::conflict(self.to_string()).retry_after(1),
            Self::NoRoom => Refusal::new(Code::Unavailable, self.to_string()).retry_after(5),
            Self::Refused(_) => Refusal::new(Code::CommandRefused, self.to_string())
                .hint("POST /api/v1/policy/check checks a command against the policy"),
            Self::BadCommand(message) => Refusal::new(Code::Invalid, message),
            Self::Guest(error) => explain_guest(error),
            Self::Store(error) => error.into(),
            Self::Broken => Refusal::internal(),
        }
    }
}

fn explain_guest(error: &GuestError) -> Refusal {
    match error {
        GuestError::Gone => Refusal::conflict(error.to_string()),
        GuestError::PortClosed(_) => Refusal::new(Code::Unavailable, error.to_string()),
        GuestError::Refused { reason, message } => match reason {
            Reason::NotFound => Refusal::new(Code::NotFound, message),
            Reason::Forbidden => Refusal::new(Code::Forbidden, message).hint("use a key with the role write"),
            Reason::Invalid => Refusal::new(Code::Invalid, message),
            Reason::AlreadyExists | Reason::Precondition => Refusal::conflict(message),
            Reason::Exhausted => Refusal::new(Code::Unavailable, message),
            Reason::TimedOut | Reason::Other => {
                tracing::warn!("agentd refused: {message}");
                Refusal::new(Code::Unavailable, "the sandbox failed to do this").hint(message)
            }
        },
        GuestError::Agent(error) => {
            tracing::warn!("agentd failed: {}", chain(error));
            Refusal::new(Code::Unavailable, "the sandbox does not answer").retry_after(1)
        }
    }
}
