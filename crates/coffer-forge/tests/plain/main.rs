//! Repositories on a plain git server: real `git http-backend` behind HTTP with a password, pull requests here.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands, helpers included")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::forge::{BranchName, ForgeAddress, ForgeKind, MergeMethod, PullState};
use coffer_forge::{
    Forge, ForgeConfig, ForgeError, Forges, GitAccess, GitLimits, GitProcesses, Identity, MergeOrder,
    NewPull, Part, PrivateHosts,
};
use coffer_store::{
    Authenticated, ConnectionRow, ConnectionTerms, Credential, NewConnection, ProjectScope, RepositoryRow,
    Secret, SecretName, Store,
};
use coffer_testkit::TestDatabase;
use coffer_testkit::github::{FakeGitHub, Mood, git};
use serde_json::json;
use tempfile::TempDir;

/// A project with a connection to a git server that has `octo/app.git`.
struct Stage {
    server: FakeGitHub,
    forges: Forges,
    store: Store,
    scope: ProjectScope,
    connection: ConnectionRow,
    dir: TempDir,
    _database: TestDatabase,
}

impl Stage {
    async fn start() -> Self {
        Self::with("good-token", &["127.0.0.1"]).await
    }

    async fn with(password: &str, private_hosts: &[&str]) -> Self {
        let (server, database, dir) =
            (FakeGitHub::start().await, TestDatabase::sqlite(), TempDir::new().unwrap());
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "one").await.unwrap();
        let key = store.create_key(&operator, project, "test").await.unwrap();
        let Some(Authenticated::Project(principal)) = store.authenticate(key.reveal()).await.unwrap() else {
            panic!("a project's key")
        };
        let scope = principal.scope;
        let name: SecretName = "password".parse().unwrap();
        store.put_secret(&scope, &name, &Secret::new(password), None).await.unwrap();
        let forges = Forges::start(config(&dir, "repositories", private_hosts), store.clone()).await.unwrap();
        let credential = Credential::Basic { user: "x-access-token".into(), secret: "password".into() };
        let terms = ConnectionTerms { credential, webhook_secret: None };
        let base_url = forges.plain_address(server.web()).unwrap();
        let new = NewConnection { name: "git".into(), kind: ForgeKind::Git, base_url, terms };
        let connection = store.create_connection(&scope, new).await.unwrap();
        Self { server, forges, store, scope, connection, dir, _database: database }
    }

    async fn register(&self) -> Result<RepositoryRow, ForgeError> {
        let name = "app".parse().unwrap();
        self.forges.register(&self.scope, name, self.connection.id, "octo/app.git").await
    }

    async fn app(&self) -> Arc<dyn Forge> {
        let row = self.register().await.unwrap();
        self.forges.open(&self.scope, &row, "key:1").await.unwrap()
    }

    fn work(&self) -> PathBuf {
        self.server.dir.path().join("work")
    }

    /// Commits a file on a branch of the server, from where it is or from main; returns the commit.
    async fn push(&self, branch: &str, file: &str, text: &str) -> String {
        let work = self.work();
        git(&work, &["fetch", "--quiet", "origin"]).await;
        let from = match git(&work, &["ls-remote", "origin", &format!("refs/heads/{branch}")]).await.as_str()
        {
            "" => "origin/main".to_string(),
            _ => format!("origin/{branch}"),
        };
        git(&work, &["checkout", "--quiet", "-B", branch, &from]).await;
        std::fs::write(work.join(file), text).unwrap();
        git(&work, &["add", "--all"]).await;
        git(&work, &["commit", "--quiet", "--message", &format!("feat: {file}")]).await;
        git(&work, &["push", "--quiet", "--force", "origin", branch]).await;
        git(&work, &["rev-parse", "HEAD"]).await
    }

    async fn tip(&self, branch: &str) -> String {
        git(&self.server.bare(), &["for-each-ref", "--format=%(objectname)", &format!("refs/heads/{branch}")])
            .await
    }
}

fn config(dir: &TempDir, place: &str, private_hosts: &[&str]) -> ForgeConfig {
    ForgeConfig {
        repositories: dir.path().join(place),
        here: "http://127.0.0.1:1".into(),
        identity: Identity { name: "Cofferdam".into(), email: "noreply@localhost".into() },
        git: GitLimits::default(),
        git_processes: GitProcesses::default(),
        min_free_disk: 0,
        plain_http: true,
        private_hosts: PrivateHosts::parse(private_hosts.iter().copied()).unwrap(),
        extra_roots: None,
    }
}

