//! Compresses old logs, then deletes them.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::settings::Period;
use coffer_core::{Millis, ProjectId, SandboxId};
use coffer_store::{ExecutionState, SegmentRow, SegmentState, StoreError};

use super::Output;
use coffer_core::clock::now_ms;

const ROUND: Duration = Duration::from_secs(60);
/// Segments per step; a round takes as many steps as it needs.
const STEP: u32 = 64;

impl Output {
    /// Ends the code that was running when the server began, and runs rounds until it stops.
    pub(super) async fn keep_house(self: Arc<Self>, began_ms: Millis) {
        let mut found_lost_code = false;
        loop {
            if !found_lost_code {
                match self.lose_code(began_ms).await {
                    Ok(()) => found_lost_code = true,
                    Err(error) => tracing::warn!("could not end lost executions, trying again: {error}"),
                }
            }
            if let Err(error) = self.tidy().await {
                tracing::warn!("could not tidy old output, trying again: {}", coffer_core::chain(&error));
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(ROUND) => {}
            }
        }
    }

    /// One round: ends executions of ended sandboxes, compresses, deletes.
    async fn tidy(&self) -> Result<(), StoreError> {
        for sandbox in self.store.sandboxes_with_lost_executions().await? {
            let status = "its sandbox ended";
            self.store.end_executions(sandbox, None, ExecutionState::Lost, status, now_ms()).await?;
        }
        for (project, kept) in self.limiter.retentions() {
            let before = |age: Period| now_ms().saturating_sub(age.as_millis());
            let (pruned, archived) = (before(kept.logs), before(kept.archive_logs));
            self.each(project, SegmentState::Plain, pruned, SegmentState::Pruned).await?;
            self.each(project, SegmentState::Archived, pruned, SegmentState::Pruned).await?;
            self.each(project, SegmentState::Plain, archived, SegmentState::Archived).await?;
        }
        Ok(())
    }

    /// Moves all segments of this state and age to the next state, some at a time.
    async fn each(
        &self,
        project: Option<ProjectId>,
        state: SegmentState,
        than_ms: i64,
        next: SegmentState,
    ) -> Result<(), StoreError> {
        loop {
            let segments = self.store.segments_older(project, state, than_ms, STEP).await?;
            let found = segments.len();
            let done = match next {
                SegmentState::Pruned => self.prune(segments).await?,
                SegmentState::Plain | SegmentState::Archived => self.compress(segments).await?,
            };
            // Segments that failed would be found again at once.
            if found < STEP as usize || done < found || self.stop.is_cancelled() {
                return Ok(());
            }
        }
    }

    async fn compress(&self, segments: Vec<SegmentRow>) -> Result<usize, StoreError> {
        let mut done = Vec::new();
        for mut segment in segments {
            match self.files.compress(&segment).await {
                Ok(length) => {
                    segment.state = SegmentState::Archived;
                    segment.file_bytes = length;
                    done.push(segment);
                }
                Err(error) => {
                    tracing::warn!(sandbox.id = %segment.sandbox, "could not compress old output: {error}");
                }
            }
        }
        self.store.change_segments(done.clone()).await?;
        // Delete the plain files only now: readers find one of the two at any time.
        for segment in &done {
            let still =
                self.store.segments(&self.store.operator(), segment.sandbox, segment.end() - 1, 1).await?;
            if still.first().is_some_and(|now| now.state == SegmentState::Archived)
                && let Err(error) = self.files.delete_plain(segment).await
            {
                tracing::warn!(sandbox.id = %segment.sandbox, "could not delete old output: {error}");
            }
        }
        Ok(done.len())
    }

    async fn prune(&self, segments: Vec<SegmentRow>) -> Result<usize, StoreError> {
        let mut done = Vec::new();
        for mut segment in segments {
            match self.files.delete(&segment).await {
                Ok(()) => {
                    segment.state = SegmentState::Pruned;
                    segment.file_bytes = 0;
                    done.push(segment);
                }
                Err(error) => {
                    tracing::warn!(sandbox.id = %segment.sandbox, "could not delete old output: {error}");
                }
            }
        }
        let count = done.len();
        self.store.change_segments(done).await?;
        Ok(count)
    }

    /// Deletes the oldest segments of a sandbox until the others have at most `most` bytes, and returns how
    /// many they have.
    pub(super) async fn prune_oldest(&self, sandbox: SandboxId, most: i64) -> Result<i64, StoreError> {
        let mut segments = self.store.segments_on_disk(sandbox).await?;
        let mut left: i64 = segments.iter().map(|segment| segment.file_bytes).sum();
        // The last one is being written.
        segments.pop();
        let mut surplus = Vec::new();
        for segment in segments {
            if left <= most {
                break;
            }
            left -= segment.file_bytes;
            surplus.push(segment);
        }
        self.prune(surplus).await?;
        Ok(left)
    }
}
