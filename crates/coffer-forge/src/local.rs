//! The local forge: git data in bare repositories, everything else in the store.

pub(crate) mod bare;
pub(crate) mod bundle;
mod diff;
mod merge;
mod shelve;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coffer_core::forge::{BranchName, CommitId, ForgeKind, IssueState, PullState};
use coffer_store::{
    CommentChange, CommentKind, CommentRow, IssueRow, NewComment, ProjectScope, PullRow, RepositoryRow,
    StatusRow, Store,
};

pub(crate) use bare::Bare;
pub(crate) use shelve::COMING;

use crate::forge::{
    Branch, Comment, CommittedFile, Diff, FilePath, Forge, GitAccess, InlineComment, Issue, IssueChange,
    LineChange, Listed, MergeOrder, Mergeability, NewPull, NewReview, NewStatus, Part, Permissions,
    Protection, Pull, PullChange, PullFilter, RepositoryInfo, Review, Status, Statuses, Upstream,
};
use crate::lfs::LfsUse;
use crate::passes::{LONGEST_PASS, Passes};
use crate::plain::Mirror;
use crate::{ForgeError, Identity, time_text};

type Answer<T> = Result<T, ForgeError>;

/// Most open pull requests that are updated after a push.
const MOST_FOLLOWED: u32 = 500;

/// A local repository, as one caller sees it.
#[derive(Debug, Clone)]
pub(crate) struct LocalForge {
    pub(crate) store: Store,
    pub(crate) scope: ProjectScope,
    pub(crate) row: RepositoryRow,
    /// The caller, for records.
    pub(crate) actor: String,
    pub(crate) identity: Identity,
    pub(crate) bare: Bare,
    /// Serialises merges of a repository.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    pub(crate) lfs: Arc<LfsUse>,
    pub(crate) passes: Arc<Passes>,
    pub(crate) here: Arc<str>,
    /// Where the repository really is; `None` if it is stored here.
    pub(crate) mirror: Option<Mirror>,
}

impl LocalForge {
    fn bare(&self) -> &Bare {
        &self.bare
    }

    fn turn(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.turn.clone()
    }

    async fn find(&self, number: i64) -> Answer<PullRow> {
        let found = self.store.pull(&self.scope, self.row.id, number).await?;
        found.ok_or_else(|| ForgeError::not_found("pull request", number))
    }

    /// The pull request, updated from git.
    async fn look(&self, number: i64) -> Answer<PullRow> {
        let pull = self.find(number).await?;
        if pull.merging.is_some() {
            let turn = self.turn();
            // The task that holds the lock is merging it right now.
            if let Ok(_turn) = turn.try_lock() {
                let pull = self.recover(pull).await?;
                return self.follow(pull).await;
            }
            return Ok(pull);
        }
        self.follow(pull).await
    }

    /// Updates an open pull request from its branches.
    async fn follow(&self, pull: PullRow) -> Answer<PullRow> {
        if pull.state != PullState::Open {
            return Ok(pull);
        }
        self.sync(&[&pull.head, &pull.base]).await?;
        let tips = self.bare.tips(&[&pull.head, &pull.base]).await?;
        self.follow_to(pull, |branch| tips.get(branch).cloned()).await
    }

    async fn follow_to(
        &self,
        pull: PullRow,
        tip: impl Fn(&BranchName) -> Option<CommitId>,
    ) -> Answer<PullRow> {
        let number = pull.number;
        let mut pull = pull;
        if let Some(head) = tip(&pull.head)
            && head != pull.head_commit
        {
            self.keep_head(number, &head).await?;
            self.store.move_pull_head(&self.scope, &pull, head).await?;
            pull = self.find(number).await?;
        }
        // A push has merged it.
        if let Some(base) = tip(&pull.base)
            && pull.state == PullState::Open
            && pull.merging.is_none()
            && base != pull.base_commit
            && self.bare.is_ancestor(&pull.head_commit, &base).await?
        {
            let done = (pull.base_commit.clone(), base);
            let merged = self.store.finish_merge(&self.scope, &pull, done, &self.actor).await;
            match merged {
                Ok(merged) => pull = merged,
                Err(coffer_store::ForgeRecordError::Raced) => pull = self.find(number).await?,
                Err(error) => return Err(ForgeError::record(error, "pull request", number)),
            }
        }
        Ok(pull)
    }

