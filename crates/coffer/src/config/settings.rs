//! Every setting of an installation, with its default and its description.
//!
//! The doc comment of a field is its entry in the reference. A part of the server that has settings defines
//! its own struct, which becomes a section here by one line.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use coffer_core::mirrors::MirrorSettings;
use coffer_core::settings::{ByteSize, Period, SecretText};
use coffer_node::WarmChoice;
use coffer_node::features::{Lacking, UnknownFeature};
use coffer_server::{
    ArtifactSettings, BuildSettings, CatalogueSettings, CodeSettings, ForgeSettings, LimitSettings,
    MetricsSettings, ModelSettings, OutputSettings, RegistrySettings, SessionSettings, TaskSettings,
    TraceSettings, UsageSettings, WebhookSettings,
};
use coffer_store::{BadMasterKey, KeySource, MasterKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::complaint::Complaint;

/// A smaller pool cannot be formatted, or has no room afterwards.
const SMALLEST_POOL: ByteSize = ByteSize::mib(256);

/// Every setting.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// The address to serve on.
    pub(crate) listen: SocketAddr,
    /// Addresses and CIDR blocks of reverse proxies in front of the server, such as `10.0.0.0/8`. The server
    /// trusts them to name the client, by `X-Forwarded-For` or by the PROXY protocol (versions 1 and 2), and
    /// applies limits to that client instead of the proxy.
    pub(crate) trusted_proxies: Vec<String>,
    /// The data directory.
    pub(crate) data_dir: PathBuf,
    /// The domain of sandbox addresses (`<port>-<id>.<domain>`), if one points at this server.
    pub(crate) domain: Option<String>,
    pub(crate) tls: Tls,
    pub(crate) database: Database,
    pub(crate) template: Template,
    pub(crate) node: Node,
    pub(crate) network: Network,
    pub(crate) mirrors: MirrorSettings,
    pub(crate) secrets: Secrets,
    pub(crate) sandbox: Sandbox,
    pub(crate) limits: LimitSettings,
    pub(crate) output: OutputSettings,
    pub(crate) code: CodeSettings,
    pub(crate) usage: UsageSettings,
    pub(crate) tasks: TaskSettings,
    pub(crate) webhooks: WebhookSettings,
    pub(crate) session: SessionSettings,
    pub(crate) artifacts: ArtifactSettings,
    pub(crate) builds: BuildSettings,
    pub(crate) catalogue: CatalogueSettings,
    /// Images that templates of this machine serve, for builds without a registry: the name of an image and that
    /// of a template, or of another image that is one (`debian:12`, `debian:13`, `e2bdev/base`). The log of a
    /// build says which name was served by what.
    pub(crate) images: BTreeMap<String, String>,
    pub(crate) registries: RegistrySettings,
    pub(crate) metrics: MetricsSettings,
    pub(crate) traces: TraceSettings,
    pub(crate) log: Log,
    pub(crate) e2b: E2b,
    pub(crate) forge: ForgeSettings,
    pub(crate) models: ModelSettings,
    pub(crate) github: GitHub,
}

/// HTTPS ([guide](tls.md)). With a certificate the server serves HTTPS at `tls.listen`. `listen` then stays for programs on this machine
/// and trusted proxies, and redirects all others.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tls {
    /// A PEM file with the certificate, followed by those that lead to its authority (`fullchain.pem`). It should have two
    /// names: the domain and `*.` before the domain. The server notices when the file changes.
    pub(crate) cert: Option<PathBuf>,
    /// A PEM file with the certificate's private key, without a passphrase.
    pub(crate) key: Option<PathBuf>,
    /// The address to serve HTTPS on.
    pub(crate) listen: SocketAddr,
    /// An address of plain HTTP, such as `0.0.0.0:80`, that only redirects to HTTPS.
    pub(crate) redirect: Option<SocketAddr>,
    /// How long a browser that came by HTTPS must not use plain HTTP (`Strict-Transport-Security`), such as `180d`.
    pub(crate) hsts: Option<Period>,
}

