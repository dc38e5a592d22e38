//! Code in the code interpreters of sandboxes: run, streamed, recorded, bounded and permitted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coffer_core::settings::{ByteSize, Period};
use coffer_server::{CodeSettings, LimitSettings, PoolSettings, ServerConfig};
use coffer_store::{CodeOf, ExecutionRow, ExecutionState, NewExecution};
use coffer_testkit::interpreter::Interpreter;
use http::{Method, Request};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::app::TestApp;

/// A sandbox with an interpreter.
async fn sandbox(app: &TestApp) -> (String, String, Arc<Interpreter>) {
    let id = app.create(json!({})).await;
    let interpreter = app.engine.agentd(id.parse().unwrap()).interpreter().clone();
    interpreter.install();
    let path = format!("/api/v1/sandboxes/{id}/code");
    (id, path, interpreter)
}

async fn streamed(app: &TestApp, path: &str, body: Value) -> Vec<(String, Value)> {
    let request = app.request(Method::POST, path).header("accept", "text/event-stream");
    let told = app.send(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await.expect(200);
    assert_eq!(told.header("content-type"), Some("text/event-stream"));
    events(&told.text())
}

fn events(text: &str) -> Vec<(String, Value)> {
    let messages = text.split("\n\n").filter(|message| message.starts_with("event: "));
    let event = |message: &str| {
        let (name, data) = message.split_once('\n').unwrap();
        let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        (name.strip_prefix("event: ").unwrap().to_string(), data)
    };
    messages.map(event).collect()
}

async fn execution(app: &TestApp, id: &Value) -> Value {
    app.get(&format!("/api/v1/executions/{}", id.as_str().unwrap())).await.expect(200).json()
}

#[tokio::test]
async fn code_is_run_recorded_and_answered() {
    let app = TestApp::start().await;
    let (id, path, interpreter) = sandbox(&app).await;
    let body = json!({"code": "show 2", "env": {"A": "b"}, "timeout_s": 9});
    let ran = app.post(&path, body).await.expect(200).json();
    assert_eq!(
        (&ran["stdout"], &ran["stderr"], &ran["error"]),
        (&json!("before\nafter\n"), &json!(""), &Value::Null)
    );
    assert_eq!((&ran["language"], &ran["execution_count"]), (&json!("python"), &json!(7)));
    assert_eq!(
        (&ran["truncated"], &ran["timed_out"], &ran["artifacts"]),
        (&json!(false), &json!(false), &json!([]))
    );
    let figure = &ran["results"][0];
    assert_eq!((&figure["png"], &figure["is_main_result"]), (&json!("aGVs\nbG8="), &json!(false)));
    assert_eq!(figure["extra"], json!({"application/x-own": {"b": 1}}));
    assert_eq!(
        ran["results"][1],
        json!({"text": "2", "extra": {}, "is_main_result": true}),
        "absent forms are left out"
    );
    let token = app.row(&id).await.access_token.unwrap().reveal().to_string();
    let order = interpreter.executed.lock().unwrap()[0].clone();
    assert_eq!((&order["language"], &order["env_vars"]), (&json!("python"), &json!({"A": "b"})));
    assert_eq!(order["token"], json!(token), "by which the interpreter gets the sandbox's variables");
    let kept = execution(&app, &ran["execution_id"]).await;
    assert_eq!(
        (&kept["command"], &kept["state"], &kept["status"]),
        (&json!("show 2"), &json!("exited"), &json!("ok"))
    );
    assert_eq!(
        (&kept["language"], &kept["exit_code"], &kept["source"]),
        (&json!("python"), &json!(0), &json!("api"))
    );
    assert!(kept["actor"].is_string() && kept["ended_at"].is_string(), "{kept}");
    assert_eq!(kept["output_bytes"], 13);
    let output = format!("/api/v1/executions/{}/output?raw=true", ran["execution_id"].as_str().unwrap());
    assert_eq!(app.get(&output).await.expect(200).text(), "before\nafter\n");
    let log = app.get(&format!("/api/v1/sandboxes/{id}/logs")).await.expect(200).text();
    for line in ["started: show 2", "before", "after", "ended: ok"] {
        assert!(log.contains(line), "{line} in {log}");
    }
    let started = app.events("execution.started").await;
    assert_eq!((&started[0]["command"], &started[0]["language"]), (&json!("show 2"), &json!("python")));
    assert_eq!(app.events("execution.ended").await[0]["exit_code"], 0);
    let audit = app.get("/api/v1/audit").await.expect(200).text();
    assert!(audit.contains("POST /api/v1/sandboxes/{id}/code"), "{audit}");
}

#[tokio::test]
async fn what_code_does_is_told_as_it_happens() {
    let app = TestApp::start().await;
    let (_, path, _) = sandbox(&app).await;
    let told = streamed(&app, &path, json!({"code": "show 2"})).await;
    let kinds: Vec<&str> = told.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["start", "stdout", "result", "stdout", "result", "end"]);
    assert_eq!((&told[0].1["language"], &told[0].1["context_id"]), (&json!("python"), &Value::Null));
    assert_eq!(told[1].1, json!({"data": "before\n"}));
    let end = &told[5].1;
    assert_eq!(
        (&end["failed"], &end["results"], &end["execution_count"]),
        (&json!(false), &json!(2), &json!(7))
    );
    assert_eq!(end["execution_id"], told[0].1["execution_id"]);

    let told = streamed(&app, &path, json!({"code": "raise by zero"})).await;
    let error = json!({"name": "ZeroDivisionError", "value": "by zero", "traceback": "line 1\nline 2"});
    assert_eq!((told[1].0.as_str(), &told[1].1), ("error", &error));
    assert_eq!(told[2].1["failed"], true);
    let kept = execution(&app, &told[0].1["execution_id"]).await;
    assert_eq!(
        (&kept["exit_code"], &kept["status"]),
        (&json!(1), &json!("error: ZeroDivisionError: by zero"))
    );

    // Its interpreter stops in the middle.
    let told = streamed(&app, &path, json!({"code": "die"})).await;
    let last = told.last().unwrap();
    assert_eq!((last.0.as_str(), &last.1["code"]), ("failed", &json!("unavailable")));
    let kept = execution(&app, &told[0].1["execution_id"]).await;
    assert_eq!((&kept["state"], &kept["exit_code"]), (&json!("lost"), &Value::Null));
    assert_eq!(kept["output_bytes"], 11, "what it printed before is kept");
}

