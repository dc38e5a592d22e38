//! Stores builds: each appears by one rename, under a lock per template.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use coffer_core::sync::Mutex;
use rustix::fs::{FlockOperation, flock, fsync, syncfs};
use tracing::warn;

use super::manifest::{self, Manifest};
use super::{BuildError, Template};

const LOCK: &str = ".lock";
pub(super) const DRAFT_PREFIX: &str = ".building-";
const LOG: &str = "build.log";
const SETTLED: Duration = Duration::from_secs(2);

/// Lists the layers that the sandboxes and snapshots of a node's data directory use, running or not. Fails if
/// that is unknown for any of them.
pub type LayersOf = fn(&Path) -> io::Result<Vec<PathBuf>>;

/// The templates of one host. Cheap to clone; a build by another process is seen at once.
#[derive(Debug, Clone)]
pub struct TemplateStore {
    directory: PathBuf,
    layers_of: LayersOf,
    /// The newest builds, each with the modification time of its directory: a build appears by one rename.
    newest: Arc<Mutex<HashMap<String, (SystemTime, Template)>>>,
    /// Which build of `host` was last compared with the host's directories, and when.
    compared: Arc<Mutex<Option<(PathBuf, Instant)>>>,
}

impl TemplateStore {
    /// Opens the store at `directory`, and creates it if it does not exist. Builds that `layers_of` names are
    /// not deleted.
    pub fn open(directory: impl Into<PathBuf>, layers_of: LayersOf) -> io::Result<Self> {
        let directory = directory.into();
        DirBuilder::new().recursive(true).mode(0o755).create(&directory)?;
        // Use the canonical path: layers are passed to the kernel later, by processes with other working
        // directories, and compared with other nodes' paths.
        let directory = directory.canonicalize()?;
        Ok(Self { directory, layers_of, newest: Arc::default(), compared: Arc::default() })
    }

    /// The newest usable build of `name`.
    pub fn get(&self, name: &str) -> Option<Template> {
        let known = || self.newest.lock();
        // Before reading anything: a change meanwhile is then seen the next time.
        let changed = is_name(name).then(|| fs::metadata(self.directory.join(name)).ok()?.modified().ok());
        let changed = changed.flatten()?;
        if let Some((at, template)) = known().get(name)
            && *at == changed
        {
            return Some(template.clone());
        }
        let (manifest, directory) = self.newest(name)?;
        let template = manifest.into_template(&directory);
        // A clock with coarse ticks could hide a second change, so a recent one is not trusted.
        if changed.elapsed().is_ok_and(|age| age > SETTLED) {
            known().insert(name.to_string(), (changed, template.clone()));
        }
        Some(template)
    }

    /// The newest usable build of every template, by name.
    pub fn list(&self) -> Vec<Template> {
        let mut names: Vec<String> = entries(&self.directory);
        names.sort();
        names.iter().filter_map(|name| self.get(name)).collect()
    }

    /// Whether `compare` accepts, or recently accepted, the build of `host` in this directory.
    pub(super) fn agrees(&self, build: &Path, compare: impl FnOnce() -> bool) -> bool {
        const LASTS: Duration = Duration::from_secs(5);
        let mut compared = self.compared.lock();
        if compared.as_ref().is_some_and(|(path, when)| path == build && when.elapsed() < LASTS) {
            return true;
        }
        let agrees = compare();
        *compared = agrees.then(|| (build.to_path_buf(), Instant::now()));
        agrees
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn layers_of(&self, data_dir: &Path) -> io::Result<Vec<PathBuf>> {
        (self.layers_of)(data_dir)
    }

    /// The log of the last build of `name`.
    pub(super) fn log_path(&self, name: &str) -> PathBuf {
        self.directory.join(name).join(LOG)
    }

    pub(super) fn newest(&self, name: &str) -> Option<(Manifest, PathBuf)> {
        self.builds(name).into_iter().next()
    }

    /// All usable builds of `name`, newest first.
    pub(super) fn builds(&self, name: &str) -> Vec<(Manifest, PathBuf)> {
        // The name comes from a request: it must not lead out of the store.
        if !is_name(name) {
            return Vec::new();
        }
        let home = self.directory.join(name);
        let usable = entries(&home).into_iter().filter_map(|build| {
            let directory = home.join(build);
            match directory.is_dir().then(|| Manifest::read(&directory))? {
                Ok(manifest) => Some((manifest, directory)),
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    let path = directory.display();
                    warn!(error, "template build {path} is ignored: {error}");
                    None
                }
            }
        });
        let mut builds: Vec<_> = usable.collect();
        builds.sort_by(|(a, _), (b, _)| (b.created_ms, &b.build).cmp(&(a.created_ms, &a.build)));
        builds
    }

