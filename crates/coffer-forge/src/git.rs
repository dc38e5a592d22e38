//! Runs git: confined to one repository, with a clean environment, in bounded time and memory.
//!
//! Callers pass full ref names or hashes, never raw text of a client, so no argument can be taken for an
//! option. Repositories have no hooks, and none would be run.

mod calls;
mod confine;
mod error;
mod process;
mod runner;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coffer_core::ProjectId;
use coffer_shares::{Place, Shares, pool};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::OnceCell;

pub use confine::has_landlock;
pub(crate) use error::GitError;
pub use process::GitProcesses;
pub(crate) use process::Running;
use process::Starter;
pub use runner::GitRunner;
use runner::{Order, PATH, WITH_SPARE};

/// Limits of git.
#[derive(Debug, Clone)]
pub struct GitLimits {
    /// Most short calls at a time: merges, diffs, lists.
    pub calls: usize,
    /// Most fetches and pushes at a time.
    pub transfers: usize,
    /// The time of a short call.
    pub call_time: Duration,
    /// The time of a whole fetch or push.
    pub transfer_time: Duration,
    /// How long a client may neither send nor receive.
    pub silence: Duration,
    /// Memory of each process, in bytes.
    pub memory: u64,
    /// Memory of all transfers of a project together.
    pub project_memory: u64,
    /// Size of one push, in bytes.
    pub push: u64,
    /// Size of one repository, in bytes.
    pub repository: u64,
}

impl Default for GitLimits {
    fn default() -> Self {
        Self {
            calls: 8,
            transfers: 32,
            call_time: Duration::from_secs(60),
            transfer_time: Duration::from_secs(3600),
            silence: Duration::from_secs(120),
            memory: 512 << 20,
            project_memory: 4 << 30,
            push: 2 << 30,
            repository: 10 << 30,
        }
    }
}

impl GitLimits {
    /// How many transfers of a project fit into its memory.
    fn transfers_in_memory(&self) -> usize {
        usize::try_from(self.project_memory / self.memory.max(1)).unwrap_or(usize::MAX)
    }
}

/// Longest stored error output of git.
const LONGEST_COMPLAINT: usize = 4096;

/// A finished call.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    /// Whether the output was longer than requested and git was ended early.
    pub(crate) cut: bool,
    /// Its memory limit, in bytes.
    memory: u64,
}

impl Finished {
    /// The output of a call that must succeed.
    pub(crate) fn good(self) -> Result<Vec<u8>, GitError> {
        if self.code == Some(0) || self.cut { Ok(self.stdout) } else { Err(self.complaint()) }
    }

    /// The same as one line of text.
    pub(crate) fn line(self) -> Result<String, GitError> {
        let out = self.good()?;
        Ok(String::from_utf8_lossy(&out).trim_end_matches('\n').to_string())
    }

    pub(crate) fn complaint(&self) -> GitError {
        if lacked_memory(&self.stderr) {
            return GitError::OutOfMemory(self.memory);
        }
        if self.code.is_none() {
            return GitError::Failed("killed by a signal, perhaps for lack of memory".into());
        }
        let line = self.stderr.lines().find(|line| !line.trim().is_empty()).unwrap_or("git gave no reason");
        GitError::Failed(line.chars().filter(|c| !c.is_control()).take(300).collect())
    }
}

/// Whether git, or a program that it started, reports too little memory.
pub(crate) fn lacked_memory(complaint: &str) -> bool {
    let words = ["out of memory", "malloc failed", "cannot allocate memory", "died of signal 9"];
    let complaint = complaint.to_ascii_lowercase();
    words.iter().any(|words| complaint.contains(words))
}

/// The git of this host.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    pub(crate) limits: Arc<GitLimits>,
    calls: Shares<Option<ProjectId>>,
    transfers: Shares<ProjectId>,
    /// A place is the memory limit of one transfer.
    memory: Shares<ProjectId>,
    starter: Arc<Starter>,
    checked: Arc<OnceCell<()>>,
}

