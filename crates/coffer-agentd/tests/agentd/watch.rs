//! Watching directories, streamed and polled.

use serde_json::{Value, json};

use crate::support::Agentd;

const CREATE_WATCHER: &str = "filesystem.Filesystem/CreateWatcher";
const WATCH_DIR: &str = "filesystem.Filesystem/WatchDir";

/// `kind name` of each event.
fn told(events: &Value) -> Vec<String> {
    let events = events.as_array().cloned().unwrap_or_default();
    events
        .iter()
        .map(|event| {
            let kind = event["type"].as_str().unwrap().trim_start_matches("EVENT_TYPE_").to_lowercase();
            format!("{kind} {}", event["name"].as_str().unwrap())
        })
        .collect()
}

impl Agentd {
    async fn watcher(&self, ask: Value) -> Value {
        self.rpc(CREATE_WATCHER, ask).await["watcherId"].clone()
    }

    async fn poll(&self, id: &Value) -> Vec<String> {
        let answer = self.rpc("filesystem.Filesystem/GetWatcherEvents", json!({"watcherId": id})).await;
        told(&answer["events"])
    }

    async fn write(&self, path: &str, content: &str) {
        let form = format!(
            "--xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n{content}\r\n--xyz--\r\n"
        );
        let headers = [("content-type", "multipart/form-data; boundary=xyz")];
        let answer = self.post(&format!("/files?path={path}&username=nobody"), &headers, form).await;
        assert!(answer.status.is_success(), "{answer:?}");
    }
}

#[tokio::test]
async fn a_new_small_file_is_exactly_three_events() {
    let agentd = Agentd::start().await;
    let watcher = agentd.watcher(json!({"path": agentd.path("")})).await;
    // Polled right after the answer, and never early or late.
    for name in ["a", "b", "c"] {
        agentd.write(&agentd.path(name), "This file will be watched.").await;
        assert_eq!(
            agentd.poll(&watcher).await,
            [format!("create {name}"), format!("chmod {name}"), format!("write {name}")]
        );
    }
    agentd.write(&agentd.path("a"), "again").await;
    assert_eq!(agentd.poll(&watcher).await, ["write a", "chmod a", "write a"]);

    let moved = json!({"source": agentd.path("a"), "destination": agentd.path("z")});
    agentd.rpc("filesystem.Filesystem/Move", moved).await;
    assert_eq!(agentd.poll(&watcher).await, ["rename a", "create z"]);
    agentd.rpc("filesystem.Filesystem/Remove", json!({"path": agentd.path("z")})).await;
    assert_eq!(agentd.poll(&watcher).await, ["remove z"]);

    let id = json!({"watcherId": watcher});
    agentd.rpc("filesystem.Filesystem/RemoveWatcher", id.clone()).await;
    for method in ["GetWatcherEvents", "RemoveWatcher"] {
        let method = format!("filesystem.Filesystem/{method}");
        assert_eq!(agentd.rpc_error(&method, id.clone()).await, (404, "not_found".into()));
    }
}

#[tokio::test]
async fn recursion_reaches_directories_made_later() {
    let agentd = Agentd::start().await;
    let root = agentd.path("root");
    std::fs::create_dir_all(format!("{root}/old")).unwrap();
    let flat = agentd.watcher(json!({"path": root})).await;
    let deep = agentd.watcher(json!({"path": root, "recursive": true})).await;

    agentd.write(&format!("{root}/old/f"), "x").await;
    assert_eq!(agentd.poll(&deep).await, ["create old/f", "chmod old/f", "write old/f"]);
    assert_eq!(agentd.poll(&flat).await, [] as [&str; 0]);

    agentd.rpc("filesystem.Filesystem/MakeDir", json!({"path": format!("{root}/new/er")})).await;
    agentd.write(&format!("{root}/new/er/f"), "x").await;
    let events = agentd.poll(&deep).await;
    for expected in ["create new", "create new/er", "create new/er/f", "write new/er/f"] {
        assert_eq!(events.iter().filter(|event| *event == expected).count(), 1, "{expected}: {events:?}");
    }

    // A directory that moves is watched under its new name only.
    let moved = json!({"source": format!("{root}/new"), "destination": format!("{root}/moved")});
    agentd.rpc("filesystem.Filesystem/Move", moved).await;
    assert_eq!(agentd.poll(&deep).await, ["rename new", "create moved"]);
    agentd.write(&format!("{root}/moved/er/g"), "x").await;
    assert_eq!(agentd.poll(&deep).await, ["create moved/er/g", "chmod moved/er/g", "write moved/er/g"]);
}

#[tokio::test]
async fn a_stream_tells_as_it_happens() {
    let agentd = Agentd::start().await;
    let ask = json!({"path": agentd.path(""), "includeEntry": true});
    let mut events = agentd.stream_with(WATCH_DIR, ask, &[("keepalive-ping-interval", "1")]).await;
    assert_eq!(events.next().await, json!({"start": {}}));
    assert_eq!(events.next().await, json!({"keepalive": {}}));
    // Written by another program than agentd.
    std::fs::write(agentd.path("f"), "12345").unwrap();
    let mut seen = Vec::new();
    let written = loop {
        let event = events.next().await["filesystem"].clone();
        if event.is_null() {
            continue;
        }
        seen.push(told(&json!([event])).remove(0));
        if event["type"] == "EVENT_TYPE_WRITE" {
            break event;
        }
    };
    assert_eq!(seen.first().map(String::as_str), Some("create f"));
    assert_eq!(written["entry"]["size"], "5");
    std::fs::remove_file(agentd.path("f")).unwrap();
    let removed = loop {
        let event = events.next().await["filesystem"].clone();
        if event["type"] == "EVENT_TYPE_REMOVE" {
            break event;
        }
    };
    assert_eq!(removed, json!({"name": "f", "type": "EVENT_TYPE_REMOVE"}));
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused() {
    let agentd = Agentd::start().await;
    std::fs::write(agentd.path("file"), "").unwrap();
    for (path, status, code) in
        [(agentd.path("none"), 404, "not_found"), (agentd.path("file"), 400, "invalid_argument")]
    {
        let ask = json!({"path": path});
        assert_eq!(agentd.rpc_error(CREATE_WATCHER, ask.clone()).await, (status, code.into()));
        assert_eq!(agentd.stream(WATCH_DIR, ask).await.error().await["code"], code);
    }
}

#[tokio::test]
async fn lost_events_are_told() {
    let agentd = Agentd::start().await;
    let watcher = agentd.watcher(json!({"path": agentd.path("")})).await;
    let id = json!({"watcherId": watcher});
    tokio::task::spawn_blocking({
        let dir = agentd.path("");
        move || {
            for index in 0..12_000 {
                let path = format!("{dir}{index}");
                std::fs::write(&path, "").unwrap();
                std::fs::remove_file(&path).unwrap();
            }
        }
    })
    .await
    .unwrap();
    // First the kept events, in order; then the overflow.
    assert!(agentd.poll(&watcher).await.len() >= 16_000);
    let error = agentd.rpc_error("filesystem.Filesystem/GetWatcherEvents", id).await;
    assert_eq!(error, (500, "data_loss".into()));
    assert_eq!(agentd.poll(&watcher).await, [] as [&str; 0]);
}
