//! An attempt that waits for a person: at a budget, or interrupted; also when servers die.

use coffer_core::{Answer, RunId, TaskId, TaskState};
use coffer_flow::task::{Ending, Halt};
use coffer_store::{GivenAnswer, RunState, TaskError};
use coffer_testkit::on_both;

use crate::task::Board;
use crate::world::is;

const DAY: i64 = 24 * 3_600_000;
const BUDGET: i64 = 1_000_000_000;

fn at_budget() -> Halt {
    Halt::Budget {
        is_others: false,
        spent_nanos: Some(BUDGET + 5),
        budget_nanos: Some(BUDGET),
        message: "it is spent".into(),
    }
}

impl Board {
    fn halt(&self, turn: usize, halt: Halt) {
        self.shop.world.lock().unwrap().halts.insert(turn, halt);
    }

    async fn until_asked(&self, run: RunId) {
        self.world.until(run, is(RunState::Parked)).await;
    }

    async fn answer(&self, task: TaskId, answer: Answer, budget_nanos: Option<i64>) -> Result<(), TaskError> {
        let given = GivenAnswer { answer, budget_nanos };
        self.world.store.answer_question(&self.world.scope, task, given, "key:ann").await.map(drop)
    }

    async fn attention(&self, task: TaskId) -> Option<String> {
        self.row(task).await.attention.map(|attention| attention.code.as_str().to_string())
    }

    fn draft(&self, task: TaskId) -> Option<String> {
        self.shop.world.lock().unwrap().drafts.get(&format!("task-{task}")).cloned()
    }

    /// How often this event was told of a task.
    async fn count(&self, task: TaskId, kind: &str) -> usize {
        self.world.told(&task.to_string()).await.iter().filter(|told| *told == kind).count()
    }
}

