//! API keys, of projects and of operators.
//!
//! A key is `e2b_` (an operator's: `coffer_`) and 40 hexadecimal digits, shown once. The database has its
//! SHA-256 and its first characters: the prefix finds the row, the digest is compared in constant time. A slow
//! hash is not needed, because 160 random bits cannot be searched.
//!
//! Requests do not wait for the database: a valid key is cached for two seconds (`cache::BELIEVED`), which is
//! also how long a revocation on another server may take to apply here. The times of last use are kept in memory
//! and written once a minute.

mod cache;
mod links;
mod sessions;

use std::fmt;
use std::sync::Weak;
use std::time::Duration;

pub(crate) use cache::Cache;
use cache::KeyDigest;
use coffer_core::{AgentId, BadKeyKind, BadRole, KeyId, KeyKind, Millis, PersonId, ProjectId, Role};
pub use sessions::{NewSession, SessionRow};
use sha2::{Digest, Sha256};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Row};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

use crate::columns::{id, optional_id, storable};
use crate::error::{Doing, NameError};
use crate::projects::lock_project;
use crate::{
    Actor, Authenticated, Inner, Operator, Principal, ProjectScope, Scope, Store, StoreError, now_ms,
};

const HOUSEKEEPING: Duration = Duration::from_secs(60);

/// E2B's SDKs accept no other prefix.
const MARK: &str = "e2b_";
const OPERATOR_MARK: &str = "coffer_";
/// The prefix of a one-time link's token, which is not a key: [`Store::authenticate`] does not know it.
const LINK_MARK: &str = "link_";
/// The prefix of a session's secret, which is not a key either.
const SESSION_MARK: &str = "session_";
/// 32 in the cookie, 16 with the page.
const SESSION_BYTES: usize = 48;
const RANDOM_BYTES: usize = 20;
/// The mark and eight digits; the other 128 bits stay secret.
const PREFIX_DIGITS: usize = 8;

/// An API key in full. It exists only where it was created: the database cannot return it.
#[derive(Clone)]
pub struct ApiKeySecret {
    id: KeyId,
    text: String,
}

impl ApiKeySecret {
    fn generate(mark: &str) -> Self {
        let random: [u8; RANDOM_BYTES] = rand::random();
        Self::of(mark, &random)
    }

    fn of(mark: &str, random: &[u8]) -> Self {
        Self { id: KeyId::generate(), text: format!("{mark}{}", hex::encode(random)) }
    }

    /// A given key, if it is well-formed: `e2b_` and 40 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        prefix_of(text).filter(|_| text.starts_with(MARK))?;
        Some(Self { id: KeyId::generate(), text: text.to_string() })
    }

    fn digest(&self) -> String {
        hex::encode(Sha256::digest(&self.text))
    }

    fn prefix(&self) -> String {
        let marks = [MARK, OPERATOR_MARK, LINK_MARK, SESSION_MARK];
        prefix_among(&marks, &self.text).expect("it was made well-formed").to_string()
    }

    /// The id of the key, which is not secret.
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

/// A key to create.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// For people, to tell keys apart.
    pub name: String,
    pub role: Role,
    /// Whether a person or a service holds it; a key with an agent is the agent's.
    pub kind: KeyKind,
    /// Its agent, if any; such a key sees only what that agent owns.
    pub agent: Option<AgentId>,
    /// Invalid from this time on.
    pub expires_ms: Option<Millis>,
}

impl From<&str> for NewKey {
    /// A person's key with the role admin.
    fn from(name: &str) -> Self {
        Self {
            name: name.to_string(),
            role: Role::Admin,
            kind: KeyKind::Person,
            agent: None,
            expires_ms: None,
        }
    }
}

/// The public data of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKeyInfo {
    pub id: KeyId,
    pub project: ProjectId,
    pub name: String,
    pub role: Role,
    pub kind: KeyKind,
    pub agent: Option<AgentId>,
    /// Its first characters, to recognise it.
    pub prefix: String,
    pub created_ms: Millis,
    pub expires_ms: Option<Millis>,
    pub revoked_ms: Option<Millis>,
    pub last_used_ms: Option<Millis>,
}

impl Store {
    /// Creates a key for `project`.
    pub async fn create_key(
        &self,
        _: &Operator,
        project: ProjectId,
        key: impl Into<NewKey>,
    ) -> Result<ApiKeySecret, StoreError> {
        const DOING: &str = "create a key";
        let (secret, key) = (ApiKeySecret::generate(MARK), key.into());
        let made = secret.clone();
        self.database()
            .write(DOING, move |connection| {
                Box::pin(
                    async move { insert_key(connection, project, &secret, &key, None).await.doing(DOING) },
                )
            })
            .await?;
        Ok(made)
    }

