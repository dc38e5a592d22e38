//! Quotas of projects.
//!
//! Quotas are counted, not stored: sums over the rows of live sandboxes, in the transaction that adds to them,
//! after it has incremented the project's event counter. That locks the project's row until the commit, so a
//! count sees everything granted before, by any server.
//!
//! A paused sandbox counts only by its disk: its processors and memory are free for others. A snapshot counts
//! by its size, a volume by its limit.

use std::fmt;

use coffer_core::event::{Event, QuotasChanged};
use coffer_core::{Limits, Millis, ProjectId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::columns::bigint;
use crate::error::Doing;
use crate::projects::lock_and_read_project;
use crate::volumes::MOST_VOLUMES;
use crate::{Operator, Scope, Store, StoreError, events, now_ms, storage, volumes};

const READ: &str = "read quotas";
const COUNT: &str = "count what a project uses";
const CHANGE: &str = "change quotas";

/// Most snapshots of a project; each is a directory on its host.
pub(crate) const MOST_SNAPSHOTS: i64 = 10_000;

/// The limit of each quota; `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    pub sandboxes: Option<i64>,
    pub cpus: Option<i64>,
    pub memory_mib: Option<i64>,
    pub disk_mib: Option<i64>,
    pub forks: Option<i64>,
    /// Runs that hold a slot; further ones wait.
    #[serde(default)]
    pub runs: Option<i64>,
    /// Repositories, Git LFS and artifacts together.
    #[serde(default)]
    pub storage_mib: Option<i64>,
}

/// The current use of each quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InUse {
    /// Running or being created.
    pub sandboxes: i64,
    pub cpus: i64,
    pub memory_mib: i64,
    pub disk_mib: i64,
    /// Only computed for display.
    pub storage_mib: i64,
}

/// A project's quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectQuotas {
    /// Those that an operator set.
    pub own: Quotas,
    /// Those in force.
    pub in_force: Quotas,
    pub in_use: InUse,
    /// The version of the project.
    pub version: i64,
}

/// A quota.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Quota {
    Sandboxes,
    Cpus,
    MemoryMib,
    DiskMib,
    /// Live forks.
    Forks,
    Snapshots,
    Volumes,
    StorageMib,
}

coffer_core::names!(Quota);

/// A request exceeds a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverQuota {
    pub quota: Quota,
    pub limit: i64,
    pub used: i64,
    pub asked: i64,
    /// When the next deadline frees some of it, from now.
    pub frees_in_ms: Option<Millis>,
}

impl OverQuota {
    /// Whether it would not fit even if nothing else were in use: waiting does not help.
    pub const fn is_hopeless(&self) -> bool {
        self.asked > self.limit
    }
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, limit, used, asked, .. } = self;
        let quota = quota.as_str();
        write!(
            f,
            "the project's quota `{quota}` is {limit}, of which {used} are in use, and this needs {asked}"
        )
    }
}

impl Quotas {
    /// These, with `others` for those that are unset.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            sandboxes: self.sandboxes.or(others.sandboxes),
            cpus: self.cpus.or(others.cpus),
            memory_mib: self.memory_mib.or(others.memory_mib),
            disk_mib: self.disk_mib.or(others.disk_mib),
            forks: self.forks.or(others.forks),
            runs: self.runs.or(others.runs),
            storage_mib: self.storage_mib.or(others.storage_mib),
        }
    }

    /// Whether any of them requires counting sandboxes.
    const fn count(&self) -> bool {
        self.sandboxes.is_some()
            || self.cpus.is_some()
            || self.memory_mib.is_some()
            || self.disk_mib.is_some()
    }

    /// The first quota that `asked` exceeds, with its use.
    fn refuse(&self, used: InUse, asked: InUse) -> Option<OverQuota> {
        let each = [
            (Quota::Sandboxes, self.sandboxes, used.sandboxes, asked.sandboxes),
            (Quota::Cpus, self.cpus, used.cpus, asked.cpus),
            (Quota::MemoryMib, self.memory_mib, used.memory_mib, asked.memory_mib),
            (Quota::DiskMib, self.disk_mib, used.disk_mib, asked.disk_mib),
        ];
        each.into_iter().find_map(|(quota, limit, used, asked)| {
            let limit = limit?;
            // A request that needs nothing of a quota is not refused for it.
            let over = asked > 0 && used.saturating_add(asked) > limit;
            over.then_some(OverQuota { quota, limit, used, asked, frees_in_ms: None })
        })
    }
}

/// What a new sandbox needs.
fn whole(limits: &Limits) -> InUse {
    InUse {
        sandboxes: 1,
        cpus: i64::from(limits.cpu_count),
        memory_mib: bigint(limits.memory_mib),
        disk_mib: bigint(limits.disk_mib),
        storage_mib: 0,
    }
}

