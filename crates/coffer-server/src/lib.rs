//! The control plane, wired together: [`serve`] starts every part and answers on one port.
//!
//! `coffer-fleet` owns the sandboxes and is the only caller of the engine; `coffer-work` has git and tasks;
//! `coffer-api` translates HTTP to their calls; `coffer-proxy` separates sandbox traffic from the API and
//! forwards it, and knows the fleet only through the traits that [`adapters`] implements.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod adapters;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use coffer_api::SessionSettings;
pub use coffer_api::UiFile;
pub use coffer_build::{
    BuildSettings, CatalogueSettings, EmbeddedFile, ImageNames, RegistrySettings, definition, definitions,
};
use coffer_core::{LifetimePolicy, Limits};
use coffer_engine::Engine;
pub use coffer_fleet::code::CodeSettings;
use coffer_fleet::exec::Exec;
pub use coffer_fleet::limits::{LimitSettings, QuotaSettings, RateSettings, RetentionSettings};
pub use coffer_fleet::output::OutputSettings;
pub use coffer_fleet::usage::UsageSettings;
pub use coffer_fleet::{PreflightError, is_preflight, preflight};
use coffer_fleet::{audit, commands, events, limits, output, usage};
use coffer_forge::GitProcesses;
pub use coffer_proxy::{
    BadCertificate, Certificate, CertificateText, Certificates, Entrances, Secure, TrustedProxies,
};
pub use coffer_shares::PoolSettings;
use coffer_shares::pool;
use coffer_store::Store;
pub use coffer_telemetry::{BadTraceSetting, MetricsSettings, TraceSettings};
pub use coffer_work::artifacts::ArtifactSettings;
pub use coffer_work::git::ForgeSettings;
pub use coffer_work::models::{ModelConfig, ModelSettings};
pub use coffer_work::tasks::{OtherArena, OtherWorkshop, TaskSettings};
pub use coffer_work::webhooks::WebhookSettings;
use coffer_work::{artifacts, git, models, results, reviews, tasks, triggers, webhooks, workshop};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long steps in progress may take after a stop.
const LAST_STEPS: Duration = Duration::from_secs(15);

