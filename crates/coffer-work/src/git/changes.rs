//! All differences from a commit, committed or not.

use coffer_core::forge::CommitId;

use super::GitError;
use super::{DiffStat, Git, Run, Session};
use coffer_core::git::WorkTreeDiff;

/// Most bytes of a stored patch.
const MOST_KEPT: usize = 1024 * 1024;

impl Git {
    /// The size of the difference from `base`, and the patch.
    pub async fn changes_since(
        &self,
        session: &Session,
        repository: &str,
        base: &CommitId,
    ) -> Result<(DiffStat, WorkTreeDiff), GitError> {
        let place = self.place(session, Some(repository)).await?;
        let remote = &place.remote;
        // New files are in a diff only after they are staged.
        self.git_well(session, remote, "stage changes", &["add", "--all", "--", "."], Run::default()).await?;
        let options = ["diff", "--cached", "--no-color", "--no-ext-diff", "--no-textconv"];
        let words = [&options[..], &["--numstat", base.as_str(), "--"]].concat();
        let counted = self
            .git_well(session, remote, "compare", &words, Run { most: MOST_KEPT, ..Run::default() })
            .await?;
        let words =
            [&["-c", "core.quotePath=off"], &options[..], &["--binary", base.as_str(), "--"]].concat();
        let run = Run { most: MOST_KEPT, ..Run::default() };
        let returned = self.git_well(session, remote, "compare", &words, run).await?;
        let patch = String::from_utf8_lossy(&returned.stdout).into_owned();
        let diff = WorkTreeDiff { repository: remote.slug.clone(), patch, truncated: returned.is_cut };
        Ok((DiffStat::read(&counted.stdout), diff))
    }
}
