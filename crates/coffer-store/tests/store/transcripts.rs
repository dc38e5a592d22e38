//! Transcripts: written once, read in order, seen by their project alone.

use coffer_core::agent::transcript::{CallState, EntryBody, Text};
use coffer_core::{RunId, TaskId};
use coffer_store::{
    NewTask, NewTranscriptEntry, ProjectScope, Store, TranscriptFilter, TranscriptOf, TurnPlace,
};

use crate::databases::on_both;
use crate::fixtures::project;
use crate::tasks::new;

fn message(number: u64, version: u64, text: &str) -> NewTranscriptEntry {
    NewTranscriptEntry {
        source: "execution-1".into(),
        number,
        version,
        subagent: false,
        at_ms: 1000 + i64::try_from(version).unwrap(),
        body: EntryBody::Message { text: Text::head(text, 1000) },
    }
}

fn place(task: TaskId, run: RunId, turn: i64) -> TurnPlace {
    TurnPlace { of: TranscriptOf::Task(task), run, attempt: 1, turn }
}

async fn texts(store: &Store, scope: &ProjectScope, task: TaskId) -> Vec<(i64, i64, String)> {
    let filter = TranscriptFilter { limit: 100, ..TranscriptFilter::default() };
    let rows = store.transcript(scope, TranscriptOf::Task(task), filter).await.unwrap();
    rows.into_iter().map(|row| (row.sequence, row.change, row.body.line())).collect()
}

