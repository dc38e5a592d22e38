//! Command policies of projects, and idempotency keys of executions.

use std::collections::HashMap;

use coffer_core::command::CommandPolicy;
use coffer_core::event::{Event, PolicyChanged};
use coffer_core::{ExecutionId, Millis, ProjectId, SandboxId};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::columns::id;
use crate::error::Doing;
use crate::projects::lock_project;
use crate::{Idempotency, Operator, ProjectScope, Store, StoreError, events, now_ms};

const READ: &str = "read command policies";
const TAKE: &str = "take an idempotency key";
/// How long an idempotency key refers to its execution, as with sandboxes.
const KEY_LIFE_MS: Millis = 24 * 3_600_000;

/// A project's policy with its version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionedPolicy {
    pub policy: CommandPolicy,
    /// 0 if none was set.
    pub version: i64,
}

/// The result of taking an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenKey {
    /// The caller has it now.
    New,
    /// The same request started this execution.
    Earlier(ExecutionId),
    /// Another request used it.
    UsedDifferently,
}

impl Store {
    /// The policy of the scope's project.
    pub async fn command_policy(&self, scope: &ProjectScope) -> Result<VersionedPolicy, StoreError> {
        let row = sqlx::query("SELECT policy, version FROM command_policies WHERE project_id = $1")
            .bind(scope.project())
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.as_ref().map_or(Ok(VersionedPolicy::default()), read)
    }

    /// All policies.
    pub async fn command_policies(
        &self,
        _: &Operator,
    ) -> Result<HashMap<ProjectId, VersionedPolicy>, StoreError> {
        let rows = sqlx::query("SELECT project_id, policy, version FROM command_policies")
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(|row| Ok((id(row, "project_id")?, read(row)?))).collect()
    }

    /// A number that grows with every change of any policy.
    pub async fn command_policies_version(&self, _: &Operator) -> Result<i64, StoreError> {
        // Versions only grow and rows stay, so no two states have the same sum.
        let row =
            sqlx::query("SELECT CAST(COALESCE(SUM(version), 0) AS BIGINT) AS total FROM command_policies")
                .fetch_one(self.database().readers())
                .await
                .doing(READ)?;
        row.try_get("total").doing(READ)
    }

    /// Replaces the policy of the scope's project if its version matches; `None` if not.
    pub async fn set_command_policy(
        &self,
        scope: &ProjectScope,
        version: Option<i64>,
        policy: CommandPolicy,
    ) -> Result<Option<VersionedPolicy>, StoreError> {
        const DOING: &str = "set a command policy";
        let project = scope.project();
        let set = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                // Locks the project's row, so that two first policies do not race.
                lock_project(connection, project, DOING).await?;
                let before = sqlx::query("SELECT version FROM command_policies WHERE project_id = $1")
                    .bind(project)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(DOING)?;
                let before: i64 = before.map_or(Ok(0), |row| row.try_get("version").doing(DOING))?;
                if version.is_some_and(|version| version != before) {
                    return Ok(None);
                }
                let set = VersionedPolicy { policy, version: before + 1 };
                let text = serde_json::to_string(&set.policy).expect("plain data");
                let now = now_ms();
                sqlx::query(
                    "INSERT INTO command_policies (project_id, policy, version, changed_ms)
                     VALUES ($1, $2, $3, $4)
                     ON CONFLICT (project_id) DO UPDATE SET policy = excluded.policy,
                         version = excluded.version, changed_ms = excluded.changed_ms",
                )
                .bind(project)
                .bind(text)
                .bind(set.version)
                .bind(now)
                .execute(&mut *connection)
                .await
                .doing(DOING)?;
                let event = Event::PolicyChanged(PolicyChanged {
                    version: set.version,
                    rules: set.policy.rules.len(),
                    default: set.policy.default,
                });
                events::record(connection, project, project, event, now).await?;
                Ok(Some(set))
            })
        });
        set.await
    }

    /// Takes an idempotency key for `execution`, or returns its earlier use.
    pub async fn take_execution_key(
        &self,
        scope: &ProjectScope,
        sandbox: SandboxId,
        idempotency: Idempotency<'_>,
        execution: ExecutionId,
    ) -> Result<TakenKey, StoreError> {
        let project = scope.project();
        let (key, fingerprint) = (idempotency.key.to_string(), idempotency.fingerprint.to_string());
        let take = self.database().write(TAKE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                // On PostgreSQL this waits for another transaction that is taking the same key.
                let taken = sqlx::query(
                    "INSERT INTO execution_keys
                         (project_id, key, fingerprint, sandbox_id, execution_id, expires_ms)
                     VALUES ($1, $2, $3, $4, $5, $6)
                     ON CONFLICT (project_id, key) DO UPDATE SET
                         fingerprint = excluded.fingerprint, sandbox_id = excluded.sandbox_id,
                         execution_id = excluded.execution_id, expires_ms = excluded.expires_ms
                     WHERE execution_keys.expires_ms <= $7",
                )
                .bind(project)
                .bind(key.clone())
                .bind(fingerprint.clone())
                .bind(sandbox)
                .bind(execution)
                .bind(now + KEY_LIFE_MS)
                .bind(now)
                .execute(&mut *connection)
                .await
                .doing(TAKE)?;
                if taken.rows_affected() > 0 {
                    return Ok(TakenKey::New);
                }
                let owner = sqlx::query(
                    "SELECT fingerprint, sandbox_id, execution_id FROM execution_keys
                     WHERE project_id = $1 AND key = $2",
                )
                .bind(project)
                .bind(key)
                .fetch_one(connection)
                .await
                .doing(TAKE)?;
                let same = owner.try_get::<String, _>("fingerprint").doing(TAKE)? == fingerprint
                    && owner.try_get::<String, _>("sandbox_id").doing(TAKE)? == sandbox.to_string();
                Ok(if same {
                    TakenKey::Earlier(id(&owner, "execution_id")?)
                } else {
                    TakenKey::UsedDifferently
                })
            })
        });
        take.await
    }

    /// The execution of a key, if there is one.
    pub async fn keyed_execution(
        &self,
        scope: &ProjectScope,
        key: &str,
    ) -> Result<Option<ExecutionId>, StoreError> {
        let row = sqlx::query(
            "SELECT execution_id FROM execution_keys WHERE project_id = $1 AND key = $2 AND expires_ms > $3",
        )
        .bind(scope.project())
        .bind(key)
        .bind(now_ms())
        .fetch_optional(self.database().readers())
        .await
        .doing(TAKE)?;
        row.map(|row| id(&row, "execution_id")).transpose()
    }

    /// Releases a key whose execution did not start, so that a retry can start it.
    pub async fn release_execution_key(
        &self,
        scope: &ProjectScope,
        key: &str,
        execution: ExecutionId,
    ) -> Result<(), StoreError> {
        const DOING: &str = "release an idempotency key";
        let (project, key) = (scope.project(), key.to_string());
        let release = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "DELETE FROM execution_keys WHERE project_id = $1 AND key = $2 AND execution_id = $3",
                )
                .bind(project)
                .bind(key)
                .bind(execution)
                .execute(connection)
                .await
                .doing(DOING)
                .map(drop)
            })
        });
        release.await
    }
}

fn read(row: &AnyRow) -> Result<VersionedPolicy, StoreError> {
    let text: String = row.try_get("policy").doing(READ)?;
    let unreadable =
        |error: serde_json::Error| StoreError::Unreadable { what: "command policy", why: error.to_string() };
    Ok(VersionedPolicy {
        policy: serde_json::from_str(&text).map_err(unreadable)?,
        version: row.try_get("version").doing(READ)?,
    })
}
