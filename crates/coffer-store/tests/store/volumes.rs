//! Volumes: names, quotas, and who mounts what.

use coffer_core::event::EventKind;
use coffer_core::{DestroyReason, Limits, SandboxState, StateName, VolumeId};
use coffer_store::{
    Changes, Inserted, InsertedVolume, MOST_VOLUMES, NewSandbox, NewVolume, ProjectScope, Quota, Quotas,
    Secret, Store, VolumeDeletion, VolumeMount, VolumeRow, VolumeState,
};
use futures_util::future::join_all;

use crate::databases::on_both;
use crate::fixtures::{create, project, running, sandbox};

fn new(name: &str, size_mib: u64) -> NewVolume {
    let token = Secret::new(format!("token-of-{name}"));
    NewVolume { id: VolumeId::generate(), name: name.parse().unwrap(), size_mib, token }
}

async fn ready(store: &Store, scope: &ProjectScope, name: &str, size_mib: u64) -> VolumeRow {
    let new = new(name, size_mib);
    let id = new.id;
    assert_eq!(store.insert_volume(scope, new).await.unwrap(), InsertedVolume::New);
    store.finish_volume(&store.operator(), id).await.unwrap().unwrap()
}

fn mounting(volumes: &[&VolumeRow]) -> NewSandbox {
    let mount = |(at, row): (usize, &&VolumeRow)| VolumeMount {
        volume: row.id,
        name: row.name.clone(),
        path: format!("/data/{at}").parse().unwrap(),
        read_only: at > 0,
    };
    NewSandbox { volumes: volumes.iter().enumerate().map(mount).collect(), ..sandbox() }
}

