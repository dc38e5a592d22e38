//! Templates that projects build: names, tags and builds. Their files are snapshots.
//!
//! A template exists from the first request for a build, and is visible once a build is ready. A build becomes
//! ready and gets its tags in one transaction, so a tag always names something that sandboxes can start from.

mod builds;
mod files;
mod layers;
mod list;
mod logs;

use coffer_core::event::{Event, TemplateGone};
use coffer_core::{BuildId, Millis, ProjectId, SnapshotId, TemplateId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

use crate::columns::{bigint, id, number, optional_text, storable, text, unreadable};
use crate::error::Doing;
use crate::projects::lock_project;
use crate::{ProjectScope, Store, StoreError, events, now_ms};

pub use builds::{BuildFailure, BuildFilter, BuildRow, NewBuild, StartedBuild};
pub use files::{TemplateFiles, UploadGrant};
pub use layers::{Layer, LayerUse};
pub use list::{TemplateEntry, TemplateFilter, TemplateState};
pub use logs::{BuildLogLine, BuildLogPage, MOST_LOG_BYTES, MOST_LOG_LINES};

const READ: &str = "read templates";
const CHANGE: &str = "change a template";

/// Most templates of a project.
pub const MOST_TEMPLATES: i64 = 1_000;

/// The tag that a reference without one means.
const DEFAULT_TAG: &str = "default";

/// The size of a template's sandboxes; `None` is the server's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TemplateSize {
    pub cpu_count: Option<u32>,
    pub memory_mib: Option<u64>,
    pub disk_mib: Option<u64>,
}

/// A template with at least one ready build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRow {
    pub id: TemplateId,
    pub project: ProjectId,
    pub name: String,
    pub size: TemplateSize,
    pub created_by: Option<String>,
    pub created_ms: Millis,
    pub updated_ms: Millis,
    pub spawn_count: i64,
    pub last_spawned_ms: Option<Millis>,
    /// The newest ready build.
    pub build: BuildId,
    pub build_count: i64,
}

/// A ready build that a reference names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsableTemplate {
    pub id: TemplateId,
    pub name: String,
    pub build: BuildId,
    pub snapshot: SnapshotId,
    pub size: TemplateSize,
}

/// A tag of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateTag {
    pub tag: String,
    pub build: BuildId,
    pub created_ms: Millis,
}

/// Why a template was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TemplateError {
    #[error("template '{0}' not found")]
    NotFound(String),
    #[error("template '{name}' has no tag '{tag}'")]
    NoTag { name: String, tag: String },
    /// Every template has it.
    #[error("the tag 'default' cannot be removed")]
    DefaultTag,
    #[error("a project has at most {MOST_TEMPLATES} templates")]
    TooMany,
    #[error(transparent)]
    Store(#[from] StoreError),
}

const COLUMNS: &str = "t.id, t.project_id, t.name, t.cpu_count, t.memory_mib, t.disk_mib, t.created_by, t.created_ms, \
                       t.updated_ms, t.spawn_count, t.last_spawned_ms, \
                       (SELECT MAX(b.id) FROM template_builds AS b WHERE b.template_id = t.id AND b.state = 'ready') \
                           AS build_id, \
                       (SELECT COUNT(*) FROM template_builds AS b WHERE b.template_id = t.id AND b.state = 'ready') \
                           AS build_count";

const VISIBLE: &str =
    "EXISTS (SELECT 1 FROM template_builds AS b WHERE b.template_id = t.id AND b.state = 'ready')";

impl Store {
    /// Templates of a project with a ready build, by name.
    pub async fn templates(
        &self,
        scope: &ProjectScope,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<TemplateRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM templates AS t WHERE t.project_id = $1 AND t.name > $2 AND {VISIBLE}
             ORDER BY t.name LIMIT $3"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(scope.project())
            .bind(storable(after.unwrap_or_default()))
            .bind(i64::from(limit))
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(read).collect()
    }

