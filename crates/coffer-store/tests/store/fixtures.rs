//! Projects and sandboxes with good defaults.

use std::collections::BTreeMap;

use coffer_core::network::NetworkSettings;
use coffer_core::{Lifetime, Limits, Millis, OnTimeout, SandboxId, SandboxState, StateName};
use coffer_store::{
    Authenticated, Bounds, Changes, Inserted, NewSandbox, Principal, ProjectScope, SandboxRow, Store,
};

/// A time long past, so that no test depends on today.
pub(crate) const START: Millis = 1_700_000_000_000;

/// Creates a project with a key, and authenticates with that key.
pub(crate) async fn project(store: &Store, name: &str) -> ProjectScope {
    let operator = store.operator();
    let project = store.create_project(&operator, name).await.unwrap();
    let key = store.create_key(&operator, project, "test").await.unwrap();
    comes_in(store, key.reveal()).await.scope
}

/// The scope of a project's key.
pub(crate) async fn comes_in(store: &Store, key: &str) -> Principal {
    match store.authenticate(key).await.unwrap() {
        Some(Authenticated::Project(principal)) => principal,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn sandbox() -> NewSandbox {
    NewSandbox {
        id: SandboxId::generate(),
        agent: None,
        task: None,
        template: "base".into(),
        template_id: "base".into(),
        alias: None,
        metadata: BTreeMap::new(),
        env_vars: BTreeMap::new(),
        secrets: BTreeMap::new(),
        limits: Limits::default(),
        lifetime: Lifetime { started_ms: START, deadline_ms: START + 60_000, on_timeout: OnTimeout::Destroy },
        timeout_s: 60,
        auto_resume: false,
        secure: true,
        access_token: None,
        traffic_token: None,
        network: NetworkSettings::default(),
        allow_internet_access: None,
        envd_version: "0.5.0".into(),
        created_ms: START,
        bounds: Bounds::default(),
        origin: None,
        purpose: coffer_core::SandboxPurpose::Use,
        volumes: Vec::new(),
    }
}

/// Network settings from a request in E2B's form.
pub(crate) fn network(request: serde_json::Value) -> NetworkSettings {
    NetworkSettings::from_e2b(Some(serde_json::from_value(request).unwrap()), None).unwrap()
}

pub(crate) fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// Records a sandbox as `creating`.
pub(crate) async fn create(store: &Store, scope: &ProjectScope, new: NewSandbox) -> SandboxId {
    let id = new.id;
    assert_eq!(store.insert_sandbox(scope, new, None).await.unwrap(), Inserted::New);
    id
}

/// Records a sandbox and marks it as running.
pub(crate) async fn running(store: &Store, scope: &ProjectScope, new: NewSandbox) -> SandboxRow {
    let id = create(store, scope, new).await;
    store
        .transition(scope, id, StateName::Creating, SandboxState::Running, "ready", Changes::default())
        .await
        .unwrap()
}
