//! Operations of git on one bare repository, without records.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coffer_core::ProjectId;
use coffer_core::forge::{BranchName, CommitId};

use crate::git::{Call, Finished, Git, GitError};
use crate::{ForgeError, Identity};

/// Most commits of a rebase.
const MOST_COMMITS: usize = 250;
/// Most commits of a base that a head lacks which are counted.
const MOST_BEHIND: &str = "1000";
/// Most paths of a conflict in an answer.
const MOST_PATHS: usize = 100;

#[derive(Debug, Clone)]
pub(crate) struct Bare {
    pub(crate) git: Git,
    pub(crate) directory: PathBuf,
}

/// The result of merging two trees.
#[derive(Debug)]
pub(crate) enum Tree {
    Clean(String),
    Conflicts(Vec<String>),
}

/// The author of a commit, as git takes it from its environment.
#[derive(Debug, Clone)]
pub(crate) struct Author {
    pub(crate) name: String,
    pub(crate) email: String,
    /// `seconds zone`; now if `None`.
    pub(crate) date: Option<String>,
}

/// A ref was not at the expected commit.
#[derive(Debug)]
pub(crate) struct Moved;

impl Bare {
    async fn run(&self, args: &[&str]) -> Result<Finished, GitError> {
        self.git.run(Call::within(&self.directory), args).await
    }

    /// Creates an empty repository.
    pub(crate) async fn init(
        git: &Git,
        directory: &Path,
        default: &BranchName,
        project: ProjectId,
    ) -> Result<(), GitError> {
        // Create the directory here, because git may write nowhere else.
        let made = tokio::fs::create_dir(directory).await;
        made.map_err(|error| GitError::Failed(format!("`{}`: {error}", directory.display())))?;
        let project = Some(project);
        let call = Call { directory: None, also: Some(directory), project, ..Call::within(directory) };
        let initial = format!("--initial-branch={default}");
        let path = directory.to_string_lossy().into_owned();
        git.run(call, &["init", "--quiet", "--bare", "--template=", &initial, "--", &path]).await?.good()?;
        Ok(())
    }

    /// The commits of branches, by name; of all, or of the named ones.
    pub(crate) async fn tips(&self, of: &[&BranchName]) -> Result<BTreeMap<BranchName, CommitId>, GitError> {
        let mut args = vec!["for-each-ref".to_string(), "--format=%(refname) %(objectname)".to_string()];
        match of {
            [] => args.push("refs/heads/".into()),
            some => args.extend(some.iter().map(|branch| branch.full())),
        }
        let call = Call { most: 32 << 20, ..Call::within(&self.directory) };
        let listed = self.git.run(call, &args).await?.good()?;
        let listed = String::from_utf8_lossy(&listed);
        let tip = |line: &str| {
            let (name, commit) = line.split_once(' ')?;
            Some((name.strip_prefix("refs/heads/")?.parse().ok()?, commit.parse().ok()?))
        };
        Ok(listed.lines().filter_map(tip).collect())
    }

    pub(crate) async fn tip(&self, branch: &BranchName) -> Result<Option<CommitId>, GitError> {
        Ok(self.tips(&[branch]).await?.remove(branch))
    }

    /// Whether a commit exists.
    pub(crate) async fn has(&self, commit: &CommitId) -> Result<bool, GitError> {
        let done = self.run(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).await?;
        Ok(done.code == Some(0))
    }

    pub(crate) async fn is_ancestor(&self, of: &CommitId, later: &CommitId) -> Result<bool, GitError> {
        let done = self.run(&["merge-base", "--is-ancestor", of.as_str(), later.as_str()]).await?;
        match done.code {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(done.complaint()),
        }
    }

    pub(crate) async fn merge_base(&self, a: &CommitId, b: &CommitId) -> Result<Option<CommitId>, GitError> {
        let done = self.run(&["merge-base", a.as_str(), b.as_str()]).await?;
        match done.code {
            Some(0) => Ok(done.line()?.lines().next().and_then(|line| line.parse().ok())),
            Some(1) => Ok(None),
            _ => Err(done.complaint()),
        }
    }

