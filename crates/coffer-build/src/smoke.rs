//! Tries a template of the catalogue in a new sandbox, before it becomes ready.

use std::time::Duration;

use coffer_core::SnapshotId;

use crate::catalogue::Definition;
use crate::log::BuildLog;
use crate::run::{Attempt, Unfinished, at_smoke};
use crate::source::{Base, Begin};
use crate::workplace::{StepError, Workplace};

/// How long one command may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How much of an unexpected output its error repeats.
const SHOWN: usize = 500;

impl Attempt<'_> {
    /// Does nothing for builds of projects.
    pub(crate) async fn try_out(&self, snapshot: SnapshotId, log: &mut BuildLog) -> Result<(), Unfinished> {
        let Some(definition) = self.builds.catalogue.asked_by(&self.build.row) else { return Ok(()) };
        log.set_step("smoke");
        self.builds.at_step(&self.build.row, || "it is tried out".to_string());
        let base = Base {
            begin: Begin::Finished(snapshot),
            identity: String::new(),
            note: "the finished template".to_string(),
        };
        let place = self.open(&base, None).await?;
        let tried = self.smoke(&place, definition, log).await;
        place.destroy().await;
        tried.map_err(at_smoke)
    }

    async fn smoke(
        &self,
        place: &Workplace,
        definition: &Definition,
        log: &BuildLog,
    ) -> Result<(), StepError> {
        if let Some(ready) = definition.start.as_ref().and_then(|start| start.ready.as_deref()) {
            self.await_ready(place, ready, None, log).await?;
        }
        for smoke in &definition.smoke {
            log.info(format!("[smoke] {}", smoke.run)).await;
            let (succeeded, output) = place.output(&smoke.run, PATIENCE).await?;
            let as_expected = output.contains(&smoke.prints)
                && smoke.lacks.as_ref().is_none_or(|unwanted| !output.contains(unwanted));
            for line in output.lines() {
                log.info(line).await;
            }
            if !(succeeded && as_expected) {
                let shown: String = output.chars().take(SHOWN).collect();
                return Err(StepError::Failed(format!(
                    "smoke test '{}' should succeed and print '{}', and printed: {}",
                    smoke.run,
                    smoke.prints,
                    shown.trim()
                )));
            }
        }
        Ok(())
    }
}
