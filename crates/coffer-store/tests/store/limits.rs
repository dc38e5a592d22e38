//! Quotas, settings, leases, installations and retention.

use coffer_core::{DestroyReason, Kept, Limits, OnTimeout, SandboxState, StateName};
use coffer_store::{
    Asking, AuditFilter, AuditRecord, Bounds, ChangeError, Changes, Cutoffs, Inserted, NewSandbox,
    ProjectScope, ProjectSettings, Pruned, Quota, Quotas, Retention, SandboxRow, Store,
};
use futures_util::future::join_all;

use crate::databases::on_both;
use crate::fixtures::{START, create, project, running, sandbox};

const RUNNING: SandboxState = SandboxState::Running;
const PAUSED: SandboxState = SandboxState::Paused { kept: Kept::MemoryAndFiles };

fn sized(cpu_count: u32, memory_mib: u64, disk_mib: u64) -> NewSandbox {
    NewSandbox { limits: Limits { cpu_count, memory_mib, disk_mib, ..Limits::default() }, ..sandbox() }
}

async fn set(store: &Store, scope: &ProjectScope, quotas: Quotas) {
    assert!(store.set_quotas(&store.operator(), scope.project(), None, quotas).await.unwrap().is_some());
}

async fn turn(
    store: &Store,
    row: &SandboxRow,
    from: StateName,
    to: SandboxState,
) -> Result<SandboxRow, ChangeError> {
    store.transition(&store.operator(), row.id, from, to, "test", Changes::default()).await
}

