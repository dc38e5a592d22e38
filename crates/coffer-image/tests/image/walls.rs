//! Where requests go, and what is in them.

use coffer_image::{Credentials, ImageError, Registry, ServedBy};

use crate::fake::{Fake, Reply, image};
use crate::fixture::{BASIC, Made, allow, fetch, login, resolve, store};

const CHALLENGE: &str = "www-authenticate";

fn refused(error: &ImageError) -> bool {
    matches!(error, ImageError::RefusedAddress { .. }) && !error.is_transient()
}

#[tokio::test]
async fn a_registry_at_a_private_address_must_be_named_by_the_operator() {
    let made = Made::with_layer(b"layer");
    let fake = Fake::with(&made).await;
    let plain =
        coffer_image::RegistrySettings { private_hosts: Default::default(), ..allow(&[&fake.host()]) };
    let closed = Registry::new(plain).unwrap();
    for name in
        [fake.host(), "localhost".into(), "10.0.0.1".into(), "[::1]:5000".into(), "169.254.169.254".into()]
    {
        let error = resolve(&closed, &format!("{name}/a/b"), None).await.unwrap_err();
        assert!(refused(&error), "{name}: {error}");
        assert!(error.to_string().contains("registries.private_hosts"), "{error}");
    }
    assert_eq!(fake.connections(), 0, "nothing was dialled");
    let open = Registry::new(allow(&[&fake.host()])).unwrap();
    let found = resolve(&open, &format!("{}/a/b:1", fake.host()), None).await.unwrap();
    assert_eq!((found.digest, found.served_by), (made.digest(), ServedBy::Registry(fake.host())));
    assert_eq!((found.config.user.as_str(), found.layers.len()), ("app", 1));
    assert_eq!(fake.seen()[0].path, "/v2/a/b/manifests/1");
    // Named for one port: another is closed.
    let other = Fake::with(&made).await;
    assert!(resolve(&open, &format!("{}/a/b", other.host()), None).await.is_err());
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn redirects_meet_the_same_walls() {
    let made = Made::with_layer(b"layer");
    let trap = Fake::with(&made).await;
    for (location, allowed) in [
        (format!("https://127.0.0.1:{}/x", trap.port), None),
        (format!("http://127.0.0.1:{}/x", trap.port), None),
        (format!("//127.0.0.1:{}/x", trap.port), None),
        ("https://169.254.169.254/latest/meta-data".into(), None),
        // The operator cannot open these.
        ("http://169.254.169.254/latest/meta-data".into(), Some("169.254.169.254")),
        ("http://[fe80::1]/".into(), None),
        ("https://user:pass@example.com/".into(), None),
        ("file:///etc/passwd".into(), None),
        ("gopher://127.0.0.1/".into(), None),
    ] {
        let (copy, to) = (made.clone(), location.clone());
        let fake = Fake::start(move |seen| match seen.path.contains("/blobs/") {
            true => Reply::new(307, "").header("location", &to),
            false => image(&copy, seen),
        })
        .await;
        let hosts: Vec<String> = [fake.host()].into_iter().chain(allowed.map(String::from)).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let registry = Registry::new(allow(&hosts)).unwrap();
        let error = resolve(&registry, &format!("{}/a/b", fake.host()), None).await.unwrap_err();
        let is_wall = refused(&error) || matches!(error, ImageError::Tls { .. } | ImageError::Invalid { .. });
        assert!(is_wall && !error.is_transient(), "{location}: {error}");
    }
    assert_eq!(trap.connections(), 0, "no redirect reached it");
}

#[tokio::test]
async fn redirects_are_followed_without_the_credentials() {
    let made = Made::with_layer(b"layer");
    let copy = made.clone();
    let store_of_blobs = Fake::start(move |seen| match copy.blob(&seen.path) {
        Some(bytes) => Reply::part(seen, &bytes),
        None => Reply::new(404, ""),
    })
    .await;
    let (copy, to) = (made.clone(), store_of_blobs.host());
    let fake = Fake::start(move |seen| {
        if seen.header("authorization") != Some(BASIC) {
            return Reply::new(401, "").header(CHALLENGE, "Basic realm=x");
        }
        match seen.path.strip_prefix("/v2/a/b/blobs/") {
            // First within the registry, then to another host.
            Some(blob) => Reply::new(307, "").header("location", format!("/moved/{blob}")),
            None if seen.path.starts_with("/moved/") => {
                Reply::new(302, "").header("location", format!("http://{to}{}?signature=1", seen.path))
            }
            None => image(&copy, seen),
        }
    })
    .await;
    let copy_of = |made: &Made| made.layer().1.clone();
    let registry = Registry::new(allow(&[&fake.host(), &store_of_blobs.host()])).unwrap();
    // The store of blobs looks names up by their end.
    let found = resolve(&registry, &format!("{}/a/b", fake.host()), Some(&login())).await;
    let error = found.map(|_| ()).unwrap_err();
    assert!(matches!(error, ImageError::UnknownBlob { .. }), "a query is passed on: {error}");
    let asked = store_of_blobs.seen();
    assert!(asked[0].path.ends_with("?signature=1") && asked[0].header("authorization").is_none());
    assert!(fake.requests("/moved/").iter().all(|seen| seen.header("authorization") == Some(BASIC)));

    let (copy, to) = (made.clone(), store_of_blobs.host());
    let fake = Fake::start(move |seen| match seen.header("authorization") {
        Some(BASIC) if seen.path.contains("/blobs/") => {
            Reply::new(307, "").header("location", format!("http://{to}{}", seen.path))
        }
        Some(BASIC) => image(&copy, seen),
        _ => Reply::new(401, "").header(CHALLENGE, "Basic realm=x"),
    })
    .await;
    let registry = Registry::new(allow(&[&fake.host(), &store_of_blobs.host()])).unwrap();
    let found = resolve(&registry, &format!("{}/a/b", fake.host()), Some(&login())).await.unwrap();
    let (_dir, blobs) = store();
    let bytes = fetch(&blobs, &registry, &found, &found.layers[0], Some(&login())).await.unwrap();
    assert_eq!(bytes, copy_of(&made));
    assert!(store_of_blobs.seen().iter().all(|seen| seen.header("authorization").is_none()));
}

#[tokio::test]
async fn redirects_in_a_circle_end() {
    let fake = Fake::start(|seen| Reply::new(302, "").header("location", &seen.path)).await;
    let registry = Registry::new(allow(&[&fake.host()])).unwrap();
    let error = resolve(&registry, &format!("{}/a/b", fake.host()), None).await.unwrap_err();
    assert!(error.to_string().contains("redirects more than 5 times"), "{error}");
    assert_eq!(fake.connections(), 6);
}

/// A registry that wants tokens of `tokens`, and takes them if they are for `repository`.
async fn with_tokens(made: &Made, realm: String) -> Fake {
    let made = made.clone();
    Fake::start(move |seen| match seen.header("authorization") {
        Some(token) if token.starts_with("Bearer good") => image(&made, seen),
        _ => Reply::new(401, "").header(
            CHALLENGE,
            format!("Bearer realm=\"{realm}\",service=\"the registry\",scope=\"repository:a/b:pull\""),
        ),
    })
    .await
}

#[tokio::test]
async fn tokens_are_fetched_once_and_kept_apart() {
    let made = Made::with_layer(b"layer");
    let tokens = Fake::start(|seen| {
        let whose = if seen.header("authorization").is_some() { "hers" } else { "anyones" };
        Reply::new(200, format!(r#"{{"token":"good-{whose}","expires_in":300}}"#))
    })
    .await;
    let fake = with_tokens(&made, format!("http://{}/token", tokens.host())).await;
    let registry = Registry::new(allow(&[&fake.host(), &tokens.host()])).unwrap();
    let name = format!("{}/a/b", fake.host());
    let (_dir, blobs) = store();
    let found = resolve(&registry, &name, Some(&login())).await.unwrap();
    fetch(&blobs, &registry, &found, &found.layers[0], Some(&login())).await.unwrap();
    let asked = tokens.seen();
    assert_eq!(asked.len(), 1, "one token serves all requests: {asked:?}");
    assert_eq!(asked[0].header("authorization"), Some(BASIC), "the token server needs the password");
    assert_eq!(asked[0].path, "/token?service=the%20registry&scope=repository%3Aa%2Fb%3Apull");
    let sent = |part: &str| {
        fake.requests(part)
            .iter()
            .filter_map(|seen| seen.header("authorization").map(String::from))
            .collect::<Vec<_>>()
    };
    assert_eq!(sent("/blobs/"), ["Bearer good-hers", "Bearer good-hers"], "and the registry does not get it");
    resolve(&registry, &name, None).await.unwrap();
    assert_eq!(sent("/manifests/").last().unwrap(), "Bearer good-anyones");
    assert_eq!(tokens.seen()[1].header("authorization"), None);
    resolve(&registry, &name, Some(&Credentials::login("user", "other").unwrap())).await.unwrap();
    assert_eq!(tokens.seen().len(), 3, "another password gets another token");
}

#[tokio::test]
async fn expired_tokens_are_renewed() {
    let made = Made::with_layer(b"layer");
    let tokens = Fake::start(|_| Reply::new(200, r#"{"access_token":"good","expires_in":1}"#)).await;
    let fake = with_tokens(&made, format!("http://{}/token?x=1", tokens.host())).await;
    let registry = Registry::new(allow(&[&fake.host(), &tokens.host()])).unwrap();
    resolve(&registry, &format!("{}/a/b", fake.host()), None).await.unwrap();
    assert_eq!(tokens.seen().len(), 2, "one for the manifest, one for the configuration");
    assert!(tokens.seen()[0].path.starts_with("/token?x=1&service="));
}

#[tokio::test]
async fn a_token_server_must_be_public_too() {
    let made = Made::with_layer(b"layer");
    let trap = Fake::start(|_| Reply::new(200, r#"{"token":"good"}"#)).await;
    for realm in [
        format!("https://127.0.0.1:{}/token", trap.port),
        format!("http://127.0.0.1:{}/token", trap.port),
        "https://169.254.169.254/token".into(),
        "https://10.0.0.1/token".into(),
        "file:///etc/passwd".into(),
        "https://user:pass@example.com/".into(),
        "/token".into(),
        String::new(),
    ] {
        let fake = with_tokens(&made, realm.clone()).await;
        let registry = Registry::new(allow(&[&fake.host()])).unwrap();
        let error = resolve(&registry, &format!("{}/a/b", fake.host()), Some(&login())).await.unwrap_err();
        let is_wall = refused(&error) || matches!(error, ImageError::Tls { .. } | ImageError::Invalid { .. });
        assert!(is_wall, "{realm}: {error}");
    }
    assert_eq!(trap.connections(), 0);
    // Nor may it pass the password on.
    let to = format!("http://{}/token", trap.host());
    let moving = Fake::start(move |_| Reply::new(302, "").header("location", &to)).await;
    let fake = with_tokens(&made, format!("http://{}/", moving.host())).await;
    let registry = Registry::new(allow(&[&fake.host(), &moving.host(), &trap.host()])).unwrap();
    let error = resolve(&registry, &format!("{}/a/b", fake.host()), Some(&login())).await.unwrap_err();
    assert!(matches!(error, ImageError::Status { status: 302, .. }), "{error}");
    assert_eq!(trap.connections(), 0);
}

#[tokio::test]
async fn aws_keys_are_not_for_other_registries() {
    let fake = Fake::start(|_| Reply::new(401, "").header(CHALLENGE, "Basic realm=x")).await;
    let registry = Registry::new(allow(&[&fake.host()])).unwrap();
    let key = Credentials::aws("AKIA0", "very secret", "eu-west-1").unwrap();
    let error = resolve(&registry, &format!("{}/a/b", fake.host()), Some(&key)).await.unwrap_err();
    assert!(matches!(error, ImageError::Unsupported { .. }), "{error}");
    assert!(
        error.to_string().contains("dkr.ecr.eu-west-1") && !error.to_string().contains("secret"),
        "{error}"
    );
    assert!(fake.seen().iter().all(|seen| seen.header("authorization").is_none()));
}
