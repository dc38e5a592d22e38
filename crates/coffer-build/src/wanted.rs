//! Templates of the catalogue that a project's agent or attempt waits for.
//!
//! Anyone who may define an agent may have them built: their contents are fixed, so a project spends nothing but time
//! on one template that all projects share. They are built one at a time, and one that failed is not tried again at
//! once.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::clock::now_ms;
use coffer_core::{BuildId, BuildState, chain};
use coffer_store::BuildRow;

use crate::{BuildError, Builds, CatalogueEntry};

/// How soon a failed build may be tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// A build that was requested by a server that died before it began is not waited for.
const BEGUN_WITHIN: Duration = Duration::from_secs(60);

/// Whether a template of the catalogue can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// It is being built, or waits for that.
    Building {
        /// For people: `step 2 of 3: RUN npm install …`.
        doing: String,
    },
    Failed {
        message: String,
    },
    /// Nobody has asked for it.
    NotBuilt,
}

impl Builds {
    /// Has a template of the catalogue built, unless it can be used or is being built, and says how far it is. The
    /// error says that there is no such template, or that nothing can be looked up.
    pub async fn want(self: &Arc<Self>, name: &str) -> Result<Readiness, BuildError> {
        let entry = self.catalogue_entry(name).await?;
        let before = self.readiness_of(&entry);
        let is_wanted = match &before {
            Readiness::NotBuilt => true,
            Readiness::Failed { .. } => entry.newest.as_ref().is_none_or(may_try_again),
            Readiness::Ready | Readiness::Building { .. } => false,
        };
        if !is_wanted {
            return Ok(before);
        }
        self.catalogue.asked.lock().insert(name.to_string());
        match self.build_of_catalogue(name, false).await {
            Ok(entry) => {
                self.catalogue.asked.lock().remove(name);
                Ok(self.readiness_of(&entry))
            }
            // Built as soon as its source is there.
            Err(BuildError::NoSource { from, .. }) => {
                self.catalogue.news.notify_one();
                Ok(waits_for(&from))
            }
            Err(error) => {
                self.catalogue.asked.lock().remove(name);
                Err(error)
            }
        }
    }

    /// How far a template of the catalogue is.
    pub async fn readiness(&self, name: &str) -> Result<Readiness, BuildError> {
        Ok(self.readiness_of(&self.catalogue_entry(name).await?))
    }

    /// The same for an entry of the list.
    pub fn readiness_of(&self, entry: &CatalogueEntry) -> Readiness {
        if entry.ready.is_some() {
            return Readiness::Ready;
        }
        let newest = entry.newest.as_ref();
        match newest.map(|row| row.state) {
            Some(BuildState::Building) => Readiness::Building { doing: self.doing(newest.map(|row| row.id)) },
            Some(BuildState::Waiting) if newest.is_some_and(is_fresh) => {
                Readiness::Building { doing: "it is about to begin".to_string() }
            }
            Some(BuildState::Error) if !self.catalogue.asked.lock().contains(&entry.definition.name) => {
                let failure = newest.and_then(|row| row.failure.clone());
                let message = failure.map_or_else(
                    || "the build failed".to_string(),
                    |failure| match failure.step {
                        Some(step) => format!("step {step}: {}", failure.message),
                        None => failure.message,
                    },
                );
                Readiness::Failed { message }
            }
            _ if self.catalogue.asked.lock().contains(&entry.definition.name) => {
                waits_for(entry.definition.source())
            }
            _ => Readiness::NotBuilt,
        }
    }

    fn doing(&self, build: Option<BuildId>) -> String {
        let step = build.and_then(|build| self.catalogue.steps.lock().get(&build).cloned());
        step.unwrap_or_else(|| "it begins, or waits for another build".to_string())
    }

    /// Says which step of a build of the catalogue runs.
    pub(crate) fn at_step(&self, row: &BuildRow, step: impl FnOnce() -> String) {
        if row.project == self.catalogue.project {
            self.catalogue.steps.lock().insert(row.id, step());
        }
    }

    /// Begins what was asked for and waited for its source. Returns whether something still waits.
    pub(crate) async fn build_what_was_asked(self: &Arc<Self>) -> bool {
        let asked: Vec<String> = self.catalogue.asked.lock().iter().cloned().collect();
        let mut waits = false;
        for name in asked {
            match self.build_of_catalogue(&name, false).await {
                Err(BuildError::NoSource { .. } | BuildError::Store(_) | BuildError::Fleet(_)) => {
                    waits = true
                }
                built => {
                    self.catalogue.asked.lock().remove(&name);
                    if let Err(error) = built {
                        tracing::warn!("could not build template {name}: {}", chain(&error));
                    }
                }
            }
        }
        waits
    }
}

fn waits_for(source: &str) -> Readiness {
    let doing = format!(
        "it waits for template {source}, from which it starts; an operator builds that with `coffer template build {source}`"
    );
    Readiness::Building { doing }
}

fn is_fresh(row: &BuildRow) -> bool {
    now_ms() - row.created_ms < i64::try_from(BEGUN_WITHIN.as_millis()).unwrap_or(i64::MAX)
}

fn may_try_again(row: &BuildRow) -> bool {
    let ended = row.ended_ms.unwrap_or(row.created_ms);
    now_ms() - ended >= i64::try_from(AGAIN_AFTER.as_millis()).unwrap_or(i64::MAX)
}
