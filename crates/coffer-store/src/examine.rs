//! Looks at a database without changing it, for `coffer doctor`.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, Connection as _, Row as _};

use crate::database::{newest_migration, sqlite_options, without_credentials};
use crate::error::{Cause, OpenError};

const PATIENCE: Duration = Duration::from_secs(5);
/// PostgreSQL 15.
const OLDEST_POSTGRES: i64 = 150_000;

/// Connects, reads the version of the tables and, of SQLite, whether the file is damaged. Migrates nothing. The
/// answer is a line for people.
pub async fn examine(url: &str) -> Result<String, OpenError> {
    sqlx::any::install_default_drivers();
    let sqlite =
        url.strip_prefix("sqlite:").map(|path| PathBuf::from(path.strip_prefix("//").unwrap_or(path)));
    let at = sqlite.as_deref().map_or_else(|| without_credentials(url), |path| path.display().to_string());
    let failed = |error| OpenError::Connect { at: at.clone(), source: Cause::new(error) };
    let options = match &sqlite {
        Some(path) => sqlite_options(path),
        None => AnyConnectOptions::from_str(url),
    };
    let options = options.map_err(failed)?;
    let connecting = AnyConnection::connect_with(&options);
    let in_time = tokio::time::timeout(PATIENCE, connecting).await;
    let mut connection = in_time.map_err(|_| failed(sqlx::Error::PoolTimedOut))?.map_err(failed)?;
    let kind = match &sqlite {
        Some(path) => check_file(&mut connection, path).await?,
        None => {
            let version =
                sqlx::query("SHOW server_version_num").fetch_one(&mut connection).await.map_err(failed)?;
            let number: String = version.try_get(0).map_err(failed)?;
            let number = number.parse::<i64>().unwrap_or(0);
            if number < OLDEST_POSTGRES {
                return Err(OpenError::TooOld { at, version: number / 10_000 });
            }
            format!("PostgreSQL {}", number / 10_000)
        }
    };
    // No table of migrations: the first start creates everything.
    let newest = sqlx::query("SELECT MAX(version) FROM _sqlx_migrations").fetch_one(&mut connection).await;
    let newest = newest.and_then(|row| row.try_get::<Option<i64>, _>(0)).ok().flatten();
    let _ = connection.close().await;
    match newest {
        Some(migration) if migration > newest_migration() => Err(OpenError::Newer { at, migration }),
        Some(migration) if migration < newest_migration() => {
            Ok(format!("{kind} at `{at}`; the next start updates its tables"))
        }
        Some(_) => Ok(format!("{kind} at `{at}`")),
        None => Ok(format!("{kind} at `{at}`, empty; the next start creates its tables")),
    }
}

async fn check_file(connection: &mut AnyConnection, path: &Path) -> Result<String, OpenError> {
    let damaged = |error| OpenError::Damaged { path: path.to_path_buf(), source: Cause::new(error) };
    let row = sqlx::query("PRAGMA quick_check(1)").fetch_one(connection).await.map_err(damaged)?;
    let said: String = row.try_get(0).map_err(damaged)?;
    match said.as_str() {
        "ok" => Ok("SQLite".to_string()),
        _ => Err(damaged(sqlx::Error::Protocol(said))),
    }
}
