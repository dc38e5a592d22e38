//! GitHub, and GitHub Enterprise, by its REST API.
//!
//! Answers are as hostile as clients' requests: they are bounded in size and time, and every name and hash in
//! them is parsed by our own grammar.

mod app;
mod client;
mod convert;
mod limit;
mod transport;
mod webhook;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use coffer_core::RepositoryId;
use coffer_core::forge::{BranchName, CommitId, ForgeKind, IssueState, PullState, Verdict};
use coffer_store::Secret;
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

pub(crate) use client::Client;
pub(crate) use client::GITHUB_BREAKER;
pub use client::GitHubFigures;
pub(crate) use transport::{Address, Transport};
pub(crate) use webhook::{event_of, is_signed};

use convert::{branch, check_run, comment, commit, inline, issue, list, pull, review, status, strange, text};

use crate::ForgeError;
use crate::forge::{
    Branch, Comment, CommittedFile, Diff, DiffFile, FilePath, Forge, GitAccess, InlineComment, Issue,
    IssueChange, LineChange, Listed, MergeOrder, Mergeability, MissingPermission, NewPull, NewReview,
    NewStatus, Part, Permissions, Protection, Pull, PullChange, PullFilter, RepositoryInfo, Review, Status,
    Statuses, Upstream,
};

type Answer<T> = Result<T, ForgeError>;

/// Characters that stay unescaped in a part of a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Most pages of a diff's files, a hundred files each.
const FILE_PAGES: u32 = 10;
const LONGEST_PATCH: usize = 2 << 20;
/// Permissions that a task needs of a GitHub App.
const NEEDED: [(&str, &str, &str); 4] = [
    ("contents", "write", "push branches"),
    ("pull_requests", "write", "open and merge pull requests"),
    ("issues", "write", "comment"),
    ("metadata", "read", "see the repository"),
];

/// A repository's name on GitHub: `owner/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    owner: String,
    name: String,
}

impl std::str::FromStr for Remote {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        const WHY: &str = "must be `owner/name`, as on the forge";
        let (owner, name) = text.split_once('/').ok_or(WHY)?;
        let fits = |part: &str, most: usize| {
            (1..=most).contains(&part.len())
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
                && !matches!(part, "." | "..")
                && !part.starts_with('-')
        };
        if fits(owner, 100) && fits(name, 100) && !name.ends_with(".git") {
            Ok(Self { owner: owner.to_string(), name: name.to_string() })
        } else {
            Err(WHY)
        }
    }
}

impl std::fmt::Display for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// One repository on GitHub, by one connection.
#[derive(Debug, Clone)]
pub(crate) struct GitHubForge {
    pub(crate) client: Arc<Client>,
    pub(crate) remote: Remote,
    pub(crate) default_branch: BranchName,
    /// Its record here, if it has one.
    pub(crate) record: Option<RepositoryId>,
}

fn quoted(part: &str) -> String {
    utf8_percent_encode(part, PLAIN).to_string()
}

/// GitHub's pages are numbers; there is a next one if this one was full.
fn page(part: &Part) -> Answer<(u32, String)> {
    let page = part.after.as_deref().map_or(Ok(1), str::parse::<u32>);
    let page = page.map_err(|_| ForgeError::invalid("cursor", "is not a cursor of this server"))?;
    Ok((page, format!("per_page={}&page={page}", part.limit.clamp(1, 100))))
}

fn listed<T>(items: Vec<Option<T>>, page: u32, part: &Part) -> Listed<T> {
    let full = items.len() >= part.limit.clamp(1, 100) as usize;
    let next = full.then(|| (page + 1).to_string());
    Listed { items: items.into_iter().flatten().collect(), next }
}

impl GitHubForge {
    fn path(&self, rest: &str) -> String {
        format!("/repos/{}/{}{rest}", self.remote.owner, self.remote.name)
    }

