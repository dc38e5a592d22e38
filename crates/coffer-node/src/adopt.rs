//! First step of a starting node: adopts the sandboxes of the previous node and removes orphans.

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

/// CRIU gives up at once when its node is gone, and then kills or releases the processes it holds.
const DONE_WITHIN: Duration = Duration::from_secs(30);
/// Deleting a directory can fail a few times while another process still writes to it.
const FORGETS: u32 = 10;
const DYING: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Runs before the node accepts requests. Returns the orphans that it removed.
pub(crate) fn adopt(node: &Arc<Node>) -> io::Result<Vec<Orphan>> {
    let entries = node.journal.read()?;
    // Kill all of them at once, so that they die in parallel: slots of the previous node are among them.
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
                    tracing::error!(
                        sandbox.id = %id,
                        "could not reserve the uid range of sandbox {id}: {error}"
                    );
                }
                node.processors.take_again(&entry.cpus);
                node.volumes.hold_again(entry.name(), &entry.spec.volumes);
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
        // The ended ones were being created or destroyed, were unclaimed slots, or died while no node ran.
        tracing::info!("adopted {} sandboxes, releasing {} that ended", kept.names.len(), ended.len());
    }
    for (entry, record) in ended {
        end(node, &entry, record);
    }
    node.snapshots.load(&node.pool)?;
    let orphans = sweep(node, &kept)?;
    node.pool.sweep()?;
    // A CRIU of the previous node may still write there; the next start removes what it leaves.
    if let Err(error) = node.images.sweep() {
        tracing::warn!("could not remove leftover images: {error}");
    }
    Ok(orphans)
}

/// Resources of the adopted sandboxes.
#[derive(Default)]
struct Kept {
    names: HashSet<SandboxId>,
    files: HashSet<String>,
}

enum Outcome {
    /// It has files, and perhaps processes.
    Holds(State),
    Died(DeathCause),
    /// The server never got this id (it may be a slot), or asked to destroy it.
    Unwanted,
}

fn find(node: &Arc<Node>, entry: &Entry) -> Outcome {
    let (id, name) = (entry.spec.sandbox, entry.name());
    match &entry.phase {
        Phase::Creating | Phase::Destroying => Outcome::Unwanted,
        Phase::Dead { cause } => Outcome::Died(cause.clone()),
        Phase::Stopped | Phase::Starting | Phase::Stopping => {
            // An interrupted start or stop: its processes end, its files are unchanged.
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
            // Its processes ended after its memory was saved, or before they could run again; the node died
            // before it could record that.
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

/// Whether a caller asked for the sandbox to be frozen. Without the mark it was frozen for a snapshot that
/// was interrupted, or for a freeze that was never confirmed: thaw it.
fn stands_still(node: &Node, entry: &Entry) -> bool {
    let cgroup = node.cgroups.of(entry.name());
    let frozen = cgroup.is_frozen().unwrap_or(false);
    let wanted = !node.pool.has_quota() || node.pool.is_marked_frozen(&entry.files_name());
    frozen && (wanted || cgroup.thaw().is_err())
}

/// The host restarted and the processes are gone: the sandbox has its files, and is stopped from here on.
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
            tracing::warn!(sandbox.id = %id, "the host restarted: the memory of sandbox {id}, which {did}, is lost");
            Outcome::Holds(State::Stopped)
        }
        Err(error) => {
            tracing::error!(sandbox.id = %id, "could not adopt sandbox {id}, which {did}: {error}");
            Outcome::Died(DeathCause::Unseen)
        }
    }
}

/// Waits for a CRIU that an earlier node started, because it may be about to end the processes; returns
/// whether the sandbox still has any.
#[expect(clippy::disallowed_methods, reason = "runs on a thread that may block")]
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
    // Processes that it killed take a moment to exit.
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

/// Its image must exist; whether it is complete is checked when it is used.
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

/// The entry of a sandbox that keeps running: an interrupted hibernation is dropped, and a restore that has
/// started processes counts as complete.
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
                tracing::warn!(
                    "could not record that the saved memory of sandbox {} is outdated: {error}",
                    entry.spec.sandbox
                );
            }
            entry
        }
        (phase @ Phase::Running { .. }, State::Running(_) | State::Frozen(_)) => {
            let entry = Entry { phase, ..entry };
            // Left by an interrupted dump. A CRIU that still writes there fails and lets the processes continue.
            let image = node.images.of_sandbox(&entry.name().to_string());
            if (0..FORGETS).all(|_| image.forget().is_err()) {
                tracing::warn!(
                    "could not remove the image of sandbox {}, which is outdated",
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

/// Finishes an interrupted stop: from here on its files survive a crash of the host.
fn safe(node: &Node, entry: &Entry) -> io::Result<()> {
    if entry.phase != Phase::Stopping {
        return Ok(());
    }
    node.pool.sync()?;
    node.journal.write(&Entry { phase: Phase::Stopped, ..entry.clone() }, Durability::Synced)
}

/// Kills processes that have no owner task, and removes their cgroup.
#[expect(clippy::disallowed_methods, reason = "runs on a thread that may block")]
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

/// Releases the resources of an entry whose processes are gone.
fn end(node: &Arc<Node>, entry: &Entry, record: Record) {
    let name = entry.name();
    end_processes(&node.cgroups.of(name));
    // This node has not allocated its ids or processors. Another sandbox may already have the ids, because
    // they are released before the entry is removed.
    let files = entry.files_name();
    let remains = Remains { node: node.clone(), name, files, uid_base: None, cpus: Vec::new(), record };
    if !remains.give_back() {
        // Files with these ids still exist, so reserve the ids.
        if let Err(error) = node.uids.take_again(entry.uid_base) {
            tracing::error!(sandbox.id = %name, "could not reserve the uid range of sandbox {name}: {error}");
        }
    }
}

/// Removes every resource of this node that belongs to no known sandbox, and returns what it was.
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
        // Files of an interrupted rollback are not orphans.
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