/// The server's database.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Database {
    /// A PostgreSQL URL instead of the embedded SQLite. It may hold a password, so it is never shown.
    pub(crate) url: Option<SecretText>,
}

/// Templates of sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Template {
    /// The directory of templates; all data directories of a machine can share it.
    pub(crate) dir: PathBuf,
    /// Build the template `base` in the background when it is missing or out of date.
    pub(crate) build: bool,
    /// The template of a sandbox whose creator names none. E2B's SDKs always name one (`base`).
    #[schemars(extend("x-env" = "E2B_TEMPLATE_ID"))]
    pub(crate) default: String,
}

/// The node, which creates sandboxes on this machine.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Node {
    /// How much disk to reserve for sandboxes; a quarter of the free space, from 2 to 64 GiB, by default.
    #[schemars(extend("x-env" = "COFFER_POOL_SIZE"))]
    pub(crate) pool_size: Option<ByteSize>,
    /// How many sandboxes to keep ready at most, for creates that need not wait; 0 for none.
    #[schemars(range(max = 10_000), extend("x-env" = "COFFER_WARM_SLOTS"))]
    pub(crate) warm_slots: usize,
    /// Memory for those of them that run a template's processes, as of the code interpreter, of all templates together; 0
    /// for none. They are frozen until a sandbox is created, and end when the machine is low on memory.
    #[schemars(extend("x-env" = "COFFER_WARM_MEMORY"))]
    pub(crate) warm_memory: ByteSize,
    /// Memory of the machine that sandboxes never get; an eighth, from 256 MiB to 2 GiB, by default.
    #[schemars(extend("x-env" = "COFFER_MEMORY_RESERVE"))]
    pub(crate) memory_reserve: Option<ByteSize>,
    /// Encrypt the saved memory of sandboxes on disk, each image under its own key, which is deleted with it
    /// ([why](secrets.md#saved-memory)). If off, images take no memory while they are saved and restored.
    #[schemars(extend("x-env" = "COFFER_ENCRYPT_MEMORY"))]
    pub(crate) encrypt_memory: bool,
    /// Kernel features to do without, as if the kernel lacked them ([names](kernels.md#features)): for tests,
    /// and to work around a kernel bug.
    #[schemars(extend("x-env" = "COFFER_KERNEL_LACKS"))]
    pub(crate) kernel_lacks: Vec<String>,
}

/// The master key, which seals secrets. By default the server creates a file `master-key` in the data
/// directory's `server` at its first start, and `POST /api/v1/admin/master-key/rotate` rotates it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Secrets {
    /// The master key itself (`coffer-master-…`), instead of a file.
    #[schemars(extend("x-env" = "COFFER_MASTER_KEY"))]
    pub(crate) master_key: Option<SecretText>,
    /// The previous master key, or several separated by commas: data sealed under them is sealed under the
    /// new key at the start.
    #[schemars(extend("x-env" = "COFFER_MASTER_KEY_PREVIOUS"))]
    pub(crate) previous_master_keys: Option<SecretText>,
}

/// The network of sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Network {
    /// Whether sandboxes have a network.
    pub(crate) enabled: bool,
    /// Nameservers for the names that sandboxes look up (`address` or `address:port`); the machine's own by
    /// default.
    #[schemars(extend("x-env" = "COFFER_NAMESERVERS"))]
    pub(crate) nameservers: Vec<String>,
    /// A PEM file of certificate authorities to trust besides the machine's own, for forges, and for hosts
    /// with certificates of a private authority whose requests get headers injected.
    pub(crate) extra_roots: Option<PathBuf>,
}

/// Limits and lifetimes of sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Sandbox {
    /// Processors of each sandbox.
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) cpus: u32,
    /// Memory of each sandbox; 64 MiB at least.
    pub(crate) memory: ByteSize,
    /// Processes and threads of each sandbox.
    #[schemars(range(min = 64, max = 1_000_000))]
    pub(crate) processes: u32,
    /// What each sandbox may write to its disk; 10 GiB by default, but at most a quarter of the pool.
    pub(crate) disk: Option<ByteSize>,
    /// The longest timeout a sandbox may be given.
    #[schemars(extend("x-env" = "COFFER_MAX_TIMEOUT"))]
    pub(crate) max_timeout: Period,
    /// The longest a sandbox may live in all.
    #[schemars(extend("x-env" = "COFFER_MAX_LIFETIME"))]
    pub(crate) max_lifetime: Period,
    /// End sandboxes that nothing has used for this long.
    #[schemars(extend("x-env" = "COFFER_IDLE_TIMEOUT"))]
    pub(crate) idle_timeout: Option<Period>,
}

