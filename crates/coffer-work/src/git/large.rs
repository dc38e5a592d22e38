//! Large files: objects of Git LFS, fetched by the git-lfs of the sandbox, if it has one.
//!
//! A work tree first has pointers, which the files then replace, so a clone succeeds even if they are missing.
//! Notes list what is missing; that is not a failure.

use std::time::Duration;

use coffer_store::GitRemote;

use super::GitError;
use super::{Git, Run, Session, explain};

const PULL_WITHIN: Duration = Duration::from_secs(900);
/// The files that say which files are large: in any directory, as git reads them.
const ATTRIBUTES: &str = ":(glob)**/.gitattributes";

impl Git {
    /// Fetches the large files of the checkout, and sets up Git LFS for later commits and pushes. Returns a
    /// note about what is missing, and why.
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
            let note = "this repository has files of Git LFS and the sandbox has no git-lfs, so it has \
                        pointers instead; install git-lfs, then run `git lfs install --local` and `git lfs pull`";
            return Ok(Some(note.to_string()));
        }
        // Git LFS installs its own hooks; existing hooks of others stay.
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
        Ok(Some(self.note(
            session,
            &format!("files of Git LFS are missing, the sandbox has pointers instead: {why}"),
        )))
    }

    /// A note with a program's output, redacted.
    pub(super) fn note(&self, session: &Session, text: &str) -> String {
        self.exec.output.patterns(session.record.project).redact(text)
    }
}