on_both! {
    async fn entries_are_written_once_and_change_in_place(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "mine").await;
        let task = store.create_task(&scope, new("t")).await.unwrap().id;
        let (run, of) = (RunId::generate(), TranscriptOf::Task(task));
        let first = vec![message(1, 1, "one"), message(2, 2, "tw\0")];
        store.write_transcript(&scope, place(task, run, 1), first.clone()).await.unwrap();
        // A server that takes over reads the same output again.
        store.write_transcript(&scope, place(task, run, 1), first.clone()).await.unwrap();
        assert_eq!(texts(&store, &scope, task).await, [(1, 1, "one".into()), (2, 2, "tw\u{fffd}".into())]);
        let more = vec![message(1, 3, "one more"), message(3, 4, "three"), message(2, 1, "old")];
        store.write_transcript(&scope, place(task, run, 2), more).await.unwrap();
        assert_eq!(
            texts(&store, &scope, task).await,
            [(1, 3, "one more".into()), (2, 2, "tw\u{fffd}".into()), (3, 4, "three".into())]
        );
        let changed = store.transcript_changes(&scope, of, 2, 10).await.unwrap();
        assert_eq!(changed.iter().map(|row| (row.sequence, row.change)).collect::<Vec<_>>(), [(1, 3), (3, 4)]);
        let page = TranscriptFilter { after: Some(1), limit: 1, ..TranscriptFilter::default() };
        let page = store.transcript(&scope, of, page).await.unwrap();
        assert_eq!((page.len(), page[0].sequence, page[0].turn, page[0].at_ms), (1, 2, 1, 1002));
        let second = TranscriptFilter { turn: Some(2), limit: 10, ..TranscriptFilter::default() };
        assert_eq!(store.transcript(&scope, of, second).await.unwrap().len(), 1);
        let end = store.transcript_end(&scope, of, TranscriptFilter::default(), 2).await.unwrap();
        assert_eq!(end.iter().map(|row| row.sequence).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(store.transcript_version(&scope, of, "execution-1").await.unwrap(), 4);
        assert_eq!(store.transcript_version(&scope, of, "other").await.unwrap(), 0);
        let (entries, bytes) = store.transcript_size(&scope, of, run, "other").await.unwrap();
        assert!(entries == 3 && bytes > 300, "{entries} {bytes}");
        assert_eq!(store.transcript_size(&scope, of, run, "execution-1").await.unwrap(), (0, 0));
        let command = EntryBody::Command {
            command: Text::head("ls", 10),
            state: CallState::Done,
            exit_code: Some(0),
            output: None,
        };
        let entry = NewTranscriptEntry { source: "x".into(), subagent: true, body: command.clone(), ..message(1, 1, "") };
        store.write_transcript(&scope, place(task, run, 2), vec![entry]).await.unwrap();
        let last = store.transcript_end(&scope, of, TranscriptFilter::default(), 1).await.unwrap().remove(0);
        assert_eq!((last.body, last.subagent, last.run), (command, true, run));
    }

    async fn servers_that_write_at_once_leave_no_gaps_and_no_twins(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "mine").await;
        let task = store.create_task(&scope, new("t")).await.unwrap().id;
        let run = RunId::generate();
        let writes = (0..8u64).map(|at| {
            let entries = (1..=20).map(|number| NewTranscriptEntry {
                source: format!("execution-{}", at % 4),
                ..message(number, number, "x")
            });
            store.write_transcript(&scope, place(task, run, 1), entries.collect())
        });
        for written in futures_util::future::join_all(writes).await {
            written.unwrap();
        }
        let all = texts(&store, &scope, task).await;
        assert_eq!(all.iter().map(|(sequence, ..)| *sequence).collect::<Vec<_>>(), (1..=80).collect::<Vec<_>>());
    }

    async fn another_project_and_another_agent_see_nothing(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let agent = store.create_agent(&mine, "one").await.unwrap().id;
        let other = store.create_agent(&mine, "two").await.unwrap().id;
        let task = store.create_task(&mine, NewTask { agent: Some(agent), ..new("t") }).await.unwrap().id;
        let (run, of) = (RunId::generate(), TranscriptOf::Task(task));
        store.write_transcript(&mine, place(task, run, 1), vec![message(1, 1, "x")]).await.unwrap();
        // A write of another project changes nothing.
        store.write_transcript(&theirs, place(task, run, 1), vec![message(2, 2, "y")]).await.unwrap();
        let count = async |scope: ProjectScope| {
            let filter = TranscriptFilter { limit: 10, ..TranscriptFilter::default() };
            let rows = store.transcript(&scope, of, filter).await.unwrap().len();
            let changes = store.transcript_changes(&scope, of, 0, 10).await.unwrap().len();
            assert_eq!(store.transcript_end(&scope, of, filter, 10).await.unwrap().len(), rows);
            (rows, changes)
        };
        let of_agent = |agent| store.operator().acting_for(mine.project(), Some(agent));
        assert_eq!(count(mine).await, (1, 1));
        assert_eq!(count(of_agent(agent)).await, (1, 1));
        assert_eq!(count(of_agent(other)).await, (0, 0));
        assert_eq!(count(theirs).await, (0, 0));
        assert!(store.transcript_position(&theirs, of).await.unwrap().is_none());
        // What is gone is not written.
        let gone = TaskId::generate();
        store.write_transcript(&mine, place(gone, run, 1), vec![message(1, 1, "x")]).await.unwrap();
        assert!(store.transcript_position(&mine, TranscriptOf::Task(gone)).await.unwrap().is_none());
    }

    async fn old_entries_are_deleted_and_numbers_go_on(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let operator = store.operator();
        let task = store.create_task(&mine, new("t")).await.unwrap().id;
        let (run, of) = (RunId::generate(), TranscriptOf::Task(task));
        let entries = (1..=5).map(|number| message(number, number, "x")).collect();
        store.write_transcript(&mine, place(task, run, 1), entries).await.unwrap();
        assert_eq!(store.prune_transcripts(&operator, theirs.project(), i64::MAX, 100).await.unwrap(), 0);
        assert_eq!(store.prune_transcripts(&operator, mine.project(), 1000, 100).await.unwrap(), 0);
        assert_eq!(store.prune_transcripts(&operator, mine.project(), i64::MAX, 3).await.unwrap(), 3);
        assert_eq!(store.prune_transcripts(&operator, mine.project(), i64::MAX, 3).await.unwrap(), 2);
        let position = store.transcript_position(&mine, of).await.unwrap().unwrap();
        assert_eq!((position.sequence, position.change, position.pruned), (5, 5, 5));
        let next = NewTranscriptEntry { source: "later".into(), ..message(1, 1, "y") };
        store.write_transcript(&mine, place(task, run, 2), vec![next]).await.unwrap();
        assert_eq!(texts(&store, &mine, task).await, [(6, 6, "y".into())]);
        store.delete_task(&mine, task).await.unwrap();
        assert!(store.transcript_position(&mine, of).await.unwrap().is_none());
    }
}
