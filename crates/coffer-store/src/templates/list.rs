//! Lists of templates with everything that people want to see of them, also of those that no build made ready yet.

use std::collections::BTreeMap;

use coffer_core::{BuildId, Millis, SnapshotId, TemplateDefaults, TemplateId};
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::builds::{self, BuildRow};
use super::{READ, TemplateSize};
use crate::columns::{from_json, id, name, number, optional_id, optional_text, storable, text};
use crate::error::Doing;
use crate::select::Select;
use crate::{ProjectScope, Store, StoreError};

/// Whether sandboxes can start from a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum TemplateState {
    /// A build is ready, whatever became of later ones.
    Ready,
    /// The first build is in progress, or waits for its steps.
    Building,
    /// No build succeeded.
    Error,
}

coffer_core::names!(TemplateState);

/// A template of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateEntry {
    pub id: TemplateId,
    pub name: String,
    pub state: TemplateState,
    pub summary: Option<String>,
    pub size: TemplateSize,
    pub created_by: Option<String>,
    pub created_ms: Millis,
    pub updated_ms: Millis,
    pub spawn_count: i64,
    pub last_spawned_ms: Option<Millis>,
    /// The newest ready build, and its snapshot.
    pub build: Option<BuildId>,
    pub snapshot: Option<SnapshotId>,
    /// What its sandboxes start with, if that is known.
    pub defaults: Option<TemplateDefaults>,
    /// Bytes that its last step added.
    pub bytes: i64,
    pub build_count: i64,
    /// The newest build of all.
    pub last_build: Option<BuildRow>,
    pub tags: Vec<String>,
}

/// Selects templates.
#[derive(Debug, Clone, Default)]
pub struct TemplateFilter<'a> {
    /// Only this one, by its id or name.
    pub only: Option<&'a str>,
    pub state: Option<TemplateState>,
    /// Only with this text in the name or the summary.
    pub search: Option<&'a str>,
    /// Only names after this one.
    pub after: Option<&'a str>,
    pub limit: u32,
}

const COLUMNS: &str = "id, name, state, summary, cpu_count, memory_mib, disk_mib, created_by, created_ms, updated_ms, \
                       spawn_count, last_spawned_ms, build_id, snapshot_id, defaults, \
                       (SELECT s.files_bytes FROM snapshots AS s WHERE s.id = snapshot_id) AS bytes, build_count, last_id";

/// Templates with what their builds say of them.
const TABLE: &str = "(SELECT x.*, (SELECT b.snapshot_id FROM template_builds AS b WHERE b.id = x.build_id) AS snapshot_id,
         (SELECT b.defaults FROM template_builds AS b WHERE b.id = x.build_id) AS defaults
     FROM (SELECT t.*,
         CASE WHEN EXISTS (SELECT 1 FROM template_builds AS b WHERE b.template_id = t.id AND b.state = 'ready')
                  THEN 'ready'
              WHEN EXISTS (SELECT 1 FROM template_builds AS b
                           WHERE b.template_id = t.id AND b.state IN ('waiting', 'building')) THEN 'building'
              ELSE 'error' END AS state,
         (SELECT MAX(b.id) FROM template_builds AS b WHERE b.template_id = t.id AND b.state = 'ready') AS build_id,
         (SELECT COUNT(*) FROM template_builds AS b WHERE b.template_id = t.id AND b.state = 'ready') AS build_count,
         (SELECT MAX(b.id) FROM template_builds AS b WHERE b.template_id = t.id) AS last_id
     FROM templates AS t) AS x) AS templates_shown";

