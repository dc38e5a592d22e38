//! `coffer template`: builds and lists templates of this machine, which needs no running server; and those of a server.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};
use coffer_template::{BaseOptions, Phase, Progress, Recipe, TemplateStore};
use indicatif::{ProgressBar, ProgressStyle};

use crate::config::{self, Flags, Sources};
use crate::printer;

#[derive(Debug, Args)]
pub(crate) struct Template {
    #[command(subcommand)]
    verb: TemplateVerb,
    /// The directory of templates, instead of the one in the settings
    #[arg(long, global = true, value_name = "DIR")]
    template_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum TemplateVerb {
    /// Build a template of this machine from packages, or one of a server from a directory with a Dockerfile
    Build(Box<Build>),
    /// List the templates of this machine
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    #[command(flatten)]
    OnServer(coffer_cli::TemplateVerb),
}

#[derive(Debug, Args)]
struct Build {
    /// Templates of this machine, or one directory with a Dockerfile
    #[arg(required = true, value_name = "NAME|DIR", value_parser = source)]
    names: Vec<String>,
    /// Build it even if a build exists
    #[arg(long)]
    force: bool,
    /// The package mirror to use instead of the host's own
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
    /// The distribution's release to use instead of the host's own
    #[arg(long, value_name = "NAME")]
    suite: Option<String>,
    #[command(flatten)]
    directory: coffer_cli::DirectoryBuild,
}

/// The name of a recipe, or a directory.
fn source(text: &str) -> Result<String, String> {
    if Recipe::of(text).is_some() || coffer_cli::DirectoryBuild::is_directory(text) {
        return Ok(text.to_string());
    }
    let names = Recipe::ALL.map(Recipe::name).join(", ");
    Err(format!("neither a template of this machine nor a directory [possible values: {names}]"))
}

impl Template {
    pub(crate) fn run(self, sources: &Sources) -> anyhow::Result<ExitCode> {
        let verb = match self.verb {
            TemplateVerb::OnServer(verb) => return Ok(verb.run()),
            TemplateVerb::Build(build) if build.names.iter().any(|name| Recipe::of(name).is_none()) => {
                let [directory] = build.names.as_slice() else {
                    anyhow::bail!("one directory can be built at a time, and no other template with it");
                };
                return Ok(build.directory.build(Path::new(directory), build.force));
            }
            verb => verb,
        };
        let dir = match self.template_dir {
            Some(dir) => dir,
            None => config::resolve(sources, &Flags::default())?.settings.template.dir,
        };
        let store = TemplateStore::open(&dir, coffer_node::layers_in_use)
            .with_context(|| format!("could not open the templates in `{}`", dir.display()))?;
        match verb {
            TemplateVerb::Build(build) => build.run(&store)?,
            TemplateVerb::List { json } => list(&store, json)?,
            TemplateVerb::OnServer(_) => {}
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Build {
    fn run(self, store: &TemplateStore) -> anyhow::Result<()> {
        let options = BaseOptions { mirror: self.mirror, suite: self.suite };
        for recipe in self.names.iter().filter_map(|name| Recipe::of(name)) {
            build(store, recipe, &options, self.force)?;
        }
        Ok(())
    }
}

fn build(store: &TemplateStore, recipe: Recipe, options: &BaseOptions, force: bool) -> anyhow::Result<()> {
    let name = recipe.name();
    if !force && let Some(template) = store.get(name) {
        let build = template.info.build;
        if store.is_current(recipe, options) {
            printer::line(format_args!("template {name} is built already ({build})"));
            return Ok(());
        }
        printer::line(format_args!("template {name} ({build}) is of another recipe or release"));
    }
    let since = Instant::now();
    let mut show = Show::new();
    let built = store.bootstrap(recipe, options, &mut |progress| show.update(progress));
    show.finish();
    let template = built.map_err(|error| match error.hint() {
        Some(hint) => printer::hint(error.to_string(), hint),
        None => anyhow::Error::from(error),
    })?;
    let took = since.elapsed().as_secs();
    printer::line(format_args!("built template {name} ({}) in {took} s", template.info.build));
    Ok(())
}

fn list(store: &TemplateStore, json: bool) -> anyhow::Result<()> {
    let templates = store.list();
    if json {
        let infos: Vec<_> = templates.iter().map(|template| &template.info).collect();
        printer::line(serde_json::to_string_pretty(&infos)?);
    } else if templates.is_empty() {
        printer::line("no template is built yet; `coffer template build base` builds one");
    } else {
        printer::line(format_args!("{:<12} {:<24} USER", "NAME", "BUILD"));
        for template in templates {
            let info = &template.info;
            printer::line(format_args!("{:<12} {:<24} {}", info.name, info.build, info.default_user));
        }
    }
    Ok(())
}

/// A progress bar on a terminal, otherwise one line per phase.
struct Show {
    bar: Option<ProgressBar>,
    phase: Option<Phase>,
}

impl Show {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{spinner} {msg:<30} [{bar:40}] {percent:>3}% {elapsed}")
                    .expect("the template is constant");
            let bar = ProgressBar::new(1000).with_style(style);
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar, phase: None }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a thousand")]
    fn update(&mut self, progress: Progress) {
        let new_phase = self.phase.replace(progress.phase) != Some(progress.phase);
        match &self.bar {
            Some(bar) => {
                bar.set_position((progress.overall() * 1000.0) as u64);
                bar.set_message(progress.phase.to_string());
            }
            None if new_phase => eprintln!("template: {}", progress.phase),
            None => {}
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
