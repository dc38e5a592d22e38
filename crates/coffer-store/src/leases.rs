//! Leases, and the installations that hold sandboxes.

use coffer_core::{Millis, SandboxId};

use crate::database::Durability;
use crate::error::Doing;
use crate::{ChangeError, Operator, SandboxRow, Store, StoreError};

const RENEW: &str = "renew a lease";
const ADOPT: &str = "take sandboxes over";

impl Store {
    /// Records that the lease of a running sandbox lasts until `until_ms`.
    pub async fn renew_lease(
        &self,
        _: &Operator,
        sandbox: SandboxId,
        until_ms: Millis,
    ) -> Result<(), ChangeError> {
        // After a crash every lease restarts, so this need not survive one.
        let renew = self.database().write_to(Durability::Cached, RENEW, move |connection| {
            Box::pin(async move {
                let renewed = sqlx::query(
                    "UPDATE sandboxes SET lease_until_ms = $1
                     WHERE id = $2 AND state = 'running' AND lease_s IS NOT NULL",
                )
                .bind(until_ms)
                .bind(sandbox)
                .execute(connection)
                .await
                .doing(RENEW)?;
                if renewed.rows_affected() == 0 { Err(ChangeError::NotFound) } else { Ok(()) }
            })
        });
        renew.await
    }

    /// Sets the installation that this handle acts for: new sandboxes belong to it, and only its own are live
    /// for this handle. Live sandboxes without one, from older versions, are assigned to it.
    pub async fn act_for(&self, _: &Operator, installation: &str) -> Result<(), StoreError> {
        let name = installation.to_string();
        let adopt = self.database().write(ADOPT, move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE sandboxes SET installation = $1
                     WHERE installation IS NULL AND state IN ('creating', 'running', 'paused')",
                )
                .bind(name)
                .execute(connection)
                .await
                .doing(ADOPT)
                .map(drop)
            })
        });
        let adopted: Result<(), StoreError> = adopt.await;
        adopted?;
        self.inner.here.write().installation = Some(installation.to_string());
        Ok(())
    }

    /// The installation that holds a live sandbox, if it is not this one.
    pub fn holder_elsewhere<'a>(&self, row: &'a SandboxRow) -> Option<&'a str> {
        let (own, holder) = (self.installation()?, row.installation.as_deref()?);
        (row.state.is_live() && holder != own).then_some(holder)
    }

    /// The installation that this handle acts for.
    pub fn installation(&self) -> Option<String> {
        self.inner.here.read().installation.clone()
    }
}
