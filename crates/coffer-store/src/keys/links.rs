//! One-time sign-in links: a token that can be exchanged for a key once, and has no other use.
//!
//! A link is a row among the keys, so it is listed, expires and can be revoked like them. Its prefix differs
//! from a key's: used as a key, it is refused.
//!
//! A link of a key, and the key that it is exchanged for, have the key's id in their names ([`name_of_link`]). So
//! they are valid no longer than that key is, and revoking it revokes them.

use coffer_core::{KeyId, KeyKind, Millis, ProjectId, Role};
use sha2::{Digest, Sha256};
use sqlx::{AnyConnection, Row};
use subtle::ConstantTimeEq;

use super::{ApiKeyInfo, ApiKeySecret, LINK_MARK, MARK, NewKey, insert_key, key_info, prefix_among};
use crate::columns::id;
use crate::error::Doing;
use crate::{Operator, ProjectScope, Scope, Store, StoreError, now_ms};

/// The beginning of the names of links of keys, and of the keys that they are exchanged for.
const OF_KEY: &str = "web UI of key ";

fn name_of_link(key: KeyId) -> String {
    format!("{OF_KEY}{key}")
}

/// The key that a link, or a key from a link, was created by.
fn creator(name: &str) -> Option<KeyId> {
    name.strip_prefix(OF_KEY)?.parse().ok()
}

impl Store {
    /// Revokes the key, and what was created by its links: here at once, on other servers within seconds. Returns
    /// whether it existed and was not revoked.
    pub async fn revoke_key(&self, scope: &impl Scope, key: KeyId) -> Result<bool, StoreError> {
        const DOING: &str = "revoke a key";
        let only = scope.only();
        let revoke = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let revoked = sqlx::query(
                    "UPDATE api_keys SET revoked_ms = $1
                     WHERE id = $2 AND revoked_ms IS NULL AND ($3 IS NULL OR project_id = $3)",
                )
                .bind(now)
                .bind(key)
                .bind(only)
                .execute(&mut *connection)
                .await
                .doing(DOING)?;
                if revoked.rows_affected() == 0 {
                    return Ok(None);
                }
                revoke_created_by(connection, key, now).await.map(Some)
            })
        });
        let revoked = revoke.await?;
        for key in std::iter::once(key).chain(revoked.iter().flatten().copied()) {
            self.inner.keys.forget(key);
        }
        Ok(revoked.is_some())
    }

    /// Creates a link that can be exchanged for an admin key of `project`, valid for `lasting_ms`.
    pub async fn create_sign_in_link(
        &self,
        _: &Operator,
        project: ProjectId,
        lasting_ms: Millis,
    ) -> Result<ApiKeySecret, StoreError> {
        const DOING: &str = "create a sign-in link";
        let secret = ApiKeySecret::generate(LINK_MARK);
        let made = secret.clone();
        let link = NewKey {
            name: "one-time link".to_string(),
            role: Role::Admin,
            kind: KeyKind::Person,
            agent: None,
            expires_ms: Some(now_ms() + lasting_ms),
        };
        let insert = self.database().write(DOING, move |connection| {
            Box::pin(async move { insert_key(connection, project, &secret, &link).await.doing(DOING) })
        });
        insert.await?;
        Ok(made)
    }

    /// Creates a link that can be exchanged for a key with the rights of `key`, valid for `lasting_ms` and no longer than
    /// `key` is. `None` if the scope has no such valid key, or it is an agent's.
    pub async fn create_link_of_key(
        &self,
        scope: &ProjectScope,
        key: KeyId,
        lasting_ms: Millis,
    ) -> Result<Option<(ApiKeySecret, Millis)>, StoreError> {
        const DOING: &str = "create a sign-in link of a key";
        let project = scope.project();
        let insert = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let Some(key) = valid_key(connection, project, key, now).await? else { return Ok(None) };
                if key.agent.is_some() {
                    return Ok(None);
                }
                let secret = ApiKeySecret::generate(LINK_MARK);
                let expires_ms = now.saturating_add(lasting_ms).min(key.expires_ms.unwrap_or(Millis::MAX));
                let link = NewKey {
                    name: name_of_link(key.id),
                    role: key.role,
                    kind: key.kind,
                    agent: None,
                    expires_ms: Some(expires_ms),
                };
                insert_key(connection, project, &secret, &link).await.doing(DOING)?;
                Ok(Some((secret, expires_ms)))
            })
        });
        insert.await
    }

    /// Deletes links, and keys that links of keys were exchanged for, that ended more than a day ago: every visit of a
    /// browser adds some.
    pub(crate) async fn forget_links(&self, now_ms: Millis) -> Result<(), StoreError> {
        const DOING: &str = "remove old sign-in links";
        const STAY_MS: Millis = 24 * 3600 * 1000;
        let forget = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let delete =
                    "DELETE FROM api_keys WHERE expires_ms < $1 AND (prefix LIKE $2 OR name LIKE $3)";
                sqlx::query(delete)
                    .bind(now_ms - STAY_MS)
                    .bind(format!("{LINK_MARK}%"))
                    .bind(format!("{OF_KEY}%"))
                    .execute(connection)
                    .await
                    .doing(DOING)
            })
        });
        forget.await.map(drop)
    }

    /// Exchanges a link's token for a key with its rights that is valid for `lasting_ms`; `None` if the token
    /// is unknown, expired, revoked or used, or the key that created it no longer is valid. Of several concurrent
    /// exchanges one succeeds.
    pub async fn redeem_sign_in_link(
        &self,
        token: &str,
        name: &str,
        lasting_ms: Millis,
    ) -> Result<Option<ApiKeySecret>, StoreError> {
        const DOING: &str = "exchange a link";
        let Some(prefix) = prefix_among(&[LINK_MARK], token).map(str::to_string) else { return Ok(None) };
        let shown = hex::encode(Sha256::digest(token));
        let name = name.to_string();
        let redeem = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let rows = sqlx::query(
                    "SELECT k.id, k.project_id, k.name, k.role, k.kind, k.agent_id, k.prefix, k.digest, k.created_ms,
                         k.expires_ms, k.revoked_ms, k.last_used_ms
                     FROM api_keys AS k JOIN projects AS p ON p.id = k.project_id
                     WHERE k.prefix = $1 AND p.removed_ms IS NULL",
                )
                .bind(prefix)
                .fetch_all(&mut *connection)
                .await
                .doing(DOING)?;
                for row in &rows {
                    let stored: String = row.try_get("digest").doing(DOING)?;
                    if !bool::from(stored.as_bytes().ct_eq(shown.as_bytes())) {
                        continue;
                    }
                    let link = key_info(row)?;
                    let now = now_ms();
                    let mut expires_ms = now.saturating_add(lasting_ms);
                    let mut name = name;
                    if let Some(key) = creator(&link.name) {
                        let Some(key) = valid_key(connection, link.project, key, now).await? else {
                            return Ok(None);
                        };
                        expires_ms = expires_ms.min(key.expires_ms.unwrap_or(Millis::MAX));
                        name.clone_from(&link.name);
                    }
                    let used = sqlx::query(
                        "UPDATE api_keys SET revoked_ms = $1, last_used_ms = $1
                         WHERE id = $2 AND revoked_ms IS NULL AND expires_ms > $1",
                    )
                    .bind(now)
                    .bind(link.id)
                    .execute(&mut *connection)
                    .await
                    .doing(DOING)?;
                    if used.rows_affected() == 0 {
                        return Ok(None);
                    }
                    let secret = ApiKeySecret::generate(MARK);
                    let key = NewKey {
                        name,
                        role: link.role,
                        kind: link.kind,
                        agent: link.agent,
                        expires_ms: Some(expires_ms),
                    };
                    insert_key(connection, link.project, &secret, &key).await.doing(DOING)?;
                    return Ok(Some(secret));
                }
                Ok(None)
            })
        });
        redeem.await
    }
}