    /// Updates every open pull request, after branches have moved.
    pub(crate) async fn follow_all(&self) -> Answer<()> {
        if self.mirror.is_some() {
            // Other branches may be old here: each pull request follows when it is looked at.
            return Ok(());
        }
        let filter = PullFilter { state: Some(PullState::Open), ..Default::default() };
        let open = self.store.pulls(&self.scope, self.row.id, &filter, None, MOST_FOLLOWED).await?;
        if open.is_empty() {
            return Ok(());
        }
        let tips = self.bare.tips(&[]).await?;
        for pull in open {
            self.follow_to(pull, |branch| tips.get(branch).cloned()).await?;
        }
        Ok(())
    }

    /// Keeps the commits when their branch is deleted.
    async fn keep_head(&self, number: i64, head: &CommitId) -> Answer<()> {
        Ok(self.bare.set_ref(&format!("refs/pull/{number}/head"), head).await?)
    }

    /// Whether a commit may get statuses. What the remote of a mirror has is not known here.
    async fn is_known(&self, commit: &CommitId) -> Answer<bool> {
        Ok(self.mirror.is_some() || self.bare.has(commit).await?)
    }

    async fn tip_of(&self, branch: &BranchName) -> Answer<CommitId> {
        let tip = self.bare.tip(branch).await?;
        tip.ok_or_else(|| ForgeError::not_found("branch", branch))
    }

    async fn add(&self, number: i64, kind: &'static str, new: Vec<NewComment>) -> Answer<Vec<CommentRow>> {
        let added = self.store.add_comments(&self.scope, self.row.id, number, new).await;
        added.map_err(|error| ForgeError::record(error, kind, number))
    }

    async fn said(&self, number: i64, kind: CommentKind, part: &Part) -> Answer<Listed<CommentRow>> {
        let after = part.after.as_deref().map(str::parse).transpose();
        let after = after.map_err(|_| bad_cursor())?;
        let limit = part.limit.saturating_add(1);
        let rows = self.store.comments(&self.scope, self.row.id, number, kind, after, limit).await?;
        Ok(cut(rows, part.limit, |row| row.id.to_string()))
    }

    async fn line_comment(&self, number: i64, id: &str) -> Answer<CommentRow> {
        let nothing = || ForgeError::not_found("comment", id);
        let id = id.parse().map_err(|_| nothing())?;
        self.store.line_comment(&self.scope, self.row.id, number, id).await?.ok_or_else(nothing)
    }

    fn own(&self, comment: &CommentRow) -> Answer<()> {
        if comment.author == self.actor { Ok(()) } else { Err(ForgeError::NotYours { what: "this comment" }) }
    }

    /// Distinguishes an unknown number from one without comments.
    async fn exists(&self, number: i64) -> Answer<()> {
        if self.store.pull(&self.scope, self.row.id, number).await?.is_none() {
            let issue = self.store.issue(&self.scope, self.row.id, number).await?;
            issue.ok_or_else(|| ForgeError::not_found("pull request or issue", number))?;
        }
        Ok(())
    }
}

fn bad_cursor() -> ForgeError {
    ForgeError::invalid("cursor", "is not a cursor of this server")
}

fn cut<T>(mut rows: Vec<T>, limit: u32, position: impl Fn(&T) -> String) -> Listed<T> {
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next = rows.last().filter(|_| more).map(position);
    Listed { items: rows, next }
}

impl<T> Listed<T> {
    pub(crate) fn map<U>(self, show: impl FnMut(T) -> U) -> Listed<U> {
        Listed { items: self.items.into_iter().map(show).collect(), next: self.next }
    }
}

fn numbered(part: &Part) -> Answer<Option<i64>> {
    part.after.as_deref().map(str::parse).transpose().map_err(|_| bad_cursor())
}

