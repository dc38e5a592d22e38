//! Git LFS of local repositories: objects by their digest, only for callers that may fetch and push.

use std::path::PathBuf;

use bytes::Bytes;
use http::Method;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::app::{Answer, TestApp};

/// SHA-256 of `foo`, `bar` and nothing.
const FOO: &str = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
const BAR: &str = "fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

struct Store {
    app: TestApp,
    path: String,
    id: String,
}

impl Store {
    async fn start() -> Self {
        let app = TestApp::start().await;
        let made = app.post("/api/v1/repositories", json!({"name": "app"})).await.expect(201).json();
        let clone_url = made["clone_url"].as_str().unwrap();
        let path = format!("/{}/info/lfs/objects", clone_url.splitn(4, '/').nth(3).unwrap());
        Self { app, path, id: made["id"].as_str().unwrap().to_string() }
    }

    async fn batch(&self, operation: &str, objects: Value) -> Vec<Value> {
        let body = json!({"operation": operation, "transfers": ["basic"], "objects": objects});
        let told = self.app.post(&format!("{}/batch", self.path), body).await.expect(200);
        assert_eq!(told.header("content-type"), Some("application/vnd.git-lfs+json"));
        let told = told.json();
        assert_eq!(told["transfer"], "basic");
        told["objects"].as_array().unwrap().clone()
    }

    async fn put(&self, oid: &str, content: &'static str) -> Answer {
        let request = self.app.request(Method::PUT, &format!("{}/{oid}", self.path));
        self.app.send(request.body(Full::new(Bytes::from_static(content.as_bytes()))).unwrap()).await
    }

    async fn get(&self, oid: &str) -> Answer {
        self.app.get(&format!("{}/{oid}", self.path)).await
    }

    fn shelf(&self) -> PathBuf {
        self.app.config.server_dir.join("repositories")
    }

    async fn bare(&self) -> PathBuf {
        let project = self.app.scope().await.project().to_string();
        self.shelf().join(project).join(format!("{}.git", self.id))
    }

