//! Limits of agents, and redaction of their values.

use coffer_core::{Limits, SandboxId};
use coffer_store::Quotas;
use coffer_wire::agentd::OutputStream;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::engine::Op;
use crate::output::{ended, execution, output, started, wrote};
use crate::tasks::{coder, hide_environment, task, until, working};

async fn allow(app: &TestApp, cpus: i64, memory_mib: i64) {
    let quotas = Quotas { cpus: Some(cpus), memory_mib: Some(memory_mib), ..Quotas::default() };
    let (operator, project) = (app.store.operator(), app.scope().await.project());
    assert!(app.store.set_quotas(&operator, project, None, quotas).await.unwrap().is_some());
}

fn agent(limits: &Value) -> Value {
    json!({"name": "coder", "definition": {"preset": "codex", "template": "base", "limits": limits}})
}

#[tokio::test]
async fn an_agents_limits_are_those_of_its_sandbox_and_within_the_quotas() {
    let app = TestApp::start().await;
    allow(&app, 4, 4096).await;
    for (limits, field, why) in [
        (json!({"cpu_count": 5}), "cpu_count", "quota `cpus` is 4"),
        (json!({"memory_mib": 4097}), "memory_mib", "quota `memory_mib` is 4096"),
        (json!({"cpu_count": 0}), "cpu_count", "between 1 and 1024"),
        (json!({"memory_mib": 63}), "memory_mib", "between 64 and"),
    ] {
        let refused = app.post("/api/v1/agents", agent(&limits)).await.expect(422).json();
        let message = refused["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("definition.limits.{field} ")), "{refused}");
        assert!(message.contains(why), "{refused}");
    }
    let none = app.get("/api/v1/agents").await.expect(200).json();
    assert_eq!(none["items"], json!([]), "what is refused is not made");

    let limits = json!({"cpu_count": 3, "memory_mib": 512});
    let made = app.post("/api/v1/agents", agent(&limits)).await.expect(201).json();
    let new = json!({"title": "Fix it", "repository": "local/none", "agent_id": made["id"]});
    let id = task(&app, new).await;
    let path = format!("/api/v1/tasks/{id}");
    app.post(&format!("{path}/start"), Value::Null).await.expect(202);
    let sandbox = app.engine.wait_for(Op::Create).await;
    let expected = Limits { cpu_count: 3, memory_mib: 512, ..Limits::default() };
    assert_eq!(app.engine.order(sandbox).limits, expected);
    assert_eq!(app.row(&sandbox.to_string()).await.limits, expected);
    let failed = until(&app, &id, |task| task["needs_attention"].is_object()).await;
    assert_eq!(failed["needs_attention"]["code"], "unknown_repository");

    // The quota was lowered since: an impossible size fails at once, and nothing is created.
    allow(&app, 2, 4096).await;
    app.post(&format!("{path}/start"), Value::Null).await.expect(202);
    let failed = until(&app, &id, |task| task["needs_attention"].is_object()).await;
    assert_eq!(failed["needs_attention"]["code"], "quota_exceeded");
    let message = failed["needs_attention"]["message"].as_str().unwrap();
    assert!(message.contains("quota `cpus` is 2") && message.contains("needs 3"), "{message}");
    let define = format!("/api/v1/agents/{}/definition", made["id"].as_str().unwrap());
    app.put(&define, agent(&limits)["definition"].clone()).await.expect(422);
    app.put(&define, json!({"preset": "codex", "template": "base", "limits": {"cpu_count": 2}}))
        .await
        .expect(200);
    assert_eq!(app.engine.asked().iter().filter(|(op, _)| *op == Op::Create).count(), 1);
    app.assert_empty().await;
}

/// Output of a program in the sandbox, as stored.
async fn told(app: &TestApp, sandbox: &str, pid: u32) -> String {
    let agentd = app.engine.agentd(sandbox.parse::<SandboxId>().unwrap());
    agentd.happen(pid, started("tell hush-hush", None));
    // In pieces, neither of which matches; and as escaped by agents that write JSON.
    agentd.happen(pid, wrote(OutputStream::Stdout, 0, "it is hush"));
    agentd.happen(pid, wrote(OutputStream::Stdout, 10, "-hush, \\\"quoted\\\" words in plain\n"));
    agentd.happen(pid, ended(0));
    app.visit(sandbox, "/health").await;
    let found = execution(app, sandbox, |one| one["pid"] == pid && one["state"] == "exited").await;
    let logs = app.get(&format!("/api/v1/sandboxes/{sandbox}/logs")).await.expect(200).text();
    format!("{} | {} | {logs}", found["command"], output(app, &found, "stream=stdout").await)
}

#[tokio::test]
async fn what_an_agent_was_given_is_not_in_the_log_of_its_sandbox() {
    let (mut app, shop) = working().await;
    let (own, other) = (app.create(json!({})).await, app.create(json!({})).await);
    *shop.sandbox.lock().unwrap() = Some(own.parse().unwrap());
    let agent = coder(&app).await;
    let path = format!("/api/v1/agents/{agent}/definition");
    app.put(&path, json!({"preset": "codex", "env": {"A": null, "B": "\"quoted\" words"}})).await.expect(200);
    hide_environment(&app, &agent).await;
    // What was hidden stays so as long as it is kept; what is given now is plain.
    let env = json!({"preset": "codex", "env": {"A": null, "B": null, "C": "in plain"}});
    let defined = app.put(&path, env).await.expect(200).json();
    assert_eq!(defined["definition"]["env"], json!({"A": null, "B": null, "C": "in plain"}));
    let id = task(&app, json!({"title": "Fix it", "repository": "local/house", "agent_id": agent})).await;
    app.post(&format!("/api/v1/tasks/{id}/start"), Value::Null).await.expect(202);
    until(&app, &id, |task| task["branch"].is_string()).await;
    // The next server knows it before it reads any output.
    app.restart(async |_| {}).await;
    let own = told(&app, &own, 71).await;
    assert!(
        own.contains("tell [redacted]") && own.contains("it is [redacted], [redacted] in plain\n"),
        "{own}"
    );
    assert!(!own.contains("hush") && !own.contains("quoted"), "{own}");
    let events = app.get("/api/v1/events?limit=200").await.expect(200).text();
    assert!(events.contains("execution.ended") && !events.contains("hush"), "{events}");
    // Elsewhere they are ordinary words: they are not secrets of the project.
    let other = told(&app, &other, 72).await;
    assert!(other.contains("it is hush-hush"), "{other}");
}
