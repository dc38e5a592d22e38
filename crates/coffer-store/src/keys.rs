//! Projects and their API keys.
//!
//! A key is `e2b_` and 40 hexadecimal digits, shown once. The database has its SHA-256 and its first
//! characters: the prefix finds the row, the digest is compared in constant time. A slow hash would
//! buy nothing, since nobody can search through 160 random bits.
//!
//! Requests do not wait for the database: a key that was good is believed for [`BELIEVED`], which is
//! also how long a revocation on another server may take to be heard here. When keys were last used is
//! noted in memory and written once a minute.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use coffer_core::{KeyId, Millis, ProjectId};
use sha2::{Digest, Sha256};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

use crate::columns::{id, storable};
use crate::error::Doing;
use crate::{Inner, Operator, Principal, ProjectScope, Scope, Store, StoreError, now_ms};

const BELIEVED: Duration = Duration::from_secs(2);
const MOST_BELIEVED: usize = 4096;
const HOUSEKEEPING: Duration = Duration::from_secs(60);

const MARK: &str = "e2b_";
const RANDOM_BYTES: usize = 20;
/// `e2b_` and eight digits; the other 128 bits stay secret.
const PREFIX_LENGTH: usize = MARK.len() + 8;

const DEFAULT_PROJECT: &str = "default";

/// An API key in full. It exists only where it was made: the database cannot give it back.
#[derive(Clone)]
pub struct ApiKeySecret {
    id: KeyId,
    text: String,
}

impl ApiKeySecret {
    fn generate() -> Self {
        let random: [u8; RANDOM_BYTES] = rand::random();
        Self { id: KeyId::generate(), text: format!("{MARK}{}", hex::encode(random)) }
    }

    /// The name of the key, not secret.
    pub const fn id(&self) -> KeyId {
        self.id
    }

    /// The key itself, to be shown once.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for ApiKeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKeySecret").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A key to be made.
#[derive(Debug, Clone, Default)]
pub struct NewKey {
    /// For people, to tell keys apart.
    pub name: String,
    /// Refused from this time on.
    pub expires_ms: Option<Millis>,
}

impl From<&str> for NewKey {
    fn from(name: &str) -> Self {
        Self { name: name.to_string(), expires_ms: None }
    }
}

/// What may be shown of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKeyInfo {
    pub id: KeyId,
    pub project: ProjectId,
    pub name: String,
    /// Its first characters, by which its owner knows it.
    pub prefix: String,
    pub created_ms: Millis,
    pub expires_ms: Option<Millis>,
    pub revoked_ms: Option<Millis>,
    pub last_used_ms: Option<Millis>,
}