/// The configuration of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The address of the listener, for logs.
    pub listen: SocketAddr,
    pub lifetime: LifetimePolicy,
    /// The limits of new sandboxes.
    pub default_limits: Limits,
    /// The domain of sandbox addresses (`<port>-<id>.<domain>`), if one points at this server.
    pub domain: Option<String>,
    /// The default template.
    pub default_template: String,
    /// The name of this server's host, if several share a database: rows of sandboxes have it.
    pub installation: Option<String>,
    pub limits: LimitSettings,
    pub metrics: MetricsSettings,
    pub traces: TraceSettings,
    pub usage: UsageSettings,
    pub output: OutputSettings,
    pub code: CodeSettings,
    pub tasks: TaskSettings,
    pub webhooks: WebhookSettings,
    pub sessions: SessionSettings,
    pub artifacts: ArtifactSettings,
    pub builds: BuildSettings,
    pub catalogue: CatalogueSettings,
    /// Files that definitions of the catalogue copy, in addition to their own.
    pub catalogue_files: &'static [EmbeddedFile],
    /// Images that templates serve.
    pub images: ImageNames,
    pub registries: RegistrySettings,
    pub forge: ForgeSettings,
    /// The gateway through which agents call models, and its prices.
    pub models: ModelConfig,
    /// Variables of every sandbox, unless its template or its creator sets them.
    pub environment: BTreeMap<String, String>,
    /// How git is started for local repositories.
    pub git_processes: GitProcesses,
    /// Trusted roots of forges, in addition to the machine's own; as PEM.
    pub extra_roots: Option<String>,
    /// Reverse proxies in front of this server.
    pub trusted_proxies: TrustedProxies,
    /// For tests: works on tasks instead of sandboxes.
    #[doc(hidden)]
    pub workshop: Option<OtherWorkshop>,
    /// For tests: runs competitions instead of sandboxes.
    #[doc(hidden)]
    pub arena: Option<OtherArena>,
    /// For tests: forges may be reached without TLS.
    #[doc(hidden)]
    pub plain_forges: bool,
    /// The server's own directory, which has the output.
    pub server_dir: PathBuf,
    /// The files of the web UI; empty if the program was built without.
    pub ui: &'static [UiFile],
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            lifetime: LifetimePolicy::default(),
            default_limits: Limits::default(),
            domain: None,
            default_template: "base".to_string(),
            installation: None,
            limits: LimitSettings::default(),
            metrics: MetricsSettings::default(),
            traces: TraceSettings::default(),
            usage: UsageSettings::default(),
            output: OutputSettings::default(),
            code: CodeSettings::default(),
            tasks: TaskSettings::default(),
            webhooks: WebhookSettings::default(),
            sessions: SessionSettings::default(),
            artifacts: ArtifactSettings::default(),
            builds: BuildSettings::default(),
            catalogue: CatalogueSettings::default(),
            catalogue_files: &[],
            images: ImageNames::default(),
            registries: RegistrySettings::default(),
            forge: ForgeSettings::default(),
            models: ModelConfig::default(),
            environment: BTreeMap::new(),
            git_processes: GitProcesses::default(),
            extra_roots: None,
            trusted_proxies: TrustedProxies::default(),
            workshop: None,
            arena: None,
            plain_forges: false,
            server_dir: PathBuf::from("."),
            ui: &[],
        }
    }
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    #[error("could not read the address of the listener on {listen}")]
    Listener { listen: SocketAddr, source: std::io::Error },
    #[error("could not open the local repositories in `{}`", dir.display())]
    Repositories { dir: PathBuf, source: std::io::Error },
    #[error("could not set up traces")]
    Traces(#[from] BadTraceSetting),
    #[error("could not open the store of images: {0}")]
    Images(String),
    #[error("could not {doing}")]
    Records { doing: String, source: coffer_store::StoreError },
    #[error("could not compare the recorded sandboxes with those of the host")]
    Sandboxes(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ServeError {
    /// A hint for the operator.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Listener { .. } => "choose another address with --listen",
            Self::Repositories { .. } => {
                "the server's user must be able to write there, and the disk must not be full"
            }
            Self::Images(_) => {
                "correct the settings [registries]; the server's user must be able to write below its directory"
            }
            Self::Traces(_) => "correct the setting, or unset it to send no traces; see docs/monitoring.md",
            Self::Records { .. } => {
                "check that the database answers and that its disk is not full, then start again"
            }
            Self::Sandboxes(_) => "check that the node runs (its log is next to this one), then start again",
        }
    }

    /// The error of a start-up step that failed at the database.
    fn records(doing: impl Into<String>) -> impl FnOnce(coffer_store::StoreError) -> Self {
        let doing = doing.into();
        |source| Self::Records { doing, source }
    }
}

