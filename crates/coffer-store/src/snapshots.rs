//! Snapshots of sandboxes.
//!
//! ```text
//!  insert          finish             begin_delete           remove
//! ───────► creating ───► ready ───────────────► deleting ──────────► (no row)
//!              └────────────────── remove ──────────────────────────────►
//! ```
//!
//! A name refers to the newest ready snapshot with that name and tag; earlier ones keep their name, are found
//! by their id, and are deleted with the name.

use std::collections::HashSet;

use coffer_core::event::{Event, SnapshotCreating, SnapshotGone, SnapshotReady};
use coffer_core::{Limits, Millis, ProjectId, SnapshotCause, SnapshotId, SnapshotPurpose};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe};

use crate::columns::{
    self, bigint, first, from_json, id, moves, name, number, optional_id, optional_text, states, storable,
    text, unsigned,
};
use crate::error::Doing;
use crate::select::Select;
use crate::{
    ChangeError, FinishedSnapshot, Idempotency, InsertedSnapshot, NewSnapshot, Operator, ProjectScope, Scope,
    SnapshotFacts, SnapshotFilter, SnapshotRow, SnapshotState, Store, StoreError, events, git, now_ms,
    quotas,
};

const READ: &str = "read snapshots";
const RECORD: &str = "record a snapshot";
const CHANGE: &str = "change a snapshot";

macro_rules! snapshot_columns {
    () => {
        "id, project_id, agent_id, installation, sandbox_id, state, name, tag, is_current, memory, note, \
         template, cpu_count, memory_mib, disk_mib, max_processes, secret_names, files_bytes, memory_bytes, \
         paused_us, created_by, created_ms, purpose"
    };
}

impl Store {
    /// Records a snapshot as `creating`, unless its idempotency key was used before.
    pub async fn insert_snapshot(
        &self,
        scope: &ProjectScope,
        new: NewSnapshot,
        idempotency: Option<Idempotency<'_>>,
    ) -> Result<InsertedSnapshot, StoreError> {
        let project = scope.project();
        let (installation, defaults) = (self.installation(), self.default_quotas());
        let key = idempotency.map(|given| (given.key.to_string(), given.fingerprint.to_string()));
        let insert = self.database().write(RECORD, move |connection| {
            Box::pin(async move {
                let at_ms = now_ms();
                let event = Event::SnapshotCreating(SnapshotCreating {
                    snapshot_id: new.id,
                    name: new.name.clone(),
                    tag: new.tag.clone(),
                    memory: new.memory,
                });
                let (snapshot, sandbox) = (new.id, new.sandbox);
                if !insert_row(connection, project, new, installation, key.as_ref(), at_ms).await? {
                    return earlier(connection, project, key.unwrap_or_default()).await.map_err(Into::into);
                }
                git::keep_remotes_of(connection, project, sandbox, snapshot).await?;
                let own = events::record_holding(connection, project, sandbox, event, at_ms).await?;
                let over = quotas::check_snapshot(connection, project, own.or(defaults), 0).await?;
                over.map_or(Ok(InsertedSnapshot::New), |over| Err(ChangeError::OverQuota(over)))
            })
        });
        match insert.await {
            // Return an error, so that the transaction is rolled back.
            Err(ChangeError::OverQuota(over)) => Ok(InsertedSnapshot::OverQuota(over)),
            Err(ChangeError::Store(error)) => Err(error),
            Err(ChangeError::NotFound | ChangeError::Raced { .. }) => unreachable!("a new row cannot"),
            Ok(inserted) => Ok(inserted),
        }
    }

