//! `coffer config`: the settings, and where each came from.

use clap::{Args, Subcommand};
use coffer_core::settings::MASK;
use serde_json::{Value, json};

use super::schema::{Kind, Schema, at};
use super::{Flags, Origin, Resolved, Sources, reference, resolve};
use crate::printer;

#[derive(Debug, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Show every setting with its value and where that came from; secrets are masked
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Show only settings that differ from the default
        #[arg(long)]
        changed: bool,
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Print the reference of all settings, in Markdown
    Reference,
    /// Check the settings as `up` would, and start nothing
    Check {
        #[command(flatten)]
        flags: Box<Flags>,
    },
}

impl Config {
    pub(crate) fn run(self, sources: &Sources) -> anyhow::Result<()> {
        match self.verb {
            ConfigVerb::Show { json, changed, flags } => {
                let resolved = resolve(sources, &flags)?;
                doubts(&resolved);
                printer::line(if json { resolved.as_json(changed) } else { resolved.as_table(changed) });
            }
            ConfigVerb::Reference => printer::line(reference::page().trim_end()),
            ConfigVerb::Check { flags } => {
                let resolved = resolve(sources, &flags)?;
                doubts(&resolved);
                let file = resolved
                    .file
                    .as_ref()
                    .map_or("no file".to_string(), |path| format!("`{}`", path.display()));
                let given = resolved.origins.len();
                printer::line(format_args!("the settings are valid: {given} set, {file} read"));
            }
        }
        Ok(())
    }
}

fn doubts(resolved: &Resolved) {
    for doubt in &resolved.doubts {
        eprintln!("warning: {doubt}");
    }
}

impl Resolved {
    pub(super) fn as_table(&self, changed: bool) -> String {
        let mut rows = vec![["SETTING".to_string(), "VALUE".to_string(), "FROM".to_string()]];
        for setting in &Schema::new().settings {
            let origin = self.origin(&setting.path);
            if !changed || *origin != Origin::Default {
                let value = setting.shown(at(&self.tree, &setting.path));
                rows.push([setting.path.clone(), value, origin.to_string()]);
            }
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (name, value) = (width(0), width(1));
        let lines = rows.iter().map(|row| format!("{:<name$}  {:<value$}  {}", row[0], row[1], row[2]));
        lines.collect::<Vec<_>>().join("\n")
    }

    pub(super) fn as_json(&self, changed: bool) -> String {
        let mut settings = Vec::new();
        for setting in &Schema::new().settings {
            let (origin, value) = (self.origin(&setting.path), at(&self.tree, &setting.path));
            if changed && *origin == Origin::Default {
                continue;
            }
            let masked = setting.kind == Kind::Secret && !value.is_null();
            let value = if masked { Value::from(MASK) } else { value.clone() };
            let origin = match origin {
                Origin::Default => json!({ "kind": "default" }),
                Origin::File { path, line } => json!({ "kind": "file", "file": path, "line": line }),
                Origin::Environment(name) => json!({ "kind": "environment", "variable": name }),
                Origin::Flag(name) => json!({ "kind": "flag", "flag": name }),
            };
            settings.push(json!({ "setting": setting.path, "value": value, "origin": origin }));
        }
        serde_json::to_string_pretty(&settings).expect("plain values")
    }
}
