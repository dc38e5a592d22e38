//! `base`: a small Debian or Ubuntu with what people expect to find, from the host's own mirrors.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use super::bootstrap::{Run, Tool};
use super::finish::finish;
use super::progress::{Phase, Progress, Reader};
use super::store::Keep;
use super::tree::Tree;
use super::{BASE, BuildError, LayerSpec, OverlaySpec, Template, TemplateStore, sources};

/// What goes in besides the essential packages. Without recommendations: npm alone pulls in
/// some three hundred packages by its dependencies, half of the whole.
const PACKAGES: &[&str] = &[
    "attr",
    "bash",
    "build-essential",
    "bzip2",
    "ca-certificates",
    "coreutils",
    "curl",
    "file",
    "git",
    "iproute2",
    "jq",
    "less",
    "lsof",
    "mount",
    "nano",
    "netcat-openbsd",
    "nodejs",
    "npm",
    "openssh-client",
    "procps",
    "psmisc",
    "python-is-python3",
    "python3",
    "python3-dev",
    "python3-pip",
    "python3-venv",
    "ripgrep",
    "rsync",
    "sudo",
    "tree",
    "tzdata",
    "unzip",
    "vim-tiny",
    "wget",
    "xz-utils",
    "zip",
];

/// The packages while they are fetched and unpacked, with room to spare.
const NEEDED_BYTES: u64 = 2 * 1024 * 1024 * 1024;

/// What a person may change about `base`.
#[derive(Debug, Clone, Default)]
pub struct BaseOptions {
    /// A mirror instead of those in the host's apt configuration.
    pub mirror: Option<String>,
    /// A release instead of the host's own.
    pub suite: Option<String>,
}

pub(super) fn build(
    store: &TemplateStore,
    options: &BaseOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Template, BuildError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BuildError::NotRoot);
    }
    let tool = Tool::find().ok_or(BuildError::NoTool)?;
    let plan = sources::plan(Path::new("/"), options.mirror.as_deref(), options.suite.as_deref())?;
    check_space(store.directory())?;

    let mut waited = false;
    let before = store.get(BASE).map(|template| template.info.build);
    let draft = store.draft(BASE, &mut || {
        waited = true;
        progress(Progress::at(Phase::Waiting));
    })?;
    // Who waited for somebody else's build wants that one, not the same again.
    if waited
        && let Some(theirs) = store.get(BASE)
        && Some(&theirs.info.build) != before.as_ref()
    {
        return Ok(theirs);
    }

    let tree = Tree::at(draft.directory().join("rootfs"));
    let scratch = make_scratch(draft.directory())?;
    let log_path = store.log_path(BASE);
    progress(Progress::at(Phase::Index));
    let mut run = Run {
        tree: &tree,
        scratch: &scratch,
        lock: draft.share_lock().map_err(BuildError::file("share the lock of", draft.directory()))?,
        log: Run::create_log(&log_path)?,
        log_path,
        progress,
        reader: Reader::new(),
    };
    run.lay(tool, &plan, PACKAGES)?;
    (run.progress)(Progress::at(Phase::Finish));
    let notes = finish(&mut run, &plan)?;
    drop(run);
    fs::remove_dir_all(&scratch).map_err(BuildError::file("remove", &scratch))?;

    let mut manifest = draft.manifest();
    manifest.notes = notes;
    manifest.env = super::environment();
    manifest.overlays = vec![OverlaySpec {
        target: "/".into(),
        layers: vec![LayerSpec { path: "rootfs".into(), uid_base: 0 }],
    }];
    let template = draft.publish(manifest, Keep::AcrossReboots)?;
    progress(Progress { phase: Phase::Finish, done: 1, total: 1 });
    Ok(template)
}

fn make_scratch(draft: &Path) -> Result<PathBuf, BuildError> {
    // Readable for apt's own user, which fetches and verifies.
    let scratch = draft.join("scratch");
    fs::create_dir(&scratch).map_err(BuildError::file("make", &scratch))?;
    Ok(scratch)
}

fn check_space(path: &Path) -> Result<(), BuildError> {
    let space = statvfs(path).map_err(|errno| BuildError::file("measure", path)(errno.into()))?;
    let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    if free_bytes >= NEEDED_BYTES {
        return Ok(());
    }
    Err(BuildError::NoSpace { path: path.to_path_buf(), free_bytes, needed_bytes: NEEDED_BYTES })
}
