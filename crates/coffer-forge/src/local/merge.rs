//! Merges in a bare repository; see docs/design/0007-forges.md for the order of writes.

use coffer_core::forge::{CommitId, MergeMethod, MergeState, PullState, StatusState, Verdict};
use coffer_store::{CommentKind, Merging, PullRow};

use super::LocalForge;
use super::bare::{Author, Moved, Tree};
use crate::ForgeError;
use crate::forge::{MergeOrder, Mergeability, Statuses};

/// How often to retry if the base keeps moving.
const TRIES: u32 = 5;
/// Most reviews that are read.
const MOST_REVIEWS: u32 = 1000;

impl LocalForge {
    pub(super) async fn merge_pull(&self, number: i64, order: &MergeOrder) -> Result<PullRow, ForgeError> {
        let turn = self.turn();
        let _turn = turn.lock().await;
        for _ in 0..TRIES {
            let pull = self.recover(self.find(number).await?).await?;
            let pull = self.follow(pull).await?;
            self.may_merge(&pull, order).await?;
            let tips = self.bare().tips(&[&pull.head, &pull.base]).await?;
            let base = tips.get(&pull.base).ok_or_else(|| gone("base", pull.base.as_str()))?;
            if tips.get(&pull.head) != Some(&pull.head_commit) {
                if !tips.contains_key(&pull.head) {
                    return Err(gone("head", pull.head.as_str()));
                }
                continue;
            }
            let commit = self.merged(&pull, base, order).await?;
            let merging = Merging {
                base: base.clone(),
                commit: commit.clone(),
                method: order.method,
                by: self.actor.clone(),
            };
            match self.store.note_merge(&self.scope, &pull, Some(merging)).await {
                Err(coffer_store::ForgeRecordError::Raced) => continue,
                other => other.map_err(|error| ForgeError::record(error, "pull request", number))?,
            }
            let landed = match self.land(&pull, &commit, base).await {
                Err(error) if !error.is_transient() => {
                    self.forget_merge(&pull).await?;
                    return Err(error);
                }
                // Without an answer it may have happened: the next look finds out.
                landed => landed?,
            };
            match landed {
                Ok(()) => {
                    let done = (base.clone(), commit);
                    let merged = match self.store.finish_merge(&self.scope, &pull, done, &self.actor).await {
                        // Another server saw it in the remote's base, and was faster.
                        Err(coffer_store::ForgeRecordError::Raced) if self.mirror.is_some() => {
                            self.find(number).await?
                        }
                        merged => {
                            merged.map_err(|error| ForgeError::record(error, "pull request", number))?
                        }
                    };
                    self.follow_all().await?;
                    return Ok(merged);
                }
                Err(Moved) => self.forget_merge(&pull).await?,
            }
        }
        Err(ForgeError::Raced { why: "its branches keep moving; try again".into() })
    }

    /// Merges the trees of head and base into nothing, to see whether they can be.
    pub(super) async fn try_merge(&self, number: i64) -> Result<Mergeability, ForgeError> {
        let pull = self.look(number).await?;
        let mut told = Mergeability {
            state: MergeState::Closed,
            head_commit: pull.head_commit.clone(),
            base_commit: pull.base_commit.clone(),
            behind: None,
            paths: Vec::new(),
            why: None,
            checks: None,
        };
        if pull.state != PullState::Open {
            return Ok(told);
        }
        let rows = self.store.statuses(&self.scope, self.row.id, &pull.head_commit).await?;
        if !rows.is_empty() {
            let statuses = rows.into_iter().map(super::shown_status).collect();
            told.checks = Some(Statuses::of(pull.head_commit.clone(), statuses).state);
        }
        let tips = self.bare().tips(&[&pull.head, &pull.base]).await?;
        let missing = [("base", &pull.base), ("head", &pull.head)]
            .into_iter()
            .find(|(_, name)| !tips.contains_key(*name));
        if let Some((which, name)) = missing {
            told.state = MergeState::Blocked;
            told.why = Some(gone(which, name.as_str()).to_string());
            return Ok(told);
        }
        if let Some(base) = tips.get(&pull.base) {
            told.base_commit = base.clone();
        }
        told.behind = Some(self.bare().behind(&told.base_commit, &pull.head_commit).await?);
        let merged = self.bare().merge_trees(&told.base_commit, &pull.head_commit, None).await;
        let in_the_way = match merged.and_then(clean) {
            Ok(_) => {
                self.may_merge(
                    &pull,
                    &MergeOrder {
                        method: MergeMethod::Squash,
                        expected_head: None,
                        title: None,
                        message: None,
                    },
                )
                .await
            }
            Err(error) => Err(error),
        };
        match in_the_way {
            Ok(()) => told.state = MergeState::Clean,
            Err(ForgeError::Conflict { why, paths }) => {
                told.state = if paths.is_empty() { MergeState::Blocked } else { MergeState::Conflict };
                (told.why, told.paths) = (Some(why), paths);
            }
            Err(error @ (ForgeError::Protected { .. } | ForgeError::Raced { .. })) => {
                (told.state, told.why) = (MergeState::Blocked, Some(error.to_string()));
            }
            Err(error) => return Err(error),
        }
        Ok(told)
    }

