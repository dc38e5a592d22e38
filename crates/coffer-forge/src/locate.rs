//! Finds repositories by their addresses, and lists those that a connection can reach.

use coffer_core::forge::{BranchName, ForgeAddress, ForgeKind, RepositoryName};
use coffer_core::{ConnectionId, RepositoryId};
use coffer_store::{ConnectionRow, NewRepository, ProjectScope, RepositoryRow};

use crate::forge::{Forge, Listed, Part, RemoteRepository};
use crate::github::{Address, GitHubForge};
use crate::serve::Service;
use crate::{ForgeError, Forges};

type Answer<T> = Result<T, ForgeError>;

/// The most connections that a project can have.
const MOST_CONNECTIONS: u32 = 100;
/// How many names are tried for a repository whose own is taken.
const NAMES: u32 = 20;
/// Items of a page of the forge, and the most pages that one request of ours reads.
const PAGE: usize = 100;
const MOST_PAGES: u32 = 10;

impl Forges {
    /// The project's repository at this address, and whether it is new: it is registered if the project does not have it
    /// yet. Two who ask at once get the same one.
    pub async fn locate(
        &self,
        scope: &ProjectScope,
        address: &ForgeAddress,
    ) -> Answer<(RepositoryRow, bool)> {
        let mut connections = self.store.connections(scope, None, MOST_CONNECTIONS).await?;
        connections.retain(|connection| self.leads_to(connection, &address.host));
        for connection in &connections {
            if connection.kind == ForgeKind::Git {
                if let Some(row) = self.known_plain(scope, connection, address).await? {
                    return Ok((row, false));
                }
                continue;
            }
            let known = self.store.repositories_of_remote(connection, &address.repository).await?;
            if let Some(known) = known.first() {
                let found = self.store.repository(scope, &known.to_string()).await?;
                let gone = || ForgeError::not_found("repository", &address.repository);
                return found.map(|row| (row, false)).ok_or_else(gone);
            }
        }
        let mut refusal = ForgeError::NotConnected { host: address.host.clone() };
        for connection in &connections {
            let adopted = match connection.kind {
                ForgeKind::Git => self.adopt_plain(scope, connection, address).await,
                ForgeKind::GitHub | ForgeKind::Local => self.adopt(scope, connection.id, address).await,
            };
            match adopted {
                // Another connection to the same forge may see more.
                Err(
                    error @ (ForgeError::NotFound { .. }
                    | ForgeError::PermissionMissing { .. }
                    | ForgeError::TokenExpired
                    | ForgeError::Credential { .. }),
                ) => refusal = error,
                found => return found,
            }
        }
        Err(refusal)
    }

    /// Whether pages and git of a host belong to the forge of this connection.
    fn leads_to(&self, connection: &ConnectionRow, host: &str) -> bool {
        let Ok(address) = Address::parse(&connection.base_url, self.plain_http) else { return false };
        address.web_host() == host
    }

    async fn adopt(
        &self,
        scope: &ProjectScope,
        connection: ConnectionId,
        address: &ForgeAddress,
    ) -> Answer<(RepositoryRow, bool)> {
        let forge = self.remote(scope, connection, &address.repository).await?;
        let info = forge.repository().await?;
        let elsewhere = (ForgeKind::GitHub, connection, forge.remote.to_string());
        self.record(scope, address, elsewhere, info.default_branch).await
    }

    /// A repository of a git server that the project has, by either form of its address. Paths there know capitals.
    async fn known_plain(
        &self,
        scope: &ProjectScope,
        connection: &ConnectionRow,
        address: &ForgeAddress,
    ) -> Answer<Option<RepositoryRow>> {
        for path in paths_of(address) {
            for id in self.store.repositories_of_remote(connection, &path).await? {
                let row = self.store.repository(scope, &id.to_string()).await?;
                if let Some(row) = row.filter(|row| row.remote.as_ref() == Some(&path)) {
                    return Ok(Some(row));
                }
            }
        }
        Ok(None)
    }

    async fn adopt_plain(
        &self,
        scope: &ProjectScope,
        connection: &ConnectionRow,
        address: &ForgeAddress,
    ) -> Answer<(RepositoryRow, bool)> {
        let mut refusal = ForgeError::not_found("repository", &address.repository);
        for path in paths_of(address) {
            let remote = self.plain(connection, &path)?;
            match remote.refs(Service::UploadPack).await {
                Ok(told) => {
                    let branch = told.head.unwrap_or_else(crate::connect::main_branch);
                    let elsewhere = (ForgeKind::Git, connection.id, path);
                    return self.record(scope, address, elsewhere, branch).await;
                }
                Err(error @ (ForgeError::NotFound { .. } | ForgeError::Invalid { .. })) => refusal = error,
                Err(error) => return Err(error),
            }
        }
        Err(refusal)
    }

