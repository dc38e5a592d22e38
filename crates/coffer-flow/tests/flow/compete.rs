//! The run of a competition, with an arena that counts and servers that die.

use std::time::Duration;

use coffer_core::compete::{CompetitionState, EntryState, Rule};
use coffer_core::{SandboxId, TaskState};
use coffer_store::{CompetitionError, Cutoffs, NewCompetition, RunState, StartTask};
use coffer_testkit::on_both;

use crate::ring::METHODS;
use crate::stadium::{Stadium, THREE, new_task};
use crate::world::PATIENCE;

on_both! {
    async fn the_best_wins_by_rule_and_the_others_stay_on_record(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let row = stadium.begin(stadium.new_one(Rule::Best, &THREE)).await;
        assert_eq!(row.state, CompetitionState::Queued);
        let runner = stadium.runner().await;
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done);
        stadium.assert_second_won(&row).await;
        let now = stadium.row(row.id).await;
        assert_eq!((now.picked_by.as_deref(), now.base_commit.as_deref()), (Some("rule"), Some("base")));
        let entries = stadium.entries(row.id).await;
        assert!(entries[1].reasons.contains(&"its checks passed".to_string()), "{:?}", entries[1].reasons);
        assert!(!entries[2].check.unwrap().passed);
        for entry in &entries {
            assert_eq!((entry.exit_code, entry.duration_ms, entry.input_tokens), (Some(0), Some(1000), Some(100)));
            let patch = stadium.world.store.entry_patch(&stadium.world.scope, row.id, entry.number).await.unwrap();
            assert_eq!(patch.unwrap().text, entry.label);
        }
        assert_eq!(stadium.ring.field.lock().unwrap().made, 4);
        let told = stadium.world.told(&row.id.to_string()).await;
        for kind in ["competition.created", "competition.entry", "competition.ranked", "competition.winner"] {
            assert!(told.iter().any(|known| known == kind), "{kind}: {told:?}");
        }
        runner.stop().await;
    }

    async fn a_person_picks_what_could_win_and_nothing_else(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let row = stadium.begin(stadium.new_one(Rule::Manual, &["lines=5", "fails", "wrong lines=1"])).await;
        let pick = async |entry: i64| {
            stadium.world.store.pick_winner(&stadium.world.scope, row.id, entry, "key:me").await
        };
        assert!(matches!(pick(1).await, Err(CompetitionError::NotWaiting(CompetitionState::Queued))));
        let runner = stadium.runner().await;
        stadium.until_waiting(&row).await;
        {
            // Eliminated entries have released their sandboxes; the others keep theirs.
            let field = stadium.ring.field.lock().unwrap();
            assert_eq!((field.sandboxes.len(), field.resting.len()), (2, 2));
        }
        assert!(matches!(pick(4).await, Err(CompetitionError::NoEntry(4))));
        assert!(matches!(pick(2).await, Err(CompetitionError::CannotWin(2))));
        let picked = pick(3).await.unwrap();
        assert_eq!((picked.state, picked.winner), (CompetitionState::Publishing, Some(3)));
        assert_eq!(pick(3).await.unwrap().winner, Some(3));
        assert!(matches!(pick(1).await, Err(CompetitionError::NotWaiting(_))));
        runner.wake();
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done);
        let now = stadium.row(row.id).await;
        assert_eq!((now.state, now.winner, now.picked_by.as_deref()), (CompetitionState::Decided, Some(3), Some("key:me")));
        assert!(now.pull_url.is_some() && stadium.ring.field.lock().unwrap().sandboxes.is_empty());
        let told = stadium.world.told(&row.id.to_string()).await;
        assert_eq!(told.iter().filter(|kind| *kind == "competition.winner").count(), 1);
        runner.stop().await;
    }

    async fn where_no_checks_passed_the_rule_leaves_it_to_a_person(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let row = stadium.begin(stadium.new_one(Rule::Best, &["wrong", "wrong lines=1"])).await;
        let runner = stadium.runner().await;
        stadium.until_waiting(&row).await;
        let ranks: Vec<_> = stadium.entries(row.id).await.iter().map(|entry| entry.rank.unwrap()).collect();
        assert_eq!(ranks, [2, 1]);
        runner.stop().await;
    }

    async fn nobody_picks_in_time_and_all_is_given_back(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let row = stadium.begin(stadium.new_one(Rule::Manual, &THREE)).await;
        let runner = stadium.runner().await;
        stadium.until_waiting(&row).await;
        stadium.world.pass(3_601_000);
        runner.wake();
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Failed);
        let now = stadium.row(row.id).await;
        assert_eq!((now.state, now.error.unwrap().code.as_str()), (CompetitionState::Failed, "undecided"));
        assert!(stadium.ring.field.lock().unwrap().sandboxes.is_empty());
        let late = stadium.world.store.pick_winner(&stadium.world.scope, row.id, 1, "key:me").await;
        assert!(matches!(late, Err(CompetitionError::NotWaiting(CompetitionState::Failed))), "{late:?}");
        runner.stop().await;
    }

    async fn a_pick_stands_though_the_question_is_asked_again(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let row = stadium.begin(stadium.new_one(Rule::Manual, &THREE)).await;
        let runner = stadium.runner().await;
        stadium.until_waiting(&row).await;
        runner.stop().await;
        let (store, scope) = (&stadium.world.store, &stadium.world.scope);
        store.pick_winner(scope, row.id, 2, "key:me").await.unwrap();
        // As if its server died before it had recorded the question.
        database.execute("DELETE FROM run_steps WHERE name IN ('ask', 'pick')").await;
        let runner = stadium.runner().await;
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done);
        stadium.assert_second_won(&row).await;
        let events = store.events(scope, 0, 1000).await.unwrap();
        let asked = events.iter().filter(|event| event.payload["to"] == "waiting").count();
        assert_eq!(asked, 1);
        runner.stop().await;
    }

    async fn what_was_picked_waits_for_room(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let row = stadium.begin(stadium.new_one(Rule::Manual, &THREE)).await;
        let runner = stadium.runner().await;
        stadium.until_waiting(&row).await;
        stadium.world.outside.fail("full push", 2);
        let (store, scope) = (&stadium.world.store, &stadium.world.scope);
        store.pick_winner(scope, row.id, 2, "key:me").await.unwrap();
        runner.wake();
        for nap in ["room-1", "room-2"] {
            let parked = tokio::time::timeout(PATIENCE, async {
                loop {
                    let steps = store.run_steps(scope, row.run).await.unwrap();
                    let is_there = steps.iter().any(|step| step.name == nap);
                    if is_there && stadium.world.run(row.run).await.state == RunState::Parked {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
            parked.await.expect("it waits for room");
            let now = stadium.row(row.id).await;
            assert_eq!((now.state, now.winner), (CompetitionState::Publishing, Some(2)));
            assert_eq!(stadium.ring.field.lock().unwrap().sandboxes.len(), 3, "nothing is given up");
            stadium.world.pass(1_801_000);
            runner.wake();
        }
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done);
        stadium.assert_second_won(&row).await;
        runner.stop().await;
    }

    async fn who_is_through_is_kept_while_slower_ones_work(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let row = stadium.begin(stadium.new_one(Rule::Manual, &["lines=1", "hangs", "fails"])).await;
        let runner = stadium.runner().await;
        stadium.until_states(&row, &[EntryState::Done, EntryState::Working, EntryState::Failed]).await;
        stadium.ring.field.lock().unwrap().kept.clear();
        let sandboxes: Vec<_> = stadium.entries(row.id).await.iter().map(|entry| entry.sandbox.unwrap()).collect();
        let kept = tokio::time::timeout(PATIENCE, async {
            loop {
                let kept = stadium.ring.field.lock().unwrap().kept.clone();
                if kept.values().filter(|times| **times >= 2).count() >= 2 {
                    return kept;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let kept = kept.await.expect("forks are kept");
        assert!(kept.contains_key(&sandboxes[0]) && kept.contains_key(&sandboxes[1]), "{kept:?}");
        assert!(!kept.contains_key(&sandboxes[2]), "who is out is not kept");
        stadium.world.store.cancel_competition(&stadium.world.scope, row.id, "seen").await.unwrap();
        runner.wake();
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Cancelled);
        runner.stop().await;
    }

    async fn who_lost_its_sandbox_before_the_question_is_out_alone(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let row = stadium.begin(stadium.new_one(Rule::Manual, &THREE)).await;
        stadium.world.outside.block("before rest");
        let runner = stadium.runner().await;
        stadium.world.outside.reached().await;
        runner.kill().await;
        stadium.world.outside.unblock();
        stadium.ring.field.lock().unwrap().sandboxes.remove(&format!("{}/2", row.id));
        let runner = stadium.runner().await;
        stadium.until_waiting(&row).await;
        let entries = stadium.entries(row.id).await;
        let states: Vec<_> = entries.iter().map(|entry| entry.state).collect();
        assert_eq!(states, [EntryState::Done, EntryState::Failed, EntryState::Done]);
        assert_eq!(entries[1].error.as_ref().unwrap().code.as_str(), "sandbox_lost");
        // The remaining entries are ranked again.
        let ranks: Vec<_> = entries.iter().map(|entry| entry.rank.unwrap()).collect();
        assert_eq!(ranks, [1, 3, 2]);
        let (store, scope) = (&stadium.world.store, &stadium.world.scope);
        let gone = store.pick_winner(scope, row.id, 2, "key:me").await;
        assert!(matches!(gone, Err(CompetitionError::CannotWin(2))), "{gone:?}");
        store.pick_winner(scope, row.id, 1, "key:me").await.unwrap();
        runner.wake();
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done);
        assert_eq!(stadium.row(row.id).await.winner, Some(1));
        assert!(stadium.ring.field.lock().unwrap().sandboxes.is_empty());
        runner.stop().await;
    }

    async fn one_that_goes_wrong_does_not_hurt_the_others(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let labels = ["fails", "panics", "lazy", "unforked", "lines=2"];
        let row = stadium.begin(stadium.new_one(Rule::Best, &labels)).await;
        let runner = stadium.runner().await;
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done);
        assert_eq!(stadium.row(row.id).await.winner, Some(5));
        let entries = stadium.entries(row.id).await;
        let codes: Vec<_> =
            entries.iter().filter_map(|entry| entry.error.as_ref().map(|error| error.code.as_str())).collect();
        assert_eq!(codes, ["agent_failed", "panicked", "no_changes", "no_room"]);
        assert!(entries[..4].iter().all(|entry| entry.state == EntryState::Failed && !entry.can_win()));
        // Its changes are stored.
        let patch = stadium.world.store.entry_patch(&stadium.world.scope, row.id, 1).await.unwrap();
        assert_eq!(patch.unwrap().text, "fails");
        assert!(stadium.ring.field.lock().unwrap().sandboxes.is_empty());
        runner.stop().await;
    }

    async fn where_all_fail_it_fails_with_their_reasons(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let row = stadium.begin(stadium.new_one(Rule::Manual, &["fails", "lazy"])).await;
        let runner = stadium.runner().await;
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Failed);
        let error = stadium.row(row.id).await.error.unwrap();
        assert_eq!(error.code.as_str(), "all_failed");
        assert!(error.message.contains("entry 1: the agent ended with exit code 1"), "{}", error.message);
        assert!(error.message.contains("entry 2: the agent ended without changing anything"));
        assert!(stadium.ring.field.lock().unwrap().sandboxes.is_empty());
        runner.stop().await;
    }

    async fn what_prepares_it_must_work(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let mut new = stadium.new_one(Rule::Best, &THREE);
        new.terms.prepare_command = Some("false".into());
        let row = stadium.begin(new).await;
        let runner = stadium.runner().await;
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Failed);
        let now = stadium.row(row.id).await;
        assert_eq!((now.state, now.error.unwrap().code.as_str()), (CompetitionState::Failed, "prepare_failed"));
        let states: Vec<_> = stadium.entries(row.id).await.iter().map(|entry| entry.state).collect();
        assert_eq!(states, [EntryState::Cancelled; 3]);
        assert!(stadium.ring.field.lock().unwrap().sandboxes.is_empty());
        runner.stop().await;
    }

    async fn a_sandbox_that_others_prepared_is_forked_and_left_alone(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let theirs = SandboxId::generate();
        stadium.ring.field.lock().unwrap().sandboxes.insert("theirs".into(), theirs);
        let mut new = stadium.new_one(Rule::Best, &THREE);
        new.terms.source = Some(theirs);
        let row = stadium.begin(new).await;
        let runner = stadium.runner().await;
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done);
        stadium.assert_second_won(&row).await;
        {
            let field = stadium.ring.field.lock().unwrap();
            assert_eq!(field.sandboxes.keys().collect::<Vec<_>>(), ["theirs"]);
            assert_eq!(field.made, 3);
        }
        runner.stop().await;
    }

    async fn a_spent_budget_ends_those_at_work(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let mut new = stadium.new_one(Rule::Best, &["dear hangs", "hangs", "lines=1"]);
        // Enough for two, and the third costs far more.
        new.terms.budget_nanos = Some(1000);
        let row = stadium.begin(new).await;
        let runner = stadium.runner().await;
        while stadium.entries(row.id).await[2].state != EntryState::Done {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stadium.ring.field.lock().unwrap().is_dear = true;
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done);
        let entries = stadium.entries(row.id).await;
        for entry in &entries[..2] {
            assert_eq!((entry.state, entry.error.as_ref().unwrap().code.as_str()), (EntryState::Failed, "budget_exceeded"));
            // Its agent is ended, so its changes so far can be stored.
            let patch = stadium.world.store.entry_patch(&stadium.world.scope, row.id, entry.number).await.unwrap();
            assert_eq!(patch.unwrap().text, entry.label);
        }
        assert_eq!(stadium.row(row.id).await.winner, Some(3));
        // And the budget of one entry.
        let mut new = stadium.new_one(Rule::Best, &["dear", "lines=9"]);
        new.entries[0].budget_nanos = Some(500);
        let row = stadium.begin(new).await;
        runner.wake();
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done);
        let entries = stadium.entries(row.id).await;
        assert_eq!(entries[0].error.as_ref().unwrap().code.as_str(), "budget_exceeded");
        assert_eq!(stadium.row(row.id).await.winner, Some(2));
        runner.stop().await;
    }

    async fn as_an_attempt_its_winner_is_the_tasks(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let (store, scope) = (&stadium.world.store, &stadium.world.scope);
        let task = store.create_task(scope, new_task()).await.unwrap().id;
        store.say_to_task(scope, task, "me", "and the window", None).await.unwrap();
        let start = |replace| StartTask { agent: None, model: None, replace, reason: "started", actor: "test".into() };
        let new = stadium.new_one(Rule::Best, &THREE);
        let (row, competition) = store.compete_for_task(scope, task, start(false), new.clone()).await.unwrap();
        assert_eq!(row.state, TaskState::InProgress);
        let busy = store.compete_for_task(scope, task, start(false), new).await;
        assert!(matches!(busy, Err(CompetitionError::Task(coffer_store::TaskError::Busy))), "{busy:?}");
        let runner = stadium.runner().await;
        assert_eq!(stadium.world.until_over(row.run.unwrap()).await.state, RunState::Done);
        let row = store.task(scope, task).await.unwrap().unwrap();
        assert_eq!((row.state, &row.attention), (TaskState::InReview, &None));
        let branch = format!("task-{task}-2");
        assert_eq!(row.branch.as_ref(), Some(&branch));
        assert_eq!(row.pull_url.as_ref(), stadium.ring.field.lock().unwrap().pulls.get(&branch));
        assert!(row.pull_url.is_some() && row.pull_url == stadium.row(competition).await.pull_url);
        let attempts = store.attempts(scope, task).await.unwrap();
        assert_eq!((attempts.len(), attempts[0].competition), (1, Some(competition)));
        // Cancelling the task cancels the run in progress.
        stadium.world.outside.block("after run_agent");
        let new = stadium.new_one(Rule::Best, &THREE);
        let (row, competition) = store.compete_for_task(scope, task, start(false), new).await.unwrap();
        runner.wake();
        stadium.world.outside.reached().await;
        store.cancel_task(scope, task, "not wanted", "test").await.unwrap();
        stadium.world.outside.unblock();
        runner.wake();
        assert_eq!(stadium.world.until_over(row.run.unwrap()).await.state, RunState::Cancelled);
        assert_eq!(stadium.row(competition).await.state, CompetitionState::Cancelled);
        assert!(stadium.ring.field.lock().unwrap().sandboxes.is_empty());
        // Its branches differ from those of the first.
        let branches: Vec<_> = stadium.entries(competition).await.into_iter().map(|entry| entry.branch.unwrap()).collect();
        assert_eq!(branches, [1, 2, 3].map(|number| format!("task-{task}-2-{number}")));
        // The records of its competitions are deleted with the task.
        store.delete_task(scope, task).await.unwrap();
        assert!(store.competition(scope, competition).await.unwrap().is_none());
        runner.stop().await;
    }

    async fn what_is_long_over_is_forgotten(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let (store, scope) = (&stadium.world.store, &stadium.world.scope);
        let alone = stadium.begin(stadium.new_one(Rule::Best, &THREE)).await;
        let waits = stadium.begin(stadium.new_one(Rule::Manual, &THREE)).await;
        let task = store.create_task(scope, new_task()).await.unwrap().id;
        let start = StartTask { agent: None, model: None, replace: false, reason: "started", actor: "test".into() };
        let begun = store.compete_for_task(scope, task, start, stadium.new_one(Rule::Best, &THREE)).await;
        let (row, of_task) = begun.unwrap();
        let runner = stadium.runner().await;
        assert_eq!(stadium.world.until_over(alone.run).await.state, RunState::Done);
        assert_eq!(stadium.world.until_over(row.run.unwrap()).await.state, RunState::Done);
        stadium.until_waiting(&waits).await;
        let prune = async |records_ms| {
            let cutoffs = Cutoffs { records_ms, events_ms: 0, audit_ms: 0 };
            let pruned = store.prune(&store.operator(), Some(scope.project()), cutoffs, 100).await.unwrap();
            (pruned.competitions, pruned.patches)
        };
        assert_eq!(prune(0).await, (0, 0), "nothing is old enough");
        assert_eq!(prune(i64::MAX).await, (1, 3));
        assert_eq!(prune(i64::MAX).await, (0, 0));
        assert!(store.competition(scope, alone.id).await.unwrap().is_none());
        assert!(stadium.entries(alone.id).await.is_empty());
        // The result of a task's attempt stays with the task; the details of entries are deleted.
        assert_eq!(stadium.row(of_task).await.winner, Some(2));
        assert!(store.entry_patch(scope, of_task, 2).await.unwrap().is_none());
        assert!(stadium.entries(of_task).await[1].diff.is_some());
        // Only finished competitions can be old.
        assert!(store.entry_patch(scope, waits.id, 2).await.unwrap().is_some());
        runner.stop().await;
    }

    async fn a_competition_killed_at_either_side_of_every_effect_ends_right(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        for (count, method) in METHODS.iter().enumerate() {
            for side in ["before", "after"] {
                let row = stadium.begin(stadium.new_one(Rule::Best, &THREE)).await;
                stadium.world.outside.block(&format!("{side} {method}"));
                let runner = stadium.runner().await;
                stadium.world.outside.reached().await;
                runner.kill().await;
                stadium.world.outside.unblock();
                let runner = stadium.runner().await;
                assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done, "{side} {method}");
                stadium.assert_second_won(&row).await;
                let made = stadium.ring.field.lock().unwrap().made;
                assert_eq!(made, 4 * (2 * count + usize::from(side == "after") + 1), "{side} {method}");
                runner.stop().await;
            }
        }
        assert_eq!(stadium.world.outside.stale(), 0);
    }

    async fn competitions_killed_at_100_moments_end_right(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let mut begun = Vec::new();
        for kill in 0..100u64 {
            if kill % 10 == 0 {
                begun.push(stadium.begin(stadium.new_one(Rule::Best, &THREE)).await);
            }
            let runner = stadium.runner().await;
            tokio::time::sleep(Duration::from_micros((kill * 7919) % 20_000)).await;
            runner.kill().await;
        }
        let runner = stadium.runner().await;
        for row in &begun {
            assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Done);
            stadium.assert_second_won(row).await;
        }
        {
            let field = stadium.ring.field.lock().unwrap();
            assert_eq!((field.made, field.pulls.len()), (4 * begun.len(), begun.len()));
        }
        runner.stop().await;
    }

    async fn a_competition_cancelled_in_every_step_leaves_nothing(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let runner = stadium.runner().await;
        for method in METHODS {
            stadium.world.outside.block(&format!("after {method}"));
            let row = stadium.begin(stadium.new_one(Rule::Best, &THREE)).await;
            runner.wake();
            stadium.world.outside.reached().await;
            stadium.world.store.cancel_competition(&stadium.world.scope, row.id, "not wanted").await.unwrap();
            stadium.world.outside.unblock();
            runner.wake();
            assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Cancelled, "{method}");
            let now = stadium.row(row.id).await;
            assert_eq!(now.state, CompetitionState::Cancelled, "{method}");
            assert!(stadium.ring.field.lock().unwrap().sandboxes.is_empty(), "{method}");
            let again = stadium.world.store.cancel_competition(&stadium.world.scope, row.id, "again").await;
            assert!(matches!(again, Err(CompetitionError::NotWaiting(CompetitionState::Cancelled))));
        }
        // And while it waits for a person.
        let row = stadium.begin(stadium.new_one(Rule::Manual, &THREE)).await;
        runner.wake();
        stadium.until_waiting(&row).await;
        stadium.world.store.cancel_competition(&stadium.world.scope, row.id, "not wanted").await.unwrap();
        runner.wake();
        assert_eq!(stadium.world.until_over(row.run).await.state, RunState::Cancelled);
        assert!(stadium.ring.field.lock().unwrap().sandboxes.is_empty());
        runner.stop().await;
    }

    async fn the_same_key_begins_one_and_others_see_nothing_of_it(database: &TestDatabase) {
        let stadium = Stadium::new(database).await;
        let (store, scope) = (&stadium.world.store, &stadium.world.scope);
        let keyed = |print: &str| NewCompetition {
            idempotency: Some(("k".into(), print.into())),
            ..stadium.new_one(Rule::Best, &THREE)
        };
        let first = stadium.begin(keyed("a")).await;
        assert_eq!(stadium.begin(keyed("a")).await.id, first.id);
        // Also if all ask concurrently.
        let other = || NewCompetition { idempotency: Some(("at once".into(), "a".into())), ..keyed("a") };
        let at_once = futures_util::future::join_all((0..8).map(|_| store.create_competition(scope, other()))).await;
        let ids: std::collections::BTreeSet<_> = at_once.into_iter().map(|begun| begun.unwrap().id).collect();
        assert_eq!(ids.len(), 1);
        store.cancel_competition(scope, *ids.first().unwrap(), "seen").await.unwrap();
        let other = store.create_competition(scope, keyed("b")).await;
        assert!(matches!(other, Err(CompetitionError::KeyReused)), "{other:?}");
        let theirs = crate::world::project(store, "theirs").await;
        assert!(store.competition(&theirs, first.id).await.unwrap().is_none());
        assert!(store.competition_entries(&theirs, first.id).await.unwrap().is_empty());
        assert!(store.competitions(&theirs, &coffer_store::CompetitionFilter { limit: 9, ..Default::default() }).await.unwrap().is_empty());
        let mut both = [first.id, *ids.first().unwrap()];
        both.sort();
        let mine = store.entries_of_competitions(scope, &both).await.unwrap();
        assert_eq!(mine.keys().copied().collect::<Vec<_>>(), both);
        assert_eq!(mine[&first.id], stadium.entries(first.id).await);
        assert!(store.entries_of_competitions(&theirs, &both).await.unwrap().is_empty());
        assert!(store.entries_of_competitions(scope, &[]).await.unwrap().is_empty());
        let picked = store.pick_winner(&theirs, first.id, 1, "x").await;
        assert!(matches!(picked, Err(CompetitionError::NotFound)));
        assert!(matches!(store.cancel_competition(&theirs, first.id, "x").await, Err(CompetitionError::NotFound)));
        let foreign = store.create_competition(&theirs, stadium.new_one(Rule::Best, &THREE)).await;
        assert!(matches!(foreign, Err(CompetitionError::NoAgent(_))), "{foreign:?}");
        let found = store.competitions(scope, &coffer_store::CompetitionFilter {
            state: Some(CompetitionState::Queued), limit: 9, ..Default::default()
        }).await.unwrap();
        assert_eq!(found.iter().map(|row| row.id).collect::<Vec<_>>(), [first.id]);
        // A run that has not begun ends at once.
        let cancelled = store.cancel_competition(scope, first.id, "not wanted").await.unwrap();
        assert_eq!(cancelled.state, CompetitionState::Cancelled);
    }
}
