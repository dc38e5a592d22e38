//! Connections to forges: GitHub in one step, with a token.

use std::io::Read as _;
use std::path::Path;

use coffer_api_types::connections::{Connection, NewConnection, ReachableQuery};
use coffer_api_types::repositories::{NewRepository, Repository};
use coffer_api_types::secrets::NewValue;
use coffer_core::forge::ForgeKind;

use crate::context::{Context, pick};
use crate::failure::{Failure, Outcome};
use crate::{escape, login, printer};

const GITHUB: &str = "github.com";
const GITHUB_API: &str = "https://api.github.com";
const LONGEST_TOKEN: u64 = 16 * 1024;

/// What a token must be allowed to do, for people who make one.
pub(crate) const NEEDS: &str = "a fine-grained token with write access to contents, pull requests and issues";

/// A forge to connect to.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The host of its pages.
    pub(crate) host: String,
    pub(crate) name: Option<String>,
}

impl Place {
    pub(crate) fn github() -> Self {
        Self { host: GITHUB.into(), name: None }
    }

    /// The address of its API, if it is not GitHub's own.
    fn base_url(&self) -> Option<String> {
        (self.host != GITHUB).then(|| match self.host.ends_with(".ghe.com") {
            true => format!("https://api.{}", self.host),
            false => format!("https://{}/api/v3", self.host),
        })
    }

    /// The hosts that get the token: the API's and git's.
    fn hosts(&self) -> Vec<String> {
        let bare = self.host.split(':').next().unwrap_or(&self.host).to_string();
        match self.host.as_str() {
            GITHUB => vec!["api.github.com".into(), GITHUB.into()],
            host if host.ends_with(".ghe.com") => vec![format!("api.{bare}"), bare],
            _ => vec![bare],
        }
    }

    fn name(&self) -> String {
        let usual = if self.host == GITHUB { "github".to_string() } else { self.host.replace(':', "-") };
        self.name.clone().unwrap_or(usual)
    }
}

/// A token from a file, or as every secret is read: from a pipe or a prompt.
pub(crate) fn token(file: Option<&Path>, place: &Place) -> Result<String, Failure> {
    let Some(file) = file else {
        return login::read_secret(&format!("Token for {} ({NEEDS})", place.host));
    };
    let unreadable = |error| Failure::new(format!("could not read `{}`: {error}", file.display()));
    let mut text = String::new();
    std::fs::File::open(file)
        .and_then(|file| file.take(LONGEST_TOKEN).read_to_string(&mut text))
        .map_err(unreadable)?;
    match text.trim() {
        "" => Err(Failure::usage(format!("`{}` is empty", file.display()))),
        token => Ok(token.to_string()),
    }
}

/// A repository on any git server, with who asks for it.
#[derive(Debug, Clone)]
pub(crate) struct GitPlace {
    /// The server's address: scheme, host and port.
    origin: String,
    host: String,
    url: String,
    user: String,
}

impl GitPlace {
    /// With a token, most servers take any user.
    pub(crate) fn of(url: &str, user: Option<String>) -> Result<Self, Failure> {
        let wrong = |why: &str| {
            Failure::usage(why).hint("name it as `git clone` would: https://git.example.com/team/app.git")
        };
        let Some(rest) = url.strip_prefix("https://") else {
            return Err(wrong("the address of a repository on a git server begins with https://"));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(wrong("the address must not have a user or password: use --user and --token-env"));
        }
        if authority.is_empty() || path.trim_matches('/').is_empty() {
            return Err(wrong("the address names no repository"));
        }
        let authority = authority.to_ascii_lowercase();
        let authority = authority.strip_suffix(":443").unwrap_or(&authority);
        Ok(Self {
            origin: format!("https://{authority}"),
            host: authority.to_string(),
            url: url.to_string(),
            user: user.unwrap_or_else(|| "git".to_string()),
        })
    }

    /// From the environment, a file, or as every secret is read.
    pub(crate) fn password(&self, variable: Option<&str>, file: Option<&Path>) -> Result<String, Failure> {
        if let Some(variable) = variable {
            return match std::env::var(variable) {
                Ok(value) if !value.trim().is_empty() => Ok(value.trim().to_string()),
                _ => Err(Failure::usage(format!("`{variable}` is not set, or empty"))),
            };
        }
        if let Some(file) = file {
            return token(Some(file), &Place { host: self.host.clone(), name: None });
        }
        login::read_secret(&format!("Token or password of {} for {}", self.user, self.host))
    }

    /// Stores the password and connects the project to the server, or gives its connection another password.
    async fn connect(&self, context: &Context, password: String) -> Result<(Connection, bool), Failure> {
        let client = &context.client;
        let all = client.connections().all().await?;
        let bare = self.host.split(':').next().unwrap_or(&self.host).to_string();
        let value = NewValue { value: password, hosts: Some(Some(vec![bare])), plain_http: None };
        let known = all.iter().find(|one| {
            one.base_url == self.origin && one.kind == "git" && one.user.as_ref() == Some(&self.user)
        });
        if let Some(known) = known {
            client.set_secret(&known.secret, &value).await?;
            return Ok((known.clone(), false));
        }
        let plain = self.host.replace([':', '[', ']'], "-");
        let mut name = plain.clone();
        if all.iter().any(|one| one.name == name) {
            let user = self.user.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
            name = format!("{plain}-{user}");
        }
        let secret = format!("{name}-token");
        client.set_secret(&secret, &value).await?;
        let new = NewConnection {
            name,
            kind: ForgeKind::Git,
            base_url: Some(self.origin.clone()),
            secret: secret.clone(),
            user: Some(self.user.clone()),
            app: None,
            webhook_secret: None,
        };
        match client.create_connection(&new).await {
            Ok(made) => Ok((made, true)),
            Err(error) => {
                drop(client.delete_secret(&secret).await);
                Err(error.into())
            }
        }
    }

