//! Failed starts and their messages.

use std::error::Error as _;

use coffer_server::{ServeError, ServerConfig, TraceSettings};
use coffer_testkit::TestDatabase;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::engine::FakeEngine;

async fn fails(config: ServerConfig) -> ServeError {
    let store = TestDatabase::chosen().await.open().await;
    let engine = FakeEngine::new(config.server_dir.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stop = CancellationToken::new();
    coffer_server::serve(config, store, engine, listener, stop, || panic!("it starts")).await.unwrap_err()
}

#[tokio::test]
async fn a_failed_start_says_what_failed_with_its_value_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let server_dir = dir.path().to_path_buf();
    let traces = TraceSettings { endpoint: Some("nowhere".into()), ..TraceSettings::default() };
    let error =
        fails(ServerConfig { traces, server_dir: server_dir.clone(), ..ServerConfig::default() }).await;
    assert_eq!(error.to_string(), "could not set up traces");
    assert!(error.source().unwrap().to_string().contains("traces.endpoint"), "{error:?}");
    assert!(error.hint().contains("setting"), "{}", error.hint());

    let dir = tempfile::tempdir().unwrap();
    let server_dir = dir.path().to_path_buf();
    std::fs::write(server_dir.join("repositories"), "a file, not a directory").unwrap();
    let error = fails(ServerConfig { server_dir: server_dir.clone(), ..ServerConfig::default() }).await;
    let at = server_dir.join("repositories");
    assert_eq!(error.to_string(), format!("could not open the local repositories in `{}`", at.display()));
    assert!(error.source().is_some() && error.hint().contains("write"), "{error:?}");
}