    /// Creates the project's first key, `wanted` or a new one; nothing if it has ever had one.
    pub async fn ensure_first_key(
        &self,
        _: &Operator,
        project: ProjectId,
        key: impl Into<NewKey>,
        wanted: Option<ApiKeySecret>,
    ) -> Result<Option<ApiKeySecret>, StoreError> {
        const DOING: &str = "create the first key";
        let key = key.into();
        let ensure = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                // Locks the project's row, so that only one of two starting servers creates the key.
                lock_project(connection, project, DOING).await?;
                let earlier = sqlx::query("SELECT id FROM api_keys WHERE project_id = $1 LIMIT 1")
                    .bind(project)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(DOING)?;
                if earlier.is_some() {
                    return Ok(None);
                }
                let secret = wanted.unwrap_or_else(|| ApiKeySecret::generate(MARK));
                insert_key(connection, project, &secret, &key, None).await.doing(DOING)?;
                Ok(Some(secret))
            })
        });
        ensure.await
    }

    /// The keys in scope, oldest first, revoked ones included. Sessions are not among them.
    pub async fn keys(&self, scope: &impl Scope) -> Result<Vec<ApiKeyInfo>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, project_id, name, role, kind, agent_id, prefix, created_ms, expires_ms, revoked_ms,
                 last_used_ms
             FROM api_keys
             WHERE ($1 IS NULL OR project_id = $1 OR agent_id = $1) AND prefix NOT LIKE 'session_%'
             ORDER BY created_ms, id",
        )
        .bind(scope.owner())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(key_info).collect()
    }

    /// Creates the key's successor, with the same name and rights; the old one expires at most `overlap_ms`
    /// from now. `NotFound` if the scope has no such valid key.
    pub async fn rotate_key(
        &self,
        scope: &ProjectScope,
        key: KeyId,
        overlap_ms: Millis,
    ) -> Result<ApiKeySecret, NameError> {
        const DOING: &str = "rotate a key";
        let project = scope.project();
        let secret = ApiKeySecret::generate(MARK);
        let made = secret.clone();
        let rotate = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let old = sqlx::query(
                    "SELECT id, project_id, name, role, kind, agent_id, prefix, created_ms, expires_ms, revoked_ms,
                         last_used_ms, person_id
                     FROM api_keys
                     WHERE id = $1 AND project_id = $2 AND revoked_ms IS NULL AND prefix NOT LIKE 'session_%'
                         AND (expires_ms IS NULL OR expires_ms > $3)",
                )
                .bind(key)
                .bind(project)
                .bind(now)
                .fetch_optional(&mut *connection)
                .await
                .doing(DOING)?;
                let Some(old) = old else { return Err(NameError::NotFound) };
                let person = optional_id(&old, "person_id")?;
                let old = key_info(&old)?;
                let successor = NewKey {
                    name: old.name,
                    role: old.role,
                    kind: old.kind,
                    agent: old.agent,
                    // The same lifetime as the old one had.
                    expires_ms: old.expires_ms.map(|expires| now + (expires - old.created_ms)),
                };
                insert_key(connection, project, &secret, &successor, person).await.doing(DOING)?;
                let ends = old.expires_ms.unwrap_or(Millis::MAX).min(now.saturating_add(overlap_ms));
                sqlx::query("UPDATE api_keys SET expires_ms = $1 WHERE id = $2")
                    .bind(ends)
                    .bind(key)
                    .execute(connection)
                    .await
                    .doing(DOING)?;
                Ok(())
            })
        });
        rotate.await?;
        self.inner.keys.forget(key);
        Ok(made)
    }

    /// Creates a key that sees every project.
    pub async fn create_operator_key(&self, _: &Operator, name: &str) -> Result<ApiKeySecret, StoreError> {
        const DOING: &str = "create an operator's key";
        let (secret, name) = (ApiKeySecret::generate(OPERATOR_MARK), storable(name));
        let made = secret.clone();
        let insert = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO operator_keys (id, name, prefix, digest, created_ms)
                     VALUES ($1, $2, $3, $4, $5)",
                )
                .bind(secret.id)
                .bind(name)
                .bind(secret.prefix())
                .bind(secret.digest())
                .bind(now_ms())
                .execute(connection)
                .await
                .doing(DOING)
            })
        });
        insert.await.map(|_| made)
    }

    /// The holder of this key, or `None` if it is malformed, unknown, expired or revoked.
    pub async fn authenticate(&self, text: &str) -> Result<Option<Authenticated>, StoreError> {
        match prefix_of(text) {
            Some(prefix) => self.holder(prefix, text).await,
            None => Ok(None),
        }
    }

    /// The holder of a key or a session: whether the credential of a stream that has begun is still valid.
    pub async fn still_valid(&self, text: &str) -> Result<Option<Authenticated>, StoreError> {
        match prefix_among(&[MARK, OPERATOR_MARK, SESSION_MARK], text) {
            Some(prefix) => self.holder(prefix, text).await,
            None => Ok(None),
        }
    }

    async fn holder(&self, prefix: &str, text: &str) -> Result<Option<Authenticated>, StoreError> {
        let digest: KeyDigest = Sha256::digest(text).into();
        if let Some(whom) = self.inner.keys.believed(&digest) {
            return Ok(Some(whom));
        }
        let rows = sqlx::query(
            "SELECT k.id, k.project_id, k.role, k.kind, k.agent_id, k.digest, k.expires_ms, k.revoked_ms, k.created_ms,
                 k.last_used_ms, k.person_id, s.root_id, s.idle_ms
             FROM api_keys AS k JOIN projects AS p ON p.id = k.project_id LEFT JOIN sessions AS s ON s.key_id = k.id
             WHERE k.prefix = $1 AND p.removed_ms IS NULL
             UNION ALL
             SELECT k.id, NULL, NULL, NULL, NULL, k.digest, k.expires_ms, k.revoked_ms, k.created_ms,
                 k.last_used_ms, NULL, s.root_id, s.idle_ms
             FROM operator_keys AS k LEFT JOIN sessions AS s ON s.key_id = k.id WHERE k.prefix = $1",
        )
        .bind(prefix)
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
            let whom = whom(row)?;
            if is_idle(row, self.inner.keys.last_used(whom.key()), now_ms)? {
                return Ok(None);
            }
            self.inner.keys.believe(digest, whom, expires_ms.map(|expires| expires - now_ms));
            return Ok(Some(whom));
        }
        Ok(None)
    }

    /// Writes the times of last use.
    pub(crate) async fn flush_last_used(&self) -> Result<(), StoreError> {
        const DOING: &str = "record when keys were last used";
        let used = std::mem::take(&mut self.inner.keys.lock().used);
        if used.is_empty() {
            return Ok(());
        }
        let flush = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                for (key, at_ms) in used {
                    for table in ["api_keys", "operator_keys"] {
                        let sql = format!("UPDATE {table} SET last_used_ms = $1 WHERE id = $2");
                        sqlx::query(AssertSqlSafe(sql))
                            .bind(at_ms)
                            .bind(key)
                            .execute(&mut *connection)
                            .await
                            .doing(DOING)?;
                    }
                }
                Ok(())
            })
        });
        flush.await
    }
}

