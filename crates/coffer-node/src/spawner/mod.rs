//! The spawner: a small single-threaded process of the same binary that creates sandboxes.
//!
//! The node has threads, and a process with threads must not clone itself and continue. So it starts this one
//! with only a socket on its standard input, sends it requests with descriptors ([`request`]), and gets back
//! pidfds. The steps in between:
//!
//! 1. [`serve`] clones into new namespaces and, if there is one, a v2 cgroup.
//! 2. It writes the id maps, creates the overlays ([`overlay`]), and sends them to the child.
//! 3. The [`child`] builds its tree ([`filesystem`]), drops its rights ([`seccomp`]), becomes agentd.

mod bpf;
mod calls;
mod child;
mod client;
mod filesystem;
mod hand_over;
mod kernel;
mod overlay;
mod own_mounts;
mod packet;
mod probe;
mod progress;
pub(crate) mod request;
mod restorer;
mod seccomp;
mod serve;
mod setup_error;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub(crate) use client::{SpawnError, Spawned, SpawnerClient};
pub(crate) use filesystem::{IN_THE_WAY as VOLUME_IN_THE_WAY, comes_from_outside};
pub(crate) use probe::Prober;
pub(crate) use progress::Progress;
pub(crate) use request::OverlayRecipe;
pub use serve::spawner_main;

/// A running spawner, and how to start another one if it ends.
#[derive(Debug)]
pub struct Spawner {
    program: PathBuf,
    arguments: Vec<OsString>,
    socket: OwnedFd,
    process: Child,
}

impl Spawner {
    /// Starts `spawner`, the hidden subcommand of this very binary. Best called before the program
    /// has threads, so that the copy stays small.
    pub fn start() -> io::Result<Self> {
        Self::start_as("/proc/self/exe", ["spawner"])
    }

    /// Starts another program that calls [`spawner_main`].
    pub fn start_as<A: Into<OsString>>(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = A>,
    ) -> io::Result<Self> {
        let (program, arguments) = (program.into(), arguments.into_iter().map(Into::into).collect());
        let (socket, process) = launch(&program, &arguments)?;
        Ok(Self { program, arguments, socket, process })
    }

    /// How to probe this kernel's features.
    pub(crate) fn prober(&self) -> Prober {
        Prober { program: self.program.clone(), arguments: self.arguments.clone() }
    }

    /// Its process id, for callers that watch it.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

fn launch(program: &PathBuf, arguments: &Vec<OsString>) -> io::Result<(OwnedFd, Child)> {
    let (ours, theirs) = packet::pair()?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let process = Command::new(program)
        .args(arguments)
        .env_clear()
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .current_dir("/")
        .spawn()?;
    Ok((ours, process))
}
