//! Secrets, and the keys that seal them and other data.

use coffer_core::network::{NamePattern, NetworkSettings};
use coffer_store::{
    KeySource, MasterKey, NewSandbox, RotateError, Secret, SecretError, SecretName, SecretTerms, Store,
    StoreError,
};
use sqlx::Row;

use crate::databases::on_both;
use crate::fixtures::{network, pairs, project, running, sandbox};

fn name(text: &str) -> SecretName {
    text.parse().unwrap()
}

fn given(current: &MasterKey, previous: &[&MasterKey]) -> KeySource {
    let previous = previous.iter().map(|&key| key.clone()).collect();
    KeySource::Given { current: current.clone(), previous }
}

async fn value(store: &Store, scope: &coffer_store::ProjectScope, of: &str) -> Option<String> {
    let values = store.secret_values(scope.project()).await.unwrap();
    Some(values.get(of)?.value.as_ref()?.reveal().to_string())
}

fn tokens() -> NewSandbox {
    NewSandbox {
        env_vars: pairs([("TOKEN", "canary-environment")]),
        secrets: pairs([("GH", "github")]),
        access_token: Some(Secret::new("canary-access")),
        traffic_token: Some(Secret::new("canary-traffic")),
        network: network(serde_json::json!({
            "egressProxy": {"address": "p.com:1080", "username": "u", "password": "canary-network"},
        })),
        ..sandbox()
    }
}

