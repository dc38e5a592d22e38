//! `host`: a root that we write, over the machine's own `/usr`. It needs no download, is ready in a moment,
//! and has the host's programs.
//!
//! Two overlays: `/` comes from [`super::host_root`]; `/usr` is the host's with a thin layer above it, which
//! adds `python` and certificates and hides files that may have settings.
//!
//! A sandbox sees those files of the host's `/usr` that every user of the host may read
//! ([`LayerSpec::public_only`]), including later ones: their owners do not exist inside. Directories near the
//! top are in our layer too, owned by root, so that root inside can add, replace and remove files there
//! ([`super::host_frame`]).

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, mknodat};

use super::store::Keep;
use super::tree::Tree;
use super::{BuildError, HOST, LayerSpec, OverlaySpec, Template, TemplateStore, host_frame, host_root};

/// Raised when our files change, so that builds of older programs count as stale.
const REVISION: u32 = 2;

/// Settings of the host that programs in `/usr` read from `/usr`: registries, tokens, proxies.
const HIDDEN_DIRECTORIES: [&str; 2] = ["etc", "local/etc"];
const HIDDEN_FILES: [&str; 4] =
    ["pip.conf", "local/pip.conf", "lib/node_modules/npm/npmrc", "local/lib/node_modules/npm/npmrc"];

/// Programs that the notes mention.
const TOLD: [&str; 7] = ["python3", "node", "npm", "git", "sudo", "curl", "gcc"];

/// Directories of programs, as the template's PATH has them.
const PROGRAMS: [&str; 4] = ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin"];

impl TemplateStore {
    /// The `host` template, built again if there is none or the host has changed since.
    pub fn ensure_host(&self) -> Result<Template, BuildError> {
        ensure_from(self, Path::new("/"))
    }
}

/// For the machine whose root is `host`; tests use a fake one.
fn ensure_from(store: &TemplateStore, host: &Path) -> Result<Template, BuildError> {
    let fingerprint = fingerprint(host);
    let current = || {
        let (manifest, directory) = store.newest(HOST)?;
        let same = manifest.fingerprint.as_ref() == Some(&fingerprint);
        let is_open = || host_frame::is_open(&directory.join("usr"), &host.join("usr"));
        (same && store.agrees(&directory, is_open)).then(|| manifest.into_template(&directory))
    };
    if let Some(template) = current() {
        return Ok(template);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(BuildError::NotRoot);
    }
    let draft = store.draft(HOST, &mut || {})?;
    // Another process may have been quicker.
    if let Some(template) = current() {
        return Ok(template);
    }
    let root = Tree::at(draft.directory().join("rootfs"));
    let usr = Tree::at(draft.directory().join("usr"));
    let mut notes = programs(host, &std::env::var_os("PATH").unwrap_or_default());
    notes.extend(host_root::write(&root, host)?);
    notes.extend(write_usr(&usr, host)?);
    let mut manifest = draft.manifest();
    manifest.fingerprint = Some(fingerprint);
    manifest.notes = notes;
    manifest.env = super::environment();
    manifest.overlays = vec![
        OverlaySpec { target: "/".into(), layers: vec![LayerSpec::own("rootfs")] },
        OverlaySpec {
            target: "/usr".into(),
            layers: vec![LayerSpec::own("usr"), LayerSpec::of_the_host(host.join("usr"))],
        },
    ];
    draft.publish(manifest, Keep::UntilReboot)
}

/// Changes whenever packages or programs change, and with every boot: the build is not synced to disk, so one
/// that a power cut may have damaged is not used.
fn fingerprint(host: &Path) -> String {
    const WATCHED: [&str; 12] = [
        "usr",
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/etc",
        "usr/local",
        "usr/local/bin",
        "usr/local/etc",
        "usr/local/lib",
        "usr/share/ca-certificates",
        "etc/alternatives",
        "var/lib/dpkg/status",
    ];
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut text = format!("{REVISION} boot={}", boot.trim());
    for path in WATCHED {
        match fs::metadata(host.join(path)) {
            Ok(metadata) => {
                let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
                text.push_str(&format!(" {path}={:x}.{seconds}.{nanoseconds}", metadata.ino()));
            }
            Err(_) => text.push_str(&format!(" {path}=-")),
        }
    }
    text
}

