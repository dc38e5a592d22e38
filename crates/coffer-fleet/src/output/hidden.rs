//! Values to redact for one sandbox, in addition to its project's secrets.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::Patterns;
use coffer_core::sync::Mutex;

/// Values from the environment of agents that work in a sandbox, which are not secrets of the project. They
/// are redacted only in this sandbox's output, because some of them are common words.
#[derive(Default)]
pub struct Hidden(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    values: BTreeSet<String>,
    /// The project's patterns, and the combined patterns.
    made: Option<(Arc<Patterns>, Arc<Patterns>)>,
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.0.lock();
        write!(f, "Hidden({} values)", inner.values.len())
    }
}

impl Hidden {
    /// Adds values.
    pub fn add<'a>(&self, values: impl IntoIterator<Item = &'a String>) {
        let mut inner = self.0.lock();
        for value in values {
            if inner.values.insert(value.clone()) {
                inner.made = None;
            }
        }
    }

    /// The patterns for all output of the sandbox.
    pub(super) fn beside(&self, project: Arc<Patterns>) -> Arc<Patterns> {
        let mut inner = self.0.lock();
        if inner.values.is_empty() {
            return project;
        }
        if let Some((of, made)) = &inner.made
            && Arc::ptr_eq(of, &project)
        {
            return made.clone();
        }
        let made = Arc::new(project.with(inner.values.iter().map(String::as_str)));
        inner.made = Some((project, made.clone()));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_sandbox_are_hidden_with_those_of_the_project() {
        let (hidden, project) = (Hidden::default(), Arc::new(Patterns::new(&["of-the-project"])));
        assert!(Arc::ptr_eq(&hidden.beside(project.clone()), &project), "nothing is made for most sandboxes");
        hidden.add(["of-the-agent".to_string(), "short".to_string()].iter());
        let both = hidden.beside(project.clone());
        assert_eq!(both.redact("of-the-project of-the-agent short"), "[redacted] [redacted] short");
        assert!(Arc::ptr_eq(&hidden.beside(project.clone()), &both), "and once for the others");
        hidden.add(["of-the-next".to_string()].iter());
        assert_eq!(hidden.beside(project).redact("of-the-agent, of-the-next"), "[redacted], [redacted]");
        // The project's secrets have changed.
        let changed = Arc::new(Patterns::new(&["changed"]));
        assert_eq!(
            hidden.beside(changed).redact("changed of-the-project of-the-next"),
            "[redacted] of-the-project [redacted]"
        );
        assert_eq!(format!("{hidden:?}"), "Hidden(3 values)");
    }
}
