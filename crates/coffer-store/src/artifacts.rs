//! Artifacts: stored results of runs. The contents are files of the server; these are their records.

use coffer_core::event::{ArtifactNote, Event};
use coffer_core::{ArtifactId, ArtifactKind, Millis, ProjectId, RunId, SandboxId, TaskId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use crate::columns::{id, number, optional_id, optional_text, storable, text, unreadable};
use crate::error::Doing;
use crate::projects::lock_and_read_project;
use crate::select::Select;
use crate::{Operator, ProjectScope, Store, StoreError, events, now_ms};

const READ: &str = "read artifacts";
const CHANGE: &str = "store an artifact";
/// Ids in one query.
const ASKED_AT_ONCE: usize = 100;

/// What an artifact is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArtifactLinks {
    pub run: Option<RunId>,
    pub task: Option<TaskId>,
    pub sandbox: Option<SandboxId>,
    pub context_id: Option<String>,
}

/// The contents, which are already stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArtifactContents {
    Kept { size_bytes: i64, sha256: String },
    Link { url: String },
}

/// A new artifact.
#[derive(Debug, Clone)]
pub struct NewArtifact {
    pub id: ArtifactId,
    pub kind: ArtifactKind,
    pub name: String,
    pub content_type: String,
    pub description: String,
    pub links: ArtifactLinks,
    pub contents: ArtifactContents,
    /// An artifact with this key is stored once, however often it is tried.
    pub once_key: Option<String>,
    pub actor: String,
}

/// An artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactRow {
    pub id: ArtifactId,
    pub project: ProjectId,
    pub kind: ArtifactKind,
    pub name: String,
    pub content_type: String,
    pub size_bytes: i64,
    pub sha256: Option<String>,
    pub url: Option<String>,
    pub description: String,
    pub links: ArtifactLinks,
    pub installation: Option<String>,
    pub created_by: String,
    pub created_ms: Millis,
}

/// Selects artifacts; `None` matches any.
#[derive(Debug, Clone, Default)]
pub struct ArtifactFilter {
    pub kind: Option<ArtifactKind>,
    pub links: ArtifactLinks,
    pub before: Option<ArtifactId>,
    pub limit: u32,
}

/// Why an artifact was not stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ArtifactError {
    #[error("{0} not found")]
    NoSuch(&'static str),
    #[error("the project's artifacts have {used} bytes, and may have {limit}")]
    OverQuota { used: i64, limit: i64 },
    /// Whatever their size: each costs a row, a file and an event.
    #[error("a project may have at most {MOST_ARTIFACTS} artifacts")]
    TooMany,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Most artifacts of a project.
pub const MOST_ARTIFACTS: i64 = 100_000;

const COLUMNS: &str = "id, project_id, kind, name, content_type, size_bytes, sha256, url, description, run_id, \
                       task_id, sandbox_id, context_id, installation, created_by, created_ms";

/// An agent sees its own artifacts, and those about its tasks and sandboxes.
const SEEN_BY_AGENT: &str = "(created_by = 'agent:' || ?
     OR EXISTS (SELECT 1 FROM tasks AS t WHERE t.id = artifacts.task_id AND t.agent_id = ?)
     OR EXISTS (SELECT 1 FROM sandboxes AS s WHERE s.id = artifacts.sandbox_id AND s.agent_id = ?))";

/// The artifacts that the scope sees.
fn visible(scope: &ProjectScope) -> Select {
    Select::new(COLUMNS, "artifacts")
        .filter("project_id = ?", scope.project())
        .filter_if(SEEN_BY_AGENT, scope.agent())
}

impl Store {
    /// Records an artifact whose contents are already stored, if the project's stay within `most_bytes`.
    /// Returns whether it is new: for a `once_key` that exists, returns the existing one.
    pub async fn add_artifact(
        &self,
        scope: &ProjectScope,
        new: NewArtifact,
        most_bytes: i64,
    ) -> Result<(ArtifactRow, bool), ArtifactError> {
        let (scope, installation) = (*scope, self.installation());
        let add = self.database().write(CHANGE, move |connection| {
            Box::pin(async move { insert(connection, &scope, new, most_bytes, installation).await })
        });
        add.await
    }

    /// The artifact of that id.
    pub async fn artifact(
        &self,
        scope: &ProjectScope,
        artifact: ArtifactId,
    ) -> Result<Option<ArtifactRow>, StoreError> {
        visible(scope).filter("id = ?", artifact).one(self.database(), READ, read).await
    }

    /// The artifact of a run under a key, if it exists.
    pub async fn artifact_once(
        &self,
        scope: &ProjectScope,
        once_key: &str,
    ) -> Result<Option<ArtifactRow>, StoreError> {
        Select::new(COLUMNS, "artifacts")
            .filter("project_id = ?", scope.project())
            .filter("once_key = ?", storable(once_key))
            .one(self.database(), READ, read)
            .await
    }

