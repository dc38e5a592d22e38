//! `scratch`: an empty root, in which images are unpacked.

use super::store::Keep;
use super::tree::Tree;
use super::{BuildError, LayerSpec, OverlaySpec, SCRATCH, Template, TemplateStore};

/// Raised when our files change.
const REVISION: &str = "1";

impl TemplateStore {
    /// The `scratch` template, built if there is none.
    pub fn ensure_scratch(&self) -> Result<Template, BuildError> {
        let current = || {
            let (manifest, directory) = self.newest(SCRATCH)?;
            (manifest.fingerprint.as_deref() == Some(REVISION)).then(|| manifest.into_template(&directory))
        };
        if let Some(template) = current() {
            return Ok(template);
        }
        let draft = self.draft(SCRATCH, &mut || {})?;
        // Another process may have been quicker.
        if let Some(template) = current() {
            return Ok(template);
        }
        let root = Tree::at(draft.directory().join("rootfs"));
        root.directory("", 0o755)?;
        root.directory("etc", 0o755)?;
        // An image without accounts still has one to run as.
        root.file("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n")?;
        root.file("etc/group", 0o644, "root:x:0:\n")?;
        root.directory("root", 0o700)?;
        root.directory("tmp", 0o1777)?;
        let mut manifest = draft.manifest();
        manifest.fingerprint = Some(REVISION.to_string());
        manifest.default_user = "root".to_string();
        manifest.default_workdir = Some("/".to_string());
        manifest.notes = vec!["an empty root, for images".to_string()];
        manifest.overlays = vec![OverlaySpec { target: "/".into(), layers: vec![LayerSpec::own("rootfs")] }];
        draft.publish(manifest, Keep::AcrossReboots)
    }
}

#[cfg(test)]
mod tests {
    use crate::store::tests::store;

    #[test]
    fn it_is_built_once() {
        let (_directory, store) = store();
        let built = store.ensure_scratch().unwrap();
        assert_eq!(built.info.default_user, "root");
        assert_eq!(store.ensure_scratch().unwrap(), built);
    }
}
