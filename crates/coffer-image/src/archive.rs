//! Images from files: `docker save`, and OCI layouts as an archive or a directory.
//!
//! An archive is read twice and never unpacked: once for its list of names and its JSON, once to copy the layers into
//! [`Blobs`]. Its names are looked up in that list and nowhere else.

mod contents;
mod plan;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::blobs::{Blobs, Home, NotStored, Progress, Quota, Stored};
use crate::error::ImageError;
use crate::image::{Compression, Image, Layer, ServedBy};
use crate::platform::Platform;
use crate::reference::ImageRef;
use contents::Contents;
use plan::{Plan, Wanted};

/// An image to import.
#[derive(Clone, Copy)]
pub struct Import<'a> {
    /// The name of the project's directory.
    pub project: &'a str,
    /// Which image, if there are several.
    pub name: Option<&'a ImageRef>,
    pub platform: &'a Platform,
    pub quota: &'a dyn Quota,
    /// Told the bytes of layers, copied and in all.
    pub progress: Progress<'a>,
}

impl std::fmt::Debug for Import<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Import({:?} for {})", self.name, self.project)
    }
}

/// Stops the threads that read an archive when their caller stops waiting.
#[derive(Debug, Default)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Copies the layers of an image into `blobs`. `path` is a tar archive, which may be compressed with gzip, or the
/// directory of an OCI layout.
pub async fn import(path: &Path, blobs: &Blobs, order: &Import<'_>) -> Result<Image, ImageError> {
    let home = blobs.home(order.project)?;
    let stop = Stop::default();
    let (stopped, path) = (stop.0.clone(), path.to_path_buf());
    let (name, platform) = (order.name.cloned(), order.platform.clone());
    let (contents, plan) = run(move || {
        let contents = Contents::open(&path, stopped).map_err(unreadable)?;
        let plan = Plan::new(&contents, name.as_ref(), &platform)?;
        Ok((contents, plan))
    })
    .await?;
    let is_missing = |wanted: &&Wanted| wanted.digest.is_none_or(|digest| !home.has(&digest));
    let total =
        plan.layers.iter().filter(is_missing).fold(0u64, |sum, wanted| sum.saturating_add(wanted.size));
    if total > 0 {
        order.quota.reserve(total).await.map_err(ImageError::OverQuota)?;
    }
    let (report, mut reported) = watch::channel(0);
    let stopped = stop.0.clone();
    let copying = run(move || {
        copy(contents, plan, &home, &|done| {
            let _ = report.send(done);
            match stopped.load(Ordering::Relaxed) {
                true => Err(io::Error::other("the caller stopped waiting")),
                false => Ok(()),
            }
        })
    });
    tokio::pin!(copying);
    loop {
        tokio::select! {
            image = &mut copying => return image,
            Ok(()) = reported.changed() => (order.progress)(*reported.borrow_and_update(), total),
        }
    }
}

fn unreadable(error: io::Error) -> ImageError {
    ImageError::invalid("the archive", format!("cannot be read: {error}"))
}

/// Told the bytes copied so far; an error stops the copying.
type Tick<'a> = &'a dyn Fn(u64) -> io::Result<()>;

/// Copies what is missing and makes the image of it.
fn copy(contents: Contents, plan: Plan, home: &Home, tick: Tick<'_>) -> Result<Image, ImageError> {
    // One file can be several layers.
    let mut files: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, wanted) in plan.layers.iter().enumerate() {
        if wanted.digest.is_none_or(|digest| !home.has(&digest)) {
            files.entry(wanted.file.clone()).or_default().push(number);
        }
    }
    let mut copied: BTreeMap<usize, Stored> = BTreeMap::new();
    let mut before = 0;
    contents.visit(&files.keys().cloned().collect(), |name, bytes| {
        let numbers = &files[name];
        let Some(wanted) = numbers.first().map(|number| &plan.layers[*number]) else { return Ok(()) };
        let stored =
            home.store(bytes, wanted.digest, &|done| tick(before + done)).map_err(|error| {
                match (error, wanted.digest) {
                    (NotStored::Digest(found), Some(expected)) => {
                        ImageError::BadDigest { what: "a layer of the archive".into(), expected, found }
                    }
                    (NotStored::Io(error), _) if error.kind() == io::ErrorKind::StorageFull => {
                        ImageError::disk("copy a layer")(error)
                    }
                    (error, _) => ImageError::invalid("the archive", format!("cannot be copied: {error}")),
                }
            })?;
        before += wanted.size;
        for number in numbers {
            copied.insert(*number, stored.clone());
        }
        Ok(())
    })?;
    let mut layers = Vec::new();
    for (number, wanted) in plan.layers.iter().enumerate() {
        layers.push(layer(wanted, copied.get(&number))?);
    }
    Ok(Image {
        reference: plan.reference,
        digest: plan.digest,
        index: None,
        platform: plan.platform,
        config: plan.config,
        layers,
        served_by: ServedBy::Archive,
        skipped: Vec::new(),
    })
}

fn layer(wanted: &Wanted, copied: Option<&Stored>) -> Result<Layer, ImageError> {
    let Some(digest) = wanted.digest.or(copied.map(|copied| copied.digest)) else {
        return Err(ImageError::invalid(
            "the archive",
            format!("lost its file `{}` while it was read", wanted.file),
        ));
    };
    let compression = wanted.compression.unwrap_or_else(|| match copied.map(|copied| copied.magic) {
        Some([0x1f, 0x8b, ..]) => Compression::Gzip,
        Some([0x28, 0xb5, 0x2f, 0xfd]) => Compression::Zstd,
        _ => Compression::None,
    });
    // Without compression they are one, so there is no need to wait for the unpacker.
    if compression == Compression::None && digest != wanted.diff_id {
        let what = "a layer of the archive".into();
        return Err(ImageError::BadDigest { what, expected: wanted.diff_id, found: digest });
    }
    Ok(Layer { digest, size: wanted.size, compression, diff_id: wanted.diff_id })
}

/// Runs what blocks off the runtime.
async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ImageError::Disk { doing: "read an archive", why: error.to_string() }))
}

#[cfg(test)]
mod tests;
