//! One connection of a sandbox, from accept to end.
//!
//! ```text
//! accept ── where to? ── wall? ── does a name matter? ──no──────────────┐
//!                                       │ yes                          ▼
//!                              read SNI or Host ──none──► decide by the address ──► dial that address
//!                                       │                              ▲
//!                                       ▼                              │ the name did not decide
//!                               decide by name ────────────────────────┘
//!                                       │ the name opens the way
//!                                       ▼
//!                          look the name up ourselves, check each address, dial
//! ```
//!
//! A connection that gets headers is dialled by its name however it was allowed, and then carried by
//! [`inject`] instead of [`relay`](mod@crate::relay).
//!
//! If the name allowed the connection, the address that the sandbox chose is not used: it may belong to
//! another host. Connections to the operator's package mirrors go through [`mirror`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use coffer_core::ProjectId;
use coffer_core::network::{
    Class, Decision, Destination, HostName, Opened, Policy, Proxy, ProxyHost, RefusedKind, Rule, decide,
    needs_name,
};
use coffer_shares::Shares;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use crate::dns::{Family, LookupError};
use crate::forbidden;
use crate::gate;
use crate::inject::{self, Target};
use crate::mirror;
use crate::refusal::{Cause, Refused};
use crate::relay::relay;
use crate::sandbox::{AddressFrom, Admitted, Route, Sandbox, refused};
use crate::sniff::{Sniffed, Sniffer};
use crate::{socket, socks};

/// Addresses of a name that are tried.
pub(crate) const MOST_ATTEMPTS: usize = 4;
const READ_SIZE: usize = 4096;
/// The first byte of TLS.
pub(crate) const TLS_HANDSHAKE: u8 = 22;

/// Accepts connections until the sandbox is removed.
pub(crate) async fn serve(
    sandbox: Arc<Sandbox>,
    listener: TcpListener,
    all_connections: Shares<Option<ProjectId>>,
    tasks: TaskTracker,
) {
    while let Some(stream) = socket::accept(&listener, &sandbox.stop).await {
        let destination = sandbox.seams.original.of(&stream).ok();
        let own = Arc::clone(&sandbox.connections).try_acquire_owned().map_err(|_| Cause::ConnectionLimit);
        let place = own.and_then(|own| match all_connections.try_take(sandbox.policy().project()) {
            Ok(shared) => Ok((own, shared)),
            Err(full) if full.held >= full.share => Err(Cause::ProjectConnectionLimit),
            Err(_) => Err(Cause::TotalConnectionLimit),
        });
        let refusal = match (destination, place) {
            (Some(destination), Ok(place)) => {
                let sandbox = Arc::clone(&sandbox);
                tasks.spawn(async move {
                    handle(&sandbox, stream, destination).await;
                    drop(place);
                });
                continue;
            }
            (_, Err(limit)) => limit,
            (None, Ok(_)) => Cause::NoDestination,
        };
        let (address, port) = (destination.map(|to| to.ip()), destination.map(|to| to.port()));
        sandbox.refuse(Refused { kind: RefusedKind::Connection, name: None, address, port }, &refusal);
        socket::abort(&stream);
    }
}

/// Handles one connection to its end; `original` is the destination that the sandbox chose.
pub(crate) async fn handle(sandbox: &Arc<Sandbox>, mut stream: TcpStream, original: SocketAddr) {
    // Small writes of a shell or a chat must not wait for each other.
    stream.set_nodelay(true).ok();
    if gate::is_meant(&sandbox.policy(), original) {
        return gate::serve(sandbox, stream).await;
    }
    if gate::model::is_meant(&sandbox.policy(), original) {
        return gate::model::serve(sandbox, stream, original.port()).await;
    }
    let mut hello = Vec::new();
    let opened = tokio::select! {
        biased;
        () = sandbox.stop.cancelled() => return socket::abort(&stream),
        opened = open(sandbox, &mut stream, original, &mut hello) => opened,
    };
    match opened {
        Ok((upstream, admitted, Some(target))) => {
            sandbox.counters.opened.fetch_add(1, Ordering::Relaxed);
            inject::serve(sandbox, &admitted, target, (stream, upstream), hello).await;
        }
        Ok((upstream, admitted, None)) => {
            sandbox.counters.opened.fetch_add(1, Ordering::Relaxed);
            relay(sandbox, &admitted.cut, stream, upstream, &hello).await;
        }
        Err(NotOpened::Refused(refused, cause)) => {
            sandbox.refuse(refused.clone(), &cause);
            let explained = tokio::select! {
                biased;
                () = sandbox.stop.cancelled() => false,
                explained = explain(sandbox, &mut stream, hello, refused, &cause) => explained,
            };
            if !explained {
                socket::abort(&stream);
            }
        }
        Err(NotOpened::Failed) => {
            sandbox.counters.failed.fetch_add(1, Ordering::Relaxed);
            socket::abort(&stream);
        }
    }
}