    async fn record(
        &self,
        scope: &ProjectScope,
        address: &ForgeAddress,
        elsewhere: (ForgeKind, ConnectionId, String),
        default_branch: BranchName,
    ) -> Answer<(RepositoryRow, bool)> {
        for name in names_of(address) {
            let id = RepositoryId::generate();
            let new = NewRepository {
                id,
                name: name.clone(),
                elsewhere: Some(elsewhere.clone()),
                default_branch: default_branch.clone(),
            };
            match self.store.adopt_repository(scope, new).await {
                Err(coffer_store::ForgeRecordError::Taken { .. }) => {}
                made => {
                    let made = made.map_err(|error| ForgeError::record(error, "repository", name))?;
                    let is_new = made.id == id;
                    return Ok((made, is_new));
                }
            }
        }
        Err(ForgeError::conflict(format!(
            "the names for {} are taken: register it by hand, with a name of your choice",
            address.repository
        )))
    }

    /// A repository on the forge of a connection, that need not be registered.
    pub(crate) async fn remote(
        &self,
        scope: &ProjectScope,
        connection: ConnectionId,
        remote: &str,
    ) -> Answer<GitHubForge> {
        let client = self.client(&self.connection(scope, connection).await?)?;
        let remote = remote.parse().map_err(|why: &str| ForgeError::invalid("remote", why))?;
        // A placeholder: the forge says which.
        let default_branch = "main".parse().map_err(|_| ForgeError::invalid("remote", "has no branch"))?;
        Ok(GitHubForge { client, remote, default_branch, record: None })
    }

    /// The repositories that a connection's credential can see, those that were pushed to last first. `search` selects
    /// by a part of the name or the description.
    pub async fn reachable(
        &self,
        scope: &ProjectScope,
        connection: ConnectionId,
        search: &str,
        part: Part,
    ) -> Answer<Listed<RemoteRepository>> {
        let client = self.client(&self.connection(scope, connection).await?)?;
        let bad = || ForgeError::invalid("cursor", "is not a cursor of this server");
        let (mut page, mut skip) = match part.after.as_deref() {
            None => (1, 0),
            Some(text) => {
                let (page, skip) = text.split_once('.').ok_or_else(bad)?;
                (page.parse::<u32>().map_err(|_| bad())?, skip.parse::<usize>().map_err(|_| bad())?)
            }
        };
        let search = search.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&search);
        let fits = |one: &RemoteRepository| has(&one.remote) || one.description.as_deref().is_some_and(has);
        let limit = usize::try_from(part.limit.max(1)).unwrap_or(PAGE);
        let mut items = Vec::new();
        for _ in 0..MOST_PAGES {
            let told = client.repositories(page, PAGE).await?;
            for (at, one) in told.iter().enumerate().skip(skip) {
                let Some(one) = one.as_ref().filter(|one| fits(one)) else { continue };
                if items.len() == limit {
                    return Ok(Listed { items, next: Some(format!("{page}.{at}")) });
                }
                items.push(one.clone());
            }
            if told.len() < PAGE {
                return Ok(Listed { items, next: None });
            }
            (page, skip) = (page + 1, 0);
        }
        Ok(Listed { items, next: Some(format!("{page}.0")) })
    }
}

/// The paths that an address may mean on a git server: most take both, some only the one with `.git`.
fn paths_of(address: &ForgeAddress) -> [String; 2] {
    [format!("{}.git", address.repository), address.repository.clone()]
}

/// Names for a repository here, the best first: its own, with its owner, and with a number.
fn names_of(address: &ForgeAddress) -> impl Iterator<Item = RepositoryName> + '_ {
    let own = address.name().to_string();
    let whole = address.repository.replace('/', "-");
    let numbered = whole.clone();
    let more = (2..=NAMES).map(move |number| format!("{numbered}-{number}"));
    [own, whole].into_iter().chain(more).filter_map(|name| {
        let plain: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
            .take(60)
            .collect();
        plain.trim_matches(['.', '-', '_']).parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_has_others() {
        let address: ForgeAddress = "https://github.com/octo/.app".parse().unwrap();
        let names: Vec<String> = names_of(&address).take(3).map(|name| name.to_string()).collect();
        assert_eq!(names, ["app", "octo-.app", "octo-.app-2"]);
    }
}
