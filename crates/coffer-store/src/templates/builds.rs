//! Builds of templates.

use coffer_core::event::{Event, TemplateBuild};
use coffer_core::{
    BuildCause, BuildId, BuildPlan, BuildState, Millis, ProjectId, SandboxId, SnapshotId, TemplateDefaults,
    TemplateId,
};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

use super::{CHANGE, DEFAULT_TAG, MOST_TEMPLATES, READ, TemplateError, TemplateSize, set_tag};
use crate::columns::{
    first, from_json, id, json, moves, name, number, optional_id, optional_text, states, storable, text,
};
use crate::error::Doing;
use crate::projects::lock_project;
use crate::select::Select;
use crate::vault::Vault;
use crate::{Operator, ProjectScope, Scope, Store, StoreError, events, now_ms};

/// A build to be requested.
#[derive(Debug, Clone)]
pub struct NewBuild {
    /// The template's name; a template without one is named by its id.
    pub name: Option<String>,
    /// The tags it gets when it is ready; [`DEFAULT_TAG`] if empty.
    pub tags: Vec<String>,
    pub size: TemplateSize,
    /// What the template is for; `None` keeps what was said before.
    pub summary: Option<String>,
    /// The key that requested it.
    pub created_by: Option<String>,
}

/// A recorded build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRow {
    pub id: BuildId,
    pub template: TemplateId,
    pub template_name: String,
    pub project: ProjectId,
    pub installation: Option<String>,
    pub state: BuildState,
    pub tags: Vec<String>,
    pub size: TemplateSize,
    /// `None` until it is started.
    pub plan: Option<BuildPlan>,
    /// The sandbox in which it runs.
    pub sandbox: Option<SandboxId>,
    pub tries: i64,
    /// The template's files, once it is ready.
    pub snapshot: Option<SnapshotId>,
    pub failure: Option<BuildFailure>,
    pub log_lines: i64,
    pub created_by: Option<String>,
    pub created_ms: Millis,
    pub started_ms: Option<Millis>,
    pub ended_ms: Option<Millis>,
}

/// Why a build failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildFailure {
    pub message: String,
    /// `base`, `finalize` or the number of the step, from 1.
    pub step: Option<String>,
}

/// A build that may run, with its credentials.
#[derive(Debug, Clone)]
pub struct StartedBuild {
    pub row: BuildRow,
    pub plan: BuildPlan,
    /// JSON of the credentials for its image, if they were given and can be read.
    pub registry: Option<String>,
}

/// Selects builds.
#[derive(Debug, Clone, Default)]
pub struct BuildFilter {
    pub template: Option<TemplateId>,
    pub state: Option<BuildState>,
    pub before: Option<BuildId>,
    pub limit: u32,
}

/// The longest recorded reason of a failure.
const LONGEST_FAILURE: usize = 16 * 1024;

pub(super) const COLUMNS: &str = "id, template_id, (SELECT t.name FROM templates AS t WHERE t.id = template_id) AS name, project_id, \
                       installation, state, tags, cpu_count, memory_mib, disk_mib, plan, registry_secret, sandbox_id, tries, \
                       snapshot_id, failure, failed_step, log_lines, created_by, created_ms, started_ms, ended_ms";

impl Store {
    /// Records a build as `waiting`, with its template if the name is new.
    pub async fn request_build(
        &self,
        scope: &ProjectScope,
        new: NewBuild,
    ) -> Result<BuildRow, TemplateError> {
        let (project, installation) = (scope.project(), self.installation());
        let request = self.database().write(CHANGE, move |connection| {
            Box::pin(async move { request(connection, project, installation, new).await })
        });
        request.await
    }

