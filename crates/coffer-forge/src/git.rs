//! Runs git: directly, with nothing of this process's surroundings, for a bounded time.
//!
//! Whoever calls passes full ref names or hashes, never text of a client as it came, so no argument can be
//! taken for an option. Repositories hold no hooks, and none would be run.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coffer_core::ProjectId;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

/// What git may use.
#[derive(Debug, Clone)]
pub struct GitLimits {
    /// Short calls at a time: merges, diffs, lists.
    pub calls: usize,
    /// Fetches and pushes at a time.
    pub transfers: usize,
    /// For a short call.
    pub call_time: Duration,
    /// For a whole fetch or push.
    pub transfer_time: Duration,
    /// How long a client may send nothing, or take nothing.
    pub silence: Duration,
    /// Address space of each process, in bytes.
    pub memory: u64,
    /// One push, in bytes.
    pub push: u64,
    /// One repository, in bytes.
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
            memory: 4 << 30,
            push: 2 << 30,
            repository: 10 << 30,
        }
    }
}

/// How long a call waits for its turn.
const TURN: Duration = Duration::from_secs(20);
/// What is kept of what git says about a failure.
const LONGEST_COMPLAINT: usize = 4096;

/// Git could not be run, or did not come to an end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GitError {
    #[error("git is not installed, or too old")]
    Missing,
    #[error("too much git work is under way")]
    Busy,
    #[error("it took too long")]
    TimedOut,
    #[error("{0}")]
    Failed(String),
}

/// A call that came to an end.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    /// There was more output than was asked for; git was ended early.
    pub(crate) cut: bool,
}

impl Finished {
    /// The output of a call that must not fail.
    pub(crate) fn good(self) -> Result<Vec<u8>, GitError> {
        if self.code == Some(0) || self.cut { Ok(self.stdout) } else { Err(self.complaint()) }
    }

    /// The same as one line of text.
    pub(crate) fn line(self) -> Result<String, GitError> {
        let out = self.good()?;
        Ok(String::from_utf8_lossy(&out).trim_end_matches('\n').to_string())
    }

    pub(crate) fn complaint(&self) -> GitError {
        let line = self.stderr.lines().find(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
        GitError::Failed(line.chars().filter(|c| !c.is_control()).take(300).collect())
    }
}

/// The git of this host.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    pub(crate) limits: Arc<GitLimits>,
    calls: Arc<Semaphore>,
    transfers: Arc<Semaphore>,
    /// Of the transfers one project may have half, so that none shuts the others out.
    shares: Arc<Mutex<HashMap<ProjectId, Arc<Semaphore>>>>,
    checked: Arc<OnceCell<()>>,
}

/// One call to be.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) directory: Option<&'a Path>,
    pub(crate) config: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) stdin: Vec<u8>,
    /// More output than this is cut.
    pub(crate) most: usize,
    pub(crate) time: Option<Duration>,
}

impl<'a> Call<'a> {
    /// In a repository.
    pub(crate) fn within(directory: &'a Path) -> Self {
        Self {
            directory: Some(directory),
            config: Vec::new(),
            environment: Vec::new(),
            stdin: Vec::new(),
            most: 4 << 20,
            time: None,
        }
    }
}

impl Git {
    pub(crate) fn new(limits: GitLimits) -> Self {
        Self {
            calls: Arc::new(Semaphore::new(limits.calls)),
            transfers: Arc::new(Semaphore::new(limits.transfers)),
            limits: Arc::new(limits),
            shares: Arc::default(),
            checked: Arc::default(),
        }
    }

    /// Runs a short call.
    pub(crate) async fn run<S: AsRef<OsStr>>(
        &self,
        call: Call<'_>,
        args: &[S],
    ) -> Result<Finished, GitError> {
        self.is_here().await?;
        let _turn = turn(&self.calls).await?;
        self.run_now(call, args).await
    }

