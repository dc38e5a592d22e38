//! `coffer up`: starts the parts, keeps them running, and prints how to connect.

mod authority;
mod certificate;
mod orphans;
mod part;
mod preflight;
mod ready;
mod surroundings;
mod systemd;
mod welcome;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use coffer_core::settings::ByteSize;
use coffer_node::features::Feature;
use coffer_template::{BASE, BaseOptions, Recipe, TemplateStore};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{self, Flags, Resolved, Settings, Sources};
use crate::data_dir::{DataDir, make_dir};
use crate::doctor;
use crate::logging::Logging;
use crate::printer;
use crate::privilege::Identity;
use crate::roots::{extra_roots, roots};
use crate::server::{Ready, Told};
use crate::signals::cancel_on_signal;
use crate::tls::CertificateFiles;
use orphans::OwnChildren;
use part::Part;

/// A first start formats and allocates the pool, which takes a while on a slow disk.
const NODE_START: Duration = Duration::from_secs(300);
const GIT_START: Duration = Duration::from_secs(30);
const SERVER_START: Duration = Duration::from_secs(60);
/// Longer than the server itself takes at most: it ends open requests, then steps in progress.
const SERVER_STOP: Duration = Duration::from_secs(25);
const GIT_STOP: Duration = Duration::from_secs(5);
const EGRESS_STOP: Duration = Duration::from_secs(5);
/// Where `--check` works, in the data directory: its results hold for that disk.
const CHECK_DIR: &str = "check";
const CHECK_POOL: ByteSize = ByteSize::mib(512);

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Destroy everything that this creates when it ends
    #[arg(long)]
    ephemeral: bool,
    /// Only check whether this host can run sandboxes, with one in a scratch directory: exits with 0, or with
    /// 3 and the reason
    #[arg(long)]
    check: bool,
    /// Print the result of the check as JSON (for `coffer doctor`)
    #[arg(long, hide = true, requires = "check")]
    check_json: bool,
    #[command(flatten)]
    flags: Flags,
}

/// The planned installation.
#[derive(Debug)]
struct Plan {
    resolved: Resolved,
    logging: Logging,
    nameservers: Vec<SocketAddr>,
    ephemeral: bool,
    check: bool,
    check_json: bool,
}

impl Up {
    pub(crate) fn run(self, sources: &Sources) -> anyhow::Result<()> {
        let mut resolved = config::resolve(sources, &self.flags)?;
        let logging = Logging::from(&resolved.settings.log);
        logging.start()?;
        for doubt in &resolved.doubts {
            tracing::warn!("{doubt}");
        }
        if !geteuid().is_root() {
            return Err(printer::hint(
                "`coffer up` needs root: it creates namespaces, mounts and cgroups",
                "run it with sudo; the server process drops root at once",
            ));
        }
        // For the parts: each sandbox and each connection costs descriptors, and the usual 1024 are few.
        raise_descriptor_limit();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let nameservers = resolved.settings.nameservers().unwrap_or_default();
        let Self { mut ephemeral, check, check_json, .. } = self;
        // A check leaves nothing behind.
        let made =
            (check && !resolved.settings.data_dir.exists()).then(|| resolved.settings.data_dir.clone());
        if check {
            let settings = &mut resolved.settings;
            settings.data_dir = settings.data_dir.join(CHECK_DIR);
            settings.node.pool_size = Some(CHECK_POOL);
            settings.node.warm_slots = 0;
            ephemeral = true;
        }
        let plan = Plan { resolved, logging, nameservers, ephemeral, check, check_json };
        let outcome = runtime.block_on(plan.supervise());
        if let Some(made) = made {
            let _ = std::fs::remove_dir(made);
        }
        outcome
    }
}

impl Plan {
    fn settings(&self) -> &Settings {
        &self.resolved.settings
    }

    async fn supervise(self) -> anyhow::Result<()> {
        let children = OwnChildren::default();
        orphans::adopt(children.clone())?;
        let dir = DataDir::open(&self.settings().data_dir)?;
        let held = dir.hold()?;
        let stop = CancellationToken::new();
        cancel_on_signal(stop.clone())?;
        let identity = Identity::of_server(&dir)?;
        prepare(&dir, identity)?;

        let mut egress = self.start_egress(&dir, identity, &children)?;
        let mut node = Part::start("node", self.node_arguments(&dir, identity), &children)?;
        let outcome = tokio::select! {
            outcome = self.supervise_with(&dir, identity, &mut node, &children, &stop) => outcome,
            () = keep_running(&mut egress) => Ok(()),
        };
        systemd::stopping();
        // In any case let the node finish, and remove what is ephemeral.
        node.stop(Duration::from_secs(120)).await;
        if let Some(egress) = &mut egress {
            egress.stop(EGRESS_STOP).await;
        }
        if self.ephemeral {
            dir.remove_all();
        }
        drop(held);
        outcome
    }

