//! Connections to forges, and their webhook deliveries.

use coffer_core::event::{ConnectionCreated, Event, Nothing};
use coffer_core::forge::ForgeKind;
use coffer_core::{ConnectionId, Millis, ProjectId, RepositoryId};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{ForgeRecordError, word};
use crate::columns::{from_json, id, number, storable, text};
use crate::error::Doing;
use crate::projects::lock_project;
use crate::select::Select;
use crate::{Operator, ProjectScope, Store, StoreError, events, now_ms};

const READ: &str = "read connections";
const CHANGE: &str = "change a connection";
const DELIVER: &str = "take a webhook";
const MOST_CONNECTIONS: i64 = 100;
/// How long a delivery's id is remembered.
const REMEMBERED_MS: Millis = 90 * 24 * 3_600_000;

/// The credential for a forge. Values are secrets of the project, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "auth", rename_all = "snake_case", deny_unknown_fields)]
pub enum Credential {
    /// A token.
    Token { secret: String },
    /// A GitHub App's private key, from which tokens are created.
    App { secret: String, app_id: i64, installation_id: i64 },
    /// A user of a git server, with a password or a token.
    Basic { user: String, secret: String },
}

/// The terms of a connection, next to its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionTerms {
    pub credential: Credential,
    /// The secret that webhooks are signed with.
    pub webhook_secret: Option<String>,
}

/// A connection to a forge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionRow {
    pub id: ConnectionId,
    pub project: ProjectId,
    pub name: String,
    pub kind: ForgeKind,
    pub base_url: String,
    pub terms: ConnectionTerms,
    pub created_ms: Millis,
}

/// A new way.
#[derive(Debug, Clone)]
pub struct NewConnection {
    pub name: String,
    pub kind: ForgeKind,
    pub base_url: String,
    pub terms: ConnectionTerms,
}

/// A webhook delivery.
#[derive(Debug, Clone)]
pub struct DeliveredEvent {
    /// The forge's own id of the delivery.
    pub delivery: String,
    /// The forge's name of the event.
    pub event: String,
    /// The repository of the project, and our event; `None` if it is about no repository of the project.
    pub about: Option<(RepositoryId, Event)>,
}

const COLUMNS: &str = "id, project_id, name, kind, base_url, terms, created_ms";

