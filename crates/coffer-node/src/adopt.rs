//! What a node does first: takes up what an earlier one left, removes what belongs to nobody.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coffer_core::SandboxId;
use coffer_wire::node::{DeathCause, Orphan};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;

use crate::cgroup::SandboxCgroup;
use crate::journal::{Durability, Entry, Phase};
use crate::node::Node;
use crate::process::{Alive, Process, Watched};
use crate::sandbox::{self, Record, Remains, State};

/// A CRIU without a node gives up at once; what it holds is then ended or let go.
const DONE_WITHIN: Duration = Duration::from_secs(30);
/// Whoever writes to a directory meanwhile can have it deleted in vain a few times.
const FORGETS: u32 = 10;
const DYING: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Runs before the node answers anyone. Tells what it removed because nobody owned it.
pub(crate) fn adopt(node: &Arc<Node>) -> io::Result<Vec<Orphan>> {
    let entries = node.journal.read()?;
    // All at once, so that they die beside each other: slots of the last node are among them.
    for entry in &entries {
        if matches!(entry.phase, Phase::Creating | Phase::Destroying) {
            node.cgroups.of(entry.name()).kill();
        }
    }
    let mut kept = Kept::default();
    let mut ended = Vec::new();
    for entry in entries {
        let id = entry.spec.sandbox;
        match find(node, &entry) {
            Outcome::Holds(state) => {
                if let Err(error) = node.uids.take_again(entry.uid_base) {
                    tracing::error!(sandbox.id = %id, "sandbox {id}: {error}");
                }
                node.processors.take_again(&entry.cpus);
                kept.names.insert(entry.name());
                kept.files.insert(entry.files_name());
                let entry = as_it_runs(node, entry, &state);
                node.sandboxes.insert(sandbox::adopt(node, entry, state));
            }
            Outcome::Died(cause) => {
                let entry = Entry { phase: Phase::Dead { cause: cause.clone() }, ..entry };
                node.journal.write(&entry, Durability::Cached)?;
                node.sandboxes.insert(sandbox::adopt(node, entry.clone(), State::Dead(cause)));
                ended.push((entry, Record::Kept));
            }
            Outcome::Unwanted => ended.push((entry, Record::Removed)),
        }
    }
    if !kept.names.is_empty() || !ended.is_empty() {
        // Those that ended were being made or destroyed, waited for an owner, or died meanwhile.
        tracing::info!("took up {} sandboxes, giving back {} that ended", kept.names.len(), ended.len());
    }
    for (entry, record) in ended {
        end(node, &entry, record);
    }
    node.snapshots.load(&node.pool)?;
    let orphans = sweep(node, &kept)?;
    node.pool.sweep()?;
    // A CRIU that an earlier node left may still write there; what it leaves the next start removes.
    if let Err(error) = node.images.sweep() {
        tracing::warn!("could not remove what is left of images: {error}");
    }
    Ok(orphans)
}

/// What belongs to the sandboxes that were taken up.
#[derive(Default)]
struct Kept {
    names: HashSet<SandboxId>,
    files: HashSet<String>,
}

enum Outcome {
    /// It has files, and perhaps processes.
    Holds(State),
    Died(DeathCause),
    /// Nobody was ever told of it (a slot, perhaps), or its end was asked for.
    Unwanted,
}

fn find(node: &Arc<Node>, entry: &Entry) -> Outcome {
    let (id, name) = (entry.spec.sandbox, entry.name());
    match &entry.phase {
        Phase::Creating | Phase::Destroying => Outcome::Unwanted,
        Phase::Dead { cause } => Outcome::Died(cause.clone()),
        Phase::Stopped | Phase::Starting | Phase::Stopping => {
            // A start or stop that was cut off: its processes go, its files are as they were.
            end_processes(&node.cgroups.of(name));
            sandbox::clear_run(node, name);
            match node.pool.find(&entry.files_name()).and_then(|_| safe(node, entry)) {
                Ok(()) => Outcome::Holds(State::Stopped),
                Err(error) => {
                    tracing::error!(sandbox.id = %id, "the files of stopped sandbox {id} are gone: {error}");
                    Outcome::Died(DeathCause::Unseen)
                }
            }
        }
        Phase::Hibernated => hibernated(node, entry),
        Phase::Waking { process } if process.host_boot_id != node.host_boot_id => {
            gone_with_the_host(node, entry, "woke up")
        }
        Phase::Hibernating { process } | Phase::Waking { process }
            if !outlives_criu(node, entry, process) =>
        {
            // Its processes ended after its memory was saved, or before they could run again: what was doing
            // the one or the other was ended before it could note that.
            hibernated(node, entry)
        }
        Phase::Running { process } | Phase::Hibernating { process } | Phase::Waking { process } => {
            let unseen = Outcome::Died(DeathCause::Unseen);
            let Some(pidfd) = Watched::again(process, &node.host_boot_id) else {
                let rebooted = process.host_boot_id != node.host_boot_id;
                return match rebooted && node.pool.is_marked_frozen(&entry.files_name()) {
                    true => gone_with_the_host(node, entry, "was frozen"),
                    false => unseen,
                };
            };
            let quota = node.pool.find(&entry.files_name()).ok().and_then(|upper| upper.quota);
            let frozen = stands_still(node, entry);
            match Watched::new(pidfd, None) {
                Ok(watched) => {
                    let alive = Alive { watched, cgroup: node.cgroups.of(name), quota };
                    Outcome::Holds(if frozen { State::Frozen(alive) } else { State::Running(alive) })
                }
                Err(_) => unseen,
            }
        }
    }
}

