//! The contract of every engine: tests that run on the fake and on the real node, and that a new engine has
//! to pass.
//!
//! An engine's own tests implement [`Subject`] and run each of [`CASES`] on a fresh one. Cases use only
//! [`Engine`]; they assume nothing about the inside of a sandbox, except that its agentd can be connected to
//! while it runs. Missing capabilities are cases too: the engine refuses with
//! [`Unsupported`](EngineError::Unsupported), and nothing has changed.

use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use coffer_core::network::Policy;
use coffer_core::{Boot, Limits, Memory, SandboxId, SnapshotId, VolumeId};
use coffer_engine::{
    CreateSandbox, Engine, EngineError, EngineNotice, NodeMount, Placement, RunState, SnapshotInfo,
};
use futures_util::future::join_all;

/// An engine under test, fresh for each case.
#[async_trait]
pub trait Subject: Send + Sync {
    fn engine(&self) -> &dyn Engine;

    /// The size of sandboxes of which it can create a few.
    fn limits(&self) -> Limits;

    /// Waits until the agentd of a sandbox has answered, as a server does before it uses one.
    async fn wait_until_ready(&self, _placement: &Placement) {}

    /// Makes the first process of a running sandbox end by itself.
    async fn end_first_process(&self, sandbox: SandboxId, placement: &Placement);
}

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One rule.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    run: for<'a> fn(&'a dyn Subject) -> Running<'a>,
}

impl Case {
    /// Panics if the engine breaks the rule.
    pub async fn run(&self, subject: &dyn Subject) {
        (self.run)(subject).await;
    }
}

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// Every rule.
        pub const CASES: &[Case] =
            &[$(Case { name: stringify!($name), run: |subject| Box::pin($name(Asking(subject))) }),*];
    };
}

cases![
    an_engine_tells_what_it_is,
    a_new_sandbox_runs_and_answers,
    creating_again_gives_the_same_answer,
    what_cannot_be_made_is_refused_and_leaves_nothing,
    destroying_is_final_and_can_be_repeated,
    unknown_ids_are_told,
    a_frozen_sandbox_thaws,
    a_stopped_sandbox_starts_on_its_files,
    a_hibernated_sandbox_wakes_or_starts_cold,
    a_snapshot_leaves_its_source_as_it_was,
    a_fork_outlives_its_source_and_its_snapshot,
    a_rollback_ends_in_running,
    memory_is_in_a_snapshot_or_refused,
    a_volume_is_not_deleted_while_it_is_mounted,
    a_death_is_told_and_stays,
    requests_at_once_do_not_mix,
];

/// The subject, with helpers for all cases.
#[derive(Clone, Copy)]
struct Asking<'a>(&'a dyn Subject);

