//! Volumes of projects, and which sandboxes mount them.
//!
//! ```text
//!  insert           finish            begin_delete            remove
//! ───────► creating ─────► ready ───────────────► deleting ─────────► (no row)
//!              └─────────────── begin_delete ────────►
//! ```
//!
//! A create that mounts a volume and its deletion both hold the project's row, so one sees the other.

use coffer_core::event::{Event, VolumeNote};
use coffer_core::{Millis, MountPath, ProjectId, SandboxId, VolumeCause, VolumeId, VolumeName, VolumeState};
use serde::{Deserialize, Serialize};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use subtle::ConstantTimeEq as _;

use crate::columns::{
    bigint, first, id, moves, name, number, optional_text, states, storable, text, unsigned,
};
use crate::error::{ChangeError, Doing};
use crate::projects::lock_project;
use crate::vault::Vault;
use crate::{
    Operator, OverQuota, ProjectScope, Quota, Scope, Secret, Store, StoreError, events, now_ms, quotas,
};

const READ: &str = "read volumes";
const RECORD: &str = "record a volume";
const CHANGE: &str = "change a volume";

/// Most volumes of a project; each is a directory on its host.
pub const MOST_VOLUMES: i64 = 1000;
/// Users of a volume that a refusal names.
const NAMED: i64 = 8;

/// A volume that is about to be created.
#[derive(Debug, Clone)]
pub struct NewVolume {
    pub id: VolumeId,
    pub name: VolumeName,
    /// Its disk limit.
    pub size_mib: u64,
    /// Opens its content.
    pub token: Secret,
}

/// A recorded volume.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeRow {
    pub id: VolumeId,
    pub project: ProjectId,
    /// The installation whose host has it.
    pub installation: Option<String>,
    pub name: VolumeName,
    pub size_mib: u64,
    pub state: VolumeState,
    /// `None` if a master key is missing.
    pub token: Option<Secret>,
    pub created_ms: Millis,
}

impl VolumeRow {
    /// Whether this token opens its content. Takes as long for any wrong token.
    pub fn opens_with(&self, token: &str) -> bool {
        let known = self.token.as_ref().map(Secret::reveal).unwrap_or_default();
        !known.is_empty() && bool::from(known.as_bytes().ct_eq(token.as_bytes()))
    }
}

/// The result of [`Store::insert_volume`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InsertedVolume {
    New,
    /// The project has one of that name.
    NameTaken,
    OverQuota(OverQuota),
}

/// The result of [`Store::begin_volume_deletion`].
#[derive(Debug, Clone, PartialEq)]
pub enum VolumeDeletion {
    Begun(Box<VolumeRow>),
    NotFound,
    /// These sandboxes mount it, and perhaps more.
    Mounted(Vec<SandboxId>),
}

/// A volume in a sandbox, as requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub volume: VolumeId,
    pub name: VolumeName,
    pub path: MountPath,
    #[serde(default)]
    pub read_only: bool,
}

const COLUMNS: &str = "id, project_id, installation, name, state, size_mib, token_secret, created_ms";

impl Store {
    /// Records a volume as `creating`.
    pub async fn insert_volume(
        &self,
        scope: &ProjectScope,
        new: NewVolume,
    ) -> Result<InsertedVolume, StoreError> {
        let project = scope.project();
        self.vault().ready(self.database(), project).await?;
        let token = self.vault().seal(project, &purpose(new.id), new.token.reveal())?;
        let (installation, defaults) = (self.installation(), self.default_quotas());
        let insert = self.database().write(RECORD, move |connection| {
            let (new, token, installation) = (new.clone(), token.clone(), installation.clone());
            Box::pin(async move {
                let own = quotas::lock_and_read(connection, project, RECORD).await?;
                let sql = format!(
                    "INSERT INTO volumes
                         (id, project_id, installation, name, state, size_mib, token_secret, created_ms)
                     VALUES ($1, $2, $3, $4, {}, $5, $6, $7)
                     ON CONFLICT (project_id, name) DO NOTHING",
                    first::<VolumeState>()
                );
                let inserted = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(new.id)
                    .bind(project)
                    .bind(installation)
                    .bind(storable(&new.name.to_string()))
                    .bind(bigint(new.size_mib))
                    .bind(token)
                    .bind(now_ms())
                    .execute(&mut *connection)
                    .await
                    .doing(RECORD)?;
                if inserted.rows_affected() == 0 {
                    return Ok(InsertedVolume::NameTaken);
                }
                let size_mib = bigint(new.size_mib);
                let over = quotas::check_volume(connection, project, own.or(defaults), size_mib).await?;
                over.map_or(Ok(InsertedVolume::New), |over| Err(ChangeError::OverQuota(over)))
            })
        });
        match insert.await {
            // Return an error, so that the transaction is rolled back.
            Err(ChangeError::OverQuota(over)) => Ok(InsertedVolume::OverQuota(over)),
            Err(ChangeError::Store(error)) => Err(error),
            Err(ChangeError::NotFound | ChangeError::Raced { .. }) => unreachable!("a new row cannot"),
            Ok(inserted) => Ok(inserted),
        }
    }

