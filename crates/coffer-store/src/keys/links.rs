//! One-time sign-in links: a token that can be exchanged for a key once, and has no other use.
//!
//! A link is a row among the keys, so it is listed, expires and can be revoked like them. Its prefix differs
//! from a key's: used as a key, it is refused.
//!
//! A link of a key, and the key that it is exchanged for, have the key's id in their names ([`name_of_link`]). So
//! they are valid no longer than that key is, and revoking it revokes them.

use coffer_core::{KeyId, KeyKind, Millis, PersonId, ProjectId, Role};
use sha2::{Digest, Sha256};
use sqlx::{AnyConnection, Row};
use subtle::ConstantTimeEq;

use super::sessions::{NewSession, insert_session};
use super::{
    ApiKeySecret, LINK_MARK, MARK, NewKey, OF_KEY, SESSION_MARK, insert_key, key_info, name_of_link,
    prefix_among, valid_key,
};
use crate::columns::{id, optional_id};
use crate::error::Doing;
use crate::{Operator, ProjectScope, Scope, Store, StoreError, now_ms};

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
            Box::pin(async move { insert_key(connection, project, &secret, &link, None).await.doing(DOING) })
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
                let Some((mut key, person)) = valid_key(connection, project, key, now).await? else {
                    return Ok(None);
                };
                if key.agent.is_some() {
                    return Ok(None);
                }
                // A link of a session is one of the key that began it, or of its person: signing out here does not end the
                // session in another browser.
                let mut name = name_of_link(key.id);
                if key.prefix.starts_with(SESSION_MARK) {
                    if let Some(root) = creator(&key.name) {
                        let Some((root, _)) = valid_key(connection, project, root, now).await? else {
                            return Ok(None);
                        };
                        (name, key.expires_ms) = (name_of_link(root.id), root.expires_ms);
                    } else if person.is_some() {
                        (name, key.expires_ms) = (LINK_OF_PERSON.to_string(), None);
                    }
                }
                let secret = ApiKeySecret::generate(LINK_MARK);
                let expires_ms = now.saturating_add(lasting_ms).min(key.expires_ms.unwrap_or(Millis::MAX));
                let link = NewKey {
                    name,
                    role: key.role,
                    kind: key.kind,
                    agent: None,
                    expires_ms: Some(expires_ms),
                };
                insert_key(connection, project, &secret, &link, person).await.doing(DOING)?;
                Ok(Some((secret, expires_ms)))
            })
        });
        insert.await
    }

    /// Creates a link that signs this person in, valid for `lasting_ms`. `None` if the project has no such person.
    pub async fn create_link_of_person(
        &self,
        scope: &ProjectScope,
        person: PersonId,
        lasting_ms: Millis,
    ) -> Result<Option<(ApiKeySecret, Millis)>, StoreError> {
        const DOING: &str = "create a sign-in link of a person";
        let project = scope.project();
        let insert = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let row = sqlx::query(
                    "SELECT role FROM people WHERE id = $1 AND project_id = $2 AND removed_ms IS NULL",
                )
                .bind(person)
                .bind(project)
                .fetch_optional(&mut *connection)
                .await
                .doing(DOING)?;
                let Some(row) = row else { return Ok(None) };
                let secret = ApiKeySecret::generate(LINK_MARK);
                let expires_ms = now_ms().saturating_add(lasting_ms);
                let link = NewKey {
                    name: LINK_OF_PERSON.to_string(),
                    role: super::role(&row)?,
                    kind: KeyKind::Person,
                    agent: None,
                    expires_ms: Some(expires_ms),
                };
                insert_key(connection, project, &secret, &link, Some(person)).await.doing(DOING)?;
                Ok(Some((secret, expires_ms)))
            })
        });
        insert.await
    }

    /// Deletes links and sessions, and keys that links of keys were exchanged for, that ended more than a day ago: every visit
    /// of a browser adds some.
    pub(crate) async fn forget_links(&self, now_ms: Millis) -> Result<(), StoreError> {
        const DOING: &str = "remove old sign-in links";
        const STAY_MS: Millis = 24 * 3600 * 1000;
        let forget = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let delete =
                    "DELETE FROM api_keys WHERE expires_ms < $1 AND (prefix LIKE $2 OR name LIKE $3 OR prefix LIKE $4)";
                sqlx::query(delete)
                    .bind(now_ms - STAY_MS)
                    .bind(format!("{LINK_MARK}%"))
                    .bind(format!("{OF_KEY}%"))
                    .bind(format!("{SESSION_MARK}%"))
                    .execute(&mut *connection)
                    .await
                    .doing(DOING)?;
                sqlx::query("DELETE FROM operator_keys WHERE expires_ms < $1 AND prefix LIKE $2")
                    .bind(now_ms - STAY_MS)
                    .bind(format!("{SESSION_MARK}%"))
                    .execute(&mut *connection)
                    .await
                    .doing(DOING)?;
                let orphans = "DELETE FROM sessions WHERE NOT EXISTS (SELECT 1 FROM api_keys AS k WHERE k.id = key_id)
                    AND NOT EXISTS (SELECT 1 FROM operator_keys AS k WHERE k.id = key_id)";
                sqlx::query(orphans).execute(connection).await.doing(DOING)
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
        self.redeem(token, name, lasting_ms, None).await
    }

    /// Exchanges a link's token for a session, as [`Self::redeem_sign_in_link`] does for a key.
    pub async fn redeem_link_for_session(
        &self,
        token: &str,
        session: NewSession,
    ) -> Result<Option<ApiKeySecret>, StoreError> {
        let lasting_ms = session.lasting_ms;
        self.redeem(token, "web UI", lasting_ms, Some(session)).await
    }

    async fn redeem(
        &self,
        token: &str,
        name: &str,
        lasting_ms: Millis,
        session: Option<NewSession>,
    ) -> Result<Option<ApiKeySecret>, StoreError> {
        const DOING: &str = "exchange a link";
        let Some(prefix) = prefix_among(&[LINK_MARK], token).map(str::to_string) else { return Ok(None) };
        let shown = hex::encode(Sha256::digest(token));
        let name = name.to_string();
        let redeem = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let rows = sqlx::query(
                    "SELECT k.id, k.project_id, k.name, k.role, k.kind, k.agent_id, k.prefix, k.digest, k.created_ms,
                         k.expires_ms, k.revoked_ms, k.last_used_ms, k.person_id
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
                    let (link, person) = (key_info(row)?, optional_id(row, "person_id")?);
                    let now = now_ms();
                    let mut expires_ms = now.saturating_add(lasting_ms);
                    let mut name = name;
                    if let Some(key) = creator(&link.name) {
                        let Some((key, _)) = valid_key(connection, link.project, key, now).await? else {
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
                    let secret = match &session {
                        Some(_) => super::sessions::generate(),
                        None => ApiKeySecret::generate(MARK),
                    };
                    let root = creator(&link.name);
                    let key = NewKey {
                        name,
                        role: link.role,
                        kind: link.kind,
                        agent: link.agent,
                        expires_ms: Some(expires_ms),
                    };
                    insert_key(connection, link.project, &secret, &key, person).await.doing(DOING)?;
                    if let Some(session) = &session {
                        insert_session(connection, secret.id(), root, session).await?;
                    }
                    return Ok(Some(secret));
                }
                Ok(None)
            })
        });
        redeem.await
    }
}

/// The name of links that end with their person.
const LINK_OF_PERSON: &str = "sign-in link of a person";

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
