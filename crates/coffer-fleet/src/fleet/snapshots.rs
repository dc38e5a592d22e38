//! Creates, finds and deletes snapshots, and reconciles the engine with the store.
//!
//! The row is written first and deleted last. A crash in between leaves a row in state `creating` or
//! `deleting`, and the next reconciliation finishes it. Snapshots that the engine has and no row explains are
//! deleted: interrupted forks leave such.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use coffer_core::sync::Mutex;
use coffer_core::{
    Memory, Refused, SandboxId, SandboxState, SizeWish, SnapshotId, SnapshotPurpose, TemplateDefaults,
    TemplateRef,
};
use coffer_engine::{EngineError, SnapshotInfo};
use coffer_store::{
    FinishedSnapshot, Idempotency, InsertedSnapshot, NewSnapshot, Origin, ProjectScope, SandboxRow,
    SnapshotFacts, SnapshotFilter, SnapshotRow, SnapshotState, TemplateSize,
};

use super::create::Base;
use super::record::Claim;
use super::{Fleet, FleetError, Record, Step};
use coffer_core::chain;
use coffer_telemetry::Snapshotted;

/// The default tag.
pub const DEFAULT_TAG: &str = "default";

/// How many snapshots a delete by name takes at a time.
const BATCH: u32 = 100;

/// A snapshot to create; everything in it has been checked.
#[derive(Debug, Clone, Default)]
pub struct SnapshotSpec {
    pub name: Option<String>,
    /// [`DEFAULT_TAG`] if `None`.
    pub tag: Option<String>,
    pub wish: MemoryWish,
    /// The key that requested it.
    pub created_by: Option<String>,
    pub idempotency: Option<(String, String)>,
    pub purpose: SnapshotPurpose,
    /// Bytes of the source that earlier snapshots are charged for.
    pub counted_bytes: u64,
}

/// Whether to include a sandbox's processes.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemoryWish {
    /// With them, without, or with them if possible.
    pub memory: Option<bool>,
    /// Whether values of secrets that the processes hold may be included.
    pub with_secrets: bool,
}

/// Snapshots with work in progress, which reconciliation must not touch.
#[derive(Debug, Default)]
pub(super) struct AtWork(Mutex<HashSet<SnapshotId>>);

/// One of them, released on drop.
#[derive(Debug)]
pub(super) struct Working<'a> {
    all: &'a AtWork,
    snapshot: SnapshotId,
}

impl AtWork {
    pub(super) fn begin(&self, snapshot: SnapshotId) -> Working<'_> {
        self.0.lock().insert(snapshot);
        Working { all: self, snapshot }
    }

    fn has(&self, snapshot: SnapshotId) -> bool {
        self.0.lock().contains(&snapshot)
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.snapshot);
    }
}

/// A captured sandbox, and why its processes were left out if they were.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) info: SnapshotInfo,
    pub(super) note: Option<String>,
}

/// Whether the processes of a sandbox are part of its snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Processes {
    Taken,
    Left { why: String },
}