impl Store {
    /// Creates a connection; its address cannot change.
    pub async fn create_connection(
        &self,
        scope: &ProjectScope,
        new: NewConnection,
    ) -> Result<ConnectionRow, ForgeRecordError> {
        let row = ConnectionRow {
            id: ConnectionId::generate(),
            project: scope.project(),
            name: storable(&new.name),
            kind: new.kind,
            base_url: new.base_url,
            terms: new.terms,
            created_ms: now_ms(),
        };
        let insert = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                lock_project(connection, row.project, CHANGE).await?;
                let live = sqlx::query(
                    "SELECT COUNT(*) AS live FROM forge_connections
                     WHERE project_id = $1 AND removed_ms IS NULL",
                )
                .bind(row.project)
                .fetch_one(&mut *connection)
                .await
                .doing(CHANGE)?;
                if number(&live, "live")? >= MOST_CONNECTIONS {
                    return Err(ForgeRecordError::TooMany(MOST_CONNECTIONS));
                }
                let inserted = sqlx::query(
                    "INSERT INTO forge_connections (id, project_id, name, kind, base_url, terms, created_ms)
                     VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
                )
                .bind(row.id)
                .bind(row.project)
                .bind(row.name.clone())
                .bind(row.kind.as_str())
                .bind(row.base_url.clone())
                .bind(crate::columns::json(&row.terms))
                .bind(row.created_ms)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                if inserted.rows_affected() == 0 {
                    return Err(ForgeRecordError::Taken { number: None });
                }
                let (name, base_url) = (row.name.clone(), row.base_url.clone());
                let event = Event::ConnectionCreated(ConnectionCreated { name, kind: row.kind, base_url });
                events::record(connection, row.project, row.id, event, row.created_ms).await?;
                Ok(row)
            })
        });
        insert.await
    }

    /// The connection of that id.
    pub async fn connection(
        &self,
        scope: &ProjectScope,
        connection: ConnectionId,
    ) -> Result<Option<ConnectionRow>, StoreError> {
        self.find_connection(Some(scope.project()), connection).await
    }

    /// A connection of any project: for webhooks, which prove themselves by their signature.
    pub async fn connection_of_any(
        &self,
        _: &Operator,
        connection: ConnectionId,
    ) -> Result<Option<ConnectionRow>, StoreError> {
        self.find_connection(None, connection).await
    }

    async fn find_connection(
        &self,
        project: Option<ProjectId>,
        connection: ConnectionId,
    ) -> Result<Option<ConnectionRow>, StoreError> {
        Select::new(COLUMNS, "forge_connections")
            .filter("id = ?", connection)
            .filter_if("project_id = ?", project)
            .filter_by("removed_ms IS NULL")
            .one(self.database(), READ, read)
            .await
    }

    /// Connections after `after`, oldest first.
    pub async fn connections(
        &self,
        scope: &ProjectScope,
        after: Option<ConnectionId>,
        limit: u32,
    ) -> Result<Vec<ConnectionRow>, StoreError> {
        Select::new(COLUMNS, "forge_connections")
            .filter("project_id = ?", scope.project())
            .filter_by("removed_ms IS NULL")
            .oldest_first("id", after, limit)
            .all(self.database(), READ, read)
            .await
    }

    /// Deletes a connection that no repository uses.
    pub async fn remove_connection(
        &self,
        scope: &ProjectScope,
        way: ConnectionId,
    ) -> Result<(), ForgeRecordError> {
        let project = scope.project();
        let remove = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                // Locks the project's row, as creating a repository does.
                lock_project(connection, project, CHANGE).await?;
                let used = sqlx::query(
                    "SELECT id FROM repositories WHERE connection_id = $1 AND project_id = $2
                         AND removed_ms IS NULL LIMIT 1",
                )
                .bind(way)
                .bind(project)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                if used.is_some() {
                    return Err(ForgeRecordError::InUse);
                }
                let now = now_ms();
                let removed = sqlx::query(
                    "UPDATE forge_connections SET removed_ms = $1
                     WHERE id = $2 AND project_id = $3 AND removed_ms IS NULL",
                )
                .bind(now)
                .bind(way)
                .bind(project)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                if removed.rows_affected() == 0 {
                    return Err(ForgeRecordError::NotFound);
                }
                events::record(connection, project, way, Event::ConnectionRemoved(Nothing {}), now).await?;
                Ok(())
            })
        });
        remove.await
    }

    /// The project's repositories of this remote name on a connection, ignoring case.
    pub async fn repositories_of_remote(
        &self,
        connection: &ConnectionRow,
        remote: &str,
    ) -> Result<Vec<RepositoryId>, StoreError> {
        let rows = sqlx::query(
            "SELECT id FROM repositories
             WHERE connection_id = $1 AND project_id = $2 AND LOWER(remote) = LOWER($3) AND removed_ms IS NULL
             ORDER BY id",
        )
        .bind(connection.id)
        .bind(connection.project)
        .bind(storable(remote))
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(|row| id(row, "id")).collect()
    }

    /// Records a verified delivery with its event; `false` if it was recorded before.
    pub async fn take_delivery(
        &self,
        connection: &ConnectionRow,
        delivered: DeliveredEvent,
    ) -> Result<bool, StoreError> {
        let (way, project) = (connection.id, connection.project);
        let take = self.database().write(DELIVER, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                sqlx::query("DELETE FROM webhook_deliveries WHERE received_ms < $1")
                    .bind(now - REMEMBERED_MS)
                    .execute(&mut *connection)
                    .await
                    .doing(DELIVER)?;
                let taken = sqlx::query(
                    "INSERT INTO webhook_deliveries (connection_id, delivery, event, received_ms)
                     VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
                )
                .bind(way)
                .bind(delivered.delivery)
                .bind(delivered.event)
                .bind(now)
                .execute(&mut *connection)
                .await
                .doing(DELIVER)?;
                if taken.rows_affected() == 0 {
                    return Ok(false);
                }
                if let Some((repository, event)) = delivered.about {
                    events::record(connection, project, repository, event, now).await?;
                }
                Ok::<_, StoreError>(true)
            })
        });
        take.await
    }
}

fn read(row: &AnyRow) -> Result<ConnectionRow, StoreError> {
    Ok(ConnectionRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        name: text(row, "name")?,
        kind: word(row, "kind")?,
        base_url: text(row, "base_url")?,
        terms: from_json(&text(row, "terms")?, "terms")?,
        created_ms: row.try_get("created_ms").doing(READ)?,
    })
}
