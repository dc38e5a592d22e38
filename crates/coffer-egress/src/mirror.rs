//! Connections to the operator's package mirrors, which may be at private addresses.
//!
//! ```text
//! stand-in:port ── whose? ── policy? ── SNI or Host is the mirror's? ── our own look-up ── walls for mirrors ── dial
//! ```
//!
//! The sandbox chooses a mirror and nothing else: it neither learns nor picks the address. Other sites may share
//! that address, so a connection must say the mirror's name, and each request of plain HTTP again
//! ([`inject`](crate::inject) checks it). A mirror is never dialled through the sandbox's proxy, which would
//! learn the address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use coffer_core::network::{Decision, Destination, Mirror, Opened, Rule, Walls, decide};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connection::{MOST_ATTEMPTS, NotOpened, OpenedWay, TLS_HANDSHAKE, headers_target, sniff};
use crate::dns::{Family, LookupError};
use crate::inject::Target;
use crate::refusal::Cause;
use crate::sandbox::{AddressFrom, Route, Sandbox};

/// Opens a connection to `mirror`, if allowed; `hello` becomes the bytes that the sandbox has already sent.
pub(crate) async fn open(
    sandbox: &Arc<Sandbox>,
    mirror: &Mirror,
    stream: &mut TcpStream,
    stand_in: SocketAddr,
    hello: &mut Vec<u8>,
) -> Result<OpenedWay, NotOpened> {
    let (address, port) = (stand_in.ip(), stand_in.port());
    let (policy, walls) = (sandbox.policy(), sandbox.walls());
    // Refusals have this, too: the real address is not for the sandbox's owner.
    let destination = Destination { name: Some(mirror.name.clone()), address, port };
    if let Decision::Refuse { rule } = decide(&policy, &walls, &destination) {
        return Err(NotOpened::refused(destination, Cause::Rule(rule)));
    }
    let name;
    (name, *hello) = sniff(sandbox, stream).await;
    if name.as_ref() != Some(&mirror.name) {
        return Err(NotOpened::refused(Destination { name, ..destination }, Cause::NotTheMirror));
    }
    // The name came by TLS or by HTTP.
    let target = match headers_target(&policy, &destination, hello) {
        Some(target) => Some(target),
        None if hello.first() != Some(&TLS_HANDSHAKE) => {
            Some(Target { host: mirror.name.clone(), port, opened: Opened::Plain, needs_headers: false })
        }
        None => None,
    };
    let with_headers = target.as_ref().filter(|target| target.needs_headers);
    if with_headers.is_some() && (policy.is_withheld() || sandbox.authority().is_none()) {
        return Err(NotOpened::refused(destination, Cause::SecretsUnknown));
    }
    let route = Route { destination: destination.clone(), address: AddressFrom::Us };
    let admitted =
        sandbox.admit(route).map_err(|rule| NotOpened::refused(destination.clone(), Cause::Rule(rule)))?;
    let dialled = tokio::select! {
        biased;
        // The code that cut it has recorded it.
        () = admitted.cut.cancelled() => return Err(NotOpened::Failed),
        dialled = dial(sandbox, &walls, mirror, destination) => dialled?,
    };
    Ok((dialled, admitted, target))
}

/// Dials the mirror by addresses that we look up, or by the one that the operator wrote.
async fn dial(
    sandbox: &Sandbox,
    walls: &Walls,
    mirror: &Mirror,
    destination: Destination,
) -> Result<TcpStream, NotOpened> {
    let (mut attempts, mut walled, mut unknown) = (0, None, false);
    for family in [Family::V4, Family::V6] {
        for address in addresses(sandbox, mirror, family).await.unwrap_or_else(|()| {
            unknown = true;
            Vec::new()
        }) {
            let address = match walls.pass_mirror(mirror, address) {
                Ok(address) => address,
                Err(class) => {
                    walled = Some(class);
                    continue;
                }
            };
            if attempts == MOST_ATTEMPTS {
                return Err(NotOpened::Failed);
            }
            attempts += 1;
            let to = SocketAddr::new(address, destination.port);
            let dialer = &sandbox.seams.dialer;
            let dialled = match mirror.address {
                // The only way to this machine: the operator named its address.
                Some(_) => timeout(sandbox.settings.dial, dialer.dial_server(to)).await,
                None => timeout(sandbox.settings.dial, dialer.dial(to)).await,
            };
            match dialled {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => tracing::debug!(mirror = %mirror.name, %to, %error, "could not connect"),
                Err(_) => tracing::debug!(mirror = %mirror.name, %to, "no answer"),
            }
        }
    }
    match walled {
        _ if attempts > 0 => Err(NotOpened::Failed),
        Some(class) => Err(NotOpened::refused(destination, Cause::Rule(Rule::Never(class)))),
        None if unknown => Err(NotOpened::Failed),
        None => Err(NotOpened::refused(destination, Cause::NameWithoutAddress)),
    }
}

/// The addresses of a mirror, unchecked; an error if the resolver gave no answer.
async fn addresses(sandbox: &Sandbox, mirror: &Mirror, family: Family) -> Result<Vec<IpAddr>, ()> {
    if let Some(address) = mirror.address {
        return Ok(if Family::of(address) == family { vec![address] } else { Vec::new() });
    }
    match sandbox.look_up(&mirror.name, family).await {
        Ok(found) => Ok(found.addresses),
        Err(LookupError::NoSuchName) => Ok(Vec::new()),
        Err(LookupError::Failed) => Err(()),
    }
}
