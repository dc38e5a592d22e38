//! What goes wrong, and what is said about it.

use coffer_image::{ImageError, Registry};
use serde_json::json;

use crate::fake::{Fake, Reply, image};
use crate::fixture::{DOCKER_MANIFEST, Made, OCI_INDEX, OCI_MANIFEST, allow, digest, login, resolve};

async fn error_of(reply: Reply) -> (ImageError, String) {
    let fake = Fake::start(move |_| reply.clone()).await;
    let registry = Registry::new(allow(&[&fake.host()])).unwrap();
    let error = resolve(&registry, &format!("{}/a/b:1", fake.host()), None).await.unwrap_err();
    let text = error.to_string().replace(&fake.host(), "HOST");
    (error, text)
}

#[tokio::test]
async fn statuses_are_explained() {
    let (error, text) = error_of(Reply::new(404, "")).await;
    assert!(!error.is_transient());
    assert_eq!(text, "image `HOST/a/b:1` not found at `HOST`");
    let (error, text) = error_of(Reply::new(403, "")).await;
    assert!(
        matches!(error, ImageError::Unauthorized { credentials_sent: false, .. }) && !error.is_transient()
    );
    assert!(text.contains("no credentials were sent"), "{text}");
    let (error, text) = error_of(Reply::new(429, "").header("retry-after", 90)).await;
    assert!(error.is_transient());
    assert_eq!(text, "`HOST` limits requests; retry in 90 s");
    let reason = r#"{"errors":[{"code":"UNAVAILABLE","message":"be\u0007right back"}]}"#;
    let (error, text) = error_of(Reply::new(503, reason)).await;
    assert!(error.is_transient());
    assert_eq!(text, "`HOST` answered with status 503 (UNAVAILABLE: be right back)");
    let (error, text) = error_of(Reply::new(418, "x".repeat(100_000))).await;
    assert!(!error.is_transient() && text.ends_with("status 418"), "{text}");
}

#[tokio::test]
async fn refused_credentials_are_told_from_missing_ones() {
    let fake = Fake::start(|_| Reply::new(401, "").header("www-authenticate", "Basic realm=x")).await;
    let registry = Registry::new(allow(&[&fake.host()])).unwrap();
    let name = format!("{}/a/b", fake.host());
    let error = resolve(&registry, &name, None).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { credentials_sent: false, .. }), "{error}");
    let error = resolve(&registry, &name, Some(&login())).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { credentials_sent: true, .. }), "{error}");
    assert!(!error.to_string().contains("password"), "{error}");
}

#[tokio::test]
async fn hosts_that_do_not_answer_are_unreachable() {
    let registry = Registry::new(allow(&["127.0.0.1"])).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for name in [format!("127.0.0.1:{port}/a/b"), "nowhere.invalid/a/b".into()] {
        let error = resolve(&registry, &name, None).await.unwrap_err();
        assert!(matches!(error, ImageError::Unreachable { .. }) && error.is_transient(), "{error}");
    }
    // Plain HTTP where TLS is expected.
    let fake = Fake::start(|_| Reply::new(200, "")).await;
    let settings =
        coffer_image::RegistrySettings { plain_http: Default::default(), ..allow(&[&fake.host()]) };
    let registry = Registry::new(settings).unwrap();
    let error = resolve(&registry, &format!("{}/a/b", fake.host()), None).await.unwrap_err();
    assert!(matches!(error, ImageError::Tls { .. } | ImageError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn wrong_and_endless_manifests_are_refused() {
    let made = Made::with_layer(b"layer");
    let other = digest(b"other");
    let (error, text) =
        error_of(Reply::new(200, made.manifest.clone()).header("docker-content-digest", other)).await;
    assert!(matches!(error, ImageError::BadDigest { .. }) && !error.is_transient(), "{text}");
    let (error, text) = error_of(Reply::new(200, vec![b' '; (4 << 20) + 1])).await;
    assert!(matches!(error, ImageError::TooLong { most: 4_194_304, .. }), "{text}");
    let (error, text) =
        error_of(Reply::new(200, json!({"schemaVersion": 1, "fsLayers": []}).to_string())).await;
    assert!(matches!(error, ImageError::Unsupported { .. }) && text.contains("schema 1"), "{text}");
    let (_, text) = error_of(Reply::new(200, made.manifest.clone()).cut(20)).await;
    assert!(text.contains("ended too early"), "{text}");
    let (_, text) = error_of(Reply::new(200, "<html>")).await;
    assert!(text.contains("is not a manifest"), "{text}");
    // Pinned: whatever the registry says.
    let fake = Fake::with(&made).await;
    let registry = Registry::new(allow(&[&fake.host()])).unwrap();
    let error = resolve(&registry, &format!("{}/a/b@{other}", fake.host()), None).await.unwrap_err();
    assert!(matches!(error, ImageError::BadDigest { expected, .. } if expected == other), "{error}");
    let pinned = resolve(&registry, &format!("{}/a/b:1@{}", fake.host(), made.digest()), None).await.unwrap();
    assert_eq!(pinned.digest, made.digest());
}

#[tokio::test]
async fn a_wrong_configuration_is_refused() {
    let made = Made::with_layer(b"layer");
    for (body, expected) in [(b"{}".to_vec(), "digest"), (vec![b' '; (8 << 20) + 1], "longer")] {
        let copy = made.clone();
        let fake = Fake::start(move |seen| match seen.path.contains("/blobs/") {
            true => Reply::new(200, body.clone()),
            false => image(&copy, seen),
        })
        .await;
        let registry = Registry::new(allow(&[&fake.host()])).unwrap();
        let error = resolve(&registry, &format!("{}/a/b", fake.host()), None).await.unwrap_err();
        assert!(error.to_string().contains(expected) && !error.is_transient(), "{error}");
    }
}

#[tokio::test]
async fn an_index_that_lies_or_has_no_such_platform_is_refused() {
    let made = Made::with_layer(b"layer");
    let entry = |digest: String, architecture: &str| json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": 1, "platform": {"os": "linux", "architecture": architecture}});
    let serve = async |entries: serde_json::Value| {
        let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}).to_string();
        let copy = made.clone();
        let fake = Fake::start(move |seen| match seen.path.ends_with("/manifests/1") {
            true => Reply::new(200, index.clone()).header("content-type", OCI_INDEX),
            false => image(&copy, seen),
        })
        .await;
        let registry = Registry::new(allow(&[&fake.host()])).unwrap();
        resolve(&registry, &format!("{}/a/b:1", fake.host()), None).await
    };
    assert!(serve(json!([entry(made.digest().to_string(), "amd64")])).await.is_ok());
    let error = serve(json!([entry(digest(b"x").to_string(), "amd64")])).await.unwrap_err();
    assert!(matches!(error, ImageError::BadDigest { .. }), "{error}");
    let error =
        serve(json!([entry(made.digest().to_string(), "s390x"), entry(made.digest().to_string(), "arm64")]))
            .await
            .unwrap_err();
    assert!(
        error.to_string().ends_with("is not for linux/amd64; it is for linux/arm64, linux/s390x"),
        "{error}"
    );
    // The same bytes under two media types.
    let fake = {
        let copy = made.clone();
        Fake::start(move |_| Reply::new(200, copy.manifest.clone()).header("content-type", DOCKER_MANIFEST))
            .await
    };
    let registry = Registry::new(allow(&[&fake.host()])).unwrap();
    let error = resolve(&registry, &format!("{}/a/b:1", fake.host()), None).await.unwrap_err();
    assert!(!error.is_transient(), "{error}");
}
