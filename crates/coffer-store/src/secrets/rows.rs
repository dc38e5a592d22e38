//! Creates, replaces, finds, lists and deletes secrets. Nothing here returns a value.

use std::collections::BTreeMap;

use coffer_core::event::{Event, SecretVersion};
use coffer_core::network::NamePattern;
use coffer_core::{Millis, ProjectId, SecretId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use super::{READ, SecretName, hosts, plain_http, purpose};
use crate::columns::{from_json, id, json, optional_text};
use crate::error::{Doing, SecretError};
use crate::projects::lock_project;
use crate::{ProjectScope, Secret, Store, StoreError, events, now_ms};

/// Most secrets of a project.
pub const MOST_SECRETS: usize = 1000;

const CHANGE: &str = "change a secret";
const COLUMNS: &str = "COALESCE(secret_id, id) AS secret_id, name, version, hosts, plain_http, metadata, \
                       created_ms, updated_ms";

/// The public data of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretInfo {
    /// Stays the same when the value is replaced.
    pub id: SecretId,
    pub name: String,
    /// Counts its values from 1.
    pub version: i64,
    /// The hosts to whose headers it is limited; `None` if it may be used anywhere.
    pub hosts: Option<Vec<String>>,
    /// Whether headers may carry it over plain HTTP although it is limited to hosts.
    pub plain_http: bool,
    /// The client's own notes.
    pub metadata: BTreeMap<String, String>,
    pub created_ms: Millis,
    pub updated_ms: Millis,
}

/// How a secret may be used. `None` keeps the earlier setting, so that a new value does not loosen it.
#[derive(Debug, Clone, Default)]
pub struct SecretTerms {
    /// Only in headers to these hosts; an empty list lifts the limit.
    pub hosts: Option<Vec<NamePattern>>,
    /// Also over plain HTTP, if it is limited to hosts.
    pub plain_http: Option<bool>,
    /// Replaces the client's notes.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// The secret that a value is for.
#[derive(Debug)]
enum Target {
    /// A new one or an existing one.
    Named(SecretName),
    /// A new one; its name, in any case, must be free.
    New(SecretName),
    /// An existing one.
    Existing(SecretId),
}

impl Store {
    /// Creates a secret or replaces its value; returns whether it is new. Without `hosts` it keeps its hosts,
    /// so that a new value does not loosen it; an empty list allows any.
    pub async fn put_secret(
        &self,
        scope: &ProjectScope,
        name: &SecretName,
        value: &Secret,
        hosts: Option<Vec<NamePattern>>,
    ) -> Result<(SecretInfo, bool), SecretError> {
        self.put_secret_on(scope, name, value, SecretTerms { hosts, ..SecretTerms::default() }).await
    }

    /// The same, with all terms.
    pub async fn put_secret_on(
        &self,
        scope: &ProjectScope,
        name: &SecretName,
        value: &Secret,
        terms: SecretTerms,
    ) -> Result<(SecretInfo, bool), SecretError> {
        self.set_secret(scope, Target::Named(name.clone()), value, terms).await
    }

    /// Creates a secret; [`SecretError::Taken`] if another one has this name in any case.
    pub async fn create_secret(
        &self,
        scope: &ProjectScope,
        name: &SecretName,
        value: &Secret,
        terms: SecretTerms,
    ) -> Result<SecretInfo, SecretError> {
        let (info, _) = self.set_secret(scope, Target::New(name.clone()), value, terms).await?;
        Ok(info)
    }

    /// Replaces the value of a secret; [`SecretError::NotFound`] if it was deleted.
    pub async fn replace_secret(
        &self,
        scope: &ProjectScope,
        id: SecretId,
        value: &Secret,
        terms: SecretTerms,
    ) -> Result<SecretInfo, SecretError> {
        let (info, _) = self.set_secret(scope, Target::Existing(id), value, terms).await?;
        Ok(info)
    }

