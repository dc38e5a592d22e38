//! A PostgreSQL of the tests' own.
//!
//! It runs as an unprivileged user (it refuses root), listens only on a Unix socket in its temporary
//! directory, is shared by the tests of one process and stops with the last of them.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread::JoinHandle;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;

static RUNNING: Mutex<Weak<Server>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Server {
    directory: TempDir,
    data: PathBuf,
    stop: Option<mpsc::Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Server {
    /// The server of this process, started if need be; `None` where there is no PostgreSQL.
    pub(crate) fn running() -> Option<Arc<Self>> {
        let Some(binaries) = binaries() else {
            eprintln!(
                "SKIPPED: no PostgreSQL under /usr/lib/postgresql (Debian: apt-get install postgresql)"
            );
            return None;
        };
        // A test that failed to start it must not fail the others by poison.
        let mut running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(server) = running.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Self::start(&binaries));
        *running = Arc::downgrade(&server);
        Some(server)
    }

    fn start(binaries: &Path) -> Self {
        let owner = unprivileged_owner();
        // In /tmp: the owner must be able to reach it, and a socket's path is short.
        let directory = tempfile::Builder::new().prefix("coffer-pg-").tempdir_in("/tmp").unwrap();
        if let Some((uid, gid)) = owner {
            chown(directory.path(), Some(uid), Some(gid)).unwrap();
        }
        let data = directory.path().join("data");
        let initdb = as_owner(owner, &binaries.join("initdb"))
            .arg("--pgdata")
            .arg(&data)
            .args(["--no-sync", "--auth=trust", "--username=coffer", "--encoding=UTF8", "--locale=C.UTF-8"])
            .output()
            .unwrap();
        assert!(initdb.status.success(), "initdb: {}", String::from_utf8_lossy(&initdb.stderr));

        let mut command = as_owner(owner, &binaries.join("postgres"));
        command.arg("-D").arg(&data).arg("-k").arg(directory.path()).args(["-c", "listen_addresses="]);
        for setting in ["max_connections=600", "fsync=off", "shared_buffers=32MB", "max_wal_size=64MB"] {
            command.args(["-c", setting]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let (stop, stopped) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        // The parent-death signal follows the thread that made the child, so one thread stays with it.
        let keeper = std::thread::spawn(move || keep(command.spawn().unwrap(), &ready, &stopped));
        is_ready.recv().expect("postgres ended before it was ready; its words are above");
        Self { directory, data, stop: Some(stop), keeper: Some(keeper) }
    }

    pub(crate) async fn create_database(&self) -> String {
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let mut connection = PgConnection::connect(&self.url("postgres")).await.unwrap();
        let create = AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"));
        sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        self.url(&name)
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://coffer@localhost/{database}?host={}", self.directory.path().display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Stays with the server until nobody needs it, then has it stop and waits.
fn keep(mut server: Child, ready: &mpsc::Sender<()>, stopped: &mpsc::Receiver<()>) {
    let mut log = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    while log.read_line(&mut line).is_ok_and(|read| read > 0) {
        if line.contains("database system is ready to accept connections") {
            // Its log goes on and must be read, or it would block on a full pipe.
            std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
            let _ = ready.send(());
            let _ = stopped.recv();
            // SIGINT: end all sessions, write everything, leave.
            let pid = rustix::process::Pid::from_child(&server);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
            break;
        }
        eprint!("{line}");
        line.clear();
    }
    let _ = server.wait();
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

/// Whom to run as when we are root.
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

/// `program` as the given user; it ends when the thread that starts it does.
fn as_owner(owner: Option<(u32, u32)>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "INT"]);
    if let Some((uid, gid)) = owner {
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).arg("--clear-groups");
    }
    command.arg("--").arg(program).current_dir("/");
    command
}
