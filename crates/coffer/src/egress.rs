//! The role `coffer egress`: starts as root, gives up root, all files and most system calls, then dials
//! for sandboxes.

mod confine;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use coffer_core::network::{Class, Mirrors, Walls, classify};
use coffer_egress::{Authority, AuthorityText, Seams, Settings, Upstream, control};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use crate::privilege::{Unprivileged, listen_for};

/// Where the node finds egress.
pub(crate) const SOCKET: &str = "egress.sock";

#[derive(Debug, Args)]
pub(crate) struct Egress {
    #[command(flatten)]
    part: Unprivileged,
}

/// What egress must know about the machine and cannot read itself, because it has no files and may not query
/// the kernel. `up` writes it to its standard input, a line of JSON whenever it changes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Surroundings {
    pub(crate) nameservers: Vec<SocketAddr>,
    /// The machine's own addresses, which no sandbox may reach.
    pub(crate) addresses: Vec<IpAddr>,
    /// The authority that signs certificates for opened connections.
    pub(crate) authority: Option<AuthorityText>,
    /// The certificates to trust outside, as PEM.
    pub(crate) roots: String,
    /// The package mirrors of the operator.
    pub(crate) mirrors: Mirrors,
}

impl Egress {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        confine::close_inherited()?;
        // Only root, the node, connects.
        let listener = listen_for(0, &self.part.run_dir.join(SOCKET))?;
        listener.set_nonblocking(true)?;
        confine::lose_files(&self.part.run_dir)?;
        confine::lose_capabilities()?;
        self.part.give_up_root()?;
        confine::dump_no_core()?;
        let files = crate::privilege::raise_open_files();
        let settings = Settings::within_open_files(usize::try_from(files).unwrap_or(usize::MAX));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(serve(listener, settings))
    }
}

async fn serve(listener: UnixListener, settings: Settings) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    crate::signals::cancel_on_signal(stop.clone())?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    let input = pipe::Receiver::from_owned_fd(input).context("standard input must be a pipe")?;
    let mut news = BufReader::new(input).lines();
    // From here on no thread can be started and no file opened.
    confine::restrict_calls()?;

    let first = next(&mut news).await?.context("`up` did not send the network settings of the host")?;
    let resolver = Upstream::new(first.nameservers.clone());
    let egress = coffer_egress::Egress::new(settings, Seams::of_host(resolver.clone()), Walls::default());
    let egress = Arc::new(egress);
    let mut known = None;
    take_in(&egress, &resolver, first, &mut known);
    tokio::select! {
        () = stop.cancelled() => {}
        () = control::serve(Arc::clone(&egress), listener) => {}
        ended = async {
            while let Some(news) = next(&mut news).await? {
                take_in(&egress, &resolver, news, &mut known);
            }
            anyhow::Ok(())
        } => ended?,
    }
    egress.stop().await;
    Ok(())
}

async fn next(news: &mut Lines<BufReader<pipe::Receiver>>) -> anyhow::Result<Option<Surroundings>> {
    let Some(line) = news.next_line().await.context("could not read the network settings of the host")?
    else {
        return Ok(None);
    };
    // Not the line itself: it holds the authority's key.
    serde_json::from_str(&line).map(Some).context("the network settings of the host are not valid")
}

/// The source of the authority in use.
type KnownAuthority = Option<(AuthorityText, String)>;

fn take_in(
    egress: &coffer_egress::Egress,
    resolver: &Upstream,
    news: Surroundings,
    known: &mut KnownAuthority,
) {
    let Surroundings { nameservers, addresses, authority, roots, mirrors } = news;
    let told = authority.map(|authority| (authority, roots));
    if told.is_some() && told != *known {
        *known = told;
        match known.as_ref().map(|(authority, roots)| Authority::new(authority, roots)) {
            Some(Ok(authority)) => egress.replace_authority(authority),
            Some(Err(error)) => tracing::error!("cannot inject headers into requests: {error}"),
            None => {}
        }
    }
    let v4_alone = !addresses.iter().any(|own| own.is_ipv6() && classify(*own) == Class::Public);
    if nameservers.is_empty() {
        tracing::warn!("this machine has no nameserver: sandboxes cannot look up names; see --nameserver");
    } else {
        let families = if v4_alone { "IPv4 alone" } else { "IPv4 and IPv6" };
        tracing::info!("using nameservers {nameservers:?}, with addresses of {families}");
    }
    if !mirrors.is_empty() {
        let names: Vec<String> = mirrors.iter().map(|mirror| mirror.name.to_string()).collect();
        tracing::info!("package mirrors are open: {}", names.join(", "));
    }
    egress.replace_walls(Walls::new(addresses).with_mirrors(mirrors));
    resolver.replace_servers(nameservers);
    resolver.use_v4_alone(v4_alone);
}
