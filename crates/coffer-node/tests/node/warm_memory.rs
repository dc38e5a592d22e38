//! Slots that continue the processes of a template: restored before a request, frozen until one claims them. Needs CRIU;
//! skips loudly without.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use coffer_core::{Boot, Memory, ProjectId, SnapshotId};
use coffer_engine::Engine as _;
use coffer_node::WarmChoice;
use coffer_wire::node::{CreateSandbox, RunState};

use crate::harness::{Home, Sandbox, TestNode, spec};
use crate::memory::{able, ask, begin, with_python};
use crate::warm::{MACHINE_ID, create, is_claimed, kills, name};

crate::tests![
    a_restored_slot_is_the_sandbox_that_was_asked_for,
    restored_slots_that_die_are_passed_over,
    restored_slots_end_with_their_template,
    restored_slots_stay_within_their_memory_and_are_shared,
    kills_leave_whole_restored_sandboxes_or_nothing,
];

const PATIENCE: Duration = Duration::from_secs(60);

fn home(memory: u64) -> Home {
    let mut home = Home::new();
    home.warm = WarmChoice { memory, ..WarmChoice::up_to(6) };
    home
}

/// The names of all sandboxes and slots whose processes are frozen.
fn frozen(home: &Home) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in
        fs::read_to_string("/proc/self/mountinfo").unwrap().lines().filter(|l| l.contains(" - cgroup"))
    {
        let ours = Path::new(line.split(' ').nth(4).unwrap()).join(home.cgroup());
        for entry in fs::read_dir(ours).into_iter().flatten().flatten() {
            let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
            if read("cgroup.events").contains("frozen 1") || read("freezer.state").trim() == "FROZEN" {
                names.insert(entry.file_name().to_string_lossy().into_owned());
            }
        }
    }
    names
}

