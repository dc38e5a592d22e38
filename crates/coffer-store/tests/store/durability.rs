//! Acknowledged writes survive the death of the server.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use coffer_core::SandboxId;
use coffer_store::Store;

use crate::databases::on_both;
use crate::fixtures::{comes_in, create, sandbox};

const URL: &str = "COFFER_STORE_TEST_URL";
const KEY: &str = "COFFER_STORE_TEST_KEY";
const ACKNOWLEDGED: &str = "acknowledged ";

on_both! {
    async fn every_acknowledged_write_survives_a_kill(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "p").await.unwrap();
        let key = store.create_key(&operator, project, "test").await.unwrap();
        store.close().await;

        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "durability::a_writer_until_it_is_killed", "--ignored", "--nocapture"])
            .env(URL, &database.url)
            .env(KEY, key.reveal())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acknowledged = BTreeSet::new();
        let mut killed = false;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            if let Some(id) = line.unwrap().strip_prefix(ACKNOWLEDGED) {
                acknowledged.insert(id.parse::<SandboxId>().unwrap());
            }
            if acknowledged.len() == 500 && !killed {
                // SIGKILL, in the middle of its work; what it wrote to the pipe before still counts.
                child.kill().unwrap();
                killed = true;
            }
        }
        assert!(killed, "the writer ended by itself: {:?}", child.wait());
        child.wait().unwrap();

        let store = database.open().await;
        let scope = comes_in(&store, key.reveal()).await.scope;
        let recorded: BTreeSet<SandboxId> =
            store.live_sandboxes(&store.operator()).await.unwrap().iter().map(|row| row.id).collect();
        let lost: Vec<_> = acknowledged.difference(&recorded).collect();
        assert!(lost.is_empty(), "{} of {} were lost", lost.len(), acknowledged.len());
        // Each of them is complete: a sandbox and its event were one write.
        let mut subjects = BTreeSet::new();
        let mut last = 0;
        loop {
            let events = store.events(&scope, last, 1000).await.unwrap();
            let Some(newest) = events.last() else { break };
            last = newest.sequence;
            subjects.extend(events.iter().map(|event| event.subject.parse::<SandboxId>().unwrap()));
        }
        assert_eq!(subjects, recorded);
        assert_eq!(last, i64::try_from(recorded.len()).unwrap());
    }
}

#[test]
#[ignore = "the child of every_acknowledged_write_survives_a_kill"]
fn a_writer_until_it_is_killed() {
    let (Ok(url), Ok(key)) = (std::env::var(URL), std::env::var(KEY)) else {
        println!("SKIPPED: this is a part of every_acknowledged_write_survives_a_kill");
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = Store::open(&url, coffer_testkit::TestDatabase::keys()).await.unwrap();
        let scope = comes_in(&store, &key).await.scope;
        for _ in 0..32 {
            let store = store.clone();
            tokio::spawn(async move {
                loop {
                    println!("{ACKNOWLEDGED}{}", create(&store, &scope, sandbox()).await);
                }
            });
        }
        // Bounded, in case it outlives a parent that was killed itself.
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}
