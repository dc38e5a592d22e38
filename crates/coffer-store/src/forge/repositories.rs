//! Repositories and the protection of their branches.

use coffer_core::event::{Event, Protected, RepositoryChanged, RepositoryCreated, RepositoryRemoved};
use coffer_core::forge::{BranchName, ForgeKind, ProtectionRules, RepositoryName};
use coffer_core::{ConnectionId, Millis, ProjectId, RepositoryId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use super::{ForgeRecordError, word};
use crate::columns::{id, number, optional_id, optional_text, text};
use crate::error::Doing;
use crate::projects::lock_project;
use crate::select::Select;
use crate::{ProjectScope, Store, StoreError, events, now_ms};

/// Most repositories of a project.
pub const MOST_REPOSITORIES: i64 = 1000;
const MOST_PROTECTIONS: i64 = 100;

const READ: &str = "read repositories";
const CHANGE: &str = "change a repository";

/// A repository of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryRow {
    pub id: RepositoryId,
    pub project: ProjectId,
    pub name: RepositoryName,
    pub kind: ForgeKind,
    pub connection: Option<ConnectionId>,
    /// Its name on the forge of its connection: `owner/name`.
    pub remote: Option<String>,
    pub default_branch: BranchName,
    pub installation: Option<String>,
    pub created_ms: Millis,
}

/// A new repository.
#[derive(Debug, Clone)]
pub struct NewRepository {
    pub id: RepositoryId,
    pub name: RepositoryName,
    /// The forge, connection and name there, if it is not local.
    pub elsewhere: Option<(ForgeKind, ConnectionId, String)>,
    pub default_branch: BranchName,
}

const COLUMNS: &str =
    "id, project_id, name, kind, connection_id, remote, default_branch, installation, created_ms";

