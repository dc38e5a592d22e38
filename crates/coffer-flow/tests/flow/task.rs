//! The run of a task, with a workshop that counts and servers that die.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::agent::{AgentDefinition, Preset};
use coffer_core::{AgentId, Priority, RunId, TaskId, TaskState};
use coffer_flow::task::{Ending, TaskKind};
use coffer_flow::{Kind, Runner};
use coffer_store::{NewAgent, NewTask, RunState, StartTask, TaskRow};
use coffer_testkit::on_both;
use serde_json::json;

use crate::shop::{METHODS, Shop};
use crate::world::World;

pub(crate) struct Board {
    pub(crate) world: World,
    pub(crate) shop: Shop,
    pub(crate) agent: AgentId,
}

impl Board {
    pub(crate) async fn new(database: &coffer_testkit::TestDatabase) -> Self {
        let world = World::new(database).await;
        let definition = Some(AgentDefinition::of(Preset::Codex));
        let agent = world
            .store
            .create_agent(&world.scope, NewAgent { name: "coder".into(), definition })
            .await
            .unwrap()
            .id;
        let shop = Shop::new(world.outside.clone());
        Self { world, shop, agent }
    }

    pub(crate) async fn runner(&self) -> Runner {
        let kind: Arc<dyn Kind> =
            Arc::new(TaskKind::new(self.world.store.clone(), Arc::new(self.shop.clone())));
        Runner::start(self.world.store.clone(), self.world.settings("here"), vec![kind]).await.unwrap()
    }

    pub(crate) async fn task(&self) -> TaskId {
        let new = NewTask {
            title: "Fix it".into(),
            description: "It is broken.".into(),
            state: TaskState::Todo,
            priority: Priority::Medium,
            labels: Vec::new(),
            repository: Some("local/app".into()),
            base_branch: None,
            agent: Some(self.agent),
            model: None,
            check_command: Some("make test".into()),
            budget_nanos: None,
            context_id: None,
            actor: "test".into(),
        };
        let task = self.world.store.create_task(&self.world.scope, new).await.unwrap().id;
        // A check that fails once is the end, unless a test says otherwise.
        self.tries(task, Some(0)).await;
        task
    }

    pub(crate) async fn tries(&self, task: TaskId, tries: Option<i64>) {
        self.world.store.set_check_tries(&self.world.scope, task, tries, "test").await.unwrap();
    }

    /// What the turns of a run were told, in order.
    pub(crate) fn turns(&self, run: RunId) -> Vec<Vec<String>> {
        let world = self.shop.world.lock().unwrap();
        (1..).map_while(|number| world.turns.get(&format!("{run}/{number}")).cloned()).collect()
    }

    pub(crate) async fn start(&self, task: TaskId) -> RunId {
        self.begin(task, false).await
    }

    pub(crate) async fn begin(&self, task: TaskId, replace: bool) -> RunId {
        let start = StartTask { agent: None, model: None, replace, reason: "started", actor: "test".into() };
        self.world.store.start_task(&self.world.scope, task, start).await.unwrap().1
    }

    pub(crate) async fn row(&self, task: TaskId) -> TaskRow {
        self.world.store.task(&self.world.scope, task).await.unwrap().unwrap()
    }

    /// One branch, one commit, one pull request, and no sandbox left.
    pub(crate) async fn assert_done_once(&self, task: TaskId, run: RunId) {
        let row = self.row(task).await;
        assert_eq!((row.state, &row.attention), (TaskState::InReview, &None));
        let branch = format!("task-{task}");
        let commit = format!("{branch}@{run}");
        {
            let outside = self.shop.world.lock().unwrap();
            assert_eq!(outside.branches[&branch].as_deref(), Some(&*commit));
            assert_eq!(outside.commits.iter().filter(|known| **known == commit).count(), 1);
            assert_eq!(row.pull_url.as_ref(), outside.pulls.get(&branch));
            assert!(!outside.sandboxes.contains_key(&run.to_string()), "a sandbox is left");
            assert!(outside.endings.contains(&(run.to_string(), Ending::Done)));
        }
        assert_eq!((row.branch, row.commit), (Some(branch), Some(commit)));
        let attempts = self.world.store.attempts(&self.world.scope, task).await.unwrap();
        let attempt = attempts.iter().find(|attempt| attempt.run == run).unwrap();
        assert_eq!((&*attempt.state, attempt.note.cost_nanos), ("done", Some(5)));
        assert_eq!((attempt.note.input_tokens, attempt.note.output_tokens), (Some(100), Some(10)));
        assert!(attempt.note.sandbox.is_some() && attempt.note.summary.as_deref() == Some("done"));
    }
}