on_both! {
    async fn a_volume_is_found_when_it_is_ready_and_by_its_project_alone(database: &TestDatabase) {
        let store = database.open().await;
        let (mine, theirs) = (project(&store, "mine").await, project(&store, "theirs").await);
        let half = new("data", 10);
        let id = half.id;
        assert_eq!(store.insert_volume(&mine, half).await.unwrap(), InsertedVolume::New);
        assert_eq!(store.volume(&mine, id).await.unwrap(), None);
        assert_eq!(store.insert_volume(&mine, new("data", 10)).await.unwrap(), InsertedVolume::NameTaken);
        let row = store.finish_volume(&store.operator(), id).await.unwrap().unwrap();
        assert_eq!(store.finish_volume(&store.operator(), id).await.unwrap(), None, "only once");
        assert_eq!((row.state, row.size_mib), (VolumeState::Ready, 10));
        assert_eq!(row.token.as_ref().map(Secret::reveal), Some("token-of-data"));
        assert_eq!(store.volume(&mine, id).await.unwrap().as_ref(), Some(&row));
        assert_eq!(store.volume_called(&mine, &row.name).await.unwrap().as_ref(), Some(&row));
        assert_eq!(store.volumes(&mine).await.unwrap(), std::slice::from_ref(&row));

        // The name is another project's too; nothing else is.
        assert_eq!(store.volume(&theirs, id).await.unwrap(), None);
        assert_eq!(store.volume_called(&theirs, &row.name).await.unwrap(), None);
        assert_eq!(store.volumes(&theirs).await.unwrap(), []);
        assert_eq!(store.mounted_by(&theirs, id).await.unwrap(), []);
        assert_eq!(store.begin_volume_deletion(&theirs, id).await.unwrap(), VolumeDeletion::NotFound);
        let foreign = store.insert_sandbox(&theirs, mounting(&[&row]), None).await.unwrap();
        assert_eq!(foreign, Inserted::VolumeGone);
        ready(&store, &theirs, "data", 10).await;
        assert_eq!(store.volume(&mine, id).await.unwrap(), Some(row));
    }

    async fn the_token_is_sealed(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let row = ready(&store, &scope, "data", 1).await;
        let mut connection = database.connect().await;
        let stored = sqlx::query("SELECT token_secret FROM volumes").fetch_one(&mut connection).await.unwrap();
        let stored: String = sqlx::Row::try_get(&stored, 0).unwrap();
        assert!(stored.starts_with("s1.") && !stored.contains("token-of"), "{stored}");
        let again = database.open().await;
        assert_eq!(again.volume(&scope, row.id).await.unwrap(), Some(row));
    }

    async fn a_mounted_volume_is_not_deleted(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        let (one, two) = (ready(&store, &scope, "one", 1).await, ready(&store, &scope, "two", 1).await);
        let row = running(&store, &scope, mounting(&[&one, &two])).await;
        assert_eq!(row.volumes.len(), 2);
        assert_eq!(store.sandbox(&scope, row.id).await.unwrap().unwrap().volumes, row.volumes);
        assert_eq!(store.mounted_by(&scope, one.id).await.unwrap(), [row.id]);
        let refused = store.begin_volume_deletion(&scope, one.id).await.unwrap();
        assert_eq!(refused, VolumeDeletion::Mounted(vec![row.id]));

        let gone = SandboxState::Terminated { reason: DestroyReason::Requested };
        store.transition(&scope, row.id, StateName::Running, gone, "x", Changes::default()).await.unwrap();
        assert_eq!(store.mounted_by(&scope, one.id).await.unwrap(), []);
        let begun = store.begin_volume_deletion(&scope, one.id).await.unwrap();
        assert!(matches!(begun, VolumeDeletion::Begun(begun) if begun.id == one.id));
        // From here on nothing mounts or finds it.
        let late = store.insert_sandbox(&scope, mounting(&[&two, &one]), None).await.unwrap();
        assert_eq!(late, Inserted::VolumeGone);
        assert_eq!(store.volume(&scope, one.id).await.unwrap(), None);
        assert_eq!(store.mounted_by(&scope, two.id).await.unwrap(), [], "nothing of it stays");
        let kept: Vec<_> = store.all_volumes(&store.operator()).await.unwrap();
        let states: Vec<_> = kept.iter().map(|row| (row.id, row.state)).collect();
        assert_eq!(states, [(one.id, VolumeState::Deleting), (two.id, VolumeState::Ready)]);
        assert!(store.remove_volume(&store.operator(), one.id).await.unwrap());
        assert!(!store.remove_volume(&store.operator(), one.id).await.unwrap());
        assert!(!store.remove_volume(&store.operator(), two.id).await.unwrap(), "it is not being deleted");
        let events = store.events(&scope, 0, 100).await.unwrap();
        let about: Vec<_> =
            events.iter().filter(|event| event.subject == one.id.to_string()).map(|event| event.kind.as_str()).collect();
        let expected: [&str; 2] = [EventKind::VolumeCreated.into(), EventKind::VolumeDeleted.into()];
        assert_eq!(about, expected);
        // The name is free again.
        ready(&store, &scope, "one", 1).await;
    }

    async fn of_a_create_and_a_delete_at_once_one_wins(database: &TestDatabase) {
        let (here, there) = (database.open().await, database.open().await);
        let scope = project(&here, "p").await;
        for round in 0..8 {
            let volume = ready(&here, &scope, &format!("v{round}"), 1).await;
            let (creating, deleting) = tokio::join!(
                here.insert_sandbox(&scope, mounting(&[&volume]), None),
                there.begin_volume_deletion(&scope, volume.id)
            );
            match (creating.unwrap(), deleting.unwrap()) {
                (Inserted::New, VolumeDeletion::Mounted(users)) => assert_eq!(users.len(), 1),
                (Inserted::VolumeGone, VolumeDeletion::Begun(_)) => {}
                both => panic!("{both:?}"),
            }
        }
    }

    async fn volumes_use_disk_by_their_limit(database: &TestDatabase) {
        let (here, there) = (database.open().await, database.open().await);
        let scope = project(&here, "p").await;
        let limits = Limits { disk_mib: 40, ..Limits::default() };
        create(&here, &scope, NewSandbox { limits, ..sandbox() }).await;
        let quotas = Quotas { disk_mib: Some(100), ..Quotas::default() };
        here.set_quotas(&here.operator(), scope.project(), None, quotas).await.unwrap().unwrap();
        let inserts = (0..6).map(|at| {
            let store = if at % 2 == 0 { here.clone() } else { there.clone() };
            async move { store.insert_volume(&scope, new(&format!("v{at}"), 30)).await.unwrap() }
        });
        let answers = join_all(inserts).await;
        assert_eq!(answers.iter().filter(|answer| **answer == InsertedVolume::New).count(), 2);
        let over = answers.iter().find_map(|answer| match answer {
            InsertedVolume::OverQuota(over) => Some((over.quota, over.limit, over.used, over.asked)),
            _ => None,
        });
        assert_eq!(over, Some((Quota::DiskMib, 100, 100, 30)));
        assert_eq!(here.quotas(&scope, scope.project()).await.unwrap().unwrap().in_use.disk_mib, 100);
        let refused = here.insert_sandbox(&scope, sandbox(), None).await.unwrap();
        assert!(matches!(refused, Inserted::OverQuota(over) if over.quota == Quota::DiskMib));
        assert_eq!(MOST_VOLUMES, 1000);
    }
}
