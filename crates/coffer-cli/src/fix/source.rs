//! What is to be done, and where: an issue, or a text with a repository.

use std::path::{Path, PathBuf};

use coffer_api_types::repositories::{NewRepository, Repository};
use coffer_client::Error;
use coffer_core::forge::{BadAddress, ForgeAddress};

use crate::context::Context;
use crate::failure::Failure;
use crate::forge::{self, Place};
use crate::git::{git_in, run_git, with_key};
use crate::{ask, escape, printer};

const LONGEST_TITLE: usize = 120;
/// The branch of a work tree that is on none.
const DETACHED: &str = "coffer-base";

/// The beginnings of a task.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// The issue's address.
    pub(super) issue: Option<String>,
    pub(super) title: String,
    pub(super) description: String,
    pub(super) repository: Option<String>,
    pub(super) base: Option<String>,
}

/// Where a text is to be done, as far as it was said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Where<'a> {
    pub(super) repo: Option<&'a str>,
    pub(super) dir: Option<&'a Path>,
    pub(super) base: Option<&'a str>,
}

/// What the target is.
#[derive(Debug)]
pub(super) enum Aim<'a> {
    /// An issue's address.
    Issue(&'a str),
    Text(&'a str),
}

impl<'a> Aim<'a> {
    /// Reads the target; connects to nothing.
    pub(super) fn of(context: &Context, target: &'a str, place: &Where<'_>) -> Result<Self, Failure> {
        if target.is_empty() {
            return Err(Failure::usage("the text is empty").hint("name an issue, or say what is to be done"));
        }
        if !is_issue(target, context)? {
            return Ok(Self::Text(target));
        }
        if place.repo.is_some() || place.dir.is_some() {
            return Err(
                Failure::usage("the issue's address names its repository").hint("leave out --repo and --dir")
            );
        }
        Ok(Self::Issue(target))
    }
}

impl Source {
    /// Finds the repository; registers or copies it if necessary.
    pub(super) async fn of(
        context: &Context,
        aim: Aim<'_>,
        place: &Where<'_>,
        asks: bool,
    ) -> Result<Self, Failure> {
        let text = match aim {
            Aim::Issue(url) => return Ok(Self { issue: Some(url.to_string()), ..Self::default() }),
            Aim::Text(text) => text,
        };
        let first = text.lines().next().unwrap_or_default().trim();
        let title: String = first.chars().take(LONGEST_TITLE).collect();
        let description = if title == text { String::new() } else { text.to_string() };
        let source = Self { title, description, ..Self::default() };
        match place.repo {
            Some(named) if is_address(named) => {
                let made = registered(context, named, asks).await?;
                Ok(Self { repository: Some(made.name), ..source })
            }
            Some(named) => {
                let found = context.client.repository(named).await?;
                Ok(Self { repository: Some(found.repository.name), ..source })
            }
            None => {
                let (repository, base) = here(context, place, asks).await?;
                Ok(Self { repository: Some(repository), base, ..source })
            }
        }
    }
}

fn is_address(text: &str) -> bool {
    text.contains("://") || text.starts_with("git@")
}

/// Whether the target is an issue's address; what looks like one and is none is refused.
fn is_issue(target: &str, context: &Context) -> Result<bool, Failure> {
    if target.contains(char::is_whitespace) {
        return Ok(false);
    }
    let is_numbered = |(name, number): (&str, &str)| {
        !name.is_empty() && !name.contains([':', '/']) && number.parse::<u32>().is_ok()
    };
    if target.starts_with(context.client.url()) || target.rsplit_once('#').is_some_and(is_numbered) {
        return Ok(true);
    }
    if !is_address(target) {
        return Ok(false);
    }
    let bad = |why: BadAddress| Failure::usage(format!("`{}` {why}", escape::line(target)));
    let address: ForgeAddress = target.parse().map_err(bad)?;
    match address.issue {
        Some(_) => Ok(true),
        None => Err(Failure::usage(format!("`{}` names a repository and no issue", escape::line(target)))
            .hint("say what is to be done, and name the repository with --repo")),
    }
}

async fn registered(context: &Context, url: &str, asks: bool) -> Result<Repository, Failure> {
    let new = by_url(url);
    with_connection(context, asks, async || context.client.create_repository(&new).await).await
}

fn by_url(url: &str) -> NewRepository {
    NewRepository {
        name: String::new(),
        default_branch: None,
        connection_id: None,
        remote: None,
        url: Some(url.to_string()),
    }
}

/// Asks the server; if the forge is not connected, connects it and asks again.
pub(super) async fn with_connection<T>(
    context: &Context,
    asks: bool,
    call: impl AsyncFn() -> Result<T, Error>,
) -> Result<T, Failure> {
    let error = match call().await {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    let Some(host) = unconnected(&error).filter(|_| asks) else {
        let is_unconnected = unconnected(&error).is_some();
        let failure = Failure::from(error);
        return Err(if is_unconnected {
            failure.hint(
                "`coffer repo connect github --token-file FILE`; for GitHub Enterprise with --host HOST",
            )
        } else {
            failure
        });
    };
    printer::note(&format!("{host} is not connected yet"));
    let place = Place { host, name: None };
    let token = forge::token(None, &place)?;
    let made = forge::connect(context, &place, token).await?;
    printer::note(&format!("connected {} as {}", place.host, made.name));
    Ok(call().await?)
}

/// The host that no connection leads to, if that is why a call was refused.
fn unconnected(error: &Error) -> Option<String> {
    let refusal = error.refusal().filter(|refusal| refusal.code == "not_connected")?;
    let host = refusal.details.as_ref()?.get("host")?.as_str()?;
    Some(host.to_string())
}

/// A work tree on this machine.
struct Tree {
    top: PathBuf,
    branch: Option<String>,
    origin: Option<String>,
}

impl Tree {
    fn at(directory: &Path) -> Result<Self, Failure> {
        let git = |words: &[&str]| run_git(&mut git_in(directory, words));
        let shown = directory.display();
        let top = git(&["rev-parse", "--show-toplevel"]).map_err(|_| {
            Failure::usage(format!("`{shown}` is not a git repository"))
                .hint("name the repository with --repo, or its directory with --dir")
        })?;
        git(&["rev-parse", "--verify", "HEAD"]).map_err(|_| {
            Failure::new(format!("`{shown}` has no commit yet")).hint("commit something first")
        })?;
        if git(&["status", "--porcelain"]).is_ok_and(|changes| !changes.is_empty()) {
            printer::note("warning: changes that are not committed are not part of it");
        }
        let some = |found: Result<String, Failure>| found.ok().filter(|text| !text.is_empty());
        Ok(Self {
            top: top.into(),
            branch: some(git(&["symbolic-ref", "--quiet", "--short", "HEAD"])),
            origin: some(git(&["remote", "get-url", "origin"])),
        })
    }

    /// Whether the forge has the branch, as far as git knows here.
    fn is_on_origin(&self, branch: &str) -> bool {
        let name = format!("refs/remotes/origin/{branch}");
        run_git(&mut git_in(&self.top, &["rev-parse", "--quiet", "--verify", &name])).is_ok()
    }

    /// A name for it on the server.
    fn name(&self) -> String {
        let name = self.top.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let plain: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
            .take(50)
            .collect();
        let plain = plain.trim_matches(['.', '-', '_']);
        let plain = plain.strip_suffix(".git").unwrap_or(plain);
        if plain.is_empty() { "repository".to_string() } else { plain.to_string() }
    }
}

/// The repository of a directory: on its forge if that is connected, else a copy on the server. Returns its name and the branch
/// to start from.
async fn here(context: &Context, place: &Where<'_>, asks: bool) -> Result<(String, Option<String>), Failure> {
    let tree = Tree::at(place.dir.unwrap_or(Path::new(".")))?;
    let origin = tree.origin.clone().filter(|origin| origin.parse::<ForgeAddress>().is_ok());
    if let Some(origin) = origin {
        match context.client.create_repository(&by_url(&origin)).await {
            Ok(found) => return Ok((found.name, on_forge(&tree))),
            Err(error) if unconnected(&error).is_some() => {
                let host = unconnected(&error).unwrap_or_default();
                if asks && ask::yes(&format!("Connect {host}? Without it the work is done on a copy here"))? {
                    let found = registered(context, &origin, asks).await?;
                    return Ok((found.name, on_forge(&tree)));
                }
                printer::note(&format!("{host} is not connected: working on a copy of this repository here"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let branch =
        place.base.map(str::to_string).or_else(|| tree.branch.clone()).unwrap_or_else(|| DETACHED.into());
    let repository = copy(context, &tree, &branch).await?;
    Ok((repository, Some(branch)))
}

fn on_forge(tree: &Tree) -> Option<String> {
    let branch = tree.branch.clone().filter(|branch| tree.is_on_origin(branch));
    let unpushed = run_git(&mut git_in(&tree.top, &["branch", "--remotes", "--contains", "HEAD"]));
    if unpushed.is_ok_and(|branches| branches.is_empty()) {
        printer::note("warning: commits that are not pushed are not part of it");
    }
    branch
}

/// Pushes the branch to a repository of the server's own, which is created if there is none.
async fn copy(context: &Context, tree: &Tree, branch: &str) -> Result<String, Failure> {
    let name = tree.name();
    let found = match context.client.repository(&name).await {
        Ok(found) if found.repository.kind == "local" => found.repository,
        Ok(_) => local(context, &format!("{name}-local")).await?,
        Err(error) if error.is_not_found() => local(context, &name).await?,
        Err(error) => return Err(error.into()),
    };
    let url = found.clone_url.ok_or_else(|| Failure::new("the server did not say where to push to"))?;
    let source = run_git(&mut git_in(&tree.top, &["rev-parse", "--verify", &format!("refs/heads/{branch}")]))
        .or_else(|_| run_git(&mut git_in(&tree.top, &["rev-parse", "--verify", "HEAD"])))?;
    let mut push = git_in(&tree.top, &["push", "--quiet", &url, &format!("{source}:refs/heads/{branch}")]);
    with_key(&mut push, context);
    run_git(&mut push).map_err(|failure| {
        failure.hint(format!(
            "`{branch}` of repository {} on the server has other commits, or is protected: fetch them from {url}, or use \
             another branch",
            found.name
        ))
    })?;
    Ok(found.name)
}

async fn local(context: &Context, name: &str) -> Result<Repository, Failure> {
    match context.client.repository(name).await {
        Ok(found) if found.repository.kind == "local" => return Ok(found.repository),
        Ok(_) => return Err(Failure::new(format!("repository '{name}' is not one of this server"))),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    let new = NewRepository { name: name.to_string(), url: None, ..by_url("") };
    let made = context.client.create_repository(&new).await?;
    printer::note(&format!("created repository {}", made.name));
    Ok(made)
}