impl Store {
    /// Makes a project; the name must be new.
    pub async fn create_project(&self, _: &Operator, name: &str) -> Result<ProjectId, StoreError> {
        const DOING: &str = "create a project";
        let (project, name) = (ProjectId::generate(), storable(name));
        let insert = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                sqlx::query("INSERT INTO projects (id, name, created_ms) VALUES ($1, $2, $3)")
                    .bind(project.to_string())
                    .bind(name)
                    .bind(now_ms())
                    .execute(connection)
                    .await
                    .doing(DOING)
            })
        });
        insert.await.map(|_| project)
    }

    /// The project that everything belongs to where nobody has made others; made at first use.
    pub async fn ensure_default_project(&self, _: &Operator) -> Result<ProjectId, StoreError> {
        const DOING: &str = "make the default project";
        let ensure = self.database().write(DOING, |connection| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO projects (id, name, created_ms) VALUES ($1, $2, $3)
                     ON CONFLICT (name) DO NOTHING",
                )
                .bind(ProjectId::generate().to_string())
                .bind(DEFAULT_PROJECT.to_string())
                .bind(now_ms())
                .execute(&mut *connection)
                .await
                .doing(DOING)?;
                let row = sqlx::query("SELECT id FROM projects WHERE name = $1")
                    .bind(DEFAULT_PROJECT.to_string())
                    .fetch_one(connection)
                    .await
                    .doing(DOING)?;
                id(&row, "id")
            })
        });
        ensure.await
    }

    /// Makes a key for `project`.
    pub async fn create_key(
        &self,
        _: &Operator,
        project: ProjectId,
        key: impl Into<NewKey>,
    ) -> Result<ApiKeySecret, StoreError> {
        const DOING: &str = "create a key";
        let (secret, key) = (ApiKeySecret::generate(), key.into());
        let made = secret.clone();
        self.database()
            .write(DOING, move |connection| {
                Box::pin(async move { insert_key(connection, project, &secret, &key).await.doing(DOING) })
            })
            .await?;
        Ok(made)
    }

    /// Makes the project's first key, or nothing when it has ever had one.
    pub async fn ensure_first_key(
        &self,
        _: &Operator,
        project: ProjectId,
        key: impl Into<NewKey>,
    ) -> Result<Option<ApiKeySecret>, StoreError> {
        const DOING: &str = "make the first key";
        let key = key.into();
        let ensure = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                // Holds the project's row, so that of two servers starting at once one makes the key.
                sqlx::query("UPDATE projects SET last_event = last_event WHERE id = $1")
                    .bind(project.to_string())
                    .execute(&mut *connection)
                    .await
                    .doing(DOING)?;
                let earlier = sqlx::query("SELECT id FROM api_keys WHERE project_id = $1 LIMIT 1")
                    .bind(project.to_string())
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(DOING)?;
                if earlier.is_some() {
                    return Ok(None);
                }
                let secret = ApiKeySecret::generate();
                insert_key(connection, project, &secret, &key).await.doing(DOING)?;
                Ok(Some(secret))
            })
        });
        ensure.await
    }

    /// The keys in scope, oldest first, revoked ones included.
    pub async fn keys(&self, scope: &impl Scope) -> Result<Vec<ApiKeyInfo>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, project_id, name, prefix, created_ms, expires_ms, revoked_ms, last_used_ms
             FROM api_keys WHERE ($1 IS NULL OR project_id = $1) ORDER BY created_ms, id",
        )
        .bind(scope.only().map(|project| project.to_string()))
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(key_info).collect()
    }

    /// Refuses the key from now on: here at once, on other servers within seconds. Says whether there was
    /// such a key, not yet revoked.
    pub async fn revoke_key(&self, scope: &impl Scope, key: KeyId) -> Result<bool, StoreError> {
        const DOING: &str = "revoke a key";
        let only = scope.only().map(|project| project.to_string());
        let revoke = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE api_keys SET revoked_ms = $1
                     WHERE id = $2 AND revoked_ms IS NULL AND ($3 IS NULL OR project_id = $3)",
                )
                .bind(now_ms())
                .bind(key.to_string())
                .bind(only)
                .execute(connection)
                .await
                .doing(DOING)
            })
        });
        let revoked = revoke.await?.rows_affected() > 0;
        self.inner.keys.forget(key);
        Ok(revoked)
    }

    /// Who shows this key, or `None` when it is malformed, unknown, expired or revoked.
    pub async fn authenticate(&self, text: &str) -> Result<Option<Principal>, StoreError> {
        let Some(prefix) = prefix_of(text) else { return Ok(None) };
        let digest: KeyDigest = Sha256::digest(text).into();
        if let Some(principal) = self.inner.keys.believed(&digest) {
            return Ok(Some(principal));
        }
        let rows = sqlx::query(
            "SELECT id, project_id, digest, expires_ms, revoked_ms FROM api_keys WHERE prefix = $1",
        )
        .bind(prefix.to_string())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        let shown = hex::encode(digest);
        for row in &rows {
            let stored: String = row.try_get("digest").doing(READ)?;
            if !bool::from(stored.as_bytes().ct_eq(shown.as_bytes())) {
                continue;
            }
            let (expires_ms, now_ms) =
                (row.try_get::<Option<Millis>, _>("expires_ms").doing(READ)?, now_ms());
            let revoked_ms: Option<Millis> = row.try_get("revoked_ms").doing(READ)?;
            if revoked_ms.is_some() || expires_ms.is_some_and(|expires| expires <= now_ms) {
                return Ok(None);
            }
            let scope = ProjectScope::new(id(row, "project_id")?);
            let principal = Principal { scope, key: id(row, "id")? };
            self.inner.keys.believe(digest, principal, expires_ms.map(|expires| expires - now_ms));
            return Ok(Some(principal));
        }
        Ok(None)
    }

    /// Writes down when keys were last used.
    pub(crate) async fn flush_last_used(&self) -> Result<(), StoreError> {
        const DOING: &str = "record when keys were last used";
        let used = std::mem::take(&mut self.inner.keys.lock().used);
        if used.is_empty() {
            return Ok(());
        }
        let flush = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                for (key, at_ms) in used {
                    sqlx::query("UPDATE api_keys SET last_used_ms = $1 WHERE id = $2")
                        .bind(at_ms)
                        .bind(key.to_string())
                        .execute(&mut *connection)
                        .await
                        .doing(DOING)?;
                }
                Ok(())
            })
        });
        flush.await
    }
}

