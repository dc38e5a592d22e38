//! Leases of logins that are files: one run at a time has one.

use coffer_core::{Millis, RunId};

use crate::error::Doing;
use crate::{ProjectScope, Store, StoreError, now_ms};

const CHANGE: &str = "change the lease of a login";

impl Store {
    /// Takes the login of a secret for a run, until the run ends or releases it; with `keeps_ms`, for something that is no
    /// run, until then. False if another has it. Taking it again is no change.
    pub async fn take_login(
        &self,
        scope: &ProjectScope,
        secret: &str,
        run: RunId,
        keeps_ms: Option<Millis>,
    ) -> Result<bool, StoreError> {
        let (project, secret) = (scope.project(), secret.to_string());
        let take = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                // A run that ended without a word, and a time that is over.
                sqlx::query(
                    "DELETE FROM login_leases WHERE project_id = $1 AND secret = $2 AND until_ms <= $3
                         AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = login_leases.holder AND runs.ended_ms IS NULL)",
                )
                .bind(project)
                .bind(secret.clone())
                .bind(now)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                sqlx::query(
                    "INSERT INTO login_leases (project_id, secret, holder, until_ms) VALUES ($1, $2, $3, $4)
                     ON CONFLICT DO NOTHING",
                )
                .bind(project)
                .bind(secret.clone())
                .bind(run.to_string())
                .bind(now + keeps_ms.unwrap_or(0))
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                let own = sqlx::query("SELECT 1 FROM login_leases WHERE project_id = $1 AND secret = $2 AND holder = $3")
                    .bind(project)
                    .bind(secret)
                    .bind(run.to_string())
                    .fetch_optional(connection)
                    .await
                    .doing(CHANGE)?;
                Ok(own.is_some())
            })
        });
        take.await
    }

    /// Releases all logins of a run.
    pub async fn release_logins(&self, scope: &ProjectScope, run: RunId) -> Result<(), StoreError> {
        let project = scope.project();
        let release = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                sqlx::query("DELETE FROM login_leases WHERE project_id = $1 AND holder = $2")
                    .bind(project)
                    .bind(run.to_string())
                    .execute(connection)
                    .await
                    .doing(CHANGE)
                    .map(drop)
            })
        });
        release.await
    }
}