/// The thin layer above the host's `/usr`.
fn write_usr(tree: &Tree, host: &Path) -> Result<Vec<String>, BuildError> {
    let usr = host.join("usr");
    let mut notes = Vec::new();
    tree.directory("", 0o755)?;
    for path in HIDDEN_DIRECTORIES.iter().filter(|path| usr.join(path).is_dir()) {
        parents(tree, &usr, path)?;
        tree.directory(path, 0o755)?;
        let directory = tree.path(path);
        lsetxattr(&directory, "trusted.overlay.opaque", b"y", XattrFlags::empty())
            .map_err(|errno| BuildError::file("mark", &directory)(errno.into()))?;
    }
    host_frame::write(tree, &usr)?;
    for path in HIDDEN_FILES.iter().filter(|path| usr.join(path).exists()) {
        hide(tree, &usr, path)?;
    }
    notes.push(
        "sandboxes can replace and remove files near the top of the host's /usr, but not change them in place"
            .into(),
    );
    notes.push(
        "sandboxes can read files in /usr that every user of the host can read, except /usr/etc and /usr/local/etc"
            .into(),
    );

    // OpenSSL, and so Python, looks here before it needs a directory of hashed names.
    if usr.join("lib/ssl").is_dir() && !usr.join("lib/ssl/cert.pem").exists() {
        parents(tree, &usr, "lib/ssl/cert.pem")?;
        tree.link("lib/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt")?;
    }
    if find(host, "python").is_none()
        && let Some(python) = find(host, "python3")
        && plain_directory(&usr.join("local/bin"))
    {
        parents(tree, &usr, "local/bin/python")?;
        tree.link("local/bin/python", inside(host, &python))?;
    }
    if let Ok(of_usr) = fs::metadata(&usr)
        && fs::metadata(usr.join("local")).is_ok_and(|local| local.dev() != of_usr.dev())
    {
        notes.push("/usr/local is a filesystem of its own on this host and is not in the template".into());
    }
    Ok(notes)
}

/// Creates the directories above `path` in the layer as the host has them: a layer's directory replaces the
/// merged one, owner and mode included.
fn parents(tree: &Tree, usr: &Path, path: &str) -> Result<(), BuildError> {
    for (end, _) in path.match_indices('/') {
        let parent = &path[..end];
        if tree.path(parent).exists() {
            continue;
        }
        let metadata = fs::symlink_metadata(usr.join(parent)).ok().filter(Metadata::is_dir);
        tree.directory(parent, metadata.as_ref().map_or(0o755, |m| m.permissions().mode() & 0o7777))?;
        if let Some(metadata) = metadata {
            tree.own(parent, metadata.uid(), metadata.gid())?;
        }
    }
    Ok(())
}

/// Creates a whiteout: for overlayfs, a device 0/0 hides what is below.
fn hide(tree: &Tree, usr: &Path, path: &str) -> Result<(), BuildError> {
    parents(tree, usr, path)?;
    let path = tree.path(path);
    mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0)
        .map_err(|errno| BuildError::file("hide", &path)(errno.into()))
}

fn plain_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |metadata| metadata.is_dir())
}

/// The path of a program in the host's `/usr`; links that lead out of it do not count.
fn find(host: &Path, program: &str) -> Option<PathBuf> {
    let usr = host.join("usr");
    PROGRAMS
        .iter()
        .map(|directory| host.join(directory).join(program))
        .find(|path| path.canonicalize().is_ok_and(|real| real.is_file() && real.starts_with(&usr)))
}

/// A path of the host as it is inside.
fn inside(host: &Path, path: &Path) -> PathBuf {
    Path::new("/").join(path.strip_prefix(host).unwrap_or(path))
}

/// Lists where each program is, or why it is missing.
fn programs(host: &Path, path: &std::ffi::OsStr) -> Vec<String> {
    let mut notes = Vec::new();
    for program in TOLD {
        let first =
            std::env::split_paths(path).map(|directory| directory.join(program)).find(|file| file.is_file());
        let outside =
            first.filter(|file| file.canonicalize().is_ok_and(|real| !real.starts_with(host.join("usr"))));
        notes.push(match (find(host, program), outside) {
            (Some(found), None) => format!("{program}: {}", inside(host, &found).display()),
            (Some(found), Some(outside)) => format!(
                "{program}: {}; the host's own first choice, {}, lies outside /usr and is not in the template",
                inside(host, &found).display(),
                outside.display()
            ),
            (None, Some(outside)) => {
                format!("{program}: missing, {} lies outside /usr; `base` has it", outside.display())
            }
            (None, None) => format!("{program}: missing on this host; `base` has it"),
        });
    }
    notes
}

#[cfg(test)]
mod tests;
