//! Records new sandboxes.

use coffer_core::{Millis, SandboxState};
use sha2::{Digest, Sha256};
use sqlx::{AnyConnection, Row};

use super::READ;
use super::change::{Step, record_step};
use crate::columns::{self, bigint, json, purpose, sandbox_columns, sandbox_row, storable};
use crate::error::Doing;
use crate::vault::Vault;
use crate::{
    Asking, ChangeError, Idempotency, Inserted, NewSandbox, Origin, ProjectScope, Quotas, Secret, Store,
    StoreError, git, now_ms, quotas, volumes,
};

/// How long an idempotency key refers to its sandbox.
const KEY_LIFE_MS: Millis = 24 * 3_600_000;

const RECORD: &str = "record a sandbox";

impl Store {
    /// Records a sandbox as `creating`, unless its idempotency key was used before.
    ///
    /// Of concurrent equal requests one creates the sandbox and the others get it. A failed create releases
    /// its key, so that a retry tries again.
    pub async fn insert_sandbox(
        &self,
        scope: &ProjectScope,
        sandbox: NewSandbox,
        idempotency: Option<Idempotency<'_>>,
    ) -> Result<Inserted, StoreError> {
        let scope = *scope;
        self.vault().ready(self.database(), scope.project()).await?;
        let vault = self.vault().clone();
        let (installation, defaults) = (self.installation(), self.default_quotas());
        let taken = idempotency.map(|given| (given.key.to_string(), given.fingerprint.to_string()));
        let insert = self.database().write(RECORD, move |connection| {
            Box::pin(async move {
                if let Some((key, fingerprint)) = taken
                    && let Some(earlier) =
                        take_key(connection, &scope, &sandbox, key, fingerprint, &vault).await?
                {
                    return Ok(earlier);
                }
                let (limits, origin) = (sandbox.limits, sandbox.origin);
                let (new, mounts) = (sandbox.id, sandbox.volumes.clone());
                let own = insert_rows(connection, &scope, sandbox, installation, &vault).await?;
                if !volumes::mount(connection, scope.project(), new, &mounts).await? {
                    return Err(ChangeError::NotFound);
                }
                let (project, quotas) = (scope.project(), own.or(defaults));
                let mut over = quotas::check(connection, project, quotas, &limits, Asking::ToBegin).await?;
                if let Some(Origin { fork_position: Some(_), .. }) = origin {
                    over = over.or(quotas::check_forks(connection, quotas, project).await?);
                }
                over.map_or(Ok(Inserted::New), |over| Err(ChangeError::OverQuota(over)))
            })
        });
        match insert.await {
            // Return an error, so that the transaction is rolled back.
            Err(ChangeError::OverQuota(over)) => Ok(Inserted::OverQuota(over)),
            Err(ChangeError::Store(error)) => Err(error),
            Err(ChangeError::NotFound) => Ok(Inserted::VolumeGone),
            Err(ChangeError::Raced { .. }) => unreachable!("a new row cannot"),
            Ok(inserted) => Ok(inserted),
        }
    }

    /// The earlier use of an idempotency key: [`Inserted::New`] if it was not used.
    pub async fn earlier_sandbox(
        &self,
        scope: &ProjectScope,
        idempotency: Idempotency<'_>,
    ) -> Result<Inserted, StoreError> {
        let owner = sqlx::query(
            "SELECT fingerprint, sandbox_id FROM idempotency_keys
             WHERE project_id = $1 AND key = $2 AND expires_ms > $3",
        )
        .bind(scope.project())
        .bind(idempotency.key)
        .bind(now_ms())
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        let Some(owner) = owner else { return Ok(Inserted::New) };
        if owner.try_get::<String, _>("fingerprint").doing(READ)? != idempotency.fingerprint {
            return Ok(Inserted::KeyReusedDifferently);
        }
        let first = self.sandbox(scope, columns::id(&owner, "sandbox_id")?).await?;
        Ok(first.map_or(Inserted::New, |first| Inserted::Existing(Box::new(first))))
    }

    /// Drops idempotency keys that have expired.
    pub(crate) async fn forget_idempotency_keys(&self, now_ms: Millis) -> Result<(), StoreError> {
        const DOING: &str = "drop expired idempotency keys";
        let forget = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                for table in [
                    "DELETE FROM idempotency_keys WHERE expires_ms <= $1",
                    "DELETE FROM execution_keys WHERE expires_ms <= $1",
                ] {
                    sqlx::query(table).bind(now_ms).execute(&mut *connection).await.doing(DOING)?;
                }
                Ok(())
            })
        });
        forget.await
    }
}

