//! Secrets of commands in builds: in the environment of one command, and nowhere else.
//!
//! Keys of cached results have a secret's id and version, so that a new value runs the command again and nobody
//! can guess the value from a key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coffer_fleet::secret_variables;
use coffer_store::{BuildFailure, SecretValues};

use crate::run::{Attempt, Unfinished};
use crate::step::Step;

/// The secrets of a build, as they were when it began.
pub(crate) struct BuildSecrets {
    values: Arc<SecretValues>,
    /// Id and version, by name.
    marks: BTreeMap<String, String>,
}

impl BuildSecrets {
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

impl Attempt<'_> {
    /// Looks up the secrets of all steps. A step whose secret does not exist or may not be used fails.
    pub(crate) async fn secrets(&self, steps: &[Step]) -> Result<BuildSecrets, Unfinished> {
        let named: Vec<(usize, &BTreeMap<String, String>)> = steps
            .iter()
            .enumerate()
            .filter_map(|(index, step)| match step {
                Step::Run { secrets, .. } if !secrets.is_empty() => Some((index + 1, secrets)),
                _ => None,
            })
            .collect();
        let store = &self.builds.store;
        let values = match named.is_empty() {
            true => Arc::default(),
            false => store.read_secrets(self.build.row.project).await?,
        };
        let mut secrets = BuildSecrets { values, marks: BTreeMap::new() };
        for (number, names) in &named {
            let failed = |message| BuildFailure { message, step: Some(number.to_string()) };
            secrets.variables(names).map_err(|why| Unfinished::Failed(failed(why)))?;
        }
        let names: BTreeSet<&String> = named.iter().flat_map(|(_, names)| names.values()).collect();
        for name in names {
            let id = store.find_secret(&self.scope, None, name).await?.map(|found| found.id.to_string());
            let version = secrets.values.get(name).map_or(0, |secret| secret.version);
            secrets.marks.insert(name.clone(), format!("{}/{version}", id.unwrap_or_default()));
        }
        Ok(secrets)
    }
}