impl InUse {
    fn with(self, other: Self) -> Self {
        Self {
            sandboxes: self.sandboxes.saturating_add(other.sandboxes),
            cpus: self.cpus.saturating_add(other.cpus),
            memory_mib: self.memory_mib.saturating_add(other.memory_mib),
            disk_mib: self.disk_mib.saturating_add(other.disk_mib),
            storage_mib: self.storage_mib.saturating_add(other.storage_mib),
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            sandboxes: self.sandboxes - other.sandboxes,
            cpus: self.cpus - other.cpus,
            memory_mib: self.memory_mib - other.memory_mib,
            disk_mib: self.disk_mib - other.disk_mib,
            storage_mib: self.storage_mib - other.storage_mib,
        }
    }
}

/// The step of a sandbox that needs room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    ToBegin,
    /// Its disk is already counted.
    ToResume,
}

impl Store {
    /// Sets the default quotas of projects.
    pub fn set_default_quotas(&self, quotas: Quotas) {
        self.inner.here.write().quotas = quotas;
    }

    /// Sets the default number of runs of a project that may hold a slot.
    pub fn set_default_runs(&self, runs: u32) {
        let mut here = self.inner.here.write();
        here.quotas.runs = Some(runs.into());
    }

    pub(crate) fn default_quotas(&self) -> Quotas {
        self.inner.here.read().quotas
    }

    /// The quotas of a project in scope, and their use.
    pub async fn quotas(
        &self,
        scope: &impl Scope,
        project: ProjectId,
    ) -> Result<Option<ProjectQuotas>, StoreError> {
        let mut connection = self.database().readers().acquire().await.doing(READ)?;
        let row = sqlx::query(
            "SELECT version, most_sandboxes, most_cpus, most_memory_mib, most_disk_mib, most_forks, most_runs,
                 most_storage_mib
             FROM projects WHERE id = $1 AND ($2 IS NULL OR id = $2) AND removed_ms IS NULL",
        )
        .bind(project)
        .bind(scope.only())
        .fetch_optional(&mut *connection)
        .await
        .doing(READ)?;
        let Some(row) = row else { return Ok(None) };
        let (own, version) = (of_project(&row)?, row.try_get("version").doing(READ)?);
        let in_use = in_use(&mut connection, project, Counting::Everything).await?;
        let storage_mib = storage::kept_mib(&mut connection, project).await?;
        let in_use = InUse { storage_mib, ..in_use };
        Ok(Some(ProjectQuotas { own, in_force: own.or(self.default_quotas()), in_use, version }))
    }

    /// Sets a project's own quotas, if it exists with this version; `None` otherwise.
    pub async fn set_quotas(
        &self,
        _: &Operator,
        project: ProjectId,
        version: Option<i64>,
        quotas: Quotas,
    ) -> Result<Option<i64>, StoreError> {
        let set = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let changed = sqlx::query(
                    "UPDATE projects SET version = version + 1, most_sandboxes = $1, most_cpus = $2,
                         most_memory_mib = $3, most_disk_mib = $4, most_forks = $5, most_runs = $6,
                         most_storage_mib = $7
                     WHERE id = $8 AND ($9 IS NULL OR version = $9) AND removed_ms IS NULL
                     RETURNING version",
                )
                .bind(quotas.sandboxes)
                .bind(quotas.cpus)
                .bind(quotas.memory_mib)
                .bind(quotas.disk_mib)
                .bind(quotas.forks)
                .bind(quotas.runs)
                .bind(quotas.storage_mib)
                .bind(project)
                .bind(version)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                let Some(changed) = changed else { return Ok(None) };
                let event = Event::ProjectQuotasChanged(QuotasChanged { quotas: json!(quotas) });
                events::record(connection, project, project, event, now_ms()).await?;
                Ok(Some(changed.try_get("version").doing(CHANGE)?))
            })
        });
        set.await
    }

    /// Whether a sandbox with these limits would be refused now. Only [`Store::insert_sandbox`] and
    /// [`Store::transition`] decide; this saves failing attempts.
    pub async fn refusal(
        &self,
        scope: &impl Scope,
        project: ProjectId,
        limits: &Limits,
        asking: Asking,
    ) -> Result<Option<OverQuota>, StoreError> {
        let Some(quotas) = self.quotas(scope, project).await? else { return Ok(None) };
        let Some(over) = quotas.in_force.refuse(quotas.in_use, asked(limits, asking)) else {
            return Ok(None);
        };
        let mut connection = self.database().readers().acquire().await.doing(READ)?;
        with_hope(&mut connection, project, over).await.map(Some)
    }

    /// Whether forks with these limits would be refused now. Only [`Store::insert_sandbox`] decides; this
    /// allows a refusal before the sandbox is frozen.
    pub async fn fork_refusal(
        &self,
        scope: &impl Scope,
        project: ProjectId,
        limits: &[Limits],
    ) -> Result<Option<OverQuota>, StoreError> {
        let Some(quotas) = self.quotas(scope, project).await? else { return Ok(None) };
        let mut connection = self.database().readers().acquire().await.doing(READ)?;
        if let Some(limit) = quotas.in_force.forks {
            let count = i64::try_from(limits.len()).unwrap_or(i64::MAX);
            let used = live_forks(&mut connection, project).await?;
            if used.saturating_add(count) > limit {
                let (quota, asked) = (Quota::Forks, count);
                return Ok(Some(OverQuota { quota, limit, used, asked, frees_in_ms: None }));
            }
        }
        let all = limits.iter().map(whole).fold(InUse::default(), InUse::with);
        match quotas.in_force.refuse(quotas.in_use, all) {
            None => Ok(None),
            Some(over) => with_hope(&mut connection, project, over).await.map(Some),
        }
    }
}

