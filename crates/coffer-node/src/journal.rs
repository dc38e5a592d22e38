//! The node's record of each sandbox on disk: one file each, replaced by rename.
//!
//! An entry is written before any resource is created, so that everything a crash leaves behind has an owner.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};

use coffer_core::SandboxId;
use coffer_wire::node::{CreateSandbox, DeathCause, TemplateInfo};
use serde::{Deserialize, Serialize};

use crate::process::Process;
use crate::snapshots;
use coffer_template::OverlaySpec;

/// A write of this size is not split by a signal.
const PAGE: usize = 4096;

/// Everything about one sandbox that must outlive the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) spec: CreateSandbox,
    /// The slot that it was created from. All its resources on this host still have that name.
    #[serde(default)]
    pub(crate) slot: Option<SandboxId>,
    pub(crate) template: TemplateInfo,
    /// The layers it was created from, even if the template has changed since.
    pub(crate) overlays: Vec<OverlaySpec>,
    pub(crate) uid_base: u32,
    #[serde(default)]
    pub(crate) files: Files,
    /// The processors that it may use; empty for all.
    pub(crate) cpus: Vec<usize>,
    pub(crate) phase: Phase,
}

/// Facts about the files that a sandbox writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Files {
    /// How often other files took the place of those that it had.
    pub(crate) generation: u32,
    /// The ids in them are stored relative to this. `None` if that is the sandbox's own range, as it is
    /// unless they came from a snapshot.
    pub(crate) stored_uid_base: Option<u32>,
    /// Bytes that are also in snapshots, and still count against the sandbox's limit: those it wrote before
    /// the snapshot or, with classic quotas, those it inherited.
    pub(crate) sealed_bytes: u64,
    /// Snapshots that they come from.
    pub(crate) depth: u32,
}

impl Entry {
    /// Name of its cgroup, its socket and this entry.
    pub(crate) fn name(&self) -> SandboxId {
        self.slot.unwrap_or(self.spec.sandbox)
    }

    /// Name of its files.
    pub(crate) fn files_name(&self) -> String {
        match self.files.generation {
            0 => self.name().to_string(),
            generation => format!("{}-{generation}", self.name()),
        }
    }

    /// The base that the ids in its files are stored relative to.
    pub(crate) fn stored_uid_base(&self) -> u32 {
        self.files.stored_uid_base.unwrap_or(self.uid_base)
    }

    /// Its disk limit in the pool.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.spec.limits.disk_bytes().saturating_add(self.files.sealed_bytes)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Phase {
    /// The server does not know it yet. Unclaimed slots stay in this phase.
    Creating,
    /// Being started again on its files.
    Starting,
    /// Frozen or not: the cgroup has that state.
    Running {
        process: Process,
    },
    /// Its processes are being ended, its files stay.
    Stopping,
    Stopped,
    /// Its memory is on disk, and its processes are about to end: if they are alive, the sandbox runs.
    Hibernating {
        process: Process,
    },
    /// Its memory is on disk.
    Hibernated,
    /// Its memory is on disk, and the processes restored from there are about to run: if they are alive, the
    /// sandbox runs. After a restart of the host it is unknown how far they got.
    Waking {
        process: Process,
    },
    Dead {
        cause: DeathCause,
    },
    /// A destroy was requested.
    Destroying,
}

/// Whether a write must survive a crash of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// State that a crash of the host ends anyway: processes.
    Cached,
    /// State that survives a crash: files.
    Synced,
}

#[derive(Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
}

pub(crate) fn directory_of(data_dir: &Path) -> PathBuf {
    data_dir.join("sandboxes")
}

/// The layers of all sandboxes of the node at `data_dir`, running or not, and of all snapshots. Fails if an
/// entry cannot be read; changes nothing.
pub fn layers(data_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut layers = snapshots::layers(data_dir)?;
    for entry in entries(data_dir)? {
        layers.extend(entry.overlays.into_iter().flat_map(|overlay| overlay.layers).map(|layer| layer.path));
    }
    Ok(layers)
}