    async fn get(&self, rest: &str, doing: &'static str, what: (&'static str, String)) -> Answer<Value> {
        self.client.json(Method::GET, &self.path(rest), None, doing, what).await
    }

    async fn send(
        &self,
        method: Method,
        rest: &str,
        body: Value,
        doing: &'static str,
        what: (&'static str, String),
    ) -> Answer<Value> {
        self.client.json(method, &self.path(rest), Some(body), doing, what).await
    }

    /// Whether a person may push to the repository.
    pub(crate) async fn may_write(&self, login: &str) -> Answer<bool> {
        let rest = format!("/collaborators/{}/permission", quoted(login));
        let what = ("collaborator", login.to_string());
        match self.get(&rest, "see who may write", what).await {
            Ok(told) => Ok(matches!(told["permission"].as_str(), Some("admin" | "maintain" | "write"))),
            Err(ForgeError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A list that is read to see what is new.
    pub(crate) async fn news(&self, rest: &str) -> Answer<Vec<Value>> {
        let told = self.get(rest, "see what happened", self.itself()).await?;
        Ok(list(&told)?.clone())
    }

    fn itself(&self) -> (&'static str, String) {
        ("repository", self.remote.to_string())
    }

    async fn listed<T>(
        &self,
        rest: &str,
        part: &Part,
        doing: &'static str,
        what: (&'static str, String),
        read: impl Fn(&Value) -> Answer<Option<T>>,
    ) -> Answer<Listed<T>> {
        let (number, query) = page(part)?;
        let joint = if rest.contains('?') { '&' } else { '?' };
        let answer = self.get(&format!("{rest}{joint}{query}"), doing, what).await?;
        let items = list(&answer)?.iter().map(read).collect::<Answer<Vec<_>>>()?;
        Ok(listed(items, number, part))
    }
}

fn numbered(kind: &'static str, number: i64) -> (&'static str, String) {
    (kind, number.to_string())
}

/// The id of a comment on a line; GitHub's are numbers.
fn line_comment(id: &str) -> Answer<(u64, (&'static str, String))> {
    let number = id.parse().map_err(|_| ForgeError::not_found("comment", id))?;
    Ok((number, ("comment", id.to_string())))
}

#[async_trait]
impl Forge for GitHubForge {
    async fn repository(&self) -> Answer<RepositoryInfo> {
        let told = self.get("", "see the repository", self.itself()).await?;
        Ok(RepositoryInfo {
            forge: ForgeKind::GitHub,
            default_branch: branch(&told["default_branch"])?,
            empty: told["size"] == 0,
            private: told["private"].as_bool().unwrap_or(true),
            archived: told["archived"].as_bool().unwrap_or(false),
            description: text(&told["description"]),
            web_url: text(&told["html_url"]),
            size_bytes: told["size"].as_u64().map(|kib| kib * 1024),
        })
    }

    async fn branches(&self, part: Part) -> Answer<Listed<Branch>> {
        // Skip branches with names that we do not accept.
        let read = |told: &Value| Ok(convert::shown_branch(told).ok());
        self.listed("/branches", &part, "list branches", self.itself(), read).await
    }

    async fn branch(&self, name: &BranchName) -> Answer<Branch> {
        let rest = format!("/branches/{}", quoted(name.as_str()));
        let told = self.get(&rest, "see a branch", ("branch", name.to_string())).await?;
        convert::shown_branch(&told)
    }

    async fn protection(&self, name: &BranchName) -> Answer<Option<Protection>> {
        let rest = format!("/branches/{}/protection", quoted(name.as_str()));
        let told = match self.get(&rest, "see branch protection", ("protection", name.to_string())).await {
            Ok(told) => told,
            Err(ForgeError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let reviews = &told["required_pull_request_reviews"];
        let checks = &told["required_status_checks"];
        let contexts = checks["contexts"].as_array().into_iter().flatten();
        Ok(Some(Protection {
            branch: name.clone(),
            require_pull: reviews.is_object(),
            approvals: reviews["required_approving_review_count"]
                .as_u64()
                .and_then(|count| u32::try_from(count).ok())
                .unwrap_or(0),
            require_statuses: checks.is_object(),
            contexts: contexts.filter_map(text).take(100).collect(),
        }))
    }

    async fn create_pull(&self, new: NewPull) -> Answer<Pull> {
        let base = new.base.unwrap_or_else(|| self.default_branch.clone());
        let body = json!({
            "title": new.title, "body": new.body, "head": new.head, "base": base, "draft": new.draft,
        });
        match self.send(Method::POST, "/pulls", body, "open a pull request", self.itself()).await {
            Ok(told) => {
                let made = pull(&told)?;
                self.client.record_opened(self.record, &made).await?;
                Ok(made)
            }
            Err(ForgeError::Invalid { why, .. }) if why.contains("already exists") => {
                match self.pull_of_head(&new.head, Some(&base)).await? {
                    Some(open) => Err(ForgeError::PullExists { number: open.number }),
                    None => Err(ForgeError::invalid("head", why)),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn pull(&self, number: i64) -> Answer<Pull> {
        let rest = format!("/pulls/{number}");
        pull(&self.get(&rest, "see a pull request", numbered("pull request", number)).await?)
    }

    async fn update_pull(&self, number: i64, change: PullChange) -> Answer<Pull> {
        if change.draft.is_some() {
            let why = "cannot be changed through GitHub's REST API; mark it as ready on its page";
            return Err(ForgeError::invalid("draft", why));
        }
        let mut body = Map::new();
        body.extend(change.title.map(|title| ("title".into(), json!(title))));
        body.extend(change.body.map(|text| ("body".into(), json!(text))));
        body.extend(change.base.map(|base| ("base".into(), json!(base))));
        let state = |open| if open { "open" } else { "closed" };
        body.extend(change.open.map(|open| ("state".into(), json!(state(open)))));
        let (rest, what) = (format!("/pulls/{number}"), numbered("pull request", number));
        pull(&self.send(Method::PATCH, &rest, body.into(), "change a pull request", what).await?)
    }

    async fn pulls(&self, filter: PullFilter, part: Part) -> Answer<Listed<Pull>> {
        let state = match filter.state {
            None => "all",
            Some(PullState::Open) => "open",
            // GitHub reports merged ones as closed; they are distinguished below.
            Some(PullState::Closed | PullState::Merged) => "closed",
        };
        let mut rest = format!("/pulls?state={state}&sort=created&direction=desc");
        if let Some(head) = &filter.head {
            rest.push_str(&format!("&head={}", quoted(&format!("{}:{head}", self.remote.owner))));
        }
        if let Some(base) = &filter.base {
            rest.push_str(&format!("&base={}", quoted(base.as_str())));
        }
        let read = |told: &Value| {
            // Forks may have branches with names that we do not accept.
            let shown = pull(told).ok();
            Ok(shown.filter(|pull| filter.state.is_none_or(|state| pull.state == state)))
        };
        self.listed(&rest, &part, "list pull requests", self.itself(), read).await
    }

    async fn pull_of_head(&self, head: &BranchName, base: Option<&BranchName>) -> Answer<Option<Pull>> {
        let filter =
            PullFilter { state: Some(PullState::Open), head: Some(head.clone()), base: base.cloned() };
        let found = self.pulls(filter, Part { after: None, limit: 10 }).await?;
        // Check the result: a forge that ignores the filter must not make us use another pull request.
        let own = |pull: &Pull| pull.head == *head && base.is_none_or(|base| pull.base == *base);
        Ok(found.items.into_iter().find(own))
    }

    async fn diff(&self, number: i64) -> Answer<Diff> {
        let head = self.pull(number).await?.head_commit;
        let what = || numbered("pull request", number);
        let mut files: Vec<DiffFile> = Vec::new();
        let mut truncated = true;
        for page in 1..=FILE_PAGES {
            let rest = format!("/pulls/{number}/files?per_page=100&page={page}");
            let told = self.get(&rest, "see a pull request's files", what()).await?;
            let told = list(&told)?;
            files.extend(told.iter().filter_map(convert::file));
            if told.len() < 100 {
                truncated = false;
                break;
            }
        }
        let path = self.path(&format!("/pulls/{number}"));
        let patch = self.client.text(&path, "application/vnd.github.diff", "see a diff", what()).await;
        let mut patch = match patch {
            Ok(patch) => patch,
            // GitHub itself refuses diffs that are too long.
            Err(ForgeError::TooLarge { .. } | ForgeError::Invalid { .. }) => {
                truncated = true;
                String::new()
            }
            Err(error) => return Err(error),
        };
        if patch.len() > LONGEST_PATCH {
            patch.truncate(patch.floor_char_boundary(LONGEST_PATCH));
            truncated = true;
        }
        Ok(Diff {
            merge_base: None,
            head_commit: head,
            additions: files.iter().map(|file| file.additions).sum(),
            deletions: files.iter().map(|file| file.deletions).sum(),
            files,
            patch,
            truncated,
        })
    }

    async fn mergeability(&self, number: i64) -> Answer<Mergeability> {
        let rest = format!("/pulls/{number}");
        let told = self.get(&rest, "see a pull request", numbered("pull request", number)).await?;
        let seen = pull(&told)?;
        let (state, why) = convert::merge_state(&told, &seen);
        let checks = match seen.state {
            PullState::Open => match self.statuses(&seen.head_commit).await {
                Ok(all) => Some(all.state).filter(|_| !all.statuses.is_empty()),
                // What merging needs is told without them.
                Err(ForgeError::PermissionMissing { .. }) => None,
                Err(error) => return Err(error),
            },
            PullState::Closed | PullState::Merged => None,
        };
        Ok(Mergeability {
            state,
            head_commit: seen.head_commit,
            base_commit: seen.base_commit,
            behind: None,
            paths: Vec::new(),
            why: why.map(str::to_string),
            checks,
        })
    }

    async fn compare(&self, from: &CommitId, to: &CommitId) -> Answer<Diff> {
        let rest = format!("/compare/{from}...{to}");
        let what = || ("commit", to.to_string());
        let told = self.get(&rest, "compare commits", what()).await?;
        let files: Vec<DiffFile> = list(&told["files"])?.iter().filter_map(convert::file).collect();
        let path = self.path(&rest);
        let patch = self.client.text(&path, "application/vnd.github.diff", "see a diff", what()).await;
        let (mut patch, mut truncated) = match patch {
            Ok(patch) => (patch, false),
            Err(ForgeError::TooLarge { .. } | ForgeError::Invalid { .. }) => (String::new(), true),
            Err(error) => return Err(error),
        };
        if patch.len() > LONGEST_PATCH {
            patch.truncate(patch.floor_char_boundary(LONGEST_PATCH));
            truncated = true;
        }
        Ok(Diff {
            merge_base: commit(&told["merge_base_commit"]["sha"]).ok(),
            head_commit: to.clone(),
            additions: files.iter().map(|file| file.additions).sum(),
            deletions: files.iter().map(|file| file.deletions).sum(),
            files,
            patch,
            truncated,
        })
    }

    async fn file(&self, commit: &CommitId, path: &FilePath) -> Answer<CommittedFile> {
        let parts: Vec<_> = path.as_str().split('/').map(quoted).collect();
        let rest = self.path(&format!("/contents/{}?ref={commit}", parts.join("/")));
        let what = ("file", path.as_str().to_string());
        let mut text =
            self.client.text(&rest, "application/vnd.github.raw+json", "read a file", what).await?;
        let truncated = text.len() > LONGEST_PATCH;
        text.truncate(text.floor_char_boundary(LONGEST_PATCH));
        let binary = text.bytes().take(8000).any(|byte| byte == 0);
        if binary {
            text.clear();
        }
        Ok(CommittedFile { path: path.as_str().to_string(), commit: commit.clone(), text, binary, truncated })
    }

    async fn merge(&self, number: i64, order: MergeOrder) -> Answer<Pull> {
        let mut body = Map::new();
        body.insert("merge_method".into(), json!(order.method));
        body.extend(order.expected_head.map(|head| ("sha".into(), json!(head))));
        body.extend(order.title.map(|title| ("commit_title".into(), json!(title))));
        body.extend(order.message.map(|message| ("commit_message".into(), json!(message))));
        let (rest, what) = (format!("/pulls/{number}/merge"), numbered("pull request", number));
        let told = self.send(Method::PUT, &rest, body.into(), "merge a pull request", what).await?;
        let merged = commit(&told["sha"])?;
        let pull = self.pull(number).await?;
        // The pull request may have been read just before the merge.
        Ok(Pull { state: PullState::Merged, merge_commit: Some(merged), ..pull })
    }

    async fn create_issue(&self, title: &str, body: &str) -> Answer<Issue> {
        let body = json!({ "title": title, "body": body });
        issue(&self.send(Method::POST, "/issues", body, "open an issue", self.itself()).await?)
    }

    async fn issue(&self, number: i64) -> Answer<Issue> {
        let told = self.get(&format!("/issues/{number}"), "see an issue", numbered("issue", number)).await?;
        if told["pull_request"].is_object() {
            return Err(ForgeError::not_found("issue", number));
        }
        issue(&told)
    }

    async fn update_issue(&self, number: i64, change: IssueChange) -> Answer<Issue> {
        let mut body = Map::new();
        body.extend(change.title.map(|title| ("title".into(), json!(title))));
        body.extend(change.body.map(|text| ("body".into(), json!(text))));
        body.extend(change.state.map(|state| ("state".into(), json!(state))));
        let (rest, what) = (format!("/issues/{number}"), numbered("issue", number));
        issue(&self.send(Method::PATCH, &rest, body.into(), "change an issue", what).await?)
    }

    async fn issues(&self, state: Option<IssueState>, part: Part) -> Answer<Listed<Issue>> {
        let rest = format!("/issues?state={}", state.map_or("all", IssueState::as_str));
        let read = |told: &Value| match told["pull_request"].is_object() {
            true => Ok(None),
            false => issue(told).map(Some),
        };
        self.listed(&rest, &part, "list issues", self.itself(), read).await
    }

    async fn comment(&self, number: i64, body: &str) -> Answer<Comment> {
        let (rest, what) = (format!("/issues/{number}/comments"), numbered("pull request or issue", number));
        comment(&self.send(Method::POST, &rest, json!({ "body": body }), "comment", what).await?)
    }

    async fn comments(&self, number: i64, part: Part) -> Answer<Listed<Comment>> {
        let (rest, what) = (format!("/issues/{number}/comments"), numbered("pull request or issue", number));
        self.listed(&rest, &part, "read comments", what, |told| comment(told).map(Some)).await
    }

    async fn review(&self, number: i64, new: NewReview) -> Answer<Review> {
        let event = match new.verdict {
            Verdict::Approve => "APPROVE",
            Verdict::RequestChanges => "REQUEST_CHANGES",
            Verdict::Comment => "COMMENT",
        };
        let comments: Vec<_> = new
            .comments
            .into_iter()
            .map(|comment| {
                let side = comment.side.as_str().to_uppercase();
                json!({ "path": comment.path, "line": comment.line, "side": side, "body": comment.body })
            })
            .collect();
        let mut body = Map::new();
        body.insert("event".into(), json!(event));
        body.insert("body".into(), json!(new.body));
        body.insert("comments".into(), json!(comments));
        body.extend(new.commit.map(|commit| ("commit_id".into(), json!(commit))));
        let (rest, what) = (format!("/pulls/{number}/reviews"), numbered("pull request", number));
        let told = self.send(Method::POST, &rest, body.into(), "review a pull request", what).await?;
        review(&told)?.ok_or_else(|| strange("a review without an id"))
    }

    async fn reviews(&self, number: i64, part: Part) -> Answer<Listed<Review>> {
        let (rest, what) = (format!("/pulls/{number}/reviews"), numbered("pull request", number));
        self.listed(&rest, &part, "read reviews", what, review).await
    }

    async fn inline_comments(&self, number: i64, part: Part) -> Answer<Listed<InlineComment>> {
        let (rest, what) = (format!("/pulls/{number}/comments"), numbered("pull request", number));
        self.listed(&rest, &part, "read review comments", what, |told| inline(told).map(Some)).await
    }

    async fn reply(&self, number: i64, to: &str, body: &str) -> Answer<InlineComment> {
        let (to, what) = line_comment(to)?;
        let rest = format!("/pulls/{number}/comments/{to}/replies");
        inline(&self.send(Method::POST, &rest, json!({ "body": body }), "reply to a comment", what).await?)
    }

    async fn change_line_comment(&self, _: i64, id: &str, change: LineChange) -> Answer<InlineComment> {
        let (id, what) = line_comment(id)?;
        let body = match change {
            LineChange::Body(body) => json!({ "body": body }),
            LineChange::Resolved(_) => {
                let why = "cannot be changed through GitHub's REST API; resolve the thread on its page";
                return Err(ForgeError::invalid("resolved", why));
            }
        };
        let rest = format!("/pulls/comments/{id}");
        inline(&self.send(Method::PATCH, &rest, body, "edit a comment", what).await?)
    }

    async fn delete_line_comment(&self, _: i64, id: &str) -> Answer<()> {
        let (id, what) = line_comment(id)?;
        let rest = self.path(&format!("/pulls/comments/{id}"));
        self.client.nothing(Method::DELETE, &rest, "delete a comment", what).await
    }

    async fn set_status(&self, commit: &CommitId, new: NewStatus) -> Answer<Status> {
        let mut body = Map::new();
        body.insert("state".into(), json!(new.state));
        body.insert("context".into(), json!(new.context));
        body.insert("description".into(), json!(new.description));
        body.extend(new.target_url.map(|url| ("target_url".into(), json!(url))));
        let (rest, what) = (format!("/statuses/{commit}"), ("commit", commit.to_string()));
        status(&self.send(Method::POST, &rest, body.into(), "set a status", what).await?)
    }

    async fn statuses(&self, commit: &CommitId) -> Answer<Statuses> {
        let what = || ("commit", commit.to_string());
        let rest = format!("/commits/{commit}/status?per_page=100");
        let told = self.get(&rest, "read statuses", what()).await?;
        let mut all = list(&told["statuses"])?.iter().map(status).collect::<Answer<Vec<_>>>()?;
        let rest = format!("/commits/{commit}/check-runs?per_page=100");
        match self.get(&rest, "read checks", what()).await {
            Ok(told) => all.extend(list(&told["check_runs"])?.iter().filter_map(check_run)),
            // A token that can only read statuses is enough.
            Err(ForgeError::PermissionMissing { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(Statuses::of(commit.clone(), all))
    }

    async fn permissions(&self) -> Answer<Permissions> {
        let (mut granted, mut missing) = (Vec::new(), Vec::new());
        let lacking =
            |scope: String, needed_to: &str| MissingPermission { scope, needed_to: needed_to.into() };
        if let Some(held) = self.client.app_permissions().await? {
            for (name, level, to) in NEEDED {
                let has = held[name].as_str().unwrap_or("none");
                if has == level || has == "admin" || (level == "read" && has == "write") {
                    granted.push(format!("{name}={has}"));
                } else {
                    missing.push(lacking(format!("{name}={level}"), to));
                }
            }
            return Ok(Permissions { sufficient: missing.is_empty(), granted, missing });
        }
        let told = self.get("", "see the repository", self.itself()).await?;
        granted.push("metadata=read".into());
        if told["permissions"]["push"] == json!(true) {
            granted.push("contents=write".into());
        } else {
            missing.push(lacking("contents=write".into(), "push branches"));
        }
        // A token's permissions cannot be queried: reading shows read access, and writing is only known when
        // it is tried.
        for (rest, scope, to) in [
            ("/pulls?per_page=1", "pull_requests=write", "open and merge pull requests"),
            ("/issues?per_page=1", "issues=write", "comment"),
        ] {
            match self.get(rest, "look", self.itself()).await {
                Ok(_) => granted.push(scope.replace("write", "read")),
                Err(ForgeError::PermissionMissing { .. } | ForgeError::NotFound { .. }) => {
                    missing.push(lacking(scope.into(), to));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Permissions { sufficient: missing.is_empty(), granted, missing })
    }

    async fn upstream(&self, _: GitAccess, _: Duration) -> Answer<Upstream> {
        let (token, expires_in) = self.client.token_and_life().await?;
        let basic = format!("x-access-token:{}", token.reveal());
        let basic = base64::engine::general_purpose::STANDARD.encode(basic);
        let url = format!("{}/{}.git", self.client.address().git_base(), self.remote);
        let authorization = Secret::new(format!("Basic {basic}"));
        let on_site = self.client.is_on_site();
        Ok(Upstream { url, authorization, expires_in, enforces_branch: false, on_site })
    }
}