/// A connection out: its stream, its place in the table, and how it is terminated, if it is.
pub(crate) type OpenedWay = (TcpStream, Admitted, Option<Target>);

pub(crate) enum NotOpened {
    Refused(Refused, Cause),
    /// The policy allows it, and the other end did not answer.
    Failed,
}

impl NotOpened {
    pub(crate) fn refused(destination: Destination, cause: Cause) -> Self {
        Self::Refused(refused(RefusedKind::Connection, destination), cause)
    }
}

/// Opens the connection out, if allowed; `hello` becomes the bytes that the sandbox has already sent.
async fn open(
    sandbox: &Arc<Sandbox>,
    stream: &mut TcpStream,
    original: SocketAddr,
    hello: &mut Vec<u8>,
) -> Result<OpenedWay, NotOpened> {
    let (address, port) = (original.ip(), original.port());
    let (policy, walls) = (sandbox.policy(), sandbox.walls());
    if let Some(mirror) = walls.mirrors().at(address, port) {
        return mirror::open(sandbox, mirror, stream, original, hello).await;
    }
    let mut name = None;
    if needs_name(&policy, &walls, address, port) {
        (name, *hello) = sniff(sandbox, stream).await;
    }
    let destination = Destination { name, address, port };
    let decision = decide(&policy, &walls, &destination);
    if let Decision::Refuse { rule } = decision {
        return Err(NotOpened::refused(destination, Cause::Rule(rule)));
    }
    let target = headers_target(&policy, &destination, hello);
    if lacks_secrets(&policy, target.as_ref()) || (target.is_some() && sandbox.authority().is_none()) {
        return Err(NotOpened::refused(destination, Cause::SecretsUnknown));
    }
    let (stream, admitted) = if target.is_some() || decision.is_allowed_by_name() {
        dial_name(sandbox, destination).await?
    } else {
        dial_address(sandbox, destination).await?
    };
    Ok((stream, admitted, target))
}

/// The connection to terminate in order to add headers, if any.
pub(crate) fn headers_target(policy: &Policy, destination: &Destination, hello: &[u8]) -> Option<Target> {
    let (host, port) = (destination.name.clone()?, destination.port);
    let opened = policy.opens_for_headers(&host, port)?;
    let is_tls = hello.first() == Some(&TLS_HANDSHAKE);
    // Other protocols get no headers, so the connection is not terminated.
    (is_tls == (opened == Opened::Tls)).then_some(Target { host, port, opened, needs_headers: true })
}

/// Whether the connection needs a secret that is not known yet.
fn lacks_secrets(policy: &Policy, target: Option<&Target>) -> bool {
    let has_login = policy.proxy().is_some_and(|proxy| proxy.login().is_some());
    policy.is_withheld() && (target.is_some() || has_login)
}

/// Tells a plain HTTP client why it was refused; returns whether that was possible.
async fn explain(
    sandbox: &Sandbox,
    stream: &mut TcpStream,
    mut hello: Vec<u8>,
    refused: Refused,
    cause: &Cause,
) -> bool {
    let Refused { mut name, port: Some(forbidden::PORT), .. } = refused else { return false };
    let Some(rule) = forbidden::changeable(cause) else { return false };
    if hello.is_empty() {
        (name, hello) = sniff(sandbox, stream).await;
    }
    match name {
        Some(name) => forbidden::answer(stream, &hello, &name, rule).await,
        None => false,
    }
}

/// Waits for a name, within bounds of bytes and time; returns what was read meanwhile.
pub(crate) async fn sniff(sandbox: &Sandbox, stream: &mut TcpStream) -> (Option<HostName>, Vec<u8>) {
    let start = Instant::now();
    let mut deadline = start + sandbox.settings.first_byte;
    let mut sniffer = Sniffer::default();
    let mut name = None;
    let mut buffer = [0; READ_SIZE];
    while sniffer.room() > 0 {
        let most = sniffer.room().min(READ_SIZE);
        let Ok(Ok(length @ 1..)) = timeout_at(deadline, stream.read(&mut buffer[..most])).await else {
            break;
        };
        deadline = start + sandbox.settings.hello;
        match sniffer.push(&buffer[..length]) {
            Sniffed::Unfinished { .. } => {}
            Sniffed::Nameless => break,
            Sniffed::Name(found) => {
                name = Some(found);
                break;
            }
        }
    }
    (name, sniffer.into_bytes())
}