    /// Takes the lock of `name` and starts an empty build. Calls `waiting` if another process holds the lock.
    /// Remains of a killed build are removed.
    pub(super) fn draft(&self, name: &str, waiting: &mut dyn FnMut()) -> Result<Draft, BuildError> {
        let home = self.directory.join(name);
        let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o755).create(path);
        make(&home).map_err(BuildError::file("make", &home))?;
        let path = home.join(LOCK);
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(BuildError::file("open", &path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            waiting();
            flock(&lock, FlockOperation::LockExclusive)
                .map_err(|errno| BuildError::file("lock", &path)(errno.into()))?;
        }
        for left in all_entries(&home).filter(|entry| entry.starts_with(DRAFT_PREFIX)) {
            let left = home.join(left);
            fs::remove_dir_all(&left).map_err(BuildError::file("remove", &left))?;
        }
        // Later than every other, whatever the clock says.
        let before = self.newest(name).map_or(0, |(manifest, _)| manifest.created_ms);
        let created_ms = coffer_core::clock::now_ms().max(before + 1);
        let build = format!("{created_ms:013}-{:x}", std::process::id());
        let directory = home.join(format!("{DRAFT_PREFIX}{build}"));
        make(&directory).map_err(BuildError::file("make", &directory))?;
        Ok(Draft { store: self.clone(), name: name.to_string(), build, created_ms, home, directory, lock })
    }
}

/// How long a build must be usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// Syncs to disk, which takes seconds if another process writes much.
    AcrossReboots,
    /// The build's fingerprint includes the boot, so a build damaged by a power cut is never used.
    UntilReboot,
}

/// A build in progress. Removed on drop unless published.
#[derive(Debug)]
pub(super) struct Draft {
    store: TemplateStore,
    name: String,
    build: String,
    created_ms: i64,
    home: PathBuf,
    directory: PathBuf,
    lock: File,
}

impl Draft {
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A manifest with only this build's name and time.
    pub(super) fn manifest(&self) -> Manifest {
        Manifest {
            format: manifest::FORMAT,
            name: self.name.clone(),
            build: self.build.clone(),
            created_ms: self.created_ms,
            default_user: "user".into(),
            default_workdir: None,
            env: Default::default(),
            overlays: Vec::new(),
            notes: Vec::new(),
            size_bytes: 0,
            fingerprint: None,
            suite: None,
        }
    }

    /// A second handle on the lock. A child that holds it keeps the lock until it is dead too, even if this
    /// process is killed: the next build never meets a running one.
    pub(super) fn share_lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// Makes the build visible, complete, and deletes older ones.
    pub(super) fn publish(self, mut manifest: Manifest, keep: Keep) -> Result<Template, BuildError> {
        manifest.size_bytes = size_of(&self.directory);
        let path = self.directory.join(manifest::FILE);
        fs::write(&path, manifest.to_json()).map_err(BuildError::file("write", &path))?;
        let open = |path: &Path| File::open(path).map_err(BuildError::file("open", path));
        if keep == Keep::AcrossReboots {
            // Sync everything before the rename: a power cut leaves a whole build or none.
            syncfs(open(&self.directory)?)
                .map_err(|errno| BuildError::file("sync", &self.directory)(errno.into()))?;
        }
        let published = self.home.join(&self.build);
        fs::rename(&self.directory, &published).map_err(BuildError::file("publish", &published))?;
        if keep == Keep::AcrossReboots {
            fsync(open(&self.home)?).map_err(|errno| BuildError::file("sync", &self.home)(errno.into()))?;
        }
        self.store.prune(&self.name);
        Ok(manifest.into_template(&published))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After `publish` there is nothing by this name.
        if let Err(error) = fs::remove_dir_all(&self.directory)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(%error, "could not remove the unfinished build {}", self.directory.display());
        }
    }
}

/// Template names; without dots, so neither `..` nor our own files.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
}

