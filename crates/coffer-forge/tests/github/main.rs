//! GitHub's client against a server that checks every request against GitHub's published description.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands, helpers included")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coffer_core::forge::{
    BranchName, DiffSide, ForgeKind, IssueState, MergeMethod, PullState, StatusState, Verdict,
};
use coffer_forge::{
    Delivery, Forge, ForgeConfig, ForgeError, Forges, GitAccess, GitLimits, GitProcesses, Identity,
    IssueChange, MergeOrder, NewInlineComment, NewPull, NewReview, NewStatus, Part, PrivateHosts, PullChange,
    PullFilter, WebhookError,
};
use coffer_store::{
    Authenticated, ConnectionRow, ConnectionTerms, Credential, NewConnection, ProjectScope, RepositoryRow,
    Secret, SecretName, Store,
};
use coffer_testkit::TestDatabase;
use coffer_testkit::github::{FakeGitHub, Mood, git, operations};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A project with a connection to the fake.
struct Stage {
    fake: FakeGitHub,
    forges: Forges,
    store: Store,
    scope: ProjectScope,
    connection: ConnectionRow,
    _dir: TempDir,
    _database: TestDatabase,
}

impl Stage {
    async fn start() -> Self {
        Self::with(Credential::Token { secret: "token".into() }, "good-token").await
    }

    async fn with(credential: Credential, value: &str) -> Self {
        Self::vouched(credential, value, &["127.0.0.1"]).await
    }

    /// With these forges at private addresses.
    async fn vouched(credential: Credential, value: &str, hosts: &[&str]) -> Self {
        let (fake, database, dir) =
            (FakeGitHub::start().await, TestDatabase::sqlite(), TempDir::new().unwrap());
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "one").await.unwrap();
        let key = store.create_key(&operator, project, "test").await.unwrap();
        let Some(Authenticated::Project(principal)) = store.authenticate(key.reveal()).await.unwrap() else {
            panic!("a project's key")
        };
        let scope = principal.scope;
        for (name, value) in [("token", value), ("hook", "shared-secret")] {
            let name: SecretName = name.parse().unwrap();
            store.put_secret(&scope, &name, &Secret::new(value), None).await.unwrap();
        }
        let config = ForgeConfig {
            repositories: dir.path().join("repositories"),
            here: "http://127.0.0.1:1".into(),
            identity: Identity { name: "Cofferdam".into(), email: "noreply@localhost".into() },
            git: GitLimits::default(),
            git_processes: GitProcesses::default(),
            min_free_disk: 0,
            plain_http: true,
            private_hosts: PrivateHosts::parse(hosts.iter().copied()).unwrap(),
            extra_roots: None,
        };
        let forges = Forges::start(config, store.clone()).await.unwrap();
        let terms = ConnectionTerms { credential, webhook_secret: Some("hook".into()) };
        let base_url = forges.address(&fake.url).unwrap();
        let new = NewConnection { name: "hub".into(), kind: ForgeKind::GitHub, base_url, terms };
        let connection = store.create_connection(&scope, new).await.unwrap();
        Self { fake, forges, store, scope, connection, _dir: dir, _database: database }
    }

    async fn register(&self) -> (RepositoryRow, Arc<dyn Forge>) {
        let name = "app".parse().unwrap();
        let row = self.forges.register(&self.scope, name, self.connection.id, "octo/app").await.unwrap();
        let forge = self.forges.open(&self.scope, &row, "key:1").await.unwrap();
        (row, forge)
    }

    async fn events(&self, kind: &str) -> Vec<Value> {
        let all = self.store.events(&self.scope, 0, 1000).await.unwrap();
        all.into_iter().filter(|event| event.kind == kind).map(|event| event.payload).collect()
    }
}

fn branch(name: &str) -> BranchName {
    name.parse().unwrap()
}

fn part() -> Part {
    Part { after: None, limit: 30 }
}