on_both! {
    async fn at_its_budget_an_attempt_waits_and_goes_on_when_that_is_raised(database: &TestDatabase) {
        let board = Board::new(database).await;
        let task = board.task().await;
        board.halt(1, at_budget());
        let run = board.start(task).await;
        let runner = board.runner().await;
        board.until_asked(run).await;
        assert_eq!(board.attention(task).await.as_deref(), Some("budget_wanted"));
        let asked = board.world.store.open_question(&board.world.scope, task).await.unwrap().unwrap();
        assert_eq!((asked.number, asked.spent_nanos, &*asked.message), (1, Some(BUDGET + 5), "it is spent"));
        assert!(board.shop.world.lock().unwrap().resting[&run.to_string()]);

        // What does not answer it changes nothing.
        let too_small = board.answer(task, Answer::Raise, Some(BUDGET + 5)).await;
        assert!(matches!(too_small, Err(TaskError::BudgetTooSmall(spent)) if spent == BUDGET + 5));
        let without = board.answer(task, Answer::Raise, None).await;
        assert!(matches!(without, Err(TaskError::BudgetTooSmall(_))));
        assert!(matches!(board.answer(task, Answer::GoOn, None).await, Err(TaskError::WrongAnswer(_))));
        board.world.store.say_to_task(&board.world.scope, task, "key:ann", "use tabs", None).await.unwrap();
        assert!(board.world.store.open_question(&board.world.scope, task).await.unwrap().is_some());

        board.answer(task, Answer::Raise, Some(3 * BUDGET)).await.unwrap();
        runner.wake();
        assert_eq!(board.world.until_over(run).await.state, RunState::Done);
        let told = "stopped: the budget was spent, and there is more now";
        assert_eq!(board.turns(run), [vec![], vec![told.to_string(), "use tabs".to_string()]]);
        {
            let outside = board.shop.world.lock().unwrap();
            assert_eq!(outside.budgets, [None, Some(3 * BUDGET)]);
            assert_eq!(outside.sandboxes_made, 1);
        }
        let row = board.row(task).await;
        assert_eq!((row.state, row.attention, row.budget_nanos), (TaskState::InReview, None, Some(3 * BUDGET)));
        assert_eq!(board.draft(task), None);
        assert!(matches!(board.answer(task, Answer::Stop, None).await, Err(TaskError::NotAsked)));
        runner.stop().await;
    }

    async fn finished_or_forgotten_the_work_becomes_a_draft_once(database: &TestDatabase) {
        let board = Board::new(database).await;
        board.halt(1, at_budget());
        let runner = board.runner().await;
        for (answer, why) in [
            (Some(Answer::Finish), "key:ann finished it before its agent was done"),
            (None, "nobody answered in time what it waited for"),
        ] {
            let task = board.task().await;
            let run = board.start(task).await;
            board.until_asked(run).await;
            match answer {
                Some(answer) => board.answer(task, answer, None).await.unwrap(),
                None => board.world.pass(DAY + 1),
            }
            runner.wake();
            assert_eq!(board.world.until_over(run).await.state, RunState::Done, "{answer:?}");
            assert_eq!(board.draft(task).as_deref(), Some(why));
            assert_eq!(board.turns(run).len(), 1);
            let checked = board.shop.world.lock().unwrap().checks.keys().any(|key| key.starts_with(&run.to_string()));
            assert!(!checked, "the work was not done");
            board.assert_done_once(task, run).await;
            assert_eq!(board.count(task, "task.answered").await, 1);
        }
        runner.stop().await;
    }

    async fn stopped_the_work_stays_on_its_branch_and_nobody_is_called(database: &TestDatabase) {
        let board = Board::new(database).await;
        let task = board.task().await;
        board.halt(1, at_budget());
        let run = board.start(task).await;
        let runner = board.runner().await;
        board.until_asked(run).await;
        board.answer(task, Answer::Stop, None).await.unwrap();
        runner.wake();
        let row = board.world.until_over(run).await;
        assert_eq!(row.failure.unwrap().code.as_str(), "stopped");
        let row = board.row(task).await;
        assert_eq!((row.state, row.attention), (TaskState::Todo, None));
        {
            let outside = board.shop.world.lock().unwrap();
            assert!(outside.branches[&format!("task-{task}")].is_some());
            assert!(outside.pulls.is_empty() && !outside.sandboxes.contains_key(&run.to_string()));
            assert!(outside.endings.contains(&(run.to_string(), Ending::Done)));
        }
        runner.stop().await;
    }

    async fn an_interrupted_agent_goes_on_with_what_a_person_says(database: &TestDatabase) {
        let board = Board::new(database).await;
        let (store, scope) = (&board.world.store, &board.world.scope);
        let task = board.task().await;
        let idle = store.interrupt_task(scope, task, "key:ann").await;
        assert!(matches!(idle, Err(TaskError::NoTurn)));
        let run = board.start(task).await;
        board.world.outside.block("after run_agent");
        let runner = board.runner().await;
        board.world.outside.reached().await;
        // Twice, in the moment in which its turn ends by itself.
        store.interrupt_task(scope, task, "key:ann").await.unwrap();
        store.interrupt_task(scope, task, "key:ann").await.unwrap();
        assert_eq!(board.count(task, "task.interrupted").await, 1);
        runner.kill().await;
        board.world.outside.unblock();
        let runner = board.runner().await;
        board.until_asked(run).await;
        assert_eq!(board.attention(task).await.as_deref(), Some("interrupted"));
        // A person who interrupts is there: its sandbox stays as it is at first.
        assert!(board.shop.world.lock().unwrap().resting.is_empty());
        board.world.pass(DAY / 24);
        runner.wake();
        board.world.until(run, |row| row.state == RunState::Parked && row.wake_ms > coffer_flow::Clock::default().now() + DAY / 2).await;
        assert!(board.shop.world.lock().unwrap().resting[&run.to_string()]);

        store.say_to_task(scope, task, "key:ann", "the other door", None).await.unwrap();
        runner.wake();
        assert_eq!(board.world.until_over(run).await.state, RunState::Done);
        let told = ["stopped: a person interrupted you", "the other door"].map(String::from).to_vec();
        assert_eq!(board.turns(run), [vec![], told]);
        board.assert_interrupted_once(task).await;
        runner.stop().await;
    }

    async fn an_agents_own_words_answer_nothing(database: &TestDatabase) {
        let board = Board::new(database).await;
        let task = board.task().await;
        board.halt(1, Halt::Interrupted { by: "key:ann".into() });
        let run = board.start(task).await;
        let runner = board.runner().await;
        board.until_asked(run).await;
        let agent = board.world.store.operator().acting_for(board.world.scope.project(), Some(board.agent));
        board.world.store.say_to_task(&agent, task, "agent:it", "go on", None).await.unwrap();
        assert!(board.world.store.open_question(&board.world.scope, task).await.unwrap().is_some());
        // Ended while it waits, nothing is left.
        board.world.store.cancel_task(&board.world.scope, task, "not wanted", "test").await.unwrap();
        runner.wake();
        assert_eq!(board.world.until_over(run).await.state, RunState::Cancelled);
        assert!(board.world.store.open_question(&board.world.scope, task).await.unwrap().is_none());
        assert!(!board.shop.world.lock().unwrap().sandboxes.contains_key(&run.to_string()));
        assert_eq!(board.attention(task).await, None);
        runner.stop().await;
    }

    async fn killed_while_it_waits_it_asks_once_and_goes_on_once(database: &TestDatabase) {
        let board = Board::new(database).await;
        board.halt(1, at_budget());
        for point in ["before rest", "after rest", "parked", "before wake", "after wake", "before commit", "after push"] {
            let task = board.task().await;
            let answers_early = matches!(point, "before wake" | "after wake");
            let finishes = matches!(point, "before commit" | "after push");
            let run = board.start(task).await;
            if point != "parked" {
                board.world.outside.block(point);
            }
            let mut runner = board.runner().await;
            let answer = async |board: &Board| match finishes {
                true => board.answer(task, Answer::Finish, None).await.unwrap(),
                false => board.answer(task, Answer::Raise, Some(2 * BUDGET)).await.unwrap(),
            };
            if answers_early || finishes {
                board.until_asked(run).await;
                answer(&board).await;
                runner.wake();
            }
            match point {
                "parked" => board.until_asked(run).await,
                _ => board.world.outside.reached().await,
            }
            runner.kill().await;
            board.world.outside.unblock();
            runner = board.runner().await;
            if !answers_early && !finishes {
                board.until_asked(run).await;
                runner.kill().await;
                answer(&board).await;
                runner = board.runner().await;
            }
            assert_eq!(board.world.until_over(run).await.state, RunState::Done, "{point}");
            assert_eq!(board.turns(run).len(), if finishes { 1 } else { 2 }, "{point}");
            assert_eq!(board.draft(task).is_some(), finishes, "{point}");
            assert_eq!(board.count(task, "task.answered").await, 1, "{point}");
            assert_eq!(board.count(task, "task.needs_attention").await, 1, "{point}");
            let commit = format!("task-{task}@{run}");
            let commits = board.shop.world.lock().unwrap().commits.clone();
            assert_eq!(commits.iter().filter(|known| **known == commit).count(), 1, "{point}");
            runner.stop().await;
        }
    }
}

impl Board {
    async fn assert_interrupted_once(&self, task: TaskId) {
        assert_eq!(self.count(task, "task.answered").await, 1);
        assert_eq!(self.attention(task).await, None);
    }
}
