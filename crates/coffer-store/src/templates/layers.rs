//! Cached results of build steps. Each project finds only its own.

use coffer_core::{Millis, ProjectId, SnapshotId, TemplateDefaults};
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::{CHANGE, READ};
use crate::columns::{from_json, id, json, text};
use crate::error::Doing;
use crate::{Operator, Store, StoreError, now_ms};

/// A cached result: a snapshot, and what the next step starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub key: String,
    pub snapshot: SnapshotId,
    pub defaults: TemplateDefaults,
}

/// A layer that may be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerUse {
    pub project: ProjectId,
    pub snapshot: SnapshotId,
}

impl Store {
    /// Those of the keys that are cached and whose snapshot is ready, in no order. They count as used now.
    pub async fn layers(&self, project: ProjectId, keys: &[String]) -> Result<Vec<Layer>, StoreError> {
        let here = self.installation().unwrap_or_default();
        let mut found = Vec::new();
        for some in keys.chunks(200) {
            let places: Vec<String> = (3..some.len() + 3).map(|place| format!("${place}")).collect();
            let sql = format!(
                "SELECT l.key, l.snapshot_id, l.defaults FROM template_layers AS l
                 JOIN snapshots AS s ON s.id = l.snapshot_id AND s.state = 'ready'
                 WHERE l.project_id = $1 AND l.installation = $2 AND l.key IN ({})",
                places.join(", ")
            );
            let query = sqlx::query(AssertSqlSafe(sql)).bind(project).bind(here.clone());
            let query = some.iter().fold(query, |query, key| query.bind(key.clone()));
            let rows = query.fetch_all(self.database().readers()).await.doing(READ)?;
            for row in &rows {
                found.push(read(row)?);
            }
        }
        let used: Vec<String> = found.iter().map(|layer| layer.key.clone()).collect();
        if !used.is_empty() {
            self.touch_layers(project, used).await?;
        }
        Ok(found)
    }

