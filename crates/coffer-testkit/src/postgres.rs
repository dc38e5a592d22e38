//! The tests' own PostgreSQL.
//!
//! It runs as an unprivileged user (it refuses root), listens only on a Unix socket in its temporary
//! directory, is shared by the tests of one process, and ends with that process.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{AssertSqlSafe, Connection, PgConnection};

static RUNNING: OnceLock<Option<Server>> = OnceLock::new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// Starts the server and waits for the end of its input, which comes with the end of the tests' process. Then
/// it stops the server (SIGINT: end all sessions and exit) and removes its files.
const KEEPER: &str = r#"
    trap '' INT TERM HUP
    "$1" -D "$2/data" -k "$2" -c listen_addresses= -c max_connections=600 -c fsync=off \
        -c full_page_writes=off -c shared_buffers=32MB -c max_wal_size=64MB </dev/null &
    cat >/dev/null
    kill -INT $!
    wait $!
    rm -rf "$2"
"#;

#[derive(Debug)]
pub(crate) struct Server {
    directory: PathBuf,
    /// Its input is open as long as this process runs.
    _keeper: Child,
}

impl Server {
    /// The server of this process, started if needed; `None` if PostgreSQL is not installed.
    pub(crate) fn running() -> Option<&'static Self> {
        if !Self::is_installed() {
            return None;
        }
        RUNNING.get_or_init(|| binaries().map(|binaries| Self::start(&binaries))).as_ref()
    }

    /// Checks for PostgreSQL, and prints a message if it is missing.
    pub(crate) fn is_installed() -> bool {
        let installed = binaries().is_some();
        if !installed {
            eprintln!(
                "SKIPPED: no PostgreSQL under /usr/lib/postgresql (Debian: apt-get install postgresql)"
            );
        }
        installed
    }

    fn start(binaries: &Path) -> Self {
        let owner = unprivileged_owner();
        // In /tmp: the owner must be able to reach it, and the path of a socket is short.
        let directory = tempfile::Builder::new().prefix("coffer-pg-").tempdir_in("/tmp").unwrap();
        if let Some((uid, gid)) = owner {
            chown(directory.path(), Some(uid), Some(gid)).unwrap();
        }
        let initdb = as_owner(owner, &binaries.join("initdb"))
            .arg("--pgdata")
            .arg(directory.path().join("data"))
            .args(["--no-sync", "--auth=trust", "--username=coffer", "--encoding=UTF8", "--locale=C.UTF-8"])
            .output()
            .unwrap();
        assert!(initdb.status.success(), "initdb: {}", String::from_utf8_lossy(&initdb.stderr));

        let mut keeper = as_owner(owner, Path::new("/bin/sh"))
            .args(["-c", KEEPER, "keeper"])
            .arg(binaries.join("postgres"))
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(keeper.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("database system is ready to accept connections") {
            eprint!("{line}");
            line.clear();
            let read = log.read_line(&mut line).unwrap();
            assert!(read > 0, "postgres ended before it was ready; its words are above");
        }
        // Keep reading its log, or it would block on a full pipe.
        std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
        Self { directory: directory.keep(), _keeper: keeper }
    }

    pub(crate) async fn create_database(&self) -> String {
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let mut connection = PgConnection::connect(&self.url("postgres")).await.unwrap();
        let create = AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"));
        sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        self.url(&name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://coffer@localhost/{database}?host={}", self.directory.display())
    }
}

fn binaries() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|binaries| binaries.join("initdb").exists() && binaries.join("postgres").exists())
        .collect();
    found.sort();
    found.pop()
}

/// The user to run as if we are root.
fn unprivileged_owner() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let find = |name: &str| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
        Some((ids.next()??, ids.next()??))
    };
    Some(find("postgres").or_else(|| find("nobody")).expect("a user that is not root"))
}

/// `program` as the given user.
fn as_owner(owner: Option<(u32, u32)>, program: &Path) -> Command {
    let Some((uid, gid)) = owner else { return in_root(Command::new(program)) };
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={uid}"))
        .arg(format!("--regid={gid}"))
        .args(["--clear-groups", "--"])
        .arg(program);
    in_root(command)
}

/// Uses a working directory that any user can access.
fn in_root(mut command: Command) -> Command {
    command.current_dir("/");
    command
}
