//! Slots: sandboxes that are ready before a request, and are claimed by one.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use coffer_core::{Boot, SandboxId, SnapshotId};
use coffer_engine::Engine as _;
use coffer_node::WarmChoice;
use coffer_wire::node::CreateSandbox;

use crate::harness::{Home, Sandbox, TestNode, small, spec};

crate::tests![
    a_claimed_slot_is_the_sandbox_that_was_asked_for,
    a_claimed_slot_is_taken_up_by_the_next_node,
    a_burst_beyond_the_pool_is_served,
    dead_and_stale_slots_are_passed_over,
    kills_leave_whole_sandboxes_or_nothing,
    a_pool_settles_and_leaves_nothing,
    a_template_of_a_project_has_slots_while_it_exists,
    a_claimed_slot_keeps_what_its_template_changed,
    deleting_a_template_while_its_slots_are_made_leaves_nothing,
];

fn home(max: usize) -> Home {
    let mut home = Home::new();
    home.warm = WarmChoice::up_to(max);
    home
}

/// Waits until exactly this many slots wait, apart from the sandboxes.
async fn ready(home: &Home, node: &TestNode, slots: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let sandboxes = node.engine.list().await.unwrap().len();
        let belongings = home.belongings().0;
        let counts =
            ["processes", "uppers", "journal entries", "sockets", "small files"].map(|k| belongings[k]);
        if counts == [sandboxes + slots; 5] {
            // A moment, so that the last of them is among those that wait.
            tokio::time::sleep(Duration::from_millis(100)).await;
            return;
        }
        assert!(Instant::now() < deadline, "{slots} slots and {sandboxes} sandboxes, not {belongings:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The first create teaches the node what to keep ready.
async fn taught(home: &Home, slots: usize) -> TestNode {
    let node = home.start().await;
    let first = node.create(small()).await;
    assert!(!is_claimed(&first));
    node.engine.destroy(first.id).await.unwrap();
    ready(home, &node, slots).await;
    node
}

/// Whether a slot was claimed for it: its socket bears the slot's name.
pub(crate) fn is_claimed(sandbox: &Sandbox) -> bool {
    name(sandbox) != sandbox.id
}

pub(crate) fn name(sandbox: &Sandbox) -> SandboxId {
    let socket: &Path = &sandbox.placement.socket;
    socket.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

pub(crate) async fn create(node: &TestNode, spec: &CreateSandbox) -> Sandbox {
    Sandbox { id: spec.sandbox, placement: node.engine.create(spec).await.unwrap() }
}

pub(crate) const MACHINE_ID: &str = "cat /etc/machine-id /proc/sys/kernel/random/boot_id";

async fn a_claimed_slot_is_the_sandbox_that_was_asked_for() {
    let home = home(2);
    let node = taught(&home, 2).await;
    assert!(node.engine.list().await.unwrap().is_empty(), "slots are not listed");
    assert!(node.engine.stats().await.unwrap().is_empty(), "slots are not counted");

    let wanted = CreateSandbox { hostname: "asked-for".into(), ..spec(small()) };
    let sandbox = create(&node, &wanted).await;
    assert!(is_claimed(&sandbox));
    assert_eq!(create(&node, &wanted).await.placement, sandbox.placement, "asking twice makes one");
    let other = CreateSandbox { hostname: "other".into(), ..wanted.clone() };
    node.engine.create(&other).await.unwrap_err();
    assert_eq!(sandbox.output("hostname; cat /etc/hostname").await, "asked-for\nasked-for");
    assert_eq!(sandbox.output("grep -c asked-for /etc/hosts").await, "1");
    assert_eq!(sandbox.output("stat -c %u:%g:%a /etc/hostname /etc/hosts").await, "0:0:644\n0:0:644");
    assert_eq!(node.engine.list().await.unwrap().len(), 1);
    let samples = node.engine.stats().await.unwrap();
    assert_eq!(samples.iter().map(|sample| sample.sandbox).collect::<Vec<_>>(), [wanted.sandbox]);
    assert!(samples[0].memory_bytes > 0 && samples[0].processes > 0);
    assert_ne!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim(), "asked-for");

    // As any other from here on.
    node.engine.freeze(sandbox.id).await.unwrap();
    node.engine.thaw(sandbox.id).await.unwrap();
    sandbox.output("echo mine > /root/x").await;
    node.engine.stop(sandbox.id).await.unwrap();
    let placement = node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(placement, sandbox.placement);
    assert_eq!(sandbox.output("hostname; cat /root/x").await, "asked-for\nmine");

    // No sandbox sees another, and each has its own identity.
    ready(&home, &node, 2).await;
    let next = node.create(small()).await;
    assert!(is_claimed(&next));
    assert_eq!(next.script("cat /root/x").await.0, 1);
    assert_ne!(next.output(MACHINE_ID).await, sandbox.output(MACHINE_ID).await);
    let gone = name(&sandbox);
    node.engine.destroy(sandbox.id).await.unwrap();
    for _ in 0..4 {
        ready(&home, &node, 2).await;
        assert_ne!(name(&node.create(small()).await), gone, "a claimed slot never comes back");
    }
    // Other limits are another shape: created from scratch, and then kept ready too.
    let larger = coffer_core::Limits { memory_mib: 300, ..small() };
    assert!(!is_claimed(&node.create(larger).await));
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_claimed_slot_is_taken_up_by_the_next_node() {
    let mut home = home(2);
    home.ephemeral = false;
    let node = taught(&home, 2).await;
    let (running, stopped, dying) = (node.create(small()).await, node.create(small()).await, spec(small()));
    ready(&home, &node, 2).await;
    let dying = create(&node, &dying).await;
    assert!([&running, &stopped, &dying].into_iter().all(is_claimed));
    running.output("echo here > /tmp/x").await;
    node.engine.stop(stopped.id).await.unwrap();
    node.stop().await;
    assert_eq!(home.belongings().0["uppers"], 3, "slots go with their node");
    assert_eq!(running.output("cat /tmp/x").await, "here");
    dying.order("!exit 5");

    let node = home.start().await;
    let mut listed: Vec<_> = node.engine.list().await.unwrap().iter().map(|status| status.sandbox).collect();
    listed.sort_unstable();
    let mut expected = [running.id, stopped.id, dying.id];
    expected.sort_unstable();
    assert_eq!(listed, expected);
    assert_eq!(running.output("cat /tmp/x").await, "here");
    node.engine.start(stopped.id, Boot::AsPaused).await.unwrap();
    assert_eq!(stopped.output("echo again").await, "again");
    node.engine.destroy(dying.id).await.unwrap();
    // The shapes requested before are ready without another create.
    ready(&home, &node, 2).await;
    assert!(is_claimed(&node.create(small()).await));
    for status in node.engine.list().await.unwrap() {
        node.engine.destroy(status.sandbox).await.unwrap();
    }
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_burst_beyond_the_pool_is_served() {
    let home = home(4);
    let node = taught(&home, 2).await;
    let burst = futures_util::future::join_all((0..12).map(|_| node.create(small()))).await;
    assert_eq!(burst.iter().filter(|sandbox| is_claimed(sandbox)).count(), 2);
    let machines: HashSet<_> =
        futures_util::future::join_all(burst.iter().map(|sandbox| sandbox.output(MACHINE_ID)))
            .await
            .into_iter()
            .collect();
    assert_eq!(machines.len(), 12);
    // The demand was high, so the maximum is kept ready.
    ready(&home, &node, 4).await;
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn dead_and_stale_slots_are_passed_over() {
    let home = home(2);
    let node = taught(&home, 2).await;
    assert_eq!(node.create(small()).await.placement.template.name, "host");
    ready(&home, &node, 2).await;
    let listed = node.engine.list().await.unwrap().into_iter();
    home.kill_slots(&listed.map(|status| status.placement.socket).collect::<Vec<_>>());
    let deadline = Instant::now() + Duration::from_secs(10);
    while home.live_processes() > 1 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The node may not have noticed yet.
    assert_eq!(node.create(small()).await.output("echo alive").await, "alive");
    ready(&home, &node, 2).await;

    // The template that was missing appears.
    let build = newer_template(&home.template_dir());
    let sandbox = node.create(small()).await;
    assert_eq!(
        (sandbox.placement.template.name.as_str(), &sandbox.placement.template.build),
        ("base", &build)
    );
    ready(&home, &node, 2).await;
    let sandbox = node.create(small()).await;
    assert!(is_claimed(&sandbox));
    assert_eq!(sandbox.placement.template.build, build);
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// Publishes a copy of `host` as `base`.
fn newer_template(store: &Path) -> String {
    let host = fs::read_dir(store.join("host")).unwrap().flatten().map(|entry| entry.path());
    let host = host.filter(|path| path.join("manifest.json").exists()).max().unwrap();
    let build = format!("{}0", host.file_name().unwrap().to_str().unwrap());
    let base = store.join("base");
    fs::create_dir_all(&base).unwrap();
    let draft = base.join(".building-test");
    let copied = std::process::Command::new("cp").arg("-a").args([&host, &draft]).status().unwrap();
    assert!(copied.success());
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(draft.join("manifest.json")).unwrap()).unwrap();
    manifest["name"] = "base".into();
    manifest["build"] = build.as_str().into();
    fs::write(draft.join("manifest.json"), manifest.to_string()).unwrap();
    fs::rename(draft, base.join(&build)).unwrap();
    build
}

/// `COFFER_KILLS` for a longer run.
pub(crate) fn kills() -> u64 {
    std::env::var("COFFER_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

async fn kills_leave_whole_sandboxes_or_nothing() {
    let mut home = home(4);
    home.ephemeral = false;
    taught(&home, 2).await.stop().await;
    let mut told = Vec::new();
    for round in 0..kills() {
        let (mut process, engine, stop_client) = home.start_process().await;
        let creating = async {
            for _ in 0..40 {
                let wanted = CreateSandbox { hostname: "whole".into(), ..spec(small()) };
                let Ok(placement) = engine.create(&wanted).await else { return };
                told.push(Sandbox { id: wanted.sandbox, placement });
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
        };
        let killing = async {
            // Before, in and after the first claims.
            tokio::time::sleep(Duration::from_millis(100 + 37 * round)).await;
            process.kill().unwrap();
            process.wait().unwrap();
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), async { tokio::join!(creating, killing) }).await;
        // It would send the unanswered requests to the next node.
        stop_client.cancel();

        // Without a pool: only sandboxes are left to count.
        let warm = std::mem::replace(&mut home.warm, WarmChoice::OFF);
        let node = home.start().await;
        home.warm = warm;
        let listed = node.engine.list().await.unwrap();
        for sandbox in &told {
            assert!(listed.iter().any(|status| status.sandbox == sandbox.id), "{} was lost", sandbox.id);
            assert_eq!(sandbox.output("hostname; cat /etc/hostname").await, "whole\nwhole");
        }
        home.reap_orphans();
        let belongings = home.belongings();
        for kind in ["processes", "uppers", "journal entries", "sockets", "small files"] {
            assert_eq!(belongings.0[kind], listed.len(), "{kind}: {belongings:?}");
        }
        for status in &listed {
            node.engine.destroy(status.sandbox).await.unwrap();
        }
        assert_eq!(node.engine.list().await.unwrap(), []);
        println!("round {round}: {} told of, {} found", told.len(), listed.len());
        told.clear();
        node.stop().await;
        home.reap_orphans();
        assert!(home.belongings().nothing(), "{:?}", home.belongings());
    }
}

async fn a_pool_settles_and_leaves_nothing() {
    let home = home(6);
    let node = taught(&home, 2).await;
    let before = home.belongings().without("uid blocks");
    let (mut claims, mut anew) = (Vec::new(), Vec::new());
    for cycle in 0..60 {
        let started = Instant::now();
        let sandbox = node.create(small()).await;
        if is_claimed(&sandbox) { &mut claims } else { &mut anew }.push(started.elapsed());
        assert_eq!(sandbox.output("echo $((6 * 7)) | tee /root/file").await, "42");
        match cycle % 4 {
            0 => node.engine.freeze(sandbox.id).await.unwrap(),
            1 => node.engine.stop(sandbox.id).await.unwrap(),
            _ => {}
        }
        node.engine.destroy(sandbox.id).await.unwrap();
        // Slower than slots are created.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (what, times) in [("claimed", &mut claims), ("created from scratch", &mut anew)] {
        times.sort();
        let at = |share: usize| times.get(times.len().saturating_sub(1) * share / 100).copied();
        println!("{what}: {} creates, p50 {:?} p99 {:?}", times.len(), at(50), at(99));
    }
    assert!(claims.len() > anew.len(), "{} claimed, {} created from scratch", claims.len(), anew.len());
    ready(&home, &node, 6).await;
    // No more requests.
    ready(&home, &node, 2).await;
    // Some of what a slot had is removed a moment after its processes.
    let deadline = Instant::now() + Duration::from_secs(30);
    while home.belongings().without("uid blocks") != before && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(home.belongings().without("uid blocks"), before);
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// A request for a sandbox of a project's template.
fn built(snapshot: SnapshotId) -> CreateSandbox {
    CreateSandbox { snapshot: Some(snapshot), from_template: true, ..spec(small()) }
}

/// A node with a template that `script` made, and no slots yet.
async fn with_template(home: &Home, script: &str) -> (TestNode, SnapshotId) {
    let node = home.start().await;
    let source = create(&node, &CreateSandbox { hostname: "builder".into(), ..spec(small()) }).await;
    source.output(script).await;
    let snapshot = node.snapshot(&source).await.snapshot;
    node.engine.destroy(source.id).await.unwrap();
    // The create taught the node to keep two of the host's.
    ready(home, &node, 2).await;
    (node, snapshot)
}

async fn a_template_of_a_project_has_slots_while_it_exists() {
    let home = home(6);
    let (node, snapshot) = with_template(&home, "echo built > /root/x").await;
    // A fork or a restore teaches nothing.
    let fork = create(&node, &CreateSandbox { from_template: false, ..built(snapshot) }).await;
    node.engine.destroy(fork.id).await.unwrap();
    ready(&home, &node, 2).await;

    let first = create(&node, &built(snapshot)).await;
    assert!(!is_claimed(&first));
    ready(&home, &node, 4).await;
    let named = CreateSandbox { hostname: "asked-for".into(), ..built(snapshot) };
    let second = create(&node, &named).await;
    assert!(is_claimed(&second));
    let told = second.output("cat /root/x; hostname; cat /etc/hostname; grep -c asked-for /etc/hosts").await;
    assert_eq!(told, "built\nasked-for\nasked-for\n1");
    assert_ne!(first.output(MACHINE_ID).await, second.output(MACHINE_ID).await);
    second.output("echo mine > /root/x").await;
    ready(&home, &node, 4).await;
    let third = create(&node, &built(snapshot)).await;
    assert!(is_claimed(&third));
    assert_eq!(third.output("cat /root/x").await, "built");
    // What continues processes or mounts something comes from scratch; so does another template.
    ready(&home, &node, 4).await;
    let other = node.snapshot(&second).await.snapshot;
    let of_other = create(&node, &built(other)).await;
    assert!(!is_claimed(&of_other));
    assert_eq!(of_other.output("cat /root/x").await, "mine");
    ready(&home, &node, 6).await;

    // Its slots end with it; sandboxes run on, and those of other templates have theirs.
    node.engine.delete_snapshot(snapshot).await.unwrap();
    node.engine.create(&built(snapshot)).await.unwrap_err();
    ready(&home, &node, 4).await;
    assert_eq!(third.output("cat /root/x").await, "built");
    assert!(is_claimed(&create(&node, &built(other)).await));
    // As any other.
    node.engine.stop(second.id).await.unwrap();
    node.engine.start(second.id, Boot::AsPaused).await.unwrap();
    assert_eq!(second.output("hostname; cat /root/x").await, "asked-for\nmine");
    node.engine.delete_snapshot(other).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn a_claimed_slot_keeps_what_its_template_changed() {
    let home = home(4);
    let script =
        "echo own > /etc/hostname; rm /etc/hosts; ln -s /root/target /etc/hosts; echo kept > /root/target";
    let (node, snapshot) = with_template(&home, script).await;
    create(&node, &built(snapshot)).await;
    ready(&home, &node, 4).await;
    let claimed = create(&node, &CreateSandbox { hostname: "asked-for".into(), ..built(snapshot) }).await;
    assert!(is_claimed(&claimed));
    let told = claimed.output("hostname; cat /etc/hostname /etc/hosts; readlink /etc/hosts").await;
    assert_eq!(told, "asked-for\nown\nkept\n/root/target");
    ready(&home, &node, 4).await;
    // A pipe blocks no claim.
    let script = "rm -f /etc/hostname /etc/hosts; mkfifo /etc/hostname; mkdir /etc/hosts";
    claimed.output(script).await;
    let odd = node.snapshot(&claimed).await.snapshot;
    create(&node, &built(odd)).await;
    ready(&home, &node, 4).await;
    let claimed = create(&node, &built(odd)).await;
    assert!(is_claimed(&claimed));
    assert_eq!(claimed.output("stat -c %F /etc/hostname /etc/hosts").await, "fifo\ndirectory");
    node.stop().await;
}

async fn deleting_a_template_while_its_slots_are_made_leaves_nothing() {
    let home = home(8);
    let (node, base) = with_template(&home, "echo built > /root/x").await;
    for round in 0..8 {
        let source = create(&node, &CreateSandbox { from_template: false, ..built(base) }).await;
        let snapshot = node.snapshot(&source).await.snapshot;
        let specs = [built(snapshot), built(snapshot), built(snapshot)];
        let (made, deleted) = tokio::join!(
            futures_util::future::join_all(specs.iter().map(|spec| node.engine.create(spec))),
            async {
                tokio::time::sleep(Duration::from_millis(15 * round)).await;
                node.engine.delete_snapshot(snapshot).await
            },
        );
        deleted.unwrap();
        for spec in specs.iter().zip(&made).filter(|(_, made)| made.is_ok()).map(|(spec, _)| spec) {
            node.engine.destroy(spec.sandbox).await.unwrap();
        }
        node.engine.destroy(source.id).await.unwrap();
        assert!(node.engine.create(&built(snapshot)).await.is_err());
    }
    ready(&home, &node, 2).await;
    node.engine.delete_snapshot(base).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