    /// Starts a waiting build. `None` if there is no such build, or it was started before.
    pub async fn start_build(
        &self,
        scope: &ProjectScope,
        template: TemplateId,
        build: BuildId,
        plan: BuildPlan,
        registry: Option<String>,
    ) -> Result<Option<BuildRow>, StoreError> {
        let project = scope.project();
        self.vault().ready(self.database(), project).await?;
        let registry = registry.map(|text| self.vault().seal(project, &purpose(build), &text)).transpose()?;
        let start = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let sql = format!(
                    "UPDATE template_builds SET state = {}, plan = $1, registry_secret = $2, started_ms = $3
                     WHERE id = $4 AND template_id = $5 AND project_id = $6 AND state IN ({}) RETURNING {COLUMNS}",
                    moves::<BuildState>(BuildCause::Started),
                    states::<BuildState>(BuildCause::Started),
                );
                let row = sqlx::query(AssertSqlSafe(sql))
                    .bind(storable(&json(&plan)))
                    .bind(registry)
                    .bind(now_ms())
                    .bind(build)
                    .bind(template)
                    .bind(project)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row else { return Ok(None) };
                let row = read(&row)?;
                tell(connection, &row, Event::TemplateBuildStarted).await?;
                Ok(Some(row))
            })
        });
        start.await
    }

    /// A build of a project.
    pub async fn build(
        &self,
        scope: &impl Scope,
        template: Option<TemplateId>,
        build: BuildId,
    ) -> Result<Option<BuildRow>, StoreError> {
        Select::new(COLUMNS, "template_builds")
            .filter("id = ?", build)
            .filter_if("project_id = ?", scope.only())
            .filter_if("template_id = ?", template)
            .one(self.database(), READ, read)
            .await
    }

    /// Builds of a project, newest first.
    pub async fn builds(
        &self,
        scope: &ProjectScope,
        filter: &BuildFilter,
    ) -> Result<Vec<BuildRow>, StoreError> {
        Select::new(COLUMNS, "template_builds")
            .filter("project_id = ?", scope.project())
            .filter_if("template_id = ?", filter.template)
            .filter_if("state = ?", filter.state.map(BuildState::as_str))
            .newest_first("id", filter.before, filter.limit)
            .all(self.database(), READ, read)
            .await
    }

    /// Builds of this installation that should run, oldest first.
    pub async fn unfinished_builds(&self, _: &Operator) -> Result<Vec<StartedBuild>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM template_builds
             WHERE state = 'building' AND ($1 IS NULL OR installation = $1) ORDER BY started_ms, id"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(self.installation())
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        let started = rows.iter().map(|row| started(row, self.vault())).collect::<Result<Vec<_>, _>>()?;
        Ok(started.into_iter().flatten().collect())
    }

    /// The build, if it should run.
    pub async fn started_build(
        &self,
        _: &Operator,
        build: BuildId,
    ) -> Result<Option<StartedBuild>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM template_builds WHERE id = $1 AND state = 'building'");
        let row = sqlx::query(AssertSqlSafe(sql))
            .bind(build)
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.map_or(Ok(None), |row| started(&row, self.vault()))
    }

    /// Records the sandbox in which a build runs, and counts the try. `false` if the build is over.
    pub async fn note_build_sandbox(
        &self,
        _: &Operator,
        build: BuildId,
        sandbox: Option<SandboxId>,
    ) -> Result<bool, StoreError> {
        let note = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let sql = "UPDATE template_builds SET sandbox_id = $1,
                               tries = tries + CASE WHEN $1 IS NULL THEN 0 ELSE 1 END
                           WHERE id = $2 AND state = 'building'";
                let noted = sqlx::query(sql).bind(sandbox).bind(build).execute(connection).await;
                Ok(noted.doing(CHANGE)?.rows_affected() > 0)
            })
        });
        note.await
    }

    /// Makes a build usable: its snapshot, its state and its tags change together. `None` if it is over.
    pub async fn finish_build(
        &self,
        _: &Operator,
        build: BuildId,
        snapshot: SnapshotId,
        defaults: Option<TemplateDefaults>,
    ) -> Result<Option<BuildRow>, StoreError> {
        let finish = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let sql = format!(
                    "UPDATE template_builds SET state = {}, snapshot_id = $1, ended_ms = $2, registry_secret = NULL,
                         sandbox_id = NULL, defaults = $3
                     WHERE id = $4 AND state IN ({}) RETURNING {COLUMNS}",
                    moves::<BuildState>(BuildCause::Finished),
                    states::<BuildState>(BuildCause::Finished),
                );
                let row = sqlx::query(AssertSqlSafe(sql))
                    .bind(snapshot)
                    .bind(now)
                    .bind(defaults.as_ref().map(|defaults| storable(&json(defaults))))
                    .bind(build)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row else { return Ok(None) };
                let row = read(&row)?;
                for tag in &row.tags {
                    set_tag(connection, row.template, tag, row.id).await?;
                }
                let [cpu_count, memory_mib, disk_mib] = row.size.columns();
                sqlx::query(
                    "UPDATE templates SET updated_ms = $1, cpu_count = $2, memory_mib = $3, disk_mib = $4
                     WHERE id = $5",
                )
                .bind(now)
                .bind(cpu_count)
                .bind(memory_mib)
                .bind(disk_mib)
                .bind(row.template)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                tell(connection, &row, Event::TemplateBuildReady).await?;
                Ok(Some(row))
            })
        });
        finish.await
    }

    /// Ends a build without a result. `None` if it is over.
    pub async fn fail_build(
        &self,
        _: &Operator,
        build: BuildId,
        failure: BuildFailure,
    ) -> Result<Option<BuildRow>, StoreError> {
        let fail = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let sql = format!(
                    "UPDATE template_builds SET state = {}, failure = $1, failed_step = $2, ended_ms = $3,
                         registry_secret = NULL, sandbox_id = NULL
                     WHERE id = $4 AND state IN ({}) RETURNING {COLUMNS}",
                    moves::<BuildState>(BuildCause::Failed),
                    states::<BuildState>(BuildCause::Failed),
                );
                let message: String = failure.message.chars().take(LONGEST_FAILURE).collect();
                let row = sqlx::query(AssertSqlSafe(sql))
                    .bind(storable(&message))
                    .bind(failure.step.as_deref().map(storable))
                    .bind(now_ms())
                    .bind(build)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row else { return Ok(None) };
                let row = read(&row)?;
                tell(connection, &row, Event::TemplateBuildFailed).await?;
                Ok(Some(row))
            })
        });
        fail.await
    }

    /// Deletes builds of this installation that no tag names and that ended before `before_ms`, and failed and
    /// never started ones. Returns their snapshots, which the caller deletes.
    pub async fn prune_builds(&self, _: &Operator, before_ms: Millis) -> Result<Vec<SnapshotId>, StoreError> {
        let installation = self.installation();
        let prune = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let rows = sqlx::query(
                    "DELETE FROM template_builds
                     WHERE ($1 IS NULL OR installation = $1)
                         AND NOT EXISTS (SELECT 1 FROM template_tags AS g WHERE g.build_id = template_builds.id)
                         AND ((state IN ('ready', 'error') AND ended_ms < $2) OR (state = 'waiting' AND created_ms < $2))
                     RETURNING snapshot_id",
                )
                .bind(installation)
                .bind(before_ms)
                .fetch_all(&mut *connection)
                .await
                .doing(CHANGE)?;
                // A template whose builds all failed is nothing.
                sqlx::query(
                    "DELETE FROM templates WHERE created_ms < $1
                         AND NOT EXISTS (SELECT 1 FROM template_builds AS b WHERE b.template_id = templates.id)",
                )
                .bind(before_ms)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                let snapshots: Result<Vec<_>, StoreError> =
                    rows.iter().map(|row| optional_id(row, "snapshot_id")).collect();
                Ok(snapshots?.into_iter().flatten().collect())
            })
        });
        prune.await
    }
}

