//! `repo`: repositories of the project, and connections to the forges that they are on.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use coffer_api_types::connections::ReachableQuery;
use coffer_api_types::pulls::PullQuery;
use coffer_api_types::repositories::NewRepository;

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::forge::{self, GitPlace, Place};

/// Repositories of the project, and the forges that they are on
#[derive(Debug, Args)]
pub struct Repositories {
    #[command(subcommand)]
    verb: RepositoryVerb,
}

#[derive(Debug, Subcommand)]
enum RepositoryVerb {
    /// List repositories
    Ls,
    /// Show a repository
    Show { repository: String },
    /// Create a repository on this server, or register one of a forge
    ///
    /// `coffer repo add app` creates an empty one here. `coffer repo add https://github.com/octocat/hello-world` registers
    /// that one, by the connection that leads there. With --token-env, --token-file or --user, the address may be on any
    /// git server over HTTPS, such as GitLab or Gitea: the project is connected to it with that token, which only the server
    /// gets. Connecting again replaces the token.
    Add {
        /// Its name, or its address on a connected forge
        #[arg(value_name = "NAME|URL")]
        name: String,
        /// The user on the git server; GitLab and Gitea take any with a token
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
        /// The environment variable with the token or password
        #[arg(long, value_name = "VARIABLE", conflicts_with = "token_file")]
        token_env: Option<String>,
        /// A file with the token or password
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
        /// Its name on the forge, as owner/name
        #[arg(long, value_name = "OWNER/NAME", requires = "connection")]
        remote: Option<String>,
        /// The connection to the forge, by its id or name
        #[arg(long, value_name = "NAME", requires = "remote")]
        connection: Option<String>,
        /// Its default branch
        #[arg(long, value_name = "BRANCH")]
        default_branch: Option<String>,
    },
    /// Connect the project to GitHub with a token
    ///
    /// The token comes from --token-file, from stdin if that is a pipe, or from a prompt; no option takes it. It is stored as a
    /// secret that is sent to the forge only. Connecting again replaces the token.
    Connect {
        /// The kind of forge
        #[arg(value_name = "FORGE", value_parser = ["github"])]
        forge: String,
        /// The host of a GitHub Enterprise server
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
        /// The connection's name; `github` or the host by default
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// A file with the token
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
        /// Say what the token lacks for work on this repository, and exit with 1 if it lacks anything
        #[arg(long, value_name = "OWNER/NAME")]
        check: Option<String>,
    },
    /// List connections to forges
    Connections,
    /// Delete a connection that no repository uses
    Disconnect { connection: String },
    /// List the repositories of a forge that a connection can reach
    Available {
        /// The connection; the only one by default
        connection: Option<String>,
        /// Only those with this text in their name or description
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
        /// At most this many
        #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 50)]
        limit: usize,
    },
    /// List branches
    Branches { repository: String },
    /// List pull requests
    Pulls {
        repository: String,
        /// open, closed or merged
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
    },
    /// Delete a repository
    Rm { repository: String },
}

impl Repositories {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let (client, printer) = (&context.client, context.printer);
        match self.verb {
            RepositoryVerb::Ls => {
                let columns = ["id", "name", "kind", "remote", "default_branch", "clone_url"];
                printer.list(&client.repositories().all().await?, &columns)?;
            }
            RepositoryVerb::Show { repository } => printer.show(&client.repository(&repository).await?)?,
            RepositoryVerb::Add { name, user, token_env, token_file, remote, connection, default_branch } => {
                let is_plain = user.is_some() || token_env.is_some() || token_file.is_some();
                if is_plain {
                    if remote.is_some() || connection.is_some() || default_branch.is_some() {
                        return Err(Failure::usage("an address says it all: leave out the other options"));
                    }
                    let place = GitPlace::of(&name, user)?;
                    let password = place.password(token_env.as_deref(), token_file.as_deref())?;
                    let made = place.add(context, password).await?;
                    if let (Some(connection), Some(remote)) = (&made.connection_id, &made.remote) {
                        drop(forge::warn_of_missing(context, connection, remote).await);
                    }
                    printer.done(&made.name, &made)?;
                    return Ok(0);
                }
                let new = new_repository(context, name, remote, connection, default_branch).await?;
                let made = client.create_repository(&new).await?;
                if let (Some(connection), Some(remote)) = (&made.connection_id, &made.remote) {
                    // A token that cannot push is better heard of now than after an agent's work.
                    drop(forge::warn_of_missing(context, connection, remote).await);
                }
                let said = if new.url.is_some() { &made.name } else { &made.id };
                printer.done(made.clone_url.as_deref().unwrap_or(said), &made)?;
            }
            RepositoryVerb::Connect { forge: _, host, name, token_file, check } => {
                let host = host.map_or(Place::github().host, |host| host.to_ascii_lowercase());
                if host.contains('/') {
                    return Err(Failure::usage(format!("'{host}' is not a host"))
                        .hint("name it alone, such as ghe.example.com"));
                }
                let place = Place { host, name };
                let token = forge::token(token_file.as_deref(), &place)?;
                let made = forge::connect(context, &place, token).await?;
                printer.done(&format!("connected {} as {}", place.host, made.name), &made)?;
                if let Some(remote) = check {
                    return forge::warn_of_missing(context, &made.id, &remote).await;
                }
            }
            RepositoryVerb::Connections => {
                let columns = ["id", "name", "kind", "base_url", "secret", "webhook_secret"];
                printer.list(&client.connections().all().await?, &columns)?;
            }
            RepositoryVerb::Disconnect { connection } => {
                let found = forge::resolve(context, &connection).await?;
                client.delete_connection(&found.id).await?;
                printer.done(&format!("deleted connection {}", found.name), &found)?;
            }
            RepositoryVerb::Available { connection, search, limit } => {
                let found = forge::only(context, connection.as_deref()).await?;
                let listed = client.reachable_repositories(&found.id, &ReachableQuery { search });
                let columns = ["remote", "private", "can_push", "archived", "default_branch", "description"];
                printer.list(&listed.page_size(100).take(limit).await?, &columns)?;
            }
            RepositoryVerb::Branches { repository } => {
                printer.list(&client.branches(&repository).all().await?, &["name", "commit", "protected"])?;
            }
            RepositoryVerb::Pulls { repository, state } => {
                let query = PullQuery { state, ..PullQuery::default() };
                let columns = ["number", "title", "state", "head", "base", "author"];
                printer.list(&client.pulls(&repository, &query).all().await?, &columns)?;
            }
            RepositoryVerb::Rm { repository } => {
                let found = client.repository(&repository).await?;
                client.delete_repository(&found.repository.id).await?;
                printer.done(&format!("deleted repository {}", found.repository.name), &found)?;
            }
        }
        Ok(0)
    }
}

async fn new_repository(
    context: &Context,
    name: String,
    remote: Option<String>,
    connection: Option<String>,
    default_branch: Option<String>,
) -> Result<NewRepository, Failure> {
    let is_address = name.contains("://") || name.starts_with("git@");
    if is_address && (remote.is_some() || default_branch.is_some()) {
        return Err(Failure::usage("an address says it all: leave out the other options"));
    }
    let connection_id = match connection {
        Some(connection) => Some(forge::resolve(context, &connection).await?.id),
        None => None,
    };
    let (name, url) = if is_address { (String::new(), Some(name)) } else { (name, None) };
    Ok(NewRepository { name, default_branch, connection_id, remote, url })
}
