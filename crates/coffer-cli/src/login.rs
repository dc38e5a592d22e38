//! `login`, `logout`, `profile`, `open`: which server, with which key.

use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use coffer_client::Client;

use crate::context::{Context, Remote};
use crate::failure::{Failure, NOT_FOUND, Outcome};
use crate::printer::{self, Printer};
use crate::profile::{self, Profile, Profiles};
use crate::terminal;

const LONGEST_KEY: u64 = 4096;

/// Store a server and a key for it
///
/// The key comes from a prompt, from stdin if that is a pipe, from --env-file, or by the one-time link that `coffer up`
/// prints. No option takes it: arguments are visible to other users of this machine.
#[derive(Debug, Args)]
pub struct Login {
    /// The server, such as https://coffer.example.com, or the one-time link that `coffer up` prints
    #[arg(value_name = "URL")]
    server: Option<String>,
    /// The file `env` that `coffer up` writes to its data directory
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    env_file: Option<PathBuf>,
    /// The name of the profile
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
}

impl Login {
    pub(crate) async fn run(self, remote: &Remote) -> Outcome {
        let (url, key) = match (&self.env_file, self.server.as_deref().or(remote.url.as_deref())) {
            (Some(file), _) => from_file(file)?,
            (None, Some(link)) if link.contains("#token=") => from_link(link).await?,
            (None, server) => {
                let set = std::env::var("COFFER_URL").ok().filter(|url| !url.is_empty());
                let url = server.map(str::to_string).or(set).unwrap_or_else(|| profile::LOCAL.to_string());
                if url.starts_with("e2b_") || url.starts_with("cof") && !url.contains("://") {
                    return Err(Failure::usage(
                        "a key does not belong on the command line: other users can see it",
                    )
                    .hint("`coffer login URL` asks for it; replace the key that was shown"));
                }
                let key = read_secret(&format!("Key for {url}"))?;
                (url, key)
            }
        };
        let client = Client::new(&url, Some(&key))?;
        let me = client.me().await?;
        let mut profiles = Profiles::load()?;
        let url = client.url().to_string();
        profiles.profiles.insert(self.name.clone(), Profile { url: url.clone(), key });
        profiles.current = Some(self.name.clone());
        let path = profiles.store()?;
        let project =
            me.project.as_ref().map_or("all projects".into(), |project| format!("project {}", project.name));
        let said = format!(
            "signed in to {url}, {project}, role {}; profile {} in {}",
            me.role,
            self.name,
            path.display()
        );
        Printer { format: remote.output }.done(&said, &me)?;
        Ok(0)
    }
}

/// A value from a pipe, or from a prompt without echo.
pub(crate) fn read_secret(question: &str) -> Result<String, Failure> {
    let value = if std::io::stdin().is_terminal() {
        terminal::prompt_secret(question)?
    } else {
        let mut text = String::new();
        std::io::stdin().take(LONGEST_KEY).read_to_string(&mut text)?;
        text.trim_end_matches(['\r', '\n']).to_string()
    };
    if value.is_empty() {
        Err(Failure::usage("nothing was given").hint("pipe it in, or type it at the prompt"))
    } else {
        Ok(value)
    }
}

fn from_file(file: &Path) -> Result<(String, String), Failure> {
    let failed =
        |error: std::io::Error| Failure::new(format!("could not read `{}`: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(failed)?;
    let value = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_string)
    };
    match (value("COFFER_URL"), value("COFFER_API_KEY")) {
        (Some(url), Some(key)) => Ok((url, key)),
        _ => Err(Failure::new(format!("`{}` does not have COFFER_URL and COFFER_API_KEY", file.display()))
            .hint("`coffer up` writes such a file to its data directory: data/env")),
    }
}

async fn from_link(link: &str) -> Result<(String, String), Failure> {
    let (url, token) = link.split_once("#token=").unwrap_or((link, ""));
    let made = Client::new(url, None)?.sign_in(token).await?;
    Ok((url.trim_end_matches('/').to_string(), made.key))
}

/// List, choose and remove profiles
#[derive(Debug, Args)]
pub struct ProfileVerbs {
    #[command(subcommand)]
    verb: ProfileVerb,
}

#[derive(Debug, Subcommand)]
enum ProfileVerb {
    /// List profiles
    Ls,
    /// Make a profile the current one
    Use { name: String },
    /// Remove a profile and its key from this machine; the key stays valid
    Rm { name: String },
}

impl ProfileVerbs {
    pub(crate) fn run(self, remote: &Remote) -> Outcome {
        let mut profiles = Profiles::load()?;
        let missing = |name: &str| {
            Failure::new(format!("profile '{name}' not found")).hint("`coffer profile ls`").exit(NOT_FOUND)
        };
        match self.verb {
            ProfileVerb::Ls => {
                let current = profiles.current.as_deref();
                let rows = profiles.profiles.iter().map(|(name, profile)| {
                    serde_json::json!({"name": name, "url": profile.url, "current": current == Some(name.as_str())})
                });
                Printer { format: remote.output }
                    .list(&rows.collect::<Vec<_>>(), &["name", "url", "current"])?;
            }
            ProfileVerb::Use { name } => {
                if !profiles.profiles.contains_key(&name) {
                    return Err(missing(&name));
                }
                profiles.current = Some(name);
                profiles.store()?;
            }
            ProfileVerb::Rm { name } => {
                profiles.profiles.remove(&name).ok_or_else(|| missing(&name))?;
                if profiles.current.as_deref() == Some(name.as_str()) {
                    profiles.current = profiles.profiles.keys().next().cloned();
                }
                profiles.store()?;
            }
        }
        Ok(0)
    }
}

/// Show the server, the key's project and its role
#[derive(Debug, Args)]
pub struct WhoAmI {}

impl WhoAmI {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let me = context.client.me().await?;
        let mut shown = printer::to_value(&me)?;
        if context.printer.is_table()
            && let Some(object) = shown.as_object_mut()
        {
            object.insert("url".into(), context.client.url().into());
        }
        context.printer.show(&shown)?;
        Ok(0)
    }
}
