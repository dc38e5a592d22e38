//! Saved memory holds whatever processes held, including keys and tokens. On disk it is encrypted, and
//! deleted images cannot be read from the pool's free blocks. Needs CRIU; skips loudly without.

use std::path::Path;
use std::process::Command;

use coffer_core::{Boot, Memory, SnapshotId};
use coffer_engine::Engine as _;

use crate::harness::{Home, Sandbox, TestNode, small};
use crate::memory::able;

crate::tests![
    secrets_of_processes_are_not_on_disk,
    the_same_secret_is_found_in_a_plain_image,
    images_outlive_a_change_of_the_setting,
];

/// A sandbox with a process that has a secret in its memory, and that secret. No file and no program has it in one
/// piece: the process puts it together.
async fn with_secret(node: &TestNode) -> (Sandbox, String) {
    let sandbox = node.create(small()).await;
    let half = SnapshotId::generate();
    let start =
        format!("TOKEN=$(printf %s%s at-rest- {half}) sleep 1000 >/dev/null 2>&1 </dev/null & echo $!");
    sandbox.output(&start).await;
    (sandbox, format!("at-rest-{half}"))
}

/// Whether anything below a directory has the secret, the image of the pool with its free blocks included.
fn is_in(secret: &str, directory: &Path) -> bool {
    Command::new("sync").status().unwrap();
    let found = Command::new("grep").args(["-raqF", secret]).arg(directory).status().unwrap();
    assert!(matches!(found.code(), Some(0 | 1)), "{found}");
    found.success()
}

fn keys(home: &Home) -> usize {
    std::fs::read_dir(home.data_dir().join("keys")).unwrap().count()
}

fn in_memory(home: &Home) -> usize {
    std::fs::read_dir(home.data_dir().join("work")).unwrap().count()
}

async fn secrets_of_processes_are_not_on_disk() {
    let home = Home::new();
    let Some(node) = able(&home).await else { return };
    let (mut sandbox, secret) = with_secret(&node).await;
    let snapshot = SnapshotId::generate();
    node.engine.snapshot(sandbox.id, snapshot, Memory::With).await.unwrap();
    node.engine.hibernate(sandbox.id).await.unwrap();
    assert_eq!((keys(&home), in_memory(&home)), (2, 0));
    assert!(!is_in(&secret, &home.data_dir()));
    sandbox.placement = node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    let found = sandbox.output("tr '\\0' '\\n' < /proc/$(pgrep sleep)/environ | grep TOKEN").await;
    assert_eq!(found, format!("TOKEN={secret}"));
    // An image that is not needed any more takes its key with it.
    assert_eq!((keys(&home), in_memory(&home)), (1, 0));
    node.engine.delete_snapshot(snapshot).await.unwrap();
    assert_eq!(keys(&home), 0);
    assert!(!is_in(&secret, &home.data_dir()));
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn the_same_secret_is_found_in_a_plain_image() {
    let mut home = Home::new();
    home.encrypt_memory = false;
    let Some(node) = able(&home).await else { return };
    let (sandbox, secret) = with_secret(&node).await;
    assert!(!is_in(&secret, &home.data_dir()));
    node.engine.hibernate(sandbox.id).await.unwrap();
    assert_eq!((keys(&home), in_memory(&home)), (0, 0));
    assert!(is_in(&secret, &home.data_dir()));
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

async fn images_outlive_a_change_of_the_setting() {
    let mut home = Home::new();
    home.ephemeral = false;
    let Some(node) = able(&home).await else { return };
    let (sandbox, _) = with_secret(&node).await;
    let snapshot = SnapshotId::generate();
    node.engine.snapshot(sandbox.id, snapshot, Memory::With).await.unwrap();
    node.engine.hibernate(sandbox.id).await.unwrap();
    node.stop().await;
    for encrypt_memory in [false, true] {
        home.encrypt_memory = encrypt_memory;
        let node = home.start().await;
        node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
        node.engine.hibernate(sandbox.id).await.unwrap();
        assert_eq!(keys(&home), if encrypt_memory { 2 } else { 1 });
        node.stop().await;
    }
    home.ephemeral = true;
    home.start().await.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
