//! Uploads that pretend to be bundles: nothing in them may name a file, another repository or its objects.

use std::path::{Path, PathBuf};

use http::Method;
use http_body_util::Full;
use serde_json::json;

use crate::app::{Answer, TestApp};
use crate::forge::{Work, git, good};

/// The directory of a repository on the server.
fn place(work: &Work) -> PathBuf {
    let id = work.path.rsplit('/').next().unwrap();
    let shelf = work.app.config.server_dir.join("repositories");
    let found =
        std::fs::read_dir(&shelf).unwrap().map(|entry| entry.unwrap().path().join(format!("{id}.git")));
    found.into_iter().find(|path| path.exists()).expect("the repository is on disk")
}

/// Files that a failed import must not leave: quarantines and packs.
pub(crate) fn leftovers(app: &TestApp, repository: &str) -> Vec<PathBuf> {
    let shelf = app.config.server_dir.join("repositories");
    let below = |path: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    };
    let mut left = Vec::new();
    for entry in below(&shelf) {
        if entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
            left.push(entry);
        } else {
            left.extend(below(&entry.join(format!("{repository}.git/objects/pack"))));
        }
    }
    left
}

/// A second project that tries to import into its own empty repository.
pub(crate) async fn import(app: &TestApp, repository: &str, body: &[u8]) -> Answer {
    let request = http::Request::builder()
        .method(Method::POST)
        .uri(format!("/api/v1/repositories/{repository}/import"))
        .header("host", app.address().to_string())
        .header("x-api-key", &app.other_key)
        .body(Full::new(body.to_vec().into()))
        .unwrap();
    app.send(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_copies_nothing_of_another_project() {
    let work = Work::start().await;
    let app = &work.app;
    let secret = work.branch("secret", "plans", "not for others\n").await;
    let victim = place(&work);
    let name = json!({"name": "mine"});
    let made =
        app.as_key(&app.other_key, Method::POST, "/api/v1/repositories", name).await.expect(201).json();
    let mine = made["id"].as_str().unwrap();
    let victim_path = victim.display();
    let objects = std::fs::read_dir(victim.join("objects/pack")).unwrap().map(|entry| entry.unwrap().path());
    let pack = objects.into_iter().find(|path| path.extension().is_some_and(|end| end == "pack"));
    let pack = std::fs::read(pack.expect("pushes are kept as packs")).unwrap();
    for (attack, body) in [
        ("a pointer", format!("gitdir: {victim_path}\n").into_bytes()),
        ("a pointer without an end", format!("gitdir: {victim_path}").into_bytes()),
        ("a pointer by a process", b"gitdir: /proc/self/cwd\n".to_vec()),
        ("a path", victim_path.to_string().into_bytes()),
        ("a URL", format!("file://{victim_path}\n").into_bytes()),
        (
            "a bundle whose lines are a pointer",
            format!("# v2 git bundle\ngitdir: {victim_path}\n\n").into_bytes(),
        ),
        (
            "refs to objects of others, no pack",
            format!("# v2 git bundle\n{secret} refs/heads/main\n\n").into_bytes(),
        ),
        (
            "refs to objects of others, a pack without them",
            [format!("# v2 git bundle\n{secret} refs/heads/main\n\n").as_bytes(), &empty_pack()].concat(),
        ),
        (
            "a needed commit of others",
            format!("# v2 git bundle\n-{secret}\n{secret} refs/heads/main\n\n").into_bytes(),
        ),
        ("a ref that climbs", format!("# v2 git bundle\n{secret} refs/heads/../../config\n\n").into_bytes()),
        ("a pack that breaks off", {
            let header = format!("# v2 git bundle\n{secret} refs/heads/main\n\n");
            [header.as_bytes(), &pack[..pack.len() - 10]].concat()
        }),
        ("nothing", Vec::new()),
    ] {
        let answer = import(app, mine, &body).await;
        assert_eq!(answer.status, 422, "{attack}: {}", answer.text());
        let told = answer.text();
        assert!(!told.contains("repositories/") && !told.contains("/tmp"), "{attack} tells a path: {told}");
        let branches = format!("/api/v1/repositories/{mine}/branches");
        let branches =
            app.as_key(&app.other_key, Method::GET, &branches, json!(null)).await.expect(200).json();
        assert_eq!(branches["items"], json!([]), "{attack}");
        assert_eq!(leftovers(app, mine), Vec::<PathBuf>::new(), "{attack}");
    }
}

/// A pack of no objects, with its checksum.
fn empty_pack() -> Vec<u8> {
    let sum = "029d08823bd8a8eab510ad6ac75c823cfd3ed31e";
    [b"PACK\0\0\0\x02\0\0\0\0".to_vec(), hex::decode(sum).unwrap()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_brings_its_branches_and_tags_and_nothing_else() {
    let work = Work::start().await;
    let tip = work.branch("more", "file", "x\n").await;
    let at = work.at("one");
    good(&git(&at, &["tag", "--annotate", "--message", "first", "v1"]).await);
    good(&git(&at, &["update-ref", "refs/hidden/x", "HEAD"]).await);
    let bundle = work.at("all.bundle");
    good(&git(&at, &["bundle", "create", "--quiet", "--version=3", bundle.to_str().unwrap(), "--all"]).await);
    let app = &work.app;
    let name = json!({"name": "mine"});
    let made =
        app.as_key(&app.other_key, Method::POST, "/api/v1/repositories", name).await.expect(201).json();
    import(app, made["id"].as_str().unwrap(), &std::fs::read(&bundle).unwrap()).await.expect(200);
    let url = made["clone_url"].as_str().unwrap();
    let url = url.replace("http://", &format!("http://any:{}@", app.other_key));
    let refs = good(&git(&at, &["ls-remote", &url]).await);
    let names: Vec<&str> = refs.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let expected = ["HEAD", "refs/heads/main", "refs/heads/more", "refs/tags/v1", "refs/tags/v1^{}"];
    assert_eq!(names, expected);
    assert!(refs.contains(&format!("{tip}\trefs/heads/more")), "{refs}");
    good(&git(work.at("").as_path(), &["clone", "--quiet", &url, "copy"]).await);
    good(&git(&work.at("copy"), &["fsck", "--strict"]).await);
}
