//! Probes which ways of creating a sandbox this kernel supports, by trying each. Runs as a separate process,
//! `spawner probe`, so that its mounts and namespaces end with it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MoveMountFlags, OpenTreeFlags};

use super::filesystem;
use super::kernel::{self, Cloned};
use super::overlay::{self, IDS};
use super::own_mounts::OwnMounts;
use super::request::{LayerForm, OverlayRecipe};
use super::setup_error::{Doing, Quoted, SetupError};
use crate::features::Feature;

/// The argument that makes a spawner a probe; a scratch directory and the template directory follow.
pub(super) const WORD: &str = "probe";

/// Any ids will do: nothing is written with them.
const SOME_IDS: u32 = 0x7000_0000;

/// Missing features with the kernel's message.
pub(crate) type Missing = BTreeMap<Feature, String>;

/// How to start a probe: the spawner's own command.
#[derive(Debug, Clone)]
pub(crate) struct Prober {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<std::ffi::OsString>,
}

/// Why features could not be probed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    #[error("could not start the probe")]
    Start(#[source] io::Error),
    #[error("the probe failed ({status}): {said}")]
    Failed { status: ExitStatus, said: String },
    #[error("could not parse the probe's answer")]
    Answer(#[from] serde_json::Error),
}

impl Prober {
    /// Probes everything with overlays on `scratch`, which must exist and be empty, over layers on the file
    /// system of `templates`.
    pub(crate) fn probe(&self, scratch: &Path, templates: &Path) -> Result<Missing, ProbeError> {
        let output = Command::new(&self.program)
            .args(&self.arguments)
            .arg(WORD)
            .args([scratch, templates])
            .env_clear()
            .stdin(Stdio::null())
            .current_dir("/")
            .output()
            .map_err(ProbeError::Start)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(ProbeError::Failed { status: output.status, said: said.trim().to_string() });
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// The process. Prints the missing features as JSON.
pub(super) fn run(directories: &[PathBuf]) -> Result<(), SetupError> {
    let [scratch, templates] = directories else {
        return Err(SetupError::new("find the directories to probe in", Errno::INVAL));
    };
    let missing = look(scratch, templates)?;
    let answer =
        serde_json::to_vec(&missing).map_err(|_| SetupError::new("write the answer", Errno::PROTO))?;
    rustix::io::write(rustix::stdio::stdout(), &answer).doing("answer")?;
    Ok(())
}

/// An error where something could not be tried, which is not the same as a kernel that refuses it.
fn look(scratch: &Path, templates: &Path) -> Result<Missing, SetupError> {
    let mut missing = Missing::new();
    let mut note = |feature, found: Result<(), String>| {
        if let Err(why) = found {
            missing.insert(feature, why);
        }
    };
    let said = |errno: Errno| errno.to_string();
    note(Feature::CloseRange, kernel::close_on_exec_from(1 << 20).map_err(said));
    let beneath = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let opened = rustix::fs::openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), beneath);
    note(Feature::Openat2, opened.map(drop).map_err(said));
    note(Feature::SeccompFilter, kernel::has_seccomp_filter().map_err(said));
    let api = filesystem::fresh("tmpfs", &[], MountAttrFlags::empty());
    let api = api.map(drop).map_err(said);
    let has_api = api.is_ok();
    note(Feature::NewMountApi, api);
    let ids = overlay::user_namespace(&overlay::range(0, SOME_IDS)).map_err(|error| error.to_string());
    let ids = match ids {
        Ok(ids) => ids,
        Err(why) => {
            note(Feature::CloneThree, Err(why));
            return Ok(missing);
        }
    };
    if !has_api {
        return Ok(missing);
    }
    note(Feature::SysfsInSandbox, sysfs().map_err(|error| error.to_string()));
    note(Feature::MappedMounts, map_templates(templates, &ids).map_err(|error| error.to_string()));
    let trials = Trials::prepare(scratch, &ids)?;
    for (feature, layers, volatile) in [
        (Feature::OverlayMappedLayers, LayerForm::Joined, false),
        (Feature::OverlayVolatile, LayerForm::Joined, true),
        (Feature::OverlayAppend, LayerForm::Appended, false),
        (Feature::OverlayDescriptors, LayerForm::Descriptors, false),
        (Feature::OverlayDetached, LayerForm::Detached, false),
    ] {
        note(feature, trials.try_one(OverlayRecipe { layers, volatile })?);
    }
    Ok(missing)
}

/// Mounts sysfs as a sandbox does: in new user, mount and network namespaces.
fn sysfs() -> Result<(), SetupError> {
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWNET;
    // SAFETY: the probe has one thread.
    match unsafe { kernel::clone_into(namespaces, None) }.doing("make namespaces")? {
        Cloned::Child => {
            let code = match filesystem::fresh("sysfs", &[], MountAttrFlags::MOUNT_ATTR_RDONLY) {
                Ok(_) => 0,
                Err(errno) => errno.raw_os_error(),
            };
            // SAFETY: ends this copy of the probe without its exit handlers.
            unsafe { libc::_exit(code) }
        }
        Cloned::Parent { pidfd, .. } => {
            let id = rustix::process::WaitId::PidFd(pidfd.as_fd());
            let status = rustix::process::waitid(id, rustix::process::WaitIdOptions::EXITED)
                .doing("wait for a trial")?;
            match status.and_then(|status| status.exit_status()) {
                Some(0) => Ok(()),
                Some(code) => Err(SetupError::new("mount sysfs", Errno::from_raw_os_error(code))),
                None => Err(SetupError::new("mount sysfs", Errno::CANCELED)),
            }
        }
    }
}

fn detached(path: &Path) -> Result<OwnedFd, SetupError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(CWD, path, flags).doing(format_args!("open {}", Quoted(path)))
}