/// Logs of each part, on standard error.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    /// What to log, as a filter such as `info` or `coffer_node=debug`.
    #[schemars(extend("x-env" = "COFFER_LOG"))]
    pub(crate) filter: String,
    /// How log lines look: text for people, JSON for machines.
    pub(crate) format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Settings for E2B's SDKs and tools.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct E2b {
    /// The first key of the default project, if that has never had one; otherwise it is ignored. Without it
    /// the server creates a key.
    #[schemars(extend("x-env" = "E2B_API_KEY"))]
    pub(crate) api_key: Option<SecretText>,
}

/// Access to GitHub.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct GitHub {
    /// A token for repositories on github.com: the default project gets a connection `github` with it, unless
    /// it already has one to github.com. A new token replaces the last one at the next start.
    #[schemars(extend("x-env" = "GITHUB_TOKEN"))]
    pub(crate) token: Option<SecretText>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 3000)),
            trusted_proxies: Vec::new(),
            data_dir: "/var/lib/coffer".into(),
            domain: None,
            tls: Tls::default(),
            database: Database::default(),
            template: Template::default(),
            node: Node::default(),
            network: Network::default(),
            mirrors: MirrorSettings::default(),
            secrets: Secrets::default(),
            sandbox: Sandbox::default(),
            limits: LimitSettings::default(),
            output: OutputSettings::default(),
            code: CodeSettings::default(),
            usage: UsageSettings::default(),
            tasks: TaskSettings::default(),
            webhooks: WebhookSettings::default(),
            session: SessionSettings::default(),
            artifacts: ArtifactSettings::default(),
            builds: BuildSettings::default(),
            catalogue: CatalogueSettings::default(),
            images: BTreeMap::new(),
            registries: RegistrySettings::default(),
            metrics: MetricsSettings::default(),
            traces: TraceSettings::default(),
            log: Log::default(),
            e2b: E2b::default(),
            forge: ForgeSettings::default(),
            models: ModelSettings::default(),
            github: GitHub::default(),
        }
    }
}

impl Default for Tls {
    fn default() -> Self {
        let listen = SocketAddr::from(([0, 0, 0, 0], 443));
        Self { cert: None, key: None, listen, redirect: None, hsts: None }
    }
}

impl Default for Template {
    fn default() -> Self {
        Self { dir: "/var/cache/coffer/templates".into(), build: true, default: "base".into() }
    }
}

