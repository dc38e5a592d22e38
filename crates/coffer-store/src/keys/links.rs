//! One-time sign-in links: a token that can be exchanged for a key once, and has no other use.
//!
//! A link is a row among the keys, so it is listed, expires and can be revoked like them. Its prefix differs
//! from a key's: used as a key, it is refused.

use coffer_core::{KeyKind, Millis, ProjectId, Role};
use sha2::{Digest, Sha256};
use sqlx::Row;
use subtle::ConstantTimeEq;

use super::{ApiKeySecret, LINK_MARK, MARK, NewKey, insert_key, key_info, prefix_among};
use crate::error::Doing;
use crate::{Operator, Store, StoreError, now_ms};

impl Store {
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

    /// Exchanges a link's token for a key with its rights that is valid for `lasting_ms`; `None` if the token
    /// is unknown, expired, revoked or used. Of several concurrent exchanges one succeeds.
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
                        expires_ms: Some(now + lasting_ms),
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