    /// Finishes or drops a merge that a crash interrupted. The caller holds the repository's lock.
    pub(super) async fn recover(&self, pull: PullRow) -> Result<PullRow, ForgeError> {
        let Some((base, commit)) = pull.merging.clone().filter(|_| pull.state == PullState::Open) else {
            return Ok(pull);
        };
        self.sync(&[&pull.base]).await?;
        let happened = match self.bare().tip(&pull.base).await? {
            Some(tip) => tip == commit || self.bare().is_ancestor(&commit, &tip).await?,
            None => false,
        };
        if happened {
            let merged = self.store.finish_merge(&self.scope, &pull, (base, commit), &self.actor).await;
            return merged.map_err(|error| ForgeError::record(error, "pull request", pull.number));
        }
        self.forget_merge(&pull).await?;
        self.find(pull.number).await
    }

    async fn forget_merge(&self, pull: &PullRow) -> Result<(), ForgeError> {
        match self.store.note_merge(&self.scope, pull, None).await {
            // Its head has moved: the next read sees that.
            Ok(()) | Err(coffer_store::ForgeRecordError::Raced) => Ok(()),
            Err(error) => Err(ForgeError::record(error, "pull request", pull.number)),
        }
    }

    async fn may_merge(&self, pull: &PullRow, order: &MergeOrder) -> Result<(), ForgeError> {
        let number = pull.number;
        match pull.state {
            PullState::Merged => {
                return Err(ForgeError::Raced { why: format!("pull request {number} is already merged") });
            }
            PullState::Closed => {
                return Err(ForgeError::conflict(format!(
                    "pull request {number} is closed; open it again first"
                )));
            }
            PullState::Open => {}
        }
        if pull.draft {
            return Err(ForgeError::conflict(format!(
                "pull request {number} is a draft; mark it as ready first"
            )));
        }
        if let Some(expected) = &order.expected_head
            && *expected != pull.head_commit
        {
            let why = format!("the head is now {}, not {expected}", pull.head_commit);
            return Err(ForgeError::Raced { why });
        }
        let protections = self.store.protections(&self.scope, self.row.id).await?;
        let Some((_, rules)) = protections.into_iter().find(|(branch, _)| *branch == pull.base) else {
            return Ok(());
        };
        let refused = |why: String| Err(ForgeError::Protected { branch: pull.base.to_string(), why });
        if rules.approvals > 0 {
            let given = self.approvals(pull).await?;
            match given {
                None => return refused("a reviewer has requested changes".into()),
                Some(given) if given < rules.approvals => {
                    return refused(format!("it needs {} approvals and has {given}", rules.approvals));
                }
                Some(_) => {}
            }
        }
        if rules.require_statuses {
            let rows = self.store.statuses(&self.scope, self.row.id, &pull.head_commit).await?;
            let statuses = rows.into_iter().map(super::shown_status).collect();
            let state = Statuses::of(pull.head_commit.clone(), statuses).state;
            if state != StatusState::Success {
                return refused(format!("the statuses of {} are {state}", pull.head_commit));
            }
        }
        Ok(())
    }

