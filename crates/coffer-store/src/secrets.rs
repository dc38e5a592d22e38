//! The secrets of a project: named values that are used by reference and never returned.
//!
//! [`rows`] changes and lists them; here are their values, which this process caches.

mod rows;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use coffer_core::network::NamePattern;
use coffer_core::sync::Mutex;
use coffer_core::{Millis, ProjectId};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::error::Doing;
use crate::{Secret, Store, StoreError, now_ms};
pub use rows::{MOST_SECRETS, SecretInfo, SecretTerms};

/// How long a replaced or deleted value is still redacted in output.
const REDACTED_FOR_MS: Millis = 24 * 3_600_000;
/// How long values are cached before checking for changes by other servers.
const FRESH: Duration = Duration::from_secs(5);

const READ: &str = "read secrets";

/// A letter, then at most 63 letters, digits, `_`, `-` and `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretName(String);

/// The text is not the name of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a secret is a letter and at most 63 letters, digits, `_`, `-` and `.` after it")]
pub struct BadSecretName;

impl FromStr for SecretName {
    type Err = BadSecretName;

    fn from_str(text: &str) -> Result<Self, BadSecretName> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
        let good =
            text.len() <= 64 && text.bytes().all(fits) && text.starts_with(|c: char| c.is_ascii_alphabetic());
        if good { Ok(Self(text.to_string())) } else { Err(BadSecretName) }
    }
}

impl SecretName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A secret with its value.
#[derive(Debug, Clone)]
pub struct UsableSecret {
    pub version: i64,
    /// `None` if it is sealed under a missing master key.
    pub value: Option<Secret>,
    pub hosts: Option<Vec<NamePattern>>,
    pub plain_http: bool,
}

/// All values of a project at one time.
#[derive(Debug, Default)]
pub struct SecretValues {
    /// Changes whenever the values change, while this process lives.
    pub version: u64,
    live: BTreeMap<String, UsableSecret>,
    retired: Vec<Secret>,
    /// Identifies a later reading with the same values.
    rows: Vec<(String, Option<Millis>)>,
}

impl SecretValues {
    pub fn get(&self, name: &str) -> Option<&UsableSecret> {
        self.live.get(name)
    }

    /// The names of the secrets.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.live.keys().map(String::as_str)
    }

    /// Every value that may appear in output: the current ones, and those replaced or deleted within the last
    /// day.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let live = self.live.values().filter_map(|secret| secret.value.as_ref());
        live.chain(&self.retired).map(Secret::reveal)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Cache {
    known: Mutex<HashMap<ProjectId, (Instant, Arc<SecretValues>)>>,
    /// Allows one reading at a time, so that an older one does not overwrite a newer one.
    reading: tokio::sync::Mutex<()>,
    versions: AtomicU64,
}

impl Cache {
    fn known(&self) -> MutexGuard<'_, HashMap<ProjectId, (Instant, Arc<SecretValues>)>> {
        self.known.lock()
    }
}

impl Store {
    /// The project's values, from memory except for the first time; changes by other servers arrive within
    /// seconds.
    pub async fn secret_values(&self, project: ProjectId) -> Result<Arc<SecretValues>, StoreError> {
        let known = self.inner.secrets.known().get(&project).cloned();
        match known {
            None => self.read_secrets(project).await,
            Some((at, values)) => {
                if at.elapsed() > FRESH {
                    // Note the time first, so that the next callers do not refresh too.
                    self.inner.secrets.known().insert(project, (Instant::now(), values.clone()));
                    let store = self.clone();
                    self.inner.tasks.spawn(async move {
                        if let Err(error) = store.read_secrets(project).await {
                            tracing::warn!("could not look for changed secrets: {error}");
                        }
                    });
                }
                Ok(values)
            }
        }
    }

    /// The same without waiting; `None` if they were not read yet.
    pub fn cached_secret_values(&self, project: ProjectId) -> Option<Arc<SecretValues>> {
        self.inner.secrets.known().get(&project).map(|(_, values)| values.clone())
    }

    /// Reads the values from the database.
    pub async fn read_secrets(&self, project: ProjectId) -> Result<Arc<SecretValues>, StoreError> {
        let cache = &self.inner.secrets;
        let _turn = cache.reading.lock().await;
        let rows = sqlx::query(
            "SELECT id, name, version, value_secret, hosts, plain_http, retired_ms FROM secrets
             WHERE project_id = $1 AND (retired_ms IS NULL OR retired_ms > $2) ORDER BY id",
        )
        .bind(project)
        .bind(now_ms() - REDACTED_FOR_MS)
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        if !rows.is_empty() {
            self.vault().ready(self.database(), project).await?;
        }
        let mut values = SecretValues::default();
        for row in &rows {
            let (name, version): (String, i64) =
                (row.try_get("name").doing(READ)?, row.try_get("version").doing(READ)?);
            let retired: Option<Millis> = row.try_get("retired_ms").doing(READ)?;
            let sealed: String = row.try_get("value_secret").doing(READ)?;
            let value =
                self.vault().open_text(project, &purpose(&name, version), &sealed).ok().map(Secret::from);
            values.rows.push((row.try_get("id").doing(READ)?, retired));
            if retired.is_none() {
                let hosts = hosts(row)?.map(|hosts| patterns(&hosts)).transpose()?;
                values
                    .live
                    .insert(name, UsableSecret { version, value, hosts, plain_http: plain_http(row)? });
            } else {
                values.retired.extend(value);
            }
        }
        let mut known = cache.known();
        let values = match known.get(&project) {
            Some((_, before)) if before.rows == values.rows => before.clone(),
            _ => {
                values.version = cache.versions.fetch_add(1, Ordering::Relaxed) + 1;
                Arc::new(values)
            }
        };
        known.insert(project, (Instant::now(), values.clone()));
        Ok(values)
    }

    /// Deletes values that are unlikely to be printed again.
    pub(crate) async fn forget_retired_secrets(&self, now_ms: Millis) -> Result<(), StoreError> {
        const DOING: &str = "drop old secrets";
        let forget = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                sqlx::query("DELETE FROM secrets WHERE retired_ms <= $1")
                    .bind(now_ms - REDACTED_FOR_MS)
                    .execute(connection)
                    .await
                    .doing(DOING)
                    .map(drop)
            })
        });
        forget.await
    }
}

fn purpose(name: &str, version: i64) -> String {
    format!("secrets/{name}/{version}")
}

fn plain_http(row: &AnyRow) -> Result<bool, StoreError> {
    Ok(row.try_get::<i64, _>("plain_http").doing(READ)? != 0)
}

fn hosts(row: &AnyRow) -> Result<Option<Vec<String>>, StoreError> {
    let text: Option<String> = row.try_get("hosts").doing(READ)?;
    let read = |text: String| serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()));
    text.map(read).transpose()
}

fn patterns(hosts: &[String]) -> Result<Vec<NamePattern>, StoreError> {
    let read = |host: &String| NamePattern::parse(host).map_err(|error| unreadable(error.to_string()));
    hosts.iter().map(read).collect()
}

fn unreadable(why: String) -> StoreError {
    StoreError::Unreadable { what: "hosts of a secret", why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["A", "GITHUB_TOKEN", "a.b-c_1"] {
            assert!(good.parse::<SecretName>().is_ok(), "{good}");
        }
        let long = "a".repeat(65);
        for bad in ["", "1a", "_a", "a b", "a/b", "a}", "ä", &long] {
            assert_eq!(bad.parse::<SecretName>(), Err(BadSecretName), "{bad}");
        }
    }
}