/// The beginning of the names of links of keys, and of the keys that they are exchanged for.
const OF_KEY: &str = "web UI of key ";

fn name_of_link(key: KeyId) -> String {
    format!("{OF_KEY}{key}")
}

const READ: &str = "read keys";

async fn insert_key(
    connection: &mut AnyConnection,
    project: ProjectId,
    secret: &ApiKeySecret,
    key: &NewKey,
    person: Option<PersonId>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO api_keys
             (id, project_id, name, role, agent_id, prefix, digest, created_ms, expires_ms, kind, person_id)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    )
    .bind(secret.id)
    .bind(project)
    .bind(storable(&key.name))
    .bind(key.role.as_str())
    .bind(key.agent)
    .bind(secret.prefix())
    .bind(secret.digest())
    .bind(now_ms())
    .bind(key.expires_ms)
    .bind(key.agent.map_or(key.kind, |_| KeyKind::Agent).as_str())
    .bind(person)
    .execute(connection)
    .await
    .map(drop)
}

/// The public part of a well-formed key.
fn prefix_of(text: &str) -> Option<&str> {
    prefix_among(&[MARK, OPERATOR_MARK], text)
}

fn prefix_among<'t>(marks: &[&str], text: &'t str) -> Option<&'t str> {
    let mark = marks.iter().find(|mark| text.starts_with(**mark))?;
    let digits = &text.as_bytes()[mark.len()..];
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let bytes = if *mark == SESSION_MARK { SESSION_BYTES } else { RANDOM_BYTES };
    let well_formed = digits.len() == 2 * bytes && digits.iter().all(is_hex);
    well_formed.then(|| &text[..mark.len() + PREFIX_DIGITS])
}