    /// The artifacts that match the filter, newest first.
    pub async fn artifacts(
        &self,
        scope: &ProjectScope,
        filter: &ArtifactFilter,
    ) -> Result<Vec<ArtifactRow>, StoreError> {
        let links = &filter.links;
        visible(scope)
            .filter_if("kind = ?", filter.kind.map(ArtifactKind::as_str))
            .filter_if("run_id = ?", links.run)
            .filter_if("task_id = ?", links.task)
            .filter_if("sandbox_id = ?", links.sandbox)
            .filter_if("context_id = ?", links.context_id.as_deref().map(storable))
            .newest_first("id", filter.before, filter.limit)
            .all(self.database(), READ, read)
            .await
    }

    /// The total size of the project's artifacts.
    pub async fn artifact_bytes(&self, scope: &ProjectScope) -> Result<i64, StoreError> {
        let row = sqlx::query("SELECT artifact_bytes FROM projects WHERE id = $1")
            .bind(scope.project())
            .fetch_one(self.database().readers())
            .await
            .doing(READ)?;
        number(&row, "artifact_bytes")
    }

    /// Deletes the record of an artifact; its contents can be deleted then. `None` if there was none.
    pub async fn remove_artifact(
        &self,
        scope: &ProjectScope,
        artifact: ArtifactId,
    ) -> Result<Option<ArtifactRow>, StoreError> {
        let scope = *scope;
        let remove = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let sql = format!(
                    "DELETE FROM artifacts WHERE project_id = $1 AND ($2 IS NULL OR {}) AND id = $3
                     RETURNING {COLUMNS}",
                    SEEN_BY_AGENT.replace('?', "$2")
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(scope.project())
                    .bind(scope.agent())
                    .bind(artifact)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row else { return Ok(None) };
                let row = read(&row)?;
                count(connection, row.project, -1, -row.size_bytes).await?;
                told(connection, &row, Event::ArtifactRemoved, now_ms()).await?;
                Ok::<_, StoreError>(Some(row))
            })
        });
        remove.await
    }

    /// Which of these are recorded, in any project.
    pub async fn known_artifacts(
        &self,
        _: &Operator,
        ids: &[ArtifactId],
    ) -> Result<Vec<ArtifactId>, StoreError> {
        let mut known = Vec::new();
        for some in ids.chunks(ASKED_AT_ONCE) {
            let places: Vec<String> = (1..=some.len()).map(|place| format!("${place}")).collect();
            let sql = format!("SELECT id FROM artifacts WHERE id IN ({})", places.join(", "));
            let mut query = sqlx::query(sqlx::AssertSqlSafe(sql));
            for artifact in some {
                query = query.bind(artifact);
            }
            let rows = query.fetch_all(self.database().readers()).await.doing(READ)?;
            for row in &rows {
                known.push(id(row, "id")?);
            }
        }
        Ok(known)
    }
}

async fn insert(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    new: NewArtifact,
    most_bytes: i64,
    installation: Option<String>,
) -> Result<(ArtifactRow, bool), ArtifactError> {
    let (project, now) = (scope.project(), now_ms());
    // Of two concurrent calls, the second counts the first.
    let held = lock_and_read_project(connection, project, "artifact_bytes, artifact_count", CHANGE).await?;
    let held = held.ok_or(sqlx::Error::RowNotFound).doing(CHANGE)?;
    if let Some(key) = &new.once_key {
        let sql = format!("SELECT {COLUMNS} FROM artifacts WHERE project_id = $1 AND once_key = $2");
        let before = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(project)
            .bind(storable(key))
            .fetch_optional(&mut *connection)
            .await
            .doing(CHANGE)?;
        if let Some(before) = before {
            return Ok((read(&before)?, false));
        }
    }
    let links = resolve(connection, scope, new.links).await?;
    let (size_bytes, sha256, url) = match new.contents {
        ArtifactContents::Kept { size_bytes, sha256 } => (size_bytes, Some(sha256), None),
        ArtifactContents::Link { url } => (0, None, Some(url)),
    };
    if number(&held, "artifact_count")? >= MOST_ARTIFACTS {
        return Err(ArtifactError::TooMany);
    }
    let used = number(&held, "artifact_bytes")?;
    if size_bytes > 0 && used.saturating_add(size_bytes) > most_bytes {
        return Err(ArtifactError::OverQuota { used, limit: most_bytes });
    }
    let sql = format!(
        "INSERT INTO artifacts (id, project_id, kind, name, content_type, size_bytes, sha256, url, description,
             run_id, task_id, sandbox_id, context_id, once_key, installation, created_by, created_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(new.id)
        .bind(project)
        .bind(new.kind.as_str())
        .bind(storable(&new.name))
        .bind(storable(&new.content_type))
        .bind(size_bytes)
        .bind(sha256)
        .bind(url.as_deref().map(storable))
        .bind(storable(&new.description))
        .bind(links.run)
        .bind(links.task)
        .bind(links.sandbox)
        .bind(links.context_id.as_deref().map(storable))
        .bind(new.once_key.as_deref().map(storable))
        .bind(installation)
        .bind(new.actor)
        .bind(now)
        .fetch_one(&mut *connection)
        .await
        .doing(CHANGE)?;
    let row = read(&row)?;
    count(connection, project, 1, size_bytes).await?;
    told(connection, &row, Event::ArtifactCreated, now).await?;
    Ok((row, true))
}

/// Keeps running totals of a project: summing all rows would get slower with their number.
async fn count(
    connection: &mut AnyConnection,
    project: ProjectId,
    more: i64,
    more_bytes: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE projects SET artifact_count = artifact_count + $1, artifact_bytes = artifact_bytes + $2
         WHERE id = $3",
    )
    .bind(more)
    .bind(more_bytes)
    .bind(project)
    .execute(connection)
    .await
    .doing(CHANGE)?;
    Ok(())
}