    /// Records that a volume can be mounted; `None` if it is not being created.
    pub async fn finish_volume(
        &self,
        _: &Operator,
        volume: VolumeId,
    ) -> Result<Option<VolumeRow>, StoreError> {
        let vault = self.vault().clone();
        let finish = self.database().write(CHANGE, move |connection| {
            let vault = vault.clone();
            Box::pin(async move {
                let sql = format!(
                    "UPDATE volumes SET state = {} WHERE id = $1 AND state IN ({}) RETURNING {COLUMNS}",
                    moves::<VolumeState>(VolumeCause::Finished),
                    states::<VolumeState>(VolumeCause::Finished),
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(volume)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row.map(|row| read(&row, &vault)).transpose()? else { return Ok(None) };
                let event = Event::VolumeCreated(note(&row));
                events::record(connection, row.project, row.id, event, now_ms()).await?;
                Ok(Some(row))
            })
        });
        finish.await
    }

    /// A volume in scope that can be mounted.
    pub async fn volume(
        &self,
        scope: &impl Scope,
        volume: VolumeId,
    ) -> Result<Option<VolumeRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM volumes
             WHERE id = $1 AND ($2 IS NULL OR project_id = $2) AND state = 'ready'"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(volume)
            .bind(scope.only())
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.map(|row| read(&row, self.vault())).transpose()
    }

    /// The volume of that name that can be mounted.
    pub async fn volume_called(
        &self,
        scope: &ProjectScope,
        name: &VolumeName,
    ) -> Result<Option<VolumeRow>, StoreError> {
        let sql =
            format!("SELECT {COLUMNS} FROM volumes WHERE project_id = $1 AND name = $2 AND state = 'ready'");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(scope.project())
            .bind(name.to_string())
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.map(|row| read(&row, self.vault())).transpose()
    }

    /// All volumes of the project that can be mounted, oldest first.
    pub async fn volumes(&self, scope: &ProjectScope) -> Result<Vec<VolumeRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM volumes WHERE project_id = $1 AND state = 'ready' ORDER BY id LIMIT $2"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(scope.project())
            .bind(MOST_VOLUMES)
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(|row| read(row, self.vault())).collect()
    }

    /// The sandboxes that mount a volume, running or paused.
    pub async fn mounted_by(
        &self,
        scope: &impl Scope,
        volume: VolumeId,
    ) -> Result<Vec<SandboxId>, StoreError> {
        let rows = sqlx::query(
            "SELECT m.sandbox_id FROM sandbox_volumes AS m
                 JOIN sandboxes AS s ON s.id = m.sandbox_id JOIN volumes AS v ON v.id = m.volume_id
             WHERE m.volume_id = $1 AND ($2 IS NULL OR v.project_id = $2)
                 AND s.state IN ('creating', 'running', 'paused')
             ORDER BY m.sandbox_id LIMIT 1000",
        )
        .bind(volume)
        .bind(scope.only())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(|row| id(row, "sandbox_id")).collect()
    }

    /// Records that a volume is being deleted, unless a sandbox mounts it: from then on it is not found, and
    /// no sandbox can mount it.
    pub async fn begin_volume_deletion(
        &self,
        scope: &impl Scope,
        volume: VolumeId,
    ) -> Result<VolumeDeletion, StoreError> {
        let (only, vault) = (scope.only(), self.vault().clone());
        let begin = self.database().write(CHANGE, move |connection| {
            let vault = vault.clone();
            Box::pin(async move {
                let sql = format!(
                    "SELECT {COLUMNS} FROM volumes WHERE id = $1 AND ($2 IS NULL OR project_id = $2)"
                );
                let find = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(volume).bind(only);
                let found = find.fetch_optional(&mut *connection).await.doing(CHANGE)?;
                let Some(row) = found.map(|row| read(&row, &vault)).transpose()? else {
                    return Ok(VolumeDeletion::NotFound);
                };
                lock_project(connection, row.project, CHANGE).await?;
                let users = users(connection, volume).await?;
                if !users.is_empty() {
                    return Ok(VolumeDeletion::Mounted(users));
                }
                let sql = format!(
                    "UPDATE volumes SET state = {} WHERE id = $1",
                    moves::<VolumeState>(VolumeCause::DeletionBegan)
                );
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(volume)
                    .execute(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                Ok(VolumeDeletion::Begun(Box::new(row)))
            })
        });
        begin.await
    }

    /// Deletes the record of a volume that its host no longer has. Returns whether it existed.
    pub async fn remove_volume(&self, _: &Operator, volume: VolumeId) -> Result<bool, StoreError> {
        let vault = self.vault().clone();
        let remove = self.database().write(CHANGE, move |connection| {
            let vault = vault.clone();
            Box::pin(async move {
                let sql =
                    format!("DELETE FROM volumes WHERE id = $1 AND state = 'deleting' RETURNING {COLUMNS}");
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(volume)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row.map(|row| read(&row, &vault)).transpose()? else { return Ok(false) };
                let event = Event::VolumeDeleted(note(&row));
                events::record(connection, row.project, row.id, event, now_ms()).await?;
                Ok(true)
            })
        });
        remove.await
    }

    /// All volumes of this installation in any state.
    pub async fn all_volumes(&self, _: &Operator) -> Result<Vec<VolumeRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM volumes WHERE installation IS NULL OR installation = $1 ORDER BY id"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(self.installation())
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(|row| read(row, self.vault())).collect()
    }
}