/// Whether the files of templates can have the ids of a sandbox.
fn map_templates(path: &Path, ids: &OwnedFd) -> Result<(), SetupError> {
    kernel::set_mount_attributes(detached(path)?, libc::MOUNT_ATTR_RDONLY, Some(ids.as_fd()))
        .doing(format_args!("map {IDS} ids of {}", Quoted(path)))
}

/// Overlays that are created and dropped at once.
struct Trials<'a> {
    scratch: &'a Path,
    ids: &'a OwnedFd,
}

const LOWER: &str = "lower";
const WRITABLE: &str = "writable";

impl<'a> Trials<'a> {
    fn prepare(scratch: &'a Path, ids: &'a OwnedFd) -> Result<Self, SetupError> {
        OwnMounts::default().ensure(Some(scratch))?;
        for directory in [LOWER, WRITABLE] {
            let path = scratch.join(directory);
            fs::create_dir(&path).doing(format_args!("make {}", Quoted(&path)))?;
        }
        Ok(Self { scratch, ids })
    }

    fn try_one(&self, recipe: OverlayRecipe) -> Result<Result<(), String>, SetupError> {
        match self.overlay(recipe)? {
            // The disk is full or broken, which says nothing about the kernel.
            Err(refusal)
                if matches!(refusal.errno, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO) =>
            {
                Err(SetupError::new("try an overlay", refusal.errno))
            }
            tried => Ok(tried.map_err(|refusal| refusal.to_string())),
        }
    }

    /// Each has its own upper: a volatile one cannot be mounted again.
    fn overlay(&self, recipe: OverlayRecipe) -> Result<Result<(), overlay::Refusal>, SetupError> {
        let name = format!("{:?}-{}", recipe.layers, recipe.volatile);
        let writable_path = self.scratch.join(WRITABLE).join(name);
        for path in [writable_path.clone(), writable_path.join("upper"), writable_path.join("work")] {
            fs::create_dir(&path).doing(format_args!("make {}", Quoted(&path)))?;
        }
        let lower = detached(&self.scratch.join(LOWER))?;
        let read_only = libc::MOUNT_ATTR_RDONLY;
        if let Err(errno) = kernel::set_mount_attributes(&lower, read_only, Some(self.ids.as_fd())) {
            return Ok(Err(overlay::Refusal {
                errno,
                said: Some("the pool's files cannot be id-mapped".into()),
            }));
        }
        let writable = detached(&writable_path)?;
        let open = |name: &str| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(&writable, name, flags, Mode::empty()).doing(format_args!("open `{name}`"))
        };
        let (upper, work) = (open("upper")?, open("work")?);
        if recipe.layers != LayerForm::Detached {
            for mount in [&lower, &writable] {
                // They end with this process.
                let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
                rustix::mount::move_mount(mount, "", CWD, &writable_path, flags).doing("attach a layer")?;
            }
        }
        Ok(overlay::mount(&[lower], &upper, &work, recipe).map(drop))
    }
}
