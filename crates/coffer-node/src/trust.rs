//! Adds the installation's certificate authority to the trust stores of sandboxes.
//!
//! A small layer over each template: the template's own certificates followed by ours, where programs look
//! for them. It is created once for each template and shared, so it costs a sandbox nothing. A sandbox may
//! change its trust store: that affects only its own connections.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use coffer_core::sync::Mutex;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use sha2::{Digest, Sha256};

use coffer_template::{LayerSpec, Template};

/// Where most programs look, and the value of the variables below for the rest.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";
/// Our certificate alone, in a separate file.
const OURS: &str = "etc/ssl/certs/coffer.pem";
/// Where `update-ca-certificates` finds our certificate when it rebuilds the bundle.
const LOCAL: &str = "usr/local/share/ca-certificates/coffer.crt";
/// A larger file is not a bundle.
const LONGEST_BUNDLE: u64 = 8 * 1024 * 1024;

/// Variables of programs that bring their own certificates by default.
const VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
];
/// Node.js adds these certificates to its own.
const NODE: &str = "NODE_EXTRA_CA_CERTS";

#[derive(Debug)]
pub(crate) struct Trust {
    directory: PathBuf,
    certificate: String,
    /// The layer created for each stack of template layers.
    made: Mutex<HashMap<Vec<PathBuf>, PathBuf>>,
}

impl Trust {
    /// Loads the authority from its certificate file.
    pub(crate) fn open(data_dir: &Path, certificate: &Path) -> io::Result<Self> {
        let certificate = fs::read_to_string(certificate)?;
        Ok(Self { directory: data_dir.join("trust"), certificate, made: Mutex::default() })
    }

    /// The same template, with our authority among those that it trusts.
    pub(crate) fn extend(&self, mut template: Template) -> io::Result<Template> {
        let alone = template.overlays.len() == 1;
        let Some(root) = template.overlays.first_mut() else { return Ok(template) };
        let layers: Vec<PathBuf> = root.layers.iter().map(|layer| layer.path.clone()).collect();
        // Held while a layer is created: two writers would use the same draft.
        let mut made = self.made.lock();
        let layer = match made.get(&layers) {
            Some(layer) => layer.clone(),
            None => {
                let layer = self.make(&layers, alone)?;
                made.insert(layers, layer.clone());
                layer
            }
        };
        drop(made);
        root.layers.insert(0, LayerSpec::own(layer));
        for name in VARIABLES {
            template.info.env.entry(name.to_string()).or_insert_with(|| format!("/{BUNDLE}"));
        }
        template.info.env.entry(NODE.to_string()).or_insert_with(|| format!("/{OURS}"));
        Ok(template)
    }

    /// Makes the layer over these, unless it is there.
    fn make(&self, layers: &[PathBuf], alone: bool) -> io::Result<PathBuf> {
        let own = layers.iter().find_map(|layer| read_below(layer, BUNDLE).ok());
        let host = || fs::read_to_string(Path::new("/").join(BUNDLE)).unwrap_or_default();
        let bundle = format!("{}\n{}", own.unwrap_or_else(host).trim_end(), self.certificate);
        let mut files = vec![(BUNDLE, bundle.as_str()), (OURS, self.certificate.as_str())];
        // If `/usr` has its own layers, this file would be hidden below them.
        files.extend(alone.then_some((LOCAL, self.certificate.as_str())));
        let mut digest = Sha256::new();
        for (path, text) in &files {
            digest.update(format!("{path}\0{}\0", text.len()));
            digest.update(text);
        }
        let name = hex::encode(&digest.finalize()[..8]);
        let layer = self.directory.join(&name);
        if layer.exists() {
            return Ok(layer);
        }
        let draft = self.directory.join(format!(".{name}.{}", std::process::id()));
        let _ = fs::remove_dir_all(&draft);
        for (path, text) in files {
            let path = draft.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&draft))?;
            fs::write(path, text)?;
        }
        open_to_all(&draft)?;
        match fs::rename(&draft, &layer) {
            // Another process created the same layer first.
            Err(_) if layer.exists() => fs::remove_dir_all(&draft)?,
            renamed => renamed?,
        }
        Ok(layer)
    }
}

