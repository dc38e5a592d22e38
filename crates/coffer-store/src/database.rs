//! Connections: opens and configures the database, and runs reads and writes.

use std::fs::OpenOptions;
use std::future::Future;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, AnyPool, Connection, Row, SqlSafeStr};
use tokio::sync::watch;

use crate::error::{Cause, Doing, OpenError, StoreError};
use crate::load::Load;
use crate::writer::{Effect, Writer};

/// Version, name and text of every migration, in order; `build.rs` lists them.
const MIGRATIONS: &[(i64, &str, &str)] = &include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

const SQLITE_READERS: u32 = 8;
const POSTGRES_CONNECTIONS: u32 = 16;
/// How long a caller waits for a connection before the answer is [`StoreError::Transient`].
const ACQUIRE: Duration = Duration::from_secs(10);

/// The work of a write with its connection, inside a transaction.
pub(crate) type Work<'c, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>;

/// What a write must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Durability {
    /// A crash of this process; for data that a crash of the host invalidates anyway.
    Cached,
    /// A crash of the host.
    Synced,
}

#[derive(Debug)]
pub(crate) struct Database {
    kind: Kind,
    /// Notified after every write.
    written: watch::Sender<()>,
    pub(crate) load: Load,
}

#[derive(Debug)]
enum Kind {
    /// SQLite allows one writer at a time, so one task writes; readers never wait for it (WAL).
    Sqlite {
        readers: AnyPool,
        writer: Writer,
    },
    Postgres {
        pool: AnyPool,
    },
}

impl Database {
    pub(crate) async fn open(url: &str) -> Result<Self, OpenError> {
        sqlx::any::install_default_drivers();
        let kind = match url.split_once(':') {
            Some(("sqlite", path)) => open_sqlite(url, path).await,
            Some(("postgres" | "postgresql", _)) => open_postgres(url).await,
            _ => Err(bad_url(url)),
        };
        Ok(Self { kind: kind?, written: watch::Sender::new(()), load: Load::default() })
    }

    /// Changes after every write.
    pub(crate) fn written(&self) -> watch::Receiver<()> {
        self.written.subscribe()
    }

    /// The pool for reads.
    pub(crate) fn readers(&self) -> &AnyPool {
        match &self.kind {
            Kind::Sqlite { readers, .. } => readers,
            Kind::Postgres { pool } => pool,
        }
    }

    /// Runs `work` in a transaction and returns after its commit; an error rolls it back.
    pub(crate) async fn write<T, E, W>(&self, doing: &'static str, work: W) -> Result<T, E>
    where
        W: for<'c> FnOnce(&'c mut AnyConnection) -> Work<'c, T, E> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.write_to(Durability::Synced, doing, work).await
    }

    /// The same for work that only reads and records events: there is nothing to roll back.
    pub(crate) async fn tell<T, E, W>(&self, doing: &'static str, work: W) -> Result<T, E>
    where
        W: for<'c> FnOnce(&'c mut AnyConnection) -> Work<'c, T, E> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.run(Durability::Synced, Effect::Events, doing, work).await
    }

    /// The same, with the given durability.
    pub(crate) async fn write_to<T, E, W>(
        &self,
        durability: Durability,
        doing: &'static str,
        work: W,
    ) -> Result<T, E>
    where
        W: for<'c> FnOnce(&'c mut AnyConnection) -> Work<'c, T, E> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.run(durability, Effect::Rows, doing, work).await
    }

    async fn run<T, E, W>(
        &self,
        durability: Durability,
        effect: Effect,
        doing: &'static str,
        work: W,
    ) -> Result<T, E>
    where
        W: for<'c> FnOnce(&'c mut AnyConnection) -> Work<'c, T, E> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let _under_way = self.load.begin();
        let done = match &self.kind {
            Kind::Sqlite { writer, .. } => writer.write(doing, durability, effect, work).await,
            Kind::Postgres { pool } => {
                let pool = pool.clone();
                // In its own task: a caller that stops waiting must not leave its write undecided.
                #[expect(clippy::disallowed_methods, reason = "`close` waits for its connection")]
                let written = tokio::spawn(async move {
                    let mut transaction = pool.begin().await.doing(doing)?;
                    if durability == Durability::Cached {
                        let local = "SET LOCAL synchronous_commit = off";
                        sqlx::query(local).execute(&mut *transaction).await.doing(doing)?;
                    }
                    let done = work(&mut transaction).await?;
                    transaction.commit().await.doing(doing)?;
                    Ok(done)
                });
                written.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
            }
        };
        self.written.send_replace(());
        done
    }

    pub(crate) async fn close(&self) {
        match &self.kind {
            Kind::Sqlite { readers, writer } => {
                // Close readers first: the last connection to close checkpoints the log.
                readers.close().await;
                writer.close().await;
            }
            Kind::Postgres { pool } => pool.close().await,
        }
    }
}