impl Store {
    /// Templates of a project, by name.
    pub async fn template_entries(
        &self,
        scope: &ProjectScope,
        filter: &TemplateFilter<'_>,
    ) -> Result<Vec<TemplateEntry>, StoreError> {
        let only = filter.only.map(storable);
        let search = filter.search.map(|text| storable(text).to_lowercase());
        let select = Select::new(COLUMNS, TABLE)
            .filter("project_id = ?", scope.project())
            .filter_if("(id = ? OR name = ?)", only)
            .filter_if("state = ?", filter.state.map(TemplateState::as_str))
            // The position of a text is found by other names in the two databases; LIKE would need escapes.
            .filter_if("replace(lower(name || ' ' || COALESCE(summary, '')), ?, '') <> lower(name || ' ' || COALESCE(summary, ''))", search)
            .oldest_first("name", filter.after.map(storable), filter.limit);
        let mut found = select.all(self.database(), READ, read).await?;
        let last: Vec<String> =
            found.iter().filter_map(|(_, last)| Some(last.as_ref()?.to_string())).collect();
        let mut last = self.builds_named(scope, &last).await?;
        let ids: Vec<String> = found.iter().map(|(entry, _)| entry.id.to_string()).collect();
        let mut tags = self.tags_of(scope, &ids).await?;
        for (entry, last_id) in &mut found {
            entry.last_build = last_id.as_ref().and_then(|last_id| last.remove(last_id));
            entry.tags = tags.remove(&entry.id).unwrap_or_default();
        }
        Ok(found.into_iter().map(|(entry, _)| entry).collect())
    }

    async fn builds_named(
        &self,
        scope: &ProjectScope,
        ids: &[String],
    ) -> Result<BTreeMap<BuildId, BuildRow>, StoreError> {
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let sql = format!(
            "SELECT {} FROM template_builds WHERE project_id = $1 AND id IN ({})",
            builds::COLUMNS,
            places(ids.len())
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(scope.project());
        let query = ids.iter().fold(query, |query, id| query.bind(id.clone()));
        let rows = query.fetch_all(self.database().readers()).await.doing(READ)?;
        rows.iter().map(|row| builds::read(row).map(|row| (row.id, row))).collect()
    }

    async fn tags_of(
        &self,
        scope: &ProjectScope,
        ids: &[String],
    ) -> Result<BTreeMap<TemplateId, Vec<String>>, StoreError> {
        let mut tags: BTreeMap<TemplateId, Vec<String>> = BTreeMap::new();
        if ids.is_empty() {
            return Ok(tags);
        }
        let sql = format!(
            "SELECT g.template_id, g.tag FROM template_tags AS g JOIN templates AS t ON t.id = g.template_id
             WHERE t.project_id = $1 AND t.id IN ({}) ORDER BY g.tag",
            places(ids.len())
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(scope.project());
        let query = ids.iter().fold(query, |query, id| query.bind(id.clone()));
        for row in &query.fetch_all(self.database().readers()).await.doing(READ)? {
            tags.entry(id(row, "template_id")?).or_default().push(text(row, "tag")?);
        }
        Ok(tags)
    }
}

/// Placeholders after the first.
fn places(count: usize) -> String {
    (2..count + 2).map(|place| format!("${place}")).collect::<Vec<_>>().join(", ")
}

fn read(row: &AnyRow) -> Result<(TemplateEntry, Option<BuildId>), StoreError> {
    let entry = TemplateEntry {
        id: id(row, "id")?,
        name: text(row, "name")?,
        state: name(row, "state", TemplateState::parse)?,
        summary: optional_text(row, "summary")?,
        size: TemplateSize::read(row)?,
        created_by: optional_text(row, "created_by")?,
        created_ms: number(row, "created_ms")?,
        updated_ms: number(row, "updated_ms")?,
        spawn_count: number(row, "spawn_count")?,
        last_spawned_ms: row.try_get("last_spawned_ms").doing(READ)?,
        build: optional_id(row, "build_id")?,
        snapshot: optional_id(row, "snapshot_id")?,
        defaults: optional_text(row, "defaults")?.map(|text| from_json(&text, "defaults")).transpose()?,
        bytes: row.try_get::<Option<i64>, _>("bytes").doing(READ)?.unwrap_or(0),
        build_count: number(row, "build_count")?,
        last_build: None,
        tags: Vec::new(),
    };
    Ok((entry, optional_id(row, "last_id")?))
}
