//! A fresh database for each test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use coffer_store::{KeySource, MasterKey, Store};
use sqlx::Connection;
use tempfile::TempDir;

use crate::postgres::Server;

/// Selects the database of [`TestDatabase::chosen`].
const CHOICE: &str = "COFFER_TEST_DATABASE";

/// An empty database, for one test.
#[derive(Debug, Clone)]
pub struct TestDatabase {
    pub url: String,
    /// The directory of the database's files.
    pub files: PathBuf,
    /// Held for its `Drop`.
    _directory: Option<Arc<TempDir>>,
}

impl TestDatabase {
    pub fn sqlite() -> Self {
        let directory = TempDir::new().unwrap();
        let url = format!("sqlite:{}", directory.path().join("coffer.db").display());
        Self { url, files: directory.path().to_path_buf(), _directory: Some(Arc::new(directory)) }
    }

    /// One on this process's PostgreSQL; `None` if PostgreSQL is not installed.
    pub async fn postgres() -> Option<Self> {
        let server = Server::running()?;
        Some(Self { url: server.create_database().await, files: server.data(), _directory: None })
    }

    /// The database that `COFFER_TEST_DATABASE` names: `postgres`, or SQLite by default.
    pub async fn chosen() -> Self {
        match std::env::var(CHOICE).as_deref() {
            Ok("postgres") => Self::postgres().await.expect("PostgreSQL was asked for and is not installed"),
            Ok("sqlite") | Err(_) => Self::sqlite(),
            Ok(other) => panic!("{CHOICE} is `{other}`, not `sqlite` or `postgres`"),
        }
    }

    pub async fn open(&self) -> Store {
        Store::open(&self.url, Self::keys()).await.unwrap()
    }

    /// The same master key whenever it is opened.
    pub fn keys() -> KeySource {
        let text = "coffer-master-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
        KeySource::Given { current: MasterKey::parse(text).unwrap(), previous: Vec::new() }
    }

    /// A direct connection, to inspect or change rows.
    pub async fn connect(&self) -> sqlx::AnyConnection {
        sqlx::any::install_default_drivers();
        sqlx::AnyConnection::connect(&self.url.replacen("sqlite:", "sqlite://", 1)).await.unwrap()
    }

    /// Changes rows behind the store's back.
    pub async fn execute(&self, sql: &'static str) {
        sqlx::query(sql).execute(&mut self.connect().await).await.unwrap();
    }

    /// Whether any file of the database contains `text`.
    pub fn holds_on_disk(&self, text: &str) -> bool {
        // PostgreSQL removes files while grep reads them, also for other tests: then grep fails, and is run
        // again.
        let mut code = None;
        for _ in 0..50 {
            let grep = Command::new("grep")
                .args(["--recursive", "--quiet", "--no-messages", "--text", "--fixed-strings"])
                .args(["--regexp", text])
                .arg(&self.files)
                .status()
                .unwrap();
            code = grep.code();
            match code {
                Some(0) => return true,
                Some(1) => return false,
                _ => {}
            }
        }
        panic!("grep gave {code:?}");
    }

    /// Runs every other test of this test binary again, on PostgreSQL: to be called by a test named `itself`.
    ///
    /// So a suite that creates its databases with [`TestDatabase::chosen`] runs on both, from one body and
    /// one compilation.
    pub fn run_suite_on_postgres(itself: &str) {
        if std::env::var_os(CHOICE).is_some() || !Server::is_installed() {
            return;
        }
        let suite = std::env::current_exe().unwrap();
        let run = Command::new(suite).args(["--skip", itself]).env(CHOICE, "postgres").output().unwrap();
        let told = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "on PostgreSQL:\n{told}\n{}", String::from_utf8_lossy(&run.stderr));
        let result = told.lines().find(|line| line.starts_with("test result: ok."));
        eprintln!("on PostgreSQL: {}", result.expect("a result line"));
    }
}

/// Generates two tests of each body, `sqlite::<name>` and `postgres::<name>`.
#[macro_export]
macro_rules! on_both {
    ($(
        $(#[doc = $doc:literal])*
        async fn $name:ident($database:ident: &TestDatabase) $body:block
    )+) => {
        $( $(#[doc = $doc])* async fn $name($database: &$crate::TestDatabase) $body )+

        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name(&$crate::TestDatabase::sqlite()).await;
                }
            )+
        }

        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    if let Some(database) = $crate::TestDatabase::postgres().await {
                        super::$name(&database).await;
                    }
                }
            )+
        }
    };
}