async fn open_sqlite(url: &str, path: &str) -> Result<Kind, OpenError> {
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() || path.contains('?') || path.starts_with(':') {
        return Err(bad_url(url));
    }
    let path = PathBuf::from(path);
    // SQLite would create a world-readable file; this also gives a clearer error for a bad path.
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path)
        .map_err(|source| OpenError::File { path: path.clone(), source })?;

    let at = path.display().to_string();
    let failed = |error: sqlx::Error| {
        let source = Cause::new(error);
        match source.code().as_deref() {
            Some("11" | "26") => OpenError::Damaged { path: path.clone(), source },
            _ => OpenError::Connect { at: at.clone(), source },
        }
    };
    let options = sqlite_options(&path).map_err(failed)?;
    let mut connection = connect_sqlite_writer(&options).await.map_err(failed)?;
    migrate(&mut connection, &at).await?;
    let readers = AnyPoolOptions::new()
        .max_connections(SQLITE_READERS)
        .acquire_timeout(ACQUIRE)
        // Connections to a file do not break; testing each would double the cost of a small read.
        .test_before_acquire(false)
        .after_connect(|connection, _| {
            Box::pin(async move {
                sqlx::raw_sql("PRAGMA busy_timeout = 5000; PRAGMA query_only = ON")
                    .execute(connection)
                    .await
                    .map(drop)
            })
        })
        .connect_with(options.clone())
        .await
        .map_err(failed)?;
    Ok(Kind::Sqlite { readers, writer: Writer::start(connection, options) })
}

pub(crate) fn sqlite_options(path: &Path) -> Result<AnyConnectOptions, sqlx::Error> {
    const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');
    // `Any` takes only a URL, in which `%`, `#` and `?` have a meaning.
    let path = path.to_str().unwrap_or_default();
    AnyConnectOptions::from_str(&format!("sqlite://{}?mode=rw", utf8_percent_encode(path, PLAIN)))
}

/// Connects for writing: write-ahead log, and every commit is synced before it returns.
pub(crate) async fn connect_sqlite_writer(options: &AnyConnectOptions) -> Result<AnyConnection, sqlx::Error> {
    let mut connection = AnyConnection::connect_with(options).await?;
    let set_up = "PRAGMA busy_timeout = 5000; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON";
    sqlx::raw_sql(set_up).execute(&mut connection).await?;
    let journal = sqlx::query("PRAGMA journal_mode = WAL").fetch_one(&mut connection).await?;
    let journal: String = journal.try_get(0)?;
    if journal != "wal" {
        tracing::warn!(
            "this file system does not support SQLite's write-ahead log ({journal}): readers will wait for writers"
        );
    }
    Ok(connection)
}

