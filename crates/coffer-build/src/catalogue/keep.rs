//! Builds what the operator wants to be there, and what an earlier program built from another definition.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::{BuildState, chain};

use super::{CatalogueEntry, outdated};
use crate::{BuildError, Builds};

/// While something waits for the template that it starts from.
const SOON: Duration = Duration::from_secs(5);

impl Builds {
    /// Works until nothing is left to do, or the server stops.
    pub(crate) async fn keep_catalogue(self: Arc<Self>) {
        loop {
            match self.renew_catalogue().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::warn!("could not build templates of the catalogue: {}", chain(&error)),
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(SOON) => {}
            }
        }
    }

    /// Starts what can be started. Returns whether something still waits.
    pub(crate) async fn renew_catalogue(self: &Arc<Self>) -> Result<bool, BuildError> {
        let mut waits = false;
        for entry in self.catalogue().await? {
            if !self.is_due(&entry) {
                continue;
            }
            let name = &entry.definition.name;
            match self.build_of_catalogue(name, false).await {
                Ok(_) => {
                    self.catalogue.tried.lock().insert(name.clone());
                }
                // It is being built, or an operator has to do that.
                Err(BuildError::NoSource { .. }) => waits = true,
                Err(error @ (BuildError::Store(_) | BuildError::Fleet(_))) => return Err(error),
                Err(error) => {
                    tracing::warn!("could not build template {name} of the catalogue: {}", chain(&error));
                    self.catalogue.tried.lock().insert(name.clone());
                }
            }
        }
        Ok(waits)
    }

    fn is_due(&self, entry: &CatalogueEntry) -> bool {
        let name = &entry.definition.name;
        let wanted = self.catalogue.wanted.contains(name) || entry.ready.is_some();
        wanted && !entry.is_current && !self.catalogue.tried.lock().contains(name)
    }

    /// Ends builds of the catalogue that an earlier program began from another definition.
    pub(crate) async fn end_outdated(&self) -> Result<(), BuildError> {
        for entry in self.catalogue().await? {
            let Some(row) = entry.newest else { continue };
            if matches!(row.state, BuildState::Waiting | BuildState::Building)
                && self.catalogue.is_outdated(&row)
            {
                self.store.fail_build(&self.store.operator(), row.id, outdated()).await?;
                self.destroy_sandbox(&row).await;
            }
        }
        Ok(())
    }
}
