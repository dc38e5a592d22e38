//! Adds the installation's certificate authority to the trust stores of sandboxes, and files that lead package
//! clients to the operator's mirrors.
//!
//! A small layer over each template: the template's own certificates followed by ours, where programs look
//! for them. It is created once for each template and shared, so it costs a sandbox nothing. A sandbox may
//! change its trust store: that affects only its own connections.
//!
//! A snapshot refers to the layer of its time. A sandbox that boots from it gets the layer of today instead
//! ([`Trust::renew`]), because mirrors may have moved since.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use coffer_core::mirrors::{MirrorFile, PackageMirrors, TemplateFiles};
use coffer_core::sync::Mutex;
use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags};
use sha2::{Digest, Sha256};

use coffer_template::{LayerSpec, OverlaySpec, Template};

/// Where most programs look, and the value of the variables below for the rest.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";
/// Our certificate alone, in a separate file.
const OURS: &str = "etc/ssl/certs/coffer.pem";
/// Where `update-ca-certificates` finds our certificate when it rebuilds the bundle, and those for mirrors.
const LOCAL: &str = "usr/local/share/ca-certificates/coffer.crt";
const LOCAL_MIRRORS: &str = "usr/local/share/ca-certificates/coffer-mirrors.crt";
/// A larger file is not a bundle.
const LONGEST_BUNDLE: u64 = 8 * 1024 * 1024;
const APT_LIST: &str = "etc/apt/sources.list";
const APT_PARTS: &str = "etc/apt/sources.list.d";
/// More sources than a template has.
const MOST_SOURCES: usize = 64;

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
    /// Certificates of the mirrors' authorities; may be empty.
    authorities: String,
    mirrors: PackageMirrors,
    /// The layer created for each stack of template layers.
    made: Mutex<HashMap<Vec<PathBuf>, PathBuf>>,
}

impl Trust {
    /// Loads the authority from its certificate file, and those for mirrors.
    pub(crate) fn open(data_dir: &Path, certificate: &Path, mirrors: PackageMirrors) -> io::Result<Self> {
        let certificate = fs::read_to_string(certificate)?;
        let authorities = mirrors.authorities().map(fs::read_to_string).transpose()?.unwrap_or_default();
        let directory = data_dir.join("trust");
        Ok(Self { directory, certificate, authorities, mirrors, made: Mutex::default() })
    }

    /// The same template, with our authority among those that it trusts.
    pub(crate) fn extend(&self, mut template: Template) -> io::Result<Template> {
        self.cover(&mut template.overlays)?;
        for name in VARIABLES {
            template.info.env.entry(name.to_string()).or_insert_with(|| format!("/{BUNDLE}"));
        }
        template.info.env.entry(NODE.to_string()).or_insert_with(|| format!("/{OURS}"));
        Ok(template)
    }

    /// Replaces the layer that a snapshot refers to by that of today.
    pub(crate) fn renew(&self, overlays: &mut [OverlaySpec]) -> io::Result<()> {
        let Some(root) = overlays.first_mut() else { return Ok(()) };
        let before = root.layers.clone();
        root.layers.retain(|layer| !layer.path.starts_with(&self.directory));
        self.cover(overlays).inspect_err(|_| overlays[0].layers = before)
    }

    /// Puts our layer on top of a template's.
    fn cover(&self, overlays: &mut [OverlaySpec]) -> io::Result<()> {
        let alone = overlays.len() == 1;
        let Some(root) = overlays.first_mut() else { return Ok(()) };
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
        Ok(())
    }

    /// Creates the layer over these, unless it exists.
    fn make(&self, layers: &[PathBuf], alone: bool) -> io::Result<PathBuf> {
        let below = Below(layers);
        let own = below.read(BUNDLE);
        let host = || fs::read_to_string(Path::new("/").join(BUNDLE)).unwrap_or_default();
        let ours = format!("{}{}", self.certificate, self.authorities);
        let bundle = format!("{}\n{ours}", own.unwrap_or_else(host).trim_end());
        let mut files = vec![(BUNDLE, bundle.as_str()), (OURS, ours.as_str())];
        // If `/usr` has its own layers, these files would be hidden below them.
        files.extend(alone.then_some((LOCAL, self.certificate.as_str())));
        files.extend((alone && !self.authorities.is_empty()).then_some((LOCAL_MIRRORS, &*self.authorities)));
        let for_clients = self.mirrors.files(&below);
        files.extend(for_clients.iter().map(|MirrorFile { path, text }| (path.as_str(), text.as_str())));
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

/// The files of a template in the layers of its root, the top one first.
struct Below<'a>(&'a [PathBuf]);

impl TemplateFiles for Below<'_> {
    fn read(&self, path: &str) -> Option<String> {
        self.0.iter().find_map(|layer| read_below(layer, path).ok())
    }

    fn apt_sources(&self) -> Vec<String> {
        let parts = self.0.iter().flat_map(|layer| names_below(layer, APT_PARTS).unwrap_or_default());
        // Some programs write any name there, and some names would be two lines in a digest.
        let plain =
            |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        let mut parts: Vec<String> = parts.filter(plain).map(|name| format!("{APT_PARTS}/{name}")).collect();
        parts.sort();
        parts.dedup();
        parts.truncate(MOST_SOURCES);
        [APT_LIST.to_string()].into_iter().chain(parts).collect()
    }
}

