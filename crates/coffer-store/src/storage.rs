//! Storage of a project in repositories, Git LFS and artifacts, and reservations for uploads.
//!
//! An upload first reserves room, either its full length or step by step while it arrives, and releases it
//! when the stored bytes are counted. So no number of concurrent uploads, on any number of servers of one
//! database, exceeds the quota `storage_mib`.

use std::sync::Arc;

use coffer_core::sync::Mutex;
use coffer_core::{Millis, ProjectId, RepositoryId, ReservationId};
use sqlx::{AnyConnection, Row};

use crate::error::{ChangeError, Doing};
use crate::projects::lock_and_read_project;
use crate::quotas::{OverQuota, Quota};
use crate::{Operator, Store, StoreError, now_ms};

const READ: &str = "read the storage of a project";
const RESERVE: &str = "reserve storage";
const COUNT: &str = "count the storage of a project";

const MIB: i64 = 1 << 20;
/// The step by which a reservation grows: each is a commit.
const STEP: i64 = 16 * MIB;
/// Longer than any upload may take.
const LIFE_MS: Millis = 2 * 3600 * 1000;

/// Room for an upload, released when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Reservation(Arc<Reserved>);

struct Reserved {
    store: Store,
    project: ProjectId,
    id: ReservationId,
    bytes: tokio::sync::Mutex<i64>,
    over: Mutex<Option<OverQuota>>,
}

impl std::fmt::Debug for Reserved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reserved({})", self.id)
    }
}

impl Reservation {
    /// Grows the reservation to at least `total` bytes.
    pub async fn cover(&self, total: u64) -> Result<(), ChangeError> {
        let mut bytes = self.0.bytes.lock().await;
        let total = i64::try_from(total).unwrap_or(i64::MAX);
        if total <= *bytes {
            return Ok(());
        }
        let (least, wanted) = (total - *bytes, (total - *bytes).max(STEP));
        let grown = self.0.store.add_to_reservation(self.0.project, self.0.id, wanted).await;
        let more = match grown {
            // Near the end of the quota there is no room for a whole step.
            Err(ChangeError::OverQuota(_)) if least < wanted => {
                let least = self.0.store.add_to_reservation(self.0.project, self.0.id, least).await;
                least.map(|()| total - *bytes)
            }
            grown => grown.map(|()| wanted),
        };
        match more {
            Ok(more) => {
                *bytes += more;
                Ok(())
            }
            Err(error) => {
                if let ChangeError::OverQuota(over) = &error {
                    *self.0.over.lock() = Some(over.clone());
                }
                Err(error)
            }
        }
    }

    /// Why it did not grow, if it did not.
    pub fn refusal(&self) -> Option<OverQuota> {
        self.0.over.lock().clone()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let (store, id) = (self.store.clone(), self.id);
        // Outside of a runtime it expires.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = store.release_storage(id).await {
                    tracing::warn!("could not release reserved storage, it will expire: {error}");
                }
            });
        }
    }
}

