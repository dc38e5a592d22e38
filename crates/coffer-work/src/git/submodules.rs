//! Submodules: repositories within a repository, each fetched separately.
//!
//! A submodule that is a repository of the project goes through the gate, whatever its address; others are
//! fetched from their own address, if the sandbox's network allows it.

use std::collections::BTreeMap;
use std::time::Duration;

use coffer_core::forge::ForgeKind;
use coffer_core::network::GATE_NAME;
use coffer_store::{GitRemote, RepositoryRow};

use super::GitError;
use super::{Git, Large, Run, Session, gate_url};

const UPDATE_WITHIN: Duration = Duration::from_secs(600);
/// Most submodules of a repository, nested ones included.
const MOST_MODULES: usize = 32;
const MOST_REPOSITORIES: u32 = 1000;
const LONGEST_WORD: usize = 1024;

/// How to treat submodules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submodules {
    Leave,
    /// All are required. Those of the project must already be in the sandbox.
    All,
    /// Those that can be fetched; the project's own are added to the sandbox.
    Reachable,
}

/// A submodule, as its repository describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Module {
    name: String,
    path: String,
    url: String,
}

/// The repository that an address names, as far as it can be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Meant {
    /// A local one, by name.
    Local(String),
    /// The one with this name at the gate.
    AtGate(String),
    /// `owner/name` of the same connection.
    Beside(String),
    /// `owner/name` on a host.
    On { host: String, name: String },
}

