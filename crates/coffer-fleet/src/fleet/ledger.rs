//! Writes state changes of sandboxes to the store.

use coffer_core::{Cause, DestroyReason, Kept};
use coffer_store::{Changes, PlacedTemplate, Placement};

use super::end::describe;
use super::record::Claim;
use super::{Fleet, FleetError};

impl Fleet {
    /// Moves a claimed sandbox to the state after `cause`, in the store and then in memory.
    pub(super) async fn advance(
        &self,
        claim: &Claim,
        cause: Cause,
        changes: Changes,
    ) -> Result<(), FleetError> {
        let reason = reason(&cause);
        self.advance_for(claim, cause, changes, &reason).await
    }

    /// The same, with a custom reason in the sandbox's history.
    pub(super) async fn advance_for(
        &self,
        claim: &Claim,
        cause: Cause,
        changes: Changes,
        reason: &str,
    ) -> Result<(), FleetError> {
        let before = claim.record.live().row.state.clone();
        let after = before.clone().after(cause)?;
        let changes = Changes { last_used_ms: Some(claim.record.last_used_ms()), ..changes };
        let row = self
            .store
            .transition(&self.store.operator(), claim.record.id, before.name(), after, reason, changes)
            .await?;
        self.account(&row);
        claim.record.live().adopt(row);
        Ok(())
    }
}

/// The reason of a change in a sandbox's history.
pub(super) fn reason(cause: &Cause) -> String {
    let reason = match cause {
        Cause::Ready => "ready",
        Cause::Froze(Kept::MemoryAndFiles) => "paused with its memory",
        Cause::Froze(Kept::FilesOnly) => "paused with its files only",
        Cause::Thawed => "resumed",
        Cause::Destroyed(DestroyReason::Requested) => "destroyed on request",
        Cause::Destroyed(DestroyReason::Timeout) => "destroyed at its timeout",
        Cause::Destroyed(DestroyReason::Idle) => "destroyed because nothing used it",
        Cause::Destroyed(DestroyReason::MaximumLifetime) => "destroyed at the longest lifetime allowed",
        Cause::Destroyed(DestroyReason::LeaseExpired) => "destroyed: lease expired",
        Cause::Destroyed(DestroyReason::Shutdown) => "destroyed with the server",
        Cause::Destroyed(DestroyReason::Budget) => "destroyed because its budget is spent",
        Cause::Failed(fault) => return describe(fault),
    };
    reason.to_string()
}

/// A placement as stored.
pub(super) fn stored(placement: coffer_engine::Placement) -> Placement {
    let template = placement.template;
    Placement {
        socket: placement.socket,
        template: PlacedTemplate {
            name: template.name,
            build: template.build,
            default_user: template.default_user,
            default_workdir: template.default_workdir,
            env: template.env,
            start: template.start,
        },
    }
}