on_both! {
    async fn a_secret_is_made_replaced_listed_and_deleted(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let hosts = vec![NamePattern::parse("*.example.com").unwrap()];
        let (made, new) = store.put_secret(&mine, &name("github"), &Secret::new("one-value"), Some(hosts)).await.unwrap();
        assert!(new && made.version == 1 && made.hosts == Some(vec!["*.example.com".to_string()]));
        let first = store.secret_values(mine.project()).await.unwrap();
        assert_eq!(first.get("github").unwrap().value.as_ref().unwrap().reveal(), "one-value");

        let (replaced, new) = store.put_secret(&mine, &name("github"), &Secret::new("two-value"), None).await.unwrap();
        assert!(!new && replaced.version == 2 && replaced.created_ms == made.created_ms);
        assert_eq!(replaced.hosts, made.hosts, "a new value does not loosen it");
        let second = store.secret_values(mine.project()).await.unwrap();
        assert_ne!(first.version, second.version);
        assert_eq!(value(&store, &mine, "github").await.as_deref(), Some("two-value"));
        let mut texts: Vec<_> = second.texts().collect();
        texts.sort_unstable();
        assert_eq!(texts, ["one-value", "two-value"], "what still runs may print the old one");
        assert_eq!(store.read_secrets(mine.project()).await.unwrap().version, second.version, "nothing changed");

        assert_eq!(store.secrets(&mine).await.unwrap(), [replaced]);
        assert_eq!(store.secrets(&theirs).await.unwrap(), []);
        assert_eq!(value(&store, &theirs, "github").await, None);
        assert!(!store.delete_secret(&theirs, &name("github")).await.unwrap());
        assert!(store.delete_secret(&mine, &name("github")).await.unwrap());
        assert!(!store.delete_secret(&mine, &name("github")).await.unwrap());
        assert_eq!(value(&store, &mine, "github").await, None);
        assert_eq!(store.secret_values(mine.project()).await.unwrap().texts().count(), 2);

        let kinds: Vec<_> = store.events(&mine, 0, 10).await.unwrap().into_iter().map(|event| event.kind).collect();
        assert_eq!(kinds, ["secret.created", "secret.replaced", "secret.deleted"]);
        // The name is free again, and its versions restart.
        let (again, new) = store.put_secret(&mine, &name("github"), &Secret::new("three"), None).await.unwrap();
        assert!(new && again.version == 1 && again.hosts.is_none(), "what was deleted binds nothing");
        // Other hosts, or none, if given.
        let other = vec![NamePattern::parse("other.example").unwrap()];
        let (other, _) = store.put_secret(&mine, &name("github"), &Secret::new("four"), Some(other)).await.unwrap();
        assert_eq!(other.hosts, Some(vec!["other.example".to_string()]));
        let (any, _) = store.put_secret(&mine, &name("github"), &Secret::new("five"), Some(Vec::new())).await.unwrap();
        assert_eq!((any.hosts, any.version), (None, 3));
    }

    async fn a_secret_keeps_its_id_and_its_notes_until_it_is_deleted(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let noted = |note: &str| SecretTerms { metadata: Some(pairs([("note", note)])), ..SecretTerms::default() };
        let value = Secret::new("value");
        let made = store.create_secret(&mine, &name("token"), &value, noted("first")).await.unwrap();
        assert_eq!((made.version, &made.metadata), (1, &pairs([("note", "first")])));
        for taken in ["token", "TOKEN"] {
            let again = store.create_secret(&mine, &name(taken), &value, SecretTerms::default()).await;
            assert!(matches!(again, Err(SecretError::Taken)), "{taken}: {again:?}");
        }
        let (put, new) = store.put_secret(&mine, &name("token"), &value, None).await.unwrap();
        assert!(!new && put.id == made.id && put.metadata == made.metadata, "{put:?}");
        let replaced = store.replace_secret(&mine, made.id, &value, noted("second")).await.unwrap();
        assert_eq!((replaced.id, replaced.version, replaced.created_ms), (made.id, 3, made.created_ms));
        assert_eq!(replaced.metadata, pairs([("note", "second")]));
        let find = async |scope, id, name| store.find_secret(scope, id, name).await.unwrap();
        for (id, text) in [(Some(made.id), ""), (None, "token"), (None, "Token")] {
            assert_eq!(find(&mine, id, text).await.as_ref(), Some(&replaced), "{text}");
            assert_eq!(find(&theirs, id, text).await, None, "{text}");
        }
        let stolen = store.replace_secret(&theirs, made.id, &value, SecretTerms::default()).await;
        assert!(matches!(stolen, Err(SecretError::NotFound)), "{stolen:?}");
        assert!(!store.delete_secret_by_id(&theirs, made.id).await.unwrap());
        assert!(store.delete_secret_by_id(&mine, made.id).await.unwrap());
        assert_eq!(find(&mine, Some(made.id), "token").await, None);
        let late = store.replace_secret(&mine, made.id, &value, SecretTerms::default()).await;
        assert!(matches!(late, Err(SecretError::NotFound)), "a deleted one does not come back: {late:?}");
        let again = store.create_secret(&mine, &name("token"), &value, SecretTerms::default()).await.unwrap();
        assert!(again.id != made.id && again.version == 1 && again.metadata.is_empty());

        // Rows of earlier versions have neither: the id is that of the row, and stays when it is replaced.
        let mut connection = database.connect().await;
        let old = "UPDATE secrets SET secret_id = NULL, metadata = NULL";
        sqlx::query(old).execute(&mut connection).await.unwrap();
        let read = find(&mine, None, "token").await.unwrap();
        assert!(read.id != again.id && read.metadata.is_empty());
        let next = store.replace_secret(&mine, read.id, &value, SecretTerms::default()).await.unwrap();
        assert_eq!((next.id, next.version), (read.id, 2));
        assert_eq!(find(&mine, Some(read.id), "").await, Some(next));
    }

    async fn secrets_are_listed_in_pages(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        for (scope, of) in [(&mine, "c"), (&mine, "a"), (&theirs, "b"), (&mine, "b")] {
            store.put_secret(scope, &name(of), &Secret::new("value"), None).await.unwrap();
        }
        let page = async |after: Option<&str>, limit| {
            let after = after.map(name);
            let page = store.secrets_after(&mine, after.as_ref(), limit).await.unwrap();
            page.into_iter().map(|info| info.name).collect::<Vec<_>>()
        };
        assert_eq!(page(None, 2).await, ["a", "b"]);
        assert_eq!(page(Some("b"), 2).await, ["c"]);
        assert_eq!(page(Some("bb"), 2).await, ["c"], "the one that ended a page may be gone");
        assert!(page(Some("c"), 2).await.is_empty());
    }

    async fn no_secret_is_on_disk_in_the_clear(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        store.put_secret(&scope, &name("github"), &Secret::new("canary-value"), None).await.unwrap();
        let row = running(&store, &scope, tokens()).await;
        let rules = serde_json::json!({"a.com": [{"transform": {"headers": {"X": "canary-rules"}}}]});
        let network = network(serde_json::json!({"rules": rules}));
        store.set_network(&scope, row.id, network.clone(), None).await.unwrap();
        let read = store.sandbox(&scope, row.id).await.unwrap().unwrap();
        assert_eq!((&read.network, &read.secrets), (&network, &row.secrets));
        assert_eq!(read.access_token.as_ref().unwrap().reveal(), "canary-access");
        assert_eq!(read.env_vars, row.env_vars);
        store.close().await;
        assert!(database.holds_on_disk("github"), "what is there is not found at all");
        assert!(!database.holds_on_disk("canary"));
        let again = database.open().await;
        assert_eq!(again.sandbox(&scope, row.id).await.unwrap(), Some(read));
        assert_eq!(value(&again, &scope, "github").await.as_deref(), Some("canary-value"));
    }

    async fn what_is_moved_to_another_row_cannot_be_opened(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        for scope in [&mine, &theirs] {
            store.put_secret(scope, &name("a"), &Secret::new("text of a"), None).await.unwrap();
        }
        store.put_secret(&mine, &name("b"), &Secret::new("text of b"), None).await.unwrap();
        let mut connection = database.connect().await;
        let sealed = async |connection: &mut sqlx::AnyConnection, project: String| -> String {
            sqlx::query("SELECT value_secret FROM secrets WHERE project_id = $1 AND name = 'a'")
                .bind(project)
                .fetch_one(connection)
                .await
                .unwrap()
                .get(0)
        };
        for from in [mine.project(), theirs.project()] {
            let text = sealed(&mut connection, from.to_string()).await;
            sqlx::query("UPDATE secrets SET value_secret = $1, id = id || 'x' WHERE project_id = $2 AND name = 'b'")
                .bind(text)
                .bind(mine.project().to_string())
                .execute(&mut connection)
                .await
                .unwrap();
            let values = store.read_secrets(mine.project()).await.unwrap();
            assert!(values.get("b").unwrap().value.is_none(), "from {from}");
            assert!(values.get("a").unwrap().value.is_some());
        }
    }

    async fn text_from_before_there_was_sealing_is_sealed_at_the_next_start(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = running(&store, &scope, sandbox()).await;
        store.close().await;
        let mut connection = database.connect().await;
        let old = "UPDATE sandboxes SET env_vars_secret = '{\"A\":\"old\"}', access_token_secret = 'oldtoken', \
                   network_secret = NULL";
        sqlx::query(old).execute(&mut connection).await.unwrap();
        let store = database.open().await;
        let read = store.sandbox(&scope, row.id).await.unwrap().unwrap();
        assert_eq!((read.env_vars, read.access_token), (pairs([("A", "old")]), Some(Secret::new("oldtoken"))));
        let kept: String = sqlx::query("SELECT env_vars_secret FROM sandboxes").fetch_one(&mut connection).await.unwrap().get(0);
        assert!(kept.starts_with("s1."), "{kept}");
    }

    async fn network_settings_of_0_1_0_are_read(database: &TestDatabase) {
        let request = serde_json::json!({
            "allowOut": ["*.a.com"], "denyOut": ["0.0.0.0/0"], "maskRequestHost": "a.com", "httpsPorts": [8443],
            "rules": {"b.com": [{"transform": {"headers": {"X": "${secret:T}"}}}]},
        });
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = running(&store, &scope, sandbox()).await;
        let read = async |store: &Store| store.sandbox(&scope, row.id).await.unwrap().unwrap();
        store.close().await;
        // As 0.1.0 left them, without the seal, which they get at the next start.
        for (column, internet, expected) in [
            (Some(request.to_string()), None, network(request)),
            (None, Some(0_i64), NetworkSettings::from_e2b(None, Some(false)).unwrap()),
            (None, None, NetworkSettings::from_e2b(None, None).unwrap()),
            (Some(r#"{"denyOut": ["no address"]}"#.into()), None, NetworkSettings::closed()),
        ] {
            sqlx::query("UPDATE sandboxes SET env_vars_secret = '{}', network_secret = $1, allow_internet_access = $2")
                .bind(column.clone())
                .bind(internet)
                .execute(&mut database.connect().await)
                .await
                .unwrap();
            let store = database.open().await;
            assert_eq!(read(&store).await.network, expected, "{column:?}, internet: {internet:?}");
            // A change writes today's form, which reads back the same.
            store.set_network(&scope, row.id, expected.clone(), None).await.unwrap();
            assert_eq!(read(&store).await.network, expected);
            store.close().await;
        }
    }

    async fn a_lost_master_key_loses_what_it_sealed_and_nothing_else(database: &TestDatabase) {
        let (lost, new) = (MasterKey::generate(), MasterKey::generate());
        let store = Store::open(&database.url, given(&lost, &[])).await.unwrap();
        let scope = project(&store, "p").await;
        store.put_secret(&scope, &name("old"), &Secret::new("old value"), None).await.unwrap();
        let row = running(&store, &scope, tokens()).await;
        store.close().await;

        let store = Store::open(&database.url, given(&new, &[])).await.unwrap();
        let status = store.master_key(&store.operator()).await.unwrap();
        assert_eq!((status.id, status.missing.len()), (new.id(), 1));
        let missing = &status.missing[0];
        assert_eq!((&missing.id, missing.projects, missing.secrets, missing.sandboxes), (&lost.id(), 1, 1, 1));
        let [sealed] = &store.live_sandboxes(&store.operator()).await.unwrap()[..] else { panic!() };
        assert!(sealed.sealed && sealed.state == row.state && sealed.env_vars.is_empty());
        // Closed, and not open for lack of a token or of settings.
        assert_eq!(sealed.network, NetworkSettings::closed());
        assert!(sealed.traffic_token.is_some() && sealed.traffic_token != row.traffic_token);
        assert!(sealed.access_token.is_some() && sealed.access_token != row.access_token);
        let values = store.secret_values(scope.project()).await.unwrap();
        assert!(values.get("old").unwrap().value.is_none() && values.texts().count() == 0);
        // New things work.
        store.put_secret(&scope, &name("new"), &Secret::new("new value"), None).await.unwrap();
        assert_eq!(value(&store, &scope, "new").await.as_deref(), Some("new value"));
        assert!(!running(&store, &scope, tokens()).await.sealed);
        store.close().await;

        // The key was found again.
        let store = Store::open(&database.url, given(&new, &[&lost])).await.unwrap();
        assert_eq!(store.sandbox(&scope, row.id).await.unwrap(), Some(row));
        for (of, text) in [("old", "old value"), ("new", "new value")] {
            assert_eq!(value(&store, &scope, of).await.as_deref(), Some(text));
        }
        assert_eq!(store.master_key(&store.operator()).await.unwrap().missing, []);
        let refused = store.rotate_master_key(&store.operator()).await;
        assert!(matches!(refused, Err(RotateError::NotInFile)), "{refused:?}");
        store.close().await;
        // Everything is sealed under the new one by now.
        let store = Store::open(&database.url, given(&new, &[])).await.unwrap();
        assert_eq!(value(&store, &scope, "old").await.as_deref(), Some("old value"));
    }

    async fn a_rotation_can_be_cut_short_anywhere(database: &TestDatabase) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("master-key");
        let open = || Store::open(&database.url, KeySource::File(path.clone()));
        let store = open().await.unwrap();
        let scope = project(&store, "p").await;
        store.put_secret(&scope, &name("a"), &Secret::new("a value"), None).await.unwrap();
        let first = std::fs::read_to_string(&path).unwrap();
        let id = store.rotate_master_key(&store.operator()).await.unwrap();
        let second = std::fs::read_to_string(&path).unwrap();
        assert_eq!(MasterKey::parse(&second).unwrap().id(), id, "the old key is gone from the file");
        assert_ne!(first, second);
        store.put_secret(&scope, &name("b"), &Secret::new("b value"), None).await.unwrap();
        store.close().await;
        // Killed after the rows were sealed again, and after the file was written but before that.
        let third = MasterKey::generate().text();
        for file in [format!("{second}{first}"), format!("{third}\n{second}")] {
            std::fs::write(&path, &file).unwrap();
            let store = open().await.unwrap();
            for of in ["a", "b"] {
                assert_eq!(value(&store, &scope, of).await, Some(format!("{of} value")), "{file}");
            }
            let kept = std::fs::read_to_string(&path).unwrap();
            assert_eq!(kept.trim(), file.lines().next().unwrap());
            store.close().await;
        }
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        // Neither an empty file nor nonsense counts as a first start.
        for bad in ["", "coffer-master-AAAA"] {
            std::fs::write(&path, bad).unwrap();
            assert!(open().await.unwrap_err().to_string().contains("master-key"), "{bad:?}");
        }
    }

    async fn a_server_that_missed_a_rotation_seals_nothing_under_the_old_key(database: &TestDatabase) {
        let (old, new) = (MasterKey::generate(), MasterKey::generate());
        let late = Store::open(&database.url, given(&old, &[])).await.unwrap();
        let scope = project(&late, "p").await;
        let rotated = Store::open(&database.url, given(&new, &[&old])).await.unwrap();
        // It continues with the values in memory.
        late.put_secret(&scope, &name("a"), &Secret::new("a value"), None).await.unwrap();
        assert_eq!(value(&rotated, &scope, "a").await.as_deref(), Some("a value"));
        let refused = late.create_project(&late.operator(), "q").await.unwrap_err();
        assert!(matches!(refused, coffer_store::NameError::Store(StoreError::Sealed { .. })), "{refused:?}");
    }
}