impl Default for Node {
    fn default() -> Self {
        let warm_slots = WarmChoice::default().max;
        Self {
            pool_size: None,
            warm_slots,
            warm_memory: ByteSize::mib(WarmChoice::MEMORY >> 20),
            memory_reserve: None,
            encrypt_memory: true,
            kernel_lacks: Vec::new(),
        }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self { enabled: true, nameservers: Vec::new(), extra_roots: None }
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        let limits = coffer_core::Limits::default();
        Self {
            cpus: limits.cpu_count,
            memory: ByteSize::mib(limits.memory_mib),
            processes: limits.max_processes,
            disk: None,
            max_timeout: Period::hours(24),
            max_lifetime: Period::hours(24),
            idle_timeout: None,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { filter: "info".into(), format: LogFormat::Text }
    }
}

impl Secrets {
    /// Where the master key is; `data` is the server's own directory.
    pub(crate) fn key_source(&self, data: &Path) -> Result<KeySource, BadMasterKey> {
        let Some(current) = &self.master_key else { return Ok(KeySource::File(data.join("master-key"))) };
        let previous = self.previous_master_keys.as_ref().map_or("", SecretText::reveal);
        let previous = previous.split(',').filter(|text| !text.trim().is_empty()).map(MasterKey::parse);
        let previous = previous.collect::<Result<_, _>>()?;
        Ok(KeySource::Given { current: MasterKey::parse(current.reveal())?, previous })
    }
}

impl Settings {
    /// Checks that go beyond single values.
    pub(super) fn check(&self) -> Result<(), Complaint> {
        let Self { sandbox, node, .. } = self;
        let ensure = |good: bool, key: &str, allowed: &str| match good {
            true => Ok(()),
            false => Err(Complaint::of(key, allowed)),
        };
        let more = "must be more than zero";
        ensure(!sandbox.max_timeout.is_zero(), "sandbox.max_timeout", more)?;
        ensure(!sandbox.max_lifetime.is_zero(), "sandbox.max_lifetime", more)?;
        ensure(sandbox.idle_timeout.is_none_or(|idle| !idle.is_zero()), "sandbox.idle_timeout", more)?;
        ensure(
            sandbox.max_timeout <= sandbox.max_lifetime,
            "sandbox.max_timeout",
            &format!("must not be longer than `sandbox.max_lifetime`, which is {}", sandbox.max_lifetime),
        )?;
        ensure(sandbox.memory >= ByteSize::mib(64), "sandbox.memory", "must be at least 64MiB")?;
        let disk = sandbox.disk.is_none_or(|disk| disk >= ByteSize::mib(16));
        ensure(disk, "sandbox.disk", "must be at least 16MiB")?;
        let pool = node.pool_size.is_none_or(|size| size >= SMALLEST_POOL);
        ensure(pool, "node.pool_size", &format!("must be at least {SMALLEST_POOL}"))?;
        let volume = self.limits.volume_size;
        let fits = volume >= ByteSize::mib(1) && volume.as_mib() <= 1 << 24;
        ensure(fits, "limits.volume_size", "must be 1MiB to 16TiB")?;
        let code = &self.code;
        ensure(code.timeout.as_secs() > 0, "code.timeout", "must be at least 1s")?;
        ensure(
            code.timeout <= code.longest_timeout,
            "code.timeout",
            &format!("must not be longer than `code.longest_timeout`, which is {}", code.longest_timeout),
        )?;
        let answer = (ByteSize::kib(64)..=ByteSize::mib(256)).contains(&code.most_output);
        ensure(answer, "code.most_output", "must be 64KiB to 256MiB")?;
        let ones = self.tasks.in_all.min(self.tasks.per_project);
        ensure(ones > 0, "tasks", "must let at least one run, in all and per project")?;
        let patience = std::time::Duration::from(self.tasks.answer_within);
        let fits = (60..=7 * 24 * 3600).contains(&patience.as_secs());
        ensure(fits, "tasks.answer_within", "must be from one minute to seven days")?;
        ensure((1..=20).contains(&self.webhooks.tries), "webhooks.tries", "must be 1 to 20")?;
        ensure(!self.webhooks.first_retry.is_zero(), "webhooks.first_retry", more)?;
        let Tls { cert, key, redirect, .. } = &self.tls;
        ensure(cert.is_none() || key.is_some(), "tls.key", "must be set next to `tls.cert`")?;
        ensure(key.is_none() || cert.is_some(), "tls.cert", "must be set next to `tls.key`")?;
        let overlaps = |other: SocketAddr| {
            let any = other.ip().is_unspecified() || self.listen.ip().is_unspecified();
            other.port() != 0 && other.port() == self.listen.port() && (any || other.ip() == self.listen.ip())
        };
        let free = cert.is_none() || !overlaps(self.tls.listen);
        ensure(free, "tls.listen", "must be another address than `listen`, which serves plain HTTP")?;
        let free = cert.is_none() || redirect.is_none_or(|redirect| !overlaps(redirect));
        ensure(free, "tls.redirect", "must be another address than `listen`, which redirects by itself")?;
        ensure(
            redirect.is_none_or(|redirect| redirect.port() == 0 || redirect != self.tls.listen),
            "tls.redirect",
            "must be another address than `tls.listen`",
        )?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte);
        let domain = self.domain.as_ref().is_none_or(|name| !name.is_empty() && name.bytes().all(plain));
        ensure(domain, "domain", "must be a plain name such as `sandboxes.example.com`")?;
        let template = self.template.default.parse::<coffer_core::TemplateRef>();
        template.map_err(|error| Complaint::of("template.default", &error.to_string()))?;
        let key = self.e2b.api_key.as_ref().map(SecretText::reveal);
        let key = key.is_none_or(|key| coffer_store::ApiKeySecret::parse(key).is_some());
        ensure(key, "e2b.api_key", "must be `e2b_` and 40 hexadecimal digits in lower case")?;
        let keys = self.secrets.key_source(Path::new(""));
        keys.map_err(|error| Complaint::of("secrets.master_key", &format!("must be one: {error}")))?;
        coffer_server::TrustedProxies::parse(self.trusted_proxies.iter().map(String::as_str)).map_err(
            |text| {
                let why =
                    format!("must be addresses or CIDR blocks such as `10.0.0.0/8`; `{text}` is neither");
                Complaint::of("trusted_proxies", &why)
            },
        )?;
        self.usage.check().map_err(|bad| Complaint::of(bad.key, bad.allowed))?;
        self.session.check().map_err(|(key, why)| Complaint::of(key, why))?;
        self.forge.check().map_err(|(key, why)| Complaint::of(key, &why))?;
        self.models.check().map_err(|(key, why)| Complaint::of(key, why))?;
        self.catalogue.check().map_err(|why| Complaint::of("catalogue.build", &why))?;
        self.registries.check().map_err(|why| Complaint::of("registries", &why))?;
        self.mirrors.resolve().map_err(|bad| Complaint::of(bad.key, &bad.allowed))?;
        let filter = tracing_subscriber::EnvFilter::try_new(&self.log.filter);
        filter.map_err(|_| {
            Complaint::of("log.filter", "must be a filter such as `info` or `coffer_node=debug`")
        })?;
        self.kernel_lacks()?;
        self.nameservers().map(drop)
    }

