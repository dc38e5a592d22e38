//! Projects' rules for models.

use coffer_core::model::ModelPolicy;
use sqlx::Row;

use crate::columns::{from_json, json, text};
use crate::error::Doing;
use crate::projects::lock_project;
use crate::{ProjectScope, Store, StoreError, now_ms};

const READ: &str = "read rules for models";
const CHANGE: &str = "set rules for models";

/// A project's rules with their version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionedModelPolicy {
    pub policy: ModelPolicy,
    /// 0 if none were set.
    pub version: i64,
}

impl Store {
    /// The project's rules for models.
    pub async fn model_policy(&self, scope: &ProjectScope) -> Result<VersionedModelPolicy, StoreError> {
        let row = sqlx::query("SELECT policy, version FROM model_policies WHERE project_id = $1")
            .bind(scope.project())
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        let Some(row) = row else { return Ok(VersionedModelPolicy::default()) };
        let policy = from_json(&text(&row, "policy")?, "policy")?;
        Ok(VersionedModelPolicy { policy, version: row.try_get("version").doing(READ)? })
    }

    /// Replaces the project's rules if their version matches; `None` if not.
    pub async fn set_model_policy(
        &self,
        scope: &ProjectScope,
        version: Option<i64>,
        policy: ModelPolicy,
    ) -> Result<Option<VersionedModelPolicy>, StoreError> {
        let project = scope.project();
        let set = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                // So that two first rules do not race.
                lock_project(connection, project, CHANGE).await?;
                let before = sqlx::query("SELECT version FROM model_policies WHERE project_id = $1")
                    .bind(project)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let before: i64 = before.map_or(Ok(0), |row| row.try_get("version").doing(CHANGE))?;
                if version.is_some_and(|version| version != before) {
                    return Ok(None);
                }
                sqlx::query(
                    "INSERT INTO model_policies (project_id, policy, version, changed_ms)
                     VALUES ($1, $2, $3, $4)
                     ON CONFLICT (project_id) DO UPDATE SET policy = excluded.policy,
                         version = excluded.version, changed_ms = excluded.changed_ms",
                )
                .bind(project)
                .bind(json(&policy))
                .bind(before + 1)
                .bind(now_ms())
                .execute(connection)
                .await
                .doing(CHANGE)?;
                Ok(Some(VersionedModelPolicy { policy, version: before + 1 }))
            })
        });
        set.await
    }
}
