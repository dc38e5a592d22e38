//! Definitions: TOML files next to this crate, which are part of the program.

use std::sync::LazyLock;

use coffer_core::{BuildPlan, BuildSource, StartCommand};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::agents;
use crate::BuildError;
use crate::dockerfile::{self, BadDockerfile, Dockerfile, DockerfileOptions};

/// Raised when the meaning of definitions changes, so that all are built again.
const REVISION: &str = "1";

/// A file that is part of the program, for definitions to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedFile {
    pub name: &'static str,
    pub contents: &'static [u8],
}

/// Files of this crate.
const OWN_FILES: [EmbeddedFile; 5] = [
    EmbeddedFile {
        name: "code-ipython-config.py",
        contents: include_bytes!("../../catalogue/code-ipython-config.py"),
    },
    EmbeddedFile {
        name: "code-requirements.txt",
        contents: include_bytes!("../../catalogue/code-requirements.txt"),
    },
    EmbeddedFile { name: "code-startup.py", contents: include_bytes!("../../catalogue/code-startup.py") },
    EmbeddedFile { name: "CofferJava.java", contents: include_bytes!("../../catalogue/CofferJava.java") },
    EmbeddedFile { name: "install-node.sh", contents: include_bytes!("../../catalogue/install-node.sh") },
];

const TEXTS: [&str; 5] = [
    include_str!("../../catalogue/agent-sandbox-dev-node22.toml"),
    include_str!("../../catalogue/code-interpreter-v1.toml"),
    include_str!("../../catalogue/minimal.toml"),
    include_str!("../../catalogue/node.toml"),
    include_str!("../../catalogue/python.toml"),
];

/// A template of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    pub name: String,
    /// One line for lists.
    pub summary: String,
    /// Its `FROM` names a template: `template://base`. `COPY` copies from `files`.
    pub dockerfile: String,
    /// Names of embedded files.
    #[serde(default)]
    pub files: Vec<String>,
    /// The size of its sandboxes, unless it is the default.
    #[serde(default)]
    pub cpus: Option<u32>,
    #[serde(default)]
    pub memory_mib: Option<u64>,
    /// The service that runs in its sandboxes.
    #[serde(default)]
    pub start: Option<StartCommand>,
    /// What must hold in a new sandbox for the build to be ready.
    pub smoke: Vec<Smoke>,
    /// The template in `FROM`.
    #[serde(skip)]
    source: String,
    /// The text of the definition.
    #[serde(skip)]
    text: String,
}

/// Why a definition cannot be used.
#[derive(Debug, thiserror::Error)]
enum BadDefinition {
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    #[error(transparent)]
    Dockerfile(#[from] BadDockerfile),
    #[error("it does not start from a template: FROM template://NAME")]
    Source,
}

/// A command that must succeed as the default user.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Smoke {
    pub run: String,
    /// A part of its output.
    pub prints: String,
    /// What its output must not have.
    #[serde(default)]
    pub lacks: Option<String>,
}

/// All definitions, by name.
pub fn definitions() -> &'static [Definition] {
    static ALL: LazyLock<Vec<Definition>> = LazyLock::new(|| {
        let mut all: Vec<Definition> =
            TEXTS.iter().map(|text| read(text).expect("a test reads every definition")).collect();
        all.extend(agents::texts().iter().map(|text| read(text).expect("a test reads every definition")));
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    });
    &ALL
}

/// The definition of that name.
pub fn definition(name: &str) -> Option<&'static Definition> {
    definitions().iter().find(|definition| definition.name == name)
}

fn read(text: &str) -> Result<Definition, BadDefinition> {
    let definition: Definition = toml::from_str(text)?;
    // Of no files: only where it starts is of interest now.
    let read = definition.dockerfile(Some("0"))?;
    let BuildSource::Template(source) = read.plan.source else { return Err(BadDefinition::Source) };
    Ok(Definition { source, text: text.to_string(), ..definition })
}

impl Definition {
    /// The template that it starts from.
    pub fn source(&self) -> &str {
        &self.source
    }

    fn dockerfile(&self, context: Option<&str>) -> Result<Dockerfile, BadDockerfile> {
        let options =
            DockerfileOptions { context: context.map(String::from), ..DockerfileOptions::default() };
        dockerfile::parse(&self.dockerfile, &options)
    }

