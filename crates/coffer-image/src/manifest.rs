//! Manifests and indexes, of OCI and of Docker (version 2, schema 2).

use serde::Deserialize;
use serde_json::Value;

use crate::config::ConfigFile;
use crate::digest::Digest;
use crate::error::ImageError;
use crate::image::{Compression, Layer};
use crate::platform::Platform;

/// Longest manifest or index.
pub(crate) const LONGEST_MANIFEST: usize = 4 << 20;
/// Longest configuration.
pub(crate) const LONGEST_CONFIG: usize = 8 << 20;
const MOST_LAYERS: usize = 512;
const MOST_ENTRIES: usize = 1024;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// What registries are asked for.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// A reference to a blob or a manifest.
#[derive(Debug, Clone)]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

#[derive(Debug)]
pub(crate) enum Manifest {
    Image(ImageManifest),
    Index(Vec<IndexEntry>),
}

#[derive(Debug)]
pub(crate) struct ImageManifest {
    pub(crate) config: Descriptor,
    layers: Vec<(Descriptor, Compression)>,
}

#[derive(Debug)]
pub(crate) struct IndexEntry {
    pub(crate) descriptor: Descriptor,
    /// `None` if the index does not say.
    platform: Option<Platform>,
    /// The name that an OCI layout gives it.
    pub(crate) name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    schema_version: Option<u64>,
    media_type: Option<String>,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
    manifests: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    media_type: Option<String>,
    digest: String,
    size: u64,
    platform: Option<RawPlatform>,
    annotations: Option<Value>,
}

#[derive(Deserialize)]
struct RawPlatform {
    os: Option<String>,
    architecture: Option<String>,
    variant: Option<String>,
}

impl Manifest {
    /// Reads a manifest or an index. `what` names it in errors; `content_type` is what the registry calls it.
    ///
    /// Lists decide what it is, and its media types must agree: bytes that are an index to one reader and an image to
    /// another have one digest and two meanings.
    pub(crate) fn read(bytes: &[u8], content_type: Option<&str>, what: &str) -> Result<Self, ImageError> {
        let invalid = |why: String| ImageError::invalid(what, why);
        let raw: Raw =
            serde_json::from_slice(bytes).map_err(|error| invalid(format!("is not a manifest: {error}")))?;
        if raw.schema_version == Some(1) {
            let why = "it has a manifest of Docker's schema 1, which is no longer used; push it again";
            return Err(ImageError::Unsupported { what: what.into(), why: why.into() });
        }
        let is_index = match (&raw.manifests, &raw.layers) {
            (Some(_), None) if raw.config.is_none() => true,
            (None, Some(_)) => false,
            _ => return Err(invalid("is neither a manifest nor an index".into())),
        };
        let types = if is_index { [OCI_INDEX, DOCKER_LIST] } else { [OCI_MANIFEST, DOCKER_MANIFEST] };
        let of_registry = content_type.map(|text| text.split(';').next().unwrap_or_default().trim());
        // Some registries serve manifests as plain JSON.
        let of_registry = of_registry.filter(|text| text.starts_with("application/vnd."));
        for media_type in raw.media_type.as_deref().into_iter().chain(of_registry) {
            if !types.contains(&media_type) {
                let kind = if is_index { "an index" } else { "a manifest" };
                return Err(invalid(format!("is {kind} with the media type `{}`", shown(media_type))));
            }
        }
        if is_index {
            let entries = raw.manifests.unwrap_or_default();
            if entries.len() > MOST_ENTRIES {
                return Err(invalid(format!("lists more than {MOST_ENTRIES} manifests")));
            }
            return Ok(Self::Index(entries.into_iter().filter_map(IndexEntry::from_raw).collect()));
        }
        let config = raw.config.ok_or_else(|| invalid("has no configuration".into()))?;
        let config = config.check(what)?;
        if !matches!(
            config.media_type.as_str(),
            "application/vnd.oci.image.config.v1+json" | "application/vnd.docker.container.image.v1+json"
        ) {
            let why = format!("it is not an image but an artifact of type `{}`", shown(&config.media_type));
            return Err(ImageError::Unsupported { what: what.into(), why });
        }
        if config.size > LONGEST_CONFIG as u64 {
            return Err(ImageError::TooLong {
                what: format!("the configuration of {what}"),
                most: LONGEST_CONFIG as u64,
            });
        }
        let layers = raw.layers.unwrap_or_default();
        if layers.len() > MOST_LAYERS {
            return Err(invalid(format!("has more than {MOST_LAYERS} layers")));
        }
        let layer = |raw: RawDescriptor| {
            let descriptor = raw.check(what)?;
            let compression = compression_of(&descriptor.media_type, what)?;
            Ok((descriptor, compression))
        };
        let layers = layers.into_iter().map(layer).collect::<Result<_, ImageError>>()?;
        Ok(Self::Image(ImageManifest { config, layers }))
    }
}

