//! Executions and the index of their output.

use coffer_core::{ExecutionId, Role, SandboxId, SandboxState, StateName};
use coffer_store::{
    Changes, CodeOf, Collected, ExecutionFilter, ExecutionRow, ExecutionSource, ExecutionState, NewExecution,
    NewKey, NewSandbox, Process, ProjectScope, SegmentRow, SegmentState, Store,
};

use crate::databases::on_both;
use crate::fixtures::{START, comes_in, project, running, sandbox};

fn execution(scope: &ProjectScope, sandbox: SandboxId, command: &str) -> ExecutionRow {
    let new = NewExecution {
        id: ExecutionId::generate(),
        actor: None,
        command: command.into(),
        cwd: Some("/".into()),
        user: None,
        source: ExecutionSource::E2b,
        code: None,
    };
    ExecutionRow::new(new, scope.project(), sandbox, None, START)
}

fn segment(scope: &ProjectScope, sandbox: SandboxId, number: i64, bytes: i64, last_ms: i64) -> SegmentRow {
    SegmentRow {
        sandbox,
        project: scope.project(),
        number,
        state: SegmentState::Plain,
        first_position: number * 100,
        bytes,
        file_bytes: bytes,
        first_ms: START,
        last_ms,
    }
}

fn collected(scope: &ProjectScope, sandbox: SandboxId, next: i64) -> Collected {
    Collected {
        sandbox,
        project: scope.project(),
        journal: Some((7, next)),
        segments: Vec::new(),
        executions: Vec::new(),
    }
}

fn of(sandbox: SandboxId) -> ExecutionFilter {
    ExecutionFilter { sandbox: Some(sandbox), limit: 10, ..ExecutionFilter::default() }
}

async fn kinds(store: &Store, scope: &ProjectScope) -> Vec<String> {
    let events = store.events(scope, 0, 100).await.unwrap();
    events.into_iter().map(|event| event.kind).filter(|kind| kind.starts_with("execution.")).collect()
}