    /// Commits of branches and pull requests, the newest first.
    pub(crate) async fn some_commits(&self, most: usize) -> Result<Vec<CommitId>, GitError> {
        let count = format!("--count={most}");
        let args = [
            "for-each-ref",
            "--sort=-creatordate",
            &count,
            "--format=%(objectname)",
            "refs/heads/",
            "refs/pull/",
        ];
        let listed = self.run(&args).await?.line()?;
        Ok(listed.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// A pack with what `commit` needs and `known` do not have.
    pub(crate) async fn pack_of(
        &self,
        commit: &CommitId,
        known: &[&CommitId],
        most: usize,
    ) -> Result<Vec<u8>, ForgeError> {
        let known: String = known.iter().map(|known| format!("^{known}\n")).collect();
        let call = Call { stdin: format!("{commit}\n{known}").into(), most, ..Call::within(&self.directory) };
        let done =
            self.git.run(call, &["pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q"]).await?;
        if done.cut {
            return Err(ForgeError::TooLarge { what: "the pack of the merge", most: most as u64 });
        }
        Ok(done.good()?)
    }

    /// Sets the branch of HEAD.
    pub(crate) async fn set_head(&self, branch: &BranchName) -> Result<(), GitError> {
        self.run(&["symbolic-ref", "HEAD", &branch.full()]).await?.good().map(drop)
    }

    /// Moves a ref from `old`; `None` creates it.
    pub(crate) async fn move_ref(
        &self,
        name: &str,
        new: &CommitId,
        old: Option<&CommitId>,
    ) -> Result<Result<(), Moved>, GitError> {
        let zero = "0".repeat(new.as_str().len());
        let old = old.map_or(zero.as_str(), CommitId::as_str);
        let done = self.run(&["update-ref", name, new.as_str(), old]).await?;
        if done.code == Some(0) {
            return Ok(Ok(()));
        }
        // Another process moves it, or has moved it.
        let lost =
            ["but expected", "Unable to create", "reference already exists", "unable to resolve reference"];
        if lost.iter().any(|lost| done.stderr.contains(lost)) {
            Ok(Err(Moved))
        } else {
            Err(done.complaint())
        }
    }

    /// Sets a ref, whatever its current commit.
    pub(crate) async fn set_ref(&self, name: &str, new: &CommitId) -> Result<(), GitError> {
        self.run(&["update-ref", name, new.as_str()]).await?.good().map(drop)
    }

    /// The total size of its objects.
    pub(crate) async fn size(&self) -> Result<u64, GitError> {
        let told = self.run(&["count-objects", "-v"]).await?.line()?;
        let kibibytes = told.lines().filter_map(|line| line.split_once(": "));
        let kibibytes = kibibytes.filter(|(name, _)| matches!(*name, "size" | "size-pack" | "size-garbage"));
        Ok(kibibytes.filter_map(|(_, count)| count.parse::<u64>().ok()).sum::<u64>() * 1024)
    }

    /// Merges `theirs` into `ours`, with `base` if given.
    pub(crate) async fn merge_trees(
        &self,
        ours: &CommitId,
        theirs: &CommitId,
        base: Option<&CommitId>,
    ) -> Result<Tree, ForgeError> {
        let base = base.map(|base| format!("--merge-base={base}"));
        let mut args = vec!["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages"];
        args.extend(base.as_deref());
        args.extend([ours.as_str(), theirs.as_str()]);
        let done = self.run(&args).await?;
        let mut parts =
            done.stdout.split(|&byte| byte == 0).map(|part| String::from_utf8_lossy(part).into_owned());
        let tree = parts.next().unwrap_or_default();
        match done.code {
            Some(0) if tree.parse::<CommitId>().is_ok() => Ok(Tree::Clean(tree)),
            Some(1) => {
                let mut paths: Vec<_> = parts.filter(|path| !path.is_empty()).take(MOST_PATHS).collect();
                paths.dedup();
                Ok(Tree::Conflicts(paths))
            }
            _ if done.stderr.contains("unrelated histories") => {
                Err(ForgeError::conflict("head and base have no commit in common"))
            }
            _ => Err(done.complaint().into()),
        }
    }

    /// Creates a commit that no ref refers to yet.
    pub(crate) async fn commit(
        &self,
        tree: &str,
        parents: &[&CommitId],
        message: &str,
        author: &Author,
        committer: &Identity,
    ) -> Result<CommitId, GitError> {
        let mut environment = vec![
            ("GIT_AUTHOR_NAME", author.name.clone()),
            ("GIT_AUTHOR_EMAIL", author.email.clone()),
            ("GIT_COMMITTER_NAME", committer.name.clone()),
            ("GIT_COMMITTER_EMAIL", committer.email.clone()),
        ];
        environment.extend(author.date.clone().map(|date| ("GIT_AUTHOR_DATE", date)));
        let mut args = vec!["commit-tree", tree];
        for parent in parents {
            args.extend(["-p", parent.as_str()]);
        }
        args.extend(["-F", "-"]);
        let stdin = message.as_bytes().to_vec();
        let call = Call { environment, stdin, ..Call::within(&self.directory) };
        let made = self.git.run(call, &args).await?.line()?;
        made.parse().map_err(|_| GitError::Failed("git printed no commit id".into()))
    }

    /// Author and message of a commit.
    pub(crate) async fn authorship(&self, commit: &CommitId) -> Result<(Author, String), GitError> {
        let format = "--format=%an%x00%ae%x00%ad%x00%B";
        let told =
            self.run(&["log", "-1", "--date=raw", "--no-show-signature", format, commit.as_str()]).await?;
        let told = told.line()?;
        let mut parts = told.splitn(4, '\0').map(str::to_string);
        let mut next = || parts.next().unwrap_or_default();
        let (name, email, date, message) = (next(), next(), next(), next());
        let or = |text: String| if text.trim().is_empty() { "unknown".to_string() } else { text };
        Ok((Author { name: or(name), email: or(email), date: Some(date) }, message))
    }

    /// The commits of `head` that `base` lacks, oldest first, each with its number of parents.
    pub(crate) async fn commits(
        &self,
        base: &CommitId,
        head: &CommitId,
    ) -> Result<Vec<(CommitId, usize)>, ForgeError> {
        let most = (MOST_COMMITS + 1).to_string();
        let not = format!("^{base}");
        let args =
            ["rev-list", "--reverse", "--topo-order", "--parents", "--max-count", &most, head.as_str(), &not];
        let told = self.run(&args).await?.line()?;
        let read = |line: &str| {
            let mut ids = line.split(' ');
            Some((ids.next()?.parse().ok()?, ids.count()))
        };
        let commits: Vec<_> = told.lines().filter_map(read).collect();
        if commits.len() > MOST_COMMITS {
            let why = format!("cannot rebase more than {MOST_COMMITS} commits; squash or merge instead");
            return Err(ForgeError::conflict(why));
        }
        Ok(commits)
    }

    /// How many commits of `base` the head lacks, at most [`MOST_BEHIND`].
    pub(crate) async fn behind(&self, base: &CommitId, head: &CommitId) -> Result<u64, GitError> {
        let not = format!("^{head}");
        let args = ["rev-list", "--count", "--max-count", MOST_BEHIND, base.as_str(), &not];
        let told = self.run(&args).await?.line()?;
        told.parse().map_err(|_| GitError::Failed("git printed no count".into()))
    }

    /// The tree of a commit.
    pub(crate) async fn tree_of(&self, commit: &CommitId) -> Result<String, GitError> {
        self.run(&["rev-parse", "--verify", "--quiet", &format!("{commit}^{{tree}}")]).await?.line()
    }
}

impl Bare {
    /// The first parent of a commit.
    pub(crate) async fn parent_of(&self, commit: &CommitId) -> Result<CommitId, GitError> {
        let told = self.run(&["rev-parse", "--verify", "--quiet", &format!("{commit}^1")]).await?.line()?;
        told.parse().map_err(|_| GitError::Failed(format!("{commit} has no parent")))
    }
}