/// A git call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// The repository.
    pub(crate) directory: Option<&'a Path>,
    /// Another directory that it may write.
    pub(crate) also: Option<&'a Path>,
    /// The project of its repository.
    pub(crate) project: Option<ProjectId>,
    pub(crate) config: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) stdin: Vec<u8>,
    /// The largest output; the rest is cut.
    pub(crate) most: usize,
    pub(crate) time: Option<Duration>,
    /// More memory than calls usually have, if there is some to spare.
    pub(crate) spare: Option<SpareMemory>,
}

impl<'a> Call<'a> {
    /// A call in a repository.
    pub(crate) fn within(directory: &'a Path) -> Self {
        Self {
            directory: Some(directory),
            also: None,
            project: Shelf::project_of(directory),
            config: Vec::new(),
            environment: Vec::new(),
            stdin: Vec::new(),
            most: 4 << 20,
            time: None,
            spare: None,
        }
    }
}

impl Git {
    pub(crate) fn new(limits: GitLimits, processes: GitProcesses) -> std::io::Result<Self> {
        Ok(Self {
            calls: Shares::with_total(pool::GIT_CALLS, limits.calls),
            transfers: Shares::with_total(pool::GIT_TRANSFERS, limits.transfers),
            memory: Shares::with_share(pool::GIT_MEMORY, limits.transfers_in_memory()),
            limits: Arc::new(limits),
            starter: Arc::new(Starter::new(processes)?),
            checked: Arc::default(),
        })
    }

    /// Runs a short call.
    pub(crate) async fn run<S: AsRef<str>>(&self, call: Call<'_>, args: &[S]) -> Result<Finished, GitError> {
        self.is_here().await?;
        let _turn = self.calls.take(call.project).await?;
        self.run_now(call, args).await
    }

    async fn run_now<S: AsRef<str>>(&self, mut call: Call<'_>, args: &[S]) -> Result<Finished, GitError> {
        let time = call.time.unwrap_or(self.limits.call_time);
        let input = std::mem::take(&mut call.stdin);
        let all = async {
            let mut running = self.spawn(&call, args).await?;
            let (mut stdin, stdout, stderr) = running.pipes();
            let feed = async move {
                // Git may be done before it has read everything; its exit code decides.
                let _ = stdin.write_all(&input).await;
            };
            let ((), (stdout, cut), (stderr, _)) =
                tokio::join!(feed, take(stdout, call.most), async { take(stderr, LONGEST_COMPLAINT).await });
            if cut {
                running.end();
            }
            let code = running.wait().await?;
            let stderr = String::from_utf8_lossy(&stderr).into_owned();
            Ok(Finished { code, stdout, stderr, cut, memory: self.memory_of(&call) })
        };
        tokio::time::timeout(time, all).await.unwrap_or(Err(GitError::TimedOut))
    }

    /// Takes a place for a fetch or push of a project, which may take long.
    pub(crate) async fn transfer(&self, project: ProjectId) -> Result<Room, GitError> {
        let room = self.transfer_of_file(project).await?;
        Ok(Room { _memory: Some(self.memory.take(project).await?), ..room })
    }

    /// The same for transfers without git.
    pub(crate) async fn transfer_of_file(&self, project: ProjectId) -> Result<Room, GitError> {
        self.is_here().await?;
        Ok(Room { _memory: None, _turn: self.transfers.take(project).await? })
    }

    /// Takes a second transfer's memory of the project's share, if it is free.
    pub(crate) fn spare_memory(&self, project: ProjectId) -> Option<SpareMemory> {
        self.memory.try_take(project).ok().map(|place| SpareMemory { _place: place })
    }

    fn memory_of(&self, call: &Call<'_>) -> u64 {
        self.limits.memory.saturating_mul(if call.spare.is_some() { WITH_SPARE } else { 1 })
    }

