//! `manifest.json`: describes a build. It is the last file written.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use coffer_wire::node::TemplateInfo;
use serde::{Deserialize, Serialize};

use super::{LayerSpec, OverlaySpec, Template};

/// Raised whenever the layout of a build changes; others are ignored with a warning.
pub(super) const FORMAT: u32 = 1;

pub(super) const FILE: &str = "manifest.json";

/// The longest manifest; a longer one is damaged.
const LONGEST: u64 = 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) name: String,
    pub(super) build: String,
    pub(super) created_ms: i64,
    pub(super) default_user: String,
    pub(super) default_workdir: Option<String>,
    pub(super) env: BTreeMap<String, String>,
    /// Layer paths are relative to the build, or absolute for others (`/usr`).
    pub(super) overlays: Vec<OverlaySpec>,
    pub(super) notes: Vec<String>,
    pub(super) size_bytes: u64,
    /// A fingerprint of the inputs, compared to see whether the build is stale.
    pub(super) fingerprint: Option<String>,
    /// An explicitly chosen release, which later builds keep.
    #[serde(default)]
    pub(super) suite: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum BadBuild {
    #[error("could not read its manifest")]
    Read(#[source] io::Error),
    #[error("its manifest is not valid JSON")]
    Parse(#[source] serde_json::Error),
    #[error("its format is {found}, this program reads {FORMAT}")]
    Format { found: u32 },
    #[error("its manifest says `{name}` build `{build}`")]
    Misplaced { name: String, build: String },
    #[error("its first overlay is not for `/`")]
    NoRoot,
    #[error("its layer `{0}` is missing or outside of the build")]
    Layer(PathBuf),
}

/// The field that every format has.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

impl Manifest {
    /// Reads and checks the build at `directory`, which must be `<name>/<build>`.
    pub(super) fn read(directory: &Path) -> Result<Self, BadBuild> {
        let file = fs::File::open(directory.join(FILE)).map_err(BadBuild::Read)?;
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text).map_err(BadBuild::Read)?;
        let AnyFormat { format } = serde_json::from_slice(&text).map_err(BadBuild::Parse)?;
        if format != FORMAT {
            return Err(BadBuild::Format { found: format });
        }
        let manifest: Self = serde_json::from_slice(&text).map_err(BadBuild::Parse)?;
        let place = Path::new(&manifest.name).join(&manifest.build);
        if !directory.ends_with(&place) || place.components().count() != 2 {
            return Err(BadBuild::Misplaced { name: manifest.name, build: manifest.build });
        }
        if manifest.overlays.first().is_none_or(|overlay| overlay.target != Path::new("/")) {
            return Err(BadBuild::NoRoot);
        }
        for layer in manifest.overlays.iter().flat_map(|overlay| &overlay.layers) {
            let climbs = layer.path.components().any(|part| part == Component::ParentDir);
            if climbs || !directory.join(&layer.path).is_dir() {
                return Err(BadBuild::Layer(layer.path.clone()));
            }
        }
        Ok(manifest)
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("a manifest has only string keys");
        text.push(b'\n');
        text
    }

    /// The template, its layers as absolute paths below `directory`.
    pub(super) fn into_template(self, directory: &Path) -> Template {
        let absolute = |layer: LayerSpec| LayerSpec { path: directory.join(&layer.path), ..layer };
        Template {
            info: TemplateInfo {
                name: self.name,
                build: self.build,
                default_user: self.default_user,
                default_workdir: self.default_workdir,
                env: self.env,
                start: None,
            },
            overlays: self
                .overlays
                .into_iter()
                .map(|overlay| OverlaySpec {
                    target: overlay.target,
                    layers: overlay.layers.into_iter().map(absolute).collect(),
                })
                .collect(),
            notes: self.notes,
            created_ms: self.created_ms,
            size_bytes: self.size_bytes,
        }
    }
}