    /// The template of that id or name, if it has a ready build.
    pub async fn template(
        &self,
        scope: &ProjectScope,
        id_or_name: &str,
    ) -> Result<Option<TemplateRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM templates AS t
             WHERE t.project_id = $1 AND (t.id = $2 OR t.name = $2) AND {VISIBLE}"
        );
        let row = sqlx::query(AssertSqlSafe(sql))
            .bind(scope.project())
            .bind(storable(id_or_name))
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.as_ref().map(read).transpose()
    }

    /// The ready build that a name or id and a tag refer to. A build's own id is a tag too.
    pub async fn usable_template(
        &self,
        scope: &ProjectScope,
        id_or_name: &str,
        tag: &str,
    ) -> Result<Option<UsableTemplate>, StoreError> {
        let row = sqlx::query(
            "SELECT t.id, t.name, b.id AS build_id, b.snapshot_id, b.cpu_count, b.memory_mib, b.disk_mib
             FROM templates AS t
             JOIN template_tags AS g ON g.template_id = t.id AND g.tag = $3
             JOIN template_builds AS b ON b.id = g.build_id
             WHERE t.project_id = $1 AND (t.id = $2 OR t.name = $2) AND b.state = 'ready'",
        )
        .bind(scope.project())
        .bind(storable(id_or_name))
        .bind(storable(tag))
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(UsableTemplate {
            id: id(&row, "id")?,
            name: text(&row, "name")?,
            build: id(&row, "build_id")?,
            snapshot: id(&row, "snapshot_id")?,
            size: TemplateSize::read(&row)?,
        }))
    }

    /// Counts a sandbox that was created from a template.
    pub async fn count_spawn(&self, template: TemplateId) -> Result<(), StoreError> {
        let count = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let sql =
                    "UPDATE templates SET spawn_count = spawn_count + 1, last_spawned_ms = $1 WHERE id = $2";
                sqlx::query(sql).bind(now_ms()).bind(template).execute(connection).await.doing(CHANGE)?;
                Ok(())
            })
        });
        count.await
    }

    /// The tags of a template, by name.
    pub async fn template_tags(
        &self,
        scope: &ProjectScope,
        template: TemplateId,
    ) -> Result<Vec<TemplateTag>, StoreError> {
        let rows = sqlx::query(
            "SELECT g.tag, g.build_id, g.created_ms FROM template_tags AS g
             JOIN templates AS t ON t.id = g.template_id
             WHERE t.project_id = $1 AND t.id = $2 ORDER BY g.tag",
        )
        .bind(scope.project())
        .bind(template)
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter()
            .map(|row| {
                Ok(TemplateTag {
                    tag: text(row, "tag")?,
                    build: id(row, "build_id")?,
                    created_ms: number(row, "created_ms")?,
                })
            })
            .collect()
    }

    /// Gives more tags to the build that `name:tag` refers to; a tag that named another build moves.
    pub async fn tag_template(
        &self,
        scope: &ProjectScope,
        name: &str,
        tag: &str,
        new: Vec<String>,
    ) -> Result<BuildId, TemplateError> {
        let found = self.usable_template(scope, name, tag).await?;
        let Some(found) = found else {
            return Err(match self.template(scope, name).await? {
                Some(_) => TemplateError::NoTag { name: name.to_string(), tag: tag.to_string() },
                None => TemplateError::NotFound(name.to_string()),
            });
        };
        let (template, build) = (found.id, found.build);
        let change = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                for tag in &new {
                    set_tag(connection, template, tag, build).await?;
                }
                Ok::<_, StoreError>(())
            })
        });
        change.await?;
        Ok(build)
    }

    /// Removes tags. Either all of them exist or nothing changes.
    pub async fn untag_template(
        &self,
        scope: &ProjectScope,
        name: &str,
        tags: Vec<String>,
    ) -> Result<(), TemplateError> {
        if tags.iter().any(|tag| tag == DEFAULT_TAG) {
            return Err(TemplateError::DefaultTag);
        }
        let found = self.template(scope, name).await?;
        let template = found.ok_or_else(|| TemplateError::NotFound(name.to_string()))?;
        let change = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                for tag in tags {
                    let sql = "DELETE FROM template_tags WHERE template_id = $1 AND tag = $2";
                    let removed =
                        sqlx::query(sql).bind(template.id).bind(storable(&tag)).execute(&mut *connection);
                    if removed.await.doing(CHANGE)?.rows_affected() == 0 {
                        return Err(TemplateError::NoTag { name: template.name, tag });
                    }
                }
                Ok(())
            })
        });
        change.await
    }

    /// Deletes a template with its builds, logs and tags. Returns its name and the snapshots of its builds, which
    /// the caller deletes.
    pub async fn delete_template(
        &self,
        scope: &ProjectScope,
        template: TemplateId,
    ) -> Result<Option<DeletedTemplate>, StoreError> {
        let project = scope.project();
        let delete = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                lock_project(connection, project, CHANGE).await?;
                let rows = sqlx::query(
                    "SELECT b.id, b.snapshot_id FROM template_builds AS b
                     WHERE b.template_id = $1 AND b.project_id = $2",
                )
                .bind(template)
                .bind(project)
                .fetch_all(&mut *connection)
                .await
                .doing(CHANGE)?;
                let mut gone = DeletedTemplate::default();
                for row in &rows {
                    gone.builds.push(id(row, "id")?);
                    gone.snapshots.extend(crate::columns::optional_id(row, "snapshot_id")?);
                }
                let sql = "DELETE FROM templates WHERE id = $1 AND project_id = $2 RETURNING name";
                let row = sqlx::query(sql).bind(template).bind(project).fetch_optional(&mut *connection);
                let Some(row) = row.await.doing(CHANGE)? else { return Ok(None) };
                let event = Event::TemplateDeleted(TemplateGone { name: text(&row, "name")? });
                events::record(connection, project, template, event, now_ms()).await?;
                Ok(Some(gone))
            })
        });
        delete.await
    }
}