impl Asking<'_> {
    fn engine(&self) -> &dyn Engine {
        self.0.engine()
    }

    fn spec(&self) -> CreateSandbox {
        CreateSandbox {
            sandbox: SandboxId::generate(),
            template: "base".into(),
            hostname: "contract".into(),
            limits: self.0.limits(),
            network: Policy::default(),
            snapshot: None,
            from_template: false,
            template_owner: None,
            memory: false,
            volumes: Vec::new(),
        }
    }

    async fn create(&self) -> (SandboxId, Placement) {
        let spec = self.spec();
        let placement = self.engine().create(&spec).await.unwrap();
        self.0.wait_until_ready(&placement).await;
        (spec.sandbox, placement)
    }

    /// Its listed state; `None` if it is not listed.
    async fn run(&self, sandbox: SandboxId) -> Option<RunState> {
        let listed = self.engine().list().await.unwrap();
        listed.into_iter().find(|status| status.sandbox == sandbox).map(|status| status.run)
    }

    async fn expect_run(&self, sandbox: SandboxId, expected: RunState) {
        assert_eq!(self.run(sandbox).await, Some(expected));
    }

    async fn destroy(&self, sandbox: SandboxId) {
        self.engine().destroy(sandbox).await.unwrap();
        assert_eq!(self.run(sandbox).await, None, "a destroyed sandbox is not listed");
    }

    /// A snapshot of files; `None` if the engine declares that it cannot.
    async fn snapshot(&self, sandbox: SandboxId) -> Option<SnapshotInfo> {
        match self.engine().snapshot(sandbox, SnapshotId::generate(), Memory::Without).await {
            Ok(made) => Some(made),
            Err(EngineError::Unsupported(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    async fn saves_memory(&self) -> bool {
        self.engine().info().await.unwrap().capabilities.memory_snapshot
    }
}

async fn expect_answer(placement: &Placement) {
    tokio::net::UnixStream::connect(&placement.socket).await.expect("a running sandbox takes connections");
}

fn expect_wrong_state<T: std::fmt::Debug>(answer: Result<T, EngineError>) {
    assert!(matches!(answer, Err(EngineError::WrongState(_))), "{answer:?}");
}

fn expect_unknown_sandbox<T: std::fmt::Debug>(answer: Result<T, EngineError>) {
    assert!(matches!(answer, Err(EngineError::UnknownSandbox)), "{answer:?}");
}

fn expect_unknown_snapshot<T: std::fmt::Debug>(answer: Result<T, EngineError>) {
    assert!(matches!(answer, Err(EngineError::UnknownSnapshot)), "{answer:?}");
}

async fn an_engine_tells_what_it_is(asking: Asking<'_>) {
    let info = asking.engine().info().await.unwrap();
    assert!(!info.engine.is_empty());
    assert_eq!(info.capabilities.memory_snapshot, info.memory_snapshot_lacks.is_none(), "why not, if not");
    let templates = asking.engine().templates().await.unwrap();
    assert!(!templates.is_empty(), "there is something to make sandboxes of");
    assert!(asking.engine().list().await.unwrap().is_empty());
    assert!(asking.engine().stats().await.unwrap().is_empty());
    assert!(asking.engine().snapshots().await.unwrap().is_empty());
}

async fn a_new_sandbox_runs_and_answers(asking: Asking<'_>) {
    let (id, placement) = asking.create().await;
    expect_answer(&placement).await;
    let listed = asking.engine().list().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].sandbox, &listed[0].run, listed[0].changing), (id, &RunState::Running, false));
    assert_eq!(listed[0].placement, placement);
    let samples = asking.engine().stats().await.unwrap();
    assert_eq!(samples.iter().map(|sample| sample.sandbox).collect::<Vec<_>>(), [id]);
    asking.engine().set_network(id, &Policy::default()).await.unwrap();
    match asking.engine().refusals(id, 0).await {
        Ok(refusals) => assert_eq!(refusals.refusals, []),
        // The part that judges connections may be missing, as on a node without egress.
        Err(error) => assert!(error.is_away(), "{error}"),
    }
    asking.destroy(id).await;
}

async fn creating_again_gives_the_same_answer(asking: Asking<'_>) {
    let spec = asking.spec();
    let placement = asking.engine().create(&spec).await.unwrap();
    assert_eq!(asking.engine().create(&spec).await.unwrap(), placement);
    expect_answer(&placement).await;
    // The id identifies the sandbox, and this request is for a different one.
    let other = CreateSandbox { hostname: "another".into(), ..spec.clone() };
    expect_wrong_state(asking.engine().create(&other).await);
    assert_eq!(asking.engine().list().await.unwrap().len(), 1);
    // A sandbox that was stopped since is not the requested one.
    asking.engine().stop(spec.sandbox).await.unwrap();
    expect_wrong_state(asking.engine().create(&spec).await);
    asking.destroy(spec.sandbox).await;
}

async fn what_cannot_be_made_is_refused_and_leaves_nothing(asking: Asking<'_>) {
    let spec = CreateSandbox { template: "no-such-template".into(), ..asking.spec() };
    let refused = asking.engine().create(&spec).await;
    assert!(matches!(refused, Err(EngineError::UnknownTemplate(_))), "{refused:?}");
    let spec = CreateSandbox { snapshot: Some(SnapshotId::generate()), ..asking.spec() };
    expect_unknown_snapshot(asking.engine().create(&spec).await);
    assert!(asking.engine().list().await.unwrap().is_empty());
    expect_unknown_sandbox(asking.engine().stop(spec.sandbox).await);
}

async fn destroying_is_final_and_can_be_repeated(asking: Asking<'_>) {
    let (running, placement) = asking.create().await;
    let (stopped, _) = asking.create().await;
    asking.engine().stop(stopped).await.unwrap();
    for sandbox in [running, stopped] {
        asking.destroy(sandbox).await;
        asking.destroy(sandbox).await;
        expect_unknown_sandbox(asking.engine().start(sandbox, Boot::AsPaused).await);
    }
    let connected = tokio::net::UnixStream::connect(&placement.socket).await;
    assert!(connected.is_err(), "nobody answers for a destroyed sandbox");
    assert!(asking.engine().stats().await.unwrap().is_empty());
}