#[async_trait]
impl Forge for LocalForge {
    async fn repository(&self) -> Answer<RepositoryInfo> {
        if let Some(told) = self.remote_refs().await? {
            return Ok(RepositoryInfo {
                forge: ForgeKind::Git,
                default_branch: told.head.unwrap_or_else(|| self.row.default_branch.clone()),
                empty: told.branches.is_empty(),
                private: true,
                archived: false,
                description: None,
                web_url: None,
                size_bytes: None,
            });
        }
        let tips = self.bare.tips(&[]).await?;
        Ok(RepositoryInfo {
            forge: ForgeKind::Local,
            default_branch: self.row.default_branch.clone(),
            empty: tips.is_empty(),
            private: true,
            archived: false,
            description: None,
            web_url: None,
            size_bytes: Some(self.bare.size().await? + self.lfs_size().await?),
        })
    }

    async fn branches(&self, part: Part) -> Answer<Listed<Branch>> {
        let after = part.after.as_deref().map(str::parse::<BranchName>).transpose();
        let after = after.map_err(|_| bad_cursor())?;
        let protected = self.store.protections(&self.scope, self.row.id).await?;
        let tips = match self.remote_refs().await? {
            Some(told) => told.branches,
            None => self.bare.tips(&[]).await?,
        };
        let tips = tips.into_iter();
        let tips = tips.filter(|(name, _)| after.as_ref().is_none_or(|after| name > after));
        let shown = tips.take(part.limit as usize + 1).map(|(name, commit)| {
            let protected = protected.iter().any(|(branch, _)| *branch == name);
            Branch { name, commit, protected }
        });
        Ok(cut(shown.collect(), part.limit, |branch| branch.name.to_string()))
    }

    async fn branch(&self, name: &BranchName) -> Answer<Branch> {
        let commit = match self.remote_refs().await? {
            Some(mut told) => {
                told.branches.remove(name).ok_or_else(|| ForgeError::not_found("branch", name))?
            }
            None => self.tip_of(name).await?,
        };
        let protected = self.protection(name).await?.is_some();
        Ok(Branch { name: name.clone(), commit, protected })
    }

    async fn protection(&self, name: &BranchName) -> Answer<Option<Protection>> {
        let all = self.store.protections(&self.scope, self.row.id).await?;
        let found = all.into_iter().find(|(branch, _)| branch == name);
        Ok(found.map(|(branch, rules)| Protection::of(branch, rules)))
    }

    async fn create_pull(&self, new: NewPull) -> Answer<Pull> {
        let base = new.base.unwrap_or_else(|| self.row.default_branch.clone());
        if base == new.head {
            return Err(ForgeError::invalid("head", "and base are the same branch"));
        }
        self.sync(&[&new.head, &base]).await?;
        let (head_commit, base_commit) = (self.tip_of(&new.head).await?, self.tip_of(&base).await?);
        if self.bare.is_ancestor(&head_commit, &base_commit).await? {
            let why = format!("`{base}` already has every commit of `{}`", new.head);
            return Err(ForgeError::invalid("head", format!("has no commits of its own: {why}")));
        }
        if self.bare.merge_base(&head_commit, &base_commit).await?.is_none() {
            return Err(ForgeError::invalid("head", format!("has no commit in common with `{base}`")));
        }
        let new = coffer_store::NewPull {
            title: new.title,
            body: new.body,
            head: new.head,
            base,
            draft: new.draft,
            head_commit,
            base_commit,
            author: self.actor.clone(),
        };
        let made = self.store.create_pull(&self.scope, self.row.id, new).await;
        let made = made.map_err(|error| ForgeError::record(error, "repository", &self.row.name))?;
        self.keep_head(made.number, &made.head_commit).await?;
        Ok(shown_pull(made))
    }

    async fn pull(&self, number: i64) -> Answer<Pull> {
        Ok(shown_pull(self.look(number).await?))
    }

    async fn update_pull(&self, number: i64, change: PullChange) -> Answer<Pull> {
        if let Some(base) = &change.base {
            self.sync(&[base]).await?;
            self.tip_of(base).await?;
        }
        let changed = self.store.update_pull(&self.scope, self.row.id, number, change).await;
        let changed = changed.map_err(|error| match error {
            coffer_store::ForgeRecordError::Raced => {
                ForgeError::conflict(format!("pull request {number} is merged and cannot be changed"))
            }
            error => ForgeError::record(error, "pull request", number),
        })?;
        Ok(shown_pull(self.follow(changed).await?))
    }

