//! A sandbox that rests while a person decides: its files stay, and it uses nothing else.

use std::time::{Duration, Instant};

use coffer_core::{Kept, StateName, StepCode};
use coffer_flow::StepError;

use super::sandbox::{ROOM_PAUSE, ROOM_WITHIN};
use super::{Station, Workbench};
use coffer_fleet::{Boot, FleetError, IfSilent};

/// How long to try to pause a sandbox while the host may be restarting.
const REST_WITHIN: Duration = Duration::from_secs(60);

impl Workbench {
    /// Pauses a sandbox with its files alone, unless it is paused.
    pub(super) async fn rest(&self, at: &Station) -> Result<(), StepError> {
        let since = Instant::now();
        loop {
            let record = self.record(at).await?;
            if record.row().state.name() == StateName::Paused {
                return Ok(());
            }
            let error = match self.fleet.pause(record, Kept::FilesOnly, IfSilent::Pause).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            // The host may be restarting, and what cannot rest would be lost.
            if !error.is_transient() || since.elapsed() > REST_WITHIN {
                return Err(self.trouble_at(at, error));
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        }
    }

    /// Resumes a sandbox that rests, or keeps one that does not; waits for room.
    pub(super) async fn awake(&self, at: &Station) -> Result<(), StepError> {
        let since = Instant::now();
        loop {
            let record = self.record(at).await?;
            if record.row().state.name() != StateName::Paused {
                return self.keep(at).await;
            }
            let error = match self.fleet.resume(record, self.ahead_ms(), Boot::Cold, None).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let is_full = matches!(error, FleetError::OverQuota(_) | FleetError::Exhausted(_));
            if !is_full && !error.is_transient() {
                return Err(self.trouble_at(at, error));
            }
            if since.elapsed() > ROOM_WITHIN {
                let told = self.trouble_at(at, error);
                return Err(StepError { code: StepCode::NoRoom.into(), ..told });
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        }
    }
}