/// Fills in links that were left out: a run's task, and the context of a task or a competition. Given links
/// must exist, and be visible to the caller.
async fn resolve(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    mut links: ArtifactLinks,
) -> Result<ArtifactLinks, ArtifactError> {
    let project = scope.project();
    let agent = scope.agent();
    if let Some(run) = links.run {
        let row = sqlx::query("SELECT subject FROM runs WHERE id = $1 AND project_id = $2")
            .bind(run)
            .bind(project)
            .fetch_optional(&mut *connection)
            .await
            .doing(CHANGE)?;
        let subject = text(&row.ok_or(ArtifactError::NoSuch("run"))?, "subject")?;
        // The subject of a run of another kind is not a task's id, so none is found.
        let task = sqlx::query("SELECT id FROM tasks WHERE id = $1 AND project_id = $2")
            .bind(subject)
            .bind(project)
            .fetch_optional(&mut *connection)
            .await
            .doing(CHANGE)?;
        let task: Option<TaskId> = task.map(|row| id(&row, "id")).transpose()?;
        if links.task.is_some() && task.is_some() && links.task != task {
            return Err(ArtifactError::NoSuch("run"));
        }
        if agent.is_some() && task.is_none() {
            return Err(ArtifactError::NoSuch("run"));
        }
        links.task = links.task.or(task);
        if links.task.is_none() && links.context_id.is_none() {
            let row =
                sqlx::query("SELECT context_id FROM competitions WHERE run_id = $1 AND project_id = $2")
                    .bind(run)
                    .bind(project)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
            links.context_id = row.map(|row| optional_text(&row, "context_id")).transpose()?.flatten();
        }
    }
    if let Some(task) = links.task {
        let row = sqlx::query(
            "SELECT context_id FROM tasks WHERE id = $1 AND project_id = $2 AND ($3 IS NULL OR agent_id = $3)",
        )
        .bind(task)
        .bind(project)
        .bind(agent)
        .fetch_optional(&mut *connection)
        .await
        .doing(CHANGE)?;
        let context = optional_text(&row.ok_or(ArtifactError::NoSuch("task"))?, "context_id")?;
        links.context_id = links.context_id.or(context);
    }
    if let Some(sandbox) = links.sandbox {
        let row = sqlx::query(
            "SELECT id FROM sandboxes WHERE id = $1 AND project_id = $2 AND ($3 IS NULL OR agent_id = $3)",
        )
        .bind(sandbox)
        .bind(project)
        .bind(agent)
        .fetch_optional(&mut *connection)
        .await
        .doing(CHANGE)?;
        row.ok_or(ArtifactError::NoSuch("sandbox"))?;
    }
    Ok(links)
}

async fn told(
    connection: &mut AnyConnection,
    row: &ArtifactRow,
    kind: fn(ArtifactNote) -> Event,
    now: Millis,
) -> Result<(), StoreError> {
    let event = kind(ArtifactNote {
        artifact: row.id,
        kind: row.kind,
        name: row.name.clone(),
        size_bytes: row.size_bytes,
        url: row.url.clone(),
        run: row.links.run,
        task: row.links.task,
        sandbox: row.links.sandbox,
        context_id: row.links.context_id.clone(),
    });
    // Under the task's id, so that followers of a task get it.
    let subject = match (row.links.task, row.links.sandbox) {
        (Some(task), _) => task.to_string(),
        (None, Some(sandbox)) => sandbox.to_string(),
        (None, None) => row.id.to_string(),
    };
    events::record(connection, row.project, subject, event, now).await
}

fn read(row: &AnyRow) -> Result<ArtifactRow, StoreError> {
    let kind = text(row, "kind")?;
    Ok(ArtifactRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        kind: ArtifactKind::parse(&kind).ok_or_else(|| unreadable("kind", kind))?,
        name: text(row, "name")?,
        content_type: text(row, "content_type")?,
        size_bytes: number(row, "size_bytes")?,
        sha256: optional_text(row, "sha256")?,
        url: optional_text(row, "url")?,
        description: text(row, "description")?,
        links: ArtifactLinks {
            run: optional_id(row, "run_id")?,
            task: optional_id(row, "task_id")?,
            sandbox: optional_id(row, "sandbox_id")?,
            context_id: optional_text(row, "context_id")?,
        },
        installation: optional_text(row, "installation")?,
        created_by: text(row, "created_by")?,
        created_ms: row.try_get("created_ms").doing(READ)?,
    })
}
