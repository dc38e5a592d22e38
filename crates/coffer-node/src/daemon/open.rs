//! Start-up: takes the node's directories, detects what the host supports, and builds a [`Node`].

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use coffer_template::{BASE, TemplateStore};
use landlock::{ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _};
use rustix::fs::FlockOperation;
use sha2::{Digest as _, Sha256};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cgroup::{self, Cgroups};
use crate::config::{NodeConfig, WarmChoice};
use crate::features::{Feature, Features, Need, Row, Unusable};
use crate::journal::{self, Journal};
use crate::memory::{self, Images};
use crate::network::{self, Network};
use crate::node::Node;
use crate::pool::{Fate, Pool};
use crate::process;
use crate::processors::Processors;
use crate::reaper::Reaper;
use crate::registry::Registry;
use crate::snapshots::Snapshots;
use crate::spawner::{OverlayRecipe, Prober, SpawnerClient};
use crate::trust::Trust;
use crate::uids::{self, UidRanges};
use crate::volumes::Volumes;
use crate::warm::Warm;

use super::failure::{NodeFailure, doing};

/// A node that was killed with its `up` may need a moment to exit when the next one starts.
const PREDECESSOR: Duration = Duration::from_secs(5);

/// Changes whenever the host starts.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Size of `sun_path` without the terminating zero.
const LONGEST_SOCKET_PATH: usize = 107;
const ID_LENGTH: usize = 26;
/// Where egress listens for us, in the runtime directory.
const EGRESS_SOCKET: &str = "egress.sock";

/// Takes the node's directories; the file holds the lock on them.
pub(super) fn open(
    config: &NodeConfig,
    spawner: SpawnerClient,
    prober: &Prober,
) -> Result<(Arc<Node>, fs::File, network::Client), NodeFailure> {
    let private = |path: &Path| {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(doing("make", path))
    };
    private(&config.data_dir)?;
    let data_dir = config.data_dir.canonicalize().map_err(doing("find", &config.data_dir))?;
    let lock = lock(&data_dir)?;

    let longest = config.run_dir.as_os_str().len() + "/s/.sock".len() + ID_LENGTH;
    if longest > LONGEST_SOCKET_PATH {
        return Err(NodeFailure::RunDirTooLong(config.run_dir.clone()));
    }
    // The server's group may enter and list these directories.
    let run_dir = &config.run_dir;
    for path in [run_dir.clone(), run_dir.join("s")] {
        private(&path)?;
        let opened = fs::set_permissions(&path, fs::Permissions::from_mode(0o750))
            .and_then(|()| chown(&path, None, Some(config.server_gid)));
        opened.map_err(doing("open to the server", &path))?;
    }
    let templates = TemplateStore::open(&config.template_dir, journal::layers)
        .and_then(|templates| templates.register(&data_dir).map(|()| templates))
        .map_err(doing("open templates in", &config.template_dir))?;
    let journal = Journal::open(&data_dir).map_err(doing("open the journal in", &data_dir))?;
    let snapshots = Snapshots::open(&data_dir).map_err(doing("open the snapshots in", &data_dir))?;
    let uids = UidRanges::open(Path::new(uids::DIRECTORY), &data_dir)
        .map_err(|error| NodeFailure::Uids(error.into()))?;
    let processors = Processors::of_this_process().map_err(NodeFailure::Host)?;
    let host_boot_id = fs::read_to_string(BOOT_ID).map_err(NodeFailure::Host)?;
    let name = cgroup::cgroup_name(&data_dir);
    let mut features = Features::all_but(&config.lacking);
    let (cgroups, mut warnings) =
        Cgroups::open(&name, config.memory_reserve, config.git_memory, &mut features)
            .map_err(NodeFailure::Host)?;
    // Any failure from here on removes these; those with sandboxes in them stay.
    let opened = Pool::open(&data_dir, &config.pool, &mut features).inspect_err(|_| cgroups.remove());
    let pool = opened.map_err(|error| NodeFailure::Pool(error.into()))?;
    if let Err(failure) = probe(prober, &pool, &config.template_dir, &mut features) {
        pool.close(Fate::Keep);
        cgroups.remove();
        return Err(failure);
    }
    // Build it at start, so that clients that list templates see it; only the first start has to build it.
    match templates.ensure_host() {
        Ok(host) if templates.get(BASE).is_none() => {
            for note in host.notes {
                tracing::info!("using template `host` in place of `base`: {note}");
            }
        }
        Ok(_) => {}
        Err(error) => warnings.push(format!("the template `host` cannot be built: {error}")),
    }
    if let Err(error) = templates.ensure_scratch() {
        warnings
            .push(format!("the template `scratch` cannot be built, so images cannot be unpacked: {error}"));
    }
    let agentd = match install_agentd(&pool, config.agentd) {
        Ok(agentd) => agentd,
        Err(error) => {
            let failure = doing("install agentd in", &pool.binaries())(error);
            pool.close(Fate::Keep);
            cgroups.remove();
            return Err(failure);
        }
    };
    let images = match Images::open(&data_dir, &pool, config.encrypt_memory) {
        Ok(images) => images,
        Err(error) => {
            let failure = doing("create the directory for images in", &data_dir)(error);
            pool.close(Fate::Keep);
            cgroups.remove();
            return Err(failure);
        }
    };
    match memory::lacks() {
        None => tracing::info!("CRIU works: sandboxes can be paused to disk"),
        Some(why) => features.lack(Feature::Criu, why),
    }
    let (network, egress) = Network::open(run_dir.join(EGRESS_SOCKET), config.network, &mut features);
    let trust = config.authority.as_deref().and_then(|authority| {
        let opened = Trust::open(&data_dir, authority, config.mirrors.clone());
        let lacking = |error| {
            format!("sandboxes neither trust this installation's authority nor know package mirrors: {error}")
        };
        opened.map_err(|error| warnings.push(lacking(error))).ok()
    });
    warnings.extend(log_missing(&features));
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    let recipe = OverlayRecipe::for_kernel(&features);
    // A slot with processes must not run until it is claimed.
    let can_keep = cgroups.can_freeze() && memory::lacks().is_none();
    let warm = WarmChoice { memory: if can_keep { config.warm.memory } else { 0 }, ..config.warm };
    let node = Node {
        warm: Warm::open(&data_dir, warm),
        data_dir,
        run_dir: run_dir.clone(),
        server_gid: config.server_gid,
        agentd,
        templates,
        journal,
        snapshots,
        volumes: Volumes::default(),
        pool,
        images,
        cgroups,
        uids,
        processors,
        spawner,
        reaper: Reaper::new(),
        network,
        trust,
        host_boot_id,
        notices: broadcast::channel(1024).0,
        requests: TaskTracker::new(),
        owners: TaskTracker::new(),
        letting_go: CancellationToken::new(),
        sandboxes: Registry::default(),
        features,
        recipe,
        warnings,
        orphans: OnceLock::new(),
    };
    Ok((Arc::new(node), lock, egress))
}

