//! Keys: shown once, hashed, revocable.

use coffer_core::{KeyId, KeyKind, Role};
use coffer_store::{ApiKeySecret, Authenticated, NameError, NewKey};

use crate::databases::on_both;
use crate::fixtures::comes_in;

on_both! {
    async fn a_key_opens_its_own_project(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "p").await.unwrap();
        let key = store.create_key(&operator, project, "laptop").await.unwrap();
        let digits = key.reveal().strip_prefix("e2b_").unwrap();
        assert!(digits.len() == 40 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
        let principal = comes_in(&store, key.reveal()).await;
        assert_eq!((principal.scope.project(), principal.key, principal.role), (project, key.id(), Role::Admin));
    }

    async fn a_wrong_key_opens_nothing(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "p").await.unwrap();
        let key = store.create_key(&operator, project, "laptop").await.unwrap();
        // The right prefix, so that a row is found and its digest compared.
        let last = if key.reveal().ends_with('0') { '1' } else { '0' };
        let near = format!("{}{last}", &key.reveal()[..43]);
        let injected = format!("{}'--", &key.reveal()[..41]);
        for wrong in ["", "e2b_", &near, &injected, &key.reveal().to_uppercase(), &"e2b_".repeat(11)] {
            assert_eq!(store.authenticate(wrong).await.unwrap(), None, "{wrong}");
        }
    }

    async fn expired_and_revoked_keys_are_refused(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "p").await.unwrap();
        let past = NewKey { expires_ms: Some(1), ..NewKey::from("past") };
        let past = store.create_key(&operator, project, past).await.unwrap();
        assert_eq!(store.authenticate(past.reveal()).await.unwrap(), None);

        let key = store.create_key(&operator, project, "laptop").await.unwrap();
        assert!(store.authenticate(key.reveal()).await.unwrap().is_some());
        assert!(store.revoke_key(&operator, key.id()).await.unwrap());
        assert_eq!(store.authenticate(key.reveal()).await.unwrap(), None);
        assert!(!store.revoke_key(&operator, key.id()).await.unwrap(), "it was revoked before");
    }

    async fn a_session_that_is_not_used_ends(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "p").await.unwrap();
        let key = store.create_key(&operator, project, "laptop").await.unwrap();
        let whom = store.authenticate(key.reveal()).await.unwrap().unwrap();
        let session = |idle_ms| coffer_store::NewSession {
            browser: "Firefox on Linux".into(),
            address: "192.0.2.x".into(),
            lasting_ms: 60_000,
            idle_ms,
        };
        let idle = store.begin_session(&whom, session(0)).await.unwrap().unwrap();
        let live = store.begin_session(&whom, session(60_000)).await.unwrap().unwrap();
        assert_eq!(store.still_valid(idle.reveal()).await.unwrap(), None);
        let found = store.still_valid(live.reveal()).await.unwrap().unwrap();
        assert_eq!(found.key(), live.id());
        // Records name the key that began it: the session's row does not stay.
        let Authenticated::Project(principal) = found else { panic!("{found:?}") };
        assert_eq!(principal.actor.to_string(), format!("key:{}", key.id()));
        assert_eq!(store.authenticate(live.reveal()).await.unwrap(), None, "it is no key");
        let listed = store.sessions(&whom).await.unwrap();
        assert_eq!(listed.iter().map(|row| row.id).collect::<Vec<_>>(), [live.id()]);
        for _ in 0..50 {
            store.begin_session(&whom, session(60_000)).await.unwrap().unwrap();
        }
        let listed = store.sessions(&whom).await.unwrap();
        assert_eq!(listed.len(), 50);
        assert!(listed.iter().all(|row| row.id != live.id()), "the oldest of too many ends");
        assert_eq!(store.end_sessions(&whom, None).await.unwrap(), 50);
        assert_eq!(store.sessions(&whom).await.unwrap(), []);
    }

    async fn a_link_is_exchanged_for_a_key_once(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "p").await.unwrap();
        let link = store.create_sign_in_link(&operator, project, 60_000).await.unwrap();
        assert_eq!(store.authenticate(link.reveal()).await.unwrap(), None, "it is no key");
        let last = if link.reveal().ends_with('0') { '1' } else { '0' };
        let near = format!("{}{last}", &link.reveal()[..44]);
        let as_key = link.reveal().replace("link_", "e2b_");
        for wrong in ["", "link_", near.as_str(), as_key.as_str()] {
            assert!(store.redeem_sign_in_link(wrong, "web", 60_000).await.unwrap().is_none(), "{wrong}");
        }
        let both = tokio::join!(
            store.redeem_sign_in_link(link.reveal(), "web", 60_000),
            store.redeem_sign_in_link(link.reveal(), "web", 60_000),
        );
        let made: Vec<_> = [both.0.unwrap(), both.1.unwrap()].into_iter().flatten().collect();
        assert_eq!(made.len(), 1, "of two at once one succeeds");
        let principal = comes_in(&store, made[0].reveal()).await;
        assert_eq!((principal.scope.project(), principal.role), (project, Role::Admin));
        assert!(store.redeem_sign_in_link(link.reveal(), "web", 60_000).await.unwrap().is_none(), "it was used");

        let late = store.create_sign_in_link(&operator, project, 0).await.unwrap();
        assert!(store.redeem_sign_in_link(late.reveal(), "web", 60_000).await.unwrap().is_none(), "it is too old");
        let revoked = store.create_sign_in_link(&operator, project, 60_000).await.unwrap();
        assert!(store.revoke_key(&operator, revoked.id()).await.unwrap());
        assert!(store.redeem_sign_in_link(revoked.reveal(), "web", 60_000).await.unwrap().is_none());
    }

    async fn a_link_of_a_key_has_its_rights_and_ends_with_it(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "p").await.unwrap();
        let in_a_minute = coffer_core::clock::now_ms() + 60_000;
        let key = NewKey { role: Role::Read, kind: KeyKind::Service, expires_ms: Some(in_a_minute), ..NewKey::from("ci") };
        let key = store.create_key(&operator, project, key).await.unwrap();
        let scope = comes_in(&store, key.reveal()).await.scope;
        let hour = 3_600_000;
        let (link, expires_ms) = store.create_link_of_key(&scope, key.id(), hour).await.unwrap().unwrap();
        assert_eq!(expires_ms, in_a_minute, "not longer than its key");
        let session = store.redeem_sign_in_link(link.reveal(), "web", hour).await.unwrap().unwrap();
        let principal = comes_in(&store, session.reveal()).await;
        assert_eq!((principal.role, principal.kind), (Role::Read, KeyKind::Service));
        let listed = store.keys(&operator).await.unwrap();
        let listed = listed.iter().find(|listed| listed.id == session.id()).unwrap();
        assert_eq!(listed.expires_ms, Some(in_a_minute));
        // A browser's key creates links too, and so on: all of them end with the first.
        let (second, _) = store.create_link_of_key(&scope, session.id(), hour).await.unwrap().unwrap();
        let grandchild = store.redeem_sign_in_link(second.reveal(), "web", hour).await.unwrap().unwrap();
        let (unused, _) = store.create_link_of_key(&scope, key.id(), hour).await.unwrap().unwrap();
        // Another project's key is no key of the scope.
        let other = store.create_project(&operator, "other").await.unwrap();
        let foreign = store.create_key(&operator, other, "x").await.unwrap();
        assert!(store.create_link_of_key(&scope, foreign.id(), hour).await.unwrap().is_none());
        let namesake = NewKey::from(format!("web UI of key {}", key.id()).as_str());
        let namesake = store.create_key(&operator, other, namesake).await.unwrap();
        assert!(store.revoke_key(&operator, key.id()).await.unwrap());
        for ended in [&key, &session, &grandchild] {
            assert_eq!(store.authenticate(ended.reveal()).await.unwrap(), None);
        }
        assert!(store.redeem_sign_in_link(unused.reveal(), "web", hour).await.unwrap().is_none());
        assert!(store.create_link_of_key(&scope, key.id(), hour).await.unwrap().is_none());
        assert!(store.authenticate(namesake.reveal()).await.unwrap().is_some(), "of another project");
    }

    async fn a_rotated_key_has_a_successor_and_ends_after_the_overlap(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "p").await.unwrap();
        let key = NewKey { role: Role::Write, ..NewKey::from("laptop") };
        let old = store.create_key(&operator, project, key).await.unwrap();
        let scope = comes_in(&store, old.reveal()).await.scope;
        let new = store.rotate_key(&scope, old.id(), 60_000).await.unwrap();
        for key in [&old, &new] {
            assert_eq!(comes_in(&store, key.reveal()).await.role, Role::Write);
        }
        let newest = store.rotate_key(&scope, new.id(), 0).await.unwrap();
        assert_eq!(store.authenticate(new.reveal()).await.unwrap(), None, "there was no overlap");
        assert!(matches!(store.rotate_key(&scope, new.id(), 0).await, Err(NameError::NotFound)));
        assert!(matches!(store.rotate_key(&scope, KeyId::generate(), 0).await, Err(NameError::NotFound)));
        let other = store.create_project(&operator, "other").await.unwrap();
        let other = store.create_key(&operator, other, "theirs").await.unwrap();
        let theirs = comes_in(&store, other.reveal()).await.scope;
        assert!(matches!(store.rotate_key(&theirs, newest.id(), 0).await, Err(NameError::NotFound)));
        let names: Vec<_> = store.keys(&scope).await.unwrap().into_iter().map(|key| key.name).collect();
        assert_eq!(names, ["laptop"; 3]);
    }

    async fn an_operators_key_is_of_no_project(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let key = store.create_operator_key(&operator, "root").await.unwrap();
        assert!(key.reveal().starts_with("coffer_"));
        let whom = store.authenticate(key.reveal()).await.unwrap();
        assert_eq!(whom, Some(Authenticated::Operator { key: key.id() }));
        assert_eq!(store.keys(&operator).await.unwrap(), []);
        let shown = format!("coffer_{}", &key.reveal()[8..]);
        assert_eq!(store.authenticate(&shown).await.unwrap(), None);
    }

    async fn a_revocation_elsewhere_is_heard_within_seconds(database: &TestDatabase) {
        let (here, elsewhere) = (database.open().await, database.open().await);
        let operator = here.operator();
        let project = here.create_project(&operator, "p").await.unwrap();
        let key = here.create_key(&operator, project, "laptop").await.unwrap();
        assert!(here.authenticate(key.reveal()).await.unwrap().is_some());
        elsewhere.revoke_key(&operator, key.id()).await.unwrap();
        tokio::time::timeout(std::time::Duration::from_secs(5), async {
            while here.authenticate(key.reveal()).await.unwrap().is_some() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("revoked within 5 s");
    }

    /// After closing the store there is no connection, yet a recently valid key is still accepted.
    async fn a_known_key_costs_no_query(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "p").await.unwrap();
        let key = store.create_key(&operator, project, "laptop").await.unwrap();
        let other = store.create_key(&operator, project, "desktop").await.unwrap();
        let principal = store.authenticate(key.reveal()).await.unwrap();
        store.close().await;
        assert_eq!(store.authenticate(key.reveal()).await.unwrap(), principal);
        assert!(store.authenticate(other.reveal()).await.is_err(), "an unknown one must be looked up");
    }

    async fn the_use_of_a_key_is_recorded_apart_from_requests(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "p").await.unwrap();
        let used = store.create_key(&operator, project, "used").await.unwrap();
        store.create_key(&operator, project, "unused").await.unwrap();
        store.authenticate(used.reveal()).await.unwrap();
        assert!(store.keys(&operator).await.unwrap().iter().all(|key| key.last_used_ms.is_none()));
        store.close().await;
        let keys = database.open().await.keys(&operator).await.unwrap();
        let recorded: Vec<_> = keys.iter().map(|key| (&*key.name, key.last_used_ms.is_some())).collect();
        assert_eq!(recorded, [("used", true), ("unused", false)]);
    }

    async fn the_secret_is_nowhere_on_disk(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "marker-of-the-project").await.unwrap();
        let key = store.create_key(&operator, project, "laptop").await.unwrap();
        store.authenticate(key.reveal()).await.unwrap();
        store.close().await;
        // The search finds existing text, and of the key only the public prefix.
        assert!(database.holds_on_disk("marker-of-the-project"));
        assert!(database.holds_on_disk(&key.reveal()[..12]));
        assert!(!database.holds_on_disk(&key.reveal()[4..20]));
        assert!(!database.holds_on_disk(&key.reveal()[12..]));
    }

    async fn the_first_key_is_made_once(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.ensure_default_project(&operator).await.unwrap();
        assert_eq!(store.ensure_default_project(&operator).await.unwrap(), project);
        let (one, other) = tokio::join!(
            store.ensure_first_key(&operator, project, "first", None),
            store.ensure_first_key(&operator, project, "first", None),
        );
        let made: Vec<_> = [one.unwrap(), other.unwrap()].into_iter().flatten().collect();
        let [key] = made.as_slice() else { panic!("{made:?}") };
        // Also if it was revoked since: the first key is not created again.
        store.revoke_key(&operator, key.id()).await.unwrap();
        assert!(store.ensure_first_key(&operator, project, "first", None).await.unwrap().is_none());
    }

    async fn the_first_key_may_be_one_that_is_known_already(database: &TestDatabase) {
        let store = database.open().await;
        let operator = store.operator();
        let project = store.ensure_default_project(&operator).await.unwrap();
        let text = format!("e2b_{}", "0123456789".repeat(4));
        let known = ApiKeySecret::parse(&text).unwrap();
        let made = store.ensure_first_key(&operator, project, "known", Some(known)).await.unwrap().unwrap();
        assert_eq!(made.reveal(), text);
        assert!(store.authenticate(&text).await.unwrap().is_some());
        let other = ApiKeySecret::parse(&text.replace('0', "a")).unwrap();
        assert!(store.ensure_first_key(&operator, project, "other", Some(other)).await.unwrap().is_none());
        for bad in ["", "e2b_", "e2b_0123", "cofferop_0123", &text.to_uppercase(), &format!("{text}0")] {
            assert!(ApiKeySecret::parse(bad).is_none(), "{bad}");
        }
    }
}