const READ: &str = "read keys";

async fn insert_key(
    connection: &mut AnyConnection,
    project: ProjectId,
    secret: &ApiKeySecret,
    key: &NewKey,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO api_keys (id, project_id, name, prefix, digest, created_ms, expires_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(secret.id.to_string())
    .bind(project.to_string())
    .bind(storable(&key.name))
    .bind(secret.text[..PREFIX_LENGTH].to_string())
    .bind(hex::encode(Sha256::digest(&secret.text)))
    .bind(now_ms())
    .bind(key.expires_ms)
    .execute(connection)
    .await
    .map(drop)
}

/// The public part of a well-formed key.
fn prefix_of(text: &str) -> Option<&str> {
    let digits = text.strip_prefix(MARK)?.as_bytes();
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (digits.len() == 2 * RANDOM_BYTES && digits.iter().all(is_hex)).then(|| &text[..PREFIX_LENGTH])
}

fn key_info(row: &AnyRow) -> Result<ApiKeyInfo, StoreError> {
    Ok(ApiKeyInfo {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        name: row.try_get("name").doing(READ)?,
        prefix: row.try_get("prefix").doing(READ)?,
        created_ms: row.try_get("created_ms").doing(READ)?,
        expires_ms: row.try_get("expires_ms").doing(READ)?,
        revoked_ms: row.try_get("revoked_ms").doing(READ)?,
        last_used_ms: row.try_get("last_used_ms").doing(READ)?,
    })
}

type KeyDigest = [u8; 32];

/// Keys that were good a moment ago, and when keys were used.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    good: HashMap<KeyDigest, Believed>,
    used: HashMap<KeyId, Millis>,
}

#[derive(Debug)]
struct Believed {
    principal: Principal,
    until: Instant,
}

impl Cache {
    fn believed(&self, digest: &KeyDigest) -> Option<Principal> {
        let mut state = self.lock();
        let principal = state.good.get(digest).filter(|believed| Instant::now() < believed.until)?.principal;
        state.used.insert(principal.key, now_ms());
        Some(principal)
    }

    fn believe(&self, digest: KeyDigest, principal: Principal, expires_in_ms: Option<Millis>) {
        let left = expires_in_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        let now = Instant::now();
        let mut state = self.lock();
        if state.good.len() >= MOST_BELIEVED {
            state.good.retain(|_, believed| now < believed.until);
        }
        // Only good keys come here, so a full cache means thousands in use within two seconds.
        if state.good.len() < MOST_BELIEVED {
            let until = now + left.map_or(BELIEVED, |left| left.min(BELIEVED));
            state.good.insert(digest, Believed { principal, until });
        }
        state.used.insert(principal.key, now_ms());
    }

    fn forget(&self, key: KeyId) {
        self.lock().good.retain(|_, believed| believed.principal.key != key);
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        // Whatever a panicking thread left is still only a cache.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Once a minute writes what was only noted, and drops what has expired.
pub(crate) async fn keep_house(inner: Weak<Inner>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(HOUSEKEEPING) => {}
        }
        let Some(inner) = inner.upgrade() else { return };
        let store = Store { inner };
        for done in [store.flush_last_used().await, store.forget_idempotency_keys(now_ms()).await] {
            match done {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!("housekeeping will be tried again in a minute: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_key_has_a_prefix() {
        let key = ApiKeySecret::generate();
        assert_eq!(prefix_of(key.reveal()), Some(&key.reveal()[..12]));
        let longer = format!("{}0", key.reveal());
        let upper = key.reveal().to_uppercase();
        for bad in ["", "e2b_", "e2b_é", &longer, &upper, &key.reveal()[..43]] {
            assert_eq!(prefix_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_key_does_not_show_in_debug_output() {
        let key = ApiKeySecret::generate();
        assert!(!format!("{key:?}").contains(&key.reveal()[PREFIX_LENGTH..]));
    }
}