    async fn supervise_with(
        &self,
        dir: &DataDir,
        identity: Identity,
        node: &mut Part,
        children: &OwnChildren,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let node_socket = dir.run_dir().join("node.sock");
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            reachable = node.reachable(&node_socket, NODE_START) => reachable?,
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            passed = self.preflight(dir, identity, children) => passed?,
        }
        if self.check {
            return Ok(());
        }
        let mut git = Part::start("git", self.git_arguments(dir, identity), children)?;
        git.reachable(&dir.run_dir().join(crate::git::SOCKET), GIT_START).await?;
        let known_key = dir.known_key();
        let arguments = self.server_arguments(dir, identity, self.settings().listen, true);
        let mut server = Part::start("server", arguments, children)?;
        server.tell(self.told(dir.installation()?, known_key.clone(), dir.known_operator_key())?);
        let ready: Ready = tokio::select! {
            () = stop.cancelled() => {
                server.stop(SERVER_STOP).await;
                git.stop(GIT_STOP).await;
                return Ok(());
            }
            ready = server.first_line(SERVER_START) => ready?,
        };
        ready::check(&ready, self.settings().listen)?;
        let key = ready.api_key.or(known_key).context("the server created no API key")?;
        if let Some(key) = &ready.operator_key {
            dir.write_operator_key(key)?;
        }
        let settings = self.settings().clone();
        if let Ok(Some(line)) = tokio::task::spawn_blocking(move || doctor::quick_line(&settings)).await {
            tracing::warn!("{line}");
        }
        let public = ready.https.and_then(|https| welcome::public_url(self.settings(), https));
        welcome::welcome(dir, ready.listen, public.as_deref(), &key, ready.link.as_deref())?;
        let _watchdog = systemd::ready(&format!("serving on {}", welcome::url(ready.listen)));
        let mut builder = self.build_templates_in_background(children);
        // A restarted server must keep the port that clients know, even if the system chose it.
        server.set_arguments(self.server_arguments(dir, identity, ready.listen, false));
        tokio::select! {
            () = stop.cancelled() => {}
            () = node.keep_running() => {}
            () = git.keep_running() => {}
            () = server.keep_running() => {}
            () = async {
                match &mut builder {
                    Some(builder) => builder.run_once().await,
                    None => std::future::pending().await,
                }
            } => {}
        }
        tracing::info!("stopping");
        server.stop(SERVER_STOP).await;
        git.stop(GIT_STOP).await;
        if let Some(builder) = &mut builder {
            builder.stop(Duration::from_secs(5)).await;
        }
        Ok(())
    }

    /// Starts egress, unless sandboxes are to have no network. The node connects once egress listens.
    fn start_egress(
        &self,
        dir: &DataDir,
        server: Identity,
        children: &OwnChildren,
    ) -> anyhow::Result<Option<Part>> {
        if !self.settings().network.enabled {
            return Ok(None);
        }
        let identity = Identity::of_egress(dir, server)?;
        let arguments = self.unprivileged_arguments(dir, identity);
        let trusted = roots(self.settings().network.extra_roots.as_deref())?;
        let mut egress = Part::start("egress", arguments, children)?;
        let mirrors = self.settings().mirrors.resolve().unwrap_or_default();
        // The node reads them; a file that cannot be used should stop the start.
        mirrors.authorities().map(extra_roots).transpose()?;
        egress.tell(surroundings::follow(
            self.nameservers.clone(),
            authority::load(dir)?,
            trusted,
            mirrors.hosts().clone(),
        ));
        Ok(Some(egress))
    }

    fn node_arguments(&self, dir: &DataDir, identity: Identity) -> Vec<String> {
        let node = &self.settings().node;
        let mut arguments = vec![
            flag("data-dir", &dir.node()),
            flag("run-dir", &dir.run_dir()),
            flag("template-dir", &self.settings().template.dir),
            format!("--server-gid={}", identity.gid),
            format!("--warm-slots={}", node.warm_slots),
            format!("--warm-memory={}", node.warm_memory.as_bytes()),
            format!("--parent={}", std::process::id()),
        ];
        arguments.extend(node.pool_size.map(|size| format!("--pool-size={}", size.as_bytes())));
        arguments.extend(node.memory_reserve.map(|size| format!("--memory-reserve={}", size.as_bytes())));
        arguments.extend((!node.encrypt_memory).then(|| "--plain-memory".to_string()));
        let forge = &self.settings().forge;
        let total = forge.git_memory_total.map(|total| format!("--git-memory={}", total.as_bytes()));
        arguments.extend(total);
        if !node.kernel_lacks.is_empty() {
            arguments.push(format!("--kernel-lacks={}", node.kernel_lacks.join(",")));
        }
        arguments.extend(self.ephemeral.then(|| "--ephemeral".to_string()));
        if self.settings().network.enabled {
            arguments.push(flag("authority", &dir.authority_file()));
            let mirrors = serde_json::to_string(&self.settings().mirrors).expect("plain text");
            arguments.push(format!("--mirrors={mirrors}"));
        } else {
            arguments.push("--no-network".to_string());
        }
        arguments.extend(self.logging.arguments());
        arguments
    }

    fn git_arguments(&self, dir: &DataDir, identity: Identity) -> Vec<String> {
        let lacks = self.settings().kernel_lacks().unwrap_or_default();
        let mut arguments = vec![
            flag("server-dir", &dir.server()),
            flag("node-dir", &dir.node()),
            format!("--memory={}", self.settings().forge.git_memory.as_bytes()),
        ];
        arguments.extend(lacks.contains(Feature::Landlock).then(|| "--no-landlock".to_string()));
        arguments.extend(self.unprivileged_arguments(dir, identity));
        arguments
    }

    fn server_arguments(
        &self,
        dir: &DataDir,
        identity: Identity,
        listen: SocketAddr,
        mint_key: bool,
    ) -> Vec<String> {
        let mut arguments = vec![format!("--listen={listen}"), flag("server-dir", &dir.server())];
        arguments.extend(mint_key.then(|| "--mint-key".to_string()));
        arguments.extend(self.unprivileged_arguments(dir, identity));
        arguments
    }

    /// Arguments of every part that gives up root.
    fn unprivileged_arguments(&self, dir: &DataDir, identity: Identity) -> Vec<String> {
        let mut arguments = vec![
            flag("run-dir", &dir.run_dir()),
            format!("--uid={}", identity.uid),
            format!("--gid={}", identity.gid),
            format!("--parent={}", std::process::id()),
        ];
        arguments.extend(self.logging.arguments());
        arguments
    }

    /// The input of the server, and of each restarted one.
    fn told(
        &self,
        installation: String,
        known_key: Option<String>,
        known_operator_key: Option<String>,
    ) -> anyhow::Result<watch::Receiver<String>> {
        let settings = self.resolved.handover().clone();
        let files = CertificateFiles::of(self.settings());
        let certificate = files.as_ref().map(CertificateFiles::load).transpose().map_err(|error| {
            printer::hint(
                format!("{error:#} (tls.cert, tls.key)"),
                "`coffer doctor` looks at the certificate",
            )
        })?;
        let told = Told { settings, installation, known_key, known_operator_key, certificate };
        Ok(match files {
            Some(files) => certificate::follow(told, files),
            None => watch::channel(serde_json::to_string(&told).expect("plain values")).1,
        })
    }

    /// Builds `base`, and the templates that `[images]` names, if they are missing or of an older recipe.
    fn build_templates_in_background(&self, children: &OwnChildren) -> Option<Part> {
        if !self.settings().template.build {
            return None;
        }
        let store = TemplateStore::open(&self.settings().template.dir, coffer_node::layers_in_use).ok()?;
        let named = coffer_server::ImageNames(self.settings().images.clone()).templates();
        // What the catalogue's templates start from; the server builds those itself.
        let sources = self.settings().catalogue.sources();
        let wanted = Recipe::ALL.into_iter().filter(|recipe| {
            let name = recipe.name();
            let is_wanted = *recipe == Recipe::Base || named.contains(name) || sources.contains(name);
            is_wanted && !store.is_current(*recipe, &BaseOptions::default())
        });
        let wanted: Vec<&str> = wanted.map(Recipe::name).collect();
        if wanted.is_empty() {
            return None;
        }
        let meanwhile = match store.get(BASE) {
            Some(_) => "the previous builds are used",
            None => "`host` is used in place of `base`",
        };
        let names = wanted.join(", ");
        tracing::info!("building templates in the background: {names}; until they are ready, {meanwhile}");
        let mut arguments = vec!["build".to_string()];
        arguments.extend(wanted.into_iter().map(String::from));
        arguments.push(flag("template-dir", &self.settings().template.dir));
        let mirrors = serde_json::to_string(&self.settings().mirrors).expect("plain text");
        arguments.push(format!("--mirrors={mirrors}"));
        Part::start("template", arguments, children).inspect_err(|error| tracing::warn!("{error:#}")).ok()
    }
}

