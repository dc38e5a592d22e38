//! Forks: a temporary snapshot, and sandboxes that start from it.
//!
//! The snapshot is not recorded. If the server dies before it deletes it, the next reconciliation finds and
//! deletes it; forks share its files and keep running.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use coffer_core::event::{Event, SandboxForked};
use coffer_core::{Limits, Memory, Millis, SandboxPurpose, SizeWish, SnapshotId, TaskId, TemplateRef};
use coffer_store::{Bounds, Idempotency, Inserted, Origin, ProjectScope, SandboxRow};
use futures_util::{StreamExt as _, stream};

use super::create::{Base, CreateSpec};
use super::snapshots::{Captured, MemoryWish, Processes, engine_template, must_run};
use super::volumes::MountWish;
use super::{Fleet, FleetError, Record};
use coffer_core::chain;
use coffer_core::clock::now_ms;
use coffer_telemetry::Snapshotted;

/// Forks created at a time.
const AT_A_TIME: usize = 16;

/// A fork request; everything in it has been checked.
#[derive(Debug, Clone)]
pub struct ForkSpec {
    pub count: u32,
    pub timeout_ms: Millis,
    pub wish: MemoryWish,
    /// The task that the forks are for, instead of the source's.
    pub task: Option<TaskId>,
    /// The idle timeout of a fork, if it differs from the source's.
    pub idle_s: Option<i64>,
    /// The size of each fork by position, instead of the source's; forks beyond the list have the source's.
    /// Forks that continue processes keep the source's size.
    pub sizes: Vec<SizeWish>,
    /// Added to the source's own, and wins over it.
    pub metadata: BTreeMap<String, String>,
    pub env_vars: BTreeMap<String, String>,
    /// Variables that get a secret's value in the forks, by the secret's name.
    pub secrets: BTreeMap<String, String>,
    pub idempotency: Option<(String, String)>,
}

impl ForkSpec {
    fn size(&self, at: u32, memory: Memory) -> SizeWish {
        let wish =
            usize::try_from(at).ok().and_then(|at| self.sizes.get(at)).filter(|_| memory == Memory::Without);
        wish.copied().unwrap_or_default()
    }
}

/// The result of a fork.
#[derive(Debug)]
pub struct Forked {
    /// One for each requested fork, in order.
    pub children: Vec<Result<SandboxRow, FleetError>>,
    /// Whether they continue the source's processes.
    pub memory: bool,
    /// Why not, if that was not requested.
    pub note: Option<String>,
}