    /// Records that a snapshot is ready. From then on its name refers to it.
    pub async fn finish_snapshot(
        &self,
        _: &Operator,
        snapshot: SnapshotId,
        facts: SnapshotFacts,
    ) -> Result<FinishedSnapshot, StoreError> {
        let defaults = self.default_quotas();
        let finish = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let at_ms = now_ms();
                for step in [
                    // Locks the project's row, so that two with one name do not race.
                    "UPDATE projects SET last_event = last_event
                     WHERE id = (SELECT project_id FROM snapshots WHERE id = $1)",
                    // The earlier one is no longer current; first, because the name is unique.
                    "UPDATE snapshots SET is_current = 0
                     WHERE is_current = 1 AND EXISTS (
                         SELECT 1 FROM snapshots AS new WHERE new.id = $1 AND new.state = 'creating'
                             AND new.project_id = snapshots.project_id AND new.name = snapshots.name
                             AND new.tag = snapshots.tag
                             AND COALESCE(new.agent_id, '') = COALESCE(snapshots.agent_id, ''))",
                ] {
                    sqlx::query(step).bind(snapshot).execute(&mut *connection).await.doing(CHANGE)?;
                }
                let sql = format!(
                    "UPDATE snapshots SET state = {}, memory = $1, note = $2, files_bytes = $3,
                         memory_bytes = $4, paused_us = $5,
                         is_current = CASE WHEN name IS NULL THEN 0 ELSE 1 END
                     WHERE id = $6 AND state IN ({}) RETURNING {}",
                    moves::<SnapshotState>(SnapshotCause::Finished),
                    states::<SnapshotState>(SnapshotCause::Finished),
                    snapshot_columns!()
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(i64::from(facts.memory))
                    .bind(facts.note.as_deref().map(storable))
                    .bind(bigint(facts.files_bytes))
                    .bind(bigint(facts.memory_bytes))
                    .bind(bigint(facts.paused_us))
                    .bind(snapshot)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row else { return Ok(FinishedSnapshot::Gone) };
                let row = read(&row)?;
                let event = Event::SnapshotReady(SnapshotReady {
                    snapshot_id: row.id,
                    name: row.name.clone(),
                    tag: row.tag.clone(),
                    memory: row.memory,
                    note: row.note.clone(),
                    files_bytes: row.files_bytes,
                    memory_bytes: row.memory_bytes,
                    paused_us: row.paused_us,
                });
                let own = events::record_holding(connection, row.project, row.sandbox, event, at_ms).await?;
                let size_mib = bigint((row.files_bytes + row.memory_bytes).div_ceil(1 << 20));
                let quotas = own.or(defaults);
                let over = quotas::check_snapshot(connection, row.project, quotas, size_mib).await?;
                over.map_or(Ok(FinishedSnapshot::Ready(Box::new(row))), |over| {
                    Err(ChangeError::OverQuota(over))
                })
            })
        });
        match finish.await {
            // Return an error, so that the transaction is rolled back.
            Err(ChangeError::OverQuota(over)) => Ok(FinishedSnapshot::OverQuota(over)),
            Err(ChangeError::Store(error)) => Err(error),
            Err(ChangeError::NotFound | ChangeError::Raced { .. }) => Ok(FinishedSnapshot::Gone),
            Ok(finished) => Ok(finished),
        }
    }

    /// Records that a snapshot is being deleted, in any state, if the scope sees it: from then on it is not
    /// found.
    pub async fn begin_snapshot_deletion(
        &self,
        scope: &impl Scope,
        snapshot: SnapshotId,
    ) -> Result<Option<SnapshotRow>, StoreError> {
        let owner = scope.owner();
        let begin = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let sql = format!(
                    "UPDATE snapshots SET state = {}, is_current = 0, idempotency_key = NULL
                     WHERE id = $1 AND ($2 IS NULL OR project_id = $2 OR agent_id = $2) RETURNING {}",
                    moves::<SnapshotState>(SnapshotCause::DeletionBegan),
                    snapshot_columns!()
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(snapshot)
                    .bind(owner)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row else { return Ok(None) };
                let row = read(&row)?;
                tell(connection, &row, Event::SnapshotDeleting, None).await?;
                Ok(Some(row))
            })
        });
        begin.await
    }

    /// Deletes the record of a snapshot that its host no longer has. Returns whether it existed.
    pub async fn remove_snapshot(
        &self,
        _: &Operator,
        snapshot: SnapshotId,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let reason = storable(reason);
        let remove = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let row = sqlx::query(concat!(
                    "DELETE FROM snapshots WHERE id = $1 RETURNING ",
                    snapshot_columns!()
                ))
                .bind(snapshot)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                let Some(row) = row else { return Ok(false) };
                let row = read(&row)?;
                let kind: fn(SnapshotGone) -> Event = match row.state {
                    SnapshotState::Creating => Event::SnapshotFailed,
                    SnapshotState::Ready | SnapshotState::Deleting => Event::SnapshotDeleted,
                };
                tell(connection, &row, kind, Some(&reason)).await?;
                Ok(true)
            })
        });
        remove.await
    }

    /// The snapshot, if it exists and the scope sees it, in any state.
    pub async fn snapshot(
        &self,
        scope: &impl Scope,
        snapshot: SnapshotId,
    ) -> Result<Option<SnapshotRow>, StoreError> {
        Select::new(snapshot_columns!(), "snapshots")
            .filter("id = ?", snapshot)
            .filter_if("project_id = ?", scope.only())
            .filter_if("agent_id = ?", scope.only_of())
            .one(self.database(), READ, read)
            .await
    }

    /// The snapshot that a name refers to; agents have their own names.
    pub async fn snapshot_named(
        &self,
        scope: &ProjectScope,
        name: &str,
        tag: &str,
    ) -> Result<Option<SnapshotRow>, StoreError> {
        let row = sqlx::query(concat!(
            "SELECT ",
            snapshot_columns!(),
            " FROM snapshots WHERE project_id = $1 AND name = $2 AND tag = $3 AND is_current = 1
                 AND COALESCE(agent_id, '') = $4"
        ))
        .bind(scope.project())
        .bind(storable(name))
        .bind(storable(tag))
        .bind(scope.agent().map(|agent| agent.to_string()).unwrap_or_default())
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        row.as_ref().map(read).transpose()
    }

    /// Snapshots of a project, newest first.
    pub async fn snapshots(
        &self,
        scope: &ProjectScope,
        filter: &SnapshotFilter,
    ) -> Result<Vec<SnapshotRow>, StoreError> {
        let mut wanted = Select::new(snapshot_columns!(), "snapshots")
            .filter("project_id = ?", scope.project())
            .filter_by("purpose = 'use'")
            .filter_if("agent_id = ?", scope.agent())
            .filter_if("sandbox_id = ?", filter.sandbox)
            .filter_if("name = ?", filter.name.as_deref().map(storable))
            .filter_if("tag = ?", filter.tag.as_deref().map(storable));
        if filter.usable_only {
            wanted = wanted.filter_by("state = 'ready' AND (name IS NULL OR is_current = 1)");
        }
        wanted.newest_first("id", filter.before, filter.limit).all(self.database(), READ, read).await
    }

    /// Snapshots of this installation in creation or deletion.
    pub async fn unfinished_snapshots(&self, _: &Operator) -> Result<Vec<SnapshotRow>, StoreError> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            snapshot_columns!(),
            " FROM snapshots WHERE state <> 'ready' AND ($1 IS NULL OR installation = $1) ORDER BY id"
        ))
        .bind(self.installation())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(read).collect()
    }

    /// Which of these are recorded, of any installation.
    pub async fn known_snapshots(
        &self,
        _: &Operator,
        snapshots: &[SnapshotId],
    ) -> Result<HashSet<SnapshotId>, StoreError> {
        let mut known = HashSet::new();
        for some in snapshots.chunks(500) {
            let places: Vec<String> = (1..=some.len()).map(|place| format!("${place}")).collect();
            let sql = format!("SELECT id FROM snapshots WHERE id IN ({})", places.join(", "));
            let query =
                some.iter().fold(sqlx::query(AssertSqlSafe(sql)), |query, snapshot| query.bind(snapshot));
            let rows = query.fetch_all(self.database().readers()).await.doing(READ)?;
            for row in &rows {
                known.insert(id(row, "id")?);
            }
        }
        Ok(known)
    }

    /// The installation whose host has a snapshot, if it is not this one.
    pub fn snapshot_holder_elsewhere<'a>(&self, row: &'a SnapshotRow) -> Option<&'a str> {
        let (own, holder) = (self.installation()?, row.installation.as_deref()?);
        (holder != own).then_some(holder)
    }
}