    /// Temporary files of transfers.
    fn half_made(&self) -> usize {
        let entries = std::fs::read_dir(self.shelf()).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.')).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_brought_and_had_again() {
    let store = Store::start().await;
    let objects = json!([{"oid": FOO, "size": 3}, {"oid": BAR, "size": 3}]);
    let absent = store.batch("download", objects.clone()).await;
    assert!(
        absent.iter().all(|object| object["error"]["code"] == 404 && object["actions"].is_null()),
        "{absent:?}"
    );
    let wanted = store.batch("upload", objects.clone()).await;
    let href = wanted[0]["actions"]["upload"]["href"].as_str().unwrap();
    assert!(
        href.starts_with("http://127.0.0.1:") && href.ends_with(&format!("{}/{FOO}", store.path)),
        "{href}"
    );
    assert!(!json!(wanted).to_string().contains(&store.app.key), "no credential is told");
    store.get(FOO).await.expect(404);
    store.put(FOO, "foo").await.expect(200);
    store.put(FOO, "foo").await.expect(200);
    store.put(EMPTY, "").await.expect(200);
    let got = store.get(FOO).await.expect(200);
    assert_eq!((&got.body[..], got.header("content-length")), (&b"foo"[..], Some("3")));
    assert_eq!(store.get(EMPTY).await.expect(200).body.len(), 0);
    let here = store.batch("upload", objects.clone()).await;
    assert!(here[0]["actions"].is_null() && here[0]["error"].is_null(), "it is there already: {here:?}");
    let found = store.batch("download", json!([{"oid": FOO, "size": 3}, {"oid": FOO, "size": 4}])).await;
    assert!(
        found[0]["actions"]["download"]["href"].is_string() && found[1]["error"]["code"] == 422,
        "{found:?}"
    );
    let told = store.app.get("/api/v1/repositories/app").await.expect(200).json();
    assert_eq!(told["name"], "app");
    assert_eq!(store.half_made(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_what_it_says_leaves_nothing() {
    let store = Store::start().await;
    for (oid, content) in [(FOO, "bar"), (FOO, "fooo"), (FOO, "")] {
        let refused = store.put(oid, content).await.expect(422);
        assert_eq!(refused.header("content-type"), Some("application/vnd.git-lfs+json"));
        assert!(refused.json()["message"].as_str().unwrap().contains("SHA-256"), "{}", refused.text());
        store.get(oid).await.expect(404);
    }
    for bad in ["..%2f..%2fconfig", &FOO[..63], &FOO.to_uppercase()] {
        store.put(bad, "foo").await.expect(422);
        store.get(bad).await.expect(422);
    }
    let large = store.batch("upload", json!([{"oid": FOO, "size": 3_000_000_000_u64}])).await;
    assert!(large[0]["error"]["code"] == 413 && large[0]["actions"].is_null(), "{large:?}");
    assert_eq!(store.half_made(), 0);
    assert!(!store.bare().await.join("lfs").exists());
    let batch = format!("{}/batch", store.path);
    let many: Vec<_> = (0..1001).map(|at| json!({"oid": format!("{at:064x}"), "size": 1})).collect();
    for (body, status) in [
        (json!({"operation": "download", "objects": many}), 413),
        (json!({"operation": "delete", "objects": []}), 422),
        (json!({"operation": "download", "objects": [{"oid": "x", "size": 1}]}), 422),
        (json!({"operation": "download", "objects": [], "transfers": ["tus"]}), 422),
        (json!({"operation": "download", "objects": [], "hash_algo": "sha512"}), 422),
    ] {
        store.app.post(&batch, body).await.expect(status);
    }
    // Locks are not supported, and Git LFS gets that answer in its own format.
    let locks = store.path.replace("/objects", "/locks/verify");
    store.app.post(&locks, json!({})).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_their_projects_and_readers_bring_none() {
    let mut store = Store::start().await;
    store.put(FOO, "foo").await.expect(200);
    let (object, batch) = (format!("{}/{FOO}", store.path), format!("{}/batch", store.path));
    let wanted = |operation: &str| json!({"operation": operation, "objects": [{"oid": FOO, "size": 3}]});
    let app = &store.app;
    let other = app.other_key.clone();
    app.as_key(&other, Method::GET, &object, Value::Null).await.expect(404);
    app.as_key(&other, Method::PUT, &object, Value::Null).await.expect(404);
    app.as_key(&other, Method::POST, &batch, wanted("download")).await.expect(404);
    let nobody = app.as_key("e2b_0000", Method::POST, &batch, wanted("download")).await.expect(401);
    assert!(nobody.header("www-authenticate").is_some_and(|challenge| challenge.starts_with("Basic")));
    let reads = app.post("/api/v1/keys", json!({"name": "r", "role": "read"})).await.expect(201).json();
    let reads = reads["key"].as_str().unwrap();
    app.as_key(reads, Method::GET, &object, Value::Null).await.expect(200);
    app.as_key(reads, Method::POST, &batch, wanted("download")).await.expect(200);
    app.as_key(reads, Method::POST, &batch, wanted("upload")).await.expect(403);
    app.as_key(reads, Method::PUT, &object.replace(FOO, BAR), json!("x")).await.expect(403);

    // Objects survive a restart, incomplete ones do not; deleting the repository deletes them.
    let half = store.shelf().join(".coming-x.lfs");
    store.app.restart(async |_| std::fs::write(&half, "fo").unwrap()).await;
    assert_eq!((store.half_made(), store.get(FOO).await.expect(200).body.len()), (0, 3));
    let bare = store.bare().await;
    assert!(bare.join("lfs/objects").exists());
    store.app.delete("/api/v1/repositories/app").await;
    assert!(!bare.exists());
    store.put(FOO, "foo").await.expect(404);
    assert!(!bare.exists(), "an upload brings no repository back");
}