/// Keeps a part running, if there is one. Never returns.
async fn keep_running(part: &mut Option<Part>) {
    match part {
        Some(part) => part.keep_running().await,
        None => std::future::pending().await,
    }
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// Creates the directories with their owners.
fn prepare(dir: &DataDir, identity: Identity) -> anyhow::Result<()> {
    make_dir(&dir.node(), 0o700)?;
    make_dir(&dir.server(), 0o700)?;
    let run = dir.run_dir();
    // Set the mode explicitly, so that a strict umask does not close it to the server.
    make_dir(run.parent().unwrap_or(&run), 0o755)?;
    make_dir(&run, 0o750)?;
    // Parts that were killed with their `up` may still accept for a moment, and would be taken for the new ones.
    for socket in ["node.sock", crate::git::SOCKET] {
        let _ = std::fs::remove_file(run.join(socket));
    }
    // The server sees its own directory here, through its own mount.
    make_dir(&run.join("data"), 0o700)?;
    let give = |path: &Path, uid: Option<u32>| {
        std::os::unix::fs::chown(path, uid, Some(identity.gid))
            .with_context(|| format!("could not give `{}` to the server", path.display()))
    };
    give(&dir.server(), Some(identity.uid))?;
    give(&run, None)
}

/// Raises the soft limit of open files to the hard one.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::warn!("could not raise the limit of open files from {:?}: {error}", limit.current);
    }
}
