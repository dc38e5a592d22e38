//! Connects to the agentd of a sandbox.

use std::sync::Arc;

use coffer_core::SandboxState;
use coffer_guest::{Guest, Route, Wake};

use super::ExecError;
use crate::fleet::{Fleet, Record};

/// The agentd of a sandbox, which is resumed first if `wake` and its settings say so.
pub async fn reach(fleet: &Arc<Fleet>, record: &Record, wake: Wake) -> Result<Guest, ExecError> {
    match fleet.route(&record.id.to_string(), wake).await {
        Route::Running(target) => {
            let token = record.live().row.access_token.as_ref().map(|token| token.reveal().to_string());
            Ok(Guest::new(target, token))
        }
        Route::NotFound => match record.live().row.state {
            SandboxState::Paused { .. } => Err(ExecError::Paused),
            _ => Err(ExecError::NotFound),
        },
        Route::Transitioning => Err(ExecError::Transitioning),
        Route::Busy => Err(ExecError::NoRoom),
    }
}