/// Returns whether the row is new; otherwise its idempotency key was used before.
async fn insert_row(
    connection: &mut AnyConnection,
    project: ProjectId,
    new: NewSnapshot,
    installation: Option<String>,
    key: Option<&(String, String)>,
    at_ms: Millis,
) -> Result<bool, StoreError> {
    let sql = format!(
        "INSERT INTO snapshots (
             id, project_id, agent_id, installation, sandbox_id, state, name, tag, memory, template, cpu_count,
             memory_mib, disk_mib, max_processes, secret_names, created_by, created_ms, idempotency_key, fingerprint,
             purpose
         ) VALUES ($1, $2, $3, $4, $5, {}, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
         ON CONFLICT DO NOTHING",
        first::<SnapshotState>()
    );
    let inserted = sqlx::query(AssertSqlSafe(sql))
        .bind(new.id)
        .bind(project)
        .bind(new.agent)
        .bind(installation)
        .bind(new.sandbox)
        .bind(new.name.as_deref().map(storable))
        .bind(storable(&new.tag))
        .bind(i64::from(new.memory))
        .bind(storable(&new.template))
        .bind(i64::from(new.limits.cpu_count))
        .bind(bigint(new.limits.memory_mib))
        .bind(bigint(new.limits.disk_mib))
        .bind(i64::from(new.limits.max_processes))
        .bind((!new.secrets.is_empty()).then(|| columns::json(&new.secrets)))
        .bind(new.created_by)
        .bind(at_ms)
        .bind(key.map(|(key, _)| key.clone()))
        .bind(key.map(|(_, fingerprint)| fingerprint.clone()))
        .bind(new.purpose.as_str())
        .execute(connection)
        .await
        .doing(RECORD)?;
    Ok(inserted.rows_affected() > 0)
}