on_both! {
    async fn an_execution_and_its_events_are_recorded_once(database: &TestDatabase) {
        let store = database.open().await;
        let mine = project(&store, "mine").await;
        let id = running(&store, &mine, sandbox()).await.id;
        let mut row = execution(&mine, id, "make \0 all");
        assert_eq!(row.command, "make \u{fffd} all");
        // Announced, then reported: one start.
        store.begin_execution(row.clone()).await.unwrap();
        row.process = Some(Process { boot: 7, pid: 42, journal_offset: 3 });
        row.positions = Some((0, 50));
        row.main.read = 10;
        row.main.kept = 8;
        let segments = vec![segment(&mine, id, 0, 50, START)];
        let batch = Collected { segments, executions: vec![row.clone()], ..collected(&mine, id, 4) };
        store.record_collected(batch).await.unwrap();
        assert_eq!(store.execution(&mine, row.id).await.unwrap().as_ref(), Some(&row));
        assert_eq!(store.journal_position(id).await.unwrap(), Some((7, 4)));
        assert_eq!(kinds(&store, &mine).await, ["execution.started"]);

        row.state = ExecutionState::Exited;
        row.exit_code = Some(2);
        row.status = Some("exit status 2".into());
        row.ended_ms = Some(START + 5);
        let ended = Collected { executions: vec![row.clone()], ..collected(&mine, id, 5) };
        store.record_collected(ended.clone()).await.unwrap();
        // An ended execution stays ended.
        let mut again = row.clone();
        again.exit_code = Some(0);
        store.record_collected(Collected { executions: vec![again], ..ended }).await.unwrap();
        assert_eq!(store.end_executions(id, None, ExecutionState::Lost, "late", START).await.unwrap(), 0);
        assert_eq!(store.execution(&mine, row.id).await.unwrap(), Some(row));
        assert_eq!(kinds(&store, &mine).await, ["execution.started", "execution.ended"]);
    }

    async fn executions_are_listed_by_what_is_asked_and_seen_by_who_may(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let agent = store.create_agent(&mine, "one").await.unwrap();
        let key = NewKey { role: Role::Write, agent: Some(agent.id), ..NewKey::from("agent") };
        let key = store.create_key(&store.operator(), mine.project(), key).await.unwrap();
        let agents = comes_in(&store, key.reveal()).await.scope;
        let own = running(&store, &mine, NewSandbox { agent: Some(agent.id), ..sandbox() }).await.id;
        let other = running(&store, &mine, sandbox()).await.id;
        let mut rows = Vec::new();
        for (number, id) in [own, other, other].into_iter().enumerate() {
            let mut row = execution(&mine, id, "x");
            row.agent = Some(agent.id).filter(|_| id == own);
            row.started_ms = START + i64::try_from(number).unwrap();
            store.begin_execution(row.clone()).await.unwrap();
            rows.push(row);
        }
        let [first, second, third] = <[ExecutionRow; 3]>::try_from(rows).unwrap();
        let all = ExecutionFilter { limit: 10, ..ExecutionFilter::default() };
        let newest_first = [third.clone(), second.clone(), first.clone()];
        assert_eq!(store.executions(&mine, &all).await.unwrap(), newest_first);
        assert_eq!(store.executions(&agents, &all).await.unwrap(), std::slice::from_ref(&first));
        assert_eq!(store.executions(&theirs, &all).await.unwrap(), []);
        for scope in [&theirs, &agents] {
            assert_eq!(store.execution(scope, third.id).await.unwrap(), None);
            assert_eq!(store.executions(scope, &of(other)).await.unwrap(), []);
        }
        assert_eq!(store.executions(&mine, &of(other)).await.unwrap(), [third.clone(), second.clone()]);
        let before = ExecutionFilter { before: Some(second.id), ..all.clone() };
        assert_eq!(store.executions(&mine, &before).await.unwrap(), std::slice::from_ref(&first));
        let by_agent = ExecutionFilter { agent: Some(agent.id), ..all.clone() };
        assert_eq!(store.executions(&mine, &by_agent).await.unwrap(), [first]);
        let between = ExecutionFilter {
            started_from_ms: Some(START + 1),
            started_until_ms: Some(START + 1),
            ..all.clone()
        };
        assert_eq!(store.executions(&mine, &between).await.unwrap(), [second]);

        // A sandbox that ended ends its executions, once.
        let terminated = SandboxState::Error { fault: coffer_core::Fault::Lost };
        store.transition(&mine, other, StateName::Running, terminated, "lost", Changes::default()).await.unwrap();
        assert_eq!(store.sandboxes_with_lost_executions().await.unwrap(), [other]);
        assert_eq!(store.end_executions(other, None, ExecutionState::Lost, "gone", START).await.unwrap(), 2);
        assert_eq!(store.sandboxes_with_lost_executions().await.unwrap(), []);
        let lost = ExecutionFilter { state: Some(ExecutionState::Lost), ..all };
        assert_eq!(store.executions(&mine, &lost).await.unwrap().len(), 2);
    }

    async fn code_that_a_dead_server_left_running_is_lost(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let id = running(&store, &mine, sandbox()).await.id;
        let code = |started_ms| ExecutionRow {
            code: Some(CodeOf { language: "python".into(), context: Some("kernel".into()) }),
            started_ms,
            ..execution(&mine, id, "1 + 1")
        };
        let (old, new, command) = (code(START), code(START + 10), execution(&mine, id, "make"));
        for row in [&old, &new, &command] {
            store.begin_execution(row.clone()).await.unwrap();
        }
        assert_eq!(store.execution(&mine, old.id).await.unwrap().as_ref(), Some(&old));
        let of_code = ExecutionFilter { is_code: true, ..of(id) };
        let found = store.executions(&mine, &of_code).await.unwrap();
        assert_eq!(found.len(), 2, "the command is none");
        assert_eq!(store.executions(&theirs, &of_code).await.unwrap(), []);
        // It writes to the log without a position in the journal.
        let segments = vec![segment(&mine, id, 0, 50, START)];
        let batch = Collected { journal: None, segments, ..collected(&mine, id, 4) };
        store.record_collected(batch).await.unwrap();
        assert_eq!(store.journal_position(id).await.unwrap(), None);

        // Those that began before the server did, and no commands.
        assert_eq!(store.lose_code_executions(START + 10, START + 20).await.unwrap(), 1);
        assert_eq!(store.lose_code_executions(START + 10, START + 20).await.unwrap(), 0);
        let lost = store.execution(&mine, old.id).await.unwrap().unwrap();
        assert_eq!((lost.state, lost.ended_ms), (ExecutionState::Lost, Some(START + 20)));
        for row in [new, command] {
            assert_eq!(store.execution(&mine, row.id).await.unwrap().unwrap().state, ExecutionState::Running);
        }
        assert_eq!(kinds(&store, &mine).await.last().map(String::as_str), Some("execution.ended"));
    }

    async fn segments_age_unless_they_are_written_to(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let id = running(&store, &mine, sandbox()).await.id;
        let (first, last) = (segment(&mine, id, 0, 100, START), segment(&mine, id, 1, 10, START));
        let segments = vec![first.clone(), last.clone()];
        store.record_collected(Collected { segments: segments.clone(), ..collected(&mine, id, 1) }).await.unwrap();
        assert_eq!(store.segments(&mine, id, 0, 10).await.unwrap(), segments);
        assert_eq!(store.segments(&mine, id, 100, 10).await.unwrap(), std::slice::from_ref(&last));
        assert_eq!(store.segments(&mine, id, 110, 10).await.unwrap(), []);
        assert_eq!(store.segments(&theirs, id, 0, 10).await.unwrap(), []);
        assert_eq!(store.newest_segment(id).await.unwrap().as_ref(), Some(&last));

        // The last segment of a live sandbox may grow.
        let old = store.segments_older(None, SegmentState::Plain, START + 1, 10).await.unwrap();
        assert_eq!(old, std::slice::from_ref(&first));
        assert_eq!(store.segments_older(None, SegmentState::Plain, START, 10).await.unwrap(), []);
        let archived = SegmentRow { state: SegmentState::Archived, file_bytes: 20, ..first };
        let grown = SegmentRow { state: SegmentState::Pruned, bytes: 9, ..last.clone() };
        store.change_segments(vec![archived.clone(), grown]).await.unwrap();
        assert_eq!(store.segments(&mine, id, 0, 10).await.unwrap(), [archived.clone(), last.clone()]);
        let pruned = SegmentRow { state: SegmentState::Pruned, file_bytes: 0, ..archived };
        store.change_segments(vec![pruned]).await.unwrap();
        assert_eq!(store.segments_on_disk(id).await.unwrap(), [last]);
    }
}
