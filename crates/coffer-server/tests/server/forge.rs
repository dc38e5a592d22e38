//! Local repositories over HTTP: real git clones and pushes, pull requests, merges, and refused access.

use std::path::{Path, PathBuf};
use std::process::Output;

use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::app::TestApp;

/// A repository of the test's project and a clone of it.
pub(crate) struct Work {
    pub(crate) app: TestApp,
    dir: TempDir,
    pub(crate) path: String,
    pub(crate) url: String,
}

/// Runs git like a person, without this machine's settings.
pub(crate) async fn git(at: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("git");
    command.current_dir(at).args(args).env_clear();
    command.envs([
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/nonexistent"),
        ("LC_ALL", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_AUTHOR_NAME", "Ada"),
        ("GIT_AUTHOR_EMAIL", "ada@example.com"),
        ("GIT_COMMITTER_NAME", "Ada"),
        ("GIT_COMMITTER_EMAIL", "ada@example.com"),
    ]);
    command.output().await.unwrap()
}

#[track_caller]
pub(crate) fn good(output: &Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !told.contains("remote: error"), "{told}");
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

fn complaint(output: &Output) -> String {
    assert!(!output.status.success(), "it was let through");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

impl Work {
    /// With one commit on `main`, pushed.
    pub(crate) async fn start() -> Self {
        Self::on(TestApp::start().await).await
    }

    pub(crate) async fn on(app: TestApp) -> Self {
        let made = app.post("/api/v1/repositories", json!({"name": "app"})).await.expect(201).json();
        assert_eq!((&made["kind"], &made["default_branch"]), (&json!("local"), &json!("main")));
        let path = format!("/api/v1/repositories/{}", made["id"].as_str().unwrap());
        let url = made["clone_url"].as_str().unwrap().replace("http://", &format!("http://any:{}@", app.key));
        let work = Self { app, dir: TempDir::new().unwrap(), path, url };
        good(&git(work.dir.path(), &["clone", "--quiet", &work.url, "one"]).await);
        work.commit("one", "README", "hello\n").await;
        good(&work.push("one", &["HEAD:refs/heads/main"]).await);
        work
    }

    pub(crate) fn at(&self, clone: &str) -> PathBuf {
        self.dir.path().join(clone)
    }

    async fn clone(&self, into: &str) {
        good(&git(self.dir.path(), &["clone", "--quiet", &self.url, into]).await);
    }

    pub(crate) async fn commit(&self, clone: &str, file: &str, text: &str) -> String {
        let at = self.at(clone);
        std::fs::write(at.join(file), text).unwrap();
        good(&git(&at, &["add", "--all"]).await);
        good(&git(&at, &["commit", "--quiet", "--message", &format!("change {file}")]).await);
        good(&git(&at, &["rev-parse", "HEAD"]).await)
    }

    async fn push(&self, clone: &str, args: &[&str]) -> Output {
        git(&self.at(clone), &[&["push", "--quiet", "origin"], args].concat()).await
    }

    /// A branch from `main` with one commit, pushed; returns the commit.
    pub(crate) async fn branch(&self, name: &str, file: &str, text: &str) -> String {
        let at = self.at("one");
        good(&git(&at, &["fetch", "--quiet", "origin"]).await);
        good(&git(&at, &["checkout", "--quiet", "-B", name, "origin/main"]).await);
        let commit = self.commit("one", file, text).await;
        good(&self.push("one", &[name]).await);
        commit
    }

    pub(crate) async fn open(&self, head: &str) -> Value {
        let body = json!({"title": format!("From {head}"), "body": "why", "head": head});
        self.app.post(&format!("{}/pulls", self.path), body).await.expect(201).json()
    }

    async fn pull(&self, number: i64) -> Value {
        self.app.get(&format!("{}/pulls/{number}", self.path)).await.expect(200).json()
    }

    pub(crate) async fn merge(&self, number: i64, body: Value) -> crate::app::Answer {
        self.app.post(&format!("{}/pulls/{number}/merge", self.path), body).await
    }

    async fn main(&self) -> String {
        let page = self.app.get(&format!("{}/branches", self.path)).await.expect(200).json();
        let branches = page["items"].as_array().unwrap();
        let main = branches.iter().find(|branch| branch["name"] == "main").unwrap();
        main["commit"].as_str().unwrap().to_string()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_request_goes_from_push_to_merge() {
    let work = Work::start().await;
    let commit = work.branch("task-1", "feature", "a\nb\n").await;
    let pull = work.open("task-1").await;
    assert_eq!(
        (&pull["number"], &pull["state"], &pull["head_commit"]),
        (&json!(1), &json!("open"), &json!(commit))
    );
    let diff = work.app.get(&format!("{}/pulls/1/diff", work.path)).await.expect(200).json();
    let file = json!({
        "path": "feature", "previous_path": null, "change": "added", "additions": 2, "deletions": 0, "binary": false
    });
    assert_eq!((&diff["files"], &diff["truncated"]), (&json!([file]), &json!(false)));
    assert!(diff["patch"].as_str().unwrap().contains("+a\n+b\n"), "{diff}");
    let counts = work.app.get(&format!("{}/pulls/1/diff?stat=true", work.path)).await.expect(200).json();
    assert_eq!((&counts["files"], &counts["patch"]), (&diff["files"], &json!("")));
    let exists = json!({"title": "Again", "head": "task-1"});
    let refused = work.app.post(&format!("{}/pulls", work.path), exists).await.expect(409).json();
    assert_eq!(refused["details"]["number"], 1);

    // Another commit moves the head, and a merge of the first one is refused.
    let newer = work.commit("one", "feature", "a\nb\nc\n").await;
    good(&work.push("one", &["task-1"]).await);
    assert_eq!(work.pull(1).await["head_commit"], json!(newer));
    let moved = work.app.events("pull.head_moved").await;
    assert_eq!(
        (moved.len(), &moved[0]["before"], &moved[0]["head_commit"]),
        (1, &json!(commit), &json!(newer))
    );
    work.merge(1, json!({"expected_head": commit})).await.expect(409);

    let before = work.main().await;
    let merged = work.merge(1, json!({"method": "merge", "expected_head": newer})).await.expect(200).json();
    assert_eq!((&merged["state"], &merged["merge_commit"]), (&json!("merged"), &json!(work.main().await)));
    work.clone("two").await;
    let parents = good(&git(&work.at("two"), &["log", "-1", "--format=%P %s", "origin/main"]).await);
    assert_eq!(parents, format!("{before} {newer} Merge pull request #1 from task-1"));
    assert_eq!(std::fs::read_to_string(work.at("two").join("feature")).unwrap(), "a\nb\nc\n");
    let after = work.app.get(&format!("{}/pulls/1/diff", work.path)).await.expect(200).json();
    assert_eq!(after["additions"], 3, "the diff of a merged one stays");
    assert_eq!(work.app.events("pull.merged").await.len(), 1);
    let again = work.merge(1, Value::Null).await.expect(409).json();
    assert!(again["message"].as_str().unwrap().contains("already merged"), "{again}");
    let page = work.app.get(&format!("{}/pulls?state=open", work.path)).await.expect(200).json();
    assert_eq!(page["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn squash_and_rebase_make_straight_histories() {
    let work = Work::start().await;
    work.branch("squash", "one", "1\n").await;
    work.commit("one", "two", "2\n").await;
    good(&work.push("one", &["squash"]).await);
    work.branch("rebase", "three", "3\n").await;
    work.commit("one", "four", "4\n").await;
    good(&work.push("one", &["rebase"]).await);
    work.open("squash").await;
    work.open("rebase").await;
    work.merge(1, json!({"method": "squash", "title": "Both", "message": "told"})).await.expect(200);
    work.merge(2, json!({"method": "rebase"})).await.expect(200);
    work.clone("two").await;
    let log = good(&git(&work.at("two"), &["log", "--format=%an %p|%s", "origin/main"]).await);
    let lines: Vec<_> = log.lines().map(|line| line.split_once('|').unwrap()).collect();
    let subjects: Vec<_> = lines.iter().map(|line| line.1).collect();
    assert_eq!(subjects, ["change four", "change three", "Both", "change README"]);
    assert!(lines.iter().all(|line| line.0.starts_with("Ada ") && line.0.split(' ').count() <= 2), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_names_the_files_and_changes_nothing() {
    let work = Work::start().await;
    work.branch("left", "README", "left\n").await;
    work.branch("right", "README", "right\n").await;
    work.open("left").await;
    work.open("right").await;
    work.merge(1, Value::Null).await.expect(200);
    let before = work.main().await;
    for method in ["merge", "squash", "rebase"] {
        let refused = work.merge(2, json!({"method": method})).await.expect(409).json();
        assert_eq!(
            (&refused["code"], &refused["details"]["paths"]),
            (&json!("merge_conflict"), &json!(["README"])),
            "{method}"
        );
    }
    assert_eq!((work.main().await, &work.pull(2).await["state"]), (before, &json!("open")));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_merge_one_wins() {
    let work = Work::start().await;
    for branch in ["a", "b", "c"] {
        work.branch(branch, branch, "x\n").await;
        work.open(branch).await;
    }
    // The same one twice, and others concurrently: each once, none lost.
    let (one, again, two, three) = tokio::join!(
        work.merge(1, Value::Null),
        work.merge(1, json!({"method": "squash"})),
        work.merge(2, json!({"method": "squash"})),
        work.merge(3, json!({"method": "rebase"}))
    );
    let mut same = [one.status, again.status];
    same.sort_unstable();
    assert_eq!((same, two.status, three.status), ([200, 409], 200, 200));
    assert_eq!(work.app.events("pull.merged").await.len(), 3);
    work.clone("two").await;
    for file in ["a", "b", "c"] {
        assert!(work.at("two").join(file).exists(), "{file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_push_at_once() {
    let work = Work::start().await;
    let mut pushes = Vec::new();
    for n in 0..10 {
        let clone = format!("clone-{n}");
        work.clone(&clone).await;
        work.commit(&clone, &format!("file-{n}"), "x\n").await;
    }
    for n in 0..10 {
        let at = work.at(&format!("clone-{n}"));
        pushes.push(tokio::spawn(async move {
            let own = git(&at, &["push", "--quiet", "origin", &format!("HEAD:task-{n}")]).await;
            let shared = git(&at, &["push", "--quiet", "origin", "HEAD:shared"]).await;
            (good(&own), shared.status.success())
        }));
    }
    let mut won = 0;
    for push in pushes {
        won += i32::from(push.await.unwrap().1);
    }
    assert_eq!(won, 1, "one of those who make a branch at once");
    let page = work.app.get(&format!("{}/branches", work.path)).await.expect(200).json();
    assert_eq!(page["items"].as_array().unwrap().len(), 12);
    assert_eq!(work.app.events("repository.pushed").await.len(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_refs_and_protected_branches_are_told_to_whoever_pushes() {
    let work = Work::start().await;
    for (name, why) in [
        ("refs/pull/9/head", "only branches, tags and notes"),
        ("refs/secret/x", "only branches, tags and notes"),
        ("refs/heads/a\u{200b}b", "not allowed"),
    ] {
        let told = complaint(&work.push("one", &[&format!("HEAD:{name}"), "HEAD:refs/heads/fine"]).await);
        assert!(told.contains("remote rejected") && told.contains(why), "{told}");
    }
    let page = work.app.get(&format!("{}/branches", work.path)).await.expect(200).json();
    assert_eq!(page["items"].as_array().unwrap().len(), 1, "all or nothing");

    let protection = format!("{}/protections/main", work.path);
    work.app.put(&protection, json!({"approvals": 1, "require_statuses": true})).await.expect(200);
    work.commit("one", "README", "direct\n").await;
    let told = complaint(&work.push("one", &["HEAD:main"]).await);
    assert!(told.contains("protected branch: open a pull request"), "{told}");
    complaint(&work.push("one", &["--delete", "main"]).await);
    let head = work.branch("task", "new", "x\n").await;
    work.open("task").await;
    let refused = work.merge(1, Value::Null).await.expect(409).json();
    assert_eq!(refused["code"], "branch_protected");
    // Its author's own approval does not count; another's does.
    let review = format!("{}/pulls/1/reviews", work.path);
    work.app.post(&review, json!({"verdict": "approve"})).await.expect(201);
    work.merge(1, Value::Null).await.expect(409);
    let other =
        work.app.post("/api/v1/keys", json!({"name": "reviewer", "kind": "person"})).await.expect(201).json();
    let other = other["key"].as_str().unwrap().to_string();
    let line = json!({"path": "new", "line": 1, "body": "why x?"});
    let body = json!({"verdict": "approve", "comments": [line]});
    work.app.as_key(&other, Method::POST, &review, body).await.expect(201);
    let refused = work.merge(1, Value::Null).await.expect(409).json();
    assert!(refused["message"].as_str().unwrap().contains("statuses"), "{refused}");
    let statuses = format!("{}/commits/{head}/statuses", work.path);
    work.app.post(&statuses, json!({"context": "ci/test", "state": "success"})).await.expect(201);
    work.merge(1, Value::Null).await.expect(200);
    let lines = work.app.get(&format!("{}/pulls/1/line-comments", work.path)).await.expect(200).json();
    assert_eq!((&lines["items"][0]["path"], &lines["items"][0]["line"]), (&json!("new"), &json!(1)));
    work.app.delete(&protection).await.expect(204);
    work.app.delete(&protection).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn git_comes_in_by_keys_of_the_project_alone() {
    let work = Work::start().await;
    let at = work.dir.path();
    let bare = work.url.replace(&format!("any:{}@", work.app.key), "");
    let with = |key: &str| bare.replace("http://", &format!("http://x:{key}@"));
    let told = complaint(&git(at, &["ls-remote", &bare]).await);
    assert!(told.contains("could not read Username") || told.contains("Authentication failed"), "{told}");
    complaint(&git(at, &["ls-remote", &with("e2b_0000")]).await);
    let told = complaint(&git(at, &["ls-remote", &with(&work.app.other_key)]).await);
    assert!(told.contains("not found") || told.contains("404"), "{told}");
    let reads = work.app.post("/api/v1/keys", json!({"name": "r", "role": "read"})).await.expect(201).json();
    let reads = with(reads["key"].as_str().unwrap());
    assert!(good(&git(at, &["ls-remote", &reads]).await).contains("refs/heads/main"));
    let told = complaint(&git(&work.at("one"), &["push", &reads, "HEAD:refs/heads/no"]).await);
    assert!(told.contains("403"), "{told}");
    // Names that contain `..` are invalid.
    let project = work.app.scope().await.project();
    for path in [
        format!("/git/{project}/..%2f..%2fsecret.git/info/refs?service=git-upload-pack"),
        format!("/git/{project}/app.git/objects/info/packs"),
        "/git/..%2f..%2fetc/app.git/info/refs?service=git-upload-pack".to_string(),
    ] {
        assert_eq!(work.app.get(&path).await.status, 404, "{path}");
    }
    let dumb = work.app.get(&format!("/git/{project}/app.git/info/refs")).await;
    assert_eq!(dumb.status, 403);
    // By git's older protocols too.
    for version in ["0", "1", "2"] {
        let into = format!("v{version}");
        good(
            &git(at, &["-c", &format!("protocol.version={version}"), "clone", "--quiet", &work.url, &into])
                .await,
        );
        assert!(work.at(&into).join("README").exists());
    }
    good(&git(at, &["clone", "--quiet", "--depth=1", "--filter=blob:none", &work.url, "partial"]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_fills_an_empty_repository() {
    let work = Work::start().await;
    work.branch("more", "file", "x\n").await;
    let bundle = work.dir.path().join("all.bundle");
    good(
        &git(&work.at("one"), &["bundle", "create", "--quiet", bundle.to_str().unwrap(), "--branches"]).await,
    );
    let made = json!({"name": "copy", "default_branch": "trunk"});
    work.app.post("/api/v1/repositories", made).await.expect(201);
    let import = |body: Vec<u8>| {
        let request = work.app.request(Method::POST, "/api/v1/repositories/copy/import");
        work.app.send(request.body(http_body_util::Full::new(body.into())).unwrap())
    };
    import(b"no bundle".to_vec()).await.expect(422);
    let filled = import(std::fs::read(&bundle).unwrap()).await.expect(200).json();
    assert_eq!(filled["default_branch"], "main");
    let branches = work.app.get("/api/v1/repositories/copy/branches").await.expect(200).json();
    assert_eq!(branches["items"].as_array().unwrap().len(), 2);
    import(std::fs::read(&bundle).unwrap()).await.expect(409);
    work.app.post("/api/v1/repositories", json!({"name": "copy"})).await.expect(409);
    work.app.delete("/api/v1/repositories/copy").await.expect(204);
    work.app.get("/api/v1/repositories/copy").await.expect(404);
    for bad in ["../x", "a.git", "-u", ""] {
        work.app.post("/api/v1/repositories", json!({"name": bad})).await.expect(422);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn issues_and_comments_share_numbers_with_pull_requests() {
    let work = Work::start().await;
    let issues = format!("{}/issues", work.path);
    let made = work.app.post(&issues, json!({"title": "It breaks", "body": "so"})).await.expect(201).json();
    assert_eq!(made["number"], 1);
    work.branch("fix", "fix", "x\n").await;
    assert_eq!(work.open("fix").await["number"], 2);
    work.app.post(&format!("{issues}/1/comments"), json!({"body": "me too"})).await.expect(201);
    work.app.post(&format!("{}/pulls/2/comments", work.path), json!({"body": "nice"})).await.expect(201);
    work.app.post(&format!("{issues}/9/comments"), json!({"body": "x"})).await.expect(404);
    let said = work.app.get(&format!("{issues}/1/comments")).await.expect(200).json();
    assert_eq!((said["items"].as_array().unwrap().len(), &said["items"][0]["body"]), (1, &json!("me too")));
    work.app.get(&format!("{issues}/2")).await.expect(404);
    let request = work.app.request(Method::PATCH, &format!("{issues}/1"));
    let body = http_body_util::Full::new(json!({"state": "closed"}).to_string().into());
    let closed = work.app.send(request.body(body).unwrap()).await.expect(200).json();
    assert!(closed["closed_at"].is_string(), "{closed}");
    assert_eq!(work.app.get(&format!("{issues}?state=open")).await.expect(200).json()["items"], json!([]));
    work.app.post(&issues, json!({"title": "two\nlines"})).await.expect(422);
}

impl Work {
    /// The repository's own directory.
    async fn bare(&self) -> PathBuf {
        let scope = self.app.scope().await;
        let row = self.app.store.repository(&scope, "app").await.unwrap().unwrap();
        let shelf = self.app.config.server_dir.join("repositories");
        shelf.join(scope.project().to_string()).join(format!("{}.git", row.id))
    }

    /// Records that a merge is about to happen, like a server that dies right after.
    async fn noted(&self, number: i64) -> (String, String) {
        let scope = self.app.scope().await;
        let row = self.app.store.repository(&scope, "app").await.unwrap().unwrap();
        let pull = self.app.store.pull(&scope, row.id, number).await.unwrap().unwrap();
        let base = self.main().await;
        let tree = format!("{}^{{tree}}", pull.head_commit);
        let make = ["commit-tree", &tree, "-p", &base, "-m", "squashed"];
        let commit = good(&git(&self.bare().await, &make).await);
        let merging = coffer_store::Merging {
            base: base.parse().unwrap(),
            commit: commit.parse().unwrap(),
            method: coffer_core::forge::MergeMethod::Squash,
            by: "key:the-first".into(),
        };
        self.app.store.note_merge(&scope, &pull, Some(merging)).await.unwrap();
        (base, commit)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_a_crash_cut_short_is_finished_or_forgotten() {
    let work = Work::start().await;
    for branch in ["a", "b"] {
        work.branch(branch, branch, "x\n").await;
        work.open(branch).await;
    }
    let (base, commit) = work.noted(1).await;
    good(&git(&work.bare().await, &["update-ref", "refs/heads/main", &commit, &base]).await);
    let found = work.pull(1).await;
    assert_eq!((&found["state"], &found["merge_commit"]), (&json!("merged"), &json!(commit)));
    assert_eq!(work.app.events("pull.merged").await.len(), 1);
    let scope = work.app.scope().await;
    let row = work.app.store.repository(&scope, "app").await.unwrap().unwrap();
    let pull = work.app.store.pull(&scope, row.id, 1).await.unwrap().unwrap();
    assert_eq!(pull.merged_by.as_deref(), Some("key:the-first"));
    // The other one's ref was never moved.
    work.noted(2).await;
    let found = work.pull(2).await;
    assert_eq!((&found["state"], work.main().await), (&json!("open"), commit));
    work.merge(2, Value::Null).await.expect(200);
    assert_eq!(work.app.events("pull.merged").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_pushes_the_merge_has_merged() {
    let work = Work::start().await;
    work.branch("task", "file", "x\n").await;
    work.open("task").await;
    good(&work.push("one", &["task:main"]).await);
    assert_eq!(work.pull(1).await["state"], "merged");
    good(&work.push("one", &["--delete", "task"]).await);
    let diff = work.app.get(&format!("{}/pulls/1/diff", work.path)).await.expect(200).json();
    assert_eq!(diff["additions"], 1, "its commits stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_repositories_and_pull_requests() {
    let mut work = Work::start().await;
    let commit = work.branch("task", "file", "x\n").await;
    work.open("task").await;
    let shelf = work.app.config.server_dir.join("repositories");
    work.app
        .restart(async |_| {
            // A crash's incomplete directories are deleted; repositories without a record stay.
            std::fs::create_dir(shelf.join(".coming-x")).unwrap();
            std::fs::create_dir(shelf.join("stranger")).unwrap();
        })
        .await;
    assert!(!shelf.join(".coming-x").exists() && shelf.join("stranger").exists());
    assert_eq!(work.pull(1).await["head_commit"], json!(commit));
    work.merge(1, json!({"method": "rebase"})).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_made_of_secrets_and_webhooks_prove_themselves() {
    let app = TestApp::start().await;
    let path = "/api/v1/forge/connections";
    let new = json!({"name": "hub", "kind": "github", "secret": "token", "webhook_secret": "hook"});
    let refused = app.post(path, new.clone()).await.expect(422).json();
    assert!(refused["message"].as_str().unwrap().contains("'token', which does not exist"), "{refused}");
    app.put("/api/v1/secrets/token", json!({"value": "ghp_very-secret"})).await.expect(201);
    app.put("/api/v1/secrets/hook", json!({"value": "shared"})).await.expect(201);
    for bad in ["http://api.github.com", "https://u:p@x", "x"] {
        let mut new = new.clone();
        new["base_url"] = json!(bad);
        app.post(path, new).await.expect(422);
    }
    let made = app.post(path, new.clone()).await.expect(201);
    assert!(!made.text().contains("ghp_very-secret"));
    let made = made.json();
    assert_eq!((&made["base_url"], &made["secret"]), (&json!("https://api.github.com"), &json!("token")));
    app.post(path, new).await.expect(409);
    let id = made["id"].as_str().unwrap();

    // A repository that was recorded directly, and is not on this server.
    let scope = app.scope().await;
    let row = coffer_store::NewRepository {
        id: coffer_core::RepositoryId::generate(),
        name: "app".parse().unwrap(),
        elsewhere: Some((coffer_core::forge::ForgeKind::GitHub, id.parse().unwrap(), "octo/app".into())),
        default_branch: "main".parse().unwrap(),
    };
    app.store.create_repository(&scope, row).await.unwrap();
    app.delete(&format!("{path}/{id}")).await.expect(409);

    let body =
        json!({"action": "opened", "repository": {"full_name": "octo/app"}, "pull_request": {"number": 3}});
    let body = body.to_string();
    let deliver = async |connection: &str, delivery: &str, secret: &str| {
        use hmac_sha256::sign;
        let request = http::Request::builder()
            .method(Method::POST)
            .uri(format!("/api/v1/forge/webhooks/{connection}"))
            .header("host", app.address().to_string())
            .header("x-github-event", "pull_request")
            .header("x-github-delivery", delivery)
            .header("x-hub-signature-256", format!("sha256={}", sign(secret, &body)));
        app.send(request.body(http_body_util::Full::new(body.clone().into())).unwrap()).await
    };
    deliver(id, "d-1", "wrong").await.expect(401);
    assert_eq!(deliver(id, "d-1", "shared").await.expect(200).json()["outcome"], "recorded");
    assert_eq!(deliver(id, "d-1", "shared").await.expect(200).json()["outcome"], "repeated");
    deliver(&coffer_core::ConnectionId::generate().to_string(), "d-2", "shared").await.expect(404);
    let events = app.events("github.pull_request").await;
    assert_eq!((events.len(), &events[0]["number"]), (1, &json!(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_forge_is_told_and_not_waited_for() {
    let app = TestApp::start().await;
    app.put("/api/v1/secrets/token", json!({"value": "ghp_very-secret"})).await.expect(201);
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let new =
        json!({"name": "dead", "kind": "github", "secret": "token", "base_url": format!("https://{dead}")});
    let made = app.post("/api/v1/forge/connections", new).await.expect(201).json();
    let id = made["id"].as_str().unwrap();
    let path = format!("/api/v1/forge/connections/{id}/permissions?repository=octo/app");
    let refused = app.get(&path).await.expect(503).json();
    assert_eq!(refused["code"], "forge_unreachable");
    let new = json!({"name": "app", "connection_id": id, "remote": "octo/app"});
    app.post("/api/v1/repositories", new).await.expect(503);
    app.get("/api/v1/repositories/app").await.expect(404);
    app.delete(&format!("/api/v1/forge/connections/{id}")).await.expect(204);
}

/// HMAC-SHA-256, written independently.
pub(crate) mod hmac_sha256 {
    use sha2::{Digest, Sha256};

    pub(crate) fn sign(secret: &str, body: &str) -> String {
        let mut key = [0u8; 64];
        key[..secret.len()].copy_from_slice(secret.as_bytes());
        let pad = |with: u8| key.map(|byte| byte ^ with);
        let inner = Sha256::new().chain_update(pad(0x36)).chain_update(body).finalize();
        let outer = Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize();
        hex::encode(outer)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_a_pull_request_can_be_merged_is_told_before_it_is_tried() {
    let work = Work::start().await;
    work.branch("ours", "README", "ours\n").await;
    work.open("ours").await;
    let path = format!("{}/pulls/1/mergeability", work.path);
    let told = work.app.get(&path).await.expect(200).json();
    assert_eq!(
        (&told["state"], &told["behind"], &told["checks"]),
        (&json!("clean"), &json!(0), &Value::Null)
    );

    // The base moves on, in the same lines.
    let theirs = work.branch("theirs", "README", "theirs\n").await;
    good(&work.push("one", &["theirs:main"]).await);
    let told = work.app.get(&path).await.expect(200).json();
    assert_eq!(
        (&told["state"], &told["paths"], &told["behind"]),
        (&json!("conflict"), &json!(["README"]), &json!(1))
    );
    assert_eq!(told["base_commit"], theirs.as_str());
    assert_eq!(work.pull(1).await["state"], "open", "nothing was changed");

    // The base is merged into the head: that is what an agent does.
    let at = work.at("one");
    good(&git(&at, &["checkout", "--quiet", "ours"]).await);
    git(&at, &["merge", "--quiet", "theirs"]).await;
    let head = work.commit("one", "README", "both\n").await;
    good(&work.push("one", &["ours"]).await);
    let told = work.app.get(&path).await.expect(200).json();
    assert_eq!((&told["state"], &told["behind"]), (&json!("clean"), &json!(0)));

    let statuses = format!("{}/commits/{head}/statuses", work.path);
    work.app.post(&statuses, json!({"context": "ci/test", "state": "failure"})).await.expect(201);
    work.app
        .put(&format!("{}/protections/main", work.path), json!({"require_statuses": true}))
        .await
        .expect(200);
    let told = work.app.get(&path).await.expect(200).json();
    assert_eq!((&told["state"], &told["checks"]), (&json!("blocked"), &json!("failure")));
    assert!(told["why"].as_str().unwrap().contains("statuses"), "{told}");
    work.app.delete(&format!("{}/protections/main", work.path)).await.expect(204);
    work.merge(1, json!({"method": "squash"})).await.expect(200);
    assert_eq!(work.app.get(&path).await.expect(200).json()["state"], "closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_differences_of_commits_are_read() {
    let work = Work::start().await;
    let first = work.main().await;
    let second = work.branch("task", "new", "one\ntwo\n").await;
    let file = |commit: &str, path: &str| format!("{}/file?commit={commit}&path={path}", work.path);
    let told = work.app.get(&file(&second, "new")).await.expect(200).json();
    assert_eq!(
        (&told["text"], &told["binary"], &told["truncated"]),
        (&json!("one\ntwo\n"), &json!(false), &json!(false))
    );
    work.app.get(&file(&first, "new")).await.expect(404);
    work.app.get(&file(&"0".repeat(40), "new")).await.expect(404);
    for path in ["..%2Fconfig", "a%2F..%2Fnew", "%2Fetc%2Fpasswd", "", "new%00"] {
        work.app.get(&file(&second, path)).await.expect(422);
    }
    let between = format!("{}/compare?from={first}&to={second}", work.path);
    let diff = work.app.get(&between).await.expect(200).json();
    assert_eq!((&diff["files"][0]["path"], &diff["additions"]), (&json!("new"), &json!(2)));
    work.app.get(&format!("{}/compare?from=--output=x&to={second}", work.path)).await.expect(422);
    let other = work.app.other_key.clone();
    work.app.as_key(&other, Method::GET, &between, Value::Null).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_on_lines_are_threads() {
    let work = Work::start().await;
    work.branch("task", "new", "x\n").await;
    work.open("task").await;
    let review = json!({"verdict": "comment", "comments": [{"path": "new", "line": 1, "body": "why x?"}]});
    work.app.post(&format!("{}/pulls/1/reviews", work.path), review).await.expect(201);
    let all = format!("{}/pulls/1/line-comments", work.path);
    let lines = || async { work.app.get(&all).await.expect(200).json()["items"].as_array().unwrap().clone() };
    let first = format!("{all}/{}", lines().await[0]["id"].as_str().unwrap());
    let made = json!({"name": "colleague", "kind": "person"});
    let colleague =
        work.app.post("/api/v1/keys", made).await.expect(201).json()["key"].as_str().unwrap().to_string();
    let as_other = |method, path: String, body| {
        let colleague = colleague.clone();
        let app = &work.app;
        async move { app.as_key(&colleague, method, &path, body).await }
    };

    let body = json!({"body": "because y"});
    let reply = as_other(Method::POST, format!("{first}/replies"), body).await.expect(201).json();
    assert_eq!(reply["in_reply_to"], lines().await[0]["id"]);
    assert_eq!((&reply["path"], &reply["line"]), (&json!("new"), &json!(1)));
    let reply = format!("{all}/{}", reply["id"].as_str().unwrap());
    let nested = work.app.post(&format!("{reply}/replies"), json!({"body": "ah"})).await.expect(201).json();
    assert_eq!(nested["in_reply_to"], lines().await[0]["id"], "a thread has one level");

    // Only its author edits or deletes a comment; anybody resolves a thread.
    let refused =
        work.app.as_key(&work.app.key, Method::PATCH, &reply, json!({"body": "no"})).await.expect(403);
    assert_eq!(refused.json()["code"], "forbidden");
    work.app.delete(&reply).await.expect(403);
    let edited =
        as_other(Method::PATCH, reply.clone(), json!({"body": "because z"})).await.expect(200).json();
    assert!(edited["body"] == "because z" && edited["updated_at"].is_string(), "{edited}");
    let resolved = as_other(Method::PATCH, reply.clone(), json!({"resolved": true})).await.expect(200).json();
    assert!(resolved["id"] == lines().await[0]["id"] && resolved["resolved_by"].is_string(), "{resolved}");
    let opened =
        work.app.as_key(&work.app.key, Method::PATCH, &first, json!({"resolved": false})).await.expect(200);
    assert_eq!(opened.json()["resolved_by"], Value::Null);
    work.app.as_key(&work.app.key, Method::PATCH, &first, json!({})).await.expect(422);
    assert_eq!(work.app.events("pull.line_comment_changed").await.len(), 3);

    // Another project, and another pull request, know nothing of it.
    let other = work.app.other_key.clone();
    work.app.as_key(&other, Method::PATCH, &first, json!({"resolved": true})).await.expect(404);
    work.app
        .as_key(&work.app.key, Method::DELETE, &first.replace("/pulls/1/", "/pulls/2/"), Value::Null)
        .await
        .expect(404);
    as_other(Method::DELETE, reply.clone(), Value::Null).await.expect(204);
    as_other(Method::DELETE, reply, Value::Null).await.expect(404);
    assert_eq!(lines().await.len(), 2);
}