async fn unknown_ids_are_told(asking: Asking<'_>) {
    let (nobody, nothing) = (SandboxId::generate(), SnapshotId::generate());
    let engine = asking.engine();
    expect_unknown_sandbox(engine.freeze(nobody).await);
    expect_unknown_sandbox(engine.thaw(nobody).await);
    expect_unknown_sandbox(engine.stop(nobody).await);
    expect_unknown_sandbox(engine.start(nobody, Boot::AsPaused).await);
    expect_unknown_sandbox(engine.start(nobody, Boot::Cold).await);
    expect_unknown_sandbox(engine.snapshot(nobody, nothing, Memory::Without).await);
    expect_unknown_sandbox(engine.rollback(nobody, nothing, Memory::Without).await);
    expect_unknown_sandbox(engine.set_network(nobody, &Policy::default()).await);
    let hibernated = engine.hibernate(nobody).await;
    assert!(
        matches!(hibernated, Err(EngineError::UnknownSandbox | EngineError::Unsupported(_))),
        "{hibernated:?}"
    );
    // A sandbox that should not exist does not.
    engine.destroy(nobody).await.unwrap();
    engine.delete_snapshot(nothing).await.unwrap();
}

async fn a_frozen_sandbox_thaws(asking: Asking<'_>) {
    let (id, placement) = asking.create().await;
    match asking.engine().freeze(id).await {
        Err(EngineError::Unsupported(_)) => {
            assert!(!asking.engine().info().await.unwrap().capabilities.freeze);
            asking.expect_run(id, RunState::Running).await;
            return;
        }
        frozen => frozen.unwrap(),
    }
    asking.engine().freeze(id).await.expect("it is so already");
    asking.expect_run(id, RunState::Frozen).await;
    expect_wrong_state(asking.engine().start(id, Boot::AsPaused).await);
    asking.engine().thaw(id).await.unwrap();
    asking.engine().thaw(id).await.expect("it is so already");
    asking.expect_run(id, RunState::Running).await;
    expect_answer(&placement).await;
    // From frozen to stopped, without a thaw.
    asking.engine().freeze(id).await.unwrap();
    asking.engine().stop(id).await.unwrap();
    asking.expect_run(id, RunState::Stopped).await;
    asking.destroy(id).await;
}

async fn a_stopped_sandbox_starts_on_its_files(asking: Asking<'_>) {
    let (id, placement) = asking.create().await;
    assert_eq!(asking.engine().start(id, Boot::AsPaused).await.unwrap(), placement, "it runs already");
    for boot in [Boot::AsPaused, Boot::Cold] {
        asking.engine().stop(id).await.unwrap();
        asking.engine().stop(id).await.expect("it is so already");
        asking.expect_run(id, RunState::Stopped).await;
        assert!(asking.engine().stats().await.unwrap().is_empty(), "it uses nothing that is sampled");
        expect_wrong_state(asking.engine().freeze(id).await);
        expect_wrong_state(asking.engine().thaw(id).await);
        let placement = asking.engine().start(id, boot).await.unwrap();
        expect_answer(&placement).await;
        asking.expect_run(id, RunState::Running).await;
    }
    asking.destroy(id).await;
}

async fn a_hibernated_sandbox_wakes_or_starts_cold(asking: Asking<'_>) {
    let (id, placement) = asking.create().await;
    if !asking.saves_memory().await {
        let refused = asking.engine().hibernate(id).await;
        assert!(matches!(refused, Err(EngineError::Unsupported(_))), "{refused:?}");
        asking.expect_run(id, RunState::Running).await;
        expect_answer(&placement).await;
        return;
    }
    for boot in [Boot::AsPaused, Boot::Cold] {
        asking.engine().hibernate(id).await.unwrap();
        asking.engine().hibernate(id).await.expect("it is so already");
        asking.expect_run(id, RunState::Hibernated).await;
        expect_wrong_state(asking.engine().stop(id).await);
        expect_wrong_state(asking.engine().thaw(id).await);
        let placement = asking.engine().start(id, boot).await.unwrap();
        expect_answer(&placement).await;
        asking.0.wait_until_ready(&placement).await;
        asking.expect_run(id, RunState::Running).await;
    }
    asking.engine().stop(id).await.unwrap();
    expect_wrong_state(asking.engine().hibernate(id).await);
    asking.destroy(id).await;
}

