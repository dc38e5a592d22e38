//! An engine without a kernel: sandboxes are Unix sockets with a small agentd behind each. It passes the
//! contract of all engines ([`engine_contract`](crate::engine_contract)), and can be told to fail.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use coffer_core::network::{Policy, Refusal, Refusals, RefusedKind, Traffic};
use coffer_core::{Boot, LargestSize, Memory, ProjectId, SandboxId, SnapshotId, TemplateDefaults, VolumeId};
use coffer_engine::{
    Capabilities, CreateSandbox, DeathCause, Engine, EngineError, EngineNotice, NodeInfo, Orphan, Placement,
    RunState, Sample, SandboxStatus, SnapshotInfo, TemplateInfo, VolumeInfo,
};
use tokio::sync::{broadcast, watch};

use crate::agentd::{FakeAgentd, Manners};

/// An operation that the server requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    Create,
    Destroy,
    Freeze,
    Thaw,
    Stop,
    Start,
    SetNetwork,
    SetDefaults,
    Hibernate,
    Snapshot,
    DeleteSnapshot,
    Rollback,
    CreateVolume,
    DeleteVolume,
}

#[derive(Debug)]
pub struct FakeEngine {
    dir: PathBuf,
    inner: Mutex<Inner>,
    notices: broadcast::Sender<EngineNotice>,
    /// Operations that wait until they are released.
    held: watch::Sender<Vec<Op>>,
}

#[derive(Debug, Default)]
struct Inner {
    sandboxes: HashMap<SandboxId, Sandbox>,
    asked: Vec<(Op, SandboxId)>,
    failures: HashMap<Op, EngineError>,
    manners: Manners,
    policies: HashMap<SandboxId, Policy>,
    refusals: HashMap<SandboxId, Vec<Refusal>>,
    orphans: Vec<Orphan>,
    snapshots: HashMap<SnapshotId, SnapshotInfo>,
    /// Volumes with their limits in MiB.
    volumes: HashMap<VolumeId, u64>,
    /// The requested sandboxes, in order.
    orders: Vec<CreateSandbox>,
    /// Errors for the next calls, one each.
    failing_next: HashMap<Op, Vec<EngineError>>,
    keeps_memory: bool,
    /// Sandboxes that the host is still changing.
    changing: HashSet<SandboxId>,
    /// The size of new snapshots.
    snapshot_bytes: u64,
    /// The size of the host, if it reports one.
    largest: Option<LargestSize>,
}

#[derive(Debug)]
struct Sandbox {
    /// The requested sandbox.
    spec: CreateSandbox,
    run: RunState,
    placement: Placement,
    agentd: Option<FakeAgentd>,
    /// Its processes, while they are on disk.
    asleep: Option<FakeAgentd>,
}

impl Inner {
    fn mounts_volumes(&self, id: SandboxId) -> bool {
        self.sandboxes.get(&id).is_some_and(|sandbox| !sandbox.spec.volumes.is_empty())
    }

    fn users_of(&self, volume: VolumeId) -> Vec<SandboxId> {
        let mounts = |(_, sandbox): &(_, &Sandbox)| {
            !matches!(sandbox.run, RunState::Dead { .. })
                && sandbox.spec.volumes.iter().any(|mount| mount.volume == volume)
        };
        self.sandboxes.iter().filter(mounts).map(|(id, _)| *id).collect()
    }
}

impl FakeEngine {
    pub fn new(dir: PathBuf) -> Arc<Self> {
        let (notices, _) = broadcast::channel(64);
        Arc::new(Self { dir, inner: Mutex::default(), notices, held: watch::Sender::new(Vec::new()) })
    }

    /// From now on `op` waits for [`release`](Self::release).
    pub fn hold(&self, op: Op) {
        self.held.send_modify(|held| held.push(op));
    }

    pub fn release(&self, op: Op) {
        self.held.send_modify(|held| held.retain(|other| *other != op));
    }