impl RawDescriptor {
    fn check(self, what: &str) -> Result<Descriptor, ImageError> {
        let digest = self.digest.parse().map_err(|why| {
            ImageError::invalid(what, format!("has the digest `{}`, which {why}", shown(&self.digest)))
        })?;
        Ok(Descriptor { media_type: self.media_type.unwrap_or_default(), digest, size: self.size })
    }
}

impl IndexEntry {
    /// An entry that can be an image; others are ignored, as attestations and signatures are.
    fn from_raw(mut raw: RawDescriptor) -> Option<Self> {
        let platform = raw.platform.take().map(|platform| {
            let word = |text: Option<String>| text.unwrap_or_default();
            Platform::new(&word(platform.os), &word(platform.architecture), &word(platform.variant))
        });
        let annotation = |name: &str| raw.annotations.as_ref()?.get(name)?.as_str().map(str::to_string);
        let name = annotation("io.containerd.image.name")
            .or_else(|| annotation("org.opencontainers.image.ref.name"));
        let descriptor = raw.check("an index").ok()?;
        let is_image = platform.as_ref().is_none_or(Platform::is_known);
        is_image.then_some(Self { descriptor, platform, name })
    }
}

/// The entry for a platform; the error is the list of platforms that there are.
pub(crate) fn select<'a>(
    entries: &'a [IndexEntry],
    wanted: &Platform,
) -> Result<&'a IndexEntry, Vec<Platform>> {
    if let Some(entry) = entries.iter().find(|entry| entry.platform.as_ref() == Some(wanted)) {
        return Ok(entry);
    }
    // Without a platform, its configuration says which.
    if let [only @ IndexEntry { platform: None, .. }] = entries {
        return Ok(only);
    }
    let mut available: Vec<Platform> = entries.iter().filter_map(|entry| entry.platform.clone()).collect();
    available.sort();
    available.dedup();
    Err(available)
}

impl ImageManifest {
    /// The layers with the digests that the configuration has for them.
    pub(crate) fn layers(&self, file: &ConfigFile, what: &str) -> Result<Vec<Layer>, ImageError> {
        let (layers, ids) = (self.layers.len(), file.diff_ids.len());
        if layers != ids {
            let why = format!("has {layers} layers, but its configuration has {ids}");
            return Err(ImageError::invalid(what, why));
        }
        let pairs = self.layers.iter().zip(&file.diff_ids);
        let layer = |((descriptor, compression), diff_id): (&(Descriptor, Compression), &Digest)| Layer {
            digest: descriptor.digest,
            size: descriptor.size,
            compression: *compression,
            diff_id: *diff_id,
        };
        Ok(pairs.map(layer).collect())
    }
}

/// The configuration's platform, if it is the wanted one or the configuration does not say.
pub(crate) fn check_platform(
    file: &ConfigFile,
    wanted: &Platform,
    image: &str,
) -> Result<Platform, ImageError> {
    match &file.platform {
        Some(platform) if platform != wanted => Err(ImageError::NoPlatform {
            image: image.into(),
            wanted: wanted.clone(),
            available: vec![platform.clone()],
        }),
        _ => Ok(wanted.clone()),
    }
}

fn compression_of(media_type: &str, what: &str) -> Result<Compression, ImageError> {
    let refused = |why: String| Err(ImageError::Unsupported { what: what.into(), why });
    if media_type.contains(".foreign.") || media_type.contains(".nondistributable.") {
        let why = "it has a foreign layer, which registries do not distribute";
        return refused(format!("{why} (`{}`)", shown(media_type)));
    }
    match media_type {
        "application/vnd.oci.image.layer.v1.tar" | "application/vnd.docker.image.rootfs.diff.tar" => {
            Ok(Compression::None)
        }
        "application/vnd.oci.image.layer.v1.tar+gzip"
        | "application/vnd.docker.image.rootfs.diff.tar.gzip" => Ok(Compression::Gzip),
        "application/vnd.oci.image.layer.v1.tar+zstd"
        | "application/vnd.docker.image.rootfs.diff.tar.zstd" => Ok(Compression::Zstd),
        other => refused(format!("it has a layer of the unknown type `{}`", shown(other))),
    }
}