/// Takes the key for `sandbox`, or returns its earlier use.
async fn take_key(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    sandbox: &NewSandbox,
    key: String,
    fingerprint: String,
    vault: &Vault,
) -> Result<Option<Inserted>, StoreError> {
    let (project, now_ms) = (scope.project(), now_ms());
    // On PostgreSQL this waits for another transaction that is taking the same key.
    let taken = sqlx::query(
        "INSERT INTO idempotency_keys (project_id, key, fingerprint, sandbox_id, expires_ms)
         VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (project_id, key) DO UPDATE SET
             fingerprint = excluded.fingerprint,
             sandbox_id = excluded.sandbox_id,
             expires_ms = excluded.expires_ms
         WHERE idempotency_keys.expires_ms <= $6",
    )
    .bind(project)
    .bind(key.clone())
    .bind(fingerprint.clone())
    .bind(sandbox.id)
    .bind(now_ms + KEY_LIFE_MS)
    .bind(now_ms)
    .execute(&mut *connection)
    .await
    .doing(RECORD)?;
    if taken.rows_affected() > 0 {
        return Ok(None);
    }
    let owner = sqlx::query(
        "SELECT fingerprint, sandbox_id FROM idempotency_keys WHERE project_id = $1 AND key = $2",
    )
    .bind(project)
    .bind(key)
    .fetch_one(&mut *connection)
    .await
    .doing(RECORD)?;
    if owner.try_get::<String, _>("fingerprint").doing(RECORD)? != fingerprint {
        return Ok(Some(Inserted::KeyReusedDifferently));
    }
    let existing = sqlx::query(concat!("SELECT ", sandbox_columns!(), " FROM sandboxes WHERE id = $1"))
        .bind(owner.try_get::<String, _>("sandbox_id").doing(RECORD)?)
        .fetch_one(connection)
        .await
        .doing(READ)?;
    Ok(Some(Inserted::Existing(Box::new(sandbox_row(&existing, vault)?))))
}

async fn insert_rows(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    new: NewSandbox,
    installation: Option<String>,
    vault: &Vault,
) -> Result<Quotas, StoreError> {
    let (id, project, state) = (new.id, scope.project(), SandboxState::Creating);
    let seal = |column: &str, text: &str| vault.seal(project, &purpose(id, column), text);
    let token = |column: &str, token: &Option<Secret>| {
        token.as_ref().map(|token| seal(column, token.reveal())).transpose()
    };
    sqlx::query(
        "INSERT INTO sandboxes (
             id, project_id, state, state_data, transitions, template, template_id, alias, metadata,
             env_vars_secret, cpu_count, memory_mib, disk_mib, max_processes, created_ms, started_ms,
             deadline_ms, timeout_s, on_timeout, auto_resume, secure, access_token_secret,
             traffic_token_secret, network_secret, allow_internet_access, envd_version, agent_id,
             idle_s, max_lifetime_s, lease_s, installation, secret_names, parent_id, snapshot_id, fork_position,
             purpose, task_id, volume_mounts
         ) VALUES (
             $1, $2, $3, $4, 1, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
             $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35,
             (SELECT t.id FROM tasks AS t WHERE t.id = $36 AND t.project_id = $2),
             $37
         )",
    )
    .bind(id)
    .bind(project)
    .bind(state.name().as_str())
    .bind(json(&state))
    .bind(storable(&new.template))
    .bind(storable(&new.template_id))
    .bind(new.alias.as_deref().map(storable))
    .bind(json(&new.metadata))
    .bind(seal("env_vars_secret", &json(&new.env_vars))?)
    .bind(i64::from(new.limits.cpu_count))
    .bind(bigint(new.limits.memory_mib))
    .bind(bigint(new.limits.disk_mib))
    .bind(i64::from(new.limits.max_processes))
    .bind(new.created_ms)
    .bind(new.lifetime.started_ms)
    .bind(new.lifetime.deadline_ms)
    .bind(new.timeout_s)
    .bind(new.lifetime.on_timeout.as_str())
    .bind(i64::from(new.auto_resume))
    .bind(i64::from(new.secure))
    .bind(token("access_token_secret", &new.access_token)?)
    .bind(token("traffic_token_secret", &new.traffic_token)?)
    .bind(seal("network_secret", &json(&new.network))?)
    .bind(new.allow_internet_access.map(i64::from))
    .bind(storable(&new.envd_version))
    .bind(new.agent)
    .bind(new.bounds.idle_s)
    .bind(new.bounds.max_lifetime_s)
    .bind(new.bounds.lease_s)
    .bind(installation)
    .bind((!new.secrets.is_empty()).then(|| json(&new.secrets)))
    .bind(new.origin.map(|origin| origin.parent))
    .bind(new.origin.map(|origin| origin.snapshot))
    .bind(new.origin.and_then(|origin| origin.fork_position))
    .bind(new.purpose.as_str())
    // Without the task if that was deleted meanwhile, and never another project's.
    .bind(new.task)
    .bind((!new.volumes.is_empty()).then(|| json(&new.volumes)))
    .execute(&mut *connection)
    .await
    .doing(RECORD)?;
    for (key, value) in &new.metadata {
        sqlx::query("INSERT INTO sandbox_metadata (project_id, pair, sandbox_id) VALUES ($1, $2, $3)")
            .bind(project)
            .bind(pair_digest(key, value))
            .bind(id)
            .execute(&mut *connection)
            .await
            .doing(RECORD)?;
    }
    if let Some(origin) = new.origin {
        git::inherit_remotes(connection, id, origin).await?;
    }
    let step = Step { position: 1, from: None, to: &state, reason: "requested", at_ms: now_ms() };
    record_step(connection, project, id, step).await
}

/// The digest of a metadata pair in `sandbox_metadata`.
pub(super) fn pair_digest(key: &str, value: &str) -> String {
    let mut digest = Sha256::new();
    // The length distinguishes `a`=`bc` from `ab`=`c`.
    digest.update(u64::try_from(key.len()).unwrap_or(u64::MAX).to_be_bytes());
    digest.update(key);
    digest.update(value);
    hex::encode(digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::pair_digest;

    #[test]
    fn pairs_are_told_apart_by_where_the_value_begins() {
        assert_ne!(pair_digest("a", "bc"), pair_digest("ab", "c"));
        assert_eq!(pair_digest("a", "bc"), pair_digest("a", "bc"));
    }
}