    /// Connects the project and registers the repository. A new connection that the server does not accept is removed again.
    pub(crate) async fn add(&self, context: &Context, password: String) -> Result<Repository, Failure> {
        let client = &context.client;
        let (connection, is_new) = self.connect(context, password).await?;
        match client.create_repository(&self.repository(&connection.id)).await {
            Ok(made) => Ok(made),
            Err(error) => {
                if is_new {
                    drop(client.delete_connection(&connection.id).await);
                    drop(client.delete_secret(&connection.secret).await);
                }
                let refused = error.code() == Some("token_expired");
                let failure = Failure::from(error);
                Err(if refused {
                    failure.hint(format!("{} did not accept this user and token", self.origin))
                } else {
                    failure
                })
            }
        }
    }

    /// By its address, so that the server finds the one that the project may have; short paths are named in full.
    fn repository(&self, connection: &str) -> NewRepository {
        let path = self.url.strip_prefix("https://").and_then(|rest| rest.split_once('/'));
        let path = path.map_or("", |(_, path)| path).trim_matches('/');
        let is_short = !path.contains('/');
        let name = path.strip_suffix(".git").unwrap_or(path);
        NewRepository {
            name: if is_short { name.to_string() } else { String::new() },
            default_branch: None,
            connection_id: is_short.then(|| connection.to_string()),
            remote: is_short.then(|| path.to_string()),
            url: (!is_short).then(|| self.url.clone()),
        }
    }
}

/// Stores the token and connects the project, or gives an existing connection of that name another token. A new connection
/// whose token the forge does not accept is removed again.
pub(crate) async fn connect(context: &Context, place: &Place, token: String) -> Result<Connection, Failure> {
    let client = &context.client;
    let name = place.name();
    let all = client.connections().all().await?;
    if let Some(known) = all.iter().find(|connection| connection.name == name) {
        let leads_to = place.base_url().unwrap_or_else(|| GITHUB_API.to_string());
        if known.base_url != leads_to {
            let message = format!("connection '{name}' leads to {}, not to {leads_to}", known.base_url);
            return Err(Failure::usage(message).hint("choose another name: --name NAME"));
        }
        let hosts = Some(Some(place.hosts()));
        client.set_secret(&known.secret, &NewValue { value: token, hosts, plain_http: None }).await?;
        check(context, known).await?;
        return Ok(known.clone());
    }
    let secret = format!("{name}-token");
    let hosts = Some(Some(place.hosts()));
    client.set_secret(&secret, &NewValue { value: token, hosts, plain_http: None }).await?;
    let new = NewConnection {
        name,
        kind: ForgeKind::GitHub,
        base_url: place.base_url(),
        secret: secret.clone(),
        user: None,
        app: None,
        webhook_secret: None,
    };
    let made = match client.create_connection(&new).await {
        Ok(made) => made,
        Err(error) => {
            drop(client.delete_secret(&secret).await);
            return Err(error.into());
        }
    };
    if let Err(failure) = check(context, &made).await {
        drop(client.delete_connection(&made.id).await);
        drop(client.delete_secret(&secret).await);
        return Err(failure);
    }
    Ok(made)
}

/// Whether the forge accepts the token.
async fn check(context: &Context, connection: &Connection) -> Result<(), Failure> {
    let listed = context.client.reachable_repositories(&connection.id, &ReachableQuery::default());
    match listed.page_size(1).next().await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some("token_expired") => {
            Err(Failure::from(error).hint(format!("give it {NEEDS}, one that has not expired")))
        }
        Err(error) => Err(error.into()),
    }
}

/// The connection by its id or name.
pub(crate) async fn resolve(context: &Context, text: &str) -> Result<Connection, Failure> {
    let all = context.client.connections().all().await?;
    let found = pick(
        &all,
        "connection",
        "repo connections",
        text,
        |one| one.id.as_str(),
        |one| Some(one.name.as_str()),
    )?;
    Ok(found.clone())
}

/// The connection that is meant if none is named: the only one.
pub(crate) async fn only(context: &Context, named: Option<&str>) -> Result<Connection, Failure> {
    if let Some(named) = named {
        return resolve(context, named).await;
    }
    let mut all = context.client.connections().all().await?;
    match all.len() {
        1 => Ok(all.remove(0)),
        0 => {
            Err(Failure::new("the project has no connection to a forge").hint("`coffer repo connect github`"))
        }
        several => {
            let names: Vec<String> = all.iter().map(|one| escape::line(&one.name)).collect();
            Err(Failure::usage(format!("the project has {several} connections: name one of them"))
                .hint(format!("one of {}", names.join(", "))))
        }
    }
}

/// Tells what a credential lacks for work on a repository.
pub(crate) async fn warn_of_missing(context: &Context, connection: &str, remote: &str) -> Outcome {
    let told = context.client.connection_permissions(connection, remote).await?;
    for one in &told.missing {
        printer::note(&format!("warning: the token lacks {}, needed to {}", one.scope, one.needed_to));
    }
    Ok(u8::from(!told.sufficient))
}