impl Git {
    /// Fetches submodules into a work tree. Returns notes about missing ones, if that is not a failure.
    pub(super) async fn bring_submodules(
        &self,
        session: &Session,
        remote: &GitRemote,
        row: &RepositoryRow,
        which: Submodules,
    ) -> Result<Vec<String>, GitError> {
        let (mut notes, mut count) = (Vec::new(), 0);
        let mut left = vec![(remote.path.clone(), Some(row.clone()))];
        while let Some((path, owner)) = left.pop() {
            let at = GitRemote { path, ..remote.clone() };
            for module in self.modules(session, &at).await? {
                count += 1;
                if count > MOST_MODULES {
                    notes.push(format!(
                        "there are more than {MOST_MODULES} submodules; the others were not fetched"
                    ));
                    return Ok(notes);
                }
                let own = self.own_module(session, owner.as_ref(), &module.url).await?;
                let inner = GitRemote { path: format!("{}/{}", at.path, module.path), ..at.clone() };
                match self.bring_module(session, &at, &inner, &module, own.as_ref(), which).await {
                    Ok(note) => {
                        notes.extend(note.map(|note| format!("submodule `{}`: {note}", module.path)));
                        left.push((inner.path, own));
                    }
                    Err(error) if which == Submodules::Reachable => {
                        let why = format!("submodule `{}` is missing: {}", module.path, error);
                        notes.push(self.note(session, &why));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(notes)
    }

    /// The submodules of the checked-out commit.
    async fn modules(&self, session: &Session, at: &GitRemote) -> Result<Vec<Module>, GitError> {
        let keys = r"^submodule\..*\.(path|url)$";
        let words = ["config", "--blob", "HEAD:.gitmodules", "--null", "--get-regexp", keys];
        let told = self.git_at(session, at, &words, Run::default()).await?;
        Ok(if told.succeeded() { read(&told.stdout) } else { Vec::new() })
    }

    async fn bring_module(
        &self,
        session: &Session,
        at: &GitRemote,
        inner: &GitRemote,
        module: &Module,
        own: Option<&RepositoryRow>,
        which: Submodules,
    ) -> Result<Option<String>, GitError> {
        let words = ["submodule", "--quiet", "init", "--", &module.path];
        self.git_well(session, at, "initialise a submodule", &words, Run::default()).await?;
        if let Some(own) = own
            && self.let_in(session, inner, own, which).await?
        {
            let (key, url) = (format!("submodule.{}.url", module.name), gate_url(&own.name.to_string()));
            let words = ["config", "--local", &key, &url];
            self.git_well(session, at, "set up a submodule", &words, Run::default()).await?;
        }
        let words = ["submodule", "--quiet", "update", "--", &module.path];
        let run = Run { large: Large::Unknown, ..Run::within(UPDATE_WITHIN) };
        self.git_well(session, at, "clone a submodule", &words, run).await?;
        self.bring_large(session, inner).await
    }

    /// Whether the sandbox has a repository, or gets it now.
    async fn let_in(
        &self,
        session: &Session,
        inner: &GitRemote,
        own: &RepositoryRow,
        which: Submodules,
    ) -> Result<bool, GitError> {
        let remotes = self.store.git_remotes(&session.scope, session.record.id).await;
        let remotes = remotes?;
        if remotes.iter().any(|remote| remote.repository == own.id) {
            return Ok(true);
        }
        if which != Submodules::Reachable {
            return Ok(false);
        }
        let slug = own.name.to_string();
        let remote = GitRemote { slug: slug.clone(), repository: own.id, ..inner.clone() };
        let put = self.store.put_git_remote(&session.scope, remote).await;
        put?;
        let _turn = session.record.git.turn.lock().await;
        self.open_gate(session, &slug, None).await?;
        Ok(true)
    }

    /// The repository of the project that an address names.
    async fn own_module(
        &self,
        session: &Session,
        owner: Option<&RepositoryRow>,
        url: &str,
    ) -> Result<Option<RepositoryRow>, GitError> {
        let Some(meant) = meant(owner, &session.record.project.to_string(), url) else { return Ok(None) };
        let known = self.store.repositories(&session.scope, None, MOST_REPOSITORIES).await;
        for row in known? {
            let remote = |name: &str| row.remote.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(name));
            let is_meant = match &meant {
                Meant::Local(name) => row.kind == ForgeKind::Local && row.name.to_string() == *name,
                Meant::AtGate(name) => row.name.to_string() == *name,
                Meant::Beside(name) => {
                    owner.is_some_and(|owner| owner.connection == row.connection) && remote(name)
                }
                Meant::On { host, name } => remote(name) && self.is_on(session, &row, host).await,
            };
            if is_meant {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// Whether a repository is on this host.
    async fn is_on(&self, session: &Session, row: &RepositoryRow, host: &str) -> bool {
        let Ok(forge) = self.forges.open(&session.scope, row, &session.actor).await else { return false };
        let upstream = forge.upstream(coffer_forge::GitAccess::Fetch, UPDATE_WITHIN).await;
        upstream.is_ok_and(|upstream| upstream.url.split('/').nth(2) == Some(host))
    }
}

/// Parses the output of `git config --null --get-regexp`: a key, a newline, a value, a NUL. The repository
/// controls it; entries that could mean something else to git or to a person are skipped.
fn read(printed: &[u8]) -> Vec<Module> {
    let mut modules: BTreeMap<String, Module> = BTreeMap::new();
    for entry in String::from_utf8_lossy(printed).split('\0') {
        let Some((key, value)) = entry.split_once('\n') else { continue };
        let Some((name, key)) = key.strip_prefix("submodule.").and_then(|rest| rest.rsplit_once('.')) else {
            continue;
        };
        let module = modules.entry(name.to_string()).or_default();
        module.name = name.to_string();
        match key {
            "path" => module.path = value.to_string(),
            "url" => module.url = value.to_string(),
            _ => {}
        }
    }
    let word = |text: &str| (1..=LONGEST_WORD).contains(&text.len()) && !text.contains(char::is_control);
    let inside =
        |path: &str| path.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.starts_with('-');
    let good = |module: &Module| {
        word(&module.name) && word(&module.path) && word(&module.url) && inside(&module.path)
    };
    modules.into_values().filter(good).collect()
}

/// The repository that an address names, relative to the repository that has it as a submodule.
fn meant(owner: Option<&RepositoryRow>, project: &str, url: &str) -> Option<Meant> {
    let url = url.trim_end_matches('/');
    let url = url.strip_suffix(".git").unwrap_or(url);
    if url.starts_with("./") || url.starts_with("../") {
        let owner = owner?;
        let from = owner.remote.clone().unwrap_or_else(|| owner.name.to_string());
        let mut parts: Vec<&str> = from.split('/').collect();
        for part in url.split('/') {
            match part {
                "." => {}
                ".." => {
                    parts.pop()?;
                }
                part => parts.push(part),
            }
        }
        return match (owner.kind, &parts[..]) {
            (ForgeKind::Local, [name]) => Some(Meant::Local((*name).to_string())),
            (ForgeKind::GitHub, [owner, name]) => Some(Meant::Beside(format!("{owner}/{name}"))),
            _ => None,
        };
    }
    let (host, path) = match url.split_once("://") {
        Some(("https" | "http" | "ssh", rest)) => rest.split_once('/')?,
        Some(_) => return None,
        None => url.split_once(':')?,
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host).to_ascii_lowercase();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match &parts[..] {
        [name] if host == GATE_NAME => Some(Meant::AtGate((*name).to_string())),
        // The form of this server's own clone URLs.
        ["git", of, name] if *of == project => Some(Meant::Local((*name).to_string())),
        [owner, name] => Some(Meant::On { host, name: format!("{owner}/{name}") }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use coffer_core::{ConnectionId, ProjectId, RepositoryId};

    use super::*;

    fn row(name: &str, remote: Option<&str>) -> RepositoryRow {
        RepositoryRow {
            id: RepositoryId::generate(),
            project: ProjectId::generate(),
            name: name.parse().unwrap(),
            kind: if remote.is_some() { ForgeKind::GitHub } else { ForgeKind::Local },
            connection: remote.map(|_| ConnectionId::generate()),
            remote: remote.map(str::to_string),
            default_branch: "main".parse().unwrap(),
            installation: None,
            created_ms: 0,
        }
    }

    #[test]
    fn addresses_mean_repositories() {
        let (local, github) = (row("app", None), row("app", Some("octo/App")));
        let on = |host: &str| Some(Meant::On { host: host.into(), name: "octo/lib".into() });
        for (owner, url, found) in [
            (&local, "../lib.git", Some(Meant::Local("lib".into()))),
            (&local, "../lib/", Some(Meant::Local("lib".into()))),
            (&local, "../../lib.git", None),
            (&local, "./lib", None),
            (&github, "../lib.git", Some(Meant::Beside("octo/lib".into()))),
            (&github, "../../other/lib", Some(Meant::Beside("other/lib".into()))),
            (&github, "../../../lib", None),
            (&local, "https://github.com/octo/lib", on("github.com")),
            (&local, "https://GHE.example.com:8443/octo/lib.git", on("ghe.example.com:8443")),
            (&local, "git@github.com:octo/lib.git", on("github.com")),
            (&local, "ssh://git@github.com/octo/lib.git", on("github.com")),
            (&local, "http://git.coffer.internal/lib.git", Some(Meant::AtGate("lib".into()))),
            (&local, "http://any:key@host:3000/git/p1/lib.git", Some(Meant::Local("lib".into()))),
            (&local, "http://host:3000/git/p2/lib.git", None),
            (&local, "file:///srv/lib.git", None),
            (&local, "/srv/lib.git", None),
            (&local, "ext::sh -c evil", None),
        ] {
            assert_eq!(meant(Some(owner), "p1", url), found, "{url}");
        }
        assert_eq!(meant(None, "p1", "../lib.git"), None);
    }

    #[test]
    fn descriptions_are_read_and_what_is_hostile_is_passed_over() {
        let entry = |key: &str, value: &str| format!("submodule.{key}\n{value}\0");
        let printed = [
            entry("a.b.path", "vendor/lib"),
            entry("a.b.url", "../lib.git"),
            entry("up.path", "../../etc"),
            entry("up.url", "x"),
            entry("option.path", "-x"),
            entry("option.url", "x"),
            entry("half.path", "half"),
            entry("escape.path", "a\u{1b}[31m"),
            entry("escape.url", "x"),
            "rubbish".to_string(),
        ];
        let expected = Module { name: "a.b".into(), path: "vendor/lib".into(), url: "../lib.git".into() };
        assert_eq!(read(printed.concat().as_bytes()), [expected]);
    }
}