    /// Everything that decides the result, apart from the state of package indexes.
    pub(crate) fn digest(&self, more: &[EmbeddedFile]) -> String {
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        };
        add(REVISION.as_bytes());
        add(self.text.as_bytes());
        for name in &self.files {
            add(name.as_bytes());
            add(embedded(more, name).map_or(&[], |file| file.contents));
        }
        hex::encode(&hash.finalize()[..16])
    }

    /// Its files as the archive of a build context; `None` if it has none.
    pub(crate) fn context(&self, more: &[EmbeddedFile]) -> Result<Option<Vec<u8>>, BuildError> {
        if self.files.is_empty() {
            return Ok(None);
        }
        let mut archive = tar::Builder::new(Vec::new());
        for name in &self.files {
            let missing = || BuildError::NotEmbedded { name: self.name.clone(), file: name.clone() };
            let file = embedded(more, name).ok_or_else(missing)?;
            let mut header = tar::Header::new_gnu();
            header.set_size(file.contents.len() as u64);
            header.set_mode(0o755);
            header.set_cksum();
            archive.append_data(&mut header, file.name, file.contents).map_err(BuildError::Disk)?;
        }
        archive.into_inner().map(Some).map_err(BuildError::Disk)
    }

    /// What its build does; `context` is the hash of its files.
    pub(crate) fn plan(&self, context: Option<&str>, force: bool) -> Result<BuildPlan, BuildError> {
        let Dockerfile { plan, .. } = self.dockerfile(context)?;
        Ok(BuildPlan { start: self.start.clone(), force, ..plan })
    }
}

fn embedded<'a>(more: &'a [EmbeddedFile], name: &str) -> Option<&'a EmbeddedFile> {
    more.iter().chain(&OWN_FILES).find(|file| file.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_can_be_built() {
        let names: Vec<&str> = definitions().iter().map(|definition| definition.name.as_str()).collect();
        let of_agents: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| name.starts_with("agent-") && *name != "agent-sandbox-dev-node22")
            .collect();
        let recipes = coffer_core::agent::Preset::ALL.iter().filter_map(|preset| preset.recipe());
        let mut known: Vec<&str> = recipes.map(|recipe| recipe.template).collect();
        known.sort_unstable();
        assert_eq!(of_agents, known, "each recipe has a template");
        let others: Vec<&str> = names.iter().copied().filter(|name| !of_agents.contains(name)).collect();
        assert_eq!(others, ["agent-sandbox-dev-node22", "code-interpreter-v1", "minimal", "node", "python"]);
        for definition in definitions() {
            let name = &definition.name;
            assert!(name.parse::<coffer_core::TemplateRef>().is_ok_and(|parsed| parsed.name == *name));
            assert!(!definition.smoke.is_empty(), "{name} has no smoke test");
            assert!(!definition.summary.contains('\n') && definition.summary.len() < 120, "{name}");
            // Embedded by the program, not by this crate.
            let program = [EmbeddedFile { name: "coffer-code", contents: b"\x7fELF" }];
            let context = definition.context(&program).unwrap().map(|_| "0".repeat(64));
            let plan = definition.plan(context.as_deref(), false).unwrap();
            assert!(crate::step::check(&plan).is_ok(), "{name}");
            let read = definition.dockerfile(Some("0")).unwrap();
            assert_eq!(read.warnings, [], "{name} says what has no effect");
            assert_eq!(plan.source, BuildSource::Template(definition.source().to_string()));
            assert!(["base", "debian-12"].contains(&definition.source()), "{name}");
        }
    }

    #[test]
    fn a_changed_text_or_file_is_another_definition() {
        let node = definition("node").unwrap();
        let other = Definition { text: format!("{} ", node.text), ..node.clone() };
        assert_ne!(node.digest(&[]), other.digest(&[]));
        let newer = [EmbeddedFile { name: "install-node.sh", contents: b"exit 1" }];
        assert_ne!(node.digest(&[]), node.digest(&newer));
        assert_eq!(node.digest(&[]), node.digest(&[]));
    }

    #[test]
    fn a_file_that_is_not_part_of_the_program_is_named() {
        let definition = Definition { files: vec!["coffer-code".into()], ..definitions()[0].clone() };
        let refused = definition.context(&[]);
        assert!(matches!(refused, Err(BuildError::NotEmbedded { file, .. }) if file == "coffer-code"));
        let files = [EmbeddedFile { name: "coffer-code", contents: b"\x7fELF" }];
        assert_eq!(definition.context(&files).unwrap(), definition.context(&files).unwrap());
    }
}