/// Dials the address that the sandbox chose, in its plain form.
async fn dial_address(
    sandbox: &Arc<Sandbox>,
    mut destination: Destination,
) -> Result<(TcpStream, Admitted), NotOpened> {
    destination.address =
        sandbox.walls().pass(destination.address).map_err(|class| walled(&destination, class))?;
    attempt(sandbox, Route { destination, address: AddressFrom::Sandbox }).await?.ok_or(NotOpened::Failed)
}

/// Dials a name by addresses that we look up, the family that the sandbox chose first.
async fn dial_name(
    sandbox: &Arc<Sandbox>,
    destination: Destination,
) -> Result<(TcpStream, Admitted), NotOpened> {
    let Some(name) = destination.name.clone() else { return Err(NotOpened::Failed) };
    let families = match destination.address {
        IpAddr::V4(_) => [Family::V4, Family::V6],
        IpAddr::V6(_) => [Family::V6, Family::V4],
    };
    let walls = sandbox.walls();
    let mut walls_met = None;
    let mut unknown = false;
    let mut attempts = 0;
    for family in families {
        let found = match sandbox.look_up(&name, family).await {
            Ok(found) => found,
            Err(LookupError::NoSuchName) => continue,
            Err(LookupError::Failed) => {
                unknown = true;
                continue;
            }
        };
        for address in found.addresses {
            let address = match walls.pass(address) {
                Ok(address) => address,
                Err(class) => {
                    walls_met = Some((address, class));
                    continue;
                }
            };
            if attempts == MOST_ATTEMPTS {
                return Err(NotOpened::Failed);
            }
            attempts += 1;
            let destination = Destination { address, ..destination.clone() };
            if let Some(dialled) = attempt(sandbox, Route { destination, address: AddressFrom::Us }).await? {
                return Ok(dialled);
            }
        }
    }
    match walls_met {
        _ if attempts > 0 => Err(NotOpened::Failed),
        Some((address, class)) => Err(walled(&Destination { address, ..destination }, class)),
        // A failed lookup says nothing about the name.
        None if unknown => Err(NotOpened::Failed),
        None => Err(NotOpened::refused(destination, Cause::NameWithoutAddress)),
    }
}

/// Dials once. The policy is checked again just before, because it may have changed meanwhile.
async fn attempt(sandbox: &Arc<Sandbox>, route: Route) -> Result<Option<(TcpStream, Admitted)>, NotOpened> {
    let to = SocketAddr::new(route.destination.address, route.destination.port);
    let destination = route.destination.clone();
    let admitted = sandbox.admit(route).map_err(|rule| NotOpened::refused(destination, Cause::Rule(rule)))?;
    tokio::select! {
        biased;
        // The code that cut it has recorded it.
        () = admitted.cut.cancelled() => Err(NotOpened::Failed),
        dialled = timeout(sandbox.settings.dial, dial(sandbox, admitted.policy.proxy(), to)) => match dialled {
            Ok(Ok(stream)) => Ok(Some((stream, admitted))),
            Ok(Err(error)) => {
                tracing::debug!(%to, %error, "could not connect");
                Ok(None)
            }
            Err(_) => Ok(None),
        },
    }
}

/// Dials directly, or through the proxy and never around it.
pub(crate) async fn dial(sandbox: &Sandbox, proxy: Option<&Proxy>, to: SocketAddr) -> io::Result<TcpStream> {
    let Some(proxy) = proxy else { return sandbox.seams.dialer.dial(to).await };
    let inner = || io::Error::new(io::ErrorKind::PermissionDenied, "the proxy has no public address");
    let pass = |address| sandbox.walls().pass(address).map_err(|_| inner());
    let address = match proxy.host() {
        ProxyHost::Address(address) => pass(*address)?,
        ProxyHost::Name(name) => {
            let mut address = Err(inner());
            for family in [Family::V4, Family::V6] {
                let found = sandbox.look_up(name, family).await;
                let found = found.map(|found| found.addresses).unwrap_or_default();
                address = found.into_iter().map(pass).find(Result::is_ok).unwrap_or(address);
                if address.is_ok() {
                    break;
                }
            }
            address?
        }
    };
    let mut stream = sandbox.seams.dialer.dial(SocketAddr::new(address, proxy.port())).await?;
    socks::connect(&mut stream, proxy.login(), to).await?;
    Ok(stream)
}

fn walled(destination: &Destination, class: Class) -> NotOpened {
    NotOpened::refused(destination.clone(), Cause::Rule(Rule::Never(class)))
}
