//! Turns to write contents: each project has its own, so that nobody waits for another project's clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coffer_core::ProjectId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Contents that a project has written at a time; each may be as long as one may be.
pub(crate) const MOST_AT_ONCE: usize = 8;
/// For one of them to end, before whoever wants to write is told to come again.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Who writes, by project.
#[derive(Debug)]
pub(super) struct Turns {
    projects: Mutex<HashMap<ProjectId, Arc<Semaphore>>>,
    longest_wait: Duration,
}

impl Default for Turns {
    fn default() -> Self {
        Self { projects: Mutex::default(), longest_wait: LONGEST_WAIT }
    }
}

impl Turns {
    /// A turn, held until it is dropped; none where those before take too long.
    pub(super) async fn take(&self, project: ProjectId) -> Option<OwnedSemaphorePermit> {
        let room = {
            let mut projects = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever writes or waits has a share of it.
            projects.retain(|_, room| Arc::strong_count(room) > 1);
            let room = projects.entry(project).or_insert_with(|| Arc::new(Semaphore::new(MOST_AT_ONCE)));
            room.clone()
        };
        tokio::time::timeout(self.longest_wait, room.acquire_owned()).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_project_that_is_busy_holds_nobody_else_up() {
        let turns = Turns { longest_wait: Duration::from_millis(20), ..Turns::default() };
        let (busy, other) = (ProjectId::generate(), ProjectId::generate());
        let mut held = Vec::new();
        for _ in 0..MOST_AT_ONCE {
            held.push(turns.take(busy).await.expect("there is room"));
        }
        assert!(turns.take(busy).await.is_none());
        assert!(turns.take(other).await.is_some());
        held.pop();
        assert!(turns.take(busy).await.is_some());
        held.clear();
        assert!(turns.take(other).await.is_some());
        assert_eq!(turns.projects.lock().unwrap().len(), 1, "who is not there takes no room");
    }
}