/// Whether a sandbox is frozen because somebody wanted it so. One without the mark stood still for a snapshot
/// that was cut off, or for a freeze that nobody was told of: it goes on.
fn stands_still(node: &Node, entry: &Entry) -> bool {
    let cgroup = node.cgroups.of(entry.name());
    let frozen = cgroup.is_frozen().unwrap_or(false);
    let wanted = !node.pool.has_quota() || node.pool.is_marked_frozen(&entry.files_name());
    frozen && (wanted || cgroup.thaw().is_err())
}

/// The processes of a sandbox went with the host: its files are there, and it is stopped from here on.
fn gone_with_the_host(node: &Arc<Node>, entry: &Entry, did: &str) -> Outcome {
    let (id, files) = (entry.spec.sandbox, entry.files_name());
    sandbox::clear_run(node, entry.name());
    let stopped = Entry { phase: Phase::Stopped, ..entry.clone() };
    let taken_up = node.pool.find(&files).and_then(|_| {
        node.journal.write(&stopped, Durability::Synced)?;
        node.images.of_sandbox(&entry.name().to_string()).forget()?;
        node.pool.unmark_frozen(&files)
    });
    match taken_up {
        Ok(()) => {
            tracing::warn!(sandbox.id = %id, "the memory of sandbox {id}, which {did}, went with the host");
            Outcome::Holds(State::Stopped)
        }
        Err(error) => {
            tracing::error!(sandbox.id = %id, "could not take up sandbox {id}, which {did}: {error}");
            Outcome::Died(DeathCause::Unseen)
        }
    }
}

/// Whether a sandbox has processes once a CRIU is done with them that an earlier node had begun: it may be
/// about to end them.
fn outlives_criu(node: &Node, entry: &Entry, process: &Process) -> bool {
    if Watched::again(process, &node.host_boot_id).is_none() {
        return false;
    }
    let cgroup = node.cgroups.of(entry.name());
    let deadline = Instant::now() + DONE_WITHIN;
    while is_at_work(&cgroup, process) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let Some(pidfd) = Watched::again(process, &node.host_boot_id) else { return false };
    // Those that it ended take a moment.
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&DYING)) == Ok(0)
}

/// Whether CRIU holds that process, or is in its sandbox's cgroup, as it is while it restores.
fn is_at_work(cgroup: &SandboxCgroup, process: &Process) -> bool {
    let own = fs::read_link("/proc/self/ns/pid").ok();
    let is_outside = |pid: Pid| fs::read_link(format!("/proc/{}/ns/pid", pid.as_raw_nonzero())).ok() == own;
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() != "0") || cgroup.processes().into_iter().any(is_outside)
}

/// Its image must be there; whether it is whole is found out when it is used.
fn hibernated(node: &Arc<Node>, entry: &Entry) -> Outcome {
    let name = entry.name();
    end_processes(&node.cgroups.of(name));
    sandbox::clear_processes(node, name);
    let noted = Entry { phase: Phase::Hibernated, ..entry.clone() };
    let kept =
        node.pool.find(&entry.files_name()).and_then(|_| node.journal.write(&noted, Durability::Synced));
    match kept {
        Ok(()) => Outcome::Holds(State::Hibernated),
        Err(error) => {
            let id = entry.spec.sandbox;
            tracing::error!(sandbox.id = %id, "the files of hibernated sandbox {id} are gone: {error}");
            Outcome::Died(DeathCause::Unseen)
        }
    }
}

