//! Projects, and the audit log.

use coffer_core::AuditId;
use coffer_store::{AuditFilter, AuditRecord, NameError};

use crate::databases::on_both;
use crate::fixtures::{START, project};

on_both! {
    async fn projects_are_listed_page_by_page_and_renamed_by_version(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let scopes = [project(&store, "a").await, project(&store, "b").await, project(&store, "c").await];
        let first = store.projects(&operator, None, 2).await.unwrap();
        let rest = store.projects(&operator, Some(first[1].id), 2).await.unwrap();
        let names: Vec<_> = first.iter().chain(&rest).map(|project| &*project.name).collect();
        assert_eq!(names, ["a", "b", "c"]);

        let [mine, theirs, _] = scopes.map(|scope| (scope, scope.project()));
        assert_eq!(store.project(&mine.0, theirs.1).await.unwrap(), None);
        assert!(matches!(store.create_project(&operator, "a").await, Err(NameError::Taken)));
        assert!(matches!(store.rename_project(&mine.0, mine.1, None, "b").await, Err(NameError::Taken)));
        assert_eq!(store.rename_project(&mine.0, theirs.1, None, "x").await.unwrap(), None);
        assert_eq!(store.rename_project(&mine.0, mine.1, Some(2), "x").await.unwrap(), None, "not its version");
        let renamed = store.rename_project(&mine.0, mine.1, Some(1), "x").await.unwrap().unwrap();
        assert_eq!((&*renamed.name, renamed.version), ("x", 2));
        assert_eq!(store.project(&mine.0, mine.1).await.unwrap(), Some(renamed));
    }

    async fn the_project_of_the_catalogue_is_hidden_and_has_no_name_that_a_client_may_choose(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let mine = project(&store, "catalogue").await;
        store.set_default_quotas(coffer_store::Quotas { sandboxes: Some(0), ..Default::default() });
        let hidden = store.ensure_catalogue_project(&operator).await.unwrap();
        assert_eq!(store.ensure_catalogue_project(&operator).await.unwrap(), hidden, "there is one");
        let listed = store.listed_projects(&operator, None, 10).await.unwrap();
        assert_eq!(listed.iter().map(|project| project.id).collect::<Vec<_>>(), [mine.project()]);
        assert_eq!(store.project(&operator, hidden).await.unwrap(), None);
        // The server's own sweeps see it, and quotas for clients do not bind it.
        assert_eq!(store.projects(&operator, None, 10).await.unwrap().len(), 2);
        let quotas = store.quotas(&operator, hidden).await.unwrap().unwrap();
        assert!(quotas.in_force.sandboxes.is_some_and(|most| most > 1_000_000));
        // Another installation of the same database has other files, and so another project.
        store.act_for(&operator, "elsewhere").await.unwrap();
        assert_ne!(store.ensure_catalogue_project(&operator).await.unwrap(), hidden);
    }

    async fn the_audit_log_is_read_newest_first_within_the_project(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let record = |number: u16, project| AuditRecord {
            id: AuditId::generate(),
            project,
            actor: format!("key:{}", number % 2),
            action: "sandbox.create".into(),
            subject: Some(format!("s{number}\0")),
            status: 200 + number,
            code: (number == 3).then(|| "quota_exceeded".to_string()),
            request_id: "r".repeat(1000),
            at_ms: START,
        };
        let records: Vec<_> = (0..5).map(|number| record(number, Some(mine.project()))).collect();
        store.record_audit(records.clone()).await.unwrap();
        // Written again after a lost answer.
        store.record_audit(records).await.unwrap();
        store.record_audit(vec![record(9, Some(theirs.project())), record(8, None)]).await.unwrap();

        let page = AuditFilter { limit: 2, ..AuditFilter::default() };
        let newest = store.audit(&mine, &page).await.unwrap();
        let statuses: Vec<_> = newest.iter().map(|record| record.status).collect();
        assert_eq!(statuses, [204, 203]);
        assert_eq!((newest[1].code.as_deref(), newest[1].subject.as_deref()), (Some("quota_exceeded"), Some("s3\u{fffd}")));
        assert_eq!(newest[0].request_id.len(), 200);
        let older = AuditFilter { before: Some(newest[1].id), limit: 10, ..AuditFilter::default() };
        assert_eq!(store.audit(&mine, &older).await.unwrap().len(), 3);
        let actors = AuditFilter { actor: Some("key:1".into()), limit: 10, ..AuditFilter::default() };
        assert_eq!(store.audit(&mine, &actors).await.unwrap().len(), 2);
        assert_eq!(store.audit(&theirs, &page).await.unwrap().len(), 1);
        assert_eq!(store.audit(&store.operator(), &AuditFilter { limit: 100, ..page }).await.unwrap().len(), 7);
    }
}