/// Records the volumes of a new sandbox; false if one of them cannot be mounted any more. The transaction
/// holds the project's row.
pub(crate) async fn mount(
    connection: &mut AnyConnection,
    project: ProjectId,
    sandbox: SandboxId,
    mounts: &[VolumeMount],
) -> Result<bool, StoreError> {
    for mount in mounts {
        let mounted = sqlx::query(
            "INSERT INTO sandbox_volumes (volume_id, sandbox_id)
             SELECT id, $1 FROM volumes WHERE id = $2 AND project_id = $3 AND state = 'ready'
             ON CONFLICT (volume_id, sandbox_id) DO UPDATE SET sandbox_id = excluded.sandbox_id",
        )
        .bind(sandbox)
        .bind(mount.volume)
        .bind(project)
        .execute(&mut *connection)
        .await
        .doing(RECORD)?;
        if mounted.rows_affected() == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn users(connection: &mut AnyConnection, volume: VolumeId) -> Result<Vec<SandboxId>, StoreError> {
    let rows = sqlx::query(
        "SELECT m.sandbox_id FROM sandbox_volumes AS m JOIN sandboxes AS s ON s.id = m.sandbox_id
         WHERE m.volume_id = $1 AND s.state IN ('creating', 'running', 'paused')
         ORDER BY m.sandbox_id LIMIT $2",
    )
    .bind(volume)
    .bind(NAMED)
    .fetch_all(connection)
    .await
    .doing(CHANGE)?;
    rows.iter().map(|row| id(row, "sandbox_id")).collect()
}

/// The number and the limits of all volumes of a project together.
pub(crate) async fn reserved(
    connection: &mut AnyConnection,
    project: ProjectId,
) -> Result<(i64, i64), StoreError> {
    let row = sqlx::query(
        "SELECT COUNT(*) AS count, CAST(COALESCE(SUM(size_mib), 0) AS BIGINT) AS disk
         FROM volumes WHERE project_id = $1",
    )
    .bind(project)
    .fetch_one(connection)
    .await
    .doing(READ)?;
    Ok((row.try_get("count").doing(READ)?, row.try_get("disk").doing(READ)?))
}

/// The refusal of one volume too many.
pub(crate) const fn too_many(used: i64) -> OverQuota {
    OverQuota { quota: Quota::Volumes, limit: MOST_VOLUMES, used, asked: 1, frees_in_ms: None }
}

/// The purpose string that seals a volume's token.
fn purpose(volume: VolumeId) -> String {
    format!("volumes/{volume}/token_secret")
}

fn note(row: &VolumeRow) -> VolumeNote {
    VolumeNote { volume_id: row.id, name: row.name.to_string(), size_mib: row.size_mib }
}

fn read(row: &AnyRow, vault: &Vault) -> Result<VolumeRow, StoreError> {
    let (volume, project) = (id(row, "id")?, id(row, "project_id")?);
    let token = vault.open_text(project, &purpose(volume), &text(row, "token_secret")?);
    Ok(VolumeRow {
        id: volume,
        project,
        installation: optional_text(row, "installation")?,
        name: name(row, "name", |text| text.parse().ok())?,
        size_mib: unsigned(row, "size_mib")?,
        state: name(row, "state", VolumeState::parse)?,
        token: token.ok().map(Secret::from),
        created_ms: number(row, "created_ms")?,
    })
}