on_both! {
    async fn a_task_becomes_a_pull_request(database: &TestDatabase) {
        let board = Board::new(database).await;
        let task = board.task().await;
        let run = board.start(task).await;
        assert_eq!(board.row(task).await.state, TaskState::InProgress);
        let runner = board.runner().await;
        assert_eq!(board.world.until_over(run).await.state, RunState::Done);
        board.assert_done_once(task, run).await;
        let moves = board.world.store.task_history(&board.world.scope, task).await.unwrap();
        let states: Vec<_> = moves.iter().map(|moved| moved.to).collect();
        assert_eq!(states, [TaskState::Todo, TaskState::InProgress, TaskState::InReview]);
        runner.stop().await;
    }

    async fn killed_at_either_side_of_every_effect_it_ends_right(database: &TestDatabase) {
        let board = Board::new(database).await;
        for (count, method) in METHODS.iter().enumerate() {
            for side in ["before", "after"] {
                let task = board.task().await;
                let run = board.start(task).await;
                board.world.outside.block(&format!("{side} {method}"));
                let runner = board.runner().await;
                board.world.outside.reached().await;
                runner.kill().await;
                board.world.outside.unblock();
                let runner = board.runner().await;
                assert_eq!(board.world.until_over(run).await.state, RunState::Done, "{side} {method}");
                board.assert_done_once(task, run).await;
                let made = board.shop.world.lock().unwrap().sandboxes_made;
                assert_eq!(made, 2 * count + usize::from(side == "after") + 1, "{side} {method}");
                runner.stop().await;
            }
        }
    }

    async fn killed_at_200_moments_tasks_end_right(database: &TestDatabase) {
        let board = Board::new(database).await;
        let mut begun = Vec::new();
        for kill in 0..200u64 {
            if kill % 10 == 0 {
                let task = board.task().await;
                begun.push((task, board.start(task).await));
            }
            let runner = board.runner().await;
            tokio::time::sleep(Duration::from_micros((kill * 7919) % 12_000)).await;
            runner.kill().await;
        }
        let runner = board.runner().await;
        for (task, run) in &begun {
            assert_eq!(board.world.until_over(*run).await.state, RunState::Done);
            board.assert_done_once(*task, *run).await;
        }
        {
            let outside = board.shop.world.lock().unwrap();
            assert_eq!(outside.sandboxes_made, begun.len());
            assert_eq!((outside.pulls.len(), outside.branches.len()), (begun.len(), begun.len()));
        }
        runner.stop().await;
    }

    async fn cancelled_in_every_step_nothing_is_left(database: &TestDatabase) {
        let board = Board::new(database).await;
        let runner = board.runner().await;
        for method in METHODS {
            let task = board.task().await;
            board.world.outside.block(&format!("after {method}"));
            let run = board.start(task).await;
            board.world.outside.reached().await;
            board.world.store.cancel_task(&board.world.scope, task, "not wanted", "test").await.unwrap();
            board.world.outside.unblock();
            runner.wake();
            assert_eq!(board.world.until_over(run).await.state, RunState::Cancelled, "{method}");
            assert_eq!(board.row(task).await.state, TaskState::Cancelled);
            let outside = board.shop.world.lock().unwrap();
            assert!(!outside.sandboxes.contains_key(&run.to_string()), "{method}");
        }
        runner.stop().await;
    }

    async fn a_failure_is_for_a_person_and_can_be_tried_again(database: &TestDatabase) {
        let board = Board::new(database).await;
        let runner = board.runner().await;
        for (how, code, step) in [
            ("fatal clone", "broken", Some("clone")),
            ("agent", "agent_failed", None),
            ("nothing to commit", "no_changes", None),
            ("the check", "check_failed", None),
            ("fatal push", "broken", Some("push")),
        ] {
            let task = board.task().await;
            board.world.outside.fail(how, 1);
            let run = board.start(task).await;
            assert_eq!(board.world.until_over(run).await.state, RunState::Failed);
            let row = board.row(task).await;
            let attention = row.attention.unwrap();
            assert_eq!((row.state, attention.code.as_str(), attention.step.as_deref()), (TaskState::InProgress, code, step));
            assert!(board.shop.world.lock().unwrap().sandboxes.contains_key(&run.to_string()), "it is kept");
            assert!(!board.shop.world.lock().unwrap().pulls.contains_key(&format!("task-{task}")));
            let again = board.start(task).await;
            assert_eq!(board.world.until_over(again).await.state, RunState::Done);
            board.assert_done_once(task, again).await;
            assert_eq!(board.row(task).await.attempts, 2);
        }
        // The missing part comes back.
        board.world.outside.fail("push", 2);
        let task = board.task().await;
        let run = board.start(task).await;
        assert_eq!(board.world.until_over(run).await.state, RunState::Done);
        runner.stop().await;
    }

    async fn what_is_said_is_heard_in_the_same_attempt_or_the_next(database: &TestDatabase) {
        let board = Board::new(database).await;
        let (store, scope) = (&board.world.store, &board.world.scope);
        let runner = board.runner().await;
        let task = board.task().await;
        store.say_to_task(scope, task, "ann", "mind the gap", None).await.unwrap();
        board.world.outside.block("after run_agent");
        let run = board.start(task).await;
        board.world.outside.reached().await;
        let about = json!({ "file": "src/a.rs", "line": 7 });
        store.say_to_task(scope, task, "ben", "why this?", Some(about)).await.unwrap();
        runner.kill().await;
        board.world.outside.unblock();
        let runner = board.runner().await;
        board.world.until_over(run).await;
        {
            let outside = board.shop.world.lock().unwrap();
            assert_eq!(outside.turns[&format!("{run}/1")], ["mind the gap"]);
            assert_eq!(outside.turns[&format!("{run}/2")], ["src/a.rs:7: why this?"]);
        }
        // A later message goes to the next attempt, on the same branch and pull request.
        let pull = board.row(task).await.pull_url;
        store.say_to_task(scope, task, "ann", "one more thing", None).await.unwrap();
        let next = board.start(task).await;
        board.world.until_over(next).await;
        let row = board.row(task).await;
        assert_eq!((row.pull_url, row.state, row.attempts), (pull, TaskState::InReview, 2));
        assert_eq!(board.shop.world.lock().unwrap().turns[&format!("{next}/1")], ["one more thing"]);
        runner.stop().await;
    }

    async fn what_a_failed_attempt_was_told_is_told_the_next(database: &TestDatabase) {
        let board = Board::new(database).await;
        let (store, scope) = (&board.world.store, &board.world.scope);
        let runner = board.runner().await;
        for how in ["fatal clone", "agent", "nothing to commit", "fatal push"] {
            let task = board.task().await;
            store.say_to_task(scope, task, "ann", "mind the gap", None).await.unwrap();
            board.world.outside.fail(how, 1);
            let run = board.start(task).await;
            assert_eq!(board.world.until_over(run).await.state, RunState::Failed, "{how}");
            assert_eq!(store.task_messages(scope, task, 0, 10).await.unwrap()[0].run, None, "{how}");
            let next = board.start(task).await;
            assert_eq!(board.world.until_over(next).await.state, RunState::Done, "{how}");
            let turns = board.shop.world.lock().unwrap().turns[&format!("{next}/1")].clone();
            assert_eq!(turns, ["mind the gap"], "{how}");
            assert_eq!(store.task_messages(scope, task, 0, 10).await.unwrap()[0].run, Some(next));
        }
        // One that never began, and one that was ended while its agent worked.
        let task = board.task().await;
        store.say_to_task(scope, task, "ann", "mind the gap", None).await.unwrap();
        board.world.outside.block("after run_agent");
        let run = board.start(task).await;
        board.world.outside.reached().await;
        store.cancel_task(scope, task, "not now", "test").await.unwrap();
        board.world.outside.unblock();
        runner.wake();
        assert_eq!(board.world.until_over(run).await.state, RunState::Cancelled);
        runner.stop().await;
        board.start(task).await;
        assert_eq!(store.task_messages(scope, task, 0, 10).await.unwrap()[0].run, board.row(task).await.run);
        store.cancel_task(scope, task, "not now", "test").await.unwrap();
        assert_eq!(store.task_messages(scope, task, 0, 10).await.unwrap()[0].run, None);
        // Work that fails the check is still on the branch, where the next attempt continues.
        let runner = board.runner().await;
        board.world.outside.fail("the check", 1);
        let run = board.start(task).await;
        assert_eq!(board.world.until_over(run).await.state, RunState::Failed);
        assert_eq!(store.task_messages(scope, task, 0, 10).await.unwrap()[0].run, Some(run));
        runner.stop().await;
    }

    async fn what_a_check_refuses_stays_out_of_the_pull_request(database: &TestDatabase) {
        let board = Board::new(database).await;
        let (store, scope) = (&board.world.store, &board.world.scope);
        let runner = board.runner().await;
        let task = board.task().await;
        let first = board.start(task).await;
        assert_eq!(board.world.until_over(first).await.state, RunState::Done);
        let proposed = board.row(task).await;
        store.say_to_task(scope, task, "ann", "mind the gap", None).await.unwrap();
        board.world.outside.fail("the check", 1);
        let second = board.start(task).await;
        assert_eq!(board.world.until_over(second).await.state, RunState::Failed);
        let row = board.row(task).await;
        let (branch, pull) = (format!("task-{task}"), proposed.pull_url.clone().unwrap());
        {
            let outside = board.shop.world.lock().unwrap();
            assert_eq!(outside.branches[&branch], proposed.commit, "the pull request is as it was");
            let kept = format!("{branch}@{second}");
            assert_eq!(outside.branches[&format!("{branch}-attempt-2")].as_deref(), Some(&*kept));
        }
        assert_eq!((&row.branch, &row.commit), (&proposed.branch, &proposed.commit));
        let attention = row.attention.unwrap();
        assert_eq!(attention.code.as_str(), "check_failed");
        for told in [format!("`{branch}-attempt-2`"), pull] {
            assert!(attention.message.contains(&told), "{}", attention.message);
        }
        // The next attempt begins at the pull request, and gets the refused one's messages.
        let third = board.start(task).await;
        assert_eq!(board.world.until_over(third).await.state, RunState::Done);
        board.assert_done_once(task, third).await;
        assert_eq!(board.shop.world.lock().unwrap().turns[&format!("{third}/1")], ["mind the gap"]);
        runner.stop().await;
    }

    async fn what_no_turn_is_left_for_is_the_next_attempts(database: &TestDatabase) {
        let board = Board::new(database).await;
        let (store, scope) = (&board.world.store, &board.world.scope);
        let runner = board.runner().await;
        let task = board.task().await;
        *board.shop.chatter.lock().unwrap() = Some((store.clone(), *scope));
        let run = board.start(task).await;
        assert_eq!(board.world.until_over(run).await.state, RunState::Done);
        *board.shop.chatter.lock().unwrap() = None;
        {
            let outside = board.shop.world.lock().unwrap();
            assert_eq!(outside.turns[&format!("{run}/20")], ["after 19"]);
            assert!(!outside.turns.contains_key(&format!("{run}/21")));
        }
        assert_eq!(board.row(task).await.attention.unwrap().code.as_str(), "unheard_messages");
        let next = board.start(task).await;
        assert_eq!(board.world.until_over(next).await.state, RunState::Done);
        assert_eq!(board.shop.world.lock().unwrap().turns[&format!("{next}/1")], ["after 20"]);
        runner.stop().await;
    }

    async fn another_attempt_waits_until_the_first_has_cleaned_up(database: &TestDatabase) {
        let board = Board::new(database).await;
        let runner = board.runner().await;
        let task = board.task().await;
        board.world.outside.block("after run_agent");
        let first = board.start(task).await;
        board.world.outside.reached().await;
        board.world.outside.block("before finish");
        let second = board.begin(task, true).await;
        runner.wake();
        board.world.outside.reached().await;
        // The first is releasing its sandbox.
        assert_eq!(board.world.run(second).await.state, RunState::Queued);
        runner.kill().await;
        board.world.outside.unblock();
        let runner = board.runner().await;
        assert_eq!(board.world.until_over(first).await.state, RunState::Cancelled);
        assert_eq!(board.world.until_over(second).await.state, RunState::Done);
        board.assert_done_once(task, second).await;
        assert!(board.world.run(second).await.started_ms >= board.world.run(first).await.ended_ms);
        runner.stop().await;
    }

    async fn a_failed_check_is_corrected_in_the_same_sandbox(database: &TestDatabase) {
        let board = Board::new(database).await;
        let runner = board.runner().await;
        let task = board.task().await;
        board.tries(task, None).await;
        board.world.outside.fail("the check", 2);
        let run = board.start(task).await;
        assert_eq!(board.world.until_over(run).await.state, RunState::Done);
        assert_eq!(board.turns(run), [vec![], vec!["correction 1".to_string()], vec!["correction 2".to_string()]]);
        assert_eq!(board.shop.world.lock().unwrap().sandboxes_made, 1);
        let steps = board.world.store.run_steps(&board.world.scope, run).await.unwrap();
        let names: Vec<_> = steps.iter().map(|step| step.name.as_str()).collect();
        let first = names.iter().position(|name| *name == "agent-1").unwrap();
        assert_eq!(names[first..first + 8], ["agent-1", "hear-1", "check", "agent-2", "hear-2", "check-2", "agent-3", "hear-3"]);
        let row = board.row(task).await;
        assert_eq!((row.state, row.attention), (TaskState::InReview, None));
        // The usage of all turns counts.
        let attempts = board.world.store.attempts(&board.world.scope, task).await.unwrap();
        assert_eq!((attempts[0].note.cost_nanos, attempts[0].note.input_tokens), (Some(15), Some(300)));
        runner.stop().await;
    }

    async fn a_person_is_asked_after_the_last_correction(database: &TestDatabase) {
        let board = Board::new(database).await;
        let runner = board.runner().await;
        let task = board.task().await;
        board.tries(task, Some(2)).await;
        board.world.outside.fail("the check", 3);
        let run = board.start(task).await;
        assert_eq!(board.world.until_over(run).await.state, RunState::Failed);
        assert_eq!(board.turns(run).len(), 3);
        let attention = board.row(task).await.attention.unwrap();
        assert_eq!(attention.code.as_str(), "check_failed");
        assert!(attention.message.ends_with(", after 2 corrections"), "{}", attention.message);
        let pushed = board.shop.world.lock().unwrap().branches[&format!("task-{task}")].clone();
        assert!(pushed.is_some(), "what there is is on the branch");
        // The next attempt knows how this one ended.
        board.world.outside.block("after run_agent");
        let next = board.start(task).await;
        board.world.outside.reached().await;
        let steps = board.world.store.run_steps(&board.world.scope, next).await.unwrap();
        let brief = steps[0].output.clone().unwrap();
        assert!(brief["ended"].as_str().unwrap().starts_with("check_failed: "), "{brief}");
        assert_eq!(brief["last_words"], "done");
        runner.kill().await;
        board.world.outside.unblock();
        let runner = board.runner().await;
        assert_eq!(board.world.until_over(next).await.state, RunState::Done);
        runner.stop().await;
    }

    async fn corrections_are_done_once_however_often_servers_die(database: &TestDatabase) {
        let board = Board::new(database).await;
        for method in ["run_agent", "check"] {
            for side in ["before", "after"] {
                for skip in 0..3 {
                    let task = board.task().await;
                    board.tries(task, Some(3)).await;
                    let run = board.start(task).await;
                    board.world.outside.fail("the check", 2);
                    // Dies at the first, second and third time.
                    let mut runner = board.runner().await;
                    for _ in 0..=skip {
                        board.world.outside.block(&format!("{side} {method}"));
                        board.world.outside.reached().await;
                        runner.kill().await;
                        board.world.outside.unblock();
                        runner = board.runner().await;
                    }
                    assert_eq!(board.world.until_over(run).await.state, RunState::Done, "{side} {method}");
                    assert_eq!(board.turns(run).len(), 3, "{side} {method} {skip}");
                    let checks = board.shop.world.lock().unwrap().checks.keys().filter(|key| key.starts_with(&run.to_string())).count();
                    assert_eq!(checks, 3);
                    runner.stop().await;
                }
            }
        }
    }

    async fn an_agent_that_fails_while_it_corrects_loses_no_work(database: &TestDatabase) {
        let board = Board::new(database).await;
        let task = board.task().await;
        board.tries(task, Some(3)).await;
        board.world.outside.fail("the check", 1);
        board.world.outside.block("after check");
        let run = board.start(task).await;
        let runner = board.runner().await;
        board.world.outside.reached().await;
        runner.kill().await;
        board.world.outside.fail("agent", 1);
        board.world.outside.unblock();
        let runner = board.runner().await;
        assert_eq!(board.world.until_over(run).await.state, RunState::Failed);
        let attention = board.row(task).await.attention.unwrap();
        assert_eq!(attention.code.as_str(), "check_failed");
        assert!(attention.message.contains("no idea when it should correct that"), "{}", attention.message);
        assert!(board.shop.world.lock().unwrap().branches[&format!("task-{task}")].is_some());
        runner.stop().await;
    }
}