async fn request(
    connection: &mut AnyConnection,
    project: ProjectId,
    installation: Option<String>,
    new: NewBuild,
) -> Result<BuildRow, TemplateError> {
    // Of two requests for one new name, the second finds the first one's template.
    lock_project(connection, project, CHANGE).await?;
    let now = now_ms();
    let known = match &new.name {
        Some(name) => {
            let sql = "SELECT id FROM templates WHERE project_id = $1 AND name = $2";
            let row = sqlx::query(sql).bind(project).bind(storable(name)).fetch_optional(&mut *connection);
            row.await.doing(CHANGE)?.map(|row| id(&row, "id")).transpose()?
        }
        None => None,
    };
    let [cpu_count, memory_mib, disk_mib] = new.size.columns();
    let summary = new.summary.as_deref().map(storable);
    let template: TemplateId = match known {
        Some(known) => {
            if let Some(summary) = summary {
                let sql = "UPDATE templates SET summary = $1 WHERE id = $2";
                sqlx::query(sql).bind(summary).bind(known).execute(&mut *connection).await.doing(CHANGE)?;
            }
            known
        }
        None => {
            let count = sqlx::query("SELECT COUNT(*) AS count FROM templates WHERE project_id = $1")
                .bind(project)
                .fetch_one(&mut *connection)
                .await
                .doing(CHANGE)?;
            if number(&count, "count")? >= MOST_TEMPLATES {
                return Err(TemplateError::TooMany);
            }
            let template = TemplateId::generate();
            sqlx::query(
                "INSERT INTO templates (id, project_id, name, cpu_count, memory_mib, disk_mib, summary, created_by,
                     created_ms, updated_ms)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)",
            )
            .bind(template)
            .bind(project)
            .bind(storable(&new.name.unwrap_or_else(|| template.to_string())))
            .bind(cpu_count)
            .bind(memory_mib)
            .bind(disk_mib)
            .bind(summary)
            .bind(new.created_by.clone())
            .bind(now)
            .execute(&mut *connection)
            .await
            .doing(CHANGE)?;
            template
        }
    };
    let tags = if new.tags.is_empty() { vec![DEFAULT_TAG.to_string()] } else { new.tags };
    let sql = format!(
        "INSERT INTO template_builds (id, template_id, project_id, installation, state, tags, cpu_count, memory_mib,
             disk_mib, created_by, created_ms)
         VALUES ($1, $2, $3, $4, {}, $5, $6, $7, $8, $9, $10) RETURNING {COLUMNS}",
        first::<BuildState>()
    );
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(BuildId::generate())
        .bind(template)
        .bind(project)
        .bind(installation)
        .bind(json(&tags))
        .bind(cpu_count)
        .bind(memory_mib)
        .bind(disk_mib)
        .bind(new.created_by)
        .bind(now)
        .fetch_one(&mut *connection)
        .await
        .doing(CHANGE)?;
    Ok(read(&row)?)
}

