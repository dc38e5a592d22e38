//! Confines git: even if an attacker controls it, it can access only its own repository and the system's
//! programs, and no other file, socket or process.
//!
//! Landlock and seccomp apply to a thread and its children, so a thread restricts itself, starts git and
//! ends. Unlike `pre_exec` this runs no code between fork and exec, and copies none of the server's memory
//! maps.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, Scope,
};
use seccompiler::BpfProgram;

use super::calls;

/// Enough for a thread that starts git; many of them must fit the memory of one git.
pub(super) const STACK: usize = 512 << 10;

/// The newest access rights that this code knows; an older kernel enforces fewer.
const NEWEST: ABI = ABI::V6;
/// The oldest version that git can work under: earlier ones do not allow moving files between directories.
const OLDEST: ABI = ABI::V2;

/// Programs and libraries.
const SYSTEM: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32"];
const LOADER_CACHE: &str = "/etc/ld.so.cache";
const NOWHERE: &str = "/dev/null";
/// Some builds of git use this for the names of temporary files.
const RANDOM: &str = "/dev/urandom";

/// Whether this kernel has Landlock, switched on and new enough for git.
pub fn has_landlock() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(OLDEST)).and_then(Ruleset::create).is_ok()
}

/// The restrictions of every git process.
#[derive(Debug)]
pub(super) struct Confinement {
    /// The directories that all may read; `None` without Landlock.
    system: Option<Vec<(PathFd, BitFlags<AccessFs>)>>,
    calls: BpfProgram,
}

impl Confinement {
    /// Without Landlock there is only the system call filter.
    pub(super) fn new(landlock: bool) -> io::Result<Self> {
        let system = landlock.then(system_places);
        Ok(Self { system, calls: calls::filter() })
    }

    /// Starts a program that may change only files in `places`.
    pub(super) fn spawn(&self, command: &mut Command, places: &[PathBuf]) -> io::Result<Child> {
        let ruleset = self.ruleset(places)?;
        let start = || {
            if let Some(ruleset) = ruleset {
                ruleset.restrict_self().map_err(io::Error::other)?;
            }
            seccompiler::apply_filter(&self.calls).map_err(io::Error::other)?;
            command.spawn()
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("git".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, start)?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts git panicked")))
        })
    }

    fn ruleset(&self, places: &[PathBuf]) -> io::Result<Option<RulesetCreated>> {
        let Some(system) = &self.system else { return Ok(None) };
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))
            .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(NEWEST)))
            .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
            .and_then(Ruleset::create)
            .map_err(io::Error::other)?;
        for (place, access) in system {
            ruleset = ruleset.add_rule(PathBeneath::new(place, *access)).map_err(io::Error::other)?;
        }
        for place in places {
            let opened = open(place)?;
            ruleset = ruleset.add_rule(PathBeneath::new(opened, own_access())).map_err(io::Error::other)?;
        }
        Ok(Some(ruleset))
    }
}

fn open(place: &Path) -> io::Result<PathFd> {
    // Not `NotFound`, which would mean that git is missing.
    PathFd::new(place).map_err(|error| io::Error::other(format!("`{}`: {error}", place.display())))
}

fn system_places() -> Vec<(PathFd, BitFlags<AccessFs>)> {
    let programs = AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir;
    let nowhere = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
    let read = BitFlags::from(AccessFs::ReadFile);
    let files = [(LOADER_CACHE, read), (RANDOM, read), (NOWHERE, nowhere)];
    let all = SYSTEM.into_iter().map(|place| (place, programs)).chain(files);
    // Skip directories that a distribution does not have.
    all.filter_map(|(place, access)| Some((PathFd::new(place).ok()?, access))).collect()
}

/// Git's access to its repository: no programs, devices or sockets.
fn own_access() -> BitFlags<AccessFs> {
    let never = AccessFs::Execute
        | AccessFs::MakeChar
        | AccessFs::MakeBlock
        | AccessFs::MakeSock
        | AccessFs::MakeFifo
        | AccessFs::IoctlDev;
    AccessFs::from_all(NEWEST) & !never
}