/// Opens a file of a template, whose links must not lead out of it.
fn open_below(root: &Path, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let root =
        rustix::fs::openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let opened = rustix::fs::openat2(
        &root,
        path,
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | flags,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?;
    Ok(opened)
}

fn names_below(root: &Path, path: &str) -> io::Result<Vec<String>> {
    let directory = Dir::new(open_below(root, path, OFlags::DIRECTORY)?)?;
    let names = directory.flatten().filter_map(|entry| Some(entry.file_name().to_str().ok()?.to_string()));
    Ok(names.filter(|name| !name.starts_with('.')).take(MOST_SOURCES).collect())
}

fn read_below(root: &Path, path: &str) -> io::Result<String> {
    let file = fs::File::from(open_below(root, path, OFlags::empty())?);
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
    use coffer_core::mirrors::MirrorSettings;
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
            start: None,
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
        let no_mirrors = PackageMirrors::default;
        let trust = Trust::open(&home.path().join("node"), &certificate, no_mirrors()).unwrap();
        let one = trust.extend(template(&[&rootfs], &["/"])).unwrap();
        assert_eq!(one, trust.extend(template(&[&rootfs], &["/"])).unwrap());
        let [layer, below] = &one.overlays[0].layers[..] else { panic!() };
        assert_eq!(below.path, rootfs);
        assert_eq!(fs::read_to_string(layer.path.join(BUNDLE)).unwrap(), "THEIRS\nOURS\n");
        assert_eq!(fs::read_to_string(layer.path.join(LOCAL)).unwrap(), "OURS\n");
        assert_eq!(one.info.env["PIP_CERT"], "/own");
        assert_eq!(one.info.env["SSL_CERT_FILE"], "/etc/ssl/certs/ca-certificates.crt");
        // A later node finds the same.
        let later = Trust::open(&home.path().join("node"), &certificate, no_mirrors()).unwrap();
        assert_eq!(later.extend(template(&[&rootfs], &["/"])).unwrap(), one);
        let two = trust.extend(template(&[&rootfs], &["/", "/usr"])).unwrap();
        assert_eq!((two.overlays[0].layers.len(), two.overlays[1].layers.len()), (2, 1));
    }

    #[test]
    fn mirrors_are_in_the_layer_and_a_snapshot_gets_those_of_today() {
        let home = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = home.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        let certificate = write("authority.pem", "OURS\n");
        let ca = write("ca.pem", "MIRROR\n");
        write("rootfs/etc/ssl/certs/ca-certificates.crt", "THEIRS\n");
        write("rootfs/etc/apt/sources.list.d/debian.sources", "URIs: http://deb.debian.org/debian\n");
        write(
            "rootfs/etc/apt/sources.list.d/odd\nname.list",
            "deb http://deb.debian.org/debian trixie main\n",
        );
        std::os::unix::fs::symlink(&ca, home.path().join("rootfs/etc/apt/sources.list")).unwrap();
        let rootfs = home.path().join("rootfs");
        let open = |settings: serde_json::Value| {
            let settings: MirrorSettings = serde_json::from_value(settings).unwrap();
            Trust::open(&home.path().join("node"), &certificate, settings.resolve().unwrap()).unwrap()
        };
        let trust = open(serde_json::json!({"apt": "http://m.test", "crates": "https://c.test/i", "ca": ca}));
        let made = trust.extend(template(&[&rootfs], &["/"])).unwrap();
        let read = |layer: &LayerSpec, path: &str| fs::read_to_string(layer.path.join(path)).ok();
        let layer = &made.overlays[0].layers[0];
        assert_eq!(read(layer, BUNDLE).unwrap(), "THEIRS\nOURS\nMIRROR\n");
        assert_eq!(read(layer, OURS).unwrap(), "OURS\nMIRROR\n");
        assert_eq!(
            (read(layer, LOCAL).unwrap(), read(layer, LOCAL_MIRRORS).unwrap()),
            ("OURS\n".into(), "MIRROR\n".into())
        );
        assert_eq!(
            read(layer, "etc/apt/sources.list.d/debian.sources").unwrap(),
            "URIs: http://m.test/debian\n"
        );
        assert!(read(layer, ".cargo/config.toml").unwrap().contains("sparse+https://c.test/i/"));
        assert!(!layer.path.join(APT_LIST).exists(), "a link out of the template is not followed");
        assert_eq!(fs::read_dir(layer.path.join(APT_PARTS)).unwrap().count(), 1);

        let mut kept = made.overlays.clone();
        open(serde_json::json!({"apt": "http://n.test"})).renew(&mut kept).unwrap();
        let [today, below] = &kept[0].layers[..] else { panic!("{kept:?}") };
        assert_eq!(below.path, rootfs);
        assert_eq!(
            read(today, "etc/apt/sources.list.d/debian.sources").unwrap(),
            "URIs: http://n.test/debian\n"
        );
        assert_eq!(read(today, BUNDLE).unwrap(), "THEIRS\nOURS\n");
        trust.renew(&mut kept).unwrap();
        assert_eq!(kept, made.overlays);
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