/// The purpose string that seals the credentials of a build.
fn purpose(build: BuildId) -> String {
    format!("template_builds/{build}/registry_secret")
}

/// The build with its credentials; `None` if it was never started.
fn started(row: &AnyRow, vault: &Vault) -> Result<Option<StartedBuild>, StoreError> {
    let build = read(row)?;
    let Some(plan) = build.plan.clone() else { return Ok(None) };
    let sealed = optional_text(row, "registry_secret")?;
    // Credentials under a missing master key are as good as none: the registry then says what is wrong.
    let registry = sealed.and_then(|text| vault.open_text(build.project, &purpose(build.id), &text).ok());
    Ok(Some(StartedBuild { row: build, plan, registry }))
}

async fn tell(
    connection: &mut AnyConnection,
    row: &BuildRow,
    kind: fn(TemplateBuild) -> Event,
) -> Result<(), StoreError> {
    let event = kind(TemplateBuild {
        build_id: row.id,
        name: row.template_name.clone(),
        tags: row.tags.clone(),
        reason: row.failure.as_ref().map(|failure| failure.message.chars().take(1000).collect()),
        step: row.failure.as_ref().and_then(|failure| failure.step.clone()),
    });
    events::record(connection, row.project, row.template, event, now_ms()).await
}

pub(super) fn read(row: &AnyRow) -> Result<BuildRow, StoreError> {
    let failure = optional_text(row, "failure")?;
    let plan = optional_text(row, "plan")?;
    Ok(BuildRow {
        id: id(row, "id")?,
        template: id(row, "template_id")?,
        template_name: text(row, "name")?,
        project: id(row, "project_id")?,
        installation: optional_text(row, "installation")?,
        state: name(row, "state", BuildState::parse)?,
        tags: from_json(&text(row, "tags")?, "tags")?,
        size: TemplateSize::read(row)?,
        plan: plan.map(|text| from_json(&text, "plan")).transpose()?,
        sandbox: optional_id(row, "sandbox_id")?,
        tries: number(row, "tries")?,
        snapshot: optional_id(row, "snapshot_id")?,
        failure: failure
            .map(|message| {
                Ok::<_, StoreError>(BuildFailure { message, step: optional_text(row, "failed_step")? })
            })
            .transpose()?,
        log_lines: number(row, "log_lines")?,
        created_by: optional_text(row, "created_by")?,
        created_ms: number(row, "created_ms")?,
        started_ms: row.try_get("started_ms").doing(READ)?,
        ended_ms: row.try_get("ended_ms").doing(READ)?,
    })
}