async fn a_snapshot_leaves_its_source_as_it_was(asking: Asking<'_>) {
    let (id, placement) = asking.create().await;
    let Some(made) = asking.snapshot(id).await else {
        asking.expect_run(id, RunState::Running).await;
        return;
    };
    assert_eq!((made.sandbox, made.memory, made.memory_bytes), (id, false, 0));
    asking.expect_run(id, RunState::Running).await;
    expect_answer(&placement).await;
    // The id identifies the snapshot.
    let again = asking.engine().snapshot(id, made.snapshot, Memory::Without).await.unwrap();
    assert_eq!(again, made);
    let (other, _) = asking.create().await;
    expect_wrong_state(asking.engine().snapshot(other, made.snapshot, Memory::Without).await);
    asking.engine().stop(id).await.unwrap();
    let second = asking.snapshot(id).await.unwrap();
    asking.expect_run(id, RunState::Stopped).await;
    let mut listed: Vec<_> =
        asking.engine().snapshots().await.unwrap().into_iter().map(|info| info.snapshot).collect();
    let mut expected = [made.snapshot, second.snapshot];
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    asking.destroy(id).await;
    // The answer does not need the source.
    let again = asking.engine().snapshot(id, made.snapshot, Memory::Without).await.unwrap();
    assert_eq!(again, made);
}

async fn a_fork_outlives_its_source_and_its_snapshot(asking: Asking<'_>) {
    let (id, _) = asking.create().await;
    let Some(made) = asking.snapshot(id).await else { return };
    let spec = CreateSandbox { snapshot: Some(made.snapshot), ..asking.spec() };
    let placement = asking.engine().create(&spec).await.unwrap();
    asking.destroy(id).await;
    asking.engine().delete_snapshot(made.snapshot).await.unwrap();
    asking.engine().delete_snapshot(made.snapshot).await.expect("it is so already");
    assert!(asking.engine().snapshots().await.unwrap().is_empty());
    asking.expect_run(spec.sandbox, RunState::Running).await;
    expect_answer(&placement).await;
    let late = CreateSandbox { sandbox: SandboxId::generate(), ..spec.clone() };
    expect_unknown_snapshot(asking.engine().create(&late).await);
    asking.engine().stop(spec.sandbox).await.unwrap();
    let placement = asking.engine().start(spec.sandbox, Boot::AsPaused).await.unwrap();
    expect_answer(&placement).await;
    asking.destroy(spec.sandbox).await;
}

async fn a_rollback_ends_in_running(asking: Asking<'_>) {
    let (id, _) = asking.create().await;
    let Some(made) = asking.snapshot(id).await else { return };
    let placement = asking.engine().rollback(id, made.snapshot, Memory::Without).await.unwrap();
    expect_answer(&placement).await;
    asking.engine().stop(id).await.unwrap();
    let placement = asking.engine().rollback(id, made.snapshot, Memory::Without).await.unwrap();
    expect_answer(&placement).await;
    asking.expect_run(id, RunState::Running).await;
    // An unknown snapshot changes nothing.
    expect_unknown_snapshot(asking.engine().rollback(id, SnapshotId::generate(), Memory::Without).await);
    asking.expect_run(id, RunState::Running).await;
    expect_answer(&placement).await;
    asking.destroy(id).await;
}

async fn memory_is_in_a_snapshot_or_refused(asking: Asking<'_>) {
    let (id, placement) = asking.create().await;
    let snapshot = SnapshotId::generate();
    let made = asking.engine().snapshot(id, snapshot, Memory::With).await;
    if asking.saves_memory().await {
        let made = made.unwrap();
        assert!(made.memory && made.memory_bytes > 0, "{made:?}");
        let spec = CreateSandbox { snapshot: Some(snapshot), memory: true, ..asking.spec() };
        let fork = asking.engine().create(&spec).await.unwrap();
        expect_answer(&fork).await;
        asking.destroy(spec.sandbox).await;
        asking.engine().delete_snapshot(snapshot).await.unwrap();
    } else {
        assert!(matches!(made, Err(EngineError::Unsupported(_))), "{made:?}");
        assert!(asking.engine().snapshots().await.unwrap().is_empty());
    }
    asking.expect_run(id, RunState::Running).await;
    expect_answer(&placement).await;
    asking.destroy(id).await;
}