    async fn set_secret(
        &self,
        scope: &ProjectScope,
        target: Target,
        value: &Secret,
        terms: SecretTerms,
    ) -> Result<(SecretInfo, bool), SecretError> {
        let project = scope.project();
        self.vault().ready(self.database(), project).await?;
        let (vault, value) = (self.vault().clone(), value.clone());
        let put = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                // Of two concurrent writers of the same name, the second waits here.
                lock_project(connection, project, CHANGE).await?;
                let before = retire_for(connection, project, &target, now).await?;
                if before.is_none() && live_count(connection, project).await? >= MOST_SECRETS {
                    return Err(SecretError::TooMany);
                }
                let is_new = before.is_none();
                let info = next(target, before, terms, now)?;
                let sealed = vault.seal(project, &purpose(&info.name, info.version), value.reveal())?;
                insert(connection, project, &info, sealed).await?;
                let kind = if is_new { Event::SecretCreated } else { Event::SecretReplaced };
                told(connection, project, &info.name, kind, info.version, now).await?;
                Ok((info, is_new))
            })
        });
        let put = put.await?;
        self.read_secrets(project).await?;
        Ok(put)
    }

    /// The project's secrets by name, without their values.
    pub async fn secrets(&self, scope: &ProjectScope) -> Result<Vec<SecretInfo>, StoreError> {
        self.secrets_after(scope, None, u32::MAX).await
    }

    /// A page of them: at most `limit`, after that name.
    pub async fn secrets_after(
        &self,
        scope: &ProjectScope,
        after: Option<&SecretName>,
        limit: u32,
    ) -> Result<Vec<SecretInfo>, StoreError> {
        let query = format!(
            "SELECT {COLUMNS} FROM secrets WHERE project_id = $1 AND retired_ms IS NULL AND name > $2
             ORDER BY name LIMIT $3"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(scope.project())
            .bind(after.map_or(String::new(), ToString::to_string))
            .bind(i64::from(limit))
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(info).collect()
    }

    /// The secret with this id, this name, or this name in another case, in this order.
    pub async fn find_secret(
        &self,
        scope: &ProjectScope,
        id: Option<SecretId>,
        name: &str,
    ) -> Result<Option<SecretInfo>, StoreError> {
        let query = format!(
            "SELECT {COLUMNS} FROM secrets WHERE project_id = $1 AND retired_ms IS NULL
             AND (COALESCE(secret_id, id) = $2 OR lower(name) = $3) ORDER BY name DESC"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(scope.project())
            .bind(id.map_or(String::new(), |id| id.to_string()))
            .bind(name.to_ascii_lowercase())
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        let found = rows.iter().map(info).collect::<Result<Vec<_>, _>>()?;
        let rank = |info: &SecretInfo| (Some(info.id) != id, info.name != name);
        Ok(found.into_iter().min_by_key(rank))
    }

    /// Deletes a secret; returns whether it existed.
    pub async fn delete_secret(&self, scope: &ProjectScope, name: &SecretName) -> Result<bool, StoreError> {
        self.remove_secret(scope, Target::Named(name.clone())).await
    }

    /// The same by its id.
    pub async fn delete_secret_by_id(&self, scope: &ProjectScope, id: SecretId) -> Result<bool, StoreError> {
        self.remove_secret(scope, Target::Existing(id)).await
    }

    async fn remove_secret(&self, scope: &ProjectScope, target: Target) -> Result<bool, StoreError> {
        let project = scope.project();
        let delete = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                lock_project(connection, project, CHANGE).await?;
                let Some(before) = retire(connection, project, &target, now).await? else { return Ok(false) };
                told(connection, project, &before.name, Event::SecretDeleted, before.version, now).await?;
                Ok::<_, StoreError>(true)
            })
        });
        let deleted = delete.await?;
        self.read_secrets(project).await?;
        Ok(deleted)
    }
}

/// The row of a new value.
fn next(
    target: Target,
    before: Option<SecretInfo>,
    terms: SecretTerms,
    now: Millis,
) -> Result<SecretInfo, SecretError> {
    let before = match (before, target) {
        (Some(before), _) => before,
        (None, Target::Named(name) | Target::New(name)) => SecretInfo {
            id: SecretId::generate(),
            name: name.to_string(),
            version: 0,
            hosts: None,
            plain_http: false,
            metadata: BTreeMap::new(),
            created_ms: now,
            updated_ms: now,
        },
        (None, Target::Existing(_)) => return Err(SecretError::NotFound),
    };
    Ok(SecretInfo {
        version: before.version + 1,
        hosts: match terms.hosts {
            None => before.hosts,
            Some(hosts) if hosts.is_empty() => None,
            Some(hosts) => Some(hosts.iter().map(ToString::to_string).collect()),
        },
        plain_http: terms.plain_http.unwrap_or(before.plain_http),
        metadata: terms.metadata.unwrap_or(before.metadata),
        updated_ms: now,
        ..before
    })
}