    /// From now on `op` fails, until `None`.
    pub fn fail(&self, op: Op, error: Option<EngineError>) {
        let failures = &mut self.inner.lock().unwrap().failures;
        match error {
            Some(error) => failures.insert(op, error),
            None => failures.remove(&op),
        };
    }

    /// The next call of `op` fails, later ones do not.
    pub fn fail_next(&self, op: Op, error: EngineError) {
        self.inner.lock().unwrap().failing_next.entry(op).or_default().push(error);
    }

    /// Lets it save memory from now on. A server notices at the next reconciliation.
    pub fn keep_memory(&self) {
        self.inner.lock().unwrap().keeps_memory = true;
    }

    /// Reports this as the size of the host from now on.
    pub fn set_host_size(&self, largest: LargestSize) {
        self.inner.lock().unwrap().largest = Some(largest);
    }

    /// Saves a sandbox's processes to disk behind the server's back.
    pub fn hibernate_now(&self, id: SandboxId) {
        self.change(id, &[RunState::Running], put_to_sleep).unwrap();
    }

    pub fn set_snapshot_bytes(&self, bytes: u64) {
        self.inner.lock().unwrap().snapshot_bytes = bytes;
    }

    /// The ids of its snapshots.
    pub fn snapshot_ids(&self) -> Vec<SnapshotId> {
        self.inner.lock().unwrap().snapshots.keys().copied().collect()
    }

    /// Its volumes, with their limits in MiB.
    pub fn volume_limits(&self) -> HashMap<VolumeId, u64> {
        self.inner.lock().unwrap().volumes.clone()
    }

    /// Adds a volume that the server does not know.
    pub fn plant_volume(&self, volume: VolumeId) {
        self.inner.lock().unwrap().volumes.insert(volume, 1);
    }

    /// Adds a snapshot that the server does not know.
    pub fn plant_snapshot(&self, of: SandboxId, snapshot: SnapshotId) {
        let made = info(of, snapshot, template("host"), false, 4096);
        self.inner.lock().unwrap().snapshots.insert(snapshot, made);
    }

    /// The request for a sandbox.
    pub fn order(&self, id: SandboxId) -> CreateSandbox {
        let inner = self.inner.lock().unwrap();
        inner.orders.iter().find(|order| order.sandbox == id).expect("an order").clone()
    }

    /// Sets how the agentds of new sandboxes behave.
    pub fn set_manners(&self, manners: Manners) {
        self.inner.lock().unwrap().manners = manners;
    }

    /// The server's calls, in order.
    pub fn asked(&self) -> Vec<(Op, SandboxId)> {
        self.inner.lock().unwrap().asked.clone()
    }