/// Waits until exactly this many slots wait that were restored.
async fn restored(home: &Home, slots: usize) -> BTreeSet<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = frozen(home);
        if found.len() == slots {
            // A moment, so that the last of them is among those that wait, and no other comes.
            tokio::time::sleep(Duration::from_millis(300)).await;
            if frozen(home) == found {
                return found;
            }
        }
        assert!(Instant::now() < deadline, "{} slots, not {slots}", found.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A template with a running process that holds so much memory; what that process says of itself.
async fn template(node: &TestNode, mebibytes: usize) -> (SnapshotId, String) {
    let source = create(node, &CreateSandbox { hostname: "builder".into(), ..spec(with_python()) }).await;
    begin(&source, mebibytes).await;
    let (_, facts) = ask(&source, "x").await;
    let snapshot = SnapshotId::generate();
    node.engine.snapshot(source.id, snapshot, Memory::With).await.unwrap();
    node.engine.destroy(source.id).await.unwrap();
    (snapshot, facts)
}

fn built(snapshot: SnapshotId) -> CreateSandbox {
    let spec = spec(with_python());
    CreateSandbox { snapshot: Some(snapshot), from_template: true, memory: true, ..spec }
}

async fn a_restored_slot_is_the_sandbox_that_was_asked_for() {
    let home = home(WarmChoice::MEMORY);
    let Some(node) = able(&home).await else { return };
    let (snapshot, facts) = template(&node, 20).await;
    let begun = Instant::now();
    let first = create(&node, &built(snapshot)).await;
    let scratch = begun.elapsed();
    assert!(!is_claimed(&first));
    let own = "hostname; cat /etc/hostname; grep -c $(hostname) /etc/hosts; awk '{print $5, $6, $9}' /proc/self/mountinfo | sort";
    let looks = first.output(own).await;
    assert_eq!(ask(&first, "x").await, (2, facts.clone()));
    restored(&home, 2).await;
    let listed = node.engine.list().await.unwrap();
    assert_eq!(listed.len(), 1, "slots are not listed");

    // What waits uses no processor.
    let slots = frozen(&home);
    let used = || slots.iter().map(|slot| processor_time(&home, slot)).sum::<u64>();
    let before = used();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(used(), before);

    let begun = Instant::now();
    let claimed = create(&node, &built(snapshot)).await;
    println!("created in {:?}, from scratch in {scratch:?}", begun.elapsed());
    assert!(is_claimed(&claimed) && slots.contains(&name(&claimed).to_string()));
    assert_eq!(claimed.output(own).await, looks, "as one that was restored from scratch");
    assert_eq!(ask(&claimed, "x").await, (2, facts.clone()));
    assert_ne!(claimed.output(MACHINE_ID).await, first.output(MACHINE_ID).await);
    let named = CreateSandbox { hostname: "asked-for".into(), ..built(snapshot) };
    let named = create(&node, &named).await;
    assert!(is_claimed(&named));
    assert_eq!(
        named.output("hostname; cat /etc/hostname; grep -c asked-for /etc/hosts").await,
        "asked-for\nasked-for\n1"
    );

    // As any other from here on: saved, frozen, and taken up.
    let mut claimed = claimed;
    node.engine.hibernate(claimed.id).await.unwrap();
    claimed.placement = node.engine.start(claimed.id, Boot::AsPaused).await.unwrap();
    assert_eq!(ask(&claimed, "x").await, (3, facts.clone()));
    node.engine.freeze(named.id).await.unwrap();
    node.engine.thaw(named.id).await.unwrap();
    assert_eq!(ask(&named, "x").await, (2, facts));
    node.engine.delete_snapshot(snapshot).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// Microseconds that a slot has run for, as its cgroup counts them.
fn processor_time(home: &Home, slot: &str) -> u64 {
    for line in
        fs::read_to_string("/proc/self/mountinfo").unwrap().lines().filter(|l| l.contains(" - cgroup"))
    {
        let ours = Path::new(line.split(' ').nth(4).unwrap()).join(home.cgroup()).join(slot);
        let text = fs::read_to_string(ours.join("cpu.stat")).unwrap_or_default();
        let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
        let v1 = || fs::read_to_string(ours.join("cpuacct.usage")).ok()?.trim().parse::<u64>().ok();
        if let Some(usage) = usage.or_else(|| v1().map(|ns| ns / 1000)) {
            return usage;
        }
    }
    panic!("no processor time of {slot}");
}

async fn restored_slots_that_die_are_passed_over() {
    let home = home(WarmChoice::MEMORY);
    let Some(node) = able(&home).await else { return };
    let (snapshot, facts) = template(&node, 5).await;
    let first = create(&node, &built(snapshot)).await;
    let slots = restored(&home, 2).await;
    home.kill_slots(std::slice::from_ref(&first.placement.socket));
    // The node may not have noticed yet.
    let next = create(&node, &built(snapshot)).await;
    assert!(!slots.contains(&name(&next).to_string()));
    assert_eq!(ask(&next, "x").await, (2, facts));
    restored(&home, 2).await;
    node.stop().await;
    assert!(home.belongings().without("snapshots").without("manifests").0.values().all(|&count| count == 0));
}

async fn restored_slots_end_with_their_template() {
    let home = home(WarmChoice::MEMORY);
    let Some(node) = able(&home).await else { return };
    let (snapshot, facts) = template(&node, 5).await;
    // Not a template's: teaches nothing.
    let fork = create(&node, &CreateSandbox { from_template: false, ..built(snapshot) }).await;
    node.engine.destroy(fork.id).await.unwrap();
    // Nor does one that only boots teach to restore.
    let booted = create(&node, &CreateSandbox { memory: false, ..built(snapshot) }).await;
    assert_eq!(booted.script("pgrep -f [p]rogram.py").await.0, 1);
    assert_eq!(restored(&home, 0).await.len(), 0);
    create(&node, &built(snapshot)).await;
    restored(&home, 2).await;
    let claimed = create(&node, &built(snapshot)).await;
    assert!(is_claimed(&claimed));
    for pause in [0, 40, 150] {
        // While one is being restored, too.
        let (snapshot, _) = template(&node, 5).await;
        create(&node, &built(snapshot)).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        node.engine.delete_snapshot(snapshot).await.unwrap();
        assert!(node.engine.create(&built(snapshot)).await.is_err());
    }
    restored(&home, 2).await;
    node.engine.delete_snapshot(snapshot).await.unwrap();
    assert_eq!(frozen(&home).len(), 0);
    assert_eq!(ask(&claimed, "x").await, (2, facts));
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn restored_slots_stay_within_their_memory_and_are_shared() {
    // For two of 50 MB.
    let mut home = home(150 << 20);
    home.ephemeral = false;
    let Some(node) = able(&home).await else { return };
    let owned = |snapshot, project| CreateSandbox { template_owner: Some(project), ..built(snapshot) };
    let (one, other) = (ProjectId::generate(), ProjectId::generate());
    let ((first, _), (second, facts), (large, _)) =
        (template(&node, 50).await, template(&node, 50).await, template(&node, 200).await);
    for _ in 0..3 {
        node.engine.destroy(create(&node, &owned(first, one)).await.id).await.unwrap();
    }
    restored(&home, 2).await;
    // One that does not fit has none, and takes none away.
    node.engine.destroy(create(&node, &owned(large, other)).await.id).await.unwrap();
    assert_eq!(restored(&home, 2).await.len(), 2);
    assert!(is_claimed(&create(&node, &owned(first, one)).await));
    restored(&home, 2).await;
    // Another project's gets its share.
    assert!(!is_claimed(&create(&node, &owned(second, other)).await));
    let deadline = Instant::now() + PATIENCE;
    let claimed = loop {
        restored(&home, 2).await;
        let next = create(&node, &owned(second, other)).await;
        if is_claimed(&next) {
            break next;
        }
        assert!(Instant::now() < deadline);
        node.engine.destroy(next.id).await.unwrap();
    };
    assert_eq!(ask(&claimed, "x").await, (2, facts));
    restored(&home, 2).await;
    assert!(is_claimed(&create(&node, &owned(first, one)).await), "and leaves the first its own");
    for status in node.engine.list().await.unwrap() {
        node.engine.destroy(status.sandbox).await.unwrap();
    }
    node.stop().await;

    // Without memory for them there are none, and all else works.
    home.ephemeral = true;
    home.warm.memory = 0;
    let node = home.start().await;
    for _ in 0..2 {
        assert!(!is_claimed(&create(&node, &owned(second, other)).await));
    }
    assert_eq!(restored(&home, 0).await.len(), 0);
    for snapshot in [first, second, large] {
        node.engine.delete_snapshot(snapshot).await.unwrap();
    }
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn kills_leave_whole_restored_sandboxes_or_nothing() {
    let mut home = home(WarmChoice::MEMORY);
    home.ephemeral = false;
    let Some(node) = able(&home).await else { return };
    let (snapshot, facts) = template(&node, 5).await;
    node.stop().await;
    let mut claims = 0;
    for round in 0..kills() {
        let mut told = Vec::new();
        let (mut process, engine, stop_client) = home.start_process().await;
        let creating = async {
            for _ in 0..40 {
                let wanted = CreateSandbox { hostname: "whole".into(), ..built(snapshot) };
                let Ok(placement) = engine.create(&wanted).await else { return };
                told.push(Sandbox { id: wanted.sandbox, placement });
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let killing = async {
            // While slots are restored, wait, and are claimed.
            tokio::time::sleep(Duration::from_millis(300 + 430 * round)).await;
            process.kill().unwrap();
            process.wait().unwrap();
        };
        let _ = tokio::time::timeout(Duration::from_secs(5), async { tokio::join!(creating, killing) }).await;
        stop_client.cancel();

        let warm = std::mem::replace(&mut home.warm, WarmChoice::OFF);
        let node = home.start().await;
        home.warm = warm;
        let listed = node.engine.list().await.unwrap();
        for sandbox in &told {
            let status = listed.iter().find(|status| status.sandbox == sandbox.id);
            assert_eq!(status.unwrap_or_else(|| panic!("{} was lost", sandbox.id)).run, RunState::Running);
            assert_eq!(sandbox.output("hostname; cat /etc/hostname").await, "whole\nwhole");
            assert_eq!(ask(sandbox, "x").await, (2, facts.clone()));
            claims += usize::from(is_claimed(sandbox));
        }
        home.reap_orphans();
        assert_eq!(frozen(&home).len(), 0);
        let belongings = home.belongings();
        for kind in ["uppers", "journal entries", "sockets", "small files"] {
            assert_eq!(belongings.0[kind], listed.len(), "{kind}: {belongings:?}");
        }
        for status in &listed {
            node.engine.destroy(status.sandbox).await.unwrap();
        }
        println!("round {round}: {} told of, {} found, {claims} claimed so far", told.len(), listed.len());
        node.stop().await;
        home.reap_orphans();
    }
    assert!(claims > 0, "no slot was ever claimed");
    home.ephemeral = true;
    let node = home.start().await;
    node.engine.delete_snapshot(snapshot).await.unwrap();
    node.stop().await;
    home.reap_orphans();
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
