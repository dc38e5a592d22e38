//! The users that the unprivileged parts run as, and how they give up root.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use nix::unistd::{Gid, Uid, User, setgroups, setresgid, setresuid};
use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};

use crate::data_dir::DataDir;
use crate::logging::Logging;

/// Above every range that distributions and containers use, below the sandboxes' own.
const FIRST_SPARE_UID: u32 = 0x6fff_0000;

/// An unprivileged identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Identity {
    /// The user `coffer` if it exists, else a spare uid that the data directory remembers.
    pub(crate) fn of_server(dir: &DataDir) -> anyhow::Result<Self> {
        Self::of("coffer", dir, &dir.server_uid_file(), None)
    }

    /// The user `coffer-egress` if it exists, else a spare uid; never the server's.
    pub(crate) fn of_egress(dir: &DataDir, server: Self) -> anyhow::Result<Self> {
        let egress = Self::of("coffer-egress", dir, &dir.egress_uid_file(), Some(server.uid))?;
        anyhow::ensure!(
            egress.uid != server.uid && egress.gid != server.gid,
            "the users `coffer` and `coffer-egress` must differ in uid and group"
        );
        Ok(egress)
    }

    fn of(user: &str, dir: &DataDir, path: &Path, taken: Option<u32>) -> anyhow::Result<Self> {
        let found = User::from_name(user).with_context(|| format!("could not look up the user `{user}`"))?;
        if let Some(user) = found {
            return Ok(Self { uid: user.uid.as_raw(), gid: user.gid.as_raw() });
        }
        let known = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        let uid = match known {
            Some(uid) if uid >= FIRST_SPARE_UID && Some(uid) != taken => uid,
            _ => {
                let spare = spare_uid(dir.root(), taken)?;
                std::fs::write(path, format!("{spare}\n"))
                    .with_context(|| format!("could not write `{}`", path.display()))?;
                spare
            }
        };
        Ok(Self { uid, gid: uid })
    }

    /// Becomes this identity permanently.
    pub(crate) fn assume(self) -> anyhow::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        // Groups first: without root they can no longer be changed.
        setgroups(&[gid]).context("could not drop root's groups")?;
        setresgid(gid, gid, gid).context("could not change to the group")?;
        setresuid(uid, uid, uid).context("could not change to the user")?;
        rustix::thread::set_no_new_privs(true).context("could not forbid new privileges")
    }
}

/// Arguments that `up` passes to every unprivileged part.
#[derive(Debug, Args)]
pub(crate) struct Unprivileged {
    #[arg(long)]
    pub(crate) run_dir: PathBuf,
    #[arg(long)]
    pub(crate) uid: u32,
    #[arg(long)]
    gid: u32,
    /// The process to end with
    #[arg(long)]
    parent: u32,
    #[command(flatten)]
    logging: Logging,
}

impl Unprivileged {
    /// Switches to the unprivileged user, arranges to end with its parent, and starts logging. Call it after
    /// everything that needs root.
    pub(crate) fn give_up_root(&self) -> anyhow::Result<()> {
        Identity { uid: self.uid, gid: self.gid }.assume()?;
        // After the change of identity, which clears the signal.
        follow_parent(self.parent, Signal::KILL)?;
        self.logging.start()
    }
}

/// Opens a socket that only one user and root can connect to, replacing the one of an earlier process.
pub(crate) fn listen_for(uid: u32, path: &Path) -> anyhow::Result<UnixListener> {
    let open = || -> std::io::Result<UnixListener> {
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        chown(path, Some(uid), None)?;
        Ok(listener)
    };
    open().with_context(|| format!("could not listen at `{}`", path.display()))
}

/// A uid that no user has; spread by directory so that two installations differ.
fn spare_uid(root: &Path, taken: Option<u32>) -> anyhow::Result<u32> {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(root.as_os_str().as_encoded_bytes());
    let start = u32::from(u16::from_be_bytes([digest[4], digest[5]]));
    for step in 0..0x1_0000 {
        let uid = FIRST_SPARE_UID + (start + step) % 0x1_0000;
        let free = User::from_uid(Uid::from_raw(uid)).context("could not look up a uid")?.is_none();
        if free && Some(uid) != taken {
            return Ok(uid);
        }
    }
    anyhow::bail!("no uid is free; add users named `coffer` and `coffer-egress`")
}

/// Raises the limit of open files to its maximum: each sandbox, client and stream needs some. Children must
/// not inherit that, so call it after the spawner was started. Returns the limit.
pub(crate) fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // Best effort: with fewer, connections wait their turn.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Asks the kernel to signal this process when `up` dies. Call it after privilege was dropped,
/// since dropping it clears the request.
pub(crate) fn follow_parent(parent: u32, signal: Signal) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(signal)).context("could not set the parent-death signal")?;
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    anyhow::ensure!(now == Some(parent), "the parent process has ended");
    Ok(())
}
