//! Usage of sandboxes, counted once, and budgets.

use coffer_core::event::{BudgetReached, Event, EventKind};
use coffer_core::{SandboxId, SandboxState, StateName};
use coffer_store::{
    Amounts, BudgetAction, BudgetNews, BudgetPeriod, BudgetTerms, Changes, Charge, NameError, ProjectScope,
    Store, UsageFilter, UsageGroup, UsageMark,
};

use crate::databases::on_both;
use crate::fixtures::{START, project, running, sandbox};

const DAY: i64 = START / 86_400_000;

fn amounts(ms: i64) -> Amounts {
    Amounts {
        running_ms: ms,
        cpu_ms: 2 * ms,
        memory_mib_ms: 1024 * ms,
        cpu_used_us: 10 * ms,
        cost_nanos: 7 * ms,
    }
}

fn charge(scope: &ProjectScope, sandbox: SandboxId, from: Option<i64>, to: i64, ms: i64) -> Charge {
    Charge {
        sandbox,
        project: scope.project(),
        agent: None,
        from,
        to: UsageMark { counted_to_ms: to, cpu_us: 5 },
        days: vec![(DAY, amounts(ms))],
        last: false,
    }
}

fn by(group: UsageGroup) -> UsageFilter {
    UsageFilter {
        group,
        sandbox: None,
        project: None,
        from_day: DAY - 30,
        to_day: DAY + 30,
        after: None,
        limit: 50,
    }
}

async fn used(store: &Store, scope: &ProjectScope) -> Vec<(String, Amounts)> {
    let lines = store.usage(scope, &by(UsageGroup::Sandbox)).await.unwrap();
    lines.into_iter().map(|line| (line.key, line.amounts)).collect()
}

fn terms(amount_nanos: i64) -> BudgetTerms {
    BudgetTerms { amount_nanos, warn_at: vec![50, 80], action: BudgetAction::Pause }
}