#[tokio::test]
async fn hostile_answers_are_bounded_and_said() {
    let app = TestApp::start().await;
    let (_, path, _) = sandbox(&app).await;
    // 64 lines of 64 KiB.
    let much =
        app.post(&path, json!({"code": "flood 64", "max_output_bytes": 100_000})).await.expect(200).json();
    assert_eq!(much["stdout"].as_str().unwrap().len(), 100_000);
    assert_eq!((&much["stdout_bytes"], &much["truncated"]), (&json!(4 << 20), &json!(true)));
    assert_eq!(much["dropped_bytes"], (4 << 20) - 100_000);
    let kept = execution(&app, &much["execution_id"]).await;
    assert_eq!(kept["output_bytes"], 4 << 20, "what the answer lacks is stored");
    let none = app.post(&path, json!({"code": "print x", "max_output_bytes": 0})).await.expect(200).json();
    assert_eq!((&none["stdout"], &none["dropped_bytes"]), (&json!(""), &json!(1)));
    for code in ["long", "deep"] {
        let ran = app.post(&path, json!({"code": code})).await.expect(200).json();
        assert_eq!((&ran["results"], &ran["truncated"]), (&json!([]), &json!(true)), "{code}");
        assert!(ran["dropped_bytes"].as_u64().unwrap() > 100_000, "{code}");
    }
    app.post(&path, json!({"code": "nonsense"})).await.expect(503);
}

