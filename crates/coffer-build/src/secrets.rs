//! Secrets of commands in builds: in the environment of one command, and nowhere else.
//!
//! Keys of cached results have a secret's id and version, so that a new value runs the command again and nobody
//! can guess the value from a key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coffer_fleet::secret_variables;
use coffer_store::{ProjectScope, SecretValues, Store, StoreError};

use crate::step::Step;

/// Why a build cannot have its secrets.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSecrets {
    /// One does not exist, or may not be used.
    #[error("{message}")]
    Refused {
        /// The number of the step, from 1.
        step: String,
        message: String,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The secrets of a build, as they were when it began.
pub(crate) struct BuildSecrets {
    values: Arc<SecretValues>,
    /// Id and version, by name.
    marks: BTreeMap<String, String>,
}

impl BuildSecrets {
    /// Looks up the secrets of all steps.
    pub(crate) async fn of(store: &Store, scope: &ProjectScope, steps: &[Step]) -> Result<Self, NoSecrets> {
        let named: Vec<(usize, &BTreeMap<String, String>)> = steps
            .iter()
            .enumerate()
            .filter_map(|(index, step)| match step {
                Step::Run { secrets, .. } if !secrets.is_empty() => Some((index + 1, secrets)),
                _ => None,
            })
            .collect();
        let values = match named.is_empty() {
            true => Arc::default(),
            false => store.read_secrets(scope.project()).await?,
        };
        let mut secrets = Self { values, marks: BTreeMap::new() };
        for (number, names) in &named {
            let refused = |message| NoSecrets::Refused { step: number.to_string(), message };
            secrets.variables(names).map_err(refused)?;
        }
        let names: BTreeSet<&String> = named.iter().flat_map(|(_, names)| names.values()).collect();
        for name in names {
            let id = store.find_secret(scope, None, name).await?.map(|found| found.id.to_string());
            let version = secrets.values.get(name).map_or(0, |secret| secret.version);
            secrets.marks.insert(name.clone(), format!("{}/{version}", id.unwrap_or_default()));
        }
        Ok(secrets)
    }

    /// What stands for a secret in a key.
    pub(crate) fn mark(&self, name: &str) -> &str {
        self.marks.get(name).map_or("", String::as_str)
    }

    /// Variables with the values of their secrets.
    pub(crate) fn variables(
        &self,
        names: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, String> {
        secret_variables(names, &self.values).map_err(|error| error.to_string())
    }
}