/// The beginning of a text from outside, for errors.
pub(crate) fn shown(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.chars().take(200).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn digest(byte: u8) -> String {
        Digest::of(&[byte]).to_string()
    }

    fn layer(media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": digest(1), "size": 10})
    }

    fn manifest(layers: &[Value]) -> Value {
        json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": layers,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(0), "size": 5},
        })
    }

    fn read(value: &Value, content_type: &str) -> Result<Manifest, String> {
        let bytes = value.to_string();
        Manifest::read(bytes.as_bytes(), Some(content_type), "image x").map_err(|error| error.to_string())
    }

    fn entry(byte: u8, platform: &str) -> Value {
        let words: Vec<&str> = platform.split('/').collect();
        let platform = json!({"os": words[0], "architecture": words[1], "variant": words.get(2)});
        json!({"mediaType": OCI_MANIFEST, "digest": digest(byte), "size": 1, "platform": platform})
    }

    #[test]
    fn layers_of_known_types_are_taken_and_others_refused_by_name() {
        for (media_type, compression) in [
            ("application/vnd.oci.image.layer.v1.tar", Compression::None),
            ("application/vnd.oci.image.layer.v1.tar+gzip", Compression::Gzip),
            ("application/vnd.oci.image.layer.v1.tar+zstd", Compression::Zstd),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", Compression::Gzip),
        ] {
            let Ok(Manifest::Image(image)) = read(&manifest(&[layer(media_type)]), OCI_MANIFEST) else {
                panic!()
            };
            assert_eq!(image.layers[0].1, compression);
        }
        for foreign in [
            "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        ] {
            let why = read(&manifest(&[layer(foreign)]), OCI_MANIFEST).unwrap_err();
            assert!(why.contains("foreign layer") && why.contains(foreign), "{why}");
        }
        let why = read(&manifest(&[layer("text/x")]), OCI_MANIFEST).unwrap_err();
        assert!(why.contains("`text/x`"), "{why}");
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let why = |value: Value| read(&value, "application/json").unwrap_err();
        let old = why(json!({"schemaVersion": 1, "fsLayers": []}));
        assert!(old.contains("schema 1"), "{old}");
        let mut both = manifest(&[]);
        both["manifests"] = json!([]);
        assert!(why(both).contains("neither"));
        let mut disguised = manifest(&[]);
        disguised["mediaType"] = OCI_INDEX.into();
        assert!(why(disguised).contains("media type"));
        assert!(read(&manifest(&[]), DOCKER_LIST).unwrap_err().contains("media type"));
        let mut chart = manifest(&[]);
        chart["config"]["mediaType"] = "application/vnd.cncf.helm.config.v1+json".into();
        assert!(why(chart).contains("helm"));
        let mut long = manifest(&[]);
        long["config"]["size"] = (LONGEST_CONFIG + 1).into();
        assert!(why(long).contains("longer"));
        assert!(why(manifest(&vec![layer("x"); MOST_LAYERS + 1])).contains("512"));
        let mut negative = layer("application/vnd.oci.image.layer.v1.tar");
        negative["size"] = (-1).into();
        assert!(why(manifest(&[negative])).contains("is not a manifest"));
        let mut path = layer("application/vnd.oci.image.layer.v1.tar");
        path["digest"] = "sha256:../../etc/passwd".into();
        assert!(why(manifest(&[path])).contains("digest"));
    }

    #[test]
    fn an_index_is_searched_by_platform_without_attestations() {
        let index = json!({"schemaVersion": 2, "manifests": [
            entry(1, "linux/arm64/v8"), entry(2, "unknown/unknown"), entry(3, "linux/amd64"), entry(4, "linux/amd64/v3"),
        ]});
        let Ok(Manifest::Index(entries)) = read(&index, OCI_INDEX) else { panic!() };
        let take = |platform: &str| {
            select(&entries, &platform.parse().unwrap()).map(|e| e.descriptor.digest.to_string())
        };
        assert_eq!(take("linux/amd64"), Ok(digest(3)));
        assert_eq!(take("linux/amd64/v3"), Ok(digest(4)));
        assert_eq!(take("linux/arm64"), Ok(digest(1)));
        let available = take("linux/s390x").unwrap_err();
        let names: Vec<String> = available.iter().map(Platform::to_string).collect();
        assert_eq!(names, ["linux/amd64", "linux/amd64/v3", "linux/arm64"]);
        assert!(select(&[], &Platform::host()).unwrap_err().is_empty());
    }

    #[test]
    fn layers_and_diff_ids_come_in_pairs() {
        let gzip = "application/vnd.oci.image.layer.v1.tar+gzip";
        let Ok(Manifest::Image(image)) = read(&manifest(&[layer(gzip)]), OCI_MANIFEST) else { panic!() };
        let file = |ids: Value| {
            let file = json!({"rootfs": {"diff_ids": ids}, "os": "linux", "architecture": "arm64"});
            ConfigFile::read(file.to_string().as_bytes()).unwrap()
        };
        let layers = image.layers(&file(json!([digest(9)])), "x").unwrap();
        assert_eq!((layers[0].diff_id.to_string(), layers[0].size), (digest(9), 10));
        assert!(image.layers(&file(json!([])), "x").is_err());
        let why = check_platform(&file(json!([])), &"linux/amd64".parse().unwrap(), "x").unwrap_err();
        assert_eq!(why.to_string(), "the image `x` is not for linux/amd64; it is for linux/arm64");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_an_error_at_most(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Manifest::read(&bytes, None, "x");
            let _ = ConfigFile::read(&bytes);
        }
    }
}
