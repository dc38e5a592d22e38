//! What to take out of an archive: which image, and which files are its layers.

use serde::Deserialize;

use super::contents::Contents;
use crate::config::{ConfigFile, ImageConfig};
use crate::digest::Digest;
use crate::error::ImageError;
use crate::image::Compression;
use crate::manifest::{Descriptor, ImageManifest, IndexEntry, Manifest, check_platform, select, shown};
use crate::platform::Platform;
use crate::reference::ImageRef;

const WHAT: &str = "the archive";
/// How many indexes may lead to a manifest: that of the layout, that of the image.
const MOST_INDEXES: usize = 3;
const MOST_NAMES_SHOWN: usize = 20;

/// An image of an archive, before its layers are copied.
pub(super) struct Plan {
    pub(super) reference: Option<ImageRef>,
    pub(super) digest: Digest,
    pub(super) platform: Platform,
    pub(super) config: ImageConfig,
    pub(super) layers: Vec<Wanted>,
}

/// A file that is a layer.
pub(super) struct Wanted {
    pub(super) file: String,
    pub(super) size: u64,
    /// `None` if the archive does not say.
    pub(super) digest: Option<Digest>,
    pub(super) compression: Option<Compression>,
    pub(super) diff_id: Digest,
}

/// An image in the `manifest.json` of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Option<Vec<String>>,
}

fn invalid(why: impl Into<String>) -> ImageError {
    ImageError::invalid(WHAT, why)
}

impl Plan {
    pub(super) fn new(
        contents: &Contents,
        name: Option<&ImageRef>,
        platform: &Platform,
    ) -> Result<Self, ImageError> {
        // Newer versions of `docker save` write both; the index knows about platforms.
        if let Some(index) = json(contents, "index.json")? {
            return Self::of_layout(contents, &index, name, platform);
        }
        let saved = json(contents, "manifest.json")?;
        let why = "is no image: it has neither `index.json` (OCI layout) nor `manifest.json` (docker save)";
        Self::of_save(contents, &saved.ok_or_else(|| invalid(why))?, name, platform)
    }

    fn of_layout(
        contents: &Contents,
        index: &[u8],
        name: Option<&ImageRef>,
        platform: &Platform,
    ) -> Result<Self, ImageError> {
        let Manifest::Index(entries) = Manifest::read(index, None, "`index.json`")? else {
            return Err(invalid("has an `index.json` that is not an index"));
        };
        let (reference, mut entries) = choose(entries, name)?;
        let shown_name = reference.as_ref().map_or_else(|| WHAT.to_string(), ImageRef::to_string);
        for _ in 0..MOST_INDEXES {
            let entry = select(&entries, platform).map_err(|available| ImageError::NoPlatform {
                image: shown_name.clone(),
                wanted: platform.clone(),
                available,
            })?;
            let digest = entry.descriptor.digest;
            match Manifest::read(&blob(contents, &entry.descriptor)?, None, "a manifest of the archive")? {
                Manifest::Index(next) => entries = next,
                Manifest::Image(manifest) => {
                    let file = config_file(&blob(contents, &manifest.config)?)?;
                    return Ok(Self {
                        digest,
                        platform: check_platform(&file, platform, &shown_name)?,
                        layers: layers_of_layout(contents, &manifest, &file)?,
                        config: file.config,
                        reference,
                    });
                }
            }
        }
        Err(invalid("has indexes that list indexes"))
    }

    fn of_save(
        contents: &Contents,
        list: &[u8],
        name: Option<&ImageRef>,
        platform: &Platform,
    ) -> Result<Self, ImageError> {
        let saved: Vec<Saved> = serde_json::from_slice(list)
            .map_err(|error| invalid(format!("has a `manifest.json` that cannot be read: {error}")))?;
        let names = |saved: &Saved| -> Vec<ImageRef> {
            saved.repo_tags.iter().flatten().filter_map(|tag| tag.parse().ok()).collect()
        };
        let known: Vec<String> = saved.iter().flat_map(names).map(|name| name.to_string()).collect();
        let count = saved.len();
        let mut found = saved.into_iter().filter(|saved| match name {
            Some(name) => names(saved).contains(name),
            None => count == 1,
        });
        let saved = found.next().ok_or_else(|| which(name, &known))?;
        let reference = name.cloned().or_else(|| names(&saved).into_iter().next());
        let bytes = json(contents, &saved.config)?.ok_or_else(|| lacks(&saved.config))?;
        let digest = Digest::of(&bytes);
        // The file is named after its digest, with `.json` or in `blobs/sha256/`.
        let stem = saved.config.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
        if let Some(expected) = Digest::parse_hex(stem).ok().filter(|expected| *expected != digest) {
            let what = "the configuration in the archive".into();
            return Err(ImageError::BadDigest { what, expected, found: digest });
        }
        let file = config_file(&bytes)?;
        let layers = saved.layers.unwrap_or_default();
        if layers.len() != file.diff_ids.len() {
            let (layers, ids) = (layers.len(), file.diff_ids.len());
            return Err(invalid(format!("has {layers} layers, but its configuration has {ids}")));
        }
        let wanted = |(name, diff_id): (&String, &Digest)| {
            let found = contents.find(name).map_err(unreadable)?;
            let (file, size) = found.ok_or_else(|| lacks(name))?;
            Ok(Wanted { file, size, digest: None, compression: None, diff_id: *diff_id })
        };
        let layers = layers.iter().zip(&file.diff_ids).map(wanted).collect::<Result<_, ImageError>>()?;
        let shown_name = reference.as_ref().map_or_else(|| WHAT.to_string(), ImageRef::to_string);
        let platform = check_platform(&file, platform, &shown_name)?;
        Ok(Self { reference, digest, platform, config: file.config, layers })
    }
}