impl Fleet {
    /// Creates a snapshot of a running sandbox, which keeps running.
    pub async fn snapshot(
        self: &Arc<Self>,
        scope: ProjectScope,
        record: Arc<Record>,
        spec: SnapshotSpec,
    ) -> Result<SnapshotRow, FleetError> {
        let place = self.host_calls.take(record.project).await?;
        let claim = record.claim(self.step_for(spec.wish)).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            let _place = place;
            let mut span = fleet.span("sandbox.snapshot", &record);
            let begun = Instant::now();
            let made = fleet.snapshot_claimed(scope, &claim, spec).await;
            let outcome = made.as_ref().map_or(Snapshotted::Failed, |row| Snapshotted::of(row.memory));
            fleet.telemetry.metrics.snapshotted(outcome, begun.elapsed());
            if let Err(error) = &made {
                span.fail(|| chain(error));
            }
            drop(claim);
            fleet.heal(&record).await;
            made
        })
        .await
    }

    async fn snapshot_claimed(
        self: &Arc<Self>,
        scope: ProjectScope,
        claim: &Claim,
        spec: SnapshotSpec,
    ) -> Result<SnapshotRow, FleetError> {
        let row = must_run(&claim.record, "be snapshotted; resume it first")?;
        let snapshot = SnapshotId::generate();
        let wanted = self.wanted_memory(&row, spec.wish)?;
        let new = NewSnapshot {
            id: snapshot,
            sandbox: row.id,
            agent: scope.agent(),
            name: spec.name,
            tag: spec.tag.unwrap_or_else(|| DEFAULT_TAG.to_string()),
            memory: wanted == Processes::Taken,
            template: engine_template(&row),
            limits: row.limits,
            secrets: if wanted == Processes::Taken { row.secrets.clone() } else { BTreeMap::new() },
            created_by: spec.created_by,
            purpose: spec.purpose,
        };
        let idempotency = spec.idempotency.as_ref();
        let key = idempotency.map(|(key, fingerprint)| Idempotency { key, fingerprint });
        let _working = self.at_work.begin(snapshot);
        match self.store.insert_snapshot(&scope, new, key).await? {
            InsertedSnapshot::New => {}
            InsertedSnapshot::OverQuota(over) => return Err(self.over_quota(scope.project(), over)),
            InsertedSnapshot::KeyReusedDifferently => return Err(FleetError::KeyReused),
            // A sandbox has one snapshot step at a time, so the first is over; only a crash leaves it
            // unfinished.
            InsertedSnapshot::Existing(first) => {
                return match first.state {
                    SnapshotState::Ready => Ok(*first),
                    SnapshotState::Creating | SnapshotState::Deleting => Err(FleetError::FirstUnderWay),
                };
            }
        }
        let mut captured = match self.capture(&claim.record, snapshot, spec.wish, wanted).await {
            Ok(captured) => captured,
            Err(error) => {
                self.drop_snapshot(snapshot, &chain(&error)).await;
                return Err(error);
            }
        };
        captured.info.files_bytes = captured.info.files_bytes.saturating_sub(spec.counted_bytes);
        match self.store.finish_snapshot(&self.store.operator(), snapshot, facts(captured)).await {
            Ok(FinishedSnapshot::Ready(row)) => {
                tracing::info!(sandbox.id = %row.sandbox, "snapshot {} of sandbox {} created", row.id, row.sandbox);
                Ok(*row)
            }
            Ok(FinishedSnapshot::OverQuota(over)) => {
                self.drop_snapshot(snapshot, &over.to_string()).await;
                Err(self.over_quota(scope.project(), over))
            }
            Ok(FinishedSnapshot::Gone) => Err(FleetError::NoSnapshot(snapshot.to_string())),
            Err(error) => {
                self.drop_snapshot(snapshot, "it could not be recorded").await;
                Err(error.into())
            }
        }
    }

    /// The defaults that later snapshots of a sandbox carry.
    pub async fn set_defaults(&self, record: &Record, defaults: &TemplateDefaults) -> Result<(), FleetError> {
        Ok(self.engine.set_defaults(record.id, defaults).await?)
    }

    /// Why the host cannot save memory, if it cannot.
    pub fn lacks_memory(&self) -> Option<String> {
        self.lacks_memory.lock().clone()
    }

    /// The step for this snapshot.
    pub(super) fn step_for(&self, wish: MemoryWish) -> Step {
        match wish.memory {
            Some(true) => Step::Checkpoint,
            None if self.lacks_memory().is_none() => Step::Checkpoint,
            None | Some(false) => Step::Snapshot,
        }
    }

    /// Whether to save the processes, or why not; refuses impossible requests.
    pub(super) fn wanted_memory(&self, row: &SandboxRow, wish: MemoryWish) -> Result<Processes, FleetError> {
        let names = || row.secrets.values().map(String::as_str).collect::<Vec<_>>().join(", ");
        match (wish.memory, self.lacks_memory()) {
            (Some(false), _) => Ok(Processes::Left { why: "it was not asked for".to_string() }),
            (Some(true), Some(lacks)) => Err(FleetError::NoMemory(lacks)),
            (None, Some(why)) => Ok(Processes::Left { why }),
            (wish, None) if !row.volumes.is_empty() => {
                let why = "it mounts volumes, whose files may change meanwhile".to_string();
                if wish == Some(true) { Err(FleetError::NoMemory(why)) } else { Ok(Processes::Left { why }) }
            }
            // The values are in the memory of processes, and would be in that of every fork.
            (_, None) if row.secrets.is_empty() || wish.with_secrets => Ok(Processes::Taken),
            (Some(true), None) => Err(FleetError::HoldsSecrets(names())),
            (None, None) => {
                let why = format!("its processes hold the secrets {}, which were not granted", names());
                Ok(Processes::Left { why })
            }
        }
    }

    /// Asks the engine for a snapshot of a sandbox, with its processes if wanted and possible, and lets it
    /// continue. The caller holds the claim.
    pub(super) async fn capture(
        &self,
        record: &Arc<Record>,
        snapshot: SnapshotId,
        wish: MemoryWish,
        wanted: Processes,
    ) -> Result<Captured, FleetError> {
        let captured = self.capture_once(record, snapshot, wish, wanted).await;
        // An engine that died meanwhile may leave the sandbox frozen, and the next engine keeps that state.
        if let Err(error) = self.engine.thaw(record.id).await {
            let id = record.id;
            tracing::warn!(sandbox.id = %id, "could not thaw sandbox {id} after its snapshot: {error}");
        }
        captured
    }

    async fn capture_once(
        &self,
        record: &Arc<Record>,
        snapshot: SnapshotId,
        wish: MemoryWish,
        wanted: Processes,
    ) -> Result<Captured, FleetError> {
        let without = match wanted {
            Processes::Taken => {
                // Store its output so far before it is frozen: a fork has its own log.
                self.output.catch_up(record, super::pause::WORDS_PATIENCE).await;
                match self.engine.snapshot(record.id, snapshot, Memory::With).await {
                    Ok(info) => return Ok(Captured { info, note: None }),
                    Err(error) => why_no_memory(error)?,
                }
            }
            Processes::Left { why } => why,
        };
        if wish.memory == Some(true) {
            return Err(FleetError::NoMemory(without));
        }
        let info = self.engine.snapshot(record.id, snapshot, Memory::Without).await?;
        Ok(Captured { info, note: (wish.memory != Some(false)).then_some(without) })
    }

    /// Deletes a snapshot. Sandboxes from it keep running. After the answer it can no longer be found; if the
    /// host is unreachable, it deletes the files soon after it returns.
    pub async fn delete_snapshot(
        self: &Arc<Self>,
        scope: ProjectScope,
        snapshot: SnapshotId,
    ) -> Result<(), FleetError> {
        let found = self.store.snapshot(&scope, snapshot).await?;
        let found = found.ok_or_else(|| FleetError::NoSnapshot(snapshot.to_string()))?;
        self.held_here(&found)?;
        let fleet = self.clone();
        self.carry_through(async move {
            let _place = fleet.ends.take(found.project).await;
            let _working = fleet.at_work.begin(snapshot);
            if fleet.store.begin_snapshot_deletion(&scope, snapshot).await?.is_some() {
                fleet.drop_snapshot(snapshot, "deleted on request").await;
            }
            Ok(())
        })
        .await
    }

    /// Deletes the snapshot that a name refers to, and earlier ones of that name.
    pub async fn delete_named(
        self: &Arc<Self>,
        scope: ProjectScope,
        reference: &TemplateRef,
    ) -> Result<(), FleetError> {
        let unknown = || FleetError::NoSnapshot(reference.to_string());
        if let Some(row) = self.snapshot_by_id(&scope, reference).await? {
            return self.delete_snapshot(scope, row.id).await;
        }
        if !is_ours(&scope, reference) {
            return Err(unknown());
        }
        let mut filter = SnapshotFilter {
            name: Some(reference.name.clone()),
            tag: reference.tag.clone(),
            limit: BATCH,
            ..SnapshotFilter::default()
        };
        let mut deleted = 0;
        loop {
            let mut builds = self.store.snapshots(&scope, &filter).await?;
            filter.before = builds.last().map(|last| last.id);
            let more = builds.len() == BATCH as usize;
            // Agents' snapshots have separate names, even with the same text.
            builds.retain(|row| row.agent == scope.agent());
            for row in builds {
                self.delete_snapshot(scope, row.id).await?;
                deleted += 1;
            }
            if !more {
                break;
            }
        }
        if deleted == 0 { Err(unknown()) } else { Ok(()) }
    }

    /// Deletes a snapshot in the engine and then its row; if the engine is unreachable the row stays, and the
    /// next reconciliation continues.
    async fn drop_snapshot(&self, snapshot: SnapshotId, reason: &str) {
        if let Err(error) = self.engine.delete_snapshot(snapshot).await {
            tracing::warn!("the engine could not delete snapshot {snapshot} yet: {error}");
            // Mark it, so that it does not look like one being created.
            let marked = self.store.begin_snapshot_deletion(&self.store.operator(), snapshot).await;
            if let Err(error) = marked {
                tracing::warn!("could not record snapshot {snapshot} as deleted: {error}");
            }
            return;
        }
        if let Err(error) = self.store.remove_snapshot(&self.store.operator(), snapshot, reason).await {
            tracing::warn!("could not delete the row of snapshot {snapshot}: {}", chain(&error));
        }
    }

    /// The usable snapshot that a template reference names, if any.
    pub async fn snapshot_called(
        &self,
        scope: &ProjectScope,
        reference: &TemplateRef,
    ) -> Result<Option<SnapshotRow>, FleetError> {
        if let Some(row) = self.snapshot_by_id(scope, reference).await? {
            return Ok(Some(row).filter(|row| row.state == SnapshotState::Ready));
        }
        if !is_ours(scope, reference) {
            return Ok(None);
        }
        let tag = reference.tag.as_deref().unwrap_or(DEFAULT_TAG);
        Ok(self.store.snapshot_named(scope, &reference.name, tag).await?)
    }

    /// By `id` or `id:default`.
    async fn snapshot_by_id(
        &self,
        scope: &ProjectScope,
        reference: &TemplateRef,
    ) -> Result<Option<SnapshotRow>, FleetError> {
        let plain = reference.namespace.is_none();
        let Ok(id) = reference.name.parse::<SnapshotId>() else { return Ok(None) };
        let row = if plain { self.store.snapshot(scope, id).await? } else { None };
        let tag = reference.tag.as_deref().unwrap_or(DEFAULT_TAG);
        Ok(row.filter(|row| tag == DEFAULT_TAG || tag == row.tag))
    }

    /// What a sandbox gets from the snapshot it starts from.
    pub fn base_of(&self, row: &SnapshotRow, memory: Option<bool>) -> Result<Base, FleetError> {
        self.held_here(row)?;
        if memory == Some(true) && !row.memory {
            let why = row.note.clone().unwrap_or_else(|| "it was created without memory".to_string());
            return Err(FleetError::NoMemory(format!("snapshot {} has no memory: {why}", row.id)));
        }
        let memory = memory.unwrap_or(row.memory);
        Ok(Base {
            origin: Origin { parent: row.sandbox, snapshot: row.id, fork_position: None },
            memory,
            template: row.template.clone(),
            template_id: row.id.to_string(),
            alias: row.name.clone(),
            limits: row.limits,
            secrets: if memory { row.secrets.clone() } else { BTreeMap::new() },
            spawns: None,
            template_owner: None,
        })
    }

    /// What a sandbox gets from the template of its project that a reference names, if there is one.
    pub async fn template_called(
        &self,
        scope: &ProjectScope,
        reference: &TemplateRef,
        memory: Option<bool>,
    ) -> Result<Option<Base>, FleetError> {
        if !is_ours(scope, reference) {
            return Ok(None);
        }
        let tag = reference.tag.as_deref().unwrap_or(DEFAULT_TAG);
        let Some(found) = self.store.usable_template(scope, &reference.name, tag).await? else {
            return Ok(None);
        };
        // As the operator: agents use the templates of their project too.
        let row = self.store.snapshot(&self.store.operator(), found.snapshot).await?;
        let Some(row) = row.filter(|row| row.project == scope.project()) else { return Ok(None) };
        let TemplateSize { cpu_count, memory_mib, disk_mib } = found.size;
        let size = SizeWish { cpu_count, memory_mib, disk_mib };
        Ok(Some(Base {
            template_id: found.id.to_string(),
            alias: Some(found.name),
            limits: size.over(self.limits),
            spawns: Some(found.id),
            template_owner: Some(scope.project()),
            ..self.base_of(&row, memory)?
        }))
    }

    /// What a sandbox gets from a template of all projects, if the name is one and it is built. Callers look for the
    /// project's own templates and snapshots first. Answers have its name for an id: the ids belong to a project that
    /// nobody sees.
    pub async fn shared_called(
        &self,
        reference: &TemplateRef,
        memory: Option<bool>,
    ) -> Result<Option<Base>, FleetError> {
        let plain =
            reference.namespace.is_none() && reference.tag.as_deref().is_none_or(|tag| tag == DEFAULT_TAG);
        let Some(shared) = self.shared.get().filter(|_| plain && self.is_shared(&reference.name)) else {
            return Ok(None);
        };
        let operator = self.store.operator();
        let scope = operator.acting_for(shared.project, None);
        let Some(found) = self.store.usable_template(&scope, &reference.name, DEFAULT_TAG).await? else {
            return Ok(None);
        };
        let row = self.store.snapshot(&operator, found.snapshot).await?;
        let Some(row) = row.filter(|row| row.project == shared.project) else { return Ok(None) };
        let (cpu_count, memory_mib) = (found.size.cpu_count, found.size.memory_mib);
        let size = SizeWish { cpu_count, memory_mib, disk_mib: None };
        Ok(Some(Base {
            template_id: found.name.clone(),
            alias: Some(found.name),
            limits: size.over(self.limits),
            spawns: Some(found.id),
            ..self.base_of(&row, memory)?
        }))
    }

    /// Checks that this host has the snapshot: only the host that created it does.
    pub(super) fn held_here(&self, row: &SnapshotRow) -> Result<(), FleetError> {
        match self.store.snapshot_holder_elsewhere(row) {
            Some(holder) => Err(FleetError::SnapshotElsewhere(row.id, holder.to_string())),
            None => Ok(()),
        }
    }

    /// Finishes interrupted work, and deletes unknown snapshots.
    pub(super) async fn reconcile_snapshots(&self) -> Result<(), FleetError> {
        let listed = match self.engine.snapshots().await {
            Ok(listed) => listed,
            Err(EngineError::Unsupported(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let operator = self.store.operator();
        let mut settled = HashSet::new();
        for row in self.store.unfinished_snapshots(&operator).await? {
            if self.at_work.has(row.id) {
                continue;
            }
            let _working = self.at_work.begin(row.id);
            let made = listed.iter().find(|info| info.snapshot == row.id);
            match (row.state, made) {
                // It is complete: the client that requested it may look for it.
                (SnapshotState::Creating, Some(info)) => {
                    let captured = Captured { info: info.clone(), note: row.note };
                    let finished = self.store.finish_snapshot(&operator, row.id, facts(captured)).await?;
                    if let FinishedSnapshot::OverQuota(over) = finished {
                        self.drop_snapshot(row.id, &over.to_string()).await;
                    }
                }
                (SnapshotState::Creating, None) => {
                    self.drop_snapshot(row.id, "the server was stopped before it finished").await;
                }
                (SnapshotState::Deleting, _) => self.drop_snapshot(row.id, "deleted on request").await,
                (SnapshotState::Ready, _) => continue,
            }
            settled.insert(row.id);
            self.found.repaired.fetch_add(1, Ordering::Relaxed);
        }
        let is_at_rest = |id: &SnapshotId| !settled.contains(id) && !self.at_work.has(*id);
        let strangers: Vec<SnapshotId> = listed.iter().map(|info| info.snapshot).filter(is_at_rest).collect();
        let known = self.store.known_snapshots(&operator, &strangers).await?;
        for info in listed {
            let id = info.snapshot;
            // Check again: it may be in use since.
            if known.contains(&id) || !strangers.contains(&id) || self.at_work.has(id) {
                continue;
            }
            tracing::warn!("the engine has snapshot {id} of sandbox {}, which has no record", info.sandbox);
            match self.engine.delete_snapshot(id).await {
                Ok(()) => self.record_orphan(info.sandbox, &[format!("snapshot {id}")]).await,
                Err(error) => tracing::warn!("the engine could not delete snapshot {id} yet: {error}"),
            }
        }
        Ok(())
    }

    /// Deletes the snapshot of a fork; if that fails, the next reconciliation finds it.
    pub(super) async fn release_snapshot(&self, snapshot: SnapshotId, of: SandboxId) {
        if let Err(error) = self.engine.delete_snapshot(snapshot).await {
            tracing::warn!(sandbox.id = %of, "could not delete the snapshot {snapshot} of a fork yet: {error}");
        }
    }
}

/// The row of a running sandbox; others are refused with what they cannot do.
pub(super) fn must_run(record: &Record, asked: &'static str) -> Result<SandboxRow, FleetError> {
    let row = record.row();
    match row.state {
        SandboxState::Running => Ok(row),
        _ => Err(Refused { state: row.state.name(), asked }.into()),
    }
}

/// Why processes could not be saved, if the sandbox continues as before; other errors are returned.
pub(super) fn why_no_memory(error: EngineError) -> Result<String, FleetError> {
    match error {
        EngineError::Unsupported(why) | EngineError::Failed(why) | EngineError::NoCapacity(why) => Ok(why),
        other => Err(other.into()),
    }
}

/// The engine's name of a sandbox's base template.
pub(super) fn engine_template(row: &SandboxRow) -> String {
    row.placement
        .as_ref()
        .map_or_else(|| row.template_id.clone(), |placement| placement.template.name.clone())
}

/// Whether a name belongs to the caller's project. The namespace of names is the project's id.
fn is_ours(scope: &ProjectScope, reference: &TemplateRef) -> bool {
    reference.namespace.as_ref().is_none_or(|namespace| *namespace == scope.project().to_string())
}

fn facts(Captured { info, note }: Captured) -> SnapshotFacts {
    SnapshotFacts {
        memory: info.memory,
        note,
        files_bytes: info.files_bytes,
        memory_bytes: info.memory_bytes,
        paused_us: info.paused_us,
    }
}