    async fn pulls(&self, filter: PullFilter, part: Part) -> Answer<Listed<Pull>> {
        let before = numbered(&part)?;
        let limit = part.limit.saturating_add(1);
        let rows = self.store.pulls(&self.scope, self.row.id, &filter, before, limit).await?;
        Ok(cut(rows, part.limit, |row| row.number.to_string()).map(shown_pull))
    }

    async fn pull_of_head(&self, head: &BranchName, base: Option<&BranchName>) -> Answer<Option<Pull>> {
        let filter =
            PullFilter { state: Some(PullState::Open), head: Some(head.clone()), base: base.cloned() };
        let found = self.store.pulls(&self.scope, self.row.id, &filter, None, 1).await?;
        match found.into_iter().next() {
            Some(pull) => Ok(Some(shown_pull(self.follow(pull).await?))),
            None => Ok(None),
        }
    }

    async fn diff(&self, number: i64) -> Answer<Diff> {
        let pull = self.look(number).await?;
        let base = match pull.state {
            PullState::Merged => pull.base_commit.clone(),
            PullState::Open | PullState::Closed => {
                self.bare.tip(&pull.base).await?.unwrap_or_else(|| pull.base_commit.clone())
            }
        };
        self.bare.diff(&base, &pull.head_commit).await
    }

    async fn mergeability(&self, number: i64) -> Answer<Mergeability> {
        self.try_merge(number).await
    }

    async fn merge(&self, number: i64, order: MergeOrder) -> Answer<Pull> {
        Ok(shown_pull(self.merge_pull(number, &order).await?))
    }

    async fn compare(&self, from: &CommitId, to: &CommitId) -> Answer<Diff> {
        // A repository that is elsewhere may have no copy here yet.
        self.sync(&[]).await?;
        for commit in [from, to] {
            if !self.bare.has(commit).await? {
                return Err(ForgeError::not_found("commit", commit));
            }
        }
        self.bare.difference(from, to, None).await
    }

    async fn file(&self, commit: &CommitId, path: &FilePath) -> Answer<CommittedFile> {
        self.sync(&[]).await?;
        self.bare.file(commit, path).await
    }

    async fn create_issue(&self, title: &str, body: &str) -> Answer<Issue> {
        let made = self.store.create_issue(&self.scope, self.row.id, title, body, &self.actor).await;
        let made = made.map_err(|error| ForgeError::record(error, "repository", &self.row.name))?;
        Ok(shown_issue(made))
    }

    async fn issue(&self, number: i64) -> Answer<Issue> {
        let found = self.store.issue(&self.scope, self.row.id, number).await?;
        found.map(shown_issue).ok_or_else(|| ForgeError::not_found("issue", number))
    }

    async fn update_issue(&self, number: i64, change: IssueChange) -> Answer<Issue> {
        let change =
            coffer_store::IssueChange { title: change.title, body: change.body, state: change.state };
        let changed = self.store.update_issue(&self.scope, self.row.id, number, change).await;
        changed.map(shown_issue).map_err(|error| ForgeError::record(error, "issue", number))
    }

    async fn issues(&self, state: Option<IssueState>, part: Part) -> Answer<Listed<Issue>> {
        let (before, limit) = (numbered(&part)?, part.limit.saturating_add(1));
        let rows = self.store.issues(&self.scope, self.row.id, state, before, limit).await?;
        Ok(cut(rows, part.limit, |row| row.number.to_string()).map(shown_issue))
    }

    async fn comment(&self, number: i64, body: &str) -> Answer<Comment> {
        let new = vec![NewComment::plain(body, &self.actor)];
        let added = self.add(number, "pull request or issue", new).await?;
        added.into_iter().next().map(shown_comment).ok_or(ForgeError::Busy)
    }

