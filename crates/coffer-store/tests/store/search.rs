//! Search over the records of a project.

use coffer_store::{FoundKind, NewTask, TaskEdit};

use crate::databases::on_both;
use crate::fixtures::{pairs, project, running, sandbox};
use crate::tasks::new;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

on_both! {
    async fn records_are_found_by_parts_of_words_and_only_in_their_project(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let tagged = NewTask { labels: vec!["tax".into()], ..new("Admin panel #3") };
        let panel = store.create_task(&mine, tagged).await.unwrap();
        store.create_task(&mine, new("Move to Node 22")).await.unwrap();
        store.create_task(&mine, new("100% done_")).await.unwrap();
        store.create_task(&theirs, new("Admin panel #3")).await.unwrap();
        let agent = store.create_agent(&mine, "Panel painter").await.unwrap();
        let mut named = sandbox();
        named.metadata = pairs([("name", "panel preview")]);
        let preview = running(&store, &mine, named).await;

        let found = async |kinds: &[FoundKind], text: &str| {
            let found = store.search(&mine, kinds, &words(text), 10).await.unwrap();
            found.into_iter().map(|one| (one.kind, one.id)).collect::<Vec<_>>()
        };
        let all = FoundKind::ALL;
        let every = found(&all, "PANEL").await;
        assert_eq!(
            every,
            [
                (FoundKind::Task, panel.id.to_string()),
                (FoundKind::Sandbox, preview.id.to_string()),
                (FoundKind::Agent, agent.id.to_string()),
            ]
        );
        assert_eq!(found(&all, "panel admin #3").await, every[..1], "words in any order");
        assert_eq!(found(&all, "tax").await, every[..1], "by its label");
        assert_eq!(found(&all, "vat").await, [], "letters that are strewn are no word");
        assert_eq!(found(&[FoundKind::Agent], "panel").await, every[2..], "only that kind");
        assert_eq!(found(&[], "panel").await, []);
        assert_eq!(found(&all, "0% e_").await.len(), 1, "signs of patterns are letters");
        assert_eq!(found(&all, "0_").await, []);
        assert_eq!(found(&all, "' OR 1=1 --").await, []);
        assert_eq!(store.search(&mine, &all, &[], 2).await.unwrap().len(), 4, "two of each kind");

        let put_away = TaskEdit { archived: Some(true), ..TaskEdit::default() };
        store.edit_task(&mine, panel.id, None, put_away, "key:x").await.unwrap();
        assert_eq!(found(&[FoundKind::Task], "panel").await, [], "not what is archived");
    }
}
