//! Large files: what a repository keeps by Git LFS, brought by the git-lfs of the sandbox, where it has one.
//!
//! A work tree has pointers first and the files in their place afterwards, so that a repository is there whatever becomes of
//! them. What is missing is told in notes, and is no failure.

use std::time::Duration;

use coffer_store::GitRemote;

use super::GitError;
use super::{Git, Run, Session, explain};

const PULL_WITHIN: Duration = Duration::from_secs(900);
/// Where a repository says which files are large. In any directory, as git reads it.
const ATTRIBUTES: &str = ":(glob)**/.gitattributes";

impl Git {
    /// Has the large files of what is checked out in the work tree, and Git LFS do its part in later commits and pushes.
    /// Returns what is not so, and why.
    pub(super) async fn bring_large(
        &self,
        session: &Session,
        remote: &GitRemote,
    ) -> Result<Option<String>, GitError> {
        let words = ["grep", "--quiet", "--fixed-strings", "-e", "filter=lfs", "HEAD", "--", ATTRIBUTES];
        if !self.git_at(session, remote, &words, Run::default()).await?.succeeded() {
            return Ok(None);
        }
        if !self.git_at(session, remote, &["lfs", "version"], Run::default()).await?.succeeded() {
            let note = "this repository has files of Git LFS and the sandbox has no git-lfs: pointers are in their place; \
                        install git-lfs, then run `git lfs install --local` and `git lfs pull`";
            return Ok(Some(note.to_string()));
        }
        // Its hooks are the sandbox's own, as any are; those of somebody else are left as they are.
        let installed = self.git_at(session, remote, &["lfs", "install", "--local"], Run::default()).await?;
        if !installed.succeeded() {
            let why = explain::quoted(&installed.stderr);
            return Ok(Some(self.note(session, &format!("Git LFS could not be set up: {why}"))));
        }
        let pulled =
            self.git_at(session, remote, &["lfs", "pull", "origin"], Run::within(PULL_WITHIN)).await?;
        if pulled.succeeded() {
            return Ok(None);
        }
        let why = match pulled.exit_code {
            None => "it took too long".to_string(),
            Some(_) => explain::quoted(&pulled.stderr),
        };
        Ok(Some(
            self.note(session, &format!("files of Git LFS are missing, pointers are in their place: {why}")),
        ))
    }

    /// What a program inside said, as it may be shown.
    pub(super) fn note(&self, session: &Session, text: &str) -> String {
        self.exec.output.patterns(session.record.project).redact(text)
    }
}
