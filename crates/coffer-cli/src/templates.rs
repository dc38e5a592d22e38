//! `template ls`, `show`, `rm`, and `template build` of a directory: templates on a server.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use coffer_api_types::templates::{
    NewTemplateBuild, TemplateBuild, TemplateBuildLine, TemplateBuildQuery, TemplateQuery,
};
use coffer_client::Upload;

use crate::context::{Context, Remote, With};
use crate::failure::{FAILED, Failure, INTERRUPTED, NOT_FOUND, Outcome};
use crate::{escape, pairs, printer};

/// Templates on a server.
#[derive(Debug, Subcommand)]
pub enum TemplateVerb {
    /// List the templates on a server: its own, and those that the project built
    Ls(With<List>),
    /// Show a template on a server
    Show(With<Named>),
    /// List the builds of templates on a server
    Builds(With<Builds>),
    /// Delete templates of the project
    Rm(With<Remove>),
}

#[derive(Debug, Args)]
pub struct List {
    /// Only with this text in the name or the summary
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
}

#[derive(Debug, Args)]
pub struct Named {
    /// Its id or name
    template: String,
}

#[derive(Debug, Args)]
pub struct Builds {
    /// Only of this template
    template: Option<String>,
}

#[derive(Debug, Args)]
pub struct Remove {
    #[arg(required = true, value_name = "TEMPLATE")]
    templates: Vec<String>,
}

impl List {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let query = TemplateQuery { search: self.search, ..TemplateQuery::default() };
        let all = context.client.templates(&query).all().await?;
        context
            .printer
            .list(&all, &["name", "kind", "state", "user", "tags", "build_count", "updated_at"])?;
        Ok(0)
    }
}

impl Named {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        context.printer.show(&context.client.template(&self.template).await?)?;
        Ok(0)
    }
}

impl Builds {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let query = TemplateBuildQuery { template: self.template, state: None };
        let all = context.client.template_builds(&query).take(1000).await?;
        context
            .printer
            .list(&all, &["id", "template", "state", "tags", "from", "failure.message", "created_at"])?;
        Ok(0)
    }
}

impl Remove {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        for name in self.templates {
            context.client.delete_template(&name).await?;
            printer::print(&format!("{}\n", escape::line(&name)));
        }
        Ok(0)
    }
}

/// How a directory with a Dockerfile is built on a server.
#[derive(Debug, Args)]
pub struct DirectoryBuild {
    /// With a directory: the template's name, or name:tag
    #[arg(long, value_name = "NAME[:TAG]")]
    name: Option<String>,
    /// With a directory: the Dockerfile, instead of DIR/Dockerfile
    #[arg(short = 'f', long, value_name = "FILE")]
    dockerfile: Option<PathBuf>,
    /// With a directory: a value for an ARG of the Dockerfile. May be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    build_arg: Vec<String>,
    /// With a directory: a secret of the project that every RUN has as a variable. May be repeated
    #[arg(long, value_name = "NAME")]
    secret: Vec<String>,
    /// With a directory: processors of its sandboxes
    #[arg(long, value_name = "COUNT")]
    cpus: Option<u32>,
    /// With a directory: memory of its sandboxes, such as 2GiB
    #[arg(long, value_name = "SIZE", value_parser = pairs::mebibytes)]
    memory: Option<u64>,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

impl DirectoryBuild {
    /// Whether a word names a directory to build, rather than a template of this machine.
    pub fn is_directory(word: &str) -> bool {
        word == "." || word.contains(['/', '\\']) || Path::new(word).is_dir()
    }

    /// Uploads the directory, builds it and shows the log. Ctrl-C cancels the build.
    pub(crate) async fn run(self, directory: &Path, force: bool) -> Outcome {
        let context = Context::new(&self.remote)?;
        let file = self.dockerfile.clone().unwrap_or_else(|| directory.join("Dockerfile"));
        let dockerfile = std::fs::read_to_string(&file).map_err(|error| {
            let failure =
                Failure::new(format!("could not read `{}`: {error}", file.display())).exit(NOT_FOUND);
            failure.hint("--dockerfile names another file")
        })?;
        let archive = pack(directory).await?;
        let length = archive.metadata().ok().map(|found| found.len());
        let upload = Upload::stream(tokio::fs::File::from_std(archive), length);
        let files = context.client.upload_template_files(upload).await?;
        let new = NewTemplateBuild {
            name: self.name,
            dockerfile: Some(dockerfile),
            args: pairs::metadata(&self.build_arg)?,
            context: Some(files.hash),
            cpu_count: self.cpus,
            memory_mib: self.memory,
            secrets: self.secret,
            force,
            ..NewTemplateBuild::default()
        };
        let requested = context.client.build_template(&new).await?;
        requested.warnings.iter().for_each(|warning| printer::note(&format!("warning: {warning}")));
        let id = requested.build.id;
        let build = tokio::select! {
            build = follow(&context, &id) => build?,
            _ = tokio::signal::ctrl_c() => {
                context.client.cancel_template_build(&id).await?;
                printer::note(&format!("cancelled build {id}"));
                return Ok(INTERRUPTED);
            }
        };
        if let Some(failure) = &build.failure {
            let step = failure.step.as_ref().map(|step| format!(" at step {step}")).unwrap_or_default();
            let line =
                failure.line.map(|line| format!(", line {line} of the Dockerfile")).unwrap_or_default();
            return Err(
                Failure::new(format!("build {id} failed{step}{line}: {}", failure.message)).exit(FAILED)
            );
        }
        context.printer.done(&format!("built template {} ({id})", build.template), &build)?;
        Ok(0)
    }
}

/// The directory as an archive in a temporary file: its length is known, and a failed upload could be repeated.
async fn pack(directory: &Path) -> Result<std::fs::File, Failure> {
    let source = directory.to_path_buf();
    let packed = tokio::task::spawn_blocking(move || {
        let mut archive = tar::Builder::new(std::io::BufWriter::new(tempfile::tempfile()?));
        archive.follow_symlinks(false);
        archive.append_dir_all(".", &source)?;
        let mut file = archive.into_inner()?.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        std::io::Seek::rewind(&mut file)?;
        Ok::<_, std::io::Error>(file)
    });
    let packed = packed.await.map_err(|error| Failure::new(error.to_string()))?;
    packed.map_err(|error| Failure::new(format!("could not pack `{}`: {error}", directory.display())))
}

/// Shows the log on stderr until the build has ended.
async fn follow(context: &Context, id: &str) -> Result<TemplateBuild, Failure> {
    let bad =
        |error: serde_json::Error| Failure::new(format!("could not read a message of the server: {error}"));
    let mut stream = context.client.follow_template_build(id);
    loop {
        let message = stream.next().await?;
        match message.event.as_str() {
            "line" => {
                let line: TemplateBuildLine = serde_json::from_str(&message.data).map_err(bad)?;
                eprintln!("{}", escape::lines(line.message.trim_end()));
            }
            "end" => return serde_json::from_str(&message.data).map_err(bad),
            _ => {}
        }
    }
}