async fn valid_key(
    connection: &mut AnyConnection,
    project: ProjectId,
    key: KeyId,
    now_ms: Millis,
) -> Result<Option<ApiKeyInfo>, StoreError> {
    const DOING: &str = "find the key of a link";
    let row = sqlx::query(
        "SELECT id, project_id, name, role, kind, agent_id, prefix, created_ms, expires_ms, revoked_ms, last_used_ms
         FROM api_keys
         WHERE id = $1 AND project_id = $2 AND revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $3)",
    )
    .bind(key)
    .bind(project)
    .bind(now_ms)
    .fetch_optional(connection)
    .await
    .doing(DOING)?;
    row.as_ref().map(key_info).transpose()
}

/// Revokes what was created by links of `key`, directly or by other links, and returns the revoked keys.
pub(super) async fn revoke_created_by(
    connection: &mut AnyConnection,
    key: KeyId,
    now_ms: Millis,
) -> Result<Vec<KeyId>, StoreError> {
    const DOING: &str = "revoke the keys of a key's links";
    let (mut revoked, mut creators) = (Vec::new(), vec![key]);
    while let Some(creator) = creators.pop() {
        // In the same project as its creator, or anyone could name a key so that another project's revocation hits it.
        let rows = sqlx::query(
            "UPDATE api_keys SET revoked_ms = $1
             WHERE name = $2 AND revoked_ms IS NULL AND project_id = (SELECT project_id FROM api_keys WHERE id = $3)
             RETURNING id",
        )
        .bind(now_ms)
        .bind(name_of_link(creator))
        .bind(creator)
        .fetch_all(&mut *connection)
        .await
        .doing(DOING)?;
        let ended = rows.iter().map(|row| id(row, "id")).collect::<Result<Vec<KeyId>, _>>()?;
        revoked.extend_from_slice(&ended);
        creators.extend(ended);
    }
    Ok(revoked)
}