/// Names of the files of all sandboxes of the node at `data_dir`, running or not. Everything else in the pool's
/// directory of files has no owner. Fails if an entry cannot be read; changes nothing.
pub fn files(data_dir: &Path) -> io::Result<BTreeSet<String>> {
    Ok(entries(data_dir)?.iter().map(Entry::files_name).collect())
}

fn entries(data_dir: &Path) -> io::Result<Vec<Entry>> {
    let files = match fs::read_dir(directory_of(data_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let mut entries = Vec::new();
    for file in files {
        let path = file?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match fs::read(&path) {
            // Destroyed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            bytes => entries.push(serde_json::from_slice(&bytes?)?),
        }
    }
    Ok(entries)
}

impl Journal {
    pub(crate) fn open(data_dir: &Path) -> io::Result<Self> {
        let directory = directory_of(data_dir);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Self { directory })
    }

    pub(crate) fn write(&self, entry: &Entry, durability: Durability) -> io::Result<()> {
        let path = self.path(entry.name());
        let draft = path.with_extension("new");
        fs::write(&draft, encode(entry)?)?;
        if durability == Durability::Synced {
            fs::File::open(&draft)?.sync_all()?;
        }
        fs::rename(&draft, &path)?;
        if durability == Durability::Synced {
            fs::File::open(&self.directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Replaces an entry that was never synced by one that need not be. A crash of this node leaves
    /// the one or the other, as with [`Journal::write`], because both are one page and one system call;
    /// a crash of the host may leave neither, but then nothing that they name exists either.
    /// Renaming costs ten times as much, because the file system flushes the file for it.
    pub(crate) fn overwrite(&self, entry: &Entry) -> io::Result<()> {
        let bytes = encode(entry)?;
        let file = fs::OpenOptions::new().write(true).open(self.path(entry.name()))?;
        if bytes.len() != PAGE || file.metadata()?.len() != PAGE as u64 {
            return self.write(entry, Durability::Cached);
        }
        match file.write_at(&bytes, 0)? {
            PAGE => Ok(()),
            part => Err(io::Error::other(format!("only {part} bytes of a journal entry were written"))),
        }
    }

    /// Succeeds if there is none.
    pub(crate) fn remove(&self, name: SandboxId) -> io::Result<()> {
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// All entries. Unreadable ones are removed and logged: they name nothing that could be adopted.
    pub(crate) fn read(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.directory)? {
            let path = file?.path();
            let read = match path.extension() {
                Some(extension) if extension == "json" => fs::read(&path)
                    .map_err(|error| error.to_string())
                    .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string())),
                _ => Err("not a journal entry".to_string()),
            };
            match read {
                Ok(entry) => entries.push(entry),
                Err(why) => {
                    tracing::warn!("removing `{}` from the journal: {why}", path.display());
                    let _ = fs::remove_file(&path);
                }
            }
        }
        Ok(entries)
    }

    fn path(&self, name: SandboxId) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }
}

/// Encodes an entry without secrets, which the server sends again, padded to a page so that it can be
/// overwritten in place.
fn encode(entry: &Entry) -> io::Result<Vec<u8>> {
    let network = entry.spec.network.clone().without_secrets();
    let entry = Entry { spec: CreateSandbox { network, ..entry.spec.clone() }, ..entry.clone() };
    let mut bytes = serde_json::to_vec(&entry)?;
    bytes.resize(bytes.len().max(PAGE), b' ');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_core::Limits;

    fn entry() -> Entry {
        Entry {
            spec: CreateSandbox {
                sandbox: SandboxId::generate(),
                template: "base".into(),
                hostname: "e2b.local".into(),
                limits: Limits::default(),
                network: coffer_core::network::Policy::default(),
                snapshot: None,
                from_template: false,
                template_owner: None,
                memory: false,
                volumes: Vec::new(),
            },
            slot: None,
            template: TemplateInfo {
                name: "host".into(),
                build: "1".into(),
                default_user: "user".into(),
                default_workdir: None,
                env: Default::default(),
                start: None,
            },
            overlays: Vec::new(),
            uid_base: 0x7000_0000,
            files: Files::default(),
            cpus: vec![1],
            phase: Phase::Running {
                process: Process { pid: 7, start_ticks: 9, pid_namespace: 11, host_boot_id: "x".into() },
            },
        }
    }

    #[test]
    fn an_entry_reads_back_and_rubbish_does_not() {
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::open(home.path()).unwrap();
        let entry = entry();
        journal.write(&entry, Durability::Cached).unwrap();
        let stopped = Entry { phase: Phase::Stopped, ..entry.clone() };
        journal.write(&stopped, Durability::Synced).unwrap();
        fs::write(home.path().join("sandboxes/half.new"), "{").unwrap();
        fs::write(home.path().join("sandboxes/bad.json"), "{").unwrap();
        assert_eq!(journal.read().unwrap(), [stopped]);
        assert_eq!(fs::read_dir(home.path().join("sandboxes")).unwrap().count(), 1);
        journal.remove(entry.spec.sandbox).unwrap();
        journal.remove(entry.spec.sandbox).unwrap();
        assert_eq!(journal.read().unwrap(), []);
        // A claim replaces the slot's entry, in one step.
        journal.write(&entry, Durability::Cached).unwrap();
        let spec = CreateSandbox { sandbox: SandboxId::generate(), ..entry.spec.clone() };
        let claimed = Entry { spec, slot: Some(entry.spec.sandbox), ..entry.clone() };
        journal.overwrite(&claimed).unwrap();
        assert_eq!(journal.read().unwrap(), std::slice::from_ref(&claimed));
        // Larger than a page, and back.
        let large = Entry { cpus: (0..2000).collect(), ..claimed.clone() };
        journal.overwrite(&large).unwrap();
        assert_eq!(journal.read().unwrap(), [large]);
        journal.overwrite(&claimed).unwrap();
        assert_eq!(journal.read().unwrap(), [claimed]);
        journal.remove(entry.spec.sandbox).unwrap();
        assert_eq!(journal.read().unwrap(), []);
    }

    #[test]
    fn layers_of_sandboxes_and_snapshots_are_in_use() {
        use coffer_core::SnapshotId;
        use coffer_template::LayerSpec;
        use coffer_wire::node::SnapshotInfo;

        use crate::snapshots::{Begun, Manifest, Snapshots};

        let home = tempfile::tempdir().unwrap();
        assert_eq!(layers(home.path()).unwrap(), Vec::<PathBuf>::new());
        let standing_on =
            |path: &str| vec![OverlaySpec { target: "/".into(), layers: vec![LayerSpec::own(path)] }];
        let journal = Journal::open(home.path()).unwrap();
        // Whether its node runs or not, and whatever it does.
        let stopped = Entry { overlays: standing_on("/one"), phase: Phase::Stopped, ..entry() };
        journal.write(&stopped, Durability::Cached).unwrap();
        let snapshots = Snapshots::open(home.path()).unwrap();
        let (snapshot, sandbox) = (SnapshotId::generate(), SandboxId::generate());
        let Begun::New(making) = snapshots.begin(snapshot, sandbox).unwrap() else { panic!("it is new") };
        let info = SnapshotInfo {
            snapshot,
            sandbox,
            made_ms: 1,
            memory: false,
            files_bytes: 0,
            memory_bytes: 0,
            depth: 1,
            paused_us: 0,
            template: entry().template,
            limits: Limits::default(),
        };
        let overlays = standing_on("/two");
        making.finish(Manifest { info, hostname: "x".into(), overlays, stored_uid_base: 0 }).unwrap();
        let mut found = layers(home.path()).unwrap();
        found.sort();
        assert_eq!(found, [PathBuf::from("/one"), PathBuf::from("/two")]);
        // An unreadable entry may use any layer.
        let odd = home.path().join("sandboxes/odd.json");
        fs::write(&odd, "{").unwrap();
        assert!(layers(home.path()).is_err());
        fs::remove_file(odd).unwrap();
        fs::write(home.path().join(format!("snapshots/{snapshot}.manifest")), "?").unwrap();
        assert!(layers(home.path()).is_err());
    }
}
