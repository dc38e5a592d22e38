//! Projects, which own everything else.

use coffer_core::{Millis, ProjectId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Row};

use crate::columns::{id, storable};
use crate::error::{Doing, NameError};
use crate::select::Select;
use crate::{Operator, Scope, Store, StoreError, now_ms};

const DEFAULT_PROJECT: &str = "default";
/// Begins with a space, which names that clients choose cannot.
const CATALOGUE_PROJECT: &str = " catalogue";
/// The quota of the installation's own work.
const PLENTY: i64 = 1 << 40;
const READ: &str = "read projects";

/// A project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    pub id: ProjectId,
    pub name: String,
    pub created_ms: Millis,
    /// Grows with every change, so that concurrent changes are detected.
    pub version: i64,
}

const COLUMNS: &str = "id, name, created_ms, version";

impl Store {
    /// Creates a project; its name must be unique.
    pub async fn create_project(&self, _: &Operator, name: &str) -> Result<ProjectId, NameError> {
        const DOING: &str = "create a project";
        let (project, name) = (ProjectId::generate(), storable(name));
        let insert = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let inserted = sqlx::query(
                    "INSERT INTO projects (id, name, created_ms) VALUES ($1, $2, $3)
                     ON CONFLICT (name) DO NOTHING",
                )
                .bind(project)
                .bind(name)
                .bind(now_ms())
                .execute(connection)
                .await
                .doing(DOING)?;
                if inserted.rows_affected() == 0 { Err(NameError::Taken) } else { Ok(project) }
            })
        });
        let project = insert.await?;
        // Now, so that its first sandbox does not have to wait for it.
        self.vault().ready(self.database(), project).await?;
        Ok(project)
    }

    /// The default project; created at first use.
    pub async fn ensure_default_project(&self, operator: &Operator) -> Result<ProjectId, StoreError> {
        match self.create_project(operator, DEFAULT_PROJECT).await {
            Ok(project) => return Ok(project),
            Err(NameError::Taken | NameError::NotFound) => {}
            Err(NameError::Store(error)) => return Err(error),
        }
        let row = sqlx::query("SELECT id FROM projects WHERE name = $1")
            .bind(DEFAULT_PROJECT)
            .fetch_one(self.database().readers())
            .await
            .doing(READ)?;
        id(&row, "id")
    }

    /// The hidden project that owns the catalogue's templates on this installation; created at first use. Each
    /// installation of a shared database has its own, because only its host has the files.
    pub async fn ensure_catalogue_project(&self, _: &Operator) -> Result<ProjectId, StoreError> {
        const DOING: &str = "create the project of the catalogue";
        let name = match self.installation() {
            Some(installation) => format!("{CATALOGUE_PROJECT} {installation}"),
            None => CATALOGUE_PROJECT.to_string(),
        };
        let ensure = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                // Its quotas are set, so that the defaults for projects of clients do not bind it.
                sqlx::query(
                    "INSERT INTO projects (id, name, created_ms, is_hidden, most_sandboxes, most_cpus, most_memory_mib,
                         most_disk_mib, most_forks, most_storage_mib)
                     VALUES ($1, $2, $3, 1, $4, $4, $4, $4, $4, $4) ON CONFLICT (name) DO NOTHING",
                )
                .bind(ProjectId::generate())
                .bind(name.clone())
                .bind(now_ms())
                .bind(PLENTY)
                .execute(&mut *connection)
                .await
                .doing(DOING)?;
                let row = sqlx::query("SELECT id FROM projects WHERE name = $1 AND is_hidden = 1");
                id(&row.bind(name).fetch_one(connection).await.doing(DOING)?, "id")
            })
        });
        let project = ensure.await?;
        self.vault().ready(self.database(), project).await?;
        Ok(project)
    }

    /// The project of that id, if the scope sees it and it is not hidden.
    pub async fn project(
        &self,
        scope: &impl Scope,
        project: ProjectId,
    ) -> Result<Option<Project>, StoreError> {
        Select::new(COLUMNS, "projects")
            .filter("id = ?", project)
            .filter_if("id = ?", scope.only())
            .filter_by("removed_ms IS NULL AND is_hidden = 0")
            .one(self.database(), READ, read)
            .await
    }

    /// Projects after `after` that are not hidden, oldest first: for people.
    pub async fn listed_projects(
        &self,
        _: &Operator,
        after: Option<ProjectId>,
        limit: u32,
    ) -> Result<Vec<Project>, StoreError> {
        Select::new(COLUMNS, "projects")
            .filter_by("removed_ms IS NULL AND is_hidden = 0")
            .oldest_first("id", after, limit)
            .all(self.database(), READ, read)
            .await
    }

    /// All projects after `after`, oldest first: for the server's own work.
    pub async fn projects(
        &self,
        _: &Operator,
        after: Option<ProjectId>,
        limit: u32,
    ) -> Result<Vec<Project>, StoreError> {
        Select::new(COLUMNS, "projects")
            .filter_by("removed_ms IS NULL")
            .oldest_first("id", after, limit)
            .all(self.database(), READ, read)
            .await
    }

    /// Renames a project with this version; `None` if the version differs or it was deleted.
    pub async fn rename_project(
        &self,
        scope: &impl Scope,
        project: ProjectId,
        version: Option<i64>,
        name: &str,
    ) -> Result<Option<Project>, NameError> {
        const DOING: &str = "rename a project";
        let (only, name) = (scope.only(), storable(name));
        let rename = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let taken = sqlx::query("SELECT id FROM projects WHERE name = $1 AND id <> $2")
                    .bind(name.clone())
                    .bind(project)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(DOING)?;
                if taken.is_some() {
                    return Err(NameError::Taken);
                }
                let renamed = sqlx::query(
                    "UPDATE projects SET name = $1, version = version + 1
                     WHERE id = $2 AND ($3 IS NULL OR id = $3) AND ($4 IS NULL OR version = $4)
                         AND removed_ms IS NULL
                     RETURNING id, name, created_ms, version",
                )
                .bind(name)
                .bind(project)
                .bind(only)
                .bind(version)
                .fetch_optional(connection)
                .await
                .doing(DOING)?;
                Ok(renamed.as_ref().map(read).transpose()?)
            })
        });
        rename.await
    }
}

fn read(row: &AnyRow) -> Result<Project, StoreError> {
    Ok(Project {
        id: id(row, "id")?,
        name: row.try_get("name").doing(READ)?,
        created_ms: row.try_get("created_ms").doing(READ)?,
        version: row.try_get("version").doing(READ)?,
    })
}

/// Locks the project's row until the transaction ends. Transactions that count or check before they write
/// lock it first, so that of two concurrent ones the second sees what the first did.
pub(crate) async fn lock_project(
    connection: &mut AnyConnection,
    project: ProjectId,
    doing: &'static str,
) -> Result<(), StoreError> {
    lock_and_read_project(connection, project, "id", doing).await.map(drop)
}

/// The same, and reads columns of the row; `None` where there is no such project.
pub(crate) async fn lock_and_read_project(
    connection: &mut AnyConnection,
    project: ProjectId,
    columns: &str,
    doing: &'static str,
) -> Result<Option<AnyRow>, StoreError> {
    let sql = format!("UPDATE projects SET last_event = last_event WHERE id = $1 RETURNING {columns}");
    sqlx::query(AssertSqlSafe(sql)).bind(project).fetch_optional(connection).await.doing(doing)
}