    /// Kernel features that the node must not use.
    pub(crate) fn kernel_lacks(&self) -> Result<Lacking, Complaint> {
        let names = self.node.kernel_lacks.join(",");
        names.parse().map_err(|error: UnknownFeature| Complaint::of("node.kernel_lacks", &error.to_string()))
    }

    /// The nameservers to ask instead of the machine's own.
    pub(crate) fn nameservers(&self) -> Result<Vec<SocketAddr>, Complaint> {
        let parse = |text: &String| {
            let plain = || Some(SocketAddr::new(text.parse().ok()?, 53));
            let address = text.parse::<SocketAddr>().ok().or_else(plain);
            let allowed = "must be addresses such as `1.1.1.1` or `[::1]:5353`";
            address.ok_or_else(|| Complaint::of("network.nameservers", allowed))
        };
        self.network.nameservers.iter().map(parse).collect()
    }
}

impl Sandbox {
    pub(crate) fn lifetime(&self) -> coffer_core::LifetimePolicy {
        coffer_core::LifetimePolicy {
            longest_timeout_ms: self.max_timeout.as_millis(),
            maximum_ms: self.max_lifetime.as_millis(),
            idle_ms: self.idle_timeout.map(Period::as_millis),
        }
    }

    /// The limits of each sandbox. By default at most a quarter of the pool, because a larger sandbox could
    /// fill it for all.
    pub(crate) fn limits(&self, pool_bytes: Option<u64>) -> coffer_core::Limits {
        let usual = coffer_core::Limits::default();
        let disk_mib = match (self.disk, pool_bytes) {
            (Some(disk), _) => disk.as_mib(),
            (None, Some(pool)) => usual.disk_mib.min((pool >> 20) / 4).max(16),
            (None, None) => usual.disk_mib,
        };
        coffer_core::Limits {
            cpu_count: self.cpus,
            memory_mib: self.memory.as_mib(),
            max_processes: self.processes,
            disk_mib,
        }
    }
}