    async fn comments(&self, number: i64, part: Part) -> Answer<Listed<Comment>> {
        self.exists(number).await?;
        Ok(self.said(number, CommentKind::Plain, &part).await?.map(shown_comment))
    }

    async fn review(&self, number: i64, new: NewReview) -> Answer<Review> {
        let pull = self.look(number).await?;
        let commit = new.commit.unwrap_or_else(|| pull.head_commit.clone());
        if commit != pull.head_commit && !self.bare.has(&commit).await? {
            return Err(ForgeError::not_found("commit", commit));
        }
        if !new.comments.is_empty() {
            let base = self.bare.tip(&pull.base).await?.unwrap_or_else(|| pull.base_commit.clone());
            let diff = self.bare.diff(&base, &commit).await?;
            for comment in &new.comments {
                let known = diff.files.iter().any(|file| {
                    file.path == comment.path || file.previous_path.as_deref() == Some(comment.path.as_str())
                });
                if !known && !diff.truncated {
                    let path: String = comment.path.chars().take(200).collect();
                    return Err(ForgeError::invalid(
                        "path",
                        format!("`{path}` is not changed by this pull request"),
                    ));
                }
            }
        }
        let mut all = vec![NewComment {
            kind: CommentKind::Review,
            verdict: Some(new.verdict),
            commit: Some(commit.clone()),
            ..NewComment::plain(&new.body, &self.actor)
        }];
        all.extend(new.comments.into_iter().map(|comment| NewComment {
            kind: CommentKind::Inline,
            commit: Some(commit.clone()),
            path: Some(comment.path),
            line: Some(comment.line.into()),
            side: Some(comment.side),
            ..NewComment::plain(&comment.body, &self.actor)
        }));
        let added = self.add(number, "pull request", all).await?;
        added.into_iter().next().and_then(shown_review).ok_or(ForgeError::Busy)
    }

    async fn reviews(&self, number: i64, part: Part) -> Answer<Listed<Review>> {
        self.find(number).await?;
        let said = self.said(number, CommentKind::Review, &part).await?;
        Ok(Listed { next: said.next, items: said.items.into_iter().filter_map(shown_review).collect() })
    }

    async fn inline_comments(&self, number: i64, part: Part) -> Answer<Listed<InlineComment>> {
        self.find(number).await?;
        Ok(self.said(number, CommentKind::Inline, &part).await?.map(shown_inline))
    }

    async fn reply(&self, number: i64, to: &str, body: &str) -> Answer<InlineComment> {
        let to = self.line_comment(number, to).await?;
        let reply = NewComment {
            kind: CommentKind::Inline,
            commit: to.commit,
            path: to.path,
            line: to.line,
            side: to.side,
            in_reply_to: Some(to.in_reply_to.unwrap_or(to.id)),
            ..NewComment::plain(body, &self.actor)
        };
        let added = self.add(number, "pull request", vec![reply]).await?;
        added.into_iter().next().map(shown_inline).ok_or(ForgeError::Busy)
    }

    async fn change_line_comment(&self, number: i64, id: &str, change: LineChange) -> Answer<InlineComment> {
        let comment = self.line_comment(number, id).await?;
        let (id, change) = match change {
            LineChange::Body(body) => {
                self.own(&comment)?;
                (comment.id, CommentChange::Edit { body })
            }
            // A thread is resolved at its first comment.
            LineChange::Resolved(true) => {
                (comment.in_reply_to.unwrap_or(comment.id), CommentChange::Resolve { by: self.actor.clone() })
            }
            LineChange::Resolved(false) => (comment.in_reply_to.unwrap_or(comment.id), CommentChange::Reopen),
        };
        let changed = self.store.change_line_comment(&self.scope, self.row.id, number, id, change).await;
        changed.map(shown_inline).map_err(|error| ForgeError::record(error, "comment", id))
    }

    async fn delete_line_comment(&self, number: i64, id: &str) -> Answer<()> {
        let comment = self.line_comment(number, id).await?;
        self.own(&comment)?;
        let (id, change) = (comment.id, CommentChange::Delete);
        let deleted = self.store.change_line_comment(&self.scope, self.row.id, number, id, change).await;
        deleted.map(drop).map_err(|error| ForgeError::record(error, "comment", id))
    }

