//! The role `coffer server`: starts as root, drops root, then serves.

use std::io::{BufRead as _, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use coffer_core::model::Prices;
use coffer_core::settings::SecretText;
use coffer_core::{ProjectId, chain};
use coffer_engine::{Engine as _, NodeEngine};
use coffer_forge::{GitProcesses, connect_by_token};
use coffer_server::{
    Certificate, CertificateText, Certificates, EmbeddedFile, Entrances, Secure, ServerConfig,
};
use coffer_store::{ApiKeySecret, Store};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::own_directory::reach_own_directory;
use crate::printer;
use crate::privilege::Unprivileged;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Limit of the settings that are read.
const LONGEST_TOLD: u64 = 1 << 20;

/// The code interpreter, which the template `code-interpreter-v1` copies. Empty if it was not built beforehand: the template's
/// smoke test fails then.
static CATALOGUE_FILES: [EmbeddedFile; 1] =
    [EmbeddedFile { name: "coffer-code", contents: include_bytes!(concat!(env!("OUT_DIR"), "/code")) }];

#[derive(Debug, Args)]
pub(crate) struct Server {
    #[arg(long)]
    listen: SocketAddr,
    /// The server's own directory
    #[arg(long)]
    server_dir: PathBuf,
    /// Create an API key and report it, unless the known one is valid
    #[arg(long)]
    mint_key: bool,
    #[command(flatten)]
    part: Unprivileged,
}

/// The server's input on standard input, one line of JSON. It holds secrets, and every user of the machine
/// can read arguments.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) settings: serde_json::Value,
    /// Identifies this installation among others on the same database.
    pub(crate) installation: String,
    /// The key that an earlier start wrote.
    pub(crate) known_key: Option<String>,
    /// The operator's key that an earlier start wrote.
    pub(crate) known_operator_key: Option<String>,
    /// For HTTPS. Only this changes in later lines.
    #[serde(default)]
    pub(crate) certificate: Option<CertificateText>,
}

/// The server's message on standard output once it serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) listen: SocketAddr,
    /// The address of HTTPS, if it is served.
    pub(crate) https: Option<SocketAddr>,
    /// Only if it was just created.
    pub(crate) api_key: Option<String>,
    /// Only if it was just created.
    pub(crate) operator_key: Option<String>,
    /// The token of a link to sign in with, once; also only at the first start.
    pub(crate) link: Option<String>,
}

/// How long the sign-in link that a start prints is valid.
const LINK_MS: i64 = 3600 * 1000;

include!(concat!(env!("OUT_DIR"), "/ui_files.rs"));

