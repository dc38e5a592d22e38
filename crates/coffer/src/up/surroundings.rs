//! What egress must know about this machine; sent again whenever it changes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use coffer_core::network::Mirrors;
use coffer_egress::{AuthorityText, nameservers};
use nix::ifaddrs::getifaddrs;
use tokio::sync::watch;

use crate::egress::Surroundings;

/// How often to check. Egress itself notices newer addresses when it dials them.
const EVERY: Duration = Duration::from_secs(2);

/// The current surroundings, as JSON, and a task that keeps them up to date.
pub(super) fn follow(
    chosen: Vec<SocketAddr>,
    authority: AuthorityText,
    roots: String,
    mirrors: Mirrors,
) -> watch::Receiver<String> {
    let written = move || {
        let mut now = look(&chosen);
        (now.authority, now.roots) = (Some(authority.clone()), roots.clone());
        now.mirrors = mirrors.clone();
        serde_json::to_string(&now).expect("addresses and text")
    };
    let (sender, receiver) = watch::channel(written());
    #[expect(clippy::disallowed_methods, reason = "ends with its last receiver")]
    tokio::spawn(async move {
        while !sender.is_closed() {
            tokio::time::sleep(EVERY).await;
            let now = written();
            sender.send_if_modified(|known| {
                let changed = *known != now;
                *known = now;
                changed
            });
        }
    });
    receiver
}

/// Reads the surroundings; nameservers that an operator chose come before the machine's own.
fn look(chosen: &[SocketAddr]) -> Surroundings {
    let nameservers = if chosen.is_empty() {
        nameservers(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
    } else {
        chosen.to_vec()
    };
    Surroundings { nameservers, addresses: own_addresses(), ..Surroundings::default() }
}

fn own_addresses() -> Vec<IpAddr> {
    let interfaces = match getifaddrs() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::warn!("could not list this machine's addresses: {error}");
            return Vec::new();
        }
    };
    let mut addresses: Vec<IpAddr> = interfaces
        .filter_map(|interface| interface.address)
        .filter_map(|address| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
            (None, v6) => Some(IpAddr::V6(v6?.ip())),
        })
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_loopback_and_chosen_nameservers_win() {
        let chosen = ["9.9.9.9:53", "[::1]:5353"].map(|address| address.parse().unwrap());
        let now = look(&chosen);
        assert_eq!(now.nameservers, ["9.9.9.9:53".parse().unwrap(), "[::1]:5353".parse().unwrap()]);
        assert!(now.addresses.contains(&"127.0.0.1".parse().unwrap()), "{:?}", now.addresses);
    }
}