/// Serves until `stop`, then finishes work in progress and leaves sandboxes running.
///
/// `ready` is called once, when the recorded sandboxes have been compared with the engine's and requests are
/// about to be answered.
pub async fn serve(
    config: ServerConfig,
    store: Store,
    engine: Arc<dyn Engine>,
    entrances: impl Into<Entrances>,
    stop: CancellationToken,
    ready: impl FnOnce(),
) -> Result<(), ServeError> {
    let entrances = entrances.into();
    if let Some(domain) = config.domain.as_deref().filter(|domain| may_share_site(domain)) {
        tracing::warn!(
            "sandboxes answer below {domain}, which may share a registrable domain with other sites: pages in sandboxes \
             can then set cookies for those; hint: use a domain that serves nothing else, see docs/e2b.md"
        );
    }
    let pools = config.limits.pools;
    // Everything that follows the records or the host until `stop`; awaited before the records close.
    let followers = TaskTracker::new();
    let listener = &entrances.plain;
    let forges = forges(&config, listener, store.clone()).await?;
    let telemetry = coffer_telemetry::Telemetry::start(&config.metrics, &config.traces)?;
    let (engine, breaker) = coffer_fleet::GuardedEngine::start(engine, &followers, stop.child_token());
    let host_failures = engine.failures();
    telemetry.watch(breaker);
    let telemetry = Arc::new(telemetry);
    let usage = Arc::new(usage::Usage::new(config.usage, store.clone()));
    // First of all: this server must not touch another installation's sandboxes.
    if let Some(installation) = &config.installation {
        let acting = store.act_for(&store.operator(), installation).await;
        acting.map_err(ServeError::records(format!("act for installation `{installation}`")))?;
    }
    let logs = (config.output.archive_after, config.output.prune_after);
    let limiter = limits::Limiter::start(&store, config.limits, logs, &followers, stop.child_token()).await;
    let limiter = limiter.map_err(ServeError::records("read the settings of projects"))?;
    store.set_default_runs(config.tasks.per_project);
    let output_dir = config.server_dir.join("output");
    let output = output::Output::new(
        store.clone(),
        &output_dir,
        config.output,
        &pools,
        telemetry.clone(),
        limiter.clone(),
        stop.child_token(),
    );
    let written = CancellationToken::new();
    let (audit, audit_writer) = audit::AuditLog::start(store.clone(), written.clone());
    let fleet = coffer_fleet::Fleet::start(
        store.clone(),
        engine,
        config.lifetime,
        config.default_limits,
        coffer_fleet::Books {
            telemetry: telemetry.clone(),
            usage,
            output: output.clone(),
            audit: audit.clone(),
            pools,
            environment: config.environment.clone(),
        },
        stop.child_token(),
    )
    .await
    .map_err(|error| match error {
        coffer_fleet::FleetError::Store(source) => ServeError::records("read the recorded sandboxes")(source),
        error => ServeError::Sandboxes(Box::new(error)),
    })?;
    if let Ok(templates) = fleet.templates().await {
        let known: Vec<&str> = templates.iter().map(|template| template.name.as_str()).collect();
        if let Some(warning) = unknown_default(&config.default_template, &known) {
            tracing::warn!("{warning}");
        }
    }
    let commands = commands::Commands::start(store.clone(), output.clone(), &followers, stop.child_token());
    let commands = commands.await.map_err(ServeError::records("read the command policies"))?;
    let gate = adapters::Gatekeeper {
        fleet: fleet.clone(),
        commands: commands.clone(),
        audit: audit.clone(),
        told: coffer_core::sync::Mutex::default(),
    };
    let proxy =
        coffer_proxy::Proxy::new(Arc::new(adapters::Sandboxes(fleet.clone())), Arc::new(gate), &pools);
    let exec = Exec { fleet: fleet.clone(), commands: commands.clone(), output: output.clone() };
    let layers = config.server_dir.join("image-layers");
    let images = coffer_build::Images::open(
        config.images.clone(),
        &config.registries,
        config.extra_roots.clone(),
        layers,
    );
    let images = images.map_err(ServeError::Images)?;
    let floor =
        coffer_forge::DiskFloor::new(config.server_dir.clone(), config.limits.min_free_disk.as_bytes());
    let of_builds = floor.clone();
    let room = coffer_build::DiskRoom(Box::new(move |more| {
        of_builds.check_for(more).map_err(|low| coffer_core::Refusal::from(&low))
    }));
    let builds = coffer_build::Builds::start(
        exec.clone(),
        store.clone(),
        config.server_dir.join("template-files"),
        coffer_build::BuildOptions {
            settings: config.builds,
            images,
            room,
            catalogue: config.catalogue.clone(),
            files: config.catalogue_files,
        },
        &pools,
        stop.child_token(),
    );
    let builds = builds.await.map_err(ServeError::records("continue recorded builds"))?;
    // Before anything tells egress of a sandbox's gates: an agent that goes on keeps its way to models.
    let models = models::Models::start(
        store.clone(),
        fleet.clone(),
        telemetry.clone(),
        config.models.clone(),
        config.extra_roots.as_deref(),
        &pools,
        format!("http://{}", own_address(config.listen, listener)?),
    );
    let models = models.await.map_err(ServeError::records("settle calls of models"))?;
    followers.spawn(models.clone().keep(stop.child_token()));
    let git = git::Git::new(store.clone(), fleet.clone(), forges.clone(), exec.clone(), telemetry.clone());
    let git = Arc::new(git);
    followers.spawn(git.clone().keep(stop.child_token()));
    let (counting, stopping) = (forges.clone(), stop.child_token());
    followers.spawn(async move {
        let counted = stopping.run_until_cancelled(counting.count_repositories()).await;
        if let Some(Err(error)) = counted {
            tracing::warn!("could not count repositories, trying again at the next start: {error}");
        }
    });
    let bench = Arc::new(workshop::Workbench {
        store: store.clone(),
        fleet: fleet.clone(),
        git: git.clone(),
        models: models.clone(),
        exec: exec.clone(),
        limiter: limiter.clone(),
        policy: config.lifetime,
        default_template: config.default_template.clone(),
        stock: Arc::new(adapters::Catalogue(builds.clone())),
        signature: git::Signature { name: "Cofferdam".into(), email: noreply(config.domain.as_deref()) },
        making: workshop::Making::default(),
    });
    let ring: Arc<dyn coffer_flow::compete::Arena> = match config.arena {
        None => Arc::new(workshop::Ring::new(bench.clone())),
        Some(other) => other.0,
    };
    let shop: Arc<dyn coffer_flow::task::Workshop> = match config.workshop {
        None => Arc::new(workshop::TaskShop::new(bench.clone())),
        Some(other) => other.0,
    };
    let place = config.installation.clone();
    let kinds: Vec<Arc<dyn coffer_flow::Kind>> = vec![
        Arc::new(
            coffer_flow::task::TaskKind::new(store.clone(), shop)
                .answer_within(config.tasks.answer_within.into()),
        ),
        Arc::new(coffer_flow::compete::CompeteKind::new(store.clone(), ring)),
    ];
    let tasks = tasks::Tasks::start(store.clone(), config.tasks, place, kinds, &telemetry).await;
    let tasks = Arc::new(tasks.map_err(ServeError::records("take over the recorded runs"))?);
    followers.spawn(reviews::follow(store.clone(), tasks.clone(), stop.child_token()));
    followers.spawn(coffer_work::schedules::follow(store.clone(), tasks.clone(), stop.child_token()));
    let artifacts = artifacts::Artifacts::start(
        store.clone(),
        output.clone(),
        &config.server_dir.join("artifacts"),
        (config.artifacts, &pools, floor),
        config.installation.clone(),
        &followers,
        stop.child_token(),
    );
    let results =
        results::Results { store: store.clone(), forges: forges.clone(), artifacts: artifacts.clone() };
    followers.spawn(results.follow(stop.child_token()));
    let triggers = triggers::Triggers {
        store: store.clone(),
        forges: forges.clone(),
        tasks: tasks.clone(),
        poll_every: config.forge.poll_every.into(),
    };
    followers.spawn(triggers.follow(stop.child_token()));
    let webhooks = webhooks::Webhooks::start(
        store.clone(),
        output.clone(),
        telemetry.clone(),
        config.webhooks,
        &pools,
        config.installation.as_deref(),
        stop.child_token(),
    );
    let webhooks = webhooks.await.map_err(ServeError::records("read the webhooks' deliveries"))?;
    let app = coffer_api::App {
        fleet: fleet.clone(),
        builds: builds.clone(),
        host_failures,
        store: store.clone(),
        policy: config.lifetime,
        limits: config.default_limits,
        volume_mib: config.limits.volume_size.as_mib().max(1),
        limiter,
        domain: config.domain,
        default_template: config.default_template,
        started_ms: coffer_core::clock::now_ms(),
        audit,
        events: events::Events::new(store.clone(), followers.clone(), stop.child_token()),
        journals: pools.shares(pool::LOG_READS),
        listings: pools.shares(pool::FILE_LISTS),
        sockets: pools.shares(pool::EVENT_SOCKETS),
        mcp: coffer_api::Mcp::new(stop.child_token()),
        mcp_sessions: pools.shares(pool::MCP_SESSIONS),
        commands,
        code: coffer_fleet::code::Code::new(exec.clone(), config.code, &pools),
        exec,
        telemetry: telemetry.clone(),
        output: output.clone(),
        forges: forges.clone(),
        tasks: tasks.clone(),
        git,
        bench,
        models: models.clone(),
        most_runs: config.tasks.in_all,
        webhooks: webhooks.clone(),
        artifacts,
        sessions: config.sessions,
    };
    let api = coffer_api::router(app, config.ui);
    tracing::info!("serving on {}", config.listen);
    ready();
    let (seats, trusted) = (coffer_proxy::Seats::new(&pools), config.trusted_proxies);
    let refuse = coffer_api::refuse;
    let front = Arc::new(coffer_proxy::Front { api, proxy, seats, trusted, refuse });
    coffer_proxy::serve(entrances, front, stop).await;
    tasks.finish().await;
    models.finish(LAST_STEPS).await;
    builds.finish(LAST_STEPS).await;
    webhooks.finish(LAST_STEPS).await;
    forges.finish(LAST_STEPS).await;
    fleet.finish(LAST_STEPS).await;
    output.finish(LAST_STEPS).await;
    if let Err(error) = fleet.settle_accounts().await {
        tracing::warn!("could not record the last usage: {error}");
    }
    written.cancel();
    let _ = tokio::time::timeout(LAST_STEPS, audit_writer).await;
    followers.close();
    if tokio::time::timeout(LAST_STEPS, followers.wait()).await.is_err() {
        tracing::warn!("gave up waiting for {} background tasks", followers.len());
    }
    telemetry.finish().await;
    store.close().await;
    Ok(())
}