on_both! {
    async fn a_charge_counts_once_and_a_mark_moves_with_it(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let one = running(&store, &mine, sandbox()).await.id;
        let other = running(&store, &theirs, sandbox()).await.id;
        let first = vec![charge(&mine, one, None, START + 10, 10), charge(&theirs, other, None, START + 10, 3)];
        assert_eq!(store.charge(&operator, first.clone()).await.unwrap(), [true, true]);
        // The answer was lost and the same charge is tried again.
        assert_eq!(store.charge(&operator, first).await.unwrap(), [false, false]);
        let late = charge(&mine, one, Some(START + 9), START + 20, 1000);
        let right = charge(&mine, one, Some(START + 10), START + 20, 5);
        assert_eq!(store.charge(&operator, vec![late, right]).await.unwrap(), [false, true]);
        assert_eq!(used(&store, &mine).await, [(one.to_string(), amounts(15))]);
        assert_eq!(used(&store, &theirs).await, [(other.to_string(), amounts(3))]);
        let marks = store.usage_marks(&operator).await.unwrap();
        assert!(marks.contains(&(one, UsageMark { counted_to_ms: START + 20, cpu_us: 5 })), "{marks:?}");

        let last = Charge { last: true, ..charge(&mine, one, Some(START + 20), START + 30, 1) };
        assert_eq!(store.charge(&operator, vec![last.clone()]).await.unwrap(), [true]);
        assert_eq!(store.charge(&operator, vec![last]).await.unwrap(), [false]);
        assert_eq!(store.usage_marks(&operator).await.unwrap().len(), 1);
        assert_eq!(used(&store, &mine).await, [(one.to_string(), amounts(16))]);
    }

    async fn usage_is_listed_by_day_sandbox_and_project(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        for (scope, count) in [(&mine, 3), (&theirs, 1)] {
            for number in 0..count {
                let id = running(&store, scope, sandbox()).await.id;
                let mut charge = charge(scope, id, None, START, 10);
                charge.days.push((DAY + number, amounts(1)));
                store.charge(&operator, vec![charge]).await.unwrap();
            }
        }
        let days = store.usage(&mine, &by(UsageGroup::Day)).await.unwrap();
        let days: Vec<_> = days.into_iter().map(|line| (line.key, line.amounts.running_ms)).collect();
        let key = |day: i64| (1_000_000_000 + day).to_string();
        assert_eq!(days, [(key(DAY), 31), (key(DAY + 1), 1), (key(DAY + 2), 1)]);
        let second = UsageFilter { after: Some(key(DAY)), limit: 1, ..by(UsageGroup::Day) };
        assert_eq!(store.usage(&mine, &second).await.unwrap()[0].key, key(DAY + 1));
        let one_day = UsageFilter { from_day: DAY + 1, to_day: DAY + 1, ..by(UsageGroup::Sandbox) };
        assert_eq!(store.usage(&mine, &one_day).await.unwrap().len(), 1);
        let projects = store.usage(&operator, &by(UsageGroup::Project)).await.unwrap();
        let projects: Vec<_> = projects.into_iter().map(|line| (line.project, line.amounts.running_ms)).collect();
        assert_eq!(projects, [(mine.project(), 33), (theirs.project(), 11)]);
        let only = UsageFilter { project: Some(theirs.project()), ..by(UsageGroup::Day) };
        assert_eq!(store.usage(&operator, &only).await.unwrap()[0].amounts.running_ms, 11);
        assert_eq!(store.usage(&mine, &only).await.unwrap(), [], "another project's");
    }

    async fn usage_outlives_its_sandbox(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "mine").await;
        let id = running(&store, &scope, sandbox()).await.id;
        store.charge(&store.operator(), vec![charge(&scope, id, None, START, 10)]).await.unwrap();
        let ended = SandboxState::Terminated { reason: coffer_core::DestroyReason::Budget };
        store.transition(&scope, id, StateName::Running, ended, "spent", Changes::default()).await.unwrap();
        let mut connection = database.connect().await;
        for sql in ["DELETE FROM events", "DELETE FROM sandboxes"] {
            sqlx::query(sql).execute(&mut connection).await.unwrap();
        }
        assert_eq!(used(&store, &scope).await, [(id.to_string(), amounts(10))]);
        assert_eq!(store.usage_marks(&store.operator()).await.unwrap(), []);
    }

    async fn a_budget_is_changed_by_version_and_tells_its_news_once(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let id = running(&store, &mine, sandbox()).await.id;
        let whole = store.create_budget(&mine, None, BudgetPeriod::Day, terms(100)).await.unwrap();
        let again = store.create_budget(&mine, None, BudgetPeriod::Day, terms(5)).await;
        assert!(matches!(again, Err(NameError::Taken)), "{again:?}");
        let small = store.create_budget(&mine, Some(id), BudgetPeriod::Total, terms(50)).await.unwrap();
        let not_mine = store.create_budget(&theirs, Some(id), BudgetPeriod::Day, terms(1)).await;
        assert!(matches!(not_mine, Err(NameError::NotFound)), "{not_mine:?}");
        assert_eq!(store.budgets(&mine, None, 10).await.unwrap(), [whole.clone(), small.clone()]);
        assert_eq!(store.budget(&theirs, whole.id).await.unwrap(), None);

        store.charge(&operator, vec![charge(&mine, id, None, START, 10)]).await.unwrap();
        assert_eq!(store.spent(&operator, &whole, DAY).await.unwrap(), 70);
        assert_eq!(store.spent(&operator, &whole, DAY + 1).await.unwrap(), 0);
        let reached = |percent| BudgetReached {
            budget: small.id,
            sandbox: Some(id),
            period: BudgetPeriod::Day,
            percent,
            spent: 0.5,
            amount: 1.0,
            currency: "USD".into(),
            action: BudgetAction::Pause,
        };
        let news = |percent| BudgetNews {
            budget: small.id,
            before: (0, 0),
            now: (DAY, percent),
            event: Event::BudgetWarned(reached(percent)),
        };
        assert!(store.tell_of_budget(&operator, news(50)).await.unwrap());
        assert!(!store.tell_of_budget(&operator, news(80)).await.unwrap(), "another server told it");
        let told = store.last_event_of(&mine, id, EventKind::BudgetWarned).await.unwrap().unwrap();
        assert_eq!(told.event(), Some(Event::BudgetWarned(reached(50))));

        assert_eq!(store.change_budget(&mine, small.id, Some(9), terms(1)).await.unwrap(), None);
        assert_eq!(store.change_budget(&theirs, small.id, None, terms(1)).await.unwrap(), None);
        let raised = store.change_budget(&mine, small.id, Some(1), terms(500)).await.unwrap().unwrap();
        assert_eq!((raised.version, raised.terms.amount_nanos, raised.told), (2, 500, (DAY, 0)));
        assert!(!store.remove_budget(&theirs, small.id, None).await.unwrap());
        assert!(!store.remove_budget(&mine, small.id, Some(1)).await.unwrap());
        assert!(store.remove_budget(&mine, small.id, Some(2)).await.unwrap());
        assert_eq!(store.budgets(&mine, None, 10).await.unwrap(), [whole]);
    }
}