fn rate_limited(after: &str) -> Mood {
    let body = json!({"message": "You have exceeded a secondary rate limit."});
    Mood::Answer(403, vec![("retry-after", after.into())], body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_request_goes_its_whole_way() {
    let stage = Stage::start().await;
    let (row, forge) = stage.register().await;
    assert_eq!(
        (row.default_branch.as_str(), forge.repository().await.unwrap().forge),
        ("main", ForgeKind::GitHub)
    );
    // Git itself uses the same credential, which is in no URL.
    let upstream = forge.upstream(GitAccess::Push(branch("task/1")), Duration::from_secs(60)).await.unwrap();
    assert!(!upstream.url.contains("good-token") && !upstream.enforces_branch);
    let header = format!("http.extraHeader=Authorization: {}", upstream.authorization.reveal());
    let dir = TempDir::new().unwrap();
    git(dir.path(), &["-c", &header, "clone", "--quiet", &upstream.url, "work"]).await;
    let work = dir.path().join("work");
    git(&work, &["checkout", "--quiet", "-b", "task/1"]).await;
    std::fs::write(work.join("new"), "x\n").unwrap();
    git(&work, &["add", "--all"]).await;
    git(&work, &["commit", "--quiet", "--message", "feat: x"]).await;
    git(&work, &["-c", &header, "push", "--quiet", "origin", "task/1"]).await;
    let head = git(&work, &["rev-parse", "HEAD"]).await;

    assert_eq!(forge.branch(&branch("task/1")).await.unwrap().commit.as_str(), head);
    assert_eq!(forge.branches(part()).await.unwrap().items.len(), 2);
    assert!(forge.protection(&branch("main")).await.unwrap().unwrap().require_statuses);
    assert!(forge.protection(&branch("task/1")).await.unwrap().is_none());
    let new = NewPull {
        title: "Add x".into(),
        body: "why".into(),
        head: branch("task/1"),
        base: None,
        draft: false,
    };
    assert!(forge.pull_of_head(&branch("task/1"), None).await.unwrap().is_none());
    let pull = forge.create_pull(new.clone()).await.unwrap();
    assert_eq!((pull.number, pull.state, pull.head_commit.as_str()), (1, PullState::Open, head.as_str()));
    let again = forge.create_pull(new).await;
    assert!(matches!(again, Err(ForgeError::PullExists { number: 1 })), "{again:?}");
    assert_eq!(
        forge.pull_of_head(&branch("task/1"), Some(&branch("main"))).await.unwrap().unwrap().number,
        1
    );
    let change = PullChange { title: Some("Add X".into()), ..PullChange::default() };
    assert_eq!(forge.update_pull(1, change).await.unwrap().title, "Add X");
    let diff = forge.diff(1).await.unwrap();
    assert!(diff.patch.contains("+x") && !diff.files.is_empty(), "{diff:?}");
    forge.comment(1, "nice").await.unwrap();
    assert_eq!(forge.comments(1, part()).await.unwrap().items[0].body, "nice");
    let line = NewInlineComment { path: "new".into(), line: 1, side: DiffSide::Right, body: "why?".into() };
    let review =
        NewReview { verdict: Verdict::Approve, body: "good".into(), commit: None, comments: vec![line] };
    assert_eq!(forge.review(1, review).await.unwrap().verdict, Verdict::Approve);
    assert_eq!(forge.reviews(1, part()).await.unwrap().items.len(), 1);
    assert_eq!(forge.inline_comments(1, part()).await.unwrap().items[0].path, "new");
    let status = NewStatus {
        context: "ci/test".parse().unwrap(),
        state: StatusState::Success,
        description: "all good".into(),
        target_url: None,
    };
    forge.set_status(&pull.head_commit, status).await.unwrap();
    let statuses = forge.statuses(&pull.head_commit).await.unwrap();
    assert!(statuses.statuses.len() >= 2, "a status and a check: {statuses:?}");

    let order = |expected: &str| MergeOrder {
        method: MergeMethod::Squash,
        expected_head: Some(expected.parse().unwrap()),
        title: Some("Add X (#1)".into()),
        message: None,
    };
    let raced = forge.merge(1, order(&"0".repeat(40))).await;
    assert!(matches!(raced, Err(ForgeError::Raced { .. })), "{raced:?}");
    let merged = forge.merge(1, order(&head)).await.unwrap();
    assert_eq!((merged.state, merged.merge_commit.unwrap().as_str()), (PullState::Merged, head.as_str()));
    assert_eq!(git(&stage.fake.bare(), &["rev-parse", "main"]).await, head);
    let again = forge.merge(1, order(&head)).await;
    assert!(matches!(again, Err(ForgeError::Conflict { .. })), "{again:?}");
    let filter = PullFilter { state: Some(PullState::Merged), ..PullFilter::default() };
    assert_eq!(forge.pulls(filter, part()).await.unwrap().items.len(), 1);

    let issue = forge.create_issue("It breaks", "so").await.unwrap();
    let change = IssueChange { state: Some(IssueState::Closed), ..IssueChange::default() };
    assert_eq!(forge.update_issue(issue.number, change).await.unwrap().state, IssueState::Closed);
    assert_eq!(forge.issues(None, part()).await.unwrap().items.len(), 1);
    assert!(matches!(forge.issue(99).await, Err(ForgeError::NotFound { .. })));
    assert_eq!(stage.events("pull.opened").await.len(), 1);
    stage.fake.assert_no_flaws();
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limits_are_waited_for_or_told() {
    let stage = Stage::start().await;
    let (_, forge) = stage.register().await;
    stage.fake.mood(rate_limited("1"));
    let before = std::time::Instant::now();
    forge.repository().await.unwrap();
    assert!(before.elapsed() >= Duration::from_millis(900), "it did not wait");
    let figures = stage.forges.github_figures();
    assert_eq!(figures.rate_limited.load(Ordering::Relaxed), 1);
    assert!(figures.waited_ms.load(Ordering::Relaxed) >= 900);
    let reset = jiff::Timestamp::now().as_second() + 1000;
    let spent = vec![("x-ratelimit-remaining", "0".to_string()), ("x-ratelimit-reset", reset.to_string())];
    stage.fake.mood(Mood::Answer(403, spent, json!({"message": "API rate limit exceeded"})));
    let asked = stage.fake.asked("GET");
    for _ in 0..2 {
        match forge.repository().await {
            Err(error @ ForgeError::RateLimited { retry_after }) => {
                assert!(error.is_transient() && retry_after > Duration::from_secs(900), "{retry_after:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stage.fake.asked("GET") - asked, 1, "it was asked again although it had said no");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_say_what_is_missing() {
    let stage = Stage::start().await;
    let (_, forge) = stage.register().await;
    let scope = vec![("x-accepted-github-permissions", "pull_requests=write".to_string())];
    let body = json!({"message": "Resource not accessible by personal access token"});
    stage.fake.mood(Mood::Answer(403, scope.clone(), body.clone()));
    match forge.pull(1).await {
        Err(error @ ForgeError::PermissionMissing { .. }) => {
            assert!(error.to_string().contains("pull_requests=write"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // The check asks for the repository, its pull requests and its issues: the second is refused.
    let mut repository = operations()[0].example.clone();
    repository["permissions"] = json!({"push": false});
    stage.fake.mood(Mood::Answer(200, Vec::new(), repository));
    stage.fake.mood(Mood::Answer(403, scope, body));
    let told = stage.forges.permissions(&stage.scope, stage.connection.id, "octo/app").await.unwrap();
    let missing: Vec<_> = told.missing.iter().map(|missing| missing.scope.as_str()).collect();
    assert_eq!((told.sufficient, missing), (false, vec!["contents=write", "pull_requests=write"]));
    stage.fake.world.lock().unwrap().tokens.clear();
    assert!(matches!(forge.repository().await, Err(ForgeError::TokenExpired)));
    let bound = Some(vec![coffer_core::network::NamePattern::parse("api.github.com").unwrap()]);
    let name = "token".parse().unwrap();
    stage.store.put_secret(&stage.scope, &name, &Secret::new("good-token"), bound).await.unwrap();
    let asked = stage.fake.asked("");
    assert!(matches!(forge.repository().await, Err(ForgeError::Credential { .. })));
    assert_eq!(stage.fake.asked(""), asked, "a token was sent to a host that it is not for");
    stage.fake.assert_no_flaws();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_may_be_repeated_is() {
    let stage = Stage::start().await;
    let (_, forge) = stage.register().await;
    let broken = || Mood::Answer(502, Vec::new(), json!({"message": "Server Error"}));
    stage.fake.mood(broken());
    stage.fake.mood(Mood::HangUp);
    forge.branch(&branch("main")).await.unwrap();
    assert_eq!(stage.fake.asked("GET /repos/octo/app/branches/main"), 3);
    for mood in [broken(), Mood::HangUp] {
        stage.fake.mood(mood);
        let made = forge.create_issue("once", "").await;
        assert!(matches!(made, Err(ForgeError::Unreachable { .. })), "{made:?}");
    }
    assert_eq!(stage.fake.asked("POST /repos/octo/app/issues"), 2, "each was sent once");
    let unchanged = || stage.forges.github_figures().unchanged.load(Ordering::Relaxed);
    let before = unchanged();
    let first = forge.branch(&branch("main")).await.unwrap();
    assert_eq!((forge.branch(&branch("main")).await.unwrap(), unchanged()), (first, before + 2));
    for location in ["http://169.254.169.254/latest", "https://evil.example/api/v3/x"] {
        let away = vec![("location", location.to_string())];
        stage.fake.mood(Mood::Answer(301, away, json!({})));
        assert!(matches!(forge.repository().await, Err(ForgeError::Strange(_))), "{location}");
    }
    stage.fake.mood(Mood::Answer(
        200,
        Vec::new(),
        json!({"default_branch": "-x", "pad": "y".repeat(9 << 20)}),
    ));
    assert!(matches!(forge.branch(&branch("other")).await, Err(ForgeError::TooLarge { .. })));
    stage.fake.mood(Mood::Answer(200, Vec::new(), json!({"default_branch": "--upload-pack=x"})));
    assert!(matches!(forge.repository().await, Err(ForgeError::Strange(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_address_is_reached_only_where_the_operator_vouches_for_it() {
    let credential = || Credential::Token { secret: "token".into() };
    for hosts in [&[][..], &["127.0.0.1:1"], &["ghe.example.com"]] {
        let stage = Stage::vouched(credential(), "good-token", hosts).await;
        let name = "app".parse().unwrap();
        match stage.forges.register(&stage.scope, name, stage.connection.id, "octo/app").await {
            Err(ForgeError::Unreachable { why, .. }) => {
                assert!(why.contains("loopback") && why.contains("forge.private_hosts"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(stage.fake.asked(""), 0, "nothing was sent");
    }
    let stage = Stage::start().await;
    let (_, forge) = stage.register().await;
    let upstream = forge.upstream(GitAccess::Fetch, Duration::from_secs(60)).await.unwrap();
    assert!(upstream.on_site, "the gate has to hear of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_forge_is_left_alone() {
    let stage = Stage::start().await;
    // A port without a listener.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let terms = stage.connection.terms.clone();
    let base_url = format!("http://{free}/api/v3");
    let new = NewConnection { name: "dead".into(), kind: ForgeKind::GitHub, base_url, terms };
    let dead = stage.store.create_connection(&stage.scope, new).await.unwrap();
    let mut told = Vec::new();
    for _ in 0..3 {
        match stage.forges.permissions(&stage.scope, dead.id, "octo/app").await {
            Err(error @ ForgeError::Unreachable { .. }) => told.push(error),
            other => panic!("{other:?}"),
        }
    }
    let last = told.pop().unwrap();
    assert!(
        matches!(last, ForgeError::Unreachable { retry_after: Some(_), .. }) && last.is_transient(),
        "{last:?}"
    );
    for bad in ["octo", "../x", "octo/app/x", "octo/-x", "octo/app.git", "o o/x"] {
        let refused = stage.forges.permissions(&stage.scope, dead.id, bad).await;
        assert!(matches!(refused, Err(ForgeError::Invalid { .. })), "{bad}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_makes_its_tokens_and_keeps_them() {
    let made =
        tokio::process::Command::new("openssl").args(["genrsa", "-traditional", "2048"]).output().await;
    let Some(key) = made.ok().filter(|made| made.status.success()) else {
        eprintln!("SKIPPED: openssl is not installed, and a private key is needed");
        return;
    };
    let key = String::from_utf8(key.stdout).unwrap();
    let app = Credential::App { secret: "token".into(), app_id: 42, installation_id: 7 };
    let stage = Stage::with(app, &key).await;
    let (_, forge) = stage.register().await;
    forge.branch(&branch("main")).await.unwrap();
    assert_eq!(stage.fake.world.lock().unwrap().minted, 1, "a token lives for an hour");
    stage.fake.world.lock().unwrap().tokens.clear();
    forge.branch(&branch("main")).await.unwrap();
    assert_eq!(stage.fake.world.lock().unwrap().minted, 2, "one that was revoked is made anew");
    let told = forge.permissions().await.unwrap();
    let missing: Vec<_> = told.missing.iter().map(|missing| missing.scope.as_str()).collect();
    assert_eq!(missing, ["pull_requests=write", "issues=write"]);
    // The proof is a JWT for this App, signed by its key.
    let proof = stage.fake.world.lock().unwrap().proofs[0].clone();
    let parts: Vec<_> = proof.split('.').collect();
    let read =
        |part: &str| base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, part).unwrap();
    let claims: Value = serde_json::from_slice(&read(parts[1])).unwrap();
    let now = jiff::Timestamp::now().as_second();
    assert_eq!(claims["iss"], "42");
    assert!(
        claims["exp"].as_i64().unwrap() <= now + 600 && claims["iat"].as_i64().unwrap() <= now,
        "{claims}"
    );
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("key"), &key).unwrap();
    std::fs::write(dir.path().join("text"), format!("{}.{}", parts[0], parts[1])).unwrap();
    std::fs::write(dir.path().join("signature"), read(parts[2])).unwrap();
    let verified = tokio::process::Command::new("openssl")
        .args(["dgst", "-sha256", "-prverify", "key", "-signature", "signature", "text"])
        .current_dir(dir.path())
        .output()
        .await
        .unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    stage.fake.assert_no_flaws();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_proves_itself_and_is_taken_once() {
    let stage = Stage::start().await;
    let (row, _) = stage.register().await;
    let body = json!({
        "action": "closed", "repository": {"full_name": "Octo/App"}, "sender": {"login": "ada"},
        "pull_request": {"number": 7, "state": "closed", "merged": true, "head": {"ref": "task/1"}},
    })
    .to_string();
    let sign = |body: &str| {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"shared-secret");
        format!("sha256={}", hex::encode(ring::hmac::sign(&key, body.as_bytes())))
    };
    let door = stage.forges.webhook_door(stage.connection.id).await.unwrap();
    let take = async |id: &str, event: &str, signature: &str, body: &str| {
        stage.forges.take_webhook(&door, (id, event, signature), body.as_bytes()).await
    };
    let wrong = take("d-1", "pull_request", &sign("other"), &body).await;
    assert!(matches!(wrong, Err(WebhookError::Unsigned)), "{wrong:?}");
    assert_eq!(take("d-1", "pull_request", &sign(&body), &body).await.unwrap(), Delivery::Recorded);
    assert_eq!(take("d-1", "pull_request", &sign(&body), &body).await.unwrap(), Delivery::Repeated);
    let other = body.replace("Octo/App", "Octo/Other");
    assert_eq!(take("d-2", "pull_request", &sign(&other), &other).await.unwrap(), Delivery::Ignored);
    assert_eq!(take("d-3", "star", &sign(&body), &body).await.unwrap(), Delivery::Ignored);
    assert!(matches!(take("", "push", &sign(&body), &body).await, Err(WebhookError::Invalid(_))));
    assert!(matches!(take("d-4", "push", &sign("no json"), "no json").await, Err(WebhookError::Invalid(_))));
    let events = stage.events("github.pull_request").await;
    assert_eq!(events.len(), 1);
    assert_eq!(
        (&events[0]["number"], &events[0]["merged"], &events[0]["sender"]),
        (&json!(7), &json!(true), &json!("ada"))
    );
    assert_eq!(stage.store.repository(&stage.scope, "app").await.unwrap().unwrap().id, row.id);
    let unknown = stage.forges.webhook_door(coffer_core::ConnectionId::generate()).await;
    assert!(matches!(unknown, Err(WebhookError::Unknown)));
}
