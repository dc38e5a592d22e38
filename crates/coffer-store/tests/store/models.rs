//! Calls of models: reserved before they are sent, settled once, and seen by their project only.

use std::collections::BTreeMap;

use coffer_core::agent::Preset;
use coffer_core::model::{CallKind, KeyHeader, Provider, Used};
use coffer_core::{ModelCallId, RunId, TaskId};
use coffer_store::{
    BudgetAction, BudgetPeriod, BudgetTerms, CallOutcome, Cutoffs, GrantRow, ModelBodies, ModelCallFilter,
    ModelKey, ModelLimit, NewCall, NewGrant, Periods, ProjectScope, Reserved, Settled, Store, Worth,
};

use crate::databases::on_both;
use crate::fixtures::{project, running, sandbox};

async fn grant(store: &Store, scope: &ProjectScope, key: &str, budget_nanos: Option<i64>) -> GrantRow {
    let sandbox = running(store, scope, sandbox()).await.id;
    let keys = [(Provider::OpenAi, ModelKey { secret: "s".into(), header: KeyHeader::Bearer })];
    let new = NewGrant {
        key: key.into(),
        sandbox,
        agent: None,
        task: Some(TaskId::generate()),
        run: Some(RunId::generate()),
        preset: Preset::Codex,
        keys: BTreeMap::from(keys),
        pass_digest: "00".into(),
        budget_nanos,
        run_budget_nanos: None,
    };
    store.open_grant(scope, new).await.unwrap()
}

fn call(grant: &GrantRow, least: i64, most: i64) -> NewCall {
    NewCall {
        grant: grant.clone(),
        provider: Provider::OpenAi,
        kind: CallKind::Responses,
        model: "m".into(),
        worth: Worth::Between { least, most },
        sandbox_cost_nanos: 0,
        periods: Periods { day: 0, month: 0 },
    }
}

fn end(cost: i64) -> Settled {
    Settled {
        tries: Vec::new(),
        outcome: CallOutcome::Answered,
        status: Some(200),
        used: Used { input: 10, cached: 5, output: 3, ..Used::default() },
        cost_nanos: Some(cost),
        is_estimated: false,
        answered_by: None,
        first_byte_ms: None,
        error: None,
        bodies: None,
    }
}

async fn settle(store: &Store, scope: &ProjectScope, call: ModelCallId, cost: i64) {
    store.settle_call(&store.operator(), scope.project(), call, end(cost)).await.unwrap();
}

fn id(reserved: Reserved) -> ModelCallId {
    match reserved {
        Reserved::Yes { call, .. } => call,
        other => panic!("{other:?}"),
    }
}