async fn insert(
    connection: &mut AnyConnection,
    project: ProjectId,
    info: &SecretInfo,
    sealed: String,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO secrets (id, secret_id, project_id, name, version, value_secret, hosts, created_ms,
                              updated_ms, plain_http, metadata)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    )
    .bind(SecretId::generate())
    .bind(info.id)
    .bind(project)
    .bind(info.name.clone())
    .bind(info.version)
    .bind(sealed)
    .bind(info.hosts.as_ref().map(json))
    .bind(info.created_ms)
    .bind(info.updated_ms)
    .bind(i64::from(info.plain_http))
    .bind((!info.metadata.is_empty()).then(|| json(&info.metadata)))
    .execute(connection)
    .await
    .doing(CHANGE)
    .map(drop)
}

/// Ends the value that a new one replaces, and returns it.
async fn retire_for(
    connection: &mut AnyConnection,
    project: ProjectId,
    target: &Target,
    now: Millis,
) -> Result<Option<SecretInfo>, SecretError> {
    let Target::New(name) = target else { return Ok(retire(connection, project, target, now).await?) };
    let taken = sqlx::query(
        "SELECT name FROM secrets WHERE project_id = $1 AND lower(name) = $2 AND retired_ms IS NULL LIMIT 1",
    )
    .bind(project)
    .bind(name.as_str().to_ascii_lowercase())
    .fetch_optional(connection)
    .await
    .doing(CHANGE)?;
    if taken.is_some() { Err(SecretError::Taken) } else { Ok(None) }
}

/// Ends the current value of a secret, if there is one, and returns it.
async fn retire(
    connection: &mut AnyConnection,
    project: ProjectId,
    target: &Target,
    now: Millis,
) -> Result<Option<SecretInfo>, StoreError> {
    let (column, text) = match target {
        Target::Named(name) | Target::New(name) => ("name", name.to_string()),
        Target::Existing(id) => ("COALESCE(secret_id, id)", id.to_string()),
    };
    let query = format!(
        "UPDATE secrets SET retired_ms = $1 WHERE project_id = $2 AND {column} = $3 AND retired_ms IS NULL
         RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(query))
        .bind(now)
        .bind(project)
        .bind(text)
        .fetch_optional(connection)
        .await
        .doing(CHANGE)?;
    row.as_ref().map(info).transpose()
}

async fn live_count(connection: &mut AnyConnection, project: ProjectId) -> Result<usize, StoreError> {
    let row =
        sqlx::query("SELECT COUNT(*) AS live FROM secrets WHERE project_id = $1 AND retired_ms IS NULL")
            .bind(project)
            .fetch_one(connection)
            .await
            .doing(CHANGE)?;
    Ok(usize::try_from(row.try_get::<i64, _>("live").doing(CHANGE)?).unwrap_or_default())
}

async fn told(
    connection: &mut AnyConnection,
    project: ProjectId,
    name: &str,
    kind: fn(SecretVersion) -> Event,
    version: i64,
    at_ms: Millis,
) -> Result<(), StoreError> {
    let event = kind(SecretVersion { name: name.to_string(), version });
    events::record(connection, project, name, event, at_ms).await
}

fn info(row: &AnyRow) -> Result<SecretInfo, StoreError> {
    let metadata = optional_text(row, "metadata")?;
    Ok(SecretInfo {
        id: id(row, "secret_id")?,
        name: row.try_get("name").doing(READ)?,
        version: row.try_get("version").doing(READ)?,
        hosts: hosts(row)?,
        plain_http: plain_http(row)?,
        metadata: metadata.map_or(Ok(BTreeMap::new()), |text| from_json(&text, "metadata of a secret"))?,
        created_ms: row.try_get("created_ms").doing(READ)?,
        updated_ms: row.try_get("updated_ms").doing(READ)?,
    })
}