#[tokio::test]
async fn time_runs_out_and_a_client_that_leaves_interrupts() {
    let app = TestApp::start().await;
    let (_, path, interpreter) = sandbox(&app).await;
    let late = app.post(&path, json!({"code": "hang", "timeout_s": 1})).await.expect(200).json();
    assert_eq!(
        (&late["timed_out"], &late["stdout"], &late["error"]),
        (&json!(true), &json!("hanging\n"), &Value::Null)
    );
    interpreter.was_interrupted(1).await;
    let kept = execution(&app, &late["execution_id"]).await;
    assert_eq!(
        (&kept["state"], &kept["exit_code"], &kept["status"]),
        (&json!("exited"), &Value::Null, &json!("interrupted after 1 s, its timeout"))
    );
    // A client that disconnects, with and without a stream.
    for (times, accept) in [(2, "application/json"), (3, "text/event-stream")] {
        let request = app.request(Method::POST, &path).header("accept", accept);
        let request = request.body(Full::new(Bytes::from(json!({"code": "hang"}).to_string()))).unwrap();
        let stream = tokio::net::TcpStream::connect(app.address()).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let sending = tokio::spawn(async move { sender.send_request(request).await.map(drop) });
        for _ in 0..1000 {
            if interpreter.executed.lock().unwrap().len() == times {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        sending.abort();
        connection.abort();
        interpreter.was_interrupted(times).await;
    }
    for _ in 0..1000 {
        if app.events("execution.ended").await.len() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let ended = app.events("execution.ended").await;
    assert_eq!(ended.len(), 3);
    assert!(ended[1..].iter().all(|end| end["status"] == "interrupted: its client left"), "{ended:?}");
}

#[tokio::test]
async fn a_sandbox_without_an_interpreter_is_told_apart() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let path = format!("/api/v1/sandboxes/{id}/code");
    let contexts = format!("{path}/contexts");
    for answer in [
        app.post(&path, json!({"code": "1"})).await,
        app.get(&contexts).await,
        app.post(&contexts, json!({})).await,
        app.delete(&format!("{contexts}/x")).await,
    ] {
        let refused = answer.expect(409).json();
        assert_eq!(refused["code"], "code_interpreter_missing");
        assert!(refused["hint"].as_str().unwrap().contains("coffer template build code-interpreter-v1"));
    }
    assert!(app.events("execution.started").await.is_empty(), "nothing was recorded");
    app.post(&format!("/api/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);
    let paused = app.post(&path, json!({"code": "1"})).await.expect(409).json();
    assert_eq!((&paused["code"], &paused["message"]), (&json!("conflict"), &json!("the sandbox is paused")));
    app.get(&contexts).await.expect(409);
}

#[tokio::test]
async fn wrong_orders_are_refused_with_their_codes() {
    let code = CodeSettings {
        longest_timeout: Period::secs(60),
        most_output: ByteSize::mib(1),
        ..CodeSettings::default()
    };
    let lifetime = crate::app::policy();
    let app = TestApp::configured(ServerConfig { lifetime, code, ..ServerConfig::default() }).await;
    let (id, path, interpreter) = sandbox(&app).await;
    for (body, status) in [
        (json!({}), 422),
        (json!({"code": ""}), 422),
        (json!({"code": 5}), 422),
        (json!({"code": "a\u{0}b"}), 422),
        (json!({"code": "x", "more": 1}), 422),
        (json!({"code": "x", "language": "cobol"}), 422),
        (json!({"code": "x", "language": "Python"}), 422),
        (json!({"code": "x", "language": "python", "context_id": "default-python"}), 422),
        (json!({"code": "x", "context_id": "none"}), 404),
        (json!({"code": "x", "context_id": "a/b"}), 404),
        (json!({"code": "x", "context_id": "y".repeat(65)}), 404),
        (json!({"code": "x", "timeout_s": 0}), 422),
        (json!({"code": "x", "timeout_s": 61}), 422),
        (json!({"code": "x", "max_output_bytes": -1}), 422),
        (json!({"code": "x", "max_output_bytes": (1 << 20) + 1}), 422),
        (json!({"code": "x", "env": {"A=B": "c"}}), 400),
        (json!({"code": "missing", "language": "r"}), 422),
    ] {
        assert_eq!(app.post(&path, body.clone()).await.expect(status).status, status, "{body}");
    }
    assert_eq!(interpreter.executed.lock().unwrap().len(), 1, "only the last reached it");
    let failed = &app.events("execution.ended").await[0];
    assert_eq!((&failed["state"], &failed["exit_code"]), (&json!("failed"), &Value::Null));
    app.post(&format!("{path}/contexts"), json!({"cwd": ""})).await.expect(422);
    app.post(&format!("{path}/contexts"), json!({"language": "perl"})).await.expect(422);
    app.get(&format!("{path}/notebook?language=perl")).await.expect(422);
    app.get(&format!("{path}/notebook?more=1")).await.expect(400);
    let reader = app.post("/api/v1/keys", json!({"name": "r", "role": "read"})).await.expect(201).json();
    let reader = reader["key"].as_str().unwrap();
    app.as_key(reader, Method::POST, &path, json!({"code": "x"})).await.expect(403);
    app.as_key(reader, Method::GET, &format!("{path}/contexts"), Value::Null).await.expect(200);
    app.as_key(reader, Method::POST, &format!("{path}/contexts"), json!({})).await.expect(403);
    app.as_key(reader, Method::GET, &format!("{path}/notebook"), Value::Null).await.expect(200);
    app.as_key(&app.other_key, Method::GET, &format!("{path}/notebook"), Value::Null).await.expect(404);
    app.as_key(&app.other_key, Method::POST, &path, json!({"code": "x"})).await.expect(404);
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    app.post(&path, json!({"code": "x"})).await.expect(404);
    app.get(&format!("{path}/notebook")).await.expect(200);
}

#[tokio::test]
async fn contexts_are_made_used_restarted_and_removed() {
    let app = TestApp::start().await;
    let (_, path, interpreter) = sandbox(&app).await;
    let contexts = format!("{path}/contexts");
    let made = app.post(&contexts, json!({"language": "ts", "cwd": "/tmp"})).await.expect(201).json();
    assert_eq!(made, json!({"id": "context-1", "language": "typescript", "cwd": "/tmp"}));
    assert_eq!(app.get(&contexts).await.expect(200).json()["items"].as_array().unwrap().len(), 2);
    let ran = app.post(&path, json!({"code": "1", "context_id": "context-1"})).await.expect(200).json();
    assert_eq!((&ran["language"], &ran["context_id"]), (&json!("typescript"), &json!("context-1")));
    let order = interpreter.executed.lock().unwrap()[0].clone();
    assert_eq!((&order["context_id"], &order["language"]), (&json!("context-1"), &Value::Null));
    let kept = execution(&app, &ran["execution_id"]).await;
    assert_eq!((&kept["language"], &kept["context_id"]), (&json!("typescript"), &json!("context-1")));
    assert_eq!(app.post_empty(&format!("{contexts}/context-1/restart")).await.status, 204);
    assert_eq!(app.delete(&format!("{contexts}/context-1")).await.status, 204);
    for id in ["context-1", "..", "a%2Fb"] {
        app.post_empty(&format!("{contexts}/{id}/restart")).await.expect(404);
    }
    app.delete(&format!("{contexts}/context-1")).await.expect(404);
    for _ in 0..3 {
        app.post_empty(&contexts).await.expect(201);
    }
    let full = app.post(&contexts, json!({})).await.expect(409).json();
    assert_eq!(full["code"], "conflict");
}

/// Code can start any program, so a policy that does not name code forbids it, on every way in.
#[tokio::test]
async fn a_command_policy_is_not_evaded_by_code() {
    let app = TestApp::start().await;
    let (id, path, interpreter) = sandbox(&app).await;
    let token = app.row(&id).await.access_token.unwrap().reveal().to_string();
    let by_sdk = async |path: &str, token: &str| {
        let request = Request::post(path)
            .header("host", app.address().to_string())
            .header("e2b-sandbox-id", id.as_str())
            .header("e2b-sandbox-port", "49999")
            .header("x-access-token", token)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(json!({"code": "1"}).to_string())));
        app.send(request.unwrap()).await.status
    };
    assert_eq!(by_sdk("/execute", &token).await, 200, "without a policy everything may run");
    app.post(&path, json!({"code": "1"})).await.expect(200);
    let rule = |effect: &str, pattern: &str| json!({"effect": effect, "pattern": pattern});
    let policies = [
        (json!({"default": "allow", "rules": [rule("deny", "curl")]}), [403, 403], 403),
        (json!({"default": "deny", "rules": [rule("allow", "**")]}), [403, 403], 403),
        (json!({"default": "deny", "rules": [rule("allow", "code:python")]}), [200, 403], 403),
        (
            json!({"default": "allow", "rules": [rule("deny", "code:bash"), rule("allow", "code:*")]}),
            [200, 403],
            403,
        ),
        (json!({"default": "deny", "rules": [rule("allow", "code:*")]}), [200, 200], 200),
    ];
    for (policy, expected, sdk) in policies {
        app.put("/api/v1/policy", policy.clone()).await.expect(200);
        for (language, status) in ["python", "bash"].into_iter().zip(expected) {
            let answer = app.post(&path, json!({"code": "1", "language": language})).await;
            assert_eq!(answer.status, status, "{policy} {language}");
            if status == 403 {
                let refused = answer.json();
                assert_eq!(refused["code"], "command_refused");
                assert!(refused["hint"].as_str().unwrap().contains(&format!("code:{language}")), "{refused}");
            }
        }
        for path in ["/execute", "//execute", "/execute/"] {
            assert_eq!(by_sdk(path, &token).await, sdk, "{policy}");
        }
    }
    assert_eq!(interpreter.executed.lock().unwrap().len(), 2 + 1 + 1 + 2 + 3);
    let refused = app.events("command.refused").await;
    assert!(
        refused.iter().any(|event| event["command"] == "code:bash" && event["source"] == "api"),
        "{refused:?}"
    );
    assert!(refused.iter().any(|event| event["source"] == "e2b"), "{refused:?}");
    app.put("/api/v1/policy", json!({"default": "deny"})).await.expect(200);
    let before = app.events("command.refused").await.len();
    assert_eq!(by_sdk("/execute", "wrong").await, 403);
    assert_eq!(app.events("command.refused").await.len(), before, "strangers fill no log");
    app.put("/api/v1/policy", json!({"default": "deny", "rules": [rule("allow", "code:*")]}))
        .await
        .expect(200);
    let check = app.post("/api/v1/policy/check", json!({"command": ["code:r"]})).await.expect(200).json();
    assert_eq!(check["allowed"], true);
}

#[tokio::test]
async fn secrets_are_redacted_in_code_output_and_results() {
    let app = TestApp::start().await;
    app.put("/api/v1/secrets/TOKEN", json!({"value": "very-\"secret\"-value"})).await;
    let (id, path, _) = sandbox(&app).await;
    let key = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let ran = app.post(&path, json!({"code": format!("print {key}")})).await.expect(200).json();
    assert_eq!(ran["stdout"], key, "the caller sees what the code printed");
    app.post(&path, json!({"code": "show very-\"secret\"-value"})).await.expect(200);
    app.post(&path, json!({"code": format!("raise {key}")})).await.expect(200);
    let notebook = app.get(&format!("{path}/notebook")).await.expect(200).text();
    let (log, all) = (
        app.get(&format!("/api/v1/sandboxes/{id}/logs")).await.text(),
        app.get("/api/v1/executions").await.text(),
    );
    let events =
        format!("{:?}{:?}", app.events("execution.started").await, app.events("execution.ended").await);
    for text in [notebook, log, all, events] {
        assert!(!text.contains(key) && !text.contains("\\\"secret\\\"-value"), "{text}");
        assert!(text.contains("[redacted]"), "{text}");
    }
}

#[tokio::test]
async fn results_become_artifacts_if_asked() {
    let app = TestApp::start().await;
    let (id, path, _) = sandbox(&app).await;
    let ran = app.post(&path, json!({"code": "show 2", "artifacts": true})).await.expect(200).json();
    let kept = ran["artifacts"].as_array().unwrap();
    let kinds: Vec<_> = kept.iter().map(|kept| (&kept["content_type"], &kept["result"])).collect();
    let json_type = json!("application/json");
    assert_eq!(kinds, [(&json!("image/png"), &json!(0)), (&json_type, &json!(0)), (&json_type, &json!(0))]);
    assert_eq!(ran["artifacts_error"], Value::Null);
    let contents = async |number: usize| {
        let id = kept[number]["id"].as_str().unwrap();
        app.get(&format!("/api/v1/artifacts/{id}/content")).await.expect(200).text()
    };
    assert_eq!(contents(0).await, "hello");
    assert_eq!(contents(1).await, r#"{"type":"bar","z":1,"a":[2]}"#, "as it was written");
    let listed = app.get(&format!("/api/v1/artifacts?sandbox_id={id}")).await.expect(200).json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 3);
    let told = streamed(&app, &path, json!({"code": "show 2", "artifacts": true})).await;
    assert_eq!(told.last().unwrap().1["artifacts"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn code_is_exported_as_a_notebook() {
    let app = TestApp::start().await;
    let (id, path, _) = sandbox(&app).await;
    let long = format!("print {}", "x".repeat(100_000));
    for body in [
        json!({"code": "show 2"}),
        json!({"code": "raise by zero"}),
        json!({"code": "warn careful", "language": "bash"}),
        json!({"code": long}),
    ] {
        app.post(&path, body).await.expect(200);
    }
    let answer = app.get(&format!("{path}/notebook")).await.expect(200);
    assert_eq!(answer.header("content-type"), Some("application/x-ipynb+json"));
    let notebook = answer.json();
    assert_eq!((&notebook["nbformat"], &notebook["nbformat_minor"]), (&json!(4), &json!(5)));
    assert_eq!(notebook["metadata"]["kernelspec"]["name"], "python3");
    assert_eq!(notebook["metadata"]["coffer"], json!({"sandbox": id, "truncated": false, "pruned": false}));
    let cells = notebook["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    assert_eq!((&cells[0]["source"], &cells[0]["execution_count"]), (&json!("show 2"), &json!(7)));
    let outputs = cells[0]["outputs"].as_array().unwrap();
    let kinds: Vec<_> = outputs.iter().map(|output| output["output_type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["stream", "display_data", "stream", "execute_result"], "in their order");
    assert_eq!(outputs[1]["data"]["application/vnd.e2b.chart+json"]["type"], "bar");
    assert_eq!(outputs[1]["data"]["application/x-own"], "{\"b\":1}", "only types of JSON may have JSON");
    assert_eq!(
        (&outputs[3]["data"], &outputs[3]["execution_count"]),
        (&json!({"text/plain": "2"}), &json!(7))
    );
    assert_eq!(cells[1]["outputs"][0]["traceback"], json!(["line 1", "line 2"]));
    assert_eq!(
        (&cells[2]["outputs"][0]["name"], &cells[2]["metadata"]["coffer"]["language"]),
        (&json!("stderr"), &json!("bash"))
    );
    assert_eq!(cells[3]["source"], json!(long), "all of it, though a record is shorter");
    let bash = app.get(&format!("{path}/notebook?language=bash")).await.expect(200).json();
    assert_eq!(
        (bash["cells"].as_array().unwrap().len(), &bash["metadata"]["kernelspec"]["name"]),
        (1, &json!("bash"))
    );
}

#[tokio::test]
async fn stored_results_are_bounded() {
    let code = CodeSettings { most_kept: ByteSize::kib(1), ..CodeSettings::default() };
    let lifetime = crate::app::policy();
    let app = TestApp::configured(ServerConfig { lifetime, code, ..ServerConfig::default() }).await;
    let (_, path, _) = sandbox(&app).await;
    let ran = app.post(&path, json!({"code": format!("show {}", "z".repeat(700))})).await.expect(200).json();
    assert_eq!(ran["results"].as_array().unwrap().len(), 2, "the answer has them");
    let kept = execution(&app, &ran["execution_id"]).await;
    assert_eq!(kept["truncated"], true);
    assert!(kept["output_bytes_lost"].as_i64().unwrap() > 700, "{kept}");
    let notebook = app.get(&format!("{path}/notebook")).await.expect(200).json();
    let kinds: Vec<_> =
        notebook["cells"][0]["outputs"].as_array().unwrap().iter().map(|it| &it["output_type"]).collect();
    assert_eq!(kinds, ["stream", "display_data", "stream"].map(|it| json!(it)).iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn one_projects_code_leaves_room_for_others() {
    let pools = PoolSettings { code_calls: 2, ..PoolSettings::default() };
    let limits = LimitSettings { pools, ..LimitSettings::default() };
    let lifetime = crate::app::policy();
    let app =
        Arc::new(TestApp::configured(ServerConfig { lifetime, limits, ..ServerConfig::default() }).await);
    let (_, path, interpreter) = sandbox(&app).await;
    let hanging = {
        let (app, path) = (app.clone(), path.clone());
        tokio::spawn(async move { app.post(&path, json!({"code": "hang", "timeout_s": 20})).await.status })
    };
    for _ in 0..1000 {
        if interpreter.executed.lock().unwrap().len() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The project's share is one place of the two.
    let busy = app.post(&path, json!({"code": "1"})).await.expect(429).json();
    assert_eq!((&busy["code"], &busy["details"]["pool"]), (&json!("pool_busy"), &json!("code_calls")));
    hanging.abort();
}

/// What an earlier server left running is ended by its successor; what it finished stays.
#[tokio::test]
async fn code_whose_server_died_is_lost() {
    let mut app = TestApp::start().await;
    let (id, path, _) = sandbox(&app).await;
    let done = app.post(&path, json!({"code": "show 2"})).await.expect(200).json();
    let new = running("while True: pass");
    let lost = new.id;
    let (project, sandbox) = (app.scope().await.project(), id.parse().unwrap());
    // Recorded by a server that was killed.
    app.store.begin_execution(ExecutionRow::new(new, project, sandbox, None, 1)).await.unwrap();
    app.restart(async |_| ()).await;
    let scope = app.scope().await;
    for _ in 0..1000 {
        let row = app.store.execution(&scope, lost).await.unwrap().unwrap();
        if row.state != ExecutionState::Running {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let row = app.store.execution(&scope, lost).await.unwrap().unwrap();
    assert_eq!(
        (row.state, row.status.as_deref()),
        (ExecutionState::Lost, Some("the server stopped while it ran"))
    );
    assert_eq!(execution(&app, &done["execution_id"]).await["state"], "exited");
    let cells = app.get(&format!("{path}/notebook")).await.expect(200).json();
    assert_eq!(cells["cells"].as_array().unwrap().len(), 2, "both are in the notebook");
}

/// Code that runs, as a server recorded it.
fn running(command: &str) -> NewExecution {
    NewExecution {
        id: coffer_core::ExecutionId::generate(),
        actor: None,
        command: command.into(),
        cwd: None,
        user: None,
        source: coffer_core::ExecutionSource::Api,
        code: Some(CodeOf { language: "python".into(), context: None }),
    }
}

/// A process that carries the id of code as its tag does not become its process.
#[tokio::test]
async fn no_process_takes_the_place_of_code() {
    let app = TestApp::start().await;
    let (id, _, _) = sandbox(&app).await;
    let new = running("slow");
    let code = new.id;
    let row = ExecutionRow::new(new, app.scope().await.project(), id.parse().unwrap(), None, 1);
    app.store.begin_execution(row).await.unwrap();
    let agentd = app.engine.agentd(id.parse().unwrap());
    let (command, tag) = ("thief".to_string(), Some(code.to_string()));
    agentd.happen(9, coffer_wire::agentd::ProcessFact::Started { command, tag, cwd: None, user: None });
    app.visit(&id, "/health").await;
    for _ in 0..1000 {
        if app.events("execution.started").await.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let started = app.events("execution.started").await;
    assert_eq!(started[1]["command"], "thief");
    assert_ne!(started[1]["execution"], json!(code.to_string()));
    assert!(app.store.execution(&app.scope().await, code).await.unwrap().unwrap().process.is_none());
}
