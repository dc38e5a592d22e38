//! What one sandbox must not show, beside the values of its project.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::Patterns;
use coffer_core::sync::Mutex;

/// Values that agents at work in a sandbox were given and that are no secrets of the project: those of their own
/// environment. They are taken out of what this sandbox says, and of nothing else: some of them are words that stand
/// everywhere.
#[derive(Default)]
pub struct Hidden(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    values: BTreeSet<String>,
    /// The project's patterns, and the same with these values.
    made: Option<(Arc<Patterns>, Arc<Patterns>)>,
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.0.lock();
        write!(f, "Hidden({} values)", inner.values.len())
    }
}

impl Hidden {
    /// Hides these too, from now on.
    pub fn add<'a>(&self, values: impl IntoIterator<Item = &'a String>) {
        let mut inner = self.0.lock();
        for value in values {
            if inner.values.insert(value.clone()) {
                inner.made = None;
            }
        }
    }

    /// What is looked for in all that the sandbox says.
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
        // The project's secrets are others by now.
        let changed = Arc::new(Patterns::new(&["changed"]));
        assert_eq!(
            hidden.beside(changed).redact("changed of-the-project of-the-next"),
            "[redacted] of-the-project [redacted]"
        );
        assert_eq!(format!("{hidden:?}"), "Hidden(3 values)");
    }
}