fn layers_of_layout(
    contents: &Contents,
    manifest: &ImageManifest,
    file: &ConfigFile,
) -> Result<Vec<Wanted>, ImageError> {
    let wanted = |layer: crate::image::Layer| {
        let name = name_of(&layer.digest);
        let (file, size) = contents.find(&name).map_err(unreadable)?.ok_or_else(|| lacks(&name))?;
        if size != layer.size {
            return Err(invalid(format!(
                "has {size} bytes for the layer {}, not {}",
                layer.digest, layer.size
            )));
        }
        let (digest, compression) = (Some(layer.digest), Some(layer.compression));
        Ok(Wanted { file, size, digest, compression, diff_id: layer.diff_id })
    };
    manifest.layers(file, WHAT)?.into_iter().map(wanted).collect()
}

/// The entries of the wanted image in the index of a layout: those of that name, or all if there is one name at most.
fn choose(
    entries: Vec<IndexEntry>,
    name: Option<&ImageRef>,
) -> Result<(Option<ImageRef>, Vec<IndexEntry>), ImageError> {
    // Tools write the whole name, or the tag alone.
    let is_named = |entry: &IndexEntry, name: &ImageRef| {
        entry.name.as_deref().is_some_and(|known| {
            known.parse::<ImageRef>().is_ok_and(|known| known == *name) || Some(known) == name.tag()
        })
    };
    let mut known: Vec<String> = entries.iter().filter_map(|entry| entry.name.clone()).collect();
    known.sort();
    known.dedup();
    match name {
        Some(name) => {
            let found: Vec<IndexEntry> = entries.into_iter().filter(|entry| is_named(entry, name)).collect();
            if found.is_empty() { Err(which(Some(name), &known)) } else { Ok((Some(name.clone()), found)) }
        }
        None if known.len() > 1 => Err(which(None, &known)),
        None => {
            // A tag alone would read as the name of a repository.
            let full = known.first().filter(|name| name.contains(['/', ':']));
            Ok((full.and_then(|name| name.parse().ok()), entries))
        }
    }
}

fn which(name: Option<&ImageRef>, known: &[String]) -> ImageError {
    let list: Vec<String> = known.iter().take(MOST_NAMES_SHOWN).map(|name| shown(name)).collect();
    let list = if list.is_empty() { "none with a name".into() } else { list.join(", ") };
    match name {
        Some(name) => invalid(format!("has no image `{name}`; it has {list}")),
        None => invalid(format!("has several images, name one: {list}")),
    }
}

fn lacks(name: &str) -> ImageError {
    invalid(format!("has no file `{}`, which its image needs", shown(name)))
}

fn unreadable(error: std::io::Error) -> ImageError {
    invalid(format!("cannot be read: {error}"))
}

fn json(contents: &Contents, name: &str) -> Result<Option<Vec<u8>>, ImageError> {
    contents.json(name).map_err(unreadable)
}

fn name_of(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// A blob of a layout that is JSON, checked.
fn blob(contents: &Contents, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
    let name = name_of(&descriptor.digest);
    let bytes = json(contents, &name)?.ok_or_else(|| lacks(&name))?;
    match Digest::of(&bytes) {
        found if found == descriptor.digest => Ok(bytes),
        found => Err(ImageError::BadDigest { what: format!("`{name}`"), expected: descriptor.digest, found }),
    }
}

fn config_file(bytes: &[u8]) -> Result<ConfigFile, ImageError> {
    ConfigFile::read(bytes).map_err(|why| ImageError::invalid("the configuration in the archive", why))
}
