//! Connections to forges: their clients, repositories and webhooks.

use std::collections::HashMap;
use std::sync::Arc;

use coffer_core::forge::{BranchName, ForgeKind, RepositoryName};
use coffer_core::sync::Mutex;
use coffer_core::{ConnectionId, RepositoryId};
use coffer_store::{
    ConnectionRow, Credential, DeliveredEvent, NewRepository, ProjectScope, RepositoryRow, StoreError,
};
use serde_json::Value;

use crate::forge::{Forge, Permissions};
use crate::github::{self, Address, Client, GitHubFigures, GitHubForge, Transport};
use crate::plain::{GitHost, Remote};
use crate::{ForgeError, Forges};
use coffer_http::breaker::Standing;

type Answer<T> = Result<T, ForgeError>;

/// The address of GitHub's own API.
pub const GITHUB: &str = "https://api.github.com";
/// Most cached clients; each knows its rate limits, ETags and tokens.
const MOST_CLIENTS: usize = 1000;
const LONGEST_DELIVERY: usize = 100;

/// The clients of used connections.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    known: Mutex<HashMap<ConnectionId, Arc<Client>>>,
    plain: Mutex<HashMap<ConnectionId, Arc<GitHost>>>,
    pub(crate) figures: Arc<GitHubFigures>,
    http: std::sync::OnceLock<coffer_http::Client>,
}

/// Why a delivery was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("connection not found, or it does not accept webhooks")]
    Unknown,
    #[error("the signature is wrong")]
    Unsigned,
    #[error("{0}")]
    Invalid(&'static str),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The outcome of a verified delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It was recorded as an event.
    Recorded,
    /// The project has no repository for it.
    Ignored,
    /// It was recorded before.
    Repeated,
}

/// The secret that signs a connection's deliveries.
#[derive(Debug)]
pub struct WebhookDoor {
    connection: ConnectionRow,
    secret: coffer_store::Secret,
}

impl Forges {
    /// Checks the address of a new connection to GitHub.
    pub fn address(&self, text: &str) -> Answer<String> {
        Address::parse(text, self.plain_http).map(|address| address.text())
    }

    /// Checks the address of a git server: its scheme, host and port.
    pub fn plain_address(&self, text: &str) -> Answer<String> {
        let address = Address::parse(text, self.plain_http)?;
        if !address.has_no_path() {
            let why =
                "is the server's address, such as https://git.example.com; the path is part of `remote`";
            return Err(ForgeError::invalid("base_url", why));
        }
        Ok(address.text())
    }

    /// A repository of a git server.
    pub(crate) fn plain(&self, connection: &ConnectionRow, path: &str) -> Answer<Remote> {
        let path = path.parse().map_err(|why: &str| ForgeError::invalid("remote", why))?;
        let Credential::Basic { user, secret } = &connection.terms.credential else {
            return Err(ForgeError::invalid("connection", "has no user and password"));
        };
        let mut known = self.clients.plain.lock();
        if let Some(host) = known.get(&connection.id) {
            return Ok(Remote { host: host.clone(), path });
        }
        if known.len() >= MOST_CLIENTS {
            known.clear();
        }
        let address = coffer_http::Address::parse(&connection.base_url)
            .map_err(|why| ForgeError::invalid("base_url", why.to_string()))?;
        let on_site = self.private_hosts.has(address.host(), address.port());
        let host = Arc::new(GitHost::new(
            address,
            self.http(),
            on_site,
            (self.store.clone(), connection.project),
            (user.clone(), secret.clone()),
        ));
        known.insert(connection.id, host.clone());
        Ok(Remote { host, path })
    }

    fn http(&self) -> coffer_http::Client {
        self.clients.http.get_or_init(|| coffer_http::Client::new(self.extra_roots.as_deref())).clone()
    }

    pub(crate) fn client(&self, connection: &ConnectionRow) -> Answer<Arc<Client>> {
        if connection.kind != ForgeKind::GitHub {
            let why = "leads to a git server without lists of repositories: name the path of one";
            return Err(ForgeError::invalid("connection", why));
        }
        let mut known = self.clients.known.lock();
        if let Some(client) = known.get(&connection.id) {
            return Ok(client.clone());
        }
        if known.len() >= MOST_CLIENTS {
            known.clear();
        }
        let http = self.http();
        let address = Address::parse(&connection.base_url, self.plain_http)?;
        let on_site = self.private_hosts.has(address.host(), address.port());
        let client = Arc::new(Client::new(
            Transport::new(address, http, on_site),
            self.store.clone(),
            connection.project,
            connection.terms.credential.clone(),
            self.clients.figures.clone(),
        ));
        known.insert(connection.id, client.clone());
        Ok(client)
    }

    pub(crate) async fn connection(&self, scope: &ProjectScope, id: ConnectionId) -> Answer<ConnectionRow> {
        let found = self.store.connection(scope, id).await?;
        found.ok_or_else(|| ForgeError::not_found("connection", id))
    }

