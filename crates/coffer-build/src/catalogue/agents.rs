//! Definitions of the templates of agent presets, written from their recipes.

use coffer_core::agent::{Package, Preset};

/// The texts of all, as the files of other definitions have them.
pub(super) fn texts() -> Vec<String> {
    Preset::ALL.iter().filter_map(|preset| text(*preset)).collect()
}

fn text(preset: Preset) -> Option<String> {
    let recipe = preset.recipe()?;
    let (title, name, program) = (preset.title(), recipe.template, recipe.program);
    let (package, versions, install) = (recipe.package_name(), recipe.versions(), recipe.install());
    // `base` has the distribution's Node if it was built without a network.
    let node = match recipe.package {
        Package::Npm { .. } | Package::NpmBinary { .. } => {
            "COPY install-node.sh /usr/local/sbin/install-node\n\
             RUN sh /usr/local/sbin/install-node && rm /usr/local/sbin/install-node\n"
        }
        Package::Pip { .. } => "",
    };
    let afterwards = recipe.afterwards.map(|line| format!("RUN {line}\n")).unwrap_or_default();
    let files = if node.is_empty() { "[]" } else { "[\"install-node.sh\"]" };
    Some(format!(
        r#"name = "{name}"
summary = "base with {title} ({package} {versions}), for agents of the preset {preset}"
files = {files}
dockerfile = '''
FROM template://base
{node}RUN {install}
{afterwards}'''

[[smoke]]
run = "{program} --version"
prints = "."
"#,
        preset = preset.as_str(),
    ))
}