    /// The number of approvals of the current head; `None` if a reviewer wants changes. The author's own do
    /// not count, nor those of agents, which older versions allowed.
    async fn approvals(&self, pull: &PullRow) -> Result<Option<u32>, ForgeError> {
        let reviews = self.store.comments(
            &self.scope,
            self.row.id,
            pull.number,
            CommentKind::Review,
            None,
            MOST_REVIEWS,
        );
        // A person who got a name after a review, or after the pull request, is still the same one.
        let persons = self.store.persons_of_keys(&self.scope).await?;
        let whose = |actor: &String| persons.get(actor).unwrap_or(actor).clone();
        let owner = whose(&pull.author);
        let mut last = std::collections::BTreeMap::new();
        for review in reviews.await? {
            let reviewer = whose(&review.author);
            if reviewer == owner || review.verdict == Some(Verdict::Comment) {
                continue;
            }
            if review.author.starts_with("agent:") && review.verdict == Some(Verdict::Approve) {
                continue;
            }
            last.insert(reviewer, (review.verdict, review.commit));
        }
        if last.values().any(|(verdict, _)| *verdict == Some(Verdict::RequestChanges)) {
            return Ok(None);
        }
        let given = last.values().filter(|(_, commit)| commit.as_ref() == Some(&pull.head_commit)).count();
        Ok(Some(u32::try_from(given).unwrap_or(u32::MAX)))
    }

    /// Creates the new commit of the base.
    async fn merged(
        &self,
        pull: &PullRow,
        base: &CommitId,
        order: &MergeOrder,
    ) -> Result<CommitId, ForgeError> {
        let (bare, head) = (self.bare(), &pull.head_commit);
        let (committer, number) = (&self.identity, pull.number);
        let message = |title: String, usual: String| {
            let title = order.title.clone().unwrap_or(title);
            let body = order.message.clone().unwrap_or(usual);
            if body.trim().is_empty() { title } else { format!("{title}\n\n{body}") }
        };
        match order.method {
            MergeMethod::Merge => {
                let tree = clean(bare.merge_trees(base, head, None).await?)?;
                let author =
                    Author { name: committer.name.clone(), email: committer.email.clone(), date: None };
                let title = format!("Merge pull request #{number} from {}", pull.head);
                let text = message(title, pull.title.clone());
                Ok(bare.commit(&tree, &[base, head], &text, &author, committer).await?)
            }
            MergeMethod::Squash => {
                let tree = clean(bare.merge_trees(base, head, None).await?)?;
                // Another server may have landed it just now.
                if self.mirror.is_some() && tree == bare.tree_of(base).await? {
                    return Err(ForgeError::conflict("the base already has all of its changes"));
                }
                let (author, _) = bare.authorship(head).await?;
                let author = Author { date: None, ..author };
                let text = message(format!("{} (#{number})", pull.title), pull.body.clone());
                Ok(bare.commit(&tree, &[base], &text, &author, committer).await?)
            }
            MergeMethod::Rebase => self.rebased(base, head).await,
        }
    }

    async fn rebased(&self, base: &CommitId, head: &CommitId) -> Result<CommitId, ForgeError> {
        let bare = self.bare();
        let commits = bare.commits(base, head).await?;
        if commits.iter().any(|(_, parents)| *parents != 1) {
            let why = "a pull request with merge commits cannot be rebased; squash or merge instead";
            return Err(ForgeError::conflict(why));
        }
        let mut at = base.clone();
        let mut tree_at = bare.tree_of(base).await?;
        for (commit, _) in commits {
            let parent = bare.parent_of(&commit).await?;
            let tree = clean(bare.merge_trees(&at, &commit, Some(&parent)).await?)?;
            if tree == tree_at {
                // The base already has this change.
                continue;
            }
            let (author, message) = bare.authorship(&commit).await?;
            at = bare.commit(&tree, &[&at], &message, &author, &self.identity).await?;
            tree_at = tree;
        }
        if at == *base {
            return Err(ForgeError::conflict("the base already has all of its changes"));
        }
        Ok(at)
    }
}

fn clean(tree: Tree) -> Result<String, ForgeError> {
    match tree {
        Tree::Clean(tree) => Ok(tree),
        Tree::Conflicts(paths) => {
            Err(ForgeError::Conflict { why: "head and base change the same lines".into(), paths })
        }
    }
}

fn gone(which: &str, branch: &str) -> ForgeError {
    ForgeError::conflict(format!("its {which} branch `{branch}` no longer exists"))
}