/// What a deleted template leaves behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeletedTemplate {
    pub builds: Vec<BuildId>,
    pub snapshots: Vec<SnapshotId>,
}

async fn set_tag(
    connection: &mut AnyConnection,
    template: TemplateId,
    tag: &str,
    build: BuildId,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO template_tags (template_id, tag, build_id, created_ms) VALUES ($1, $2, $3, $4)
         ON CONFLICT (template_id, tag) DO UPDATE SET
             build_id = excluded.build_id, created_ms = excluded.created_ms",
    )
    .bind(template)
    .bind(storable(tag))
    .bind(build)
    .bind(now_ms())
    .execute(connection)
    .await
    .doing(CHANGE)?;
    Ok(())
}

impl TemplateSize {
    fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let optional = |column: &'static str| row.try_get::<Option<i64>, _>(column).doing(READ);
        let fits = |column, value: i64| u32::try_from(value).map_err(|_| unreadable(column, value));
        let mib = |column: &'static str| {
            let value = optional(column)?;
            value.map(|value| u64::try_from(value).map_err(|_| unreadable(column, value))).transpose()
        };
        Ok(Self {
            cpu_count: optional("cpu_count")?.map(|value| fits("cpu_count", value)).transpose()?,
            memory_mib: mib("memory_mib")?,
            disk_mib: mib("disk_mib")?,
        })
    }

    fn columns(self) -> [Option<i64>; 3] {
        [self.cpu_count.map(i64::from), self.memory_mib.map(bigint), self.disk_mib.map(bigint)]
    }
}

fn read(row: &AnyRow) -> Result<TemplateRow, StoreError> {
    Ok(TemplateRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        name: text(row, "name")?,
        size: TemplateSize::read(row)?,
        created_by: optional_text(row, "created_by")?,
        created_ms: number(row, "created_ms")?,
        updated_ms: number(row, "updated_ms")?,
        spawn_count: number(row, "spawn_count")?,
        last_spawned_ms: row.try_get("last_spawned_ms").doing(READ)?,
        build: id(row, "build_id")?,
        build_count: number(row, "build_count")?,
    })
}
