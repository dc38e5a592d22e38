//! Sessions of browsers.
//!
//! A session is a row among the keys, so it expires, is revoked and is cached like them. Its secret has two halves: the
//! browser holds 256 bits in a cookie that scripts cannot read, and the page holds 128 bits in the storage of its origin. Only
//! both together open anything: cookies are sent to every port of a host, and storage can be read by scripts.
//!
//! A session that a key began has the key's id in its name, as a key from a link has: it ends with that key.

use coffer_core::{KeyId, KeyKind, Millis, PersonId, ProjectId};
use sqlx::AnyConnection;
use sqlx::any::AnyRow;

use super::{ApiKeySecret, NewKey, SESSION_BYTES, SESSION_MARK, insert_key, name_of_link, valid_key};
use crate::columns::{id, number, storable, text};
use crate::error::Doing;
use crate::{Actor, Authenticated, Store, StoreError, now_ms};

/// The bytes of the cookie's half; the page has the rest.
const COOKIE_BYTES: usize = 32;
/// Sessions that a person, or a key, may have; the oldest ends when there would be more.
const MOST_SESSIONS: i64 = 50;

/// A session to begin.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Such as `Firefox on Linux`.
    pub browser: String,
    /// The client's network.
    pub address: String,
    pub lasting_ms: Millis,
    /// It ends when it is not used for this long.
    pub idle_ms: Millis,
}

/// A session of a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    pub id: KeyId,
    pub browser: String,
    pub address: String,
    pub created_ms: Millis,
    pub last_used_ms: Millis,
    pub expires_ms: Millis,
}

impl ApiKeySecret {
    /// The halves of a session's secret: the cookie's and the page's. `None` for a key.
    pub fn halves(&self) -> Option<(&str, &str)> {
        self.reveal().strip_prefix(SESSION_MARK)?.split_at_checked(2 * COOKIE_BYTES)
    }
}

pub(super) fn generate() -> ApiKeySecret {
    let random: [u8; SESSION_BYTES] = rand::random();
    ApiKeySecret::of(SESSION_MARK, &random)
}

pub(super) async fn insert_session(
    connection: &mut AnyConnection,
    key: KeyId,
    root: Option<KeyId>,
    session: &NewSession,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO sessions (key_id, root_id, browser, address, idle_ms, created_ms) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(key)
    .bind(root)
    .bind(storable(&session.browser))
    .bind(storable(&session.address))
    .bind(session.idle_ms)
    .bind(now_ms())
    .execute(connection)
    .await
    .doing("begin a session")
    .map(drop)
}

/// Whose sessions: those of a person, or else of the key that began them.
#[derive(Debug, Clone, Copy)]
struct Holder {
    project: Option<ProjectId>,
    person: Option<PersonId>,
    root: Option<KeyId>,
    own: KeyId,
}

impl Holder {
    fn of(whom: &Authenticated) -> Self {
        match whom {
            Authenticated::Operator { key } => Self { project: None, person: None, root: None, own: *key },
            Authenticated::Project(principal) => {
                if let Actor::Operator(key) = principal.actor {
                    return Self::of(&Authenticated::Operator { key });
                }
                let project = Some(principal.scope.project());
                let (person, root) = match principal.actor {
                    Actor::Person(person) => (Some(person), None),
                    Actor::Key(root) => (None, Some(root)),
                    Actor::Agent(_) | Actor::Operator(_) => (None, None),
                };
                Self { project, person, root, own: principal.key }
            }
        }
    }

    fn table(self) -> &'static str {
        if self.project.is_some() { "api_keys" } else { "operator_keys" }
    }

    /// The condition for rows `k` of the table with `s` of sessions: $1 is now, $2 to $5 are the holder's.
    fn condition(self) -> &'static str {
        match self.project {
            Some(_) => {
                "k.revoked_ms IS NULL AND k.expires_ms > $1 AND COALESCE(k.last_used_ms, k.created_ms) + s.idle_ms > $1
                 AND k.project_id = $2 AND (k.person_id = $3 OR s.root_id = $4 OR k.id = $5)"
            }
            None => {
                "k.revoked_ms IS NULL AND k.expires_ms > $1 AND COALESCE(k.last_used_ms, k.created_ms) + s.idle_ms > $1
                 AND CAST($2 AS TEXT) IS NULL AND CAST($3 AS TEXT) IS NULL
                 AND (s.root_id = $4 OR s.root_id = $5 OR k.id = $5 OR s.root_id = (SELECT m.root_id FROM sessions AS m WHERE m.key_id = $5))"
            }
        }
    }
}

