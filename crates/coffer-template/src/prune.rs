//! Deletes old builds that no sandbox can be using.
//!
//! A running sandbox has its build's files under its overlay and a stopped one needs them to start again,
//! also while their node is down, so a process's lock is not enough. Instead each node of the host registers
//! its data directory once (`.nodes/`), and [`LayersOf`](super::LayersOf) returns the rest.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tracing::{info, warn};

use super::TemplateStore;
use super::store::DRAFT_PREFIX;

const NODES: &str = ".nodes";

/// The newest builds always stay: a sandbox in creation has chosen its build some milliseconds before its
/// journal entry says so.
const KEPT: usize = 2;

impl TemplateStore {
    /// Registers the node with its data at `data_dir` as a user of this store.
    pub fn register(&self, data_dir: &Path) -> io::Result<()> {
        fs::create_dir_all(self.directory().join(NODES))?;
        fs::write(self.registration(data_dir), data_dir.as_os_str().as_encoded_bytes())
    }

    /// Undoes [`register`](Self::register), once the node has no sandbox left.
    pub fn unregister(&self, data_dir: &Path) {
        let _ = fs::remove_file(self.registration(data_dir));
    }

    fn registration(&self, data_dir: &Path) -> PathBuf {
        let digest = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
        self.directory().join(NODES).join(hex::encode(&digest[..8]))
    }

    /// Deletes builds of `name` that are neither new nor in use; its lock is held. Builds in doubt stay.
    pub(super) fn prune(&self, name: &str) {
        let builds = self.builds(name);
        let Some(old) = builds.get(KEPT..).filter(|old| !old.is_empty()) else { return };
        let in_use = match self.layers_in_use() {
            Ok(in_use) => in_use,
            Err(error) => {
                warn!("keeping old builds of template {name}: could not find out which are in use: {error}");
                return;
            }
        };
        for (manifest, directory) in old {
            if in_use.iter().any(|layer| layer.starts_with(directory)) {
                continue;
            }
            // Rename it first, to a name that the next build removes if this one does not.
            let aside = directory.with_file_name(format!("{DRAFT_PREFIX}gone-{}", manifest.build));
            match fs::rename(directory, &aside).and_then(|()| fs::remove_dir_all(&aside)) {
                Ok(()) => info!("removed unused build {} of template {name}", manifest.build),
                Err(error) => warn!("could not remove {}: {error}", directory.display()),
            }
        }
    }

    /// The layers of all sandboxes of all nodes that use this store.
    fn layers_in_use(&self) -> io::Result<HashSet<PathBuf>> {
        use std::os::unix::ffi::OsStringExt as _;
        let mut in_use = HashSet::new();
        let nodes = match fs::read_dir(self.directory().join(NODES)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(in_use),
            nodes => nodes?,
        };
        for node in nodes {
            let path = node?.path();
            let data_dir = PathBuf::from(std::ffi::OsString::from_vec(fs::read(&path)?));
            if data_dir.try_exists()? {
                in_use.extend(self.layers_of(&data_dir)?);
            } else {
                // The data directory is gone, with its sandboxes.
                let _ = fs::remove_file(&path);
            }
        }
        Ok(in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::tests::publish;
    use super::*;

    fn builds(store: &TemplateStore) -> Vec<String> {
        store.builds("base").into_iter().map(|(manifest, _)| manifest.build).collect()
    }

    /// A store that reads the layers in use from a file in the data directory.
    fn store() -> (tempfile::TempDir, TemplateStore) {
        let home = tempfile::tempdir().unwrap();
        let layers_of = |data_dir: &Path| match fs::read_to_string(data_dir.join("layers")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            text => Ok(text?.lines().map(PathBuf::from).collect()),
        };
        let store = TemplateStore::open(home.path().join("templates"), layers_of).unwrap();
        (home, store)
    }

    #[test]
    fn a_build_stays_while_a_data_directory_uses_it() {
        let (home, store) = store();
        let data_dir = home.path().join("data");
        fs::create_dir(&data_dir).unwrap();
        store.register(&data_dir).unwrap();
        let used = publish(&store, "base");
        let layer = used.overlays[0].layers[0].path.clone();
        fs::write(data_dir.join("layers"), layer.as_os_str().as_encoded_bytes()).unwrap();
        let mut last = Vec::new();
        for _ in 0..4 {
            last.insert(0, publish(&store, "base").info.build);
        }
        assert_eq!(builds(&store), [last[0].clone(), last[1].clone(), used.info.build.clone()]);

        // A node whose layers cannot be read may use any build.
        fs::remove_file(data_dir.join("layers")).unwrap();
        fs::create_dir(data_dir.join("layers")).unwrap();
        publish(&store, "base");
        assert_eq!(builds(&store).len(), 4);

        fs::remove_dir(data_dir.join("layers")).unwrap();
        publish(&store, "base");
        assert_eq!(builds(&store).len(), 2);
        assert!(!layer.exists());
        assert!(
            !fs::read_dir(store.directory().join("base"))
                .unwrap()
                .flatten()
                .any(|entry| { entry.file_name().to_string_lossy().starts_with(DRAFT_PREFIX) })
        );
    }

    #[test]
    fn a_node_that_is_gone_is_forgotten() {
        let (home, store) = store();
        let nodes = || fs::read_dir(store.directory().join(NODES)).unwrap().count();
        store.register(&home.path().join("never made")).unwrap();
        assert_eq!(nodes(), 1);
        for _ in 0..3 {
            publish(&store, "base");
        }
        assert_eq!((nodes(), builds(&store).len()), (0, 2));
        store.register(home.path()).unwrap();
        store.unregister(home.path());
        assert_eq!(nodes(), 0);
    }
}
