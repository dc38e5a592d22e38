//! Settings of projects.

use coffer_core::commit::CommitPolicy;
use coffer_core::event::{Event, SettingsChanged};
use coffer_core::{AgentId, Millis, OnTimeout, ProjectId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::columns::{self, id};
use crate::error::Doing;
use crate::{Operator, Scope, Store, StoreError, events, now_ms};

const READ: &str = "read a project's settings";
const CHANGE: &str = "change a project's settings";

/// Defaults for a project's sandboxes and records; `None` is the server's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProjectSettings {
    pub timeout_s: Option<i64>,
    /// The idle timeout of a sandbox; 0 is never.
    pub idle_s: Option<i64>,
    /// The longest that a sandbox may run.
    pub max_lifetime_s: Option<i64>,
    pub on_timeout: Option<OnTimeout>,
    pub retention: Retention,
    #[serde(skip_serializing_if = "GitSettings::is_unset")]
    pub git: GitSettings,
    #[serde(skip_serializing_if = "TaskRules::is_unset")]
    pub tasks: TaskRules,
}

/// What starts a task by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskRules {
    /// A label that makes a task of an issue on GitHub and starts it.
    pub label: Option<String>,
    /// A login: assigning it to an issue does the same.
    pub assignee: Option<String>,
    /// A handle, without `@`: naming it in a comment does the same, or steers the task that there is.
    pub mention: Option<String>,
    /// The agent of such tasks.
    pub agent: Option<AgentId>,
    /// Whether giving a task to an agent starts it.
    pub start_on_assign: bool,
    /// Whether moving a task to `in_progress` starts it.
    pub start_on_move: bool,
}

impl TaskRules {
    fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// Whether anything on a forge starts a task.
    pub fn listens(&self) -> bool {
        self.label.is_some() || self.assignee.is_some() || self.mention.is_some()
    }
}

/// Author and messages of commits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GitSettings {
    /// The author of commits in sandboxes.
    pub name: Option<String>,
    pub email: Option<String>,
    pub commits: CommitPolicy,
}

impl GitSettings {
    fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

/// How many days records are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Retention {
    /// After how many days output is compressed.
    pub archive_logs_days: Option<i64>,
    pub logs_days: Option<i64>,
    /// Ended sandboxes, with their history.
    pub records_days: Option<i64>,
    pub events_days: Option<i64>,
    pub audit_days: Option<i64>,
}

/// A project's settings with their version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionedSettings {
    pub project: ProjectId,
    pub settings: ProjectSettings,
    /// 0 if none were set.
    pub version: i64,
    pub changed_ms: Millis,
}

impl Store {
    /// The settings of a project in scope.
    pub async fn project_settings(
        &self,
        scope: &impl Scope,
        project: ProjectId,
    ) -> Result<Option<VersionedSettings>, StoreError> {
        let row = sqlx::query(
            "SELECT p.id AS project_id, s.settings, s.version, s.changed_ms
             FROM projects AS p LEFT JOIN project_settings AS s ON s.project_id = p.id
             WHERE p.id = $1 AND ($2 IS NULL OR p.id = $2) AND p.removed_ms IS NULL",
        )
        .bind(project)
        .bind(scope.only())
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        row.as_ref().map(read).transpose()
    }

    /// Replaces the settings of a project that exists with this version; `None` if the version differs.
    pub async fn set_project_settings(
        &self,
        scope: &impl Scope,
        project: ProjectId,
        version: Option<i64>,
        settings: ProjectSettings,
    ) -> Result<Option<VersionedSettings>, StoreError> {
        let only = scope.only();
        let set = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                if only.is_some_and(|only| only != project) {
                    return Ok(None);
                }
                let at_ms = now_ms();
                // The expected version is that of the row, or 0 if there is none yet.
                let row = sqlx::query(
                    "INSERT INTO project_settings (project_id, settings, version, changed_ms)
                     SELECT $1, $2, 1, $3 FROM projects
                     WHERE id = $1 AND ($4 IS NULL OR $4 = COALESCE(
                         (SELECT version FROM project_settings WHERE project_id = $1), 0))
                     ON CONFLICT (project_id) DO UPDATE SET
                         settings = excluded.settings, changed_ms = excluded.changed_ms,
                         version = project_settings.version + 1
                     WHERE $4 IS NULL OR project_settings.version = $4
                     RETURNING project_id, settings, version, changed_ms",
                )
                .bind(project)
                .bind(columns::json(&settings))
                .bind(at_ms)
                .bind(version)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                let Some(row) = row else { return Ok(None) };
                let event = Event::ProjectSettingsChanged(SettingsChanged { settings: json!(settings) });
                events::record(connection, project, project, event, at_ms).await?;
                read(&row).map(Some)
            })
        });
        set.await
    }

    /// All settings that changed at `since_ms` or later.
    pub async fn settings_changed_since(
        &self,
        _: &Operator,
        since_ms: Millis,
    ) -> Result<Vec<VersionedSettings>, StoreError> {
        let rows = sqlx::query(
            "SELECT project_id, settings, version, changed_ms FROM project_settings WHERE changed_ms >= $1",
        )
        .bind(since_ms)
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(read).collect()
    }
}

fn read(row: &AnyRow) -> Result<VersionedSettings, StoreError> {
    let text: Option<String> = row.try_get("settings").doing(READ)?;
    let settings = text.map(|text| serde_json::from_str(&text)).transpose();
    Ok(VersionedSettings {
        project: id(row, "project_id")?,
        settings: settings
            .map_err(|error| StoreError::Unreadable { what: "settings", why: error.to_string() })?
            .unwrap_or_default(),
        version: row.try_get::<Option<i64>, _>("version").doing(READ)?.unwrap_or(0),
        changed_ms: row.try_get::<Option<i64>, _>("changed_ms").doing(READ)?.unwrap_or(0),
    })
}