impl Store {
    /// Begins a session with the rights of a key. `None` for an agent's key, and for one that has ended meanwhile.
    pub async fn begin_session(
        &self,
        whom: &Authenticated,
        session: NewSession,
    ) -> Result<Option<ApiKeySecret>, StoreError> {
        const DOING: &str = "begin a session";
        let (whom, secret) = (*whom, generate());
        let made = secret.clone();
        let begun = self
            .database()
            .write(DOING, move |connection| {
                Box::pin(async move {
                    let now = now_ms();
                    let mut expires_ms = now.saturating_add(session.lasting_ms);
                    let root = whom.key();
                    match whom {
                        Authenticated::Operator { key } => {
                            sqlx::query(
                                "INSERT INTO operator_keys (id, name, prefix, digest, created_ms, expires_ms)
                                 VALUES ($1, $2, $3, $4, $5, $6)",
                            )
                            .bind(secret.id())
                            .bind(name_of_link(key))
                            .bind(secret.prefix())
                            .bind(secret.digest())
                            .bind(now)
                            .bind(expires_ms)
                            .execute(&mut *connection)
                            .await
                            .doing(DOING)?;
                        }
                        Authenticated::Project(principal) => {
                            let project = principal.scope.project();
                            let Some((key, person)) = valid_key(connection, project, root, now).await? else {
                                return Ok(false);
                            };
                            if key.agent.is_some() || key.kind == KeyKind::Agent {
                                return Ok(false);
                            }
                            expires_ms = expires_ms.min(key.expires_ms.unwrap_or(Millis::MAX));
                            let new = NewKey {
                                name: name_of_link(root),
                                role: key.role,
                                kind: key.kind,
                                agent: None,
                                expires_ms: Some(expires_ms),
                            };
                            insert_key(connection, project, &secret, &new, person).await.doing(DOING)?;
                        }
                    }
                    insert_session(connection, secret.id(), Some(root), &session).await?;
                    end_oldest(connection, root, now).await?;
                    Ok(true)
                })
            })
            .await?;
        Ok(begun.then_some(made))
    }

    /// The caller's sessions, the newest first.
    pub async fn sessions(&self, whom: &Authenticated) -> Result<Vec<SessionRow>, StoreError> {
        const DOING: &str = "read sessions";
        self.flush_last_used().await?;
        let holder = Holder::of(whom);
        let sql = format!(
            "SELECT k.id, k.created_ms, COALESCE(k.last_used_ms, k.created_ms) AS used_ms, k.expires_ms, s.browser, s.address
             FROM {} AS k JOIN sessions AS s ON s.key_id = k.id WHERE {} ORDER BY k.created_ms DESC, k.id DESC LIMIT 200",
            holder.table(),
            holder.condition()
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(now_ms())
            .bind(holder.project)
            .bind(holder.person)
            .bind(holder.root)
            .bind(holder.own)
            .fetch_all(self.database().readers())
            .await
            .doing(DOING)?;
        let shown = |row: &AnyRow| {
            Ok(SessionRow {
                id: id(row, "id")?,
                browser: text(row, "browser")?,
                address: text(row, "address")?,
                created_ms: number(row, "created_ms")?,
                last_used_ms: number(row, "used_ms")?,
                expires_ms: number(row, "expires_ms")?,
            })
        };
        rows.iter().map(shown).collect()
    }

    /// Ends one of the caller's sessions, or all of them; returns how many ended. Here they end at once, on other servers
    /// within seconds.
    pub async fn end_sessions(&self, whom: &Authenticated, only: Option<KeyId>) -> Result<usize, StoreError> {
        const DOING: &str = "end sessions";
        let holder = Holder::of(whom);
        let sql = format!(
            "UPDATE {table} SET revoked_ms = $1 WHERE id IN
                 (SELECT k.id FROM {table} AS k JOIN sessions AS s ON s.key_id = k.id
                  WHERE {condition} AND (CAST($6 AS TEXT) IS NULL OR k.id = $6))
             RETURNING id",
            table = holder.table(),
            condition = holder.condition()
        );
        let end = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(now)
                    .bind(holder.project)
                    .bind(holder.person)
                    .bind(holder.root)
                    .bind(holder.own)
                    .bind(only)
                    .fetch_all(&mut *connection)
                    .await
                    .doing(DOING)?;
                if only.is_none() && holder.person.is_some() {
                    // Links that were not used yet would begin sessions again.
                    sqlx::query(
                        "UPDATE api_keys SET revoked_ms = $1
                         WHERE project_id = $2 AND person_id = $3 AND prefix LIKE 'link_%' AND revoked_ms IS NULL",
                    )
                    .bind(now)
                    .bind(holder.project)
                    .bind(holder.person)
                    .execute(connection)
                    .await
                    .doing(DOING)?;
                }
                rows.iter().map(|row| id(row, "id")).collect::<Result<Vec<KeyId>, _>>()
            })
        });
        let ended = end.await?;
        for key in &ended {
            self.inner.keys.forget(*key);
        }
        Ok(ended.len())
    }
}

/// Ends the oldest sessions of a key beyond those that it may have.
async fn end_oldest(connection: &mut AnyConnection, root: KeyId, now_ms: Millis) -> Result<(), StoreError> {
    for table in ["api_keys", "operator_keys"] {
        let sql = format!(
            "UPDATE {table} SET revoked_ms = $1 WHERE id IN
                 (SELECT k.id FROM {table} AS k JOIN sessions AS s ON s.key_id = k.id
                  WHERE s.root_id = $2 AND k.revoked_ms IS NULL
                  ORDER BY k.created_ms DESC, k.id DESC LIMIT 1000000 OFFSET {MOST_SESSIONS})"
        );
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(now_ms)
            .bind(root)
            .execute(&mut *connection)
            .await
            .doing("end the oldest sessions")?;
    }
    Ok(())
}