    async fn run_now<S: AsRef<OsStr>>(&self, call: Call<'_>, args: &[S]) -> Result<Finished, GitError> {
        let time = call.time.unwrap_or(self.limits.call_time);
        let mut running = self.spawn(call.directory, &call.config, &call.environment, args)?;
        let (mut stdin, stdout, stderr) = running.pipes();
        let feed = async move {
            // Git may be done before it has read everything; its own verdict tells.
            let _ = stdin.write_all(&call.stdin).await;
        };
        let all = async {
            let ((), (stdout, cut), (stderr, _)) =
                tokio::join!(feed, take(stdout, call.most), async { take(stderr, LONGEST_COMPLAINT).await });
            if cut {
                running.end();
            }
            let code = running.wait().await?;
            let stderr = String::from_utf8_lossy(&stderr).into_owned();
            Ok(Finished { code, stdout, stderr, cut })
        };
        tokio::time::timeout(time, all).await.unwrap_or(Err(GitError::TimedOut))
    }

    /// Room for a fetch or push of a project, which may take long.
    pub(crate) async fn transfer(&self, project: ProjectId) -> Result<Room, GitError> {
        self.is_here().await?;
        let share = {
            let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever has one under way holds it, too.
            shares.retain(|_, share| Arc::strong_count(share) > 1);
            let most = (self.limits.transfers / 2).max(1);
            shares.entry(project).or_insert_with(|| Arc::new(Semaphore::new(most))).clone()
        };
        Ok(Room { _share: turn(&share).await?, _whole: turn(&self.transfers).await? })
    }

    /// Starts git, all three streams piped.
    pub(crate) fn spawn<S: AsRef<OsStr>>(
        &self,
        directory: Option<&Path>,
        config: &[String],
        environment: &[(&'static str, String)],
        args: &[S],
    ) -> Result<Running, GitError> {
        let mut command = Command::new("git");
        command.env_clear().envs([
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
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
            // No transport at all, whatever the settings say: git reads and writes the one repository it is given.
            ("GIT_ALLOW_PROTOCOL", ""),
        ]);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        for setting in SETTINGS.iter().copied().chain(config.iter().map(String::as_str)) {
            command.args(["-c", setting]);
        }
        if let Some(directory) = directory {
            command.arg("--git-dir").arg(directory).current_dir(directory);
        } else {
            command.current_dir("/");
        }
        command.args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: git starts others, and they are to end with it.
        command.process_group(0).kill_on_drop(true);
        let child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => GitError::Missing,
            _ => GitError::Failed(format!("it could not be started: {error}")),
        })?;
        let running = Running { child, is_over: false };
        running.limit(self.limits.memory);
        Ok(running)
    }

    /// Looks once whether git is there and new enough to merge without a work tree.
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

/// Leave to fetch or push, until it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _share: OwnedSemaphorePermit,
    _whole: OwnedSemaphorePermit,
}

