//! Mirrors: which host serves, and what it gets.

use coffer_image::{ImageError, Registry, RegistrySettings, ServedBy};

use crate::fake::{Fake, Reply, image};
use crate::fixture::{BASIC, Made, allow, fetch, login, resolve, store};

/// Settings with mirrors of `registry`, which alone may be named by projects.
fn settings(registry: &Fake, mirrors: &[&Fake]) -> RegistrySettings {
    let hosts: Vec<String> = mirrors.iter().map(|mirror| mirror.host()).collect();
    let all: Vec<String> = hosts.iter().cloned().chain([registry.host()]).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    RegistrySettings {
        mirrors: [(registry.host(), hosts)].into(),
        plain_http: allow(&all).plain_http,
        ..allow(&[&registry.host()])
    }
}

#[tokio::test]
async fn mirrors_are_tried_in_order_and_get_no_credentials() {
    let made = Made::with_layer(b"layer");
    let empty = Fake::start(|_| Reply::new(404, "")).await;
    let locked = Fake::start(|_| Reply::new(401, "").header("www-authenticate", "Basic realm=x")).await;
    let mirror = Fake::with(&made).await;
    let registry = Fake::with(&made).await;
    let client = Registry::new(settings(&registry, &[&empty, &locked, &mirror])).unwrap();
    let name = format!("{}/a/b", registry.host());
    let found = resolve(&client, &name, Some(&login())).await.unwrap();
    assert_eq!(found.served_by, ServedBy::Mirror(mirror.host()));
    assert_eq!(found.skipped.len(), 2);
    assert!(
        found.skipped[0].contains(&empty.host()) && found.skipped[1].contains("no credentials"),
        "{:?}",
        found.skipped
    );
    let (_dir, blobs) = store();
    assert_eq!(fetch(&blobs, &client, &found, &found.layers[0], Some(&login())).await.unwrap(), b"layer");
    assert_eq!(registry.connections(), 0);
    for host in [&empty, &locked, &mirror] {
        assert!(host.seen().iter().all(|seen| seen.header("authorization").is_none()));
    }
    // A project that names a mirror itself does not get in.
    let error = resolve(&client, &format!("{}/a/b", mirror.host()), None).await.unwrap_err();
    assert!(matches!(error, ImageError::RefusedAddress { .. }), "{error}");
}

#[tokio::test]
async fn the_registry_serves_what_mirrors_cannot() {
    let made = Made::with_layer(b"layer");
    let copy = made.clone();
    let registry = Fake::start(move |seen| match seen.header("authorization") {
        Some(BASIC) => image(&copy, seen),
        _ => Reply::new(401, "").header("www-authenticate", "Basic realm=x"),
    })
    .await;
    let empty = Fake::start(|_| Reply::new(404, "")).await;
    let client = Registry::new(settings(&registry, &[&empty])).unwrap();
    let name = format!("{}/a/b", registry.host());
    let found = resolve(&client, &name, Some(&login())).await.unwrap();
    assert_eq!(found.served_by, ServedBy::Registry(registry.host()));
    let error = resolve(&client, &name, None).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "the registry's answer counts: {error}");
}

#[tokio::test]
async fn layers_that_a_mirror_lost_or_changed_come_from_the_registry() {
    let made = Made::with_layer(&vec![b'x'; 3 << 20]);
    let registry = Fake::with(&made).await;
    let layer = made.layer().0.to_string();
    for wrong in [
        Reply::new(404, ""),
        Reply::new(200, vec![b'y'; 3 << 20]),
        Reply::new(200, vec![b'y'; 3 << 20]).cut(2 << 20),
    ] {
        let (copy, layer) = (made.clone(), layer.clone());
        let mirror = Fake::start(move |seen| match seen.path.ends_with(&layer) {
            true => wrong.clone(),
            false => image(&copy, seen),
        })
        .await;
        let client = Registry::new(settings(&registry, &[&mirror])).unwrap();
        let found = resolve(&client, &format!("{}/a/b", registry.host()), None).await.unwrap();
        assert_eq!(found.served_by, ServedBy::Mirror(mirror.host()));
        let (_dir, blobs) = store();
        let bytes = fetch(&blobs, &client, &found, &found.layers[0], None).await.unwrap();
        assert!(bytes == made.layer().1, "the bytes are the registry's");
    }
}
