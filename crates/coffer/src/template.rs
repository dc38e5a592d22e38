//! `coffer template`: builds and lists templates of this machine, which needs no running server; and those of a server.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};
use coffer_core::mirrors::MirrorSettings;
use coffer_template::{BaseOptions, NpmSource, Phase, Progress, Recipe, TemplateStore};
use indicatif::{ProgressBar, ProgressStyle};

use crate::catalogue::Operator;
use crate::config::{self, Flags, Sources};
use crate::printer;
use crate::roots::extra_roots;

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
    /// Build a template: of this machine from packages, of the catalogue by the running server, or of a project from a
    /// directory with a Dockerfile
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
    /// Templates of this machine or of the catalogue, or one directory with a Dockerfile
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
    /// The data directory of the server that builds templates of the catalogue, instead of the one in the settings
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The mirrors of `up`, as JSON, instead of those in the settings
    #[arg(long, hide = true, value_name = "JSON")]
    mirrors: Option<String>,
    #[command(flatten)]
    directory: coffer_cli::DirectoryBuild,
}

/// The name of a recipe or of a template of the catalogue, or a directory.
fn source(text: &str) -> Result<String, String> {
    if is_known(text) || coffer_cli::DirectoryBuild::is_directory(text) {
        return Ok(text.to_string());
    }
    let catalogue = coffer_server::definitions().iter().map(|definition| definition.name.as_str());
    let names: Vec<_> = Recipe::ALL.iter().map(|recipe| recipe.name()).chain(catalogue).collect();
    Err(format!("neither a template nor a directory [possible values: {}]", names.join(", ")))
}

fn is_known(name: &str) -> bool {
    Recipe::of(name).is_some() || coffer_server::definition(name).is_some()
}

impl Template {
    pub(crate) fn run(self, sources: &Sources) -> anyhow::Result<ExitCode> {
        let verb = match self.verb {
            TemplateVerb::OnServer(verb) => return Ok(verb.run()),
            TemplateVerb::Build(build) if build.names.iter().any(|name| !is_known(name)) => {
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
            TemplateVerb::Build(build) => build.run(&store, sources)?,
            TemplateVerb::List { json } => list(&store, json)?,
            TemplateVerb::OnServer(_) => {}
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Build {
    fn run(self, store: &TemplateStore, sources: &Sources) -> anyhow::Result<()> {
        let mirrors = match &self.mirrors {
            Some(text) => serde_json::from_str(text).context("--mirrors is not what `up` writes")?,
            None => config::resolve(sources, &Flags::default())?.settings.mirrors,
        };
        let options = BaseOptions { mirror: self.mirror, suite: self.suite, npm: npm_source(&mirrors)? };
        for name in &self.names {
            if let Some(recipe) = Recipe::of(name) {
                build(store, recipe, &options, self.force)?;
                continue;
            }
            let data_dir = match &self.data_dir {
                Some(dir) => dir.clone(),
                None => config::resolve(sources, &Flags::default())?.settings.data_dir,
            };
            let server = Operator::of(&data_dir)?;
            // The server has no right to bootstrap what the template starts from.
            let source =
                coffer_server::definition(name).and_then(|definition| Recipe::of(definition.source()));
            if let Some(source) = source.filter(|source| store.get(source.name()).is_none()) {
                build(store, source, &options, false)?;
            }
            server.build(name, self.force)?;
        }
        Ok(())
    }
}

/// Where Node is downloaded from.
fn npm_source(mirrors: &MirrorSettings) -> anyhow::Result<NpmSource> {
    let registry = mirrors.npm.clone().filter(|url| !url.is_empty());
    Ok(NpmSource { registry, extra_roots: mirrors.ca.as_deref().map(extra_roots).transpose()? })
}

fn build(store: &TemplateStore, recipe: Recipe, options: &BaseOptions, force: bool) -> anyhow::Result<()> {
    let name = recipe.name();
    if !force && let Some(template) = store.get(name) {
        let build = template.info.build;
        if store.lacks_node(recipe) {
            printer::line(format_args!("template {name} ({build}) lacks Node 22, trying again"));
        } else if store.is_current(recipe, options) {
            printer::line(format_args!("template {name} is built already ({build})"));
            return Ok(());
        } else {
            printer::line(format_args!("template {name} ({build}) is of another recipe or release"));
        }
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
    let size = template.size_bytes / 1_000_000;
    printer::line(format_args!("built template {name} ({}, {size} MB) in {took} s", template.info.build));
    for note in &template.notes {
        printer::line(format_args!("  {note}"));
    }
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