impl Server {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut told = listen_to_parent()?.context("`up` sent no settings")?;
        let settings = config::take_over(told.settings.clone())?;
        // Read it while this is root.
        let extra_roots =
            settings.network.extra_roots.as_deref().map(crate::roots::extra_roots).transpose()?;
        let prices = prices(&settings.models)?;
        let secure = told.certificate.take().map(|text| Bound::new(&text, &settings.tls)).transpose()?;
        let data = self.part.run_dir.join("data");
        reach_own_directory(&self.server_dir, &data)?;
        self.part.give_up_root()?;
        crate::privilege::raise_open_files();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.serve(&data, told, settings, (extra_roots, prices), secure))
    }

    async fn serve(
        self,
        data: &Path,
        told: Told,
        settings: config::Settings,
        (extra_roots, prices): (Option<String>, Prices),
        secure: Option<Bound>,
    ) -> anyhow::Result<()> {
        let Told { installation, known_key, known_operator_key, .. } = told;
        let stop = CancellationToken::new();
        crate::signals::cancel_on_signal(stop.clone())?;
        let url = settings.database.url.as_ref().map(|url| url.reveal().to_string());
        let url = url.unwrap_or_else(|| format!("sqlite:{}", data.join("coffer.db").display()));
        let keys = settings.secrets.key_source(data).context("the master key is not valid")?;
        let store = Store::open(&url, keys).await.context("could not open the database")?;
        let operator = store.operator();
        let project =
            store.ensure_default_project(&operator).await.context("could not create the first project")?;
        let api_key = if self.mint_key {
            let wanted = settings.e2b.api_key.as_ref().map(SecretText::reveal);
            first_key(&store, project, known_key.as_deref(), wanted).await?
        } else {
            None
        };
        let operator_key = if self.mint_key && !is_good(&store, known_operator_key.as_deref()).await? {
            let key = store.create_operator_key(&operator, "up").await;
            Some(key.context("could not create an operator's key")?.reveal().to_string())
        } else {
            None
        };
        let link = if self.mint_key && !UI_FILES.is_empty() {
            let link = store.create_sign_in_link(&operator, project, LINK_MS).await;
            Some(link.context("could not create a sign-in link")?.reveal().to_string())
        } else {
            None
        };
        // Many shells have one for other purposes: an unusable token must not prevent the server from
        // starting.
        if let Some(token) =
            settings.github.token.as_ref().map(SecretText::reveal).filter(|text| !text.is_empty())
            && let Err(error) = connect_by_token(&store, project, token).await
        {
            tracing::warn!("GITHUB_TOKEN is not used: {}", chain(&error));
        }
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            printer::hint(
                format!("could not listen on {}: {error}", self.listen),
                "choose another port with --listen",
            )
        })?;
        let listen = listener.local_addr()?;
        let secure = secure.map(Bound::listen).transpose()?;
        let https = secure.as_ref().map(|secure| secure.listener.local_addr()).transpose()?;
        // Not `stop`: steps in progress need the engine until they are done.
        let engine =
            Arc::new(NodeEngine::start(self.part.run_dir.join("node.sock"), CancellationToken::new()));
        let node = engine.info().await.context("could not list the node's sandboxes")?;
        let git_socket = self.part.run_dir.join(crate::git::SOCKET);
        let config = ServerConfig {
            listen,
            lifetime: settings.sandbox.lifetime(),
            default_limits: settings.sandbox.limits(node.pool_bytes),
            domain: settings.domain,
            default_template: settings.template.default,
            installation: Some(installation),
            limits: settings.limits,
            metrics: settings.metrics,
            traces: settings.traces,
            usage: settings.usage,
            output: settings.output,
            tasks: settings.tasks,
            webhooks: settings.webhooks,
            sessions: settings.session,
            artifacts: settings.artifacts,
            code: settings.code,
            builds: settings.builds,
            catalogue: settings.catalogue,
            catalogue_files: &CATALOGUE_FILES,
            images: coffer_server::ImageNames(settings.images),
            registries: settings.registries,
            forge: settings.forge,
            models: coffer_server::ModelConfig { prices, settings: settings.models },
            environment: settings.mirrors.resolve().unwrap_or_default().variables(),
            // The runner detects Landlock itself.
            git_processes: GitProcesses { runner: Some(git_socket), landlock: false },
            extra_roots,
            trusted_proxies: coffer_server::TrustedProxies::parse(
                settings.trusted_proxies.iter().map(String::as_str),
            )
            .unwrap_or_default(),
            server_dir: data.to_path_buf(),
            ui: UI_FILES,
            ..ServerConfig::default()
        };
        let ready = Ready { listen, https, api_key, operator_key, link };
        let entrances = Entrances { plain: listener, secure };
        let server = coffer_server::serve(config, store, engine, entrances, stop, || {
            printer::line(serde_json::to_string(&ready).expect("plain fields"));
        });
        server.await.map_err(|error| {
            let hint = error.hint();
            printer::hint(format!("the server could not start: {:#}", anyhow::Error::new(error)), hint)
        })
    }
}

/// Waits for a line that `up` writes; `None` when no more will come.
fn listen_to_parent() -> anyhow::Result<Option<Told>> {
    let mut line = String::new();
    std::io::stdin().lock().take(LONGEST_TOLD).read_line(&mut line).context("could not read the settings")?;
    if line.is_empty() {
        return Ok(None);
    }
    // The text is not repeated: it holds secrets.
    serde_json::from_str(&line).map(Some).map_err(|_| anyhow::anyhow!("`up` sent no valid settings"))
}