fn all_entries(directory: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn entries(directory: &Path) -> Vec<String> {
    all_entries(directory).filter(|name| !name.starts_with('.')).collect()
}

/// Blocks used below `directory`; a hard link counts by its share.
fn size_of(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        let own = metadata.blocks() * 512;
        Some(if metadata.is_dir() { own + size_of(&entry.path()) } else { own / metadata.nlink().max(1) })
    });
    sizes.sum()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{LayerSpec, OverlaySpec};
    use super::*;

    pub(in super::super) fn store() -> (tempfile::TempDir, TemplateStore) {
        let directory = tempfile::tempdir().unwrap();
        let store = TemplateStore::open(directory.path().join("templates"), |_| Ok(Vec::new())).unwrap();
        (directory, store)
    }

    fn draft(store: &TemplateStore, name: &str) -> Draft {
        // It may wait for a moment: a process that another test forks holds the lock of an earlier draft until it execs.
        store.draft(name, &mut || {}).unwrap()
    }

    fn filled(draft: &Draft) -> Manifest {
        let rootfs = draft.directory().join("rootfs");
        fs::create_dir(&rootfs).unwrap();
        fs::write(rootfs.join("file"), "content").unwrap();
        let layers = vec![LayerSpec::own("rootfs")];
        Manifest { overlays: vec![OverlaySpec { target: "/".into(), layers }], ..draft.manifest() }
    }

    pub(in super::super) fn publish(store: &TemplateStore, name: &str) -> Template {
        let draft = draft(store, name);
        let manifest = filled(&draft);
        draft.publish(manifest, Keep::UntilReboot).unwrap()
    }

    fn hidden_entries(store: &TemplateStore, name: &str) -> Vec<String> {
        all_entries(&store.directory.join(name)).filter(|entry| entry.starts_with(DRAFT_PREFIX)).collect()
    }

    #[test]
    fn a_published_build_is_found_with_absolute_layers() {
        let (_directory, store) = store();
        let published = publish(&store, "base");
        assert_eq!(store.get("base"), Some(published.clone()));
        let layer = &published.overlays[0].layers[0].path;
        assert!(layer.is_absolute() && layer.join("file").is_file(), "{layer:?}");
        assert!(published.size_bytes > 0);
        assert_eq!(hidden_entries(&store, "base"), Vec::<String>::new());
    }

    #[test]
    fn the_newest_build_is_chosen_even_within_a_millisecond() {
        let (_directory, store) = store();
        publish(&store, "host");
        for _ in 0..20 {
            let newer = publish(&store, "base");
            assert_eq!(store.get("base").as_ref(), Some(&newer));
        }
        let names: Vec<String> = store.list().into_iter().map(|template| template.info.name).collect();
        assert_eq!(names, ["base", "host"]);
    }

    #[test]
    fn a_dropped_draft_leaves_nothing() {
        let (_directory, store) = store();
        let draft = draft(&store, "base");
        filled(&draft);
        drop(draft);
        assert_eq!(store.get("base"), None);
        assert_eq!(hidden_entries(&store, "base"), Vec::<String>::new());
    }

    #[test]
    fn what_a_killed_build_left_is_removed_by_the_next() {
        let (_directory, store) = store();
        let home = store.directory.join("base");
        fs::create_dir_all(home.join(".building-1-dead/rootfs/etc")).unwrap();
        fs::write(home.join(".building-1-dead/manifest.json"), "{").unwrap();
        assert_eq!(store.get("base"), None);
        let draft = draft(&store, "base");
        let left = hidden_entries(&store, "base");
        assert_eq!(left, [draft.directory().file_name().unwrap().to_str().unwrap()]);
    }

    #[test]
    fn the_lock_is_held_until_its_last_holder_is_gone() {
        let (_directory, store) = store();
        let draft = draft(&store, "base");
        let child_copy = draft.share_lock().unwrap();
        drop(draft);
        let lock = File::open(store.directory.join("base").join(LOCK)).unwrap();
        assert!(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(child_copy);
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    }

    #[test]
    fn two_builders_take_turns() {
        let (_directory, store) = store();
        let first = draft(&store, "base");
        let (waits, waiting) = std::sync::mpsc::channel();
        let second = std::thread::spawn({
            let store = store.clone();
            move || store.draft("base", &mut || waits.send(()).unwrap()).map(|draft| draft.build.clone())
        });
        waiting.recv().unwrap();
        let manifest = filled(&first);
        let published = first.publish(manifest, Keep::UntilReboot).unwrap();
        second.join().unwrap().unwrap();
        assert_eq!(store.get("base"), Some(published));
    }

    #[test]
    fn damaged_builds_are_ignored() {
        let (_directory, store) = store();
        let good = publish(&store, "base");
        let home = store.directory.join("base");
        let text = fs::read_to_string(home.join(&good.info.build).join(manifest::FILE)).unwrap();
        let later = text.replace(&good.info.build, "9999999999999-a");
        let damages: [(&str, String); 6] = [
            ("half a manifest", later[..later.len() / 2].into()),
            ("no manifest of ours", "[]".into()),
            ("a later format", later.replace("\"format\": 1", "\"format\": 2")),
            ("a manifest of another build", text.clone()),
            ("a layer outside", later.replace("\"rootfs\"", "\"../../base/rootfs\"")),
            ("a missing layer", later.replace("\"rootfs\"", "\"rootfs2\"")),
        ];
        for (what, damaged) in damages {
            let build = home.join("9999999999999-a");
            fs::create_dir_all(build.join("rootfs")).unwrap();
            fs::write(build.join(manifest::FILE), damaged).unwrap();
            assert_eq!(store.get("base").as_ref(), Some(&good), "{what}");
            fs::remove_dir_all(build).unwrap();
        }
        fs::create_dir(home.join("9999999999999-b")).unwrap();
        assert_eq!(store.get("base"), Some(good), "no manifest at all");
    }

    #[test]
    fn names_do_not_lead_out_of_the_store() {
        let (_directory, store) = store();
        publish(&store, "base");
        for name in ["", ".", "..", "../templates/base", "/etc", "base/", "Base", "ba\0se", ".lock"] {
            assert_eq!(store.get(name), None, "{name:?}");
        }
    }
}