fn branch(name: &str) -> BranchName {
    name.parse().unwrap()
}

fn part() -> Part {
    Part { after: None, limit: 30 }
}

fn pull_of(head: &str) -> NewPull {
    NewPull { title: "Add it".into(), body: "why".into(), head: branch(head), base: None, draft: false }
}

fn by(method: MergeMethod) -> MergeOrder {
    MergeOrder { method, expected_head: None, title: None, message: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_request_is_kept_here_and_its_merge_lands_there() {
    let stage = Stage::start().await;
    // The default branch is the server's, whatever its name.
    git(&stage.work(), &["push", "--quiet", "origin", "main:refs/heads/trunk"]).await;
    git(&stage.server.bare(), &["symbolic-ref", "HEAD", "refs/heads/trunk"]).await;
    let row = stage.register().await.unwrap();
    assert_eq!((row.kind, row.default_branch.as_str()), (ForgeKind::Git, "trunk"));
    assert_eq!(row.remote.as_deref(), Some("octo/app.git"));
    let forge = stage.forges.open(&stage.scope, &row, "key:1").await.unwrap();
    assert!(!forge.repository().await.unwrap().empty);
    assert!(forge.permissions().await.unwrap().sufficient);

    // Git itself uses the same credential, which is in no URL.
    let upstream = forge.upstream(GitAccess::Push(branch("task/1")), Duration::from_secs(60)).await.unwrap();
    assert!(!upstream.url.contains("good-token") && !upstream.enforces_branch && upstream.on_site);
    let header = format!("http.extraHeader=Authorization: {}", upstream.authorization.reveal());
    let there = TempDir::new().unwrap();
    git(there.path(), &["-c", &header, "clone", "--quiet", &upstream.url, "work"]).await;

    let head = stage.push("task/1", "one", "1\n").await;
    let main = stage.tip("main").await;
    assert_eq!(forge.branch(&branch("task/1")).await.unwrap().commit.as_str(), head);
    assert_eq!(forge.branches(part()).await.unwrap().items.len(), 3);
    let pull = forge.create_pull(pull_of("task/1")).await.unwrap();
    assert_eq!((pull.number, pull.base.as_str(), pull.head_commit.as_str()), (1, "trunk", head.as_str()));
    assert!(matches!(forge.create_pull(pull_of("task/1")).await, Err(ForgeError::PullExists { number: 1 })));
    let diff = forge.diff(1).await.unwrap();
    assert_eq!((diff.files.len(), diff.files[0].path.as_str(), diff.additions), (1, "one", 1));
    forge.comment(1, "nice").await.unwrap();
    // Another push moves it, and only what is new is fetched.
    let head = stage.push("task/1", "two", "2\n").await;
    assert_eq!(forge.pull(1).await.unwrap().head_commit.as_str(), head);

    let merged = forge.merge(1, by(MergeMethod::Squash)).await.unwrap();
    assert_eq!(merged.state, PullState::Merged);
    assert_eq!(stage.tip("trunk").await, merged.merge_commit.unwrap().to_string());
    assert_eq!(git(&stage.server.bare(), &["show", "trunk:two"]).await, "2");
    assert_eq!(stage.tip("main").await, main, "no other branch moved");
    assert_eq!(forge.pull(1).await.unwrap().state, PullState::Merged);
    stage.forges.delete(&stage.scope, &row).await.unwrap();
    let place = stage.dir.path().join(format!("repositories/{}/{}.git", row.project, row.id));
    assert!(!place.exists(), "the copy goes with it");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_of_merging_lands_and_conflicts_change_nothing() {
    let stage = Stage::start().await;
    let forge = stage.app().await;
    for (at, method) in [MergeMethod::Merge, MergeMethod::Rebase].into_iter().enumerate() {
        let (head, file) = (format!("task/{at}"), format!("file-{at}"));
        stage.push(&head, &file, "x\n").await;
        // The base moves in between, so that there is something to merge.
        stage.push("main", &format!("main-{at}"), "y\n").await;
        let pull = forge.create_pull(pull_of(&head)).await.unwrap();
        forge.merge(pull.number, by(method)).await.unwrap();
        assert_eq!(git(&stage.server.bare(), &["show", &format!("main:{file}")]).await, "x");
    }
    stage.push("task/conflict", "README", "theirs\n").await;
    let main = stage.push("main", "README", "ours\n").await;
    let pull = forge.create_pull(pull_of("task/conflict")).await.unwrap();
    let refused = forge.merge(pull.number, by(MergeMethod::Merge)).await.unwrap_err();
    assert!(matches!(&refused, ForgeError::Conflict { paths, .. } if paths == &["README"]), "{refused}");
    assert_eq!(stage.tip("main").await, main);
}

#[tokio::test(flavor = "multi_thread")]
async fn branches_that_move_by_force_or_go_are_followed() {
    let stage = Stage::start().await;
    let forge = stage.app().await;
    stage.push("task/1", "one", "1\n").await;
    let pull = forge.create_pull(pull_of("task/1")).await.unwrap();
    // Rewritten: another commit on the same base.
    git(&stage.work(), &["commit", "--quiet", "--amend", "--message", "feat: other"]).await;
    git(&stage.work(), &["push", "--quiet", "--force", "origin", "task/1"]).await;
    let head = stage.tip("task/1").await;
    assert_ne!(pull.head_commit.as_str(), head);
    assert_eq!(forge.pull(pull.number).await.unwrap().head_commit.as_str(), head);
    // A branch that is a directory of another's name now.
    git(&stage.work(), &["push", "--quiet", "origin", ":task/1"]).await;
    git(&stage.work(), &["push", "--quiet", "origin", "HEAD:refs/heads/task/1/more"]).await;
    let refused = forge.merge(pull.number, by(MergeMethod::Merge)).await.unwrap_err();
    assert!(refused.to_string().contains("no longer exists"), "{refused}");
    assert_eq!(forge.diff(pull.number).await.unwrap().files.len(), 1, "its commits stay");
    let other = forge.create_pull(pull_of("task/1/more")).await.unwrap();
    // Merged elsewhere, by hand.
    git(&stage.work(), &["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    assert_eq!(forge.pull(other.number).await.unwrap().state, PullState::Merged);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_refuses_the_merge_is_quoted() {
    let stage = Stage::start().await;
    let forge = stage.app().await;
    stage.push("task/1", "one", "1\n").await;
    let main = stage.tip("main").await;
    let pull = forge.create_pull(pull_of("task/1")).await.unwrap();
    let hook = stage.server.bare().join("hooks/pre-receive");
    std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
    std::fs::write(&hook, "#!/bin/sh\necho 'no merges on Fridays' >&2\nexit 1\n").unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let refused = forge.merge(pull.number, by(MergeMethod::Merge)).await.unwrap_err();
    let told = refused.to_string();
    assert!(matches!(refused, ForgeError::Protected { .. }), "{told}");
    assert!(told.contains("no merges on Fridays"), "{told}");
    assert_eq!(
        (stage.tip("main").await, forge.pull(pull.number).await.unwrap().state),
        (main, PullState::Open)
    );
    std::fs::remove_file(&hook).unwrap();
    assert_eq!(forge.merge(pull.number, by(MergeMethod::Merge)).await.unwrap().state, PullState::Merged);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_whose_answer_is_lost_is_found_by_the_next_look() {
    let stage = Stage::start().await;
    let forge = stage.app().await;
    stage.push("task/1", "one", "1\n").await;
    let pull = forge.create_pull(pull_of("task/1")).await.unwrap();
    // The list for the merge's own look, that for the push, and then the push itself.
    let asked = |what: &str| stage.server.asked(what);
    let before = asked("git");
    forge.pull(pull.number).await.unwrap();
    assert_eq!(asked("git") - before, 1, "one look at a pull request asks once");
    stage.server.world.lock().unwrap().drop_push_answers = 1;
    let lost = forge.merge(pull.number, by(MergeMethod::Merge)).await;
    assert!(matches!(lost, Err(ForgeError::Unreachable { .. })), "{lost:?}");
    let landed = stage.tip("main").await;
    let found = forge.pull(pull.number).await.unwrap();
    assert_eq!((found.state, found.merge_commit.unwrap().to_string()), (PullState::Merged, landed));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_merge_once() {
    let stage = Stage::start().await;
    let row = stage.register().await.unwrap();
    let other =
        Forges::start(config(&stage.dir, "other", &["127.0.0.1"]), stage.store.clone()).await.unwrap();
    stage.push("task/1", "one", "1\n").await;
    let (one, two) = (
        stage.forges.open(&stage.scope, &row, "key:1").await.unwrap(),
        other.open(&stage.scope, &row, "key:2").await.unwrap(),
    );
    let pull = one.create_pull(pull_of("task/1")).await.unwrap();
    let (first, second) = tokio::join!(
        one.merge(pull.number, by(MergeMethod::Merge)),
        two.merge(pull.number, by(MergeMethod::Merge))
    );
    assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    let count = git(&stage.server.bare(), &["rev-list", "--count", "--merges", "main"]).await;
    assert_eq!(count, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_has_a_clear_refusal() {
    let stage = Stage::with("wrong", &["127.0.0.1"]).await;
    assert!(matches!(stage.register().await, Err(ForgeError::TokenExpired)));
    let stage = Stage::with("good-token", &[]).await;
    let inside = stage.register().await.unwrap_err();
    assert!(inside.to_string().contains("forge.private_hosts"), "{inside}");
    assert_eq!(stage.server.asked("git"), 0, "it was not dialled");

    let stage = Stage::start().await;
    let answer = |status, headers| Mood::Answer(status, headers, json!({}));
    let elsewhere = "http://169.254.169.254/latest/meta-data";
    stage.server.git_mood(answer(302, vec![("location", elsewhere.into())]));
    let moved = stage.register().await.unwrap_err();
    assert!(
        matches!(moved, ForgeError::Invalid { .. }) && moved.to_string().contains("not followed"),
        "{moved}"
    );
    stage.server.git_mood(answer(200, vec![("content-type", "text/html".into())]));
    let page = stage.register().await.unwrap_err();
    assert!(page.to_string().contains("is no git repository"), "{page}");
    stage.server.git_mood(answer(403, vec![]));
    assert!(matches!(stage.register().await, Err(ForgeError::PermissionMissing { .. })));
    let none =
        stage.forges.register(&stage.scope, "x".parse().unwrap(), stage.connection.id, "octo/none.git").await;
    assert!(matches!(none, Err(ForgeError::NotFound { .. })), "{none:?}");
    for bad in ["../etc", "octo/app.git?x", "", "octo//app"] {
        let bad = stage.forges.register(&stage.scope, "x".parse().unwrap(), stage.connection.id, bad).await;
        assert!(matches!(bad, Err(ForgeError::Invalid { .. })), "{bad:?}");
    }
    // One that is away for a moment is asked again, one that stays away is not.
    stage.server.git_mood(answer(502, vec![]));
    stage.server.git_mood(Mood::HangUp);
    let row = stage.register().await.unwrap();
    let forge = stage.forges.open(&stage.scope, &row, "key:1").await.unwrap();
    for _ in 0..3 {
        stage.server.git_mood(answer(503, vec![]));
    }
    assert!(matches!(forge.branches(part()).await, Err(ForgeError::Unreachable { .. })));
    // Neither are its lists GitHub's.
    let listed = stage.forges.reachable(&stage.scope, stage.connection.id, "", part()).await;
    assert!(matches!(listed, Err(ForgeError::Invalid { .. })), "{listed:?}");
    assert!(stage.forges.plain_address("https://git.example.com/team").is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_is_one_repository() {
    let stage = Stage::start().await;
    let address: ForgeAddress = format!("{}/octo/app", stage.server.web()).parse().unwrap();
    let (row, is_new) = stage.forges.locate(&stage.scope, &address).await.unwrap();
    assert!(is_new && row.kind == ForgeKind::Git && row.remote.as_deref() == Some("octo/app.git"));
    let (again, is_new) = stage.forges.locate(&stage.scope, &address).await.unwrap();
    assert!(!is_new && again.id == row.id);
    // Paths of a git server know capitals.
    let other: ForgeAddress = format!("{}/Octo/App", stage.server.web()).parse().unwrap();
    let other = stage.forges.locate(&stage.scope, &other).await;
    assert!(matches!(other, Err(ForgeError::NotFound { .. })), "{other:?}");
}
