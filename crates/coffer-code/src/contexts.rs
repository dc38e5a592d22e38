//! All contexts, in the order in which they were made, and each language's default one.

use std::sync::Arc;

use coffer_core::sync::Mutex;

use crate::context::{Context, World};
use crate::language::Language;

/// Each has a kernel of 50 to 200 MB.
const MOST: usize = 32;

#[derive(Debug)]
pub(crate) struct Contexts {
    world: Arc<World>,
    listed: Mutex<Listed>,
}

#[derive(Debug, Default)]
struct Listed {
    all: Vec<Arc<Context>>,
    defaults: Vec<(Language, String)>,
}

/// Why there is no such context.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoContext {
    Unknown(String),
    NoLanguage(String),
    Full,
}

impl Contexts {
    /// With the default contexts of Python and JavaScript, whose kernels do not run yet.
    pub(crate) fn new(world: Arc<World>) -> Self {
        let contexts = Self { world, listed: Mutex::default() };
        for language in [Language::Python, Language::JavaScript] {
            if contexts.has(language) {
                // The list is empty: there is room.
                let _made = contexts.default_of(language);
            }
        }
        contexts
    }

    fn has(&self, language: Language) -> bool {
        language.program(&self.world.place).exists()
    }

    /// The language of that name, if it is installed.
    pub(crate) fn language(&self, name: &str) -> Result<Language, NoContext> {
        let found = Language::parse(name).filter(|language| self.has(*language));
        found.ok_or_else(|| NoContext::NoLanguage(name.chars().take(64).collect()))
    }

    pub(crate) fn installed(&self) -> Vec<&'static str> {
        Language::ALL.into_iter().filter(|language| self.has(*language)).map(Language::name).collect()
    }

    pub(crate) fn list(&self) -> Vec<Arc<Context>> {
        self.listed.lock().all.clone()
    }

    pub(crate) fn get(&self, id: &str) -> Result<Arc<Context>, NoContext> {
        let listed = self.listed.lock();
        let found = listed.all.iter().find(|context| context.id == id).cloned();
        found.ok_or_else(|| NoContext::Unknown(id.chars().take(64).collect()))
    }

    /// The default context of a language, made at its first use and again after it was removed.
    pub(crate) fn default_of(&self, language: Language) -> Result<Arc<Context>, NoContext> {
        let mut listed = self.listed.lock();
        let id = listed.defaults.iter().find(|(of, _)| *of == language).map(|(_, id)| id.clone());
        if let Some(found) = id.and_then(|id| listed.all.iter().find(|context| context.id == id)) {
            return Ok(Arc::clone(found));
        }
        let made = listed.add(Context::new(Arc::clone(&self.world), language, None))?;
        listed.defaults.retain(|(of, _)| *of != language);
        listed.defaults.push((language, made.id.clone()));
        Ok(made)
    }

    pub(crate) fn create(
        &self,
        language: Language,
        directory: Option<String>,
    ) -> Result<Arc<Context>, NoContext> {
        self.listed.lock().add(Context::new(Arc::clone(&self.world), language, directory))
    }

    pub(crate) fn remove(&self, id: &str) -> Result<(), NoContext> {
        let found = self.get(id)?;
        self.listed.lock().all.retain(|context| context.id != id);
        found.remove();
        Ok(())
    }
}

impl Listed {
    fn add(&mut self, context: Arc<Context>) -> Result<Arc<Context>, NoContext> {
        if self.all.len() >= MOST {
            return Err(NoContext::Full);
        }
        self.all.push(Arc::clone(&context));
        Ok(context)
    }
}

impl NoContext {
    pub(crate) fn explain(&self, installed: &[&str]) -> String {
        match self {
            Self::Unknown(id) => format!("Context {id} not found"),
            Self::NoLanguage(name) => {
                format!("language '{name}' is not installed; there are {}", installed.join(", "))
            }
            Self::Full => format!("there are {MOST} contexts already; remove one first"),
        }
    }
}