/// The warning for a default template that the host does not have.
fn unknown_default(default: &str, known: &[&str]) -> Option<String> {
    let name = default.parse::<coffer_core::TemplateRef>().map_or_else(|_| default.to_string(), |it| it.name);
    (!known.contains(&name.as_str())).then(|| {
        format!(
            "template '{default}' (template.default, E2B_TEMPLATE_ID) not found: sandboxes that name no template are \
             refused unless their project has a snapshot of that name; hint: this host has {}",
            known.join(", ")
        )
    })
}

/// Whether a domain has a parent that may serve other sites. Public suffixes are not known here, so `a.co.uk`
/// counts too.
fn may_share_site(domain: &str) -> bool {
    let name = domain.split(':').next().unwrap_or(domain).trim_end_matches('.');
    name.split('.').count() > 2 && name.parse::<std::net::IpAddr>().is_err() && !name.ends_with(".localhost")
}

/// The e-mail address of the server's own commits.
fn noreply(domain: Option<&str>) -> String {
    format!("noreply@{}", domain.unwrap_or("localhost"))
}

/// The address at which egress reaches this server.
fn own_address(listen: SocketAddr, listener: &TcpListener) -> Result<SocketAddr, ServeError> {
    let mut here = listener.local_addr().map_err(|source| ServeError::Listener { listen, source })?;
    if here.ip().is_unspecified() {
        here.set_ip(if here.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    Ok(here)
}

/// Opens the forges.
async fn forges(
    config: &ServerConfig,
    listener: &TcpListener,
    store: Store,
) -> Result<Arc<coffer_forge::Forges>, ServeError> {
    let here = own_address(config.listen, listener)?;
    let dir = config.server_dir.join("repositories");
    let config = coffer_forge::ForgeConfig {
        repositories: dir.clone(),
        here: format!("http://{here}"),
        identity: coffer_forge::Identity {
            name: "Cofferdam".into(),
            email: noreply(config.domain.as_deref()),
        },
        git: coffer_forge::GitLimits {
            calls: config.limits.pools.git_calls,
            transfers: config.limits.pools.git_transfers,
            ..config.forge.limits()
        },
        git_processes: config.git_processes.clone(),
        min_free_disk: config.limits.min_free_disk.as_bytes(),
        plain_http: config.plain_forges,
        private_hosts: config.forge.hosts().unwrap_or_default(),
        extra_roots: config.extra_roots.clone(),
    };
    let forges = coffer_forge::Forges::start(config, store).await;
    Ok(Arc::new(forges.map_err(|source| ServeError::Repositories { dir, source })?))
}

#[cfg(test)]
mod tests {
    use super::{may_share_site, unknown_default};

    #[test]
    fn a_default_template_that_is_not_there_is_pointed_out() {
        let known = ["base", "host"];
        assert_eq!(unknown_default("base", &known), None);
        assert_eq!(unknown_default("host:default", &known), None);
        let told = unknown_default("my-e2b-template", &known).unwrap();
        assert!(told.contains("'my-e2b-template'") && told.ends_with("this host has base, host"), "{told}");
    }

    #[test]
    fn a_domain_below_another_is_pointed_out() {
        for (domain, expected) in [
            ("example.com", false),
            ("sandboxes.example.com", true),
            ("sandboxes.example.com:8443", true),
            ("localhost", false),
            ("a.b.localhost", false),
            ("192.0.2.1", false),
        ] {
            assert_eq!(may_share_site(domain), expected, "{domain}");
        }
    }
}