on_both! {
    /// Two servers, many requests each, one limit: no place is granted twice.
    async fn of_many_at_once_no_more_begin_than_may(database: &TestDatabase) {
        let (here, there) = (database.open().await, database.open().await);
        let scope = project(&here, "p").await;
        set(&here, &scope, Quotas { sandboxes: Some(7), ..Quotas::default() }).await;
        let requests = (0..40).map(|n| {
            let store = if n % 2 == 0 { here.clone() } else { there.clone() };
            tokio::spawn(async move { store.insert_sandbox(&scope, sandbox(), None).await.unwrap() })
        });
        let answers: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
        let begun = answers.iter().filter(|answer| **answer == Inserted::New).count();
        let over: Vec<_> = answers.iter().filter_map(|answer| match answer {
            Inserted::OverQuota(over) => Some((over.quota, over.limit, over.used, over.asked)),
            _ => None,
        }).collect();
        assert_eq!((begun, over.len()), (7, 33));
        assert!(over.iter().all(|over| *over == (Quota::Sandboxes, 7, 7, 1)), "{over:?}");
        // Refused requests left nothing, not even an event.
        assert_eq!(here.live_ids(&here.operator()).await.unwrap().len(), 7);
        assert_eq!(here.events(&scope, 0, 100).await.unwrap().len(), 7 + 1);
        let other = project(&here, "q").await;
        create(&here, &other, sandbox()).await;
    }

    async fn each_quota_is_named_and_counted(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        for (quotas, quota, limit, used, asked) in [
            (Quotas { sandboxes: Some(1), ..Quotas::default() }, Quota::Sandboxes, 1, 1, 1),
            (Quotas { cpus: Some(5), ..Quotas::default() }, Quota::Cpus, 5, 3, 3),
            (Quotas { memory_mib: Some(1023), ..Quotas::default() }, Quota::MemoryMib, 1023, 512, 512),
            (Quotas { disk_mib: Some(100), ..Quotas::default() }, Quota::DiskMib, 100, 64, 64),
            (Quotas { sandboxes: Some(0), ..Quotas::default() }, Quota::Sandboxes, 0, 1, 1),
        ] {
            if store.live_ids(&store.operator()).await.unwrap().is_empty() {
                running(&store, &scope, sized(3, 512, 64)).await;
            }
            set(&store, &scope, quotas).await;
            let Inserted::OverQuota(over) = store.insert_sandbox(&scope, sized(3, 512, 64), None).await.unwrap()
            else { panic!("{quota:?} was not kept") };
            assert_eq!((over.quota, over.limit, over.used, over.asked), (quota, limit, used, asked));
            // Its deadline is long past.
            assert_eq!(over.frees_in_ms, Some(0));
            let limits = sized(3, 512, 64).limits;
            let foreseen = store.refusal(&scope, scope.project(), &limits, Asking::ToBegin).await.unwrap();
            assert_eq!(foreseen, Some(over));
        }
    }

    async fn a_paused_sandbox_uses_its_disk_alone(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        store.set_default_quotas(Quotas { sandboxes: Some(1), forks: Some(5), ..Quotas::default() });
        let first = running(&store, &scope, sized(3, 512, 64)).await;
        turn(&store, &first, StateName::Running, PAUSED).await.unwrap();
        let quotas = store.quotas(&scope, scope.project()).await.unwrap().unwrap();
        assert_eq!((quotas.in_force.sandboxes, quotas.in_force.forks, quotas.own), (Some(1), Some(5), Quotas::default()));
        let used = quotas.in_use;
        assert_eq!((used.sandboxes, used.cpus, used.memory_mib, used.disk_mib), (0, 0, 0, 64));
        let second = running(&store, &scope, sized(3, 512, 64)).await;
        let refused = turn(&store, &first, StateName::Paused, RUNNING).await.unwrap_err();
        let ChangeError::OverQuota(over) = refused else { panic!("{refused}") };
        assert_eq!((over.quota, over.used), (Quota::Sandboxes, 1));
        assert_eq!(store.sandbox(&scope, first.id).await.unwrap().unwrap().state, PAUSED);
        let over = SandboxState::Terminated { reason: DestroyReason::Requested };
        turn(&store, &second, StateName::Running, over).await.unwrap();
        // Its disk is already counted: a full quota is no reason to leave it paused.
        set(&store, &scope, Quotas { disk_mib: Some(1), ..Quotas::default() }).await;
        turn(&store, &first, StateName::Paused, RUNNING).await.unwrap();
    }

    /// A refused create releases its idempotency key.
    async fn a_refused_create_can_be_repeated(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let key = coffer_store::Idempotency { key: "k", fingerprint: "f" };
        set(&store, &scope, Quotas { sandboxes: Some(0), ..Quotas::default() }).await;
        let refused = store.insert_sandbox(&scope, sandbox(), Some(key)).await.unwrap();
        assert!(matches!(refused, Inserted::OverQuota(_)), "{refused:?}");
        set(&store, &scope, Quotas::default()).await;
        assert_eq!(store.insert_sandbox(&scope, sandbox(), Some(key)).await.unwrap(), Inserted::New);
    }

    async fn settings_have_versions_and_events(database: &TestDatabase) {
        let store = database.open().await;
        let (scope, other) = (project(&store, "p").await, project(&store, "q").await);
        let none = store.project_settings(&scope, scope.project()).await.unwrap().unwrap();
        assert_eq!((none.version, none.settings), (0, ProjectSettings::default()));
        assert_eq!(store.project_settings(&scope, other.project()).await.unwrap(), None);
        let settings = ProjectSettings {
            timeout_s: Some(60),
            on_timeout: Some(OnTimeout::Pause),
            retention: Retention { events_days: Some(3), ..Retention::default() },
            ..ProjectSettings::default()
        };
        let put = |version| store.set_project_settings(&scope, scope.project(), version, settings.clone());
        assert_eq!(put(Some(3)).await.unwrap(), None);
        let first = put(Some(0)).await.unwrap().unwrap();
        assert_eq!((first.version, &first.settings), (1, &settings));
        assert_eq!(put(Some(0)).await.unwrap(), None, "somebody else was first");
        assert_eq!(put(Some(1)).await.unwrap().unwrap().version, 2);
        assert_eq!(put(None).await.unwrap().unwrap().version, 3);
        let theirs = store.set_project_settings(&other, scope.project(), None, ProjectSettings::default()).await;
        assert_eq!(theirs.unwrap(), None);
        let changed = store.settings_changed_since(&store.operator(), 0).await.unwrap();
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].settings, settings);
        let kinds: Vec<_> =
            store.events(&scope, 0, 10).await.unwrap().into_iter().map(|event| event.kind).collect();
        assert_eq!(kinds, ["project.settings_changed"; 3]);
    }

    async fn a_lease_is_renewed_while_it_runs(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let operator = store.operator();
        let bounds = Bounds { lease_s: Some(30), ..Bounds::default() };
        let row = running(&store, &scope, NewSandbox { bounds, ..sandbox() }).await;
        assert_eq!(row.bounds, bounds);
        assert!(row.lease_until_ms.is_some_and(|until| until > START), "it begins with the run");
        store.renew_lease(&operator, row.id, 77).await.unwrap();
        assert_eq!(store.sandbox(&scope, row.id).await.unwrap().unwrap().lease_until_ms, Some(77));
        turn(&store, &row, StateName::Running, PAUSED).await.unwrap();
        store.renew_lease(&operator, row.id, 78).await.unwrap_err();
        let plain = running(&store, &scope, sandbox()).await;
        assert_eq!(plain.lease_until_ms, None);
        store.renew_lease(&operator, plain.id, 78).await.unwrap_err();
    }

    async fn each_installation_has_its_own_live_sandboxes(database: &TestDatabase) {
        let (here, there) = (database.open().await, database.open().await);
        let scope = project(&here, "p").await;
        // A row from before there were installations.
        let old = running(&here, &scope, sandbox()).await;
        here.act_for(&here.operator(), "here").await.unwrap();
        there.act_for(&there.operator(), "there").await.unwrap();
        let new = running(&there, &scope, sandbox()).await;
        assert_eq!(new.installation.as_deref(), Some("there"));
        assert_eq!(here.live_ids(&here.operator()).await.unwrap(), [old.id]);
        assert_eq!(there.live_ids(&there.operator()).await.unwrap(), [new.id]);
        assert_eq!(there.live_sandboxes(&there.operator()).await.unwrap(), std::slice::from_ref(&new));
        assert_eq!((here.holder_elsewhere(&new), there.holder_elsewhere(&new)), (Some("there"), None));
        let rows = here.list(&scope, &coffer_store::ListFilter::default()).await.unwrap().rows;
        assert_eq!(rows.len(), 2, "everybody sees all of them");
    }

    async fn what_is_old_goes_in_batches_and_in_order(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let operator = store.operator();
        let over = SandboxState::Terminated { reason: DestroyReason::Requested };
        let live = running(&store, &scope, sandbox()).await;
        for _ in 0..5 {
            let row = running(&store, &scope, sandbox()).await;
            turn(&store, &row, StateName::Running, over.clone()).await.unwrap();
        }
        let audited = |project| AuditRecord {
            id: coffer_core::AuditId::generate(),
            project,
            actor: "key:k".into(),
            action: "POST /x".into(),
            subject: None,
            status: 200,
            code: None,
            request_id: "r".into(),
            at_ms: START,
        };
        store.record_audit(vec![audited(Some(scope.project())), audited(None)]).await.unwrap();
        let all = store.events(&scope, 0, 100).await.unwrap();
        assert_eq!(all.len(), 2 + 5 * 3);
        let mut connection = database.connect().await;
        // The newest two events are young, and so is one between the old ones: the clock went back once.
        sqlx::query("UPDATE events SET at_ms = 1 WHERE sequence <= 15 AND sequence <> 12")
            .execute(&mut connection)
            .await
            .unwrap();
        let cutoffs = Cutoffs { records_ms: i64::MAX, events_ms: START, audit_ms: START + 1 };
        let prune = async |batch| store.prune(&operator, Some(scope.project()), cutoffs, batch).await.unwrap();
        assert_eq!(prune(3).await, Pruned { sandboxes: 3, events: 3, audit: 1, ..Pruned::default() });
        assert!(prune(3).await.reached(3));
        assert_eq!(prune(100).await, Pruned { events: 5, ..Pruned::default() });
        assert_eq!(prune(100).await, Pruned::default());
        assert_eq!(store.pruned_event(&scope).await.unwrap(), 11);
        let kept: Vec<_> = store.events(&scope, 0, 100).await.unwrap().iter().map(|event| event.sequence).collect();
        assert_eq!(kept, (12..=17).collect::<Vec<_>>());
        let rows = store.list(&scope, &coffer_store::ListFilter::default()).await.unwrap().rows;
        assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [live.id], "what lives stays");
        // New events continue from where they were.
        turn(&store, &live, StateName::Running, PAUSED).await.unwrap();
        assert_eq!(store.newest_event(&scope).await.unwrap(), 18);
        let everything = AuditFilter { limit: 10, ..AuditFilter::default() };
        assert_eq!(store.audit(&operator, &everything).await.unwrap().len(), 1, "an operator's is not the project's");
        assert_eq!(store.prune(&operator, None, cutoffs, 10).await.unwrap(), Pruned { audit: 1, ..Pruned::default() });
    }
}
