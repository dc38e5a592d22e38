//! Turns an engine's errors into refusals. Details that callers must not see are logged here.

use coffer_core::{Code, Refusal};

use crate::EngineError;

impl EngineError {
    /// Whether the same call may work soon without any change.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::WrongState(_)
            | Self::NoCapacity(_)
            | Self::Unavailable(_)
            | Self::Resting { .. }
            | Self::Failed(_) => true,
            Self::UnknownSandbox
            | Self::UnknownSnapshot
            | Self::UnknownVolume
            | Self::UnknownTemplate(_)
            | Self::Unsupported(_) => false,
        }
    }

    /// The refusal of a request about the sandbox `id`.
    pub fn explain(&self, id: &str) -> Refusal {
        let away = "the host of the sandboxes does not answer right now";
        match self {
            Self::UnknownSandbox => Refusal::no_sandbox(id),
            Self::UnknownSnapshot => {
                Refusal::new(Code::NotFound, "the host of the sandboxes does not have this snapshot")
            }
            Self::UnknownVolume => {
                Refusal::new(Code::NotFound, "the volume is not on the host of the sandboxes")
            }
            Self::UnknownTemplate(name) => {
                Refusal::new(Code::NotFound, format!("template '{name}' not found"))
            }
            Self::WrongState(why) => Refusal::conflict(why),
            Self::Unsupported(what) => Refusal::new(Code::NotSupported, format!("not supported: {what}")),
            Self::NoCapacity(why) => {
                tracing::warn!("no room on the host: {why}");
                let fix = "end sandboxes, delete snapshots or give it a larger pool";
                let message = format!("this host has no room for this right now ({why}); {fix}");
                Refusal::new(Code::Unavailable, message).retry_after(5)
            }
            Self::Unavailable(why) => {
                tracing::warn!("the engine is unreachable: {why}");
                Refusal::new(Code::Unavailable, away).retry_after(1)
            }
            Self::Resting { retry_after_s } => {
                Refusal::new(Code::Unavailable, away).retry_after(*retry_after_s)
            }
            Self::Failed(why) => {
                tracing::error!("the engine failed: {why}");
                Refusal::new(Code::HostFailed, "the host of the sandboxes failed to do this")
                    .hint("operators: GET /api/v1/admin/host has the reason, under the id of this request")
            }
        }
    }
}