/// Probes the features that creating a sandbox needs; an error if a required one is missing.
fn probe(
    prober: &Prober,
    pool: &Pool,
    template_dir: &Path,
    features: &mut Features,
) -> Result<(), NodeFailure> {
    let scratch = pool.scratch().map_err(|error| format!("could not create a scratch directory: {error}"));
    match scratch
        .and_then(|scratch| prober.probe(&scratch, template_dir).map_err(|error| coffer_core::chain(&error)))
    {
        Ok(missing) => missing.into_iter().for_each(|(feature, why)| features.lack(feature, why)),
        // For example if the pool is full: existing sandboxes must be adopted all the same, and the fallbacks
        // for the oldest kernels work on all.
        Err(why) => {
            tracing::warn!("could not probe kernel features, using fallbacks: {why}");
            for feature in OverlayRecipe::NEWER {
                features.lack(feature, "it could not be probed");
            }
        }
    }
    if let Err(error) = pool.clear_scratch() {
        tracing::warn!("could not remove the scratch directory of the pool: {error}");
    }
    if !process::kernel_tells_exit() {
        features.lack(Feature::PidfdInfo, "the kernel does not know PIDFD_GET_INFO");
    }
    if !has_landlock() {
        features.lack(Feature::Landlock, "the kernel was built or booted without it, or is older");
    }
    Unusable::of(features).map_or(Ok(()), |unusable| Err(NodeFailure::Unusable(unusable)))
}

/// Whether git can work under Landlock, which must let it move files between directories.
fn has_landlock() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V2)).and_then(Ruleset::create).is_ok()
}

/// Logs what this kernel lacks; returns what users will notice.
fn log_missing(features: &Features) -> Vec<String> {
    let mut noticed = Vec::new();
    for (Row { name, need, without, .. }, why) in features.missing() {
        match need {
            Need::Optional => noticed.push(format!("{without}: no {name} ({why})")),
            Need::Fallback | Need::Required => {
                tracing::info!(
                    feature = name,
                    "kernel feature missing, using the fallback: {without} ({why})"
                );
            }
        }
    }
    noticed
}

#[expect(clippy::disallowed_methods, reason = "runs on a thread that may block")]
fn lock(data_dir: &Path) -> Result<fs::File, NodeFailure> {
    let path = data_dir.join("node.lock");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).open(&path).map_err(doing("open", &path))?;
    let deadline = Instant::now() + PREDECESSOR;
    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > deadline {
            return Err(NodeFailure::InUse(data_dir.to_path_buf()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(file)
}

/// Written once for each version; sandboxes keep the one that they started with.
fn install_agentd(pool: &Pool, binary: &[u8]) -> io::Result<PathBuf> {
    let name = format!("agentd-{}", &hex::encode(Sha256::digest(binary))[..16]);
    let path = pool.binaries().join(&name);
    if !path.exists() {
        let draft = pool.binaries().join(".draft");
        fs::write(&draft, binary)?;
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o555))?;
        fs::File::open(&draft)?.sync_all()?;
        fs::rename(&draft, &path)?;
    }
    // Older ones stay as long as a process has them, even without a name.
    for entry in fs::read_dir(pool.binaries())?.flatten() {
        if entry.file_name() != name.as_str() {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(path)
}
