//! Layers on disk, each downloaded once per project.
//!
//! `<dir>/<project>/sha256/<hex>` is complete: it was checked and synced before it got this name. Downloads grow in
//! `<dir>/<project>/partial/<hex>` and survive a crash there; the next one continues. Projects share nothing.

mod download;
mod home;
mod order;
mod partial;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use coffer_core::sync::Mutex;
use tokio::sync::watch;

use crate::digest::Digest;
use crate::error::ImageError;
use crate::registry::Registry;
use download::Download;
use home::blocking;
pub(crate) use home::{Home, NotStored, Stored};
pub use order::{Fetch, Progress, Quota, Swept};

/// The pause before the first retry; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// A blob that was fetched this recently is not swept, whatever the caller wants to keep: the build that fetched it may
/// have started after the caller decided.
const FRESH: Duration = Duration::from_secs(3600);
/// A partial file that did not grow for this long is swept.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// The store of layers. One process uses a directory at a time.
#[derive(Debug)]
pub struct Blobs {
    dir: PathBuf,
    slots: Mutex<HashMap<(String, Digest), Weak<Slot>>>,
    first_pause: Duration,
}

/// One blob of one project, while something is being done with it.
#[derive(Debug, Default)]
struct Slot {
    /// Held by the one that downloads or deletes it.
    gate: tokio::sync::Mutex<()>,
    news: watch::Sender<News>,
}

/// How a download goes, for those that wait for it.
#[derive(Debug, Clone, Default)]
struct News {
    done: u64,
    /// How many downloads failed, and why the last one did.
    failures: u64,
    last: Option<ImageError>,
}