impl Fleet {
    /// Creates sandboxes that start from the current state of a running one. The source stays as it is. A
    /// fork that fails does not affect the others.
    pub async fn fork(
        self: &Arc<Self>,
        scope: ProjectScope,
        record: Arc<Record>,
        spec: ForkSpec,
    ) -> Result<Forked, FleetError> {
        if let Some(earlier) = self.forked_before(&scope, &spec).await? {
            return Ok(earlier);
        }
        let place = self.host_calls.take(record.project).await?;
        let claim = record.claim(self.step_for(spec.wish)).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            let mut span = fleet.span("sandbox.fork", &record);
            span.set("fork.count", || i64::from(spec.count).into());
            let begun = Instant::now();
            let source = must_run(&record, "be forked; resume it first")?;
            let wanted = fleet.wanted_memory(&source, spec.wish)?;
            fleet.usage.admits(source.project, None)?;
            let project = source.project;
            let size = |at| spec.size(at, Memory::from(wanted == Processes::Taken)).over(source.limits);
            let all: Vec<Limits> = (0..spec.count).map(size).collect();
            let over = fleet.store.fork_refusal(&scope, project, &all).await?;
            if let Some(over) = over {
                return Err(fleet.over_quota(project, over));
            }
            let child = child_of(&source, &spec)?;
            // Check what would fail for every fork before the source is frozen.
            fleet.check_secrets(project, &child.secrets).await?;
            let snapshot = SnapshotId::generate();
            let _working = fleet.at_work.begin(snapshot);
            let captured = fleet.capture(&record, snapshot, spec.wish, wanted).await;
            // Release the claim: the source only had to be frozen for the snapshot. Each fork takes its own
            // place in the pool.
            drop((claim, place));
            fleet.heal(&record).await;
            let Captured { info, note } = match captured {
                Ok(captured) => captured,
                Err(error) => {
                    fleet.telemetry.metrics.forked(Snapshotted::Failed, begun.elapsed(), 0, spec.count);
                    span.fail(|| chain(&error));
                    fleet.release_snapshot(snapshot, source.id).await;
                    return Err(error);
                }
            };
            let children = fleet.bear(scope, &source, &spec, child, snapshot, info.memory.into()).await;
            fleet.release_snapshot(snapshot, source.id).await;
            let forked = Forked { children, memory: info.memory, note };
            fleet.tell_of_fork(&source, snapshot, &forked, info.paused_us).await;
            let made = forked.children.iter().filter(|child| child.is_ok()).count();
            let failed = forked.children.len() - made;
            let outcome = Snapshotted::of(forked.memory);
            let of = |count| u32::try_from(count).unwrap_or(u32::MAX);
            fleet.telemetry.metrics.forked(outcome, begun.elapsed(), of(made), of(failed));
            Ok(forked)
        })
        .await
    }

    /// Creates the forks, concurrently.
    async fn bear(
        self: &Arc<Self>,
        scope: ProjectScope,
        source: &SandboxRow,
        spec: &ForkSpec,
        child: CreateSpec,
        snapshot: SnapshotId,
        memory: Memory,
    ) -> Vec<Result<SandboxRow, FleetError>> {
        let made = (0..spec.count).map(|at| {
            let position = i64::from(at) + 1;
            let base = Base {
                spawns: None,
                template_owner: None,
                origin: Origin { parent: source.id, snapshot, fork_position: Some(position) },
                memory: memory.into(),
                template: engine_template(source),
                template_id: source.template_id.clone(),
                alias: source.alias.clone(),
                limits: source.limits,
                secrets: BTreeMap::new(),
            };
            let idempotency = key_of(spec, position);
            let size = spec.size(at, memory);
            let child = CreateSpec { base: Some(base), size, idempotency, ..child.clone() };
            let fleet = self.clone();
            async move { fleet.create(scope, child).await }
        });
        stream::iter(made).buffered(AT_A_TIME).collect().await
    }

    /// The result of the same request before, if there was one.
    async fn forked_before(
        &self,
        scope: &ProjectScope,
        spec: &ForkSpec,
    ) -> Result<Option<Forked>, FleetError> {
        let Some(keys) = (1..=i64::from(spec.count)).map(|at| key_of(spec, at)).collect::<Option<Vec<_>>>()
        else {
            return Ok(None);
        };
        let mut children = Vec::with_capacity(keys.len());
        for (key, fingerprint) in &keys {
            let found = self.store.earlier_sandbox(scope, Idempotency { key, fingerprint }).await?;
            children.push(match found {
                Inserted::Existing(row) => self.await_twin(*row).await,
                Inserted::KeyReusedDifferently => return Err(FleetError::KeyReused),
                Inserted::New | Inserted::OverQuota(_) | Inserted::VolumeGone => Err(FleetError::FirstFailed),
            });
        }
        // If none was created, a retry is a new attempt.
        let any = children.iter().any(|child| !matches!(child, Err(FleetError::FirstFailed)));
        if !any {
            return Ok(None);
        }
        let (memory, note) = self.how_forked(scope, &children).await?;
        Ok(Some(Forked { children, memory, note }))
    }

    /// Whether the forks of an earlier request continued processes, and why not, from its event.
    async fn how_forked(
        &self,
        scope: &ProjectScope,
        children: &[Result<SandboxRow, FleetError>],
    ) -> Result<(bool, Option<String>), FleetError> {
        let Some(origin) = children.iter().flatten().find_map(|child| child.origin) else {
            return Ok((false, None));
        };
        let row = self.store.fork_by_way_of(scope, origin.parent, origin.snapshot).await?;
        Ok(match row.and_then(|row| row.event()) {
            Some(Event::SandboxForked(forked)) => (forked.memory, forked.note),
            // The server that created them was killed, or has not finished yet.
            _ => (false, Some("the outcome of the fork has not been recorded yet".into())),
        })
    }

    async fn tell_of_fork(&self, source: &SandboxRow, snapshot: SnapshotId, forked: &Forked, paused_us: u64) {
        let event = Event::SandboxForked(SandboxForked {
            snapshot_id: snapshot,
            children: forked.children.iter().flatten().map(|row| row.id).collect(),
            asked: forked.children.len() as u64,
            memory: forked.memory,
            note: forked.note.clone(),
            paused_us,
        });
        let told = self.store.record_event_of(&self.store.operator(), source.id, event, now_ms()).await;
        if let Err(error) = told {
            let id = source.id;
            tracing::warn!(sandbox.id = %id, "could not record the event of a fork of sandbox {id}: {}", chain(&error));
        }
    }
}

/// The idempotency key of one fork. Clients' own keys have no slash.
fn key_of(spec: &ForkSpec, position: i64) -> Option<(String, String)> {
    let (key, fingerprint) = spec.idempotency.as_ref()?;
    Some((format!("fork/{position}/{key}"), fingerprint.clone()))
}

/// The spec that every fork gets from its source. Its tokens are new, and it has only the granted secrets of
/// the project: by name, or all that the source has.
fn child_of(source: &SandboxRow, spec: &ForkSpec) -> Result<CreateSpec, FleetError> {
    let mut source = source.clone();
    let mut secrets = spec.secrets.clone();
    if spec.wish.with_secrets {
        let inherited = std::mem::take(&mut source.secrets);
        secrets = inherited.into_iter().chain(secrets).collect();
    } else {
        source.network = source.network.without_references();
    }
    let mut env_vars = source.env_vars;
    env_vars.retain(|name, _| !secrets.contains_key(name));
    env_vars.extend(spec.env_vars.clone());
    let mut metadata = source.metadata;
    metadata.extend(spec.metadata.clone());
    let template = source.template.parse::<TemplateRef>().map_err(|_| FleetError::Broken)?;
    Ok(CreateSpec {
        agent: source.agent,
        task: spec.task.or(source.task),
        template,
        metadata,
        env_vars,
        secrets,
        timeout_ms: spec.timeout_ms,
        on_timeout: source.lifetime.on_timeout,
        auto_resume: source.auto_resume,
        secure: source.secure,
        network: source.network,
        allow_internet_access: source.allow_internet_access,
        // A client that renews the source's lease does not know the forks.
        bounds: Bounds { lease_s: None, idle_s: spec.idle_s.or(source.bounds.idle_s), ..source.bounds },
        size: SizeWish::default(),
        base: None,
        memory: None,
        purpose: SandboxPurpose::Use,
        volumes: source.volumes.into_iter().map(MountWish::from).collect(),
        idempotency: None,
    })
}