async fn a_volume_is_not_deleted_while_it_is_mounted(asking: Asking<'_>) {
    let (engine, volume) = (asking.engine(), VolumeId::generate());
    let mount = |volume| NodeMount { volume, path: "/data".parse().unwrap(), read_only: false };
    let unknown = CreateSandbox { volumes: vec![mount(volume)], ..asking.spec() };
    let refused = engine.create(&unknown).await;
    assert!(matches!(refused, Err(EngineError::UnknownVolume)), "{refused:?}");
    assert_eq!(asking.run(unknown.sandbox).await, None);

    engine.create_volume(volume, 16).await.unwrap();
    engine.create_volume(volume, 32).await.expect("only its limit changes");
    let specs = [(); 2].map(|()| CreateSandbox { volumes: vec![mount(volume)], ..asking.spec() });
    for spec in &specs {
        expect_answer(&engine.create(spec).await.unwrap()).await;
    }
    let [first, second] = specs.each_ref().map(|spec| spec.sandbox);
    let listed = engine.volumes().await.unwrap();
    let mut users = listed.iter().find(|info| info.volume == volume).unwrap().sandboxes.clone();
    users.sort();
    assert_eq!((listed.len(), users), (1, vec![first, second]));
    expect_wrong_state(engine.delete_volume(volume).await);
    asking.destroy(first).await;
    // It mounts it again when it starts.
    engine.stop(second).await.unwrap();
    expect_wrong_state(engine.delete_volume(volume).await);
    expect_answer(&engine.start(second, Boot::AsPaused).await.unwrap()).await;
    // What others change meanwhile could not be restored.
    let kept = engine.hibernate(second).await;
    assert!(matches!(kept, Err(EngineError::Unsupported(_))), "{kept:?}");
    let kept = engine.snapshot(second, SnapshotId::generate(), Memory::With).await;
    assert!(matches!(kept, Err(EngineError::Unsupported(_))), "{kept:?}");
    asking.expect_run(second, RunState::Running).await;
    asking.destroy(second).await;
    // Its processes may take a moment to go.
    let deleted = async {
        while engine.delete_volume(volume).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), deleted).await.expect("nothing mounts it");
    engine.delete_volume(volume).await.expect("it is so already");
    assert!(engine.volumes().await.unwrap().is_empty());
}

async fn a_death_is_told_and_stays(asking: Asking<'_>) {
    let mut notices = asking.engine().notices();
    let (id, placement) = asking.create().await;
    asking.0.end_first_process(id, &placement).await;
    let told = async {
        loop {
            match notices.recv().await.unwrap() {
                EngineNotice::Died { sandbox, .. } => return sandbox,
                EngineNotice::Reconnected => {}
            }
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(20), told).await.expect("a death is told");
    assert_eq!(told, id);
    assert!(matches!(asking.run(id).await, Some(RunState::Dead { .. })));
    let engine = asking.engine();
    expect_wrong_state(engine.freeze(id).await);
    expect_wrong_state(engine.thaw(id).await);
    expect_wrong_state(engine.stop(id).await);
    expect_wrong_state(engine.start(id, Boot::Cold).await);
    expect_wrong_state(engine.snapshot(id, SnapshotId::generate(), Memory::Without).await);
    assert!(engine.stats().await.unwrap().is_empty());
    asking.destroy(id).await;
}

async fn requests_at_once_do_not_mix(asking: Asking<'_>) {
    let specs: Vec<_> = (0..4).map(|_| asking.spec()).collect();
    let creating = specs.iter().map(|spec| asking.engine().create(spec));
    let mut sockets = std::collections::HashSet::new();
    for placement in join_all(creating).await {
        assert!(sockets.insert(placement.unwrap().socket), "each has a socket of its own");
    }
    // The same sandbox twice: once is enough, and both calls succeed.
    let stopping = specs.iter().chain(&specs).map(|spec| asking.engine().stop(spec.sandbox));
    for stopped in join_all(stopping).await {
        stopped.unwrap();
    }
    let destroying = specs.iter().chain(&specs).map(|spec| asking.engine().destroy(spec.sandbox));
    for destroyed in join_all(destroying).await {
        destroyed.unwrap();
    }
    assert!(asking.engine().list().await.unwrap().is_empty());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coffer_engine::DeathCause;

    use super::*;
    use crate::engine::FakeEngine;

    struct Fake(Arc<FakeEngine>);

    #[async_trait]
    impl Subject for Fake {
        fn engine(&self) -> &dyn Engine {
            &*self.0
        }

        fn limits(&self) -> Limits {
            Limits::default()
        }

        async fn end_first_process(&self, sandbox: SandboxId, _: &Placement) {
            self.0.die(sandbox, DeathCause::Exit { code: 1 });
        }
    }

    #[tokio::test]
    async fn the_fake_engine_keeps_the_contract() {
        for with_memory in [false, true] {
            for case in CASES {
                let home = tempfile::tempdir().unwrap();
                let engine = FakeEngine::new(home.path().to_path_buf());
                if with_memory {
                    engine.keep_memory();
                }
                println!("{}, memory: {with_memory}", case.name);
                case.run(&Fake(engine)).await;
            }
        }
    }
}
