//! The sandbox of a build: commands, files and snapshots in it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::{BuildLogLevel, DestroyReason, ExecutionId, SnapshotPurpose, TemplateDefaults, chain};
use coffer_fleet::exec::{Command, End, Exec, ExecError, Step as Output, reach};
use coffer_fleet::output::{Patterns, Redactor};
use coffer_fleet::{Fleet, FleetError, MemoryWish, Record, SnapshotSpec};
use coffer_guest::{GuestError, Wake};
use coffer_store::{OverQuota, ProjectScope, SnapshotRow, Store};
use coffer_wire::agentd::{Unpack, Unpacked};
use futures_util::TryStreamExt as _;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::fs::File;
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::log::{BuildLog, Lines};
use crate::step::expand;

/// How much of an archive is sent at once.
const PIECE: usize = 1 << 18;
/// Lines of a failed command that its error repeats.
const TAIL: usize = 20;
/// Output of a command that is read as a whole.
const MOST_OUTPUT: usize = 16 * 1024;

/// The default search path of commands, which `$PATH` in a value means if no step set one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Shell functions that add a user. Small images have neither of the programs for it, and perhaps no `id`.
pub(crate) const ADD_USER: &str = r#"
    is_known() {
        [ -e /etc/passwd ] || return 1
        while IFS=: read -r name rest; do [ "$name" = "$1" ] && return 0; done < /etc/passwd
        return 1
    }
    add_user() {
        is_known "$1" && return 0
        shell=/bin/bash; [ -x "$shell" ] || shell=/bin/sh
        if command -v useradd >/dev/null 2>&1; then useradd -m -s "$shell" -- "$1"; return; fi
        if command -v adduser >/dev/null 2>&1 && adduser -D -- "$1" 2>/dev/null; then return 0; fi
        mkdir -p /etc "/home/$1" || return 1
        number=1000
        if [ -e /etc/passwd ]; then
            while IFS=: read -r name word used rest; do
                case $used in ''|*[!0-9]*) ;; *) [ "$used" -ge "$number" ] && [ "$used" -lt 60000 ] && number=$((used + 1)) ;; esac
            done < /etc/passwd
        fi
        echo "$1:x:$number:$number::/home/$1:$shell" >> /etc/passwd && echo "$1:x:$number:" >> /etc/group
        chown "$number:$number" "/home/$1"
    }"#;

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The build is wrong: the client has to change it.
    #[error("{0}")]
    Failed(String),
    /// The host or the sandbox failed: the same may work again.
    #[error("{0}")]
    Transient(String),
    /// The project's quota is used up; deleting old results may help.
    #[error("{0}")]
    NoRoom(OverQuota),
}

impl From<ExecError> for StepError {
    fn from(error: ExecError) -> Self {
        let text = match &error {
            ExecError::Guest(GuestError::Refused { message, .. })
                if message.starts_with("invalid username") =>
            {
                // The SDKs' tests compare this text.
                return Self::Failed(format!("command failed: unauthenticated: {message}"));
            }
            ExecError::Guest(GuestError::Refused { message, .. }) => message.clone(),
            error => chain(error),
        };
        if error.is_transient() { Self::Transient(text) } else { Self::Failed(text) }
    }
}

impl From<FleetError> for StepError {
    fn from(error: FleetError) -> Self {
        if let FleetError::OverQuota(over) = &error {
            return Self::NoRoom(over.clone());
        }
        let text = chain(&error);
        if error.is_transient() { Self::Transient(text) } else { Self::Failed(text) }
    }
}

/// What a command has besides the template's variables.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    pub(crate) user: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Values that must not be in the log.
    pub(crate) secrets: BTreeMap<String, String>,
}

/// The tasks of the service, to end a sandbox whose build was dropped.
#[derive(Debug, Clone)]
pub(crate) struct Leash {
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the server stops; the next one ends the sandbox then.
    pub(crate) stop: CancellationToken,
}