    pub async fn wait_for(&self, op: Op) -> SandboxId {
        for _ in 0..500 {
            if let Some((_, id)) = self.asked().into_iter().rev().find(|(asked, _)| *asked == op) {
                return id;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the server never asked for {op:?}: {:?}", self.asked());
    }

    pub fn ids(&self) -> Vec<SandboxId> {
        self.inner.lock().unwrap().sandboxes.keys().copied().collect()
    }

    pub fn run(&self, id: SandboxId) -> Option<RunState> {
        self.inner.lock().unwrap().sandboxes.get(&id).map(|sandbox| sandbox.run.clone())
    }

    /// Changes the engine's state behind the server's back.
    pub fn tamper(&self, id: SandboxId, run: RunState) {
        let mut inner = self.inner.lock().unwrap();
        let sandbox = inner.sandboxes.get_mut(&id).expect("a sandbox to tamper with");
        if let Some(agentd) = &sandbox.agentd {
            agentd.freeze(run == RunState::Frozen);
        }
        if matches!(run, RunState::Stopped | RunState::Dead { .. }) {
            sandbox.agentd = None;
        }
        sandbox.run = run;
    }

    /// Loses a sandbox, as a reboot does.
    pub fn lose(&self, id: SandboxId) {
        self.inner.lock().unwrap().sandboxes.remove(&id);
    }

    /// Adds a sandbox that the server does not know.
    pub async fn plant(&self) -> SandboxId {
        let spec = CreateSandbox {
            sandbox: SandboxId::generate(),
            template: "base".into(),
            hostname: "planted".into(),
            limits: coffer_core::Limits::default(),
            network: Policy::default(),
            snapshot: None,
            from_template: false,
            template_owner: None,
            memory: false,
            volumes: Vec::new(),
        };
        self.create(&spec).await.unwrap();
        spec.sandbox
    }

    /// Reports from now on that it removed this orphan when it started.
    pub fn tell_of_orphan(&self, name: &str) {
        let orphan = Orphan { name: name.to_string(), had: vec!["files".into()] };
        self.inner.lock().unwrap().orphans.push(orphan);
    }

    /// Ends a sandbox's first process and notifies the server.
    pub fn die(&self, id: SandboxId, cause: DeathCause) {
        self.tamper(id, RunState::Dead { cause: cause.clone() });
        let _ = self.notices.send(EngineNotice::Died { sandbox: id, cause });
    }

    /// Sets whether it is being changed, as by a request of an earlier server.
    pub fn set_changing(&self, id: SandboxId, changing: bool) {
        let all = &mut self.inner.lock().unwrap().changing;
        if changing {
            all.insert(id)
        } else {
            all.remove(&id)
        };
    }

    /// Ends a sandbox's first process without a notification.
    pub fn die_silently(&self, id: SandboxId) {
        self.inner.lock().unwrap().sandboxes.get_mut(&id).expect("a sandbox").agentd = None;
    }

    /// Replaces the engine's policy, as if it had lost the real one.
    pub fn set_policy(&self, id: SandboxId, policy: Policy) {
        self.inner.lock().unwrap().policies.insert(id, policy);
    }

    /// The project whose share its connections count against.
    pub fn project(&self, id: SandboxId) -> Option<ProjectId> {
        self.inner.lock().unwrap().policies[&id].project()
    }

    /// The policy that the server last set; without the project.
    pub fn policy(&self, id: SandboxId) -> Policy {
        let told = self.inner.lock().unwrap().policies[&id].clone();
        let mut written = serde_json::to_value(told).unwrap();
        written.as_object_mut().unwrap().remove("project");
        serde_json::from_value(written).unwrap()
    }

    /// Records a refused connection of a sandbox.
    pub fn refuse(&self, id: SandboxId, address: &str, rule: &str) {
        self.refuse_named(id, None, address, rule);
    }

    /// The same for a connection by name.
    pub fn refuse_named(&self, id: SandboxId, name: Option<&str>, address: &str, rule: &str) {
        let mut inner = self.inner.lock().unwrap();
        let kept = inner.refusals.entry(id).or_default();
        kept.push(Refusal {
            sequence: kept.len() as u64 + 1,
            at_ms: jiff::Timestamp::now().as_millisecond(),
            kind: RefusedKind::Connection,
            name: name.map(|name| name.parse().unwrap()),
            address: Some(address.parse().unwrap()),
            port: Some(443),
            rule: rule.into(),
        });
    }

    /// Drops the refusals, as a new egress does.
    pub fn forget_refusals(&self) {
        self.inner.lock().unwrap().refusals.clear();
    }

    pub fn reconnect(&self) {
        let _ = self.notices.send(EngineNotice::Reconnected);
    }

    /// The sandbox's agentd.
    pub fn agentd(&self, id: SandboxId) -> FakeAgentd {
        let inner = self.inner.lock().unwrap();
        inner.sandboxes.get(&id).and_then(|sandbox| sandbox.agentd.clone()).expect("a running agentd")
    }

    async fn ask(&self, op: Op, id: SandboxId) -> Result<(), EngineError> {
        self.inner.lock().unwrap().asked.push((op, id));
        let mut held = self.held.subscribe();
        held.wait_for(|held| !held.contains(&op)).await.unwrap();
        let next = self.inner.lock().unwrap().failing_next.get_mut(&op).and_then(Vec::pop);
        if let Some(error) = next {
            return Err(error);
        }
        match self.inner.lock().unwrap().failures.get(&op) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn change(
        &self,
        id: SandboxId,
        allowed: &[RunState],
        change: impl FnOnce(&mut Sandbox),
    ) -> Result<(), EngineError> {
        let mut inner = self.inner.lock().unwrap();
        let sandbox = inner.sandboxes.get_mut(&id).ok_or(EngineError::UnknownSandbox)?;
        if !allowed.contains(&sandbox.run) {
            return Err(EngineError::WrongState(format!("it is {:?}", sandbox.run)));
        }
        change(sandbox);
        Ok(())
    }

    fn boot(&self, id: SandboxId, manners: Manners) -> (PathBuf, FakeAgentd) {
        // Short: the path of a socket is limited.
        let text = id.to_string();
        let socket = self.dir.join(format!("{}.sock", &text[text.len() - 12..]));
        let _ = std::fs::remove_file(&socket);
        let agentd = FakeAgentd::start(&socket, manners);
        (socket, agentd)
    }
}

fn info(
    of: SandboxId,
    snapshot: SnapshotId,
    template: TemplateInfo,
    memory: bool,
    files_bytes: u64,
) -> SnapshotInfo {
    SnapshotInfo {
        snapshot,
        sandbox: of,
        made_ms: jiff::Timestamp::now().as_millisecond(),
        memory,
        files_bytes,
        memory_bytes: if memory { 1 << 20 } else { 0 },
        depth: 1,
        paused_us: 100,
        template,
        limits: coffer_core::Limits::default(),
    }
}

fn put_to_sleep(sandbox: &mut Sandbox) {
    sandbox.run = RunState::Hibernated;
    if let Some(agentd) = sandbox.agentd.take() {
        agentd.freeze(true);
        sandbox.asleep = Some(agentd);
    }
}

fn lacking() -> EngineError {
    EngineError::Unsupported(LACKS.into())
}

fn keeps_no_memory_with_volumes() -> EngineError {
    EngineError::Unsupported("it mounts volumes".into())
}

/// The reason of a fake that cannot save memory.
pub const LACKS: &str = "a fake has no memory";

fn template(name: &str) -> TemplateInfo {
    TemplateInfo {
        name: name.into(),
        build: "1".into(),
        default_user: "user".into(),
        default_workdir: Some("/home/user".into()),
        env: [("FROM_TEMPLATE".to_string(), "yes".to_string())].into(),
        start: None,
    }
}

#[async_trait]
impl Engine for FakeEngine {
    async fn info(&self) -> Result<NodeInfo, EngineError> {
        let (keeps_memory, largest) = {
            let inner = self.inner.lock().unwrap();
            (inner.keeps_memory, inner.largest)
        };
        Ok(NodeInfo {
            protocol: 1,
            engine: "fake".into(),
            capabilities: Capabilities {
                memory_snapshot: keeps_memory,
                volumes: true,
                ..Capabilities::default()
            },
            memory_snapshot_lacks: (!keeps_memory).then(|| LACKS.into()),
            pool_bytes: largest.map(|largest| largest.disk_mib << 20),
            cpu_count: largest.map(|largest| largest.cpu_count),
            memory_bytes: largest.map(|largest| largest.memory_mib << 20),
            pool_free_bytes: None,
            warm_ready: 0,
            warnings: Vec::new(),
            pressure: vec![coffer_engine::Pressure { resource: "memory".into(), waiting_bp: 2500 }],
            kernel: Vec::new(),
            orphans: self.inner.lock().unwrap().orphans.clone(),
        })
    }

    async fn templates(&self) -> Result<Vec<TemplateInfo>, EngineError> {
        // `base` is not built: the engine falls back to `host`.
        Ok(vec![template("host"), template("other")])
    }

    async fn create(&self, spec: &CreateSandbox) -> Result<Placement, EngineError> {
        self.inner.lock().unwrap().orders.push(spec.clone());
        self.ask(Op::Create, spec.sandbox).await?;
        let manners = {
            let inner = self.inner.lock().unwrap();
            if let Some(sandbox) = inner.sandboxes.get(&spec.sandbox) {
                return match sandbox.run {
                    RunState::Running | RunState::Frozen if sandbox.spec == *spec => {
                        Ok(sandbox.placement.clone())
                    }
                    _ => Err(EngineError::WrongState("it exists".into())),
                };
            }
            if spec.snapshot.is_some_and(|snapshot| !inner.snapshots.contains_key(&snapshot)) {
                return Err(EngineError::UnknownSnapshot);
            }
            if spec.memory && !spec.volumes.is_empty() {
                return Err(keeps_no_memory_with_volumes());
            }
            if spec.volumes.iter().any(|mount| !inner.volumes.contains_key(&mount.volume)) {
                return Err(EngineError::UnknownVolume);
            }
            if spec.snapshot.is_none() && !["base", "host", "other"].contains(&spec.template.as_str()) {
                return Err(EngineError::UnknownTemplate(spec.template.clone()));
            }
            inner.manners
        };
        let (socket, agentd) = self.boot(spec.sandbox, manners);
        let name = if spec.template == "base" { "host" } else { &spec.template };
        let mut placement = Placement { socket, template: template(name) };
        let begun_from = spec.snapshot.and_then(|id| self.inner.lock().unwrap().snapshots.get(&id).cloned());
        if let Some(snapshot) = begun_from {
            placement.template = snapshot.template;
        }
        let sandbox = Sandbox {
            spec: spec.clone(),
            run: RunState::Running,
            placement: placement.clone(),
            agentd: Some(agentd),
            asleep: None,
        };
        let mut inner = self.inner.lock().unwrap();
        inner.sandboxes.insert(spec.sandbox, sandbox);
        inner.policies.insert(spec.sandbox, spec.network.clone());
        Ok(placement)
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError> {
        self.ask(Op::Destroy, id).await?;
        self.inner.lock().unwrap().sandboxes.remove(&id);
        Ok(())
    }

    async fn freeze(&self, id: SandboxId) -> Result<(), EngineError> {
        self.ask(Op::Freeze, id).await?;
        self.change(id, &[RunState::Running, RunState::Frozen], |sandbox| {
            sandbox.run = RunState::Frozen;
            if let Some(agentd) = &sandbox.agentd {
                agentd.freeze(true);
            }
        })
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), EngineError> {
        self.ask(Op::Thaw, id).await?;
        // A running one is allowed.
        self.change(id, &[RunState::Frozen, RunState::Running], |sandbox| {
            let was_frozen = std::mem::replace(&mut sandbox.run, RunState::Running) == RunState::Frozen;
            if let Some(agentd) = sandbox.agentd.as_ref().filter(|_| was_frozen) {
                agentd.freeze(false);
            }
        })
    }

    async fn stop(&self, id: SandboxId) -> Result<(), EngineError> {
        self.ask(Op::Stop, id).await?;
        self.change(id, &[RunState::Running, RunState::Frozen, RunState::Stopped], |sandbox| {
            sandbox.run = RunState::Stopped;
            sandbox.agentd = None;
        })
    }

    async fn start(&self, id: SandboxId, boot: Boot) -> Result<Placement, EngineError> {
        self.ask(Op::Start, id).await?;
        let asleep = {
            let mut inner = self.inner.lock().unwrap();
            let sandbox = inner.sandboxes.get(&id).ok_or(EngineError::UnknownSandbox)?;
            match sandbox.run {
                RunState::Running => return Ok(sandbox.placement.clone()),
                RunState::Stopped | RunState::Hibernated => {}
                RunState::Frozen | RunState::Dead { .. } => {
                    return Err(EngineError::WrongState(format!("it is {:?}", sandbox.run)));
                }
            }
            inner
                .sandboxes
                .get_mut(&id)
                .and_then(|sandbox| sandbox.asleep.take())
                .filter(|_| boot == Boot::AsPaused)
        };
        let mut placed = None;
        if let Some(agentd) = asleep {
            self.change(id, &[RunState::Hibernated], |sandbox| {
                agentd.freeze(false);
                sandbox.run = RunState::Running;
                sandbox.agentd = Some(agentd);
                placed = Some(sandbox.placement.clone());
            })?;
            return Ok(placed.unwrap());
        }
        let (socket, agentd) = self.boot(id, Manners::Good);
        self.change(id, &[RunState::Stopped, RunState::Hibernated], |sandbox| {
            sandbox.run = RunState::Running;
            sandbox.agentd = Some(agentd);
            sandbox.placement.socket = socket;
            placed = Some(sandbox.placement.clone());
        })?;
        Ok(placed.unwrap())
    }

    async fn hibernate(&self, id: SandboxId) -> Result<(), EngineError> {
        self.ask(Op::Hibernate, id).await?;
        if !self.inner.lock().unwrap().keeps_memory {
            return Err(lacking());
        }
        if self.inner.lock().unwrap().mounts_volumes(id) {
            return Err(keeps_no_memory_with_volumes());
        }
        let allowed = [RunState::Running, RunState::Frozen, RunState::Hibernated];
        self.change(id, &allowed, put_to_sleep)
    }

    async fn snapshot(
        &self,
        id: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    ) -> Result<SnapshotInfo, EngineError> {
        self.ask(Op::Snapshot, id).await?;
        let mut inner = self.inner.lock().unwrap();
        if memory == Memory::With && !inner.keeps_memory {
            return Err(lacking());
        }
        if memory == Memory::With && inner.mounts_volumes(id) {
            return Err(keeps_no_memory_with_volumes());
        }
        if let Some(made) = inner.snapshots.get(&snapshot) {
            return match made.sandbox == id {
                true => Ok(made.clone()),
                false => Err(EngineError::WrongState("it is a snapshot of another sandbox".into())),
            };
        }
        let sandbox = inner.sandboxes.get(&id).ok_or(EngineError::UnknownSandbox)?;
        if matches!(sandbox.run, RunState::Dead { .. }) {
            return Err(EngineError::WrongState("it is dead".into()));
        }
        let template = sandbox.placement.template.clone();
        let made = info(id, snapshot, template, memory.into(), inner.snapshot_bytes);
        inner.snapshots.insert(snapshot, made.clone());
        Ok(made)
    }

    async fn delete_snapshot(&self, snapshot: SnapshotId) -> Result<(), EngineError> {
        let of = self.inner.lock().unwrap().snapshots.get(&snapshot).map(|info| info.sandbox);
        self.ask(Op::DeleteSnapshot, of.unwrap_or_else(SandboxId::generate)).await?;
        self.inner.lock().unwrap().snapshots.remove(&snapshot);
        Ok(())
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, EngineError> {
        Ok(self.inner.lock().unwrap().snapshots.values().cloned().collect())
    }

    async fn create_volume(&self, volume: VolumeId, limit_mib: u64) -> Result<(), EngineError> {
        self.ask(Op::CreateVolume, SandboxId::generate()).await?;
        self.inner.lock().unwrap().volumes.insert(volume, limit_mib);
        Ok(())
    }

    async fn delete_volume(&self, volume: VolumeId) -> Result<(), EngineError> {
        self.ask(Op::DeleteVolume, SandboxId::generate()).await?;
        let mut inner = self.inner.lock().unwrap();
        let users = inner.users_of(volume);
        if !users.is_empty() {
            return Err(EngineError::WrongState(format!("it is mounted by {users:?}")));
        }
        inner.volumes.remove(&volume);
        Ok(())
    }

    async fn volumes(&self) -> Result<Vec<VolumeInfo>, EngineError> {
        let inner = self.inner.lock().unwrap();
        let info = |volume: &VolumeId| VolumeInfo {
            volume: *volume,
            used_bytes: 4096,
            sandboxes: inner.users_of(*volume),
        };
        Ok(inner.volumes.keys().map(info).collect())
    }

    async fn rollback(
        &self,
        id: SandboxId,
        snapshot: SnapshotId,
        _memory: Memory,
    ) -> Result<Placement, EngineError> {
        self.ask(Op::Rollback, id).await?;
        let allowed = [RunState::Running, RunState::Frozen, RunState::Stopped, RunState::Hibernated];
        self.change(id, &allowed, |_| {})?;
        if !self.inner.lock().unwrap().snapshots.contains_key(&snapshot) {
            return Err(EngineError::UnknownSnapshot);
        }
        let (socket, agentd) = self.boot(id, Manners::Good);
        let mut placed = None;
        self.change(id, &allowed, |sandbox| {
            sandbox.run = RunState::Running;
            sandbox.agentd = Some(agentd);
            sandbox.placement.socket = socket;
            placed = Some(sandbox.placement.clone());
        })?;
        Ok(placed.unwrap())
    }

    async fn set_defaults(&self, id: SandboxId, defaults: &TemplateDefaults) -> Result<(), EngineError> {
        self.ask(Op::SetDefaults, id).await?;
        let mut inner = self.inner.lock().unwrap();
        let sandbox = inner.sandboxes.get_mut(&id).ok_or(EngineError::UnknownSandbox)?;
        sandbox.placement.template.set_defaults(defaults.clone());
        Ok(())
    }

    async fn set_network(&self, id: SandboxId, policy: &Policy) -> Result<(), EngineError> {
        self.ask(Op::SetNetwork, id).await?;
        let mut inner = self.inner.lock().unwrap();
        if !inner.sandboxes.contains_key(&id) {
            return Err(EngineError::UnknownSandbox);
        }
        inner.policies.insert(id, policy.clone());
        Ok(())
    }

    async fn refusals(&self, id: SandboxId, after: u64) -> Result<Refusals, EngineError> {
        let inner = self.inner.lock().unwrap();
        let kept = inner.refusals.get(&id).cloned().unwrap_or_default();
        let total = kept.len() as u64;
        let refusals = kept.into_iter().filter(|refusal| refusal.sequence > after).collect();
        Ok(Refusals { refusals, total, forgotten: 0 })
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, EngineError> {
        let inner = self.inner.lock().unwrap();
        let listed = inner.sandboxes.iter().map(|(id, sandbox)| SandboxStatus {
            sandbox: *id,
            run: sandbox.run.clone(),
            placement: sandbox.placement.clone(),
            changing: inner.changing.contains(id),
        });
        Ok(listed.collect())
    }

    async fn stats(&self) -> Result<Vec<Sample>, EngineError> {
        let inner = self.inner.lock().unwrap();
        let has_processes =
            |(_, sandbox): &(_, &Sandbox)| matches!(sandbox.run, RunState::Running | RunState::Frozen);
        let samples = inner.sandboxes.iter().filter(has_processes).map(|(id, _)| Sample {
            sandbox: *id,
            time_ms: jiff::Timestamp::now().as_millisecond(),
            cpu_us: 1000,
            memory_bytes: 3_000_000,
            cache_bytes: 1_000_000,
            disk_bytes: 4096,
            processes: 2,
            traffic: Traffic {
                sent_bytes: 7,
                refused: inner.refusals.get(id).map_or(0, |kept| kept.len() as u64),
                ..Traffic::default()
            },
        });
        Ok(samples.collect())
    }

    fn notices(&self) -> broadcast::Receiver<EngineNotice> {
        self.notices.subscribe()
    }
}
