//! Artifacts over HTTP: stored completely, found by their links, and harmless to open.

use std::time::Duration;

use bytes::Bytes;
use coffer_core::settings::ByteSize;
use coffer_server::{ArtifactSettings, ServerConfig};
use http::Method;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::app::{TestApp, policy};

async fn started(artifacts: ArtifactSettings) -> TestApp {
    TestApp::configured(ServerConfig { lifetime: policy(), artifacts, ..ServerConfig::default() }).await
}

async fn uploaded(app: &TestApp, query: &str, body: &'static str) -> crate::app::Answer {
    let request = app.request(Method::POST, &format!("/api/v1/artifacts/upload?{query}"));
    app.send(request.header("content-type", "text/html").body(Full::new(Bytes::from(body))).unwrap()).await
}

#[tokio::test]
async fn what_is_kept_comes_back_as_it_was_and_as_a_file_to_save() {
    let app = started(ArtifactSettings::default()).await;
    let task = app.post("/api/v1/tasks", json!({"title": "t", "context_id": "h-1"})).await.expect(201).json();
    let query = format!("name=%C3%A9%22%3Bx.html&kind=report&task_id={}", task["id"].as_str().unwrap());
    let made = uploaded(&app, &query, "<script>alert(1)</script>").await.expect(201).json();
    let about = (&made["name"], &made["kind"], &made["task_id"], &made["context_id"], &made["size_bytes"]);
    assert_eq!(about, (&json!("é\";x.html"), &json!("report"), &task["id"], &json!("h-1"), &json!(25)));
    let path = format!("/api/v1/artifacts/{}", made["id"].as_str().unwrap());
    let content = app.get(&format!("{path}/content")).await.expect(200);
    assert_eq!(content.text(), "<script>alert(1)</script>");
    assert_eq!(content.header("content-type"), Some("text/html"));
    assert_eq!(
        content.header("content-disposition"),
        Some("attachment; filename*=UTF-8''%C3%A9%22%3Bx%2Ehtml")
    );
    assert_eq!(content.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(content.header("content-security-policy"), Some("sandbox; default-src 'none'"));
    assert_eq!(content.header("etag").unwrap().trim_matches('"'), made["sha256"].as_str().unwrap());

    let finding = json!({"name": "f", "kind": "finding", "text": "it rains", "context_id": "h-1"});
    let finding = app.post("/api/v1/artifacts", finding).await.expect(201).json();
    let link = json!({"url": "https://example.com/pull/1", "context_id": "h-2"});
    let link = app.post("/api/v1/artifacts", link).await.expect(201).json();
    assert_eq!(
        (&link["kind"], &link["name"], &link["sha256"]),
        (&json!("link"), &json!("link"), &json!(null))
    );
    app.get(&format!("/api/v1/artifacts/{}/content", link["id"].as_str().unwrap())).await.expect(409);
    let listed = async |query: &str| {
        let page = app.get(&format!("/api/v1/artifacts?{query}")).await.expect(200).json();
        page["items"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(listed("").await, [link["id"].clone(), finding["id"].clone(), made["id"].clone()]);
    assert_eq!(listed("context_id=h-1").await, [finding["id"].clone(), made["id"].clone()]);
    assert_eq!(listed("context_id=h-1&kind=finding").await, [finding["id"].clone()]);
    assert_eq!(listed(&format!("task_id={}", task["id"].as_str().unwrap())).await, [made["id"].clone()]);
    let bytes = json!({"name": "b", "content_base64": "AP8="});
    let bytes = app.post("/api/v1/artifacts", bytes).await.expect(201).json();
    let content = app.get(&format!("/api/v1/artifacts/{}/content", bytes["id"].as_str().unwrap())).await;
    assert_eq!(
        (&content.body[..], content.header("content-type")),
        (&[0, 255][..], Some("application/octet-stream"))
    );

    for (method, path) in [
        (Method::GET, path.clone()),
        (Method::GET, format!("{path}/content")),
        (Method::DELETE, path.clone()),
    ] {
        app.as_key(&app.other_key, method, &path, Value::Null).await.expect(404);
    }
    app.delete(&path).await.expect(204);
    app.get(&path).await.expect(404);
    app.delete(&path).await.expect(404);
    let told = app.events("artifact.removed").await;
    assert_eq!(told.len(), 1);
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_leaves_nothing() {
    let small =
        ArtifactSettings { most_per_artifact: ByteSize::bytes(8), most_per_project: ByteSize::bytes(10) };
    let app = started(small).await;
    let refused = uploaded(&app, "name=a", "123456789").await.expect(413).json();
    assert_eq!(refused["code"], json!("payload_too_large"));
    uploaded(&app, "name=a", "12345678").await.expect(201);
    let refused = uploaded(&app, "name=a", "123").await.expect(429).json();
    assert_eq!((&refused["code"], &refused["details"]["used"]), (&json!("quota_exceeded"), &json!(8)));
    let kept = app.config.server_dir.join("artifacts");
    let files: usize = std::fs::read_dir(kept)
        .unwrap()
        .map(|project| std::fs::read_dir(project.unwrap().path()).unwrap().count())
        .sum();
    assert_eq!(files, 1, "nothing is left of what was refused");

    let good = json!({"name": "a", "text": "b"});
    for (change, field) in [
        (json!({"name": "../../etc/passwd"}), "name"),
        (json!({"name": ".."}), "name"),
        (json!({"name": "a\r\nset-cookie: x"}), "name"),
        (json!({"name": "x".repeat(256)}), "name"),
        (json!({"content_type": "text/html\r\nx: y"}), "content_type"),
        (json!({"content_type": "html"}), "content_type"),
        (json!({"kind": "odd"}), "kind"),
        (json!({"url": "https://example.com/"}), "exactly one"),
        (json!({"text": null, "url": "javascript:alert(1)"}), "url"),
        (json!({"text": null, "url": "https://u:p@example.com/"}), "url"),
        (json!({"text": null, "content_base64": "&"}), "content_base64"),
        (json!({"text": null, "path": "/etc/hostname"}), "sandbox_id"),
        (json!({"text": null, "path": "relative"}), "path"),
        (json!({"task_id": "01aaaaaaaaaaaaaaaaaaaaaaaa"}), "task_id"),
        (json!({"run_id": "01aaaaaaaaaaaaaaaaaaaaaaaa"}), "run_id"),
        (json!({"context_id": ""}), "context_id"),
    ] {
        let mut body = good.clone();
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let refused = app.post("/api/v1/artifacts", body).await.expect(422).json();
        assert!(refused["message"].as_str().unwrap().contains(field), "{change}: {refused}");
    }
    let absent = json!({"name": "a", "sandbox_id": "01aaaaaaaaaaaaaaaaaaaaaaaa", "path": "/x"});
    app.post("/api/v1/artifacts", absent).await.expect(404);
}

#[tokio::test]
async fn clients_that_send_slowly_hold_up_their_own_project_alone() {
    let app = started(ArtifactSettings::default()).await;
    let drafts = app.config.server_dir.join("artifacts").join(app.scope().await.project().to_string());
    let head = format!(
        "POST /api/v1/artifacts/upload?name=a HTTP/1.1\r\nhost: {}\r\nx-api-key: {}\r\ncontent-length: 9\r\n\r\nabc",
        app.address(),
        app.key
    );
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(app.address()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let begun = || std::fs::read_dir(&drafts).map_or(0, Iterator::count);
    for _ in 0..1000 {
        if begun() == slow.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(begun(), slow.len());
    let (path, new) = ("/api/v1/artifacts", json!({"name": "a", "text": "b"}));
    app.as_key(&app.other_key, Method::POST, path, new.clone()).await.expect(201);
    let refused = app.post(path, new.clone()).await.expect(429);
    assert_eq!((&refused.json()["code"], refused.header("retry-after")), (&json!("pool_busy"), Some("1")));
    // A finished upload makes room.
    slow.pop();
    app.post(path, new).await.expect(201);
}

#[tokio::test]
async fn contents_that_are_gone_are_said_to_be() {
    let mut app = started(ArtifactSettings::default()).await;
    let made = uploaded(&app, "name=a", "abc").await.expect(201).json();
    let path = format!("/api/v1/artifacts/{}/content", made["id"].as_str().unwrap());
    app.restart(async |_| ()).await;
    assert_eq!(app.get(&path).await.expect(200).text(), "abc");
    let project = app.scope().await.project().to_string();
    let file = app.config.server_dir.join("artifacts").join(project).join(made["id"].as_str().unwrap());
    std::fs::write(&file, "ab").unwrap();
    app.get(&path).await.expect(410);
    std::fs::remove_file(&file).unwrap();
    app.get(&path).await.expect(410);
}
