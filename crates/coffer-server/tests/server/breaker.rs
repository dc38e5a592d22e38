//! A host that does not answer is not called for a while, and called again as soon as it is back.

use coffer_engine::EngineError;
use serde_json::json;

use crate::app::TestApp;
use crate::engine::Op;

#[tokio::test]
async fn a_host_that_does_not_answer_is_left_alone_until_it_is_back() {
    let app = TestApp::start().await;
    let away = || Some(EngineError::Unavailable("it is away".into()));
    // A failed create is also destroyed, so both must go unanswered.
    app.engine.fail(Op::Create, away());
    app.engine.fail(Op::Destroy, away());
    let body = json!({"template": "base"});
    let creates = || app.engine.asked().iter().filter(|(op, _)| *op == Op::Create).count();
    let mut tries = 0;
    loop {
        let (before, refused) = (creates(), app.post("/api/v1/sandboxes", body.clone()).await.expect(503));
        assert_eq!(refused.json()["code"], "unavailable");
        let wait: u32 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=2).contains(&wait), "{wait}");
        if creates() == before {
            break; // nobody was asked
        }
        tries += 1;
        assert!(tries <= 10, "it was asked {tries} times");
    }
    app.engine.fail(Op::Create, None);
    app.engine.fail(Op::Destroy, None);
    // Its notice that it is connected again counts more than any pause.
    app.engine.reconnect();
    for _ in 0..500 {
        let answer = app.post("/api/v1/sandboxes", body.clone()).await;
        if answer.status == 201 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("it is not asked again");
}

#[tokio::test]
async fn figures_tell_of_every_breaker() {
    let metrics = coffer_server::MetricsSettings { public: true };
    let config = coffer_server::ServerConfig { metrics, ..coffer_server::ServerConfig::default() };
    let app = TestApp::configured(config).await;
    let figures = app.get("/metrics").await.text();
    for dependency in ["node", "github"] {
        let line = format!("coffer_circuit_breaker_state{{dependency=\"{dependency}\"}} 0.0");
        assert!(figures.lines().any(|found| found == line), "{line}");
    }
}