/// Only an operator's key has no project.
fn whom(row: &AnyRow) -> Result<Authenticated, StoreError> {
    let key = id(row, "id")?;
    let Some(project) = optional_id(row, "project_id")? else { return Ok(Authenticated::Operator { key }) };
    let scope = ProjectScope::new(project, optional_id(row, "agent_id")?);
    let actor = match (scope.agent(), optional_id(row, "person_id")?, optional_id(row, "root_id")?) {
        (Some(agent), ..) => Actor::Agent(agent),
        (None, Some(person), _) => Actor::Person(person),
        (None, None, root) => Actor::Key(root.unwrap_or(key)),
    };
    Ok(Authenticated::Project(Principal { scope, key, role: role(row)?, kind: kind(row)?, actor }))
}

fn role(row: &AnyRow) -> Result<Role, StoreError> {
    let text: String = row.try_get("role").doing(READ)?;
    text.parse()
        .map_err(|error: BadRole| StoreError::Unreadable { what: "role of a key", why: error.to_string() })
}

/// A key with an agent is the agent's, whatever its recorded kind.
fn kind(row: &AnyRow) -> Result<KeyKind, StoreError> {
    if row.try_get::<Option<String>, _>("agent_id").doing(READ)?.is_some() {
        return Ok(KeyKind::Agent);
    }
    let text: String = row.try_get("kind").doing(READ)?;
    let unreadable =
        |error: BadKeyKind| StoreError::Unreadable { what: "kind of a key", why: error.to_string() };
    text.parse().map_err(unreadable)
}

fn key_info(row: &AnyRow) -> Result<ApiKeyInfo, StoreError> {
    Ok(ApiKeyInfo {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        name: row.try_get("name").doing(READ)?,
        role: role(row)?,
        kind: kind(row)?,
        agent: optional_id(row, "agent_id")?,
        prefix: row.try_get("prefix").doing(READ)?,
        created_ms: row.try_get("created_ms").doing(READ)?,
        expires_ms: row.try_get("expires_ms").doing(READ)?,
        revoked_ms: row.try_get("revoked_ms").doing(READ)?,
        last_used_ms: row.try_get("last_used_ms").doing(READ)?,
    })
}

/// Whether a row of a key with its session was not used for longer than the session allows.
fn is_idle(row: &AnyRow, used_here: Option<Millis>, now_ms: Millis) -> Result<bool, StoreError> {
    const DOING: &str = "read a session";
    let Some(idle_ms) = row.try_get::<Option<Millis>, _>("idle_ms").doing(DOING)? else { return Ok(false) };
    let created: Millis = row.try_get("created_ms").doing(DOING)?;
    let used: Option<Millis> = row.try_get("last_used_ms").doing(DOING)?;
    let last = created.max(used.unwrap_or(0)).max(used_here.unwrap_or(0));
    Ok(last.saturating_add(idle_ms) <= now_ms)
}

async fn valid_key(
    connection: &mut AnyConnection,
    project: ProjectId,
    key: KeyId,
    now_ms: Millis,
) -> Result<Option<(ApiKeyInfo, Option<PersonId>)>, StoreError> {
    const DOING: &str = "find the key of a link";
    let row = sqlx::query(
        "SELECT id, project_id, name, role, kind, agent_id, prefix, created_ms, expires_ms, revoked_ms, last_used_ms,
             person_id
         FROM api_keys
         WHERE id = $1 AND project_id = $2 AND revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $3)",
    )
    .bind(key)
    .bind(project)
    .bind(now_ms)
    .fetch_optional(connection)
    .await
    .doing(DOING)?;
    let found = |row: &sqlx::any::AnyRow| Ok((key_info(row)?, optional_id(row, "person_id")?));
    row.as_ref().map(found).transpose()
}

/// Once a minute, writes cached times of last use and deletes expired rows.
pub(crate) async fn keep_house(inner: Weak<Inner>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(HOUSEKEEPING) => {}
        }
        let Some(inner) = inner.upgrade() else { return };
        let store = Store { inner };
        for done in [
            store.flush_last_used().await,
            store.forget_idempotency_keys(now_ms()).await,
            store.forget_retired_secrets(now_ms()).await,
            store.forget_links(now_ms()).await,
        ] {
            match done {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!("housekeeping failed, trying again in a minute: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_key_has_a_prefix() {
        let operators = ApiKeySecret::generate(OPERATOR_MARK);
        assert_eq!(prefix_of(operators.reveal()), Some(&operators.reveal()[..15]));
        let key = ApiKeySecret::generate(MARK);
        assert_eq!(prefix_of(key.reveal()), Some(&key.reveal()[..12]));
        let longer = format!("{}0", key.reveal());
        let upper = key.reveal().to_uppercase();
        for bad in ["", "e2b_", "e2b_é", &longer, &upper, &key.reveal()[..43]] {
            assert_eq!(prefix_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_key_does_not_show_in_debug_output() {
        let key = ApiKeySecret::generate(MARK);
        assert!(!format!("{key:?}").contains(&key.reveal()[12..]));
    }
}