on_both! {
    async fn calls_hold_what_they_can_cost_until_they_are_settled(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "one").await;
        let grant = grant(&store, &scope, "turn", Some(100)).await;
        let first = id(store.reserve_call(call(&grant, 10, 60)).await.unwrap());
        assert_eq!(store.reserve_call(call(&grant, 10, 60)).await.unwrap(), Reserved::Wait);
        settle(&store, &scope, first, 20).await;
        settle(&store, &scope, first, 999).await;
        assert_eq!(store.grant_totals(&scope, grant.id).await.unwrap().cost_nanos, 20, "settled once");
        let second = store.reserve_call(call(&grant, 10, 90)).await.unwrap();
        assert!(matches!(second, Reserved::Yes { nanos: 80, .. }), "limited to what is left: {second:?}");
        settle(&store, &scope, id(second), 75).await;
        let over = store.reserve_call(call(&grant, 10, 60)).await.unwrap();
        assert_eq!(over, Reserved::Over { limit: ModelLimit::Work, left_nanos: 5, amount_nanos: 100 });
        let run = grant.run.unwrap();
        assert_eq!(store.run_model_cost(&scope, run).await.unwrap(), 95);
        let unknown = NewCall { worth: Worth::Unknown, ..call(&grant, 0, 0) };
        assert_eq!(store.reserve_call(unknown).await.unwrap(), Reserved::Unknown { limit: ModelLimit::Work });
        store.close_grant(&store.operator(), grant.id).await.unwrap();
        assert_eq!(store.reserve_call(call(&grant, 0, 1)).await.unwrap(), Reserved::Closed);
        let totals = store.grant_totals(&scope, grant.id).await.unwrap();
        assert_eq!((totals.calls, totals.open, totals.input_tokens, totals.output_tokens), (2, 0, 30, 6));
    }

    async fn reservations_at_the_same_time_do_not_pass_a_limit(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "one").await;
        let grant = grant(&store, &scope, "turn", Some(100)).await;
        let all = futures_util::future::join_all((0..50).map(|_| store.reserve_call(call(&grant, 30, 30)))).await;
        let held = all.into_iter().filter(|one| matches!(one, Ok(Reserved::Yes { .. }))).count();
        assert_eq!(held, 3);
    }

    async fn a_projects_budget_counts_calls_in_progress_and_settled_ones(database: &TestDatabase) {
        let store = database.open().await;
        let (scope, other) = (project(&store, "one").await, project(&store, "two").await);
        let terms = BudgetTerms { amount_nanos: 100, warn_at: vec![], action: BudgetAction::Pause };
        let budget = store.create_budget(&scope, None, BudgetPeriod::Total, terms).await.unwrap();
        let (one, two) =
            (grant(&store, &scope, "a", None).await, grant(&store, &scope, "b", None).await);
        let first = id(store.reserve_call(call(&one, 60, 60)).await.unwrap());
        assert_eq!(store.reserve_call(call(&two, 60, 60)).await.unwrap(), Reserved::Wait);
        settle(&store, &scope, first, 60).await;
        let over = store.reserve_call(call(&two, 60, 60)).await.unwrap();
        assert!(matches!(over, Reserved::Over { limit: ModelLimit::Project(_), left_nanos: 40, .. }), "{over:?}");
        assert_eq!(store.spent(&store.operator(), &budget, 0).await.unwrap(), 60);
        let free = grant(&store, &other, "a", None).await;
        id(store.reserve_call(call(&free, 60, 60)).await.unwrap());
        // Neither sees the other's.
        let run = free.run.unwrap();
        assert_eq!(store.run_model_cost(&other, run).await.unwrap(), 60, "what is reserved counts");
        assert_eq!(store.run_model_cost(&scope, run).await.unwrap(), 0);
        let filter = ModelCallFilter { limit: 10, ..ModelCallFilter::default() };
        let seen = store.model_calls(&scope, &filter).await.unwrap();
        assert_eq!(seen.iter().map(|call| call.id).collect::<Vec<_>>(), [first]);
        assert!(store.model_call(&other, first).await.unwrap().is_none());
    }

    async fn lost_calls_cost_what_was_reserved_and_old_ones_go(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "one").await;
        let grant = grant(&store, &scope, "turn", Some(100)).await;
        let lost = id(store.reserve_call(call(&grant, 70, 70)).await.unwrap());
        let operator = store.operator();
        assert_eq!(store.settle_lost_calls(&operator).await.unwrap(), 1);
        assert_eq!(store.settle_lost_calls(&operator).await.unwrap(), 0);
        let (row, bodies) = store.model_call(&scope, lost).await.unwrap().unwrap();
        assert_eq!((row.cost_nanos, row.is_estimated, row.outcome.as_deref()), (Some(70), true, Some("lost")));
        assert!(bodies.is_none());
        let kept = id(store.reserve_call(call(&grant, 1, 1)).await.unwrap());
        let bodies = ModelBodies { request: "{}".into(), answer: "[]".into() };
        let end = Settled { bodies: Some(bodies.clone()), ..end(1) };
        store.settle_call(&operator, scope.project(), kept, end).await.unwrap();
        let (_, read) = store.model_call(&scope, kept).await.unwrap().unwrap();
        assert_eq!(read, Some(bodies));
        let far = i64::MAX;
        let cutoffs = Cutoffs { records_ms: far, events_ms: 0, audit_ms: 0 };
        let pruned = store.prune(&operator, Some(scope.project()), cutoffs, 10).await.unwrap();
        assert_eq!(pruned.model_calls, 2);
        // A turn that is repeated finds its grant.
        assert_eq!(store.open_grants(&operator).await.unwrap().len(), 1);
    }
}