impl Blobs {
    /// Opens the store in `dir`, and creates the directory if it is not there.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, ImageError> {
        let dir = dir.into();
        home::create(&dir).map_err(ImageError::disk("create the directory of layers"))?;
        Ok(Self { dir, slots: Mutex::default(), first_pause: FIRST_PAUSE })
    }

    /// Sets the pause before the first retry; for tests.
    #[must_use]
    pub fn with_first_pause(mut self, pause: Duration) -> Self {
        self.first_pause = pause;
        self
    }

    /// The file of a layer, downloaded if it is not there. Of several callers one downloads, and the others wait; if that
    /// one is dropped, the next continues. The file stays for an hour at least.
    pub async fn fetch(&self, registry: &Registry, order: &Fetch<'_>) -> Result<PathBuf, ImageError> {
        let home = self.home(order.project)?;
        let (digest, size) = (order.layer.digest, order.layer.size);
        let slot = self.slot(order.project, digest);
        let mut news = slot.news.subscribe();
        let failures = news.borrow().failures;
        let gate = slot.gate.lock();
        tokio::pin!(gate);
        let _gate = loop {
            tokio::select! {
                gate = &mut gate => break gate,
                Ok(()) = news.changed() => (order.progress)(news.borrow_and_update().done, size),
            }
        };
        let found = {
            let home = home.clone();
            blocking("look for a layer", move || home.touch(&digest)).await?
        };
        if let Some(length) = found {
            if length != size {
                let why = format!("has {length} bytes, but the image says {size}");
                return Err(ImageError::invalid(format!("the layer {digest}"), why));
            }
            (order.progress)(size, size);
            return Ok(home.blob(&digest));
        }
        // What failed for another caller meanwhile would fail here too, unless credentials matter.
        let failed = Some(slot.news.borrow().clone()).filter(|news| news.failures > failures);
        if let Some(error) = failed.and_then(|news| news.last).filter(ImageError::is_transient) {
            return Err(error);
        }
        order.quota.reserve(size).await.map_err(ImageError::OverQuota)?;
        let report = |done| {
            slot.news.send_modify(|news| news.done = done);
            (order.progress)(done, size);
        };
        let download =
            Download { registry, order, home: &home, first_pause: self.first_pause, report: &report };
        let result = download.run().await;
        if let Err(error) = &result {
            slot.news.send_modify(|news| {
                news.failures += 1;
                news.last = Some(error.clone());
            });
        }
        result.map(|()| home.blob(&digest))
    }

    /// The file of a layer that is there.
    pub fn path(&self, project: &str, digest: &Digest) -> Option<PathBuf> {
        let path = self.home(project).ok()?.blob(digest);
        path.is_file().then_some(path)
    }

    /// Deletes a layer, and what there is of it; returns whether it was there.
    pub async fn remove(&self, project: &str, digest: &Digest) -> Result<bool, ImageError> {
        let (home, digest) = (self.home(project)?, *digest);
        let slot = self.slot(project, digest);
        let _gate = slot.gate.lock().await;
        blocking("delete a layer", move || home.remove(&digest)).await
    }

    /// Bytes of a project's layers on disk, also of those that were never completed.
    pub async fn bytes(&self, project: &str) -> Result<u64, ImageError> {
        let home = self.home(project)?;
        blocking("count a project's layers", move || home.bytes()).await
    }

    /// Deletes everything of a project. For a project that ends: nothing may be fetched for it afterwards.
    pub async fn remove_project(&self, project: &str) -> Result<(), ImageError> {
        let home = self.home(project)?;
        blocking("delete a project's layers", move || home.remove_all()).await
    }

    /// Deletes layers for which `keep` says no, unless they were fetched within the hour; and what is left of downloads
    /// that stopped a day ago.
    pub async fn sweep(
        &self,
        keep: &(dyn Fn(&str, &Digest) -> bool + Send + Sync),
    ) -> Result<Swept, ImageError> {
        let mut swept = Swept::default();
        let dir = self.dir.clone();
        for project in blocking("list projects", move || projects(&dir)).await? {
            let home = self.home(&project)?;
            let listed = home.clone();
            for digest in blocking("list layers", move || listed.list()).await? {
                if keep(&project, &digest) {
                    continue;
                }
                let slot = self.slot(&project, digest);
                let Ok(_gate) = slot.gate.try_lock() else { continue };
                let home = home.clone();
                let removed = blocking("delete a layer", move || home.remove_older(&digest, FRESH)).await?;
                swept.blobs += u64::from(removed.is_some());
                swept.bytes += removed.unwrap_or(0);
            }
            let removed = blocking("delete partial files", move || home.remove_abandoned(ABANDONED)).await?;
            swept.partials += removed;
        }
        Ok(swept)
    }

    /// A project's directory. Its name becomes a path, so it is checked here.
    pub(crate) fn home(&self, project: &str) -> Result<Home, ImageError> {
        if !is_name(project) {
            return Err(ImageError::invalid(
                "the project's directory",
                "must be letters, digits, `_` and `-`",
            ));
        }
        Ok(Home::new(self.dir.join(project)))
    }

    fn slot(&self, project: &str, digest: Digest) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        let key = (project.to_string(), digest);
        if let Some(slot) = slots.get(&key).and_then(Weak::upgrade) {
            return slot;
        }
        slots.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::<Slot>::default();
        slots.insert(key, Arc::downgrade(&slot));
        slot
    }
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn projects(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string()
            && entry.file_type()?.is_dir()
            && is_name(&name)
        {
            found.push(name);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn age(path: &Path, by: Duration) {
        fs::File::options().write(true).open(path).unwrap().set_modified(SystemTime::now() - by).unwrap();
    }

    #[tokio::test]
    async fn sweeping_keeps_what_is_wanted_and_what_is_fresh() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(dir.path()).unwrap();
        let home = blobs.home("p1").unwrap();
        let store = |text: &str| home.store(&mut text.as_bytes(), None, &|_| Ok(())).unwrap().digest;
        let (wanted, old, fresh) = (store("wanted"), store("old"), store("fresh"));
        let day = Duration::from_secs(25 * 3600);
        age(&home.blob(&wanted), day);
        age(&home.blob(&old), day);
        let partial = dir.path().join("p1/partial");
        fs::write(partial.join(wanted.hex()), "left").unwrap();
        fs::write(partial.join(old.hex()), "left").unwrap();
        assert_eq!(blobs.bytes("p1").await.unwrap(), (6 + 3 + 5) + 2 * 4, "complete ones and parts");
        assert_eq!(blobs.bytes("p2").await.unwrap(), 0);
        age(&partial.join(old.hex()), day);
        fs::write(dir.path().join("stray"), "").unwrap();
        let swept = blobs.sweep(&|project, digest| project == "p1" && *digest == wanted).await.unwrap();
        assert_eq!((swept.blobs, swept.partials, swept.bytes), (1, 1, 3));
        assert!(blobs.path("p1", &wanted).is_some() && blobs.path("p1", &fresh).is_some());
        assert!(blobs.path("p1", &old).is_none() && partial.join(wanted.hex()).exists());
        assert!(blobs.path("p2", &wanted).is_none(), "projects share nothing");
        // A blob that is being fetched is left alone, even if it is old.
        age(&home.blob(&fresh), day);
        let slot = blobs.slot("p1", fresh);
        let gate = slot.gate.lock().await;
        assert_eq!(blobs.sweep(&|_, digest| *digest == wanted).await.unwrap().blobs, 0);
        drop(gate);
        assert_eq!(blobs.sweep(&|_, digest| *digest == wanted).await.unwrap().blobs, 1);
        assert!(blobs.remove("p1", &wanted).await.unwrap() && !blobs.remove("p1", &wanted).await.unwrap());
        assert!(!partial.join(wanted.hex()).exists(), "its partial file goes with it");
        blobs.remove_project("p1").await.unwrap();
        assert!(!dir.path().join("p1").exists());
        blobs.remove_project("p1").await.unwrap();
    }

    #[test]
    fn names_of_projects_are_no_paths() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(dir.path()).unwrap();
        for bad in ["", ".", "..", "a/b", "/etc", "a\0", "a.b", &"a".repeat(65)] {
            assert!(blobs.home(bad).is_err(), "{bad}");
        }
        assert!(blobs.home("0198c2f0-aaaa_B").is_ok());
    }
}