    async fn set_status(&self, commit: &CommitId, new: NewStatus) -> Answer<Status> {
        if !self.is_known(commit).await? {
            return Err(ForgeError::not_found("commit", commit));
        }
        let new = coffer_store::NewStatus {
            commit: commit.clone(),
            context: new.context,
            state: new.state,
            description: new.description,
            target_url: new.target_url,
            author: self.actor.clone(),
        };
        let set = self.store.set_status(&self.scope, self.row.id, new).await;
        set.map(shown_status).map_err(|error| ForgeError::record(error, "repository", &self.row.name))
    }

    async fn statuses(&self, commit: &CommitId) -> Answer<Statuses> {
        if !self.is_known(commit).await? {
            return Err(ForgeError::not_found("commit", commit));
        }
        let rows = self.store.statuses(&self.scope, self.row.id, commit).await?;
        Ok(Statuses::of(commit.clone(), rows.into_iter().map(shown_status).collect()))
    }

    async fn permissions(&self) -> Answer<Permissions> {
        if let Some(mirror) = &self.mirror {
            return mirror.remote.permissions().await;
        }
        // Keys of the project have roles, which the routes check.
        Ok(Permissions { sufficient: true, granted: vec!["all".into()], missing: Vec::new() })
    }

    async fn upstream(&self, access: GitAccess, lifetime: Duration) -> Answer<Upstream> {
        if let Some(mirror) = &self.mirror {
            return mirror.remote.upstream().await;
        }
        let authorization = self.passes.issue(&self.scope, self.row.id, access, &self.actor, lifetime)?;
        let url = format!("{}{}", self.here, crate::git_path(&self.row));
        Ok(Upstream {
            url,
            authorization,
            expires_in: Some(lifetime.min(LONGEST_PASS)),
            enforces_branch: true,
            on_site: false,
        })
    }
}

fn shown_pull(row: PullRow) -> Pull {
    Pull {
        number: row.number,
        title: row.title,
        body: row.body,
        state: row.state,
        draft: row.draft,
        head: row.head,
        base: row.base,
        head_commit: row.head_commit,
        base_commit: row.base_commit,
        merge_commit: row.merge_commit,
        author: row.author,
        web_url: None,
        created_at: time_text(row.created_ms),
        updated_at: time_text(row.updated_ms),
        closed_at: row.closed_ms.map(time_text),
    }
}

fn shown_issue(row: IssueRow) -> Issue {
    Issue {
        number: row.number,
        title: row.title,
        body: row.body,
        state: row.state,
        author: row.author,
        labels: Vec::new(),
        assignees: Vec::new(),
        web_url: None,
        created_at: time_text(row.created_ms),
        updated_at: time_text(row.updated_ms),
        closed_at: row.closed_ms.map(time_text),
    }
}

fn shown_comment(row: CommentRow) -> Comment {
    Comment {
        id: row.id.to_string(),
        body: row.body,
        author: row.author,
        created_at: time_text(row.created_ms),
    }
}

fn shown_review(row: CommentRow) -> Option<Review> {
    Some(Review {
        id: row.id.to_string(),
        verdict: row.verdict?,
        body: row.body,
        author: row.author,
        commit: row.commit,
        created_at: time_text(row.created_ms),
    })
}

fn shown_inline(row: CommentRow) -> InlineComment {
    InlineComment {
        id: row.id.to_string(),
        body: row.body,
        author: row.author,
        path: row.path.unwrap_or_default(),
        line: row.line,
        side: row.side,
        commit: row.commit,
        in_reply_to: row.in_reply_to.map(|id| id.to_string()),
        created_at: time_text(row.created_ms),
        updated_at: row.updated_ms.map(time_text),
        resolved_by: row.resolved_by,
        resolved_at: row.resolved_ms.map(time_text),
    }
}

fn shown_status(row: StatusRow) -> Status {
    Status {
        context: row.context.to_string(),
        state: row.state,
        description: row.description,
        target_url: row.target_url,
        changed_at: Some(time_text(row.changed_ms)),
    }
}