/// A running sandbox of a build. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Workplace {
    pub(crate) exec: Exec,
    pub(crate) scope: ProjectScope,
    pub(crate) record: Arc<Record>,
    /// What the next step starts with.
    pub(crate) defaults: TemplateDefaults,
    /// How much of the sandbox's disk earlier snapshots are charged for.
    counted_bytes: u64,
    /// Whether it has `/bin/bash`, once that is known.
    has_bash: bool,
    /// Taken when the sandbox is ended in an orderly way.
    leash: Option<Leash>,
}

impl Drop for Workplace {
    /// The build was cancelled in the middle of something: a row of the database may not name the sandbox yet.
    fn drop(&mut self) {
        let Some(leash) = self.leash.take().filter(|leash| !leash.stop.is_cancelled()) else { return };
        let (fleet, record) = (self.exec.fleet.clone(), self.record.clone());
        leash.tasks.spawn(async move { end(&fleet, record).await });
    }
}

async fn end(fleet: &Arc<Fleet>, record: Arc<Record>) {
    let id = record.id;
    if let Err(error) = fleet.destroy(record, DestroyReason::Requested).await {
        tracing::warn!(sandbox.id = %id, "could not destroy the sandbox {id} of a build: {}", chain(&error));
    }
}

impl Workplace {
    pub(crate) fn new(
        exec: Exec,
        scope: ProjectScope,
        record: Arc<Record>,
        defaults: Option<TemplateDefaults>,
        leash: Leash,
    ) -> Self {
        let placed = record.row().placement.map(|placement| placement.template);
        let placed = placed.map(|template| TemplateDefaults {
            user: template.default_user,
            workdir: template.default_workdir,
            env: template.env,
            start: None,
        });
        let root = || TemplateDefaults {
            user: "root".to_string(),
            workdir: None,
            env: BTreeMap::new(),
            start: None,
        };
        let defaults = defaults.or(placed).unwrap_or_else(root);
        Self { exec, scope, record, defaults, counted_bytes: 0, has_bash: false, leash: Some(leash) }
    }

    /// Runs a shell line and logs its output.
    pub(crate) async fn run(
        &mut self,
        line: &str,
        extras: Extras,
        timeout: Duration,
        log: &BuildLog,
    ) -> Result<(), StepError> {
        self.look_for_bash().await?;
        let mut command = self.shell(line, Some(timeout));
        let patterns = self.exec.output.patterns_in(&*self.record);
        let patterns = patterns.with(extras.secrets.values().map(String::as_str));
        command.user = extras.user.or(command.user);
        command.env.extend(extras.env);
        command.env.extend(extras.secrets);
        let mut tail = std::collections::VecDeque::new();
        let ended = self.follow(command, &patterns, log, &mut tail).await;
        let failed = match ended {
            Ok(0) => return Ok(()),
            Ok(code) => {
                let mut message = format!("exit status {code}");
                for line in tail {
                    message = format!("{message}\n{line}");
                }
                StepError::Failed(message)
            }
            Err(error) => error,
        };
        let shown: String = line.chars().take(1000).collect();
        Err(match failed {
            StepError::Failed(why) => StepError::Failed(format!("failed to run command '{shown}': {why}")),
            transient => transient,
        })
    }

    /// Starts a shell line that runs on.
    pub(crate) async fn launch(&mut self, line: &str) -> Result<ExecutionId, StepError> {
        self.look_for_bash().await?;
        let id = ExecutionId::generate();
        self.exec.launch(&self.record, id, self.shell(line, None)).await?;
        Ok(id)
    }

    /// Whether a shell line succeeds.
    pub(crate) async fn succeeds(&self, line: &str, timeout: Duration) -> Result<bool, StepError> {
        let result = self.exec.run(&self.record, self.shell(line, Some(timeout)), None).await?;
        Ok(result.succeeded())
    }

    /// Whether a shell line succeeds, and what it prints, errors last.
    pub(crate) async fn output(&self, line: &str, timeout: Duration) -> Result<(bool, String), StepError> {
        let command = Command { most: MOST_OUTPUT, ..self.shell(line, Some(timeout)) };
        let result = self.exec.run(&self.record, command, None).await?;
        let printed = format!("{}{}", String::from_utf8_lossy(&result.stdout), result.stderr);
        Ok((result.succeeded(), printed))
    }