fn asked(limits: &Limits, asking: Asking) -> InUse {
    match asking {
        Asking::ToBegin => whole(limits),
        Asking::ToResume => InUse { disk_mib: 0, ..whole(limits) },
    }
}

/// Whether a sandbox that this transaction has already written exceeds a quota. The transaction holds the
/// project's row.
pub(crate) async fn check(
    connection: &mut AnyConnection,
    project: ProjectId,
    quotas: Quotas,
    limits: &Limits,
    asking: Asking,
) -> Result<Option<OverQuota>, StoreError> {
    if !quotas.count() {
        return Ok(None);
    }
    let counting = if quotas.disk_mib.is_some() { Counting::Everything } else { Counting::SandboxesAlone };
    let used = in_use(connection, project, counting).await?.without(asked(limits, asking));
    match quotas.refuse(used, asked(limits, asking)) {
        None => Ok(None),
        Some(over) => with_hope(connection, project, over).await.map(Some),
    }
}

/// Adds when waiting will help.
async fn with_hope(
    connection: &mut AnyConnection,
    project: ProjectId,
    over: OverQuota,
) -> Result<OverQuota, StoreError> {
    // A pause frees everything but the disk.
    let any_end = i64::from(over.quota != Quota::DiskMib);
    let row = sqlx::query(
        "SELECT MIN(deadline_ms) AS next FROM sandboxes
         WHERE project_id = $1 AND state IN ('creating', 'running') AND ($2 = 1 OR on_timeout = 'destroy')",
    )
    .bind(project)
    .bind(any_end)
    .fetch_one(connection)
    .await
    .doing(COUNT)?;
    let next: Option<Millis> = row.try_get("next").doing(COUNT)?;
    Ok(OverQuota { frees_in_ms: next.map(|next| (next - now_ms()).max(0)), ..over })
}

/// What to count. Snapshots and volumes only for the disk: every create counts sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counting {
    SandboxesAlone,
    Everything,
}

async fn in_use(
    connection: &mut AnyConnection,
    project: ProjectId,
    counting: Counting,
) -> Result<InUse, StoreError> {
    // Answered from the index `sandboxes_in_use`.
    let row = sqlx::query(
        "SELECT
             CAST(COALESCE(SUM(CASE WHEN state <> 'paused' THEN 1 ELSE 0 END), 0) AS BIGINT) AS sandboxes,
             CAST(COALESCE(SUM(CASE WHEN state <> 'paused' THEN cpu_count ELSE 0 END), 0) AS BIGINT) AS cpus,
             CAST(COALESCE(SUM(CASE WHEN state <> 'paused' THEN memory_mib ELSE 0 END), 0) AS BIGINT) AS memory,
             CAST(COALESCE(SUM(disk_mib), 0) AS BIGINT) AS disk
         FROM sandboxes WHERE project_id = $1 AND state IN ('creating', 'running', 'paused')",
    )
    .bind(project)
    .fetch_one(&mut *connection)
    .await
    .doing(COUNT)?;
    let disk_mib: i64 = row.try_get("disk").doing(COUNT)?;
    let kept = match counting {
        Counting::SandboxesAlone => 0,
        Counting::Everything => {
            let snapshots = kept(connection, project).await?.disk_mib;
            snapshots.saturating_add(volumes::reserved(connection, project).await?.1)
        }
    };
    Ok(InUse {
        sandboxes: row.try_get("sandboxes").doing(COUNT)?,
        cpus: row.try_get("cpus").doing(COUNT)?,
        memory_mib: row.try_get("memory").doing(COUNT)?,
        disk_mib: disk_mib.saturating_add(kept),
        storage_mib: 0,
    })
}

/// The snapshots of a project.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    count: i64,
    disk_mib: i64,
}

