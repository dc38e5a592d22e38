//! Leases, and which installation a sandbox is held by.

use coffer_core::{Millis, SandboxId};

use crate::database::Durability;
use crate::error::Doing;
use crate::{ChangeError, Operator, SandboxRow, Store, StoreError};

const RENEW: &str = "renew a lease";
const ADOPT: &str = "take sandboxes over";

impl Store {
    /// Writes down that the owner of a running sandbox is there until `until_ms`.
    pub async fn renew_lease(
        &self,
        _: &Operator,
        sandbox: SandboxId,
        until_ms: Millis,
    ) -> Result<(), ChangeError> {
        // After a crash every lease begins anew, so this need not outlive one.
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

    /// From now on this handle acts for one installation: sandboxes that it records are held there, and
    /// only those are live for it. Live ones that nobody holds, from before there were installations,
    /// become its own.
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

    /// The installation that holds a live sandbox, where that is another than this handle acts for.
    pub fn holder_elsewhere<'a>(&self, row: &'a SandboxRow) -> Option<&'a str> {
        let (own, holder) = (self.installation()?, row.installation.as_deref()?);
        (row.state.is_live() && holder != own).then_some(holder)
    }

    /// The installation that this handle acts for.
    pub fn installation(&self) -> Option<String> {
        self.inner.here.read().installation.clone()
    }
}