    /// The exit code of a launched line, if it failed.
    pub(crate) async fn ended_badly(&self, store: &Store, id: ExecutionId) -> Result<Option<i64>, StepError> {
        let row = store.execution(&self.scope, id).await;
        let row = row.map_err(|error| StepError::Transient(chain(&error)))?;
        Ok(row.and_then(|row| row.exit_code).filter(|code| *code != 0))
    }

    /// Small images have only `/bin/sh`. A step may install bash, so that it is looked for until it is there.
    async fn look_for_bash(&mut self) -> Result<(), StepError> {
        if !self.has_bash {
            (self.has_bash, _) = self.root("[ -x /bin/bash ]", &[]).await?;
        }
        Ok(())
    }

    fn shell(&self, line: &str, timeout: Option<Duration>) -> Command {
        let shell = if self.has_bash { "/bin/bash" } else { "/bin/sh" };
        Command {
            words: [shell, "-l", "-c", line].map(String::from).to_vec(),
            shown: Some(line.to_string()),
            cwd: self.defaults.workdir.clone(),
            env: self.defaults.env.clone(),
            user: Some(self.defaults.user.clone()),
            timeout,
            ..Command::default()
        }
    }

    /// Runs a command of our own as root, quietly. Returns whether it succeeded, and what it wrote to its errors.
    pub(crate) async fn root(&self, script: &str, arguments: &[&str]) -> Result<(bool, String), StepError> {
        let mut words: Vec<String> = ["/bin/sh", "-c", script, "sh"].map(String::from).to_vec();
        words.extend(arguments.iter().map(ToString::to_string));
        let command = Command {
            words,
            cwd: Some("/".to_string()),
            user: Some("root".to_string()),
            timeout: Some(Duration::from_secs(60)),
            most: 4096,
            ..Command::default()
        };
        let result = self.exec.run(&self.record, command, None).await?;
        Ok((result.succeeded(), result.stderr.trim().to_string()))
    }

    async fn follow(
        &self,
        command: Command,
        patterns: &Patterns,
        log: &BuildLog,
        tail: &mut std::collections::VecDeque<String>,
    ) -> Result<i32, StepError> {
        let guest = self.exec.admit(&self.record, &command).await?;
        let mut run = self.exec.start(&self.record, guest, ExecutionId::generate(), command, None).await?;
        let (mut stdout, mut stderr) = (Lines::default(), Lines::default());
        // Before it is split: a secret may have several lines, or arrive in pieces.
        let (mut clean_stdout, mut clean_stderr) = (Redactor::default(), Redactor::default());
        let mut write = async |lines: Vec<String>, level| {
            for line in lines {
                if tail.len() == TAIL {
                    tail.pop_front();
                }
                tail.push_back(line.clone());
                log.add(level, line).await;
            }
        };
        let end = loop {
            match run.step().await.map_err(ExecError::from)? {
                Output::Stdout(data) => {
                    let data = clean_stdout.push(patterns, &data);
                    write(stdout.add(&data), BuildLogLevel::Info).await;
                }
                Output::Stderr(data) => {
                    let data = clean_stderr.push(patterns, &data);
                    write(stderr.add(&data), BuildLogLevel::Warn).await;
                }
                Output::Nothing => {}
                Output::End(end) => break end,
            }
        };
        for (lines, clean, level) in [
            (&mut stdout, &mut clean_stdout, BuildLogLevel::Info),
            (&mut stderr, &mut clean_stderr, BuildLogLevel::Warn),
        ] {
            let mut rest = lines.add(&clean.flush(patterns));
            rest.extend(lines.take());
            write(rest, level).await;
        }
        match end {
            End::Exited(end) => Ok(end.exit_code),
            End::TimedOut => Err(StepError::Failed("it exceeded the time limit of the build".to_string())),
        }
    }

