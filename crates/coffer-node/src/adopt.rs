//! What a node does first: takes up what an earlier one left, removes what belongs to nobody.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::sync::Arc;

use coffer_core::SandboxId;
use coffer_wire::node::DeathCause;

use crate::cgroup::SandboxCgroup;
use crate::journal::{Durability, Entry, Phase};
use crate::node::Node;
use crate::reaper::{Record, Remains};
use crate::sandbox::{self, Found, Watched};

/// Runs before the node answers anyone.
pub(crate) fn adopt(node: &Arc<Node>) -> io::Result<()> {
    let mut kept = HashSet::new();
    let entries = node.journal.read()?;
    let mut adopted = 0;
    // All at once, so that they die beside each other: slots of the last node are among them.
    for entry in &entries {
        if matches!(entry.phase, Phase::Creating | Phase::Destroying) {
            node.cgroups.of(entry.name()).kill();
        }
    }
    for entry in entries {
        let id = entry.spec.sandbox;
        match find(node, &entry) {
            Outcome::Holds(found) => {
                if let Err(error) = node.uids.take_again(entry.uid_base) {
                    tracing::error!(sandbox.id = %id, "sandbox {id}: {error}");
                }
                node.processors.take_again(&entry.cpus);
                kept.insert(entry.name());
                adopted += 1;
                node.insert(id, sandbox::adopt(node, entry, found));
            }
            Outcome::Died(cause) => {
                end(node, &entry, Record::Kept);
                let entry = Entry { phase: Phase::Dead { cause: cause.clone() }, ..entry };
                node.journal.write(&entry, Durability::Cached)?;
                node.insert(id, sandbox::adopt(node, entry, Found::Dead(cause)));
            }
            Outcome::Unwanted => end(node, &entry, Record::Removed),
        }
    }
    if adopted > 0 {
        tracing::info!("took up {adopted} sandboxes");
    }
    sweep(node, &kept)
}

enum Outcome {
    /// It has files, and perhaps processes.
    Holds(Found),
    Died(DeathCause),
    /// Nobody was ever told of it (a slot, perhaps), or its end was asked for.
    Unwanted,
}

fn find(node: &Node, entry: &Entry) -> Outcome {
    let (id, name) = (entry.spec.sandbox, entry.name());
    match &entry.phase {
        Phase::Creating | Phase::Destroying => Outcome::Unwanted,
        Phase::Dead { cause } => Outcome::Died(cause.clone()),
        Phase::Stopped | Phase::Starting => {
            // A start that was cut off: its processes go, its files are as they were.
            end_processes(&node.cgroups.of(name));
            sandbox::clear_run(node, name);
            match node.pool.find(&name.to_string()) {
                Ok(_) => Outcome::Holds(Found::Stopped),
                Err(error) => {
                    tracing::error!(sandbox.id = %id, "the files of stopped sandbox {id} are gone: {error}");
                    Outcome::Died(DeathCause::Unseen)
                }
            }
        }
        Phase::Running { process } => {
            let unseen = Outcome::Died(DeathCause::Unseen);
            let Some(pidfd) = Watched::again(process, &node.host_boot_id) else { return unseen };
            let quota = node.pool.find(&name.to_string()).ok().and_then(|upper| upper.quota);
            let frozen = node.cgroups.of(name).is_frozen().unwrap_or(false);
            match Watched::new(pidfd, None) {
                Ok(watched) => Outcome::Holds(Found::Alive { watched, quota, frozen }),
                Err(_) => unseen,
            }
        }
    }
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
    let remains = Remains {
        node: node.clone(),
        name,
        uid_base: entry.uid_base,
        // Never counted in this node.
        cpus: Vec::new(),
        record,
    };
    remains.give_back();
}

/// Removes everything of ours that belongs to no sandbox that we know.
fn sweep(node: &Arc<Node>, kept: &HashSet<SandboxId>) -> io::Result<()> {
    let ownerless = |name: &str| name.parse().map_or(true, |id: SandboxId| !kept.contains(&id));
    for name in node.cgroups.names().into_iter().filter(|name| ownerless(name)) {
        tracing::warn!("removing the cgroup of an unknown sandbox `{name}`");
        if let Ok(id) = name.parse() {
            end_processes(&node.cgroups.of(id));
        }
    }
    for name in node.pool.names()?.into_iter().filter(|name| ownerless(name)) {
        tracing::warn!("deleting the files of an unknown sandbox `{name}`");
        if let Err(error) = node.pool.delete(&name) {
            tracing::error!("could not delete the files of unknown sandbox `{name}`: {error}");
        }
    }
    for (directory, suffix) in [(node.run_dir.join("s"), ".sock"), (node.pool.small_files(), "")] {
        for entry in fs::read_dir(directory)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.strip_suffix(suffix).is_none_or(ownerless) {
                tracing::warn!("removing `{}`, which is of an unknown sandbox", entry.path().display());
                let _ = fs::remove_file(entry.path()).or_else(|_| fs::remove_dir_all(entry.path()));
            }
        }
    }
    Ok(())
}