/// The earlier use of a key.
async fn earlier(
    connection: &mut AnyConnection,
    project: ProjectId,
    (key, fingerprint): (String, String),
) -> Result<InsertedSnapshot, StoreError> {
    let row = sqlx::query(concat!(
        "SELECT fingerprint, ",
        snapshot_columns!(),
        " FROM snapshots WHERE project_id = $1 AND idempotency_key = $2"
    ))
    .bind(project)
    .bind(key)
    .fetch_one(connection)
    .await
    .doing(RECORD)?;
    if optional_text(&row, "fingerprint")?.as_deref() != Some(&fingerprint) {
        return Ok(InsertedSnapshot::KeyReusedDifferently);
    }
    Ok(InsertedSnapshot::Existing(Box::new(read(&row)?)))
}

/// Records an event about the snapshot's source.
async fn tell(
    connection: &mut AnyConnection,
    row: &SnapshotRow,
    kind: fn(SnapshotGone) -> Event,
    reason: Option<&str>,
) -> Result<(), StoreError> {
    let event = kind(SnapshotGone {
        snapshot_id: row.id,
        name: row.name.clone(),
        tag: row.tag.clone(),
        reason: reason.map(str::to_string),
    });
    events::record(connection, row.project, row.sandbox, event, now_ms()).await
}

fn read(row: &AnyRow) -> Result<SnapshotRow, StoreError> {
    let secrets = optional_text(row, "secret_names")?;
    Ok(SnapshotRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        sandbox: id(row, "sandbox_id")?,
        agent: optional_id(row, "agent_id")?,
        installation: optional_text(row, "installation")?,
        state: name(row, "state", SnapshotState::parse)?,
        name: optional_text(row, "name")?,
        tag: text(row, "tag")?,
        is_current: number(row, "is_current")? != 0,
        memory: number(row, "memory")? != 0,
        note: optional_text(row, "note")?,
        template: text(row, "template")?,
        limits: Limits {
            cpu_count: unsigned(row, "cpu_count")?,
            memory_mib: unsigned(row, "memory_mib")?,
            disk_mib: unsigned(row, "disk_mib")?,
            max_processes: unsigned(row, "max_processes")?,
        },
        secrets: secrets.map(|text| from_json(&text, "secret_names")).transpose()?.unwrap_or_default(),
        files_bytes: unsigned(row, "files_bytes")?,
        memory_bytes: unsigned(row, "memory_bytes")?,
        paused_us: unsigned(row, "paused_us")?,
        created_by: optional_text(row, "created_by")?,
        created_ms: number(row, "created_ms")?,
        purpose: name(row, "purpose", SnapshotPurpose::parse)?,
    })
}