/// A sandbox's users must be able to read it, whatever the umask.
fn open_to_all(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let is_directory = fs::symlink_metadata(path)?.is_dir();
    fs::set_permissions(path, fs::Permissions::from_mode(if is_directory { 0o755 } else { 0o644 }))?;
    if is_directory {
        for entry in fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    Ok(())
}

/// Reads a file of a template, whose links must not lead out of it.
fn read_below(root: &Path, path: &str) -> io::Result<String> {
    let root =
        rustix::fs::openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let file = rustix::fs::openat2(
        &root,
        path,
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?;
    let file = fs::File::from(file);
    let mut text = String::new();
    if !file.metadata()?.is_file()
        || file.take(LONGEST_BUNDLE + 1).read_to_string(&mut text)? as u64 > LONGEST_BUNDLE
    {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_template::OverlaySpec;
    use coffer_wire::node::TemplateInfo;

    fn template(layers: &[&Path], targets: &[&str]) -> Template {
        let layers: Vec<_> = layers.iter().map(|path| LayerSpec::own(*path)).collect();
        let overlays =
            targets.iter().map(|target| OverlaySpec { target: target.into(), layers: layers.clone() });
        let info = TemplateInfo {
            name: "base".into(),
            build: "1".into(),
            default_user: "user".into(),
            default_workdir: None,
            env: [("PIP_CERT".to_string(), "/own".to_string())].into(),
        };
        Template { info, overlays: overlays.collect(), notes: vec![], created_ms: 0, size_bytes: 0 }
    }

    #[test]
    fn ours_comes_after_the_templates_own_and_the_layer_is_shared() {
        let home = tempfile::tempdir().unwrap();
        let certificate = home.path().join("authority.pem");
        fs::write(&certificate, "OURS\n").unwrap();
        let rootfs = home.path().join("rootfs");
        fs::create_dir_all(rootfs.join("etc/ssl/certs")).unwrap();
        fs::write(rootfs.join(BUNDLE), "THEIRS\n").unwrap();
        let trust = Trust::open(&home.path().join("node"), &certificate).unwrap();
        let one = trust.extend(template(&[&rootfs], &["/"])).unwrap();
        assert_eq!(one, trust.extend(template(&[&rootfs], &["/"])).unwrap());
        let [layer, below] = &one.overlays[0].layers[..] else { panic!() };
        assert_eq!(below.path, rootfs);
        assert_eq!(fs::read_to_string(layer.path.join(BUNDLE)).unwrap(), "THEIRS\nOURS\n");
        assert_eq!(fs::read_to_string(layer.path.join(LOCAL)).unwrap(), "OURS\n");
        assert_eq!(one.info.env["PIP_CERT"], "/own");
        assert_eq!(one.info.env["SSL_CERT_FILE"], "/etc/ssl/certs/ca-certificates.crt");
        // A later node finds the same.
        let later = Trust::open(&home.path().join("node"), &certificate).unwrap();
        assert_eq!(later.extend(template(&[&rootfs], &["/"])).unwrap(), one);
        let two = trust.extend(template(&[&rootfs], &["/", "/usr"])).unwrap();
        assert_eq!((two.overlays[0].layers.len(), two.overlays[1].layers.len()), (2, 1));
    }

    #[test]
    fn a_link_in_a_template_does_not_lead_to_the_hosts_files() {
        let home = tempfile::tempdir().unwrap();
        let (rootfs, outside) = (home.path().join("rootfs"), home.path().join("outside"));
        fs::create_dir_all(rootfs.join("etc/ssl/certs")).unwrap();
        fs::write(&outside, "hidden").unwrap();
        std::os::unix::fs::symlink(&outside, rootfs.join(BUNDLE)).unwrap();
        assert!(read_below(&rootfs, BUNDLE).is_err());
    }
}
