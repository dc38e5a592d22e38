//! Classifies addresses, in every notation.
//!
//! For IPv6 the rule is inverted: only `2000::/3` is allocated for public use, so everything else is refused
//! without a list.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The class of an address. All but [`Class::Public`] are unreachable under every policy, except for the
/// operator's [mirrors](super::Mirrors).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    Public,
    Loopback,
    Unspecified,
    Private,
    /// Shared by a carrier's customers (100.64.0.0/10); clouds use it for their own services.
    CarrierShared,
    LinkLocal,
    /// An address where a cloud serves the machine's credentials.
    Metadata,
    Multicast,
    Broadcast,
    Documentation,
    Benchmarking,
    UniqueLocal,
    SiteLocal,
    /// Tunnels traffic to another address inside it (6to4, Teredo, ISATAP, IPv4-compatible and the like).
    Transition,
    Reserved,
    /// An address of this machine.
    Host,
}

impl Class {
    const fn text(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Loopback => "loopback",
            Self::Unspecified => "unspecified",
            Self::Private => "private",
            Self::CarrierShared => "carrier-shared",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::UniqueLocal => "unique-local",
            Self::SiteLocal => "site-local",
            Self::Transition => "transition",
            Self::Reserved => "reserved",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// Parses an address in its full form only: no octal, hexadecimal or short IPv4, no zone.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// Returns the address that packets for `address` end at.
///
/// IPv4-mapped and NAT64 addresses stand for an IPv4 address, which is judged and dialled. All other forms of
/// IPv4 inside IPv6 stay as they are, and [`classify`] refuses them.
pub fn normalise(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return IpAddr::V4(v4);
    }
    match v6.segments() {
        // By the well-known prefix, translators should reach only public addresses, but a careless one might
        // not.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => address,
    }
}

/// Classifies an address by the IANA special-purpose registries and by clouds' conventions.
pub fn classify(address: IpAddr) -> Class {
    match normalise(address) {
        IpAddr::V4(v4) => classify_v4(v4),
        IpAddr::V6(v6) => classify_v6(v6),
    }
}

fn classify_v4(address: Ipv4Addr) -> Class {
    match address.octets() {
        // AWS, GCP, Azure and most others; ECS tasks; Oracle; Alibaba; Azure's host agent, which has a public number.
        [169, 254, 169, 254]
        | [169, 254, 170, 2]
        | [192, 0, 0, 192]
        | [100, 100, 100, 200]
        | [168, 63, 129, 16] => Class::Metadata,
        [0, 0, 0, 0] => Class::Unspecified,
        // Linux treats all of 0.0.0.0/8 as this host.
        [0, ..] => Class::Reserved,
        [10, ..] | [192, 168, ..] | [172, 16..=31, ..] => Class::Private,
        [100, 64..=127, ..] => Class::CarrierShared,
        [127, ..] => Class::Loopback,
        [169, 254, ..] => Class::LinkLocal,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Class::Documentation,
        [192, 0, 0, _] => Class::Reserved,
        // The anycast relays of 6to4, given up in 2015.
        [192, 88, 99, _] => Class::Transition,
        [198, 18..=19, ..] => Class::Benchmarking,
        [224..=239, ..] => Class::Multicast,
        [255, 255, 255, 255] => Class::Broadcast,
        [240..=255, ..] => Class::Reserved,
        _ => Class::Public,
    }
}

fn classify_v6(address: Ipv6Addr) -> Class {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Class::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => Class::Loopback,
        // IPv4-compatible, and IPv4-translated (::ffff:0:a.b.c.d).
        [0, 0, 0, 0, 0, 0, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => Class::Transition,
        // NAT64 under a site's own prefix; its targets are unknown.
        [0x64, 0xff9b, 1, ..] => Class::Transition,
        // AWS; GCP; Oracle.
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]
        | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]
        | [0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe] => Class::Metadata,
        [0xfc00..=0xfdff, ..] => Class::UniqueLocal,
        [0xfe80..=0xfebf, ..] => Class::LinkLocal,
        [0xfec0..=0xfeff, ..] => Class::SiteLocal,
        [0xff00..=0xffff, ..] => Class::Multicast,
        [0x2002, ..] | [0x2001, 0, ..] => Class::Transition,
        [0x2001, 2, 0, ..] => Class::Benchmarking,
        // Protocol assignments, ORCHID and drone tags: a few are routed, none is a service for sandboxes.
        [0x2001, 0..=0x1ff, ..] => Class::Reserved,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Class::Documentation,
        // ISATAP: an IPv4 address in the interface part, with or without the universal bit.
        [0x2000..=0x3fff, _, _, _, 0 | 0x200, 0x5efe, _, _] => Class::Transition,
        [0x2000..=0x3fff, ..] => Class::Public,
        _ => Class::Reserved,
    }
}

/// Returns `address` in the form to dial, for a host that may be private, or the class that forbids it.
///
/// For hosts that an operator allows: in addition to public addresses, private ones and this machine's pass.
/// Addresses of cloud credentials, and those that are not hosts, do not.
pub fn pass_on_site(address: IpAddr) -> Result<IpAddr, Class> {
    let address = normalise(address);
    match classify(address) {
        Class::Public
        | Class::Private
        | Class::UniqueLocal
        | Class::SiteLocal
        | Class::CarrierShared
        | Class::Loopback => Ok(address),
        class => Err(class),
    }
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