impl Store {
    /// Creates the record of a repository.
    pub async fn create_repository(
        &self,
        scope: &ProjectScope,
        new: NewRepository,
    ) -> Result<RepositoryRow, ForgeRecordError> {
        let row = self.new_row(scope, new);
        let insert = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                // Locks the project's row, so that the count stays right.
                lock_project(connection, row.project, CHANGE).await?;
                insert(connection, row).await
            })
        });
        insert.await
    }

    /// The same for one of another forge; returns the existing record if the project already has that remote.
    pub async fn adopt_repository(
        &self,
        scope: &ProjectScope,
        new: NewRepository,
    ) -> Result<RepositoryRow, ForgeRecordError> {
        let row = self.new_row(scope, new);
        let adopt = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                lock_project(connection, row.project, CHANGE).await?;
                let sql = format!(
                    "SELECT {COLUMNS} FROM repositories WHERE project_id = $1 AND connection_id = $2
                         AND LOWER(remote) = LOWER($3) AND (kind <> 'git' OR remote = $3)
                         AND removed_ms IS NULL ORDER BY id LIMIT 1"
                );
                let known = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(row.project)
                    .bind(row.connection)
                    .bind(row.remote.clone())
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                match known {
                    Some(known) => Ok(read(&known)?),
                    None => insert(connection, row).await,
                }
            })
        });
        adopt.await
    }

    fn new_row(&self, scope: &ProjectScope, new: NewRepository) -> RepositoryRow {
        let (kind, connection_id, remote) = match new.elsewhere {
            Some((kind, connection, remote)) => (kind, Some(connection), Some(remote)),
            None => (ForgeKind::Local, None, None),
        };
        RepositoryRow {
            id: new.id,
            project: scope.project(),
            name: new.name,
            kind,
            connection: connection_id,
            remote,
            default_branch: new.default_branch,
            installation: if kind == ForgeKind::Local { self.installation() } else { None },
            created_ms: now_ms(),
        }
    }

    /// The repository of that id or name.
    pub async fn repository(
        &self,
        scope: &ProjectScope,
        id_or_name: &str,
    ) -> Result<Option<RepositoryRow>, StoreError> {
        Select::new(COLUMNS, "repositories")
            .filter("project_id = ?", scope.project())
            .filter("(id = ? OR name = ?)", crate::columns::storable(id_or_name))
            .filter_by("removed_ms IS NULL")
            .one(self.database(), READ, read)
            .await
    }

    /// Repositories after `after`, oldest first.
    pub async fn repositories(
        &self,
        scope: &ProjectScope,
        after: Option<RepositoryId>,
        limit: u32,
    ) -> Result<Vec<RepositoryRow>, StoreError> {
        Select::new(COLUMNS, "repositories")
            .filter("project_id = ?", scope.project())
            .filter_by("removed_ms IS NULL")
            .oldest_first("id", after, limit)
            .all(self.database(), READ, read)
            .await
    }

    /// Ids of all live local repositories of this installation, of every project.
    pub async fn kept_repositories(
        &self,
        _: &crate::Operator,
    ) -> Result<Vec<(ProjectId, RepositoryId)>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, project_id FROM repositories WHERE kind = 'local' AND removed_ms IS NULL
                 AND ($1 IS NULL OR installation IS NULL OR installation = $1)",
        )
        .bind(self.installation())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(|row| Ok((id(row, "project_id")?, id(row, "id")?))).collect()
    }

    /// The installation that stores a repository, if it is not this one.
    pub fn repository_elsewhere<'a>(&self, row: &'a RepositoryRow) -> Option<&'a str> {
        let (own, holder) = (self.installation()?, row.installation.as_deref()?);
        (holder != own).then_some(holder)
    }

    /// Deletes a repository's record; returns whether it existed.
    pub async fn remove_repository(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
    ) -> Result<bool, StoreError> {
        let project = scope.project();
        let remove = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let removed = sqlx::query(
                    "UPDATE repositories SET removed_ms = $1
                     WHERE id = $2 AND project_id = $3 AND removed_ms IS NULL RETURNING name",
                )
                .bind(now)
                .bind(repository)
                .bind(project)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                let Some(row) = removed else { return Ok(false) };
                let event = Event::RepositoryRemoved(RepositoryRemoved { name: text(&row, "name")? });
                events::record(connection, project, repository, event, now).await?;
                Ok::<_, StoreError>(true)
            })
        });
        remove.await
    }

    /// Changes the recorded default branch; returns whether the repository exists.
    pub async fn set_default_branch(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        branch: BranchName,
    ) -> Result<bool, StoreError> {
        let project = scope.project();
        let set = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let changed = sqlx::query(
                    "UPDATE repositories SET default_branch = $1
                     WHERE id = $2 AND project_id = $3 AND removed_ms IS NULL",
                )
                .bind(branch.as_str())
                .bind(repository)
                .bind(project)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                if changed.rows_affected() == 0 {
                    return Ok(false);
                }
                let event = Event::RepositoryChanged(RepositoryChanged { default_branch: branch });
                events::record(connection, project, repository, event, now).await?;
                Ok::<_, StoreError>(true)
            })
        });
        set.await
    }

    /// Records an event about a repository without changing its record, such as a push.
    pub async fn record_repository_event(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        event: Event,
    ) -> Result<(), StoreError> {
        let project = scope.project();
        let record = self.database().write(CHANGE, move |connection| {
            Box::pin(async move { events::record(connection, project, repository, event, now_ms()).await })
        });
        record.await
    }

    /// The protected branches, by name.
    pub async fn protections(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
    ) -> Result<Vec<(BranchName, ProtectionRules)>, StoreError> {
        let rows = sqlx::query(
            "SELECT branch, rules FROM branch_protections
             WHERE repository_id = $1 AND project_id = $2 ORDER BY branch",
        )
        .bind(repository)
        .bind(scope.project())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        let read = |row: &AnyRow| {
            Ok((word(row, "branch")?, crate::columns::from_json(&text(row, "rules")?, "rules")?))
        };
        rows.iter().map(read).collect()
    }

    /// Protects a branch by these rules, or removes its protection.
    pub async fn protect_branch(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        branch: BranchName,
        rules: Option<ProtectionRules>,
    ) -> Result<(), ForgeRecordError> {
        let project = scope.project();
        let set = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let count = sqlx::query(
                    "SELECT COUNT(*) AS protected FROM branch_protections WHERE repository_id = $1",
                )
                .bind(repository)
                .fetch_one(&mut *connection)
                .await
                .doing(CHANGE)?;
                if rules.is_some() && number(&count, "protected")? >= MOST_PROTECTIONS {
                    return Err(ForgeRecordError::TooMany(MOST_PROTECTIONS));
                }
                let change = match &rules {
                    Some(rules) => {
                        sqlx::query(
                            "INSERT INTO branch_protections (repository_id, branch, project_id, rules, changed_ms)
                             SELECT id, $2, project_id, $4, $5 FROM repositories
                             WHERE id = $1 AND project_id = $3 AND removed_ms IS NULL
                             ON CONFLICT (repository_id, branch) DO UPDATE
                                 SET rules = excluded.rules, changed_ms = excluded.changed_ms",
                        )
                        .bind(repository)
                        .bind(branch.as_str())
                        .bind(project)
                        .bind(crate::columns::json(rules))
                        .bind(now)
                        .execute(&mut *connection)
                        .await
                    }
                    None => {
                        sqlx::query(
                            "DELETE FROM branch_protections
                             WHERE repository_id = $1 AND branch = $2 AND project_id = $3",
                        )
                        .bind(repository)
                        .bind(branch.as_str())
                        .bind(project)
                        .execute(&mut *connection)
                        .await
                    }
                };
                if change.doing(CHANGE)?.rows_affected() == 0 {
                    return Err(ForgeRecordError::NotFound);
                }
                let event = Event::RepositoryProtection(Protected { branch, rules });
                events::record(connection, project, repository, event, now).await?;
                Ok(())
            })
        });
        set.await
    }
}

