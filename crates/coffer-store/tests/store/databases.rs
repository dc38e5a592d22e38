//! A fresh database for each test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use coffer_store::Store;
use sqlx::Connection;
use tempfile::TempDir;

use crate::postgres::Server;

/// An empty database that goes when the test ends.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    /// Where the database keeps its files.
    pub(crate) files: PathBuf,
    _keep: Keep,
}

#[expect(dead_code, reason = "held for their Drop")]
enum Keep {
    Directory(TempDir),
    Server(Arc<Server>),
}

impl TestDatabase {
    pub(crate) fn sqlite() -> Self {
        let directory = TempDir::new().unwrap();
        let url = format!("sqlite:{}", directory.path().join("coffer.db").display());
        Self { url, files: directory.path().to_path_buf(), _keep: Keep::Directory(directory) }
    }

    /// `None` where PostgreSQL is not installed.
    pub(crate) async fn postgres() -> Option<Self> {
        let server = Server::running()?;
        let url = server.create_database().await;
        let files = server.data().to_path_buf();
        Some(Self { url, files, _keep: Keep::Server(server) })
    }

    pub(crate) async fn open(&self) -> Store {
        Store::open(&self.url).await.unwrap()
    }

    /// A connection past the store, to look or meddle.
    pub(crate) async fn connect(&self) -> sqlx::AnyConnection {
        sqlx::any::install_default_drivers();
        sqlx::AnyConnection::connect(&self.url.replacen("sqlite:", "sqlite://", 1)).await.unwrap()
    }

    /// Whether any file of the database holds `text`.
    pub(crate) fn holds_on_disk(&self, text: &str) -> bool {
        let grep = Command::new("grep")
            .args(["--recursive", "--quiet", "--text", "--fixed-strings", "--regexp", text])
            .arg(&self.files)
            .status()
            .unwrap();
        match grep.code() {
            Some(0) => true,
            Some(1) => false,
            code => panic!("grep gave {code:?}"),
        }
    }
}

/// Makes of each body two tests, `sqlite::<name>` and `postgres::<name>`.
macro_rules! on_both {
    ($(
        $(#[doc = $doc:literal])*
        async fn $name:ident($database:ident: &TestDatabase) $body:block
    )+) => {
        $( $(#[doc = $doc])* async fn $name($database: &crate::databases::TestDatabase) $body )+

        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name(&crate::databases::TestDatabase::sqlite()).await;
                }
            )+
        }

        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    if let Some(database) = crate::databases::TestDatabase::postgres().await {
                        super::$name(&database).await;
                    }
                }
            )+
        }
    };
}
pub(crate) use on_both;
