//! Repositories, Git LFS and artifacts share one quota, and a minimum of free disk space.

use bytes::Bytes;
use coffer_core::settings::ByteSize;
use coffer_server::{LimitSettings, QuotaSettings, ServerConfig};
use http::Method;
use http_body_util::Full;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::app::{Answer, TestApp};
use crate::forge::{Work, git};

async fn started(storage: ByteSize, min_free_disk: ByteSize) -> TestApp {
    let quotas = QuotaSettings { storage, ..QuotaSettings::default() };
    let limits = LimitSettings { quotas, min_free_disk, ..LimitSettings::default() };
    let lifetime = crate::app::policy();
    TestApp::configured(ServerConfig { lifetime, limits, ..ServerConfig::default() }).await
}

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}

async fn upload(app: &TestApp, key: &str, length: usize) -> Answer {
    let request = app.request(Method::POST, "/api/v1/artifacts/upload?name=a");
    let mut request = request.body(Full::new(Bytes::from(noise(length)))).unwrap();
    request.headers_mut().insert("x-api-key", key.parse().unwrap());
    app.send(request).await
}

async fn put(work: &Work, contents: &[u8]) -> Answer {
    let oid = hex::encode(Sha256::digest(contents));
    let place = work.url.splitn(4, '/').nth(3).unwrap();
    let request = work.app.request(Method::PUT, &format!("/{place}/info/lfs/objects/{oid}"));
    work.app.send(request.body(Full::new(Bytes::copy_from_slice(contents))).unwrap()).await
}

async fn used(app: &TestApp) -> Value {
    app.get("/api/v1/quotas").await.expect(200).json()["used"]["storage_mib"].clone()
}

/// Waits until reservations are released.
async fn until_used(app: &TestApp, expected: i64) {
    for _ in 0..500 {
        if used(app).await == json!(expected) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} MiB are in use, not {expected}", used(app).await);
}

fn expect_quota(refused: &Answer) {
    let refused = refused.json();
    let quota = (&refused["code"], &refused["details"]["quota"], &refused["details"]["limit"]);
    assert_eq!(quota, (&json!("quota_exceeded"), &json!("storage_mib"), &json!(4)), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_large_objects_and_artifacts_count_together() {
    let work = Work::on(started(ByteSize::mib(4), ByteSize::bytes(0)).await).await;
    let app = &work.app;
    let shown = app.get("/api/v1/quotas").await.expect(200).json();
    assert_eq!(shown["limits"]["storage_mib"], 4);
    upload(app, &app.key, 1 << 20).await.expect(201);
    put(&work, &noise(1 << 20)).await.expect(200);
    until_used(app, 3).await;
    expect_quota(&upload(app, &app.key, 3 << 20).await.expect(429));
    expect_quota(&put(&work, &noise(3 << 20)).await.expect(429));

    // A push that is too large is refused in git's own format, with the reason.
    std::fs::write(work.at("one").join("large"), noise(3 << 20)).unwrap();
    let clone = work.at("one");
    for args in [&["add", "--all"][..], &["commit", "--quiet", "--message", "large"]] {
        assert!(git(&clone, args).await.status.success());
    }
    let refused = git(&clone, &["push", "origin", "HEAD:refs/heads/large"]).await;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("quota `storage_mib` is 4"), "{told}");
    until_used(app, 3).await;

    // One that fits passes, and counts from then on.
    std::fs::write(work.at("one").join("large"), noise(1 << 20)).unwrap();
    for args in [&["add", "--all"][..], &["commit", "--quiet", "--amend", "--message", "less"]] {
        assert!(git(&clone, args).await.status.success());
    }
    let pushed = git(&clone, &["push", "origin", "HEAD:refs/heads/less"]).await;
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    until_used(app, 4).await;
    upload(app, &app.other_key, 3 << 20).await.expect(201);

    // With nothing left, git gets the reason before it sends anything.
    let artifacts = app.get("/api/v1/artifacts").await.expect(200).json();
    assert_eq!(artifacts["items"].as_array().unwrap().len(), 1);
    let left = (4 << 20) - (3 << 20) - 200_000;
    upload(app, &app.key, left).await.expect(201);
    let operator = app.store.create_operator_key(&app.store.operator(), "test").await.unwrap();
    let project = app.scope().await.project();
    let path = format!("/api/v1/projects/{project}/quotas");
    app.as_key(operator.reveal(), Method::PUT, &path, json!({"storage_mib": 1})).await.expect(200);
    let refused = git(&clone, &["push", "origin", "HEAD:refs/heads/again"]).await;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && told.contains("remote: the project's quota `storage_mib` is 1"),
        "{told}"
    );

    // Deleting frees space.
    app.as_key(operator.reveal(), Method::PUT, &path, json!({})).await.expect(200);
    app.delete(&work.path).await.expect(204);
    upload(app, &app.key, 1 << 20).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn below_the_floor_of_free_space_nothing_is_taken() {
    let mut app = started(ByteSize::bytes(0), ByteSize::bytes(0)).await;
    let made = app.post("/api/v1/repositories", json!({"name": "app"})).await.expect(201).json();
    let url = made["clone_url"].as_str().unwrap().to_string();
    app.stop().await;
    app.config.limits.min_free_disk = ByteSize::gib(1 << 30);
    app.restart(async |_| {}).await;
    let low = upload(&app, &app.key, 10).await.expect(507).json();
    assert_eq!(low["code"], "disk_low");
    assert!(low["hint"].as_str().unwrap().contains("limits.min_free_disk"), "{low}");
    let place = url.splitn(4, '/').nth(3).unwrap();
    let request =
        app.request(Method::PUT, &format!("/{place}/info/lfs/objects/{}", hex::encode(Sha256::digest("x"))));
    app.send(request.body(Full::new(Bytes::from_static(b"x"))).unwrap()).await.expect(507);
    let at = format!("http://any:{}@{}/{place}", app.key, app.address());
    let dir = tempfile::TempDir::new().unwrap();
    assert!(git(dir.path(), &["clone", "--quiet", &at, "one"]).await.status.success(), "reading goes on");
    let clone = dir.path().join("one");
    std::fs::write(clone.join("file"), "text").unwrap();
    for args in [&["add", "--all"][..], &["commit", "--quiet", "--message", "one"]] {
        assert!(git(&clone, args).await.status.success());
    }
    let refused = git(&clone, &["push", "origin", "HEAD:refs/heads/main"]).await;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("remote: the server's disk has"), "{told}");
}