    async fn touch_layers(&self, project: ProjectId, keys: Vec<String>) -> Result<(), StoreError> {
        let here = self.installation().unwrap_or_default();
        let touch = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                for key in keys {
                    let sql = "UPDATE template_layers SET used_ms = $1
                               WHERE project_id = $2 AND key = $3 AND installation = $4";
                    let touch = sqlx::query(sql).bind(now_ms()).bind(project).bind(key).bind(here.clone());
                    touch.execute(&mut *connection).await.doing(CHANGE)?;
                }
                Ok(())
            })
        });
        touch.await
    }

    /// Caches a result. Of two builds with the same key the later one wins; the earlier snapshot is returned, and
    /// the caller deletes it.
    pub async fn keep_layer(
        &self,
        project: ProjectId,
        layer: Layer,
    ) -> Result<Option<SnapshotId>, StoreError> {
        let here = self.installation().unwrap_or_default();
        let keep = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let sql = "DELETE FROM template_layers WHERE project_id = $1 AND key = $2 AND installation = $3
                           RETURNING snapshot_id";
                let before = sqlx::query(sql).bind(project).bind(layer.key.clone()).bind(here.clone());
                let before = before.fetch_optional(&mut *connection).await.doing(CHANGE)?;
                sqlx::query(
                    "INSERT INTO template_layers (project_id, key, installation, snapshot_id, defaults, created_ms,
                         used_ms)
                     VALUES ($1, $2, $3, $4, $5, $6, $6)",
                )
                .bind(project)
                .bind(layer.key)
                .bind(here)
                .bind(layer.snapshot)
                .bind(json(&layer.defaults))
                .bind(now)
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                before.map(|row| id(&row, "snapshot_id")).transpose()
            })
        });
        keep.await
    }

    /// Forgets layers that were not used since `before_ms`, or the `most` least recently used of one project.
    /// Returns their snapshots, which the caller deletes.
    pub async fn forget_layers(
        &self,
        _: &Operator,
        project: Option<ProjectId>,
        before_ms: Millis,
        most: u32,
    ) -> Result<Vec<LayerUse>, StoreError> {
        let here = self.installation().unwrap_or_default();
        let forget = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let rows = sqlx::query(
                    "DELETE FROM template_layers WHERE snapshot_id IN (
                         SELECT snapshot_id FROM template_layers
                         WHERE installation = $1 AND used_ms < $2 AND ($3 IS NULL OR project_id = $3)
                         ORDER BY used_ms LIMIT $4)
                     RETURNING project_id, snapshot_id",
                )
                .bind(here)
                .bind(before_ms)
                .bind(project)
                .bind(i64::from(most))
                .fetch_all(connection)
                .await
                .doing(CHANGE)?;
                let forgotten = rows.iter().map(|row| {
                    Ok(LayerUse { project: id(row, "project_id")?, snapshot: id(row, "snapshot_id")? })
                });
                forgotten.collect()
            })
        });
        forget.await
    }

    /// Forgets the `most` least recently used layers of a project, to make room: only those not used since
    /// `before_ms`, and whose snapshot is no build's, because that one stays. Returns their snapshots, which the
    /// caller deletes.
    pub async fn forget_idle_layers(
        &self,
        project: ProjectId,
        before_ms: Millis,
        most: u32,
    ) -> Result<Vec<SnapshotId>, StoreError> {
        let here = self.installation().unwrap_or_default();
        let forget = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let rows = sqlx::query(
                    "DELETE FROM template_layers WHERE project_id = $1 AND installation = $2 AND key IN (
                         SELECT l.key FROM template_layers AS l
                         WHERE l.project_id = $1 AND l.installation = $2 AND l.used_ms < $3
                             AND NOT EXISTS (SELECT 1 FROM template_builds AS b WHERE b.snapshot_id = l.snapshot_id)
                         ORDER BY l.used_ms, l.key LIMIT $4)
                     RETURNING snapshot_id",
                )
                .bind(project)
                .bind(here)
                .bind(before_ms)
                .bind(i64::from(most))
                .fetch_all(connection)
                .await
                .doing(CHANGE)?;
                rows.iter().map(|row| id(row, "snapshot_id")).collect()
            })
        });
        forget.await
    }

    /// When the oldest build of a project that runs on this installation began.
    pub async fn oldest_running_build(&self, project: ProjectId) -> Result<Option<Millis>, StoreError> {
        let row = sqlx::query(
            "SELECT MIN(started_ms) AS oldest FROM template_builds
             WHERE project_id = $1 AND state = 'building' AND ($2 IS NULL OR installation = $2)",
        )
        .bind(project)
        .bind(self.installation())
        .fetch_one(self.database().readers())
        .await
        .doing(READ)?;
        row.try_get("oldest").doing(READ)
    }

    /// Whether a layer or a build refers to a snapshot.
    pub async fn is_build_snapshot_used(&self, snapshot: SnapshotId) -> Result<bool, StoreError> {
        let row = sqlx::query(
            "SELECT 1 AS used WHERE EXISTS (SELECT 1 FROM template_layers WHERE snapshot_id = $1)
                 OR EXISTS (SELECT 1 FROM template_builds WHERE snapshot_id = $1)",
        )
        .bind(snapshot)
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        Ok(row.is_some())
    }

    /// Snapshots of builds on this installation that nothing refers to: a crash left them. Only those created
    /// before `before_ms`, because a build records its snapshot a moment after it exists.
    pub async fn stray_build_snapshots(
        &self,
        _: &Operator,
        before_ms: Millis,
    ) -> Result<Vec<LayerUse>, StoreError> {
        let rows = sqlx::query(
            "SELECT s.project_id, s.id AS snapshot_id FROM snapshots AS s
             WHERE s.purpose <> 'use' AND s.state = 'ready' AND s.created_ms < $1
                 AND ($2 IS NULL OR s.installation = $2)
                 AND NOT EXISTS (SELECT 1 FROM template_layers AS l WHERE l.snapshot_id = s.id)
                 AND NOT EXISTS (SELECT 1 FROM template_builds AS b WHERE b.snapshot_id = s.id)
             LIMIT 1000",
        )
        .bind(before_ms)
        .bind(self.installation())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter()
            .map(|row| Ok(LayerUse { project: id(row, "project_id")?, snapshot: id(row, "snapshot_id")? }))
            .collect()
    }
}

fn read(row: &AnyRow) -> Result<Layer, StoreError> {
    Ok(Layer {
        key: text(row, "key")?,
        snapshot: id(row, "snapshot_id")?,
        defaults: from_json(&text(row, "defaults")?, "defaults")?,
    })
}
