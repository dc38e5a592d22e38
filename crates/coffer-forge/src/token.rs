//! Connects a project to GitHub with the token of the settings.

use coffer_core::ProjectId;
use coffer_core::forge::ForgeKind;
use coffer_core::network::NamePattern;
use coffer_store::{
    ConnectionRow, ConnectionTerms, Credential, ForgeRecordError, NewConnection, Secret, SecretError,
    SecretName, Store, StoreError,
};

use crate::connect::GITHUB;

const CONNECTION: &str = "github";
/// A name that users will not choose by accident.
const SECRET: &str = "coffer.github-token";
/// The token is only sent in headers to these hosts, so that no process in a sandbox can read it.
const HOSTS: [&str; 2] = ["api.github.com", "github.com"];
/// The most connections that a project can have.
const MOST_CONNECTIONS: u32 = 100;

/// Why a token is not used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("could not store GITHUB_TOKEN")]
    Secret(#[source] SecretError),
    #[error("could not connect the project to GitHub")]
    Connection(#[source] ForgeRecordError),
}

/// Connects the project to GitHub with `token`, or replaces the token of that connection. Leaves a project
/// alone that has another connection.
pub async fn connect_by_token(store: &Store, project: ProjectId, token: &str) -> Result<(), TokenError> {
    let scope = store.operator().acting_for(project, None);
    let connections = store.connections(&scope, None, MOST_CONNECTIONS).await?;
    let is_ours = |row: &ConnectionRow| row.terms.credential == Credential::Token { secret: SECRET.into() };
    let connected = connections.iter().any(is_ours);
    let is_in_the_way = |row: &&ConnectionRow| row.base_url == GITHUB || row.name == CONNECTION;
    if !connected && let Some(other) = connections.iter().find(is_in_the_way) {
        tracing::warn!("GITHUB_TOKEN is not used: the project has the connection '{}'", other.name);
        return Ok(());
    }
    let value = Secret::new(token);
    let known = store.secret_values(project).await?;
    if known.get(SECRET).and_then(|secret| secret.value.as_ref()) != Some(&value) {
        let name: SecretName = SECRET.parse().expect("a good name");
        let hosts = HOSTS.map(|host| NamePattern::parse(host).expect("a good name")).to_vec();
        store.put_secret(&scope, &name, &value, Some(hosts)).await.map_err(TokenError::Secret)?;
    }
    if connected {
        return Ok(());
    }
    let terms =
        ConnectionTerms { credential: Credential::Token { secret: SECRET.into() }, webhook_secret: None };
    let new =
        NewConnection { name: CONNECTION.into(), kind: ForgeKind::GitHub, base_url: GITHUB.into(), terms };
    match store.create_connection(&scope, new).await {
        // Created by another server on the same database, with a token from its own settings.
        Err(ForgeRecordError::Taken { .. }) => Ok(()),
        made => made.map(drop).map_err(TokenError::Connection),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_store::{KeySource, MasterKey};

    struct World {
        store: Store,
        project: ProjectId,
        _home: tempfile::TempDir,
    }

    impl World {
        async fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let url = format!("sqlite:{}", home.path().join("db").display());
            let keys = KeySource::Given { current: MasterKey::generate(), previous: Vec::new() };
            let store = Store::open(&url, keys).await.unwrap();
            let project = store.ensure_default_project(&store.operator()).await.unwrap();
            Self { store, project, _home: home }
        }

        /// Names, addresses and secrets of the connections, and how often the token was put in.
        async fn state(&self) -> (Vec<(String, String)>, Option<(String, i64)>) {
            let scope = self.store.operator().acting_for(self.project, None);
            let connections = self.store.connections(&scope, None, 100).await.unwrap();
            let values = self.store.read_secrets(self.project).await.unwrap();
            let secret = values.get(SECRET);
            (
                connections.into_iter().map(|row| (row.name, row.base_url)).collect(),
                secret.map(|secret| {
                    assert!(secret.hosts.is_some(), "it is for GitHub alone");
                    (secret.value.as_ref().unwrap().reveal().to_string(), secret.version)
                }),
            )
        }

        async fn connect_by_hand(&self, name: &str, base_url: &str) {
            let scope = self.store.operator().acting_for(self.project, None);
            let credential = Credential::Token { secret: "own".into() };
            let terms = ConnectionTerms { credential, webhook_secret: None };
            let new = NewConnection {
                name: name.into(),
                kind: ForgeKind::GitHub,
                base_url: base_url.into(),
                terms,
            };
            self.store.create_connection(&scope, new).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_token_connects_once_and_can_be_changed() {
        let world = World::new().await;
        let connected = vec![("github".to_string(), GITHUB.to_string())];
        for (token, version) in [("ghp_one", 1), ("ghp_one", 1), ("ghp_two", 2)] {
            connect_by_token(&world.store, world.project, token).await.unwrap();
            assert_eq!(world.state().await, (connected.clone(), Some((token.to_string(), version))));
        }
    }

    #[tokio::test]
    async fn what_people_connected_is_left_alone() {
        let world = World::new().await;
        world.connect_by_hand("mine", GITHUB).await;
        connect_by_token(&world.store, world.project, "ghp_one").await.unwrap();
        assert_eq!(world.state().await, (vec![("mine".to_string(), GITHUB.to_string())], None));
    }

    #[tokio::test]
    async fn another_forge_of_that_name_is_not_given_the_token() {
        let world = World::new().await;
        world.connect_by_hand("github", "https://ghe.example.com/api/v3").await;
        connect_by_token(&world.store, world.project, "ghp_one").await.unwrap();
        let others = vec![("github".to_string(), "https://ghe.example.com/api/v3".to_string())];
        assert_eq!(world.state().await, (others, None));
    }
}