    /// Starts git with all three streams piped. Besides the system's programs it can access only the call's
    /// directories.
    pub(crate) async fn spawn<S: AsRef<str>>(
        &self,
        call: &Call<'_>,
        args: &[S],
    ) -> Result<Running, GitError> {
        let mut arguments = Vec::new();
        for setting in SETTINGS.iter().copied().chain(call.config.iter().map(String::as_str)) {
            arguments.extend(["-c".to_string(), setting.to_string()]);
        }
        if let Some(directory) = call.directory {
            arguments.extend(["--git-dir".to_string(), directory.to_string_lossy().into_owned()]);
        }
        arguments.extend(args.iter().map(|argument| argument.as_ref().to_string()));
        let environment = ENVIRONMENT.map(|(name, value)| (name, value.to_string())).into_iter();
        let environment = environment.chain(call.environment.iter().cloned());
        let order = Order {
            arguments,
            environment: environment.map(|(name, value)| (name.to_string(), value)).collect(),
            directory: call.directory.unwrap_or(Path::new("/")).to_path_buf(),
            places: call.directory.into_iter().chain(call.also).map(Path::to_path_buf).collect(),
            memory: self.memory_of(call),
        };
        self.starter.start(&order).await
    }

    /// Checks once whether git is installed and new enough to merge without a work tree.
    async fn is_here(&self) -> Result<(), GitError> {
        let check = || async {
            let call = Call { directory: None, ..Call::within(Path::new("/")) };
            let said = self.run_now(call, &["version"]).await?.line()?;
            let mut parts = said.trim_start_matches("git version ").split('.').map(str::parse::<u32>);
            match (parts.next(), parts.next()) {
                (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (2, 40) => Ok(()),
                _ => Err(GitError::Missing),
            }
        };
        self.checked.get_or_try_init(check).await.copied()
    }
}

/// A place for a fetch or push, released on drop.
#[derive(Debug)]
pub(crate) struct Room {
    _memory: Option<Place<ProjectId>>,
    _turn: Place<ProjectId>,
}

/// Memory that a project does not use for transfers, released on drop.
#[derive(Debug)]
pub(crate) struct SpareMemory {
    _place: Place<ProjectId>,
}

/// The environment of every call: no settings file except the repository's own.
const ENVIRONMENT: [(&str, &str); 12] = [
    ("PATH", PATH),
    ("HOME", "/nonexistent"),
    ("LC_ALL", "C"),
    ("TZ", "UTC"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    // No transport at all, whatever the settings say: git only reads and writes the given repository.
    ("GIT_ALLOW_PROTOCOL", ""),
];

/// Settings of every call.
const SETTINGS: [&str; 23] = [
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.fsync=committed,reference",
    "core.packedGitWindowSize=32m",
    "core.packedGitLimit=512m",
    "core.bigFileThreshold=32m",
    "pack.threads=1",
    "core.deltaBaseCacheLimit=96m",
    "pack.windowMemory=128m",
    "pack.deltaCacheSize=64m",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    "protocol.file.allow=never",
    "safe.directory=*",
    "diff.renameLimit=1000",
    "merge.renameLimit=1000",
    "commit.gpgSign=false",
    "log.showSignature=false",
    "advice.objectNameWarning=false",
];

/// Reads up to `most` bytes; returns whether there was more.
async fn take(mut from: impl AsyncRead + Unpin, most: usize) -> (Vec<u8>, bool) {
    let mut taken = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    // A truncated read is short, and the exit code shows the error.
    let _ = (&mut from).take(limit).read_to_end(&mut taken).await;
    let cut = taken.len() > most;
    taken.truncate(most);
    (taken, cut)
}

/// The directory of repositories: paths are built only from ids.
#[derive(Debug, Clone)]
pub(crate) struct Shelf {
    root: PathBuf,
}

impl Shelf {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(
        &self,
        project: coffer_core::ProjectId,
        repository: coffer_core::RepositoryId,
    ) -> PathBuf {
        self.root.join(project.to_string()).join(format!("{repository}.git"))
    }

    /// The project of a repository's path.
    fn project_of(path: &Path) -> Option<ProjectId> {
        path.parent()?.file_name()?.to_str()?.parse().ok()
    }
}

#[cfg(test)]
mod tests;
