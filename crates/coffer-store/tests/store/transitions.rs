//! States change by compare-and-set, with their history and events.

use coffer_core::{DestroyReason, Fault, Kept, Limits, OnTimeout, SandboxId, SandboxState, StateName};
use coffer_store::{Bounds, ChangeError, Changes, Deadline, PlacedTemplate, Placement, SandboxRow, Secret};
use futures_util::future::join_all;
use serde_json::json;

use crate::databases::on_both;
use crate::fixtures::{START, create, network, pairs, project, running, sandbox};

fn placement() -> Placement {
    Placement {
        socket: "/run/coffer/0badcafe/s/x.sock".into(),
        template: PlacedTemplate {
            name: "host".into(),
            build: "b1".into(),
            default_user: "user".into(),
            default_workdir: None,
            env: pairs([("LANG", "C.UTF-8")]),
            start: None,
        },
    }
}

on_both! {
    async fn a_sandbox_reads_back_whole(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let mut new = sandbox();
        new.alias = Some("my-base".into());
        // Texts that one database or the other handles badly.
        new.metadata = pairs([("nul\0key", "nul\0value"), ("quote'\"$1", "é世界🦀"), ("", "")]);
        new.env_vars = pairs([("TOKEN", "s3cret\n\0")]);
        new.limits = Limits { cpu_count: 3, memory_mib: 512, disk_mib: 1 << 40, max_processes: u32::MAX };
        new.lifetime.on_timeout = OnTimeout::PauseFilesOnly;
        new.auto_resume = true;
        new.access_token = Some(Secret::new("access"));
        new.traffic_token = Some(Secret::new("traffic"));
        new.network = network(json!({
            "allowOut": ["*.example.com"], "denyOut": ["0.0.0.0/0"], "maskRequestHost": "a:${PORT}", "httpsPorts": [8443],
            "egressProxy": {"address": "p.com:1080", "username": "u", "password": "p"}, "allowPublicTraffic": false,
        }));
        new.allow_internet_access = Some(false);
        new.bounds = Bounds { idle_s: Some(0), max_lifetime_s: Some(1 << 40), lease_s: Some(7) };
        let row = SandboxRow {
            id: new.id,
            project: scope.project(),
            agent: None,
            task: None,
            state: SandboxState::Creating,
            placement: None,
            template: new.template.clone(),
            template_id: new.template_id.clone(),
            alias: new.alias.clone(),
            metadata: new.metadata.clone(),
            env_vars: new.env_vars.clone(),
            limits: new.limits,
            lifetime: new.lifetime,
            timeout_s: new.timeout_s,
            auto_resume: new.auto_resume,
            secure: new.secure,
            access_token: new.access_token.clone(),
            traffic_token: new.traffic_token.clone(),
            network: new.network.clone(),
            allow_internet_access: new.allow_internet_access,
            envd_version: new.envd_version.clone(),
            created_ms: new.created_ms,
            ended_ms: None,
            last_used_ms: None,
            bounds: new.bounds,
            lease_until_ms: None,
            installation: None,
            origin: None,
            purpose: coffer_core::SandboxPurpose::Use,
            volumes: Vec::new(),
            sealed: false,
            secrets: new.secrets.clone(),
        };
        let id = create(&store, &scope, new).await;
        assert_eq!(store.sandbox(&scope, id).await.unwrap(), Some(row));
    }

    async fn of_many_transitions_at_once_one_wins(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = running(&store, &scope, sandbox()).await;
        let attempts = (0..20).map(|n| {
            let (store, state) = (store.clone(), match n % 2 {
                0 => SandboxState::Paused { kept: Kept::MemoryAndFiles },
                _ => SandboxState::Terminated { reason: DestroyReason::Requested },
            });
            let reason = format!("attempt {n}");
            tokio::spawn(async move {
                let tried = store
                    .transition(&scope, row.id, StateName::Running, state, &reason, Changes::default())
                    .await;
                tried.map(|row| (row.state, reason))
            })
        });
        let (won, lost): (Vec<_>, Vec<_>) =
            join_all(attempts).await.into_iter().map(Result::unwrap).partition(Result::is_ok);
        let [Ok((state, reason))] = won.as_slice() else { panic!("{won:?}") };
        for lost in lost {
            assert!(matches!(&lost, Err(ChangeError::Raced { found }) if *found == state.name()), "{lost:?}");
        }
        assert_eq!(store.sandbox(&scope, row.id).await.unwrap().unwrap().state, *state);
        let history = store.transitions(&scope, row.id).await.unwrap();
        let steps: Vec<_> = history.iter().map(|step| (step.position, step.from, &step.to, &*step.reason)).collect();
        assert_eq!(steps, [
            (1, None, &SandboxState::Creating, "requested"),
            (2, Some(StateName::Creating), &SandboxState::Running, "ready"),
            (3, Some(StateName::Running), state, &**reason),
        ]);
        let events = store.events(&scope, 0, 100).await.unwrap();
        let kinds: Vec<_> = events.iter().map(|event| (event.sequence, event.kind.clone())).collect();
        let last = format!("sandbox.{}", state.name().as_str());
        assert_eq!(kinds, [(1, "sandbox.creating".into()), (2, "sandbox.running".into()), (3, last)]);
        assert_eq!(events[2].payload["reason"], json!(reason));
        assert_eq!(store.events(&scope, 2, 100).await.unwrap(), events[2..]);
    }

    async fn a_transition_changes_what_it_names_and_no_more(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let id = create(&store, &scope, sandbox()).await;
        let before = store.sandbox(&scope, id).await.unwrap().unwrap();
        let changes = Changes { deadline_ms: Some(START + 5), placement: Some(placement()), ..Changes::default() };
        let after = store
            .transition(&scope, id, StateName::Creating, SandboxState::Running, "ready", changes)
            .await
            .unwrap();
        let mut expected = SandboxRow { state: SandboxState::Running, placement: Some(placement()), ..before };
        expected.lifetime.deadline_ms = START + 5;
        assert_eq!(after, expected);

        let changes = Changes {
            started_ms: Some(START + 1),
            timeout_s: Some(7),
            on_timeout: Some(OnTimeout::Pause),
            auto_resume: Some(true),
            ..Changes::default()
        };
        let fault = SandboxState::Error { fault: Fault::Died { message: "signal 9".into() } };
        let failed =
            store.transition(&scope, id, StateName::Running, fault.clone(), "died", changes).await.unwrap();
        let ended_ms = failed.ended_ms;
        assert!(ended_ms.is_some());
        expected = SandboxRow { state: fault, timeout_s: 7, auto_resume: true, ended_ms, ..expected };
        expected.lifetime.started_ms = START + 1;
        expected.lifetime.on_timeout = OnTimeout::Pause;
        assert_eq!(failed, expected);
        assert_eq!(store.sandbox(&scope, id).await.unwrap(), Some(expected));
    }

    async fn an_unknown_sandbox_is_not_found(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let nobody = SandboxId::generate();
        let tried = store
            .transition(&scope, nobody, StateName::Creating, SandboxState::Running, "", Changes::default())
            .await;
        assert!(matches!(tried, Err(ChangeError::NotFound)), "{tried:?}");
        assert_eq!(store.events(&scope, 0, 10).await.unwrap(), []);
    }

    async fn a_reason_from_a_hostile_sandbox_can_be_stored(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = running(&store, &scope, sandbox()).await;
        let hostile = format!("\0{}", "é".repeat(100_000));
        let fault = SandboxState::Error { fault: Fault::Died { message: "\0'; DROP TABLE events".into() } };
        store
            .transition(&scope, row.id, StateName::Running, fault.clone(), &hostile, Changes::default())
            .await
            .unwrap();
        let history = store.transitions(&scope, row.id).await.unwrap();
        assert_eq!(history[2].to, fault);
        assert!(history[2].reason.len() < 3000);
    }

    async fn deadlines_move_as_asked(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = running(&store, &scope, sandbox()).await;
        let at = |ms| START + ms;
        let set = async |deadline| store.set_deadline(&scope, row.id, deadline).await.unwrap();
        assert_eq!(set(Deadline::NotBefore(at(1))).await, at(60_000));
        assert_eq!(set(Deadline::NotBefore(at(90_000))).await, at(90_000));
        assert_eq!(set(Deadline::Exactly(at(1))).await, at(1));
        assert_eq!(store.set_timeout(&scope, row.id, 9, Deadline::NotBefore(at(9000))).await.unwrap(), at(9000));
        let found = store.sandbox(&scope, row.id).await.unwrap().unwrap();
        assert_eq!((found.lifetime.deadline_ms, found.timeout_s), (at(9000), 9));
    }

    async fn what_has_ended_does_not_change(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = running(&store, &scope, sandbox()).await;
        let closed = network(json!({ "denyOut": ["0.0.0.0/0"] }));
        store.set_network(&scope, row.id, closed.clone(), Some(true)).await.unwrap();
        let gone = SandboxState::Terminated { reason: DestroyReason::Timeout };
        let ended = store
            .transition(&scope, row.id, StateName::Running, gone, "timeout", Changes::default())
            .await
            .unwrap();
        assert_eq!(ended.network, closed);
        assert_eq!(ended.allow_internet_access, Some(true));
        for refusal in [
            store.set_deadline(&scope, row.id, Deadline::Exactly(START)).await.map(drop),
            store.set_network(&scope, row.id, sandbox().network, None).await,
        ] {
            assert!(
                matches!(refusal, Err(ChangeError::Raced { found: StateName::Terminated })),
                "{refusal:?}"
            );
        }
        assert_eq!(store.sandbox(&scope, row.id).await.unwrap(), Some(ended));
    }
}
