//! Storage of a project, and reservations.

use coffer_store::{ChangeError, OverQuota, Quota, Quotas, Reservation, Store};
use futures_util::future::join_all;

use crate::databases::on_both;
use crate::fixtures::project;

const MIB: u64 = 1 << 20;

fn over(refused: Result<Reservation, ChangeError>) -> OverQuota {
    match refused {
        Err(ChangeError::OverQuota(over)) => over,
        other => panic!("{other:?}"),
    }
}

/// A project's use after dropped reservations are released.
async fn used(store: &Store, scope: &coffer_store::ProjectScope, expected: i64) {
    let mut seen = -1;
    for _ in 0..500 {
        seen = store.quotas(scope, scope.project()).await.unwrap().unwrap().in_use.storage_mib;
        if seen == expected {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{seen} MiB are in use, not {expected}");
}

on_both! {
    /// Two servers, many uploads each, one quota: space is granted once.
    async fn of_many_reservations_at_once_no_more_are_granted_than_fit(database: &TestDatabase) {
        let (here, there) = (database.open().await, database.open().await);
        let (scope, other) = (project(&here, "p").await, project(&here, "q").await);
        for store in [&here, &there] {
            store.set_default_quotas(Quotas { storage_mib: Some(10), ..Quotas::default() });
        }
        let asked = (0..20).map(|n| {
            let store = if n % 2 == 0 { here.clone() } else { there.clone() };
            tokio::spawn(async move { store.reserve_storage(scope.project(), 3 * MIB).await })
        });
        let answers: Vec<_> = join_all(asked).await.into_iter().map(Result::unwrap).collect();
        let (granted, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert_eq!((granted.len(), refused.len()), (3, 17));
        for refused in refused {
            let over = over(refused);
            assert_eq!((over.quota, over.limit, over.used, over.asked), (Quota::StorageMib, 10, 9, 3));
        }
        let kept = here.reserve_storage(other.project(), 10 * MIB).await.unwrap();
        assert!(here.storage_refusal(other.project()).await.unwrap().is_some());
        assert_eq!(here.storage_refusal(scope.project()).await.unwrap(), None, "a little is left");
        drop((granted, kept));
        used(&here, &scope, 0).await;
        // An operator sets a project's own quota.
        let own = Quotas { storage_mib: Some(20), ..Quotas::default() };
        here.set_quotas(&here.operator(), scope.project(), None, own).await.unwrap().unwrap();
        there.reserve_storage(scope.project(), 20 * MIB).await.unwrap();
    }

    async fn a_reservation_grows_until_the_quota_is_used_up(database: &TestDatabase) {
        let store = database.open().await;
        let scope = project(&store, "p").await;
        store.set_default_quotas(Quotas { storage_mib: Some(40), ..Quotas::default() });
        let room = store.reserve_storage(scope.project(), 1).await.unwrap();
        for came in [1, MIB, 17 * MIB, 39 * MIB, 40 * MIB] {
            room.cover(came).await.unwrap();
        }
        assert_eq!(room.refusal(), None);
        let Err(ChangeError::OverQuota(full)) = room.cover(40 * MIB + 1).await else { panic!("it fits nowhere") };
        assert_eq!((full.quota, full.used, full.asked), (Quota::StorageMib, 40, 1));
        assert_eq!(room.refusal(), Some(full));
        drop(room);
        used(&store, &scope, 0).await;
    }
}