/// The entry of a sandbox that goes on: a hibernation that was cut off before it counted never was, and a waking
/// that got as far as processes is over.
fn as_it_runs(node: &Node, entry: Entry, state: &State) -> Entry {
    match (entry.phase, state) {
        (
            Phase::Hibernating { process } | Phase::Waking { process },
            State::Running(_) | State::Frozen(_),
        ) => {
            let entry = Entry { phase: Phase::Running { process }, ..entry };
            let undone = node
                .journal
                .write(&entry, Durability::Synced)
                .and_then(|()| node.images.of_sandbox(&entry.name().to_string()).forget());
            if let Err(error) = undone {
                tracing::warn!("sandbox {}, whose saved memory is old: {error}", entry.spec.sandbox);
            }
            entry
        }
        (phase @ Phase::Running { .. }, State::Running(_) | State::Frozen(_)) => {
            let entry = Entry { phase, ..entry };
            // Of a dump that was cut off. A CRIU that still writes there fails, and lets the processes go on.
            let image = node.images.of_sandbox(&entry.name().to_string());
            if (0..FORGETS).all(|_| image.forget().is_err()) {
                tracing::warn!(
                    "could not remove the image of sandbox {}, which is of no use",
                    entry.spec.sandbox
                );
            }
            entry
        }
        (Phase::Hibernating { .. } | Phase::Waking { .. }, State::Hibernated) => {
            Entry { phase: Phase::Hibernated, ..entry }
        }
        (_, State::Stopped) => Entry { phase: Phase::Stopped, ..entry },
        (phase, _) => Entry { phase, ..entry },
    }
}

/// Finishes a stop that was cut off: from here on its files outlive the host's own crash.
fn safe(node: &Node, entry: &Entry) -> io::Result<()> {
    if entry.phase != Phase::Stopping {
        return Ok(());
    }
    node.pool.sync()?;
    node.journal.write(&Entry { phase: Phase::Stopped, ..entry.clone() }, Durability::Synced)
}

/// Ends processes that nobody watches, and removes their cgroup.
fn end_processes(cgroup: &SandboxCgroup) {
    let processes = cgroup.processes();
    for _ in 0..100 {
        cgroup.kill();
        if cgroup.remove().is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // Some may have become children of this process.
    for pid in processes {
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
}

/// Gives back what an entry without processes of its own has.
fn end(node: &Arc<Node>, entry: &Entry, record: Record) {
    let name = entry.name();
    end_processes(&node.cgroups.of(name));
    // Neither ids nor processors were taken in this node. Its ids may be another's by now: they are given
    // back before its entry goes.
    let files = entry.files_name();
    let remains = Remains { node: node.clone(), name, files, uid_base: None, cpus: Vec::new(), record };
    if !remains.give_back() {
        // What has these ids is still there, so nobody else may have them.
        if let Err(error) = node.uids.take_again(entry.uid_base) {
            tracing::error!(sandbox.id = %name, "sandbox {name}: {error}");
        }
    }
}

/// Removes everything of ours that belongs to no sandbox that we know, and says what it was.
fn sweep(node: &Arc<Node>, kept: &Kept) -> io::Result<Vec<Orphan>> {
    let ownerless = |name: &str| name.parse().map_or(true, |id: SandboxId| !kept.names.contains(&id));
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut note = |name: &str, what: String| found.entry(name.to_string()).or_default().push(what);
    for name in node.cgroups.names().into_iter().filter(|name| ownerless(name)) {
        if let Ok(id) = name.parse() {
            let cgroup = node.cgroups.of(id);
            note(&name, format!("a cgroup with {} processes", cgroup.processes().len()));
            end_processes(&cgroup);
        }
    }
    for name in node.pool.names()?.into_iter().filter(|name| !kept.files.contains(name)) {
        // Other files than it has now, of a rollback that was cut off, are no orphan.
        if ownerless(name.split_once('-').map_or(&name, |(owner, _)| owner)) {
            note(&name, "files".into());
        }
        if let Err(error) = node.pool.delete(&name) {
            tracing::error!("could not delete the files of unknown sandbox `{name}`: {error}");
        }
    }
    let directories = [
        (node.run_dir.join("s"), ".sock", "a socket"),
        (node.pool.small_files(), "", "small files"),
        (node.images.directory().to_path_buf(), "", "saved memory"),
    ];
    for (directory, suffix, what) in directories {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let name = name.strip_suffix(suffix).unwrap_or(&name);
            if ownerless(name) {
                note(name, what.into());
                let _ = fs::remove_file(entry.path()).or_else(|_| fs::remove_dir_all(entry.path()));
            }
        }
    }
    let orphans: Vec<_> = found.into_iter().map(|(name, had)| Orphan { name, had }).collect();
    for Orphan { name, had } in &orphans {
        tracing::warn!(orphan = %name, "removed the orphan `{name}`: {}", had.join(", "));
    }
    Ok(orphans)
}