impl Store {
    /// Reserves an initial `bytes` for a project.
    pub async fn reserve_storage(&self, project: ProjectId, bytes: u64) -> Result<Reservation, ChangeError> {
        let id = ReservationId::generate();
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX).max(1);
        self.add_to_reservation(project, id, bytes).await?;
        let over = Mutex::default();
        let bytes = tokio::sync::Mutex::new(bytes);
        Ok(Reservation(Arc::new(Reserved { store: self.clone(), project, id, bytes, over })))
    }

    /// Whether the project's quota is used up. Only a reservation decides; this allows an early refusal.
    pub async fn storage_refusal(&self, project: ProjectId) -> Result<Option<OverQuota>, StoreError> {
        let mut connection = self.database().readers().acquire().await.doing(READ)?;
        let row = sqlx::query("SELECT most_storage_mib FROM projects WHERE id = $1")
            .bind(project)
            .fetch_one(&mut *connection)
            .await
            .doing(READ)?;
        let own: Option<i64> = row.try_get("most_storage_mib").doing(READ)?;
        let Some(limit) = own.or(self.default_quotas().storage_mib) else { return Ok(None) };
        let used = kept_bytes(&mut connection, project).await?;
        let over =
            OverQuota { quota: Quota::StorageMib, limit, used: mebibytes(used), asked: 1, frees_in_ms: None };
        Ok((used >= limit.saturating_mul(MIB)).then_some(over))
    }

    async fn add_to_reservation(
        &self,
        project: ProjectId,
        id: ReservationId,
        more: i64,
    ) -> Result<(), ChangeError> {
        let limit = self.default_quotas().storage_mib;
        self.database()
            .write(RESERVE, move |connection| {
                Box::pin(async move {
                    // Lock the project's row first, so that the count includes everything granted before.
                    let row = lock_and_read_project(connection, project, "most_storage_mib", RESERVE).await?;
                    let row = row.ok_or(ChangeError::NotFound)?;
                    let own: Option<i64> = row.try_get("most_storage_mib").doing(RESERVE)?;
                    if let Some(limit) = own.or(limit) {
                        let used = kept_bytes(connection, project).await?;
                        if used.saturating_add(more) > limit.saturating_mul(MIB) {
                            let (used, asked) = (mebibytes(used), mebibytes(more));
                            let quota = Quota::StorageMib;
                            let over = OverQuota { quota, limit, used, asked, frees_in_ms: None };
                            return Err(ChangeError::OverQuota(over));
                        }
                    }
                    let until_ms = now_ms().saturating_add(LIFE_MS);
                    sqlx::query(
                        "INSERT INTO storage_reservations (id, project_id, bytes, until_ms) VALUES ($1, $2, $3, $4)
                         ON CONFLICT (id) DO UPDATE SET bytes = storage_reservations.bytes + excluded.bytes,
                             until_ms = excluded.until_ms",
                    )
                    .bind(id)
                    .bind(project)
                    .bind(more)
                    .bind(until_ms)
                    .execute(&mut *connection)
                    .await
                    .doing(RESERVE)?;
                    Ok(())
                })
            })
            .await
    }

    async fn release_storage(&self, id: ReservationId) -> Result<(), StoreError> {
        self.database()
            .write(RESERVE, move |connection| {
                Box::pin(async move {
                    let gone = "DELETE FROM storage_reservations WHERE id = $1 OR until_ms < $2";
                    let gone = sqlx::query(gone).bind(id).bind(now_ms());
                    gone.execute(&mut *connection).await.doing(RESERVE)?;
                    Ok::<_, StoreError>(())
                })
            })
            .await
    }

    /// Records the size of a repository.
    pub async fn set_repository_size(&self, repository: RepositoryId, bytes: u64) -> Result<(), StoreError> {
        self.change_repository_size(
            "UPDATE repositories SET size_bytes = $1 WHERE id = $2",
            repository,
            bytes,
        )
        .await
    }

    /// Adds to the size of a repository.
    pub async fn add_repository_size(&self, repository: RepositoryId, bytes: u64) -> Result<(), StoreError> {
        let sql = "UPDATE repositories SET size_bytes = COALESCE(size_bytes, 0) + $1 WHERE id = $2";
        self.change_repository_size(sql, repository, bytes).await
    }

    async fn change_repository_size(
        &self,
        sql: &'static str,
        repository: RepositoryId,
        bytes: u64,
    ) -> Result<(), StoreError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.database()
            .write(COUNT, move |connection| {
                Box::pin(async move {
                    let changed = sqlx::query(sql).bind(bytes).bind(repository);
                    changed.execute(&mut *connection).await.doing(COUNT)?;
                    Ok::<_, StoreError>(())
                })
            })
            .await
    }

    /// Repositories of this server without a recorded size, with their projects.
    pub async fn uncounted_repositories(
        &self,
        _: &Operator,
    ) -> Result<Vec<(ProjectId, RepositoryId)>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, project_id FROM repositories
             WHERE kind = 'local' AND size_bytes IS NULL AND removed_ms IS NULL ORDER BY id LIMIT 100000",
        )
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        let ids = rows.iter().map(|row| {
            let (project, id): (String, String) =
                (row.try_get("project_id").doing(READ)?, row.try_get("id").doing(READ)?);
            Ok(project.parse().ok().zip(id.parse().ok()))
        });
        Ok(ids.collect::<Result<Vec<_>, StoreError>>()?.into_iter().flatten().collect())
    }
}

/// The stored and reserved bytes of a project.
async fn kept_bytes(connection: &mut AnyConnection, project: ProjectId) -> Result<i64, StoreError> {
    let row = sqlx::query(
        "SELECT CAST(artifact_bytes
             + COALESCE((SELECT SUM(size_bytes) FROM repositories WHERE project_id = $1 AND removed_ms IS NULL), 0)
             + COALESCE((SELECT SUM(size_bytes) FROM template_files WHERE project_id = $1), 0)
             + COALESCE((SELECT SUM(bytes) FROM storage_reservations WHERE project_id = $1 AND until_ms >= $2), 0)
             AS BIGINT) AS kept
         FROM projects WHERE id = $1",
    )
    .bind(project)
    .bind(now_ms())
    .fetch_one(connection)
    .await
    .doing(COUNT)?;
    row.try_get("kept").doing(COUNT)
}

/// The same in MiB, rounded up.
pub(crate) async fn kept_mib(connection: &mut AnyConnection, project: ProjectId) -> Result<i64, StoreError> {
    Ok(mebibytes(kept_bytes(connection, project).await?))
}

const fn mebibytes(bytes: i64) -> i64 {
    bytes.saturating_add(MIB - 1) / MIB
}