    pub(crate) async fn github(&self, scope: &ProjectScope, row: &RepositoryRow) -> Answer<GitHubForge> {
        let (Some(connection), Some(remote)) = (row.connection, &row.remote) else {
            return Err(ForgeError::not_found("connection of repository", &row.name));
        };
        let client = self.client(&self.connection(scope, connection).await?)?;
        let remote = remote.parse().map_err(|why: &str| ForgeError::invalid("remote", why))?;
        let (default_branch, record) = (row.default_branch.clone(), Some(row.id));
        Ok(GitHubForge { client, remote, default_branch, record })
    }

    /// Registers a repository of another forge, after reading it from the forge.
    pub async fn register(
        &self,
        scope: &ProjectScope,
        name: RepositoryName,
        connection: ConnectionId,
        remote: &str,
    ) -> Answer<RepositoryRow> {
        let row = self.connection(scope, connection).await?;
        let (remote, default_branch) = match row.kind {
            ForgeKind::Git => {
                let remote = self.plain(&row, remote)?;
                let told = remote.refs(crate::Service::UploadPack).await?;
                (remote.path.to_string(), told.head.unwrap_or_else(main_branch))
            }
            ForgeKind::GitHub | ForgeKind::Local => {
                let info = self.remote(scope, connection, remote).await?.repository().await?;
                (remote.to_string(), info.default_branch)
            }
        };
        let new = NewRepository {
            id: RepositoryId::generate(),
            name: name.clone(),
            elsewhere: Some((row.kind, connection, remote)),
            default_branch,
        };
        let made = self.store.create_repository(scope, new).await;
        made.map_err(|error| ForgeError::record(error, "repository", name))
    }

    /// Whether a connection's credential suffices for a repository, and what is missing.
    pub async fn permissions(
        &self,
        scope: &ProjectScope,
        connection: ConnectionId,
        remote: &str,
    ) -> Answer<Permissions> {
        let row = self.connection(scope, connection).await?;
        match row.kind {
            ForgeKind::Git => self.plain(&row, remote)?.permissions().await,
            ForgeKind::GitHub | ForgeKind::Local => {
                self.remote(scope, connection, remote).await?.permissions().await
            }
        }
    }

    /// Drops the client of a deleted connection.
    pub fn disconnected(&self, connection: ConnectionId) {
        self.clients.known.lock().remove(&connection);
        self.clients.plain.lock().remove(&connection);
    }

    /// The most open circuit breaker of all connections to GitHub: closed if none was used yet.
    pub fn github_standing(&self) -> (&'static str, Standing) {
        let known = self.clients.known.lock();
        let worst = known.values().map(|client| client.standing()).max_by_key(|standing| *standing as u8);
        (github::GITHUB_BREAKER, worst.unwrap_or(Standing::Closed))
    }

    /// Counters over all connections.
    pub fn github_figures(&self) -> &GitHubFigures {
        &self.clients.figures
    }

    /// Finds the signing secret of a connection, before reading a delivery.
    pub async fn webhook_door(&self, connection: ConnectionId) -> Result<WebhookDoor, WebhookError> {
        let found = self.store.connection_of_any(&self.store.operator(), connection).await?;
        let connection = found.ok_or(WebhookError::Unknown)?;
        let name = connection.terms.webhook_secret.clone().ok_or(WebhookError::Unknown)?;
        let values = self.store.secret_values(connection.project).await?;
        let secret =
            values.get(&name).and_then(|secret| secret.value.clone()).ok_or(WebhookError::Unknown)?;
        Ok(WebhookDoor { connection, secret })
    }

    /// Records a delivery, once.
    pub async fn take_webhook(
        &self,
        door: &WebhookDoor,
        (delivery, event, signature): (&str, &str, &str),
        body: &[u8],
    ) -> Result<Delivery, WebhookError> {
        // First of all: do not parse an unverified body.
        if !github::is_signed(door.secret.reveal(), body, signature) {
            return Err(WebhookError::Unsigned);
        }
        let plain = |text: &str| {
            (1..=LONGEST_DELIVERY).contains(&text.len())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        if !plain(delivery) || !plain(event) {
            return Err(WebhookError::Invalid("the delivery has no valid id or event name"));
        }
        let told: Value =
            serde_json::from_slice(body).map_err(|_| WebhookError::Invalid("the delivery is not JSON"))?;
        let ours = match told["repository"]["full_name"].as_str() {
            Some(remote) => self.store.repositories_of_remote(&door.connection, remote).await?,
            None => Vec::new(),
        };
        let about = ours.first().and_then(|repository| Some((*repository, github::event_of(event, &told)?)));
        let recorded = about.is_some();
        let delivered = DeliveredEvent { delivery: delivery.into(), event: event.into(), about };
        match self.store.take_delivery(&door.connection, delivered).await? {
            false => Ok(Delivery::Repeated),
            true if recorded => Ok(Delivery::Recorded),
            true => Ok(Delivery::Ignored),
        }
    }
}

/// The default branch of a repository that is still empty.
pub(crate) fn main_branch() -> BranchName {
    "main".parse().expect("a good name")
}