async fn kept(connection: &mut AnyConnection, project: ProjectId) -> Result<Kept, StoreError> {
    let row = sqlx::query(
        "SELECT COUNT(*) AS count,
             CAST(COALESCE(SUM((files_bytes + memory_bytes + 1048575) / 1048576), 0) AS BIGINT) AS disk
         FROM snapshots WHERE project_id = $1",
    )
    .bind(project)
    .fetch_one(connection)
    .await
    .doing(COUNT)?;
    Ok(Kept { count: row.try_get("count").doing(COUNT)?, disk_mib: row.try_get("disk").doing(COUNT)? })
}

/// Whether a snapshot of `size_mib`, which this transaction has already written, exceeds a quota. The
/// transaction holds the project's row.
pub(crate) async fn check_snapshot(
    connection: &mut AnyConnection,
    project: ProjectId,
    quotas: Quotas,
    size_mib: i64,
) -> Result<Option<OverQuota>, StoreError> {
    let over = |quota, limit, used, asked| Some(OverQuota { quota, limit, used, asked, frees_in_ms: None });
    let used = kept(connection, project).await?;
    if used.count > MOST_SNAPSHOTS {
        return Ok(over(Quota::Snapshots, MOST_SNAPSHOTS, used.count - 1, 1));
    }
    let Some(limit) = quotas.disk_mib else { return Ok(None) };
    let used = in_use(connection, project, Counting::Everything).await?.disk_mib - size_mib;
    // A snapshot in creation has no size yet, but needs some room.
    let asked = size_mib.max(1);
    Ok(if used.saturating_add(asked) > limit { over(Quota::DiskMib, limit, used, asked) } else { None })
}

/// Whether a volume of `size_mib`, which this transaction has already written, exceeds a quota. The transaction
/// holds the project's row.
pub(crate) async fn check_volume(
    connection: &mut AnyConnection,
    project: ProjectId,
    quotas: Quotas,
    size_mib: i64,
) -> Result<Option<OverQuota>, StoreError> {
    let (count, _) = volumes::reserved(connection, project).await?;
    if count > MOST_VOLUMES {
        return Ok(Some(volumes::too_many(count - 1)));
    }
    let Some(limit) = quotas.disk_mib else { return Ok(None) };
    let used = in_use(connection, project, Counting::Everything).await?.disk_mib - size_mib;
    let over = OverQuota { quota: Quota::DiskMib, limit, used, asked: size_mib, frees_in_ms: None };
    Ok((used.saturating_add(size_mib) > limit).then_some(over))
}

/// Locks the project's row, and returns its own quotas.
pub(crate) async fn lock_and_read(
    connection: &mut AnyConnection,
    project: ProjectId,
    doing: &'static str,
) -> Result<Quotas, StoreError> {
    const COLUMNS: &str = "most_sandboxes, most_cpus, most_memory_mib, most_disk_mib, most_forks, most_runs, \
                           most_storage_mib";
    let row = lock_and_read_project(connection, project, COLUMNS, doing).await?;
    row.map_or(Ok(Quotas::default()), |row| of_project(&row))
}

/// Whether a fork, which this transaction has already written, exceeds the project's quota. The transaction
/// holds the project's row.
pub(crate) async fn check_forks(
    connection: &mut AnyConnection,
    quotas: Quotas,
    project: ProjectId,
) -> Result<Option<OverQuota>, StoreError> {
    let Some(limit) = quotas.forks else { return Ok(None) };
    let used = live_forks(connection, project).await? - 1;
    Ok((used >= limit).then_some(OverQuota { quota: Quota::Forks, limit, used, asked: 1, frees_in_ms: None }))
}

async fn live_forks(connection: &mut AnyConnection, project: ProjectId) -> Result<i64, StoreError> {
    let row = sqlx::query(
        "SELECT COUNT(*) AS count FROM sandboxes WHERE project_id = $1 AND fork_position IS NOT NULL
             AND state IN ('creating', 'running', 'paused')",
    )
    .bind(project)
    .fetch_one(connection)
    .await
    .doing(COUNT)?;
    row.try_get("count").doing(COUNT)
}

/// Parses the quotas on a project's row.
pub(crate) fn of_project(row: &AnyRow) -> Result<Quotas, StoreError> {
    Ok(Quotas {
        sandboxes: row.try_get("most_sandboxes").doing(READ)?,
        cpus: row.try_get("most_cpus").doing(READ)?,
        memory_mib: row.try_get("most_memory_mib").doing(READ)?,
        disk_mib: row.try_get("most_disk_mib").doing(READ)?,
        forks: row.try_get("most_forks").doing(READ)?,
        runs: row.try_get("most_runs").doing(READ)?,
        storage_mib: row.try_get("most_storage_mib").doing(READ)?,
    })
}