async fn open_postgres(url: &str) -> Result<Kind, OpenError> {
    let at = without_credentials(url);
    let failed = |error| OpenError::Connect { at: at.clone(), source: Cause::new(error) };
    let options = AnyConnectOptions::from_str(url).map_err(failed)?;
    let mut connection = AnyConnection::connect_with(&options).await.map_err(failed)?;
    migrate(&mut connection, &at).await?;
    connection.close().await.map_err(failed)?;
    let pool = AnyPoolOptions::new()
        .max_connections(POSTGRES_CONNECTIONS)
        .acquire_timeout(ACQUIRE)
        .after_connect(|connection, _| {
            Box::pin(async move {
                // A stuck statement must not block its locks and its caller without end.
                sqlx::raw_sql("SET statement_timeout = '30s'; SET lock_timeout = '10s'")
                    .execute(connection)
                    .await
                    .map(drop)
            })
        })
        .connect_with(options)
        .await
        .map_err(failed)?;
    Ok(Kind::Postgres { pool })
}

/// The version of the tables that this program knows.
pub(crate) fn newest_migration() -> i64 {
    MIGRATIONS.iter().map(|(version, ..)| *version).max().unwrap_or(0)
}

fn migrator() -> Migrator {
    let migration = |&(version, name, sql): &(i64, &'static str, &'static str)| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(MIGRATIONS.iter().map(migration).collect())
}

async fn migrate(connection: &mut AnyConnection, at: &str) -> Result<(), OpenError> {
    migrator().run(connection).await.map_err(|error| match error {
        MigrateError::VersionMissing(migration) => OpenError::Newer { at: at.to_string(), migration },
        error => OpenError::Migrate { at: at.to_string(), source: error.into() },
    })
}

fn bad_url(url: &str) -> OpenError {
    OpenError::BadUrl { url: without_credentials(url) }
}

/// The URL without user, password or parameters, for messages.
pub(crate) fn without_credentials(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
            format!("{scheme}://{place}")
        }
        None => url.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Databases store the SHA-384 of each migration, and refuse a different one.
    #[test]
    fn released_migrations_stay_as_they_are() {
        let released = [
            (1, "8cb3f0b936b0"),
            (2, "a66824b5cb4a"),
            (3, "54716ef2dbc9"),
            (4, "5473812e1d9c"),
            (5, "17035e86f6a7"),
            (6, "6ac0730fd649"),
            (7, "6b70aef2014e"),
            (8, "84669a484311"),
            (9, "aa5d6df62e2b"),
            (10, "fd67a83992b6"),
            (11, "742e03dbad60"),
            (12, "2c2911a217f6"),
            (13, "e7f875bdb63e"),
            (14, "8ede73b3701e"),
            (15, "9774d89c8174"),
            (16, "955d13ebced8"),
            (18, "d6ba1bf430c9"),
            (19, "0ef4fa99d889"),
            (20, "0ff28ccbbc88"),
            (21, "61292e04455a"),
        ];
        let known = migrator();
        for (version, checksum) in released {
            let found = known.iter().find(|migration| migration.version == version).expect("a migration");
            assert_eq!(hex::encode(&found.checksum)[..12], *checksum, "migration {version}");
        }
        assert!(known.iter().all(|migration| migration.migration_type == MigrationType::Simple));
        assert_eq!(known.iter().next().unwrap().description, "foundation");
    }

    #[tokio::test]
    async fn a_commit_is_on_disk_before_it_is_answered() {
        sqlx::any::install_default_drivers();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.db");
        std::fs::File::create(&path).unwrap();
        let mut connection = connect_sqlite_writer(&sqlite_options(&path).unwrap()).await.unwrap();
        let mut setting = async |pragma: &'static str| -> i64 {
            sqlx::query(pragma).fetch_one(&mut connection).await.unwrap().try_get(0).unwrap()
        };
        const FULL: i64 = 2;
        assert_eq!(setting("PRAGMA synchronous").await, FULL);
        assert_eq!(setting("PRAGMA foreign_keys").await, 1);
    }

    #[test]
    fn an_address_is_shown_without_its_credentials() {
        let shown = without_credentials("postgres://me:p@ss@db.example:5432/coffer?password=other");
        assert_eq!(shown, "postgres://db.example:5432/coffer");
        assert_eq!(without_credentials("sqlite:/a/b.db"), "sqlite:/a/b.db");
    }
}