/// What holds for every call.
const SETTINGS: [&str; 21] = [
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
    "pack.windowMemory=128m",
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

async fn turn(room: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, GitError> {
    let permit = tokio::time::timeout(TURN, room.clone().acquire_owned()).await;
    permit.map_err(|_| GitError::Busy)?.map_err(|_| GitError::Busy)
}

/// Reads up to `most` bytes; says whether there was more.
async fn take(mut from: impl AsyncRead + Unpin, most: usize) -> (Vec<u8>, bool) {
    let mut taken = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    // What is broken off is short, and the exit code tells.
    let _ = (&mut from).take(limit).read_to_end(&mut taken).await;
    let cut = taken.len() > most;
    taken.truncate(most);
    (taken, cut)
}

/// A git that runs; it ends with this, and all that it has started.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    is_over: bool,
}

type Pipes = (tokio::process::ChildStdin, tokio::process::ChildStdout, tokio::process::ChildStderr);

impl Running {
    /// Its streams, once.
    pub(crate) fn pipes(&mut self) -> Pipes {
        let child = &mut self.child;
        let all = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        match all {
            (Some(stdin), Some(stdout), Some(stderr)) => (stdin, stdout, stderr),
            _ => unreachable!("all three are piped, and taken once"),
        }
    }

    /// Waits for its end; `None` where a signal ended it.
    pub(crate) async fn wait(&mut self) -> Result<Option<i32>, GitError> {
        let status = self.child.wait().await;
        self.is_over = true;
        status.map(|status| status.code()).map_err(|error| GitError::Failed(error.to_string()))
    }

    /// Ends it now.
    pub(crate) fn end(&self) {
        // Until it was waited for, its number is not another's.
        if !self.is_over
            && let Some(group) = self.pid()
        {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }

    fn pid(&self) -> Option<Pid> {
        self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
    }

    /// Best effort, next to the settings that bound memory: what git starts in its first instant escapes it.
    fn limit(&self, memory: u64) {
        let Some(pid) = self.pid() else { return };
        for (resource, most) in [(Resource::As, memory), (Resource::Core, 0)] {
            let limit = Rlimit { current: Some(most), maximum: Some(most) };
            if let Err(error) = rustix::process::prlimit(Some(pid), resource, limit) {
                tracing::debug!("could not limit git: {error}");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where repositories lie: paths are made of ids alone.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_project_has_half_of_the_room() {
        let git = Git::new(GitLimits { transfers: 2, ..GitLimits::default() });
        let (one, two) = (ProjectId::generate(), ProjectId::generate());
        let held = git.transfer(one).await.unwrap();
        let share = git.shares.lock().unwrap().get(&one).unwrap().clone();
        assert_eq!(share.available_permits(), 0, "a second one of the same project waits");
        let other = git.transfer(two).await.unwrap();
        drop((held, other, share));
        git.transfer(one).await.unwrap();
        assert_eq!(git.shares.lock().unwrap().len(), 1, "shares that nobody holds are forgotten");
    }

    #[tokio::test]
    async fn git_follows_no_path_and_no_url() {
        let (git, dir) = (Git::new(GitLimits::default()), tempfile::TempDir::new().unwrap());
        let (one, two) = (dir.path().join("one.git"), dir.path().join("two.git"));
        for place in [&one, &two] {
            let call = Call { directory: None, ..Call::within(place) };
            let path = place.to_string_lossy();
            git.run(call, &["init", "--quiet", "--bare", "--template=", "--", &path])
                .await
                .unwrap()
                .good()
                .unwrap();
        }
        let pointer = dir.path().join("pointer");
        std::fs::write(&pointer, format!("gitdir: {}\n", two.display())).unwrap();
        for from in
            [pointer.display().to_string(), two.display().to_string(), format!("file://{}", two.display())]
        {
            for config in [vec![], vec!["protocol.file.allow=always".to_string()]] {
                let call = Call { config, ..Call::within(&one) };
                let done = git.run(call, &["fetch", "--quiet", &from]).await.unwrap();
                assert!(done.stderr.contains("transport 'file' not allowed"), "{from}: {}", done.stderr);
            }
        }
    }

    #[tokio::test]
    async fn what_takes_too_long_ends_with_all_it_started() {
        let (git, dir) = (Git::new(GitLimits::default()), tempfile::TempDir::new().unwrap());
        let told = dir.path().join("pid");
        let alias = format!("alias.wait=!echo $$ > {}; sleep 600", told.display());
        let call = Call { time: Some(Duration::from_secs(2)), ..Call::within(Path::new("/")) };
        let slow = git.run(Call { directory: None, ..call }, &["-c", &alias, "wait"]).await;
        assert_eq!(slow.err(), Some(GitError::TimedOut));
        let pid: i32 = std::fs::read_to_string(told).unwrap().trim().parse().unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        for _ in 0..500 {
            if rustix::process::test_kill_process(pid).is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("what git had started still runs");
    }
}
