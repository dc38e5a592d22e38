//! Commands, files and processes of a sandbox, through our own API.

use bytes::Bytes;
use coffer_wire::envd::process::process_selector::Selector;
use http::Method;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::app::{Answer, TestApp};

async fn sandbox(app: &TestApp) -> (String, String) {
    let id = app.create(json!({})).await;
    let path = format!("/api/v1/sandboxes/{id}");
    (id, path)
}

async fn keyed(app: &TestApp, path: &str, key: &str, body: &Value) -> Answer {
    let request = app.request(Method::POST, path).header("idempotency-key", key);
    app.send(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
}

#[tokio::test]
async fn a_command_is_run_recorded_and_answered() {
    let app = TestApp::start().await;
    let (id, path) = sandbox(&app).await;
    let guest = app.engine.agentd(id.parse().unwrap());
    let body = json!({"command": "echo hello", "cwd": "/tmp", "env": {"A": "b"}, "user": "root"});
    let ran = app.post(&format!("{path}/exec"), body).await.expect(200).json();
    assert_eq!(
        (&ran["stdout"], &ran["stderr"], &ran["exit_code"]),
        (&json!("hello\n"), &json!(""), &json!(0))
    );
    assert_eq!((&ran["timed_out"], &ran["pid"]), (&json!(false), &json!(77)));
    let execution = ran["execution_id"].as_str().unwrap();
    let kept = app.store.execution(&app.scope().await, execution.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((kept.command.as_str(), kept.user.as_deref()), ("echo hello", Some("root")));
    {
        let starts = guest.guest().starts.lock().unwrap();
        let (start, user) = &starts[0];
        let process = start.process.as_ref().unwrap();
        assert_eq!(process.cmd, "/bin/bash");
        assert_eq!(process.args, ["-l", "-c", "echo hello"]);
        assert_eq!((start.tag.as_deref(), process.cwd.as_deref()), (Some(execution), Some("/tmp")));
        assert_eq!((process.envs["A"].as_str(), user.as_deref()), ("b", Some("Basic cm9vdDo=")));
    }
    let failed = app.post(&format!("{path}/execute"), json!({"command": ["fail", "bad luck"]})).await;
    let failed = failed.expect(200).json();
    assert_eq!(
        (&failed["exit_code"], &failed["stderr_bytes"]),
        (&json!(0), &json!(0)),
        "the last word decides"
    );
    let failed =
        app.post(&format!("{path}/exec"), json!({"command": "fail bad luck"})).await.expect(200).json();
    assert_eq!((&failed["exit_code"], &failed["stderr"]), (&json!(3), &json!("bad luck")));
    app.post(&format!("{path}/exec"), json!({"command": "cat", "stdin": "given"})).await.expect(200);
    assert_eq!(guest.guest().starts.lock().unwrap().last().unwrap().0.stdin, Some(true));
    let mut stdin = guest.guest().stdin.subscribe();
    let given = stdin.wait_for(|data| !data.is_empty());
    let given = tokio::time::timeout(std::time::Duration::from_secs(20), given).await.expect("its input");
    assert_eq!(&given.unwrap()[..], b"given");
}

#[tokio::test]
async fn output_is_cut_and_time_is_up() {
    let app = TestApp::start().await;
    let (id, path) = sandbox(&app).await;
    let exec = format!("{path}/exec");
    let much = app.post(&exec, json!({"command": "flood 3145728"})).await.expect(200).json();
    assert_eq!(much["stdout"].as_str().unwrap().len(), 1 << 20);
    assert_eq!((&much["stdout_truncated"], &much["stdout_bytes"]), (&json!(true), &json!(3 << 20)));
    let little =
        app.post(&exec, json!({"command": "flood 2048", "max_output_bytes": 10})).await.expect(200).json();
    assert_eq!((&little["stdout"], &little["stdout_truncated"]), (&json!("xxxxxxxxxx"), &json!(true)));

    let guest = app.engine.agentd(id.parse().unwrap());
    let buried = std::sync::atomic::AtomicBool::new(false);
    let hang = async {
        let late = app.post(&exec, json!({"command": "hang", "timeout_s": 1})).await;
        assert!(buried.load(std::sync::atomic::Ordering::SeqCst), "the process was not gone yet");
        late
    };
    let bury = async {
        // The server looks for it, finds it, and has to look again.
        let mut seen = guest.guest().seen.subscribe();
        let seen =
            tokio::time::timeout(std::time::Duration::from_secs(20), seen.wait_for(|seen| *seen)).await;
        seen.expect("a look in time").expect("the guest is there");
        buried.store(true, std::sync::atomic::Ordering::SeqCst);
        guest.guest().bury();
    };
    let (late, ()) = tokio::join!(hang, bury);
    let late = late.expect(200).json();
    assert_eq!((&late["timed_out"], &late["exit_code"]), (&json!(true), &Value::Null));
    assert!(late["duration_ms"].as_i64().unwrap() >= 1000, "{late}");
}

#[tokio::test]
async fn a_command_in_the_background_is_accepted_and_can_be_killed() {
    let app = TestApp::start().await;
    let (id, path) = sandbox(&app).await;
    let begun =
        app.post(&format!("{path}/exec"), json!({"command": "echo x", "background": true})).await.expect(202);
    let execution = begun.json()["execution_id"].as_str().unwrap().to_string();
    assert_eq!(begun.json()["pid"], 77);
    assert_eq!(begun.header("location"), Some(format!("/api/v1/executions/{execution}").as_str()));
    assert_eq!(app.get(&format!("{path}/processes")).await.expect(200).json()["items"], json!([]));
    app.delete(&format!("{path}/processes/77?signal=TERM")).await.expect(204);
    app.delete(&format!("{path}/processes/77?signal=HUP")).await.expect(422);
    app.delete(&format!("{path}/processes/404")).await.expect(404);
    app.delete(&format!("{path}/processes/x")).await.expect(404);
    let guest = app.engine.agentd(id.parse().unwrap());
    let signals = guest.guest().signals.lock().unwrap().clone();
    let sent: Vec<_> =
        signals.into_iter().map(|it| (it.process.unwrap().selector.unwrap(), it.signal)).collect();
    assert_eq!(sent, [(Selector::Pid(77), 15), (Selector::Pid(404), 9)]);
}

#[tokio::test]
async fn output_is_told_while_it_runs() {
    let app = TestApp::start().await;
    let (_, path) = sandbox(&app).await;
    let request = app.request(Method::POST, &format!("{path}/exec")).header("accept", "text/event-stream");
    let body = Full::new(Bytes::from(json!({"command": "echo héllo"}).to_string()));
    let told = app.send(request.body(body).unwrap()).await.expect(200);
    assert_eq!(told.header("content-type"), Some("text/event-stream"));
    let text = told.text();
    let kinds: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(kinds, ["start", "stdout", "end"]);
    assert!(text.contains(r#"{"data":"héllo\n"}"#) && text.contains(r#""exit_code":0"#), "{text}");
}

#[tokio::test]
async fn the_same_key_runs_one_command() {
    let app = TestApp::start().await;
    let (id, path) = sandbox(&app).await;
    let exec = format!("{path}/exec");
    let body = json!({"command": "echo once", "background": true});
    let first = keyed(&app, &exec, "key-1", &body).await.expect(202).json();
    // Its process is recorded only after the journal reports it, which this agentd's does not.
    let again = keyed(&app, &exec, "key-1", &body).await;
    assert!(matches!(again.status, 202 | 409), "{}", again.text());
    assert!(again.text().contains(first["execution_id"].as_str().unwrap()), "{}", again.text());
    keyed(&app, &exec, "key-1", &json!({"command": "echo twice"})).await.expect(422);
    keyed(&app, &exec, "KEY", &body).await.expect(400);
    // One that failed to start may be tried again.
    let nowhere = json!({"command": "nowhere"});
    keyed(&app, &exec, "key-2", &nowhere).await.expect(422);
    keyed(&app, &exec, "key-2", &nowhere).await.expect(422);
    let guest = app.engine.agentd(id.parse().unwrap());
    assert_eq!(guest.guest().starts.lock().unwrap().len(), 3, "one, and two that failed");
    let ended = app.events("execution.ended").await;
    assert_eq!(ended.len(), 2, "{ended:?}");
}

#[tokio::test]
async fn wrong_orders_are_refused_with_their_codes() {
    let app = TestApp::start().await;
    let (id, path) = sandbox(&app).await;
    let exec = format!("{path}/exec");
    for (body, status) in [
        (json!({"command": ""}), 200),
        (json!({"command": []}), 422),
        (json!({"command": [""]}), 422),
        (json!({"command": 5}), 422),
        (json!({}), 422),
        (json!({"command": "x", "more": 1}), 422),
        (json!({"command": "a\u{0}b"}), 422),
        (json!({"command": "x", "timeout_s": 0}), 422),
        (json!({"command": "x", "timeout_s": 86401}), 422),
        (json!({"command": "x", "max_output_bytes": -1}), 422),
        (json!({"command": "x", "user": "a:b"}), 422),
        (json!({"command": "x", "env": {"A=B": "c"}}), 400),
    ] {
        app.post(&exec, body.clone()).await.expect(status);
    }
    app.post("/api/v1/sandboxes/nothing/exec", json!({"command": "x"})).await.expect(404);
    app.post(&format!("{path}/pause"), json!({})).await.expect(200);
    let paused = app.post(&exec, json!({"command": "x"})).await.expect(409).json();
    assert_eq!(paused["code"], "conflict");
    app.get(&format!("{path}/files")).await.expect(409);
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    app.post(&exec, json!({"command": "x"})).await.expect(404);
    let reader = app.post("/api/v1/keys", json!({"name": "r", "role": "read"})).await.expect(201).json();
    let reader = reader["key"].as_str().unwrap();
    app.as_key(reader, Method::POST, &exec, json!({"command": "x"})).await.expect(403);
}

/// `/proc/1/environ` has the secrets of a sandbox in it.
#[tokio::test]
async fn the_kernels_files_are_not_for_keys_that_only_read() {
    let app = TestApp::start().await;
    let (_, path) = sandbox(&app).await;
    let files = format!("{path}/files");
    let reader = app.post("/api/v1/keys", json!({"name": "r", "role": "read"})).await.expect(201).json();
    let reader = reader["key"].as_str().unwrap();
    for place in [
        "/proc/1/environ",
        "//proc/1/environ",
        "/proc/self/mem",
        "/sys/kernel/x",
        "/dev/fd/%2e%2e/environ",
        "/~/%2e%2e/%2e%2e/proc/1/environ",
        "?path=/proc",
        "?path=/home/../proc/1",
    ] {
        for method in [Method::GET, Method::HEAD] {
            if place.starts_with('?') && method == Method::HEAD {
                continue;
            }
            let answer = app.as_key(reader, method.clone(), &format!("{files}{place}"), Value::Null).await;
            assert_eq!(answer.status, 403, "{method} {place}: {}", answer.text());
        }
        assert_ne!(app.get(&format!("{files}{place}")).await.status, 403, "{place}");
    }
    assert_ne!(app.as_key(reader, Method::GET, &format!("{files}/home/proc"), Value::Null).await.status, 403);
}

#[tokio::test]
async fn files_are_written_read_listed_moved_and_removed() {
    let app = TestApp::start().await;
    let (id, path) = sandbox(&app).await;
    let files = format!("{path}/files");
    let put = async |name: &str, contents: &'static [u8]| {
        let request = app.request(Method::PUT, &format!("{files}{name}"));
        app.send(request.body(Full::new(Bytes::from_static(contents))).unwrap()).await
    };
    app.get(&format!("{files}/home/a%20b")).await.expect(404);
    app.post(&files, json!({"action": "mkdir", "path": "/home"})).await.expect(201);
    app.post(&files, json!({"action": "mkdir", "path": "/home"})).await.expect(409);
    let made = put("/home/a%20b", b"<html>").await.expect(201).json();
    assert_eq!(
        (&made["path"], &made["size_bytes"], &made["kind"]),
        (&json!("/home/a b"), &json!(6), &json!("file"))
    );
    put("/home/a%20b", b"123456").await.expect(200);
    put("/home", b"x").await.expect(409);
    let read = app.get(&format!("{files}/home/a%20b")).await.expect(200);
    assert_eq!((&read.body[..], read.header("x-content-type-options")), (&b"123456"[..], Some("nosniff")));
    assert!(read.header("content-security-policy").unwrap().starts_with("sandbox"));
    assert_eq!(read.header("set-cookie"), None, "only what a file needs comes out");
    let request = app.request(Method::GET, &format!("{files}//home/a%20b")).header("range", "bytes=2-3");
    let part = app.send(request.body(Full::default()).unwrap()).await.expect(206);
    assert_eq!((&part.body[..], part.header("content-range")), (&b"34"[..], Some("bytes 2-3/6")));
    let head = app
        .send(app.request(Method::HEAD, &format!("{files}/home/a%20b")).body(Full::default()).unwrap())
        .await;
    assert_eq!((head.status, head.body.len()), (200, 0));

    for name in ["/home/c", "/home/b", "/home/b-1"] {
        put(name, b"x").await.expect(201);
    }
    let mut names = Vec::new();
    let mut next = String::new();
    loop {
        let page = app.get(&format!("{files}?path=/home&limit=2{next}")).await.expect(200).json();
        names.extend(
            page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_string()),
        );
        match page["next"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(names, ["a b", "b", "b-1", "c"]);
    let directory = app.get(&format!("{files}/home")).await.expect(200).json();
    assert_eq!(directory["items"].as_array().unwrap().len(), 4);

    let moved =
        app.post(&files, json!({"action": "move", "path": "/home/c", "to": "/home/d"})).await.expect(200);
    assert_eq!(moved.json()["path"], "/home/d");
    app.post(&files, json!({"action": "move", "path": "/home/c", "to": "/home/d"})).await.expect(404);
    app.delete(&format!("{files}/home/d")).await.expect(204);
    app.delete(&format!("{files}/home/d")).await.expect(404);
    app.delete(&format!("{files}/home")).await.expect(409);
    app.delete(&format!("{files}/home?recursive=true")).await.expect(204);
    for (query, status) in
        [("?depth=0", 422), ("?limit=0", 422), ("?cursor=%21", 422), ("?user=a:b", 422), ("?depth=x", 422)]
    {
        app.get(&format!("{files}{query}")).await.expect(status);
    }
    app.post(&files, json!({"action": "mkdir", "path": ""})).await.expect(422);
    app.post(&files, json!({"action": "chmod", "path": "/x"})).await.expect(422);
    app.get(&format!("{files}/%ff")).await.expect(400);
    assert!(app.engine.agentd(id.parse().unwrap()).guest().files.lock().unwrap().is_empty());
}
