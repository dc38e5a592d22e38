//! The state of an attempt, as a status of its commit on GitHub.

use coffer_core::forge::{ForgeKind, StatusState};
use coffer_forge::NewStatus;
use coffer_store::ProjectScope;

use super::Workbench;
use super::repository::plain;

/// The name of the status.
pub const OWN_STATUS: &str = "cofferdam";
/// GitHub's limit.
const LONGEST: usize = 140;

impl Workbench {
    /// Sets the status of a commit, if its repository is on GitHub. A token that may not do that is no reason to fail.
    pub(super) async fn report(
        &self,
        scope: &ProjectScope,
        repository: &str,
        commit: &str,
        state: StatusState,
        description: &str,
    ) {
        let set = async {
            let row = self.store.repository(scope, &plain(repository)).await.ok()??;
            if row.kind != ForgeKind::GitHub {
                return None;
            }
            let (context, commit) = (OWN_STATUS.parse().ok()?, commit.parse().ok()?);
            let description = description.chars().take(LONGEST).collect();
            let status = NewStatus { context, state, description, target_url: None };
            let forge = self.git.forges().open(scope, &row, "workshop").await.ok()?;
            forge.set_status(&commit, status).await.err()
        };
        if let Some(error) = set.await {
            tracing::info!("could not set the status of commit {commit}: {error}");
        }
    }
}