/// Inserts a repository, with the project's row locked.
async fn insert(
    connection: &mut AnyConnection,
    row: RepositoryRow,
) -> Result<RepositoryRow, ForgeRecordError> {
    let project = row.project.to_string();
    let live =
        sqlx::query("SELECT COUNT(*) AS live FROM repositories WHERE project_id = $1 AND removed_ms IS NULL")
            .bind(project.clone())
            .fetch_one(&mut *connection)
            .await
            .doing(CHANGE)?;
    if number(&live, "live")? >= MOST_REPOSITORIES {
        return Err(ForgeRecordError::TooMany(MOST_REPOSITORIES));
    }
    if let Some(way) = row.connection {
        let known = sqlx::query(
            "SELECT id FROM forge_connections
             WHERE id = $1 AND project_id = $2 AND removed_ms IS NULL",
        )
        .bind(way)
        .bind(project.clone())
        .fetch_optional(&mut *connection)
        .await
        .doing(CHANGE)?;
        if known.is_none() {
            return Err(ForgeRecordError::NotFound);
        }
    }
    let inserted = sqlx::query(
        "INSERT INTO repositories (id, project_id, name, kind, connection_id, remote, default_branch,
             installation, created_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING",
    )
    .bind(row.id)
    .bind(project)
    .bind(row.name.as_str())
    .bind(row.kind.as_str())
    .bind(row.connection)
    .bind(row.remote.clone())
    .bind(row.default_branch.as_str())
    .bind(row.installation.clone())
    .bind(row.created_ms)
    .execute(&mut *connection)
    .await
    .doing(CHANGE)?;
    if inserted.rows_affected() == 0 {
        return Err(ForgeRecordError::Taken { number: None });
    }
    let (name, remote) = (row.name.clone(), row.remote.clone());
    let event = Event::RepositoryCreated(RepositoryCreated { name, kind: row.kind, remote });
    events::record(connection, row.project, row.id, event, row.created_ms).await?;
    Ok(row)
}

fn read(row: &AnyRow) -> Result<RepositoryRow, StoreError> {
    Ok(RepositoryRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        name: word(row, "name")?,
        kind: word(row, "kind")?,
        connection: optional_id(row, "connection_id")?,
        remote: optional_text(row, "remote")?,
        default_branch: word(row, "default_branch")?,
        installation: optional_text(row, "installation")?,
        created_ms: row.try_get("created_ms").doing(READ)?,
    })
}