/// Addresses of HTTPS that were taken as root, because only root may take ports below 1024.
struct Bound {
    certificates: Arc<Certificates>,
    socket: TcpSocket,
    redirect: Option<TcpSocket>,
    hsts: Option<std::time::Duration>,
}

impl Bound {
    fn new(text: &CertificateText, settings: &config::Tls) -> anyhow::Result<Self> {
        let certificate = Certificate::parse(text).context("could not use the certificate")?;
        let bind = |address: SocketAddr, setting: &str| {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
            let bound = socket.and_then(|socket| {
                socket.set_reuseaddr(true)?;
                socket.bind(address)?;
                Ok(socket)
            });
            bound.map_err(|error| {
                printer::hint(
                    format!("could not listen on {address}: {error}"),
                    format!("choose another address with `{setting}`"),
                )
            })
        };
        Ok(Self {
            certificates: Arc::new(Certificates::new(certificate)),
            socket: bind(settings.listen, "tls.listen")?,
            redirect: settings.redirect.map(|address| bind(address, "tls.redirect")).transpose()?,
            hsts: settings.hsts.map(|hsts| std::time::Duration::from_secs(hsts.as_secs())),
        })
    }

    /// Begins to listen, and to wait for other certificates.
    fn listen(self) -> anyhow::Result<Secure> {
        let certificates = self.certificates.clone();
        // Not a task: reading standard input cannot be cancelled, and a thread ends with the process.
        std::thread::Builder::new().name("certificates".into()).spawn(move || {
            while let Ok(Some(told)) = listen_to_parent() {
                // `up` has checked it.
                if let Some(Ok(certificate)) = told.certificate.as_ref().map(Certificate::parse) {
                    certificates.replace(certificate);
                }
            }
        })?;
        let open = |socket: TcpSocket| socket.listen(BACKLOG);
        Ok(Secure {
            listener: open(self.socket).context("could not listen for HTTPS")?,
            certificates: self.certificates,
            redirect: self.redirect.map(open).transpose().context("could not listen for plain HTTP")?,
            hsts: self.hsts,
        })
    }
}

/// The default project's key to show, unless it is the known one: the wanted one if the project has never had
/// any, a new one if neither the known nor the wanted one is valid.
async fn first_key(
    store: &Store,
    project: ProjectId,
    known: Option<&str>,
    wanted: Option<&str>,
) -> anyhow::Result<Option<String>> {
    let operator = store.operator();
    if let Some(key) = wanted.and_then(ApiKeySecret::parse) {
        let made = store.ensure_first_key(&operator, project, "E2B_API_KEY", Some(key)).await;
        if let Some(key) = made.context("could not store the API key of E2B_API_KEY")? {
            return Ok(Some(key.reveal().to_string()));
        }
    }
    if is_good(store, known).await? {
        return Ok(None);
    }
    if is_good(store, wanted).await? {
        return Ok(wanted.map(str::to_string));
    }
    let key = store.create_key(&operator, project, "up").await.context("could not create an API key")?;
    Ok(Some(key.reveal().to_string()))
}

/// Whether a key from a file belongs to this database.
async fn is_good(store: &Store, key: Option<&str>) -> anyhow::Result<bool> {
    let Some(key) = key else { return Ok(false) };
    let principal = store.authenticate(key).await.context("could not look up the API key")?;
    Ok(principal.is_some())
}

/// The prices of models: those in the program, and those of the operator's file, which win.
fn prices(settings: &coffer_server::ModelSettings) -> anyhow::Result<Prices> {
    let built_in = Prices::built_in();
    let Some(path) = &settings.prices else { return Ok(built_in) };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("could not read the prices of models in `{path}` (models.prices)"))?;
    let own = Prices::parse(&text)
        .with_context(|| format!("the prices of models in `{path}` (models.prices) cannot be used"))?;
    if own.currency != built_in.currency {
        // Two currencies in one table would add up to nonsense.
        return Ok(own);
    }
    Ok(built_in.with(own))
}