    /// Unpacks an archive.
    pub(crate) async fn unpack(&self, how: &Unpack, archive: File) -> Result<Unpacked, StepError> {
        let guest = reach(&self.exec.fleet, &self.record, Wake::ByPolicy).await?;
        let pieces = ReaderStream::with_capacity(archive, PIECE).map_ok(Frame::data);
        let unpacked = guest.unpack(how, StreamBody::new(pieces)).await;
        unpacked.map_err(|error| match error {
            // It is the archive's fault, or the disk limit's.
            GuestError::Refused { message, .. } => StepError::Failed(message),
            error => ExecError::from(error).into(),
        })
    }

    pub(crate) fn set_env(&mut self, pairs: &[(String, String)]) {
        for (name, value) in pairs {
            let mut variables = self.defaults.env.clone();
            variables.entry("PATH".to_string()).or_insert_with(|| DEFAULT_PATH.to_string());
            let value = expand(value, &variables);
            self.defaults.env.insert(name.clone(), value);
        }
    }

    /// Makes a directory the working directory, and creates it for the current user if it does not exist.
    pub(crate) async fn set_workdir(&mut self, path: &str) -> Result<(), StepError> {
        let path = self.absolute(&expand(path, &self.defaults.env)).await?;
        let script = "[ -d \"$1\" ] || { mkdir -p -- \"$1\" && chown \"$2\" -- \"$1\"; }";
        match self.root(script, &[&path, &self.defaults.user]).await? {
            (true, _) => {
                self.defaults.workdir = Some(path);
                Ok(())
            }
            (false, why) => Err(StepError::Failed(format!("failed to create workdir '{path}': {why}"))),
        }
    }

    /// Makes a user the default one, and creates it if it does not exist.
    pub(crate) async fn set_user(&mut self, name: &str) -> Result<(), StepError> {
        // A number needs no entry.
        let script = format!("{ADD_USER}\n case $1 in *[!0-9]*) add_user \"$1\" ;; esac");
        match self.root(&script, &[name]).await? {
            (true, _) => {
                self.defaults.user = name.to_string();
                Ok(())
            }
            (false, why) => Err(StepError::Failed(format!("failed to create user '{name}': {why}"))),
        }
    }

    /// A path as the current user means it: below the working directory, or else its home.
    pub(crate) async fn absolute(&self, path: &str) -> Result<String, StepError> {
        if path.starts_with('/') {
            return Ok(path.to_string());
        }
        let base = match &self.defaults.workdir {
            Some(workdir) => workdir.clone(),
            None => {
                let command = Command {
                    words: ["/bin/sh", "-c", "cd && pwd"].map(String::from).to_vec(),
                    user: Some(self.defaults.user.clone()),
                    timeout: Some(Duration::from_secs(60)),
                    most: 4096,
                    ..Command::default()
                };
                let home = self.exec.run(&self.record, command, None).await?;
                String::from_utf8_lossy(&home.stdout).trim().to_string()
            }
        };
        let path = path.strip_prefix("./").unwrap_or(path);
        let path = if path == "." { "" } else { path };
        Ok(format!("{}/{path}", base.trim_end_matches('/')))
    }

    /// Takes a snapshot that carries the defaults.
    pub(crate) async fn snapshot(
        &mut self,
        purpose: SnapshotPurpose,
        memory: Option<bool>,
        created_by: Option<String>,
    ) -> Result<SnapshotRow, StepError> {
        let fleet = &self.exec.fleet;
        fleet.set_defaults(&self.record, &self.defaults).await?;
        let spec = SnapshotSpec {
            wish: MemoryWish { memory, with_secrets: false },
            created_by,
            purpose,
            counted_bytes: self.counted_bytes,
            ..SnapshotSpec::default()
        };
        let row = fleet.snapshot(self.scope, self.record.clone(), spec).await?;
        self.counted_bytes += row.files_bytes;
        Ok(row)
    }

    pub(crate) async fn destroy(mut self) {
        let (fleet, record) = (self.exec.fleet.clone(), self.record.clone());
        end(&fleet, record).await;
        self.leash = None;
    }
}
