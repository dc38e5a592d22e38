//! Sets up a sandbox's network namespace: `lo`, an address of each family, routes that lead nowhere
//! else, and rules that bring every connection and every question to the listeners.
//!
//! ```text
//! lo up · 192.0.2.1/32 and 2001:db8::1/128 nodad on it · default routes to it from these
//! table inet coffer
//!   chain aside, filter hook output priority -300: what needs no tracking
//!     th sport CONNECTIONS, QUESTIONS                                return
//!     ip daddr 127.0.0.0/8, 192.0.2.1 · ip6 daddr ::1, 2001:db8::1   notrack
//!     udp dport 53                                                   return
//!     meta l4proto != tcp                                            notrack
//!   chain out, nat hook output priority -100
//!     udp dport 53, tcp dport 53                                     redirect to QUESTIONS
//!     meta l4proto tcp                                               redirect to CONNECTIONS
//!   chain bound, filter hook output priority 0
//!     meta l4proto tcp ct state new limit rate over NEW_PER_SECOND   drop
//!     ct state new ct count over TRACKED                             drop
//! ```
//!
//! Redirected connections are tracked, and the kernel charges that memory to no cgroup: a hostile sandbox
//! could otherwise hold 262,144 records, some 80 MiB. So traffic that stays inside is not tracked, which is
//! also faster, and the rest is bounded. A connection whose first packet is dropped retries a second later.
//!
//! `nft -f` would take fifteen milliseconds for this; direct netlink messages take about one.

use std::net::{Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;
use rustix::net::netlink;
use serde::{Deserialize, Serialize};

use super::netlink::{APPEND, Batch, CREATE, EXCLUSIVE};

/// Where a sandbox's connections arrive. Sandboxes outlive nodes, so these two never change. They are outside
/// the kernel's ephemeral range and the ports that programs commonly use.
pub(super) const CONNECTIONS: u16 = 64_443;
/// Where its DNS questions arrive.
pub(super) const QUESTIONS: u16 = 64_053;

/// Connections and questions of a sandbox that the kernel tracks. Egress has at most 256 open; the
/// rest are questions, which are kept for half a minute.
const TRACKED: u32 = 4096;
/// Closed connections are kept for two minutes and do not count there, so their number is bounded by this.
const NEW_PER_SECOND: u64 = 200;
const NEW_AT_ONCE: u32 = 1000;

/// A sandbox's own addresses, from the blocks reserved for documentation: no real host has them.
const OWN_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// The name server of a sandbox. No host has this address; all queries end at [`QUESTIONS`].
pub(crate) const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);

/// Features of the host's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Families {
    V4,
    Both,
}

/// Sets up the current network namespace. Without families it has `lo` and no way out.
pub(crate) fn set_up(families: Option<Families>) -> Result<(), Errno> {
    links(families).send(None)?;
    match families {
        Some(families) => rules(families).send(Some(netlink::NETFILTER)),
        None => Ok(()),
    }
}

/// The families that this host's kernel can redirect, or why none. Probes in a separate namespace.
pub(super) fn probe() -> Result<Families, Errno> {
    let attempt = |families| {
        let tried = std::thread::spawn(move || {
            enter_new_namespace()?;
            set_up(Some(families)).map(|()| families)
        });
        tried.join().unwrap_or(Err(Errno::CANCELED))
    };
    attempt(Families::Both).or_else(|_| attempt(Families::V4))
}

/// Only this thread enters it; the namespace ends with the thread.
fn enter_new_namespace() -> Result<(), Errno> {
    // SAFETY: a new network namespace affects no other threads.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
}

/// The kernel gives every namespace's `lo` this number.
const LOOPBACK: u32 = 1;
const NEW: u16 = CREATE | EXCLUSIVE;
const UP: u32 = libc::IFF_UP.cast_unsigned();

fn links(families: Option<Families>) -> Batch {
    let mut batch = Batch::default();
    // struct ifinfomsg: family, pad, type, index, flags, which flags.
    let up = [&[0; 4][..], &LOOPBACK.to_ne_bytes(), &UP.to_ne_bytes(), &UP.to_ne_bytes()].concat();
    batch.message(libc::RTM_NEWLINK, 0, &up, |_| {});
    if families.is_some() {
        address(&mut batch, libc::AF_INET, 0, &OWN_V4.octets());
        default_route(&mut batch, libc::AF_INET, libc::RT_SCOPE_LINK, &OWN_V4.octets());
    }
    if families == Some(Families::Both) {
        // Skip duplicate address detection: `lo` has no other hosts.
        address(&mut batch, libc::AF_INET6, NO_DUPLICATES, &OWN_V6.octets());
        default_route(&mut batch, libc::AF_INET6, 0, &OWN_V6.octets());
    }
    batch
}

const NO_DUPLICATES: u8 = 0x02;

fn address(batch: &mut Batch, family: i32, flags: u8, octets: &[u8]) {
    // struct ifaddrmsg: family, prefix length, flags, scope, interface.
    let fixed = [&[byte(family), byte(octets.len() * 8), flags, 0][..], &LOOPBACK.to_ne_bytes()].concat();
    batch.message(libc::RTM_NEWADDR, NEW, &fixed, |batch| {
        batch.attribute(libc::IFA_LOCAL, octets);
        batch.attribute(libc::IFA_ADDRESS, octets);
    });
}

fn default_route(batch: &mut Batch, family: i32, scope: u8, source: &[u8]) {
    // struct rtmsg: family, lengths of destination and source, tos, table, protocol, scope, type, flags.
    let (table, protocol, kind) = (libc::RT_TABLE_MAIN, libc::RTPROT_BOOT, libc::RTN_UNICAST);
    let fixed = [byte(family), 0, 0, 0, table, protocol, scope, kind, 0, 0, 0, 0];
    batch.message(libc::RTM_NEWROUTE, NEW, &fixed, |batch| {
        batch.attribute(libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
        batch.attribute(libc::RTA_PREFSRC, source);
    });
}

/// Attributes of nf_tables, as `linux/netfilter/nf_tables.h` numbers them.
mod nft {
    pub(super) const TABLE_NAME: u16 = 1;
    pub(super) const CHAIN_TABLE: u16 = 1;
    pub(super) const CHAIN_NAME: u16 = 3;
    pub(super) const CHAIN_HOOK: u16 = 4;
    pub(super) const CHAIN_TYPE: u16 = 7;
    pub(super) const HOOK_NUMBER: u16 = 1;
    pub(super) const HOOK_PRIORITY: u16 = 2;
    pub(super) const RULE_TABLE: u16 = 1;
    pub(super) const RULE_CHAIN: u16 = 2;
    pub(super) const RULE_EXPRESSIONS: u16 = 4;
    pub(super) const LIST_ELEMENT: u16 = 1;
    pub(super) const EXPRESSION_NAME: u16 = 1;
    pub(super) const EXPRESSION_DATA: u16 = 2;
    pub(super) const META_TO: u16 = 1;
    pub(super) const META_KEY: u16 = 2;
    pub(super) const COMPARE_FROM: u16 = 1;
    pub(super) const COMPARE_HOW: u16 = 2;
    pub(super) const COMPARE_WITH: u16 = 3;
    pub(super) const PAYLOAD_TO: u16 = 1;
    pub(super) const PAYLOAD_BASE: u16 = 2;
    pub(super) const PAYLOAD_OFFSET: u16 = 3;
    pub(super) const PAYLOAD_LENGTH: u16 = 4;
    pub(super) const IMMEDIATE_TO: u16 = 1;
    pub(super) const IMMEDIATE_DATA: u16 = 2;
    pub(super) const DATA_VALUE: u16 = 1;
    pub(super) const DATA_VERDICT: u16 = 2;
    pub(super) const VERDICT_CODE: u16 = 1;
    pub(super) const REDIRECT_PORT: u16 = 1;
    pub(super) const CT_TO: u16 = 1;
    pub(super) const CT_KEY: u16 = 2;
    pub(super) const BITWISE_FROM: u16 = 1;
    pub(super) const BITWISE_TO: u16 = 2;
    pub(super) const BITWISE_LENGTH: u16 = 3;
    pub(super) const BITWISE_MASK: u16 = 4;
    pub(super) const BITWISE_XOR: u16 = 5;
    pub(super) const LIMIT_RATE: u16 = 1;
    pub(super) const LIMIT_UNIT: u16 = 2;
    pub(super) const LIMIT_BURST: u16 = 3;
    pub(super) const LIMIT_FLAGS: u16 = 5;
    pub(super) const COUNT_LIMIT: u16 = 1;
    pub(super) const COUNT_FLAGS: u16 = 2;
    /// Of both limits: matches beyond them.
    pub(super) const BEYOND: u32 = 1;
}

const TABLE: &str = "coffer";
const ASIDE: &str = "aside";
const OUT: &str = "out";
const BOUND: &str = "bound";

fn rules(families: Families) -> Batch {
    let family = byte(if families == Families::Both { libc::NFPROTO_INET } else { libc::NFPROTO_IPV4 });
    // struct nfgenmsg: family, version, resource.
    let fixed = [family, 0, 0, 0];
    let subsystem = u16::from(byte(libc::NFNL_SUBSYS_NFTABLES));
    let kind = |kind: i32| subsystem << 8 | u16::from(byte(kind));
    let edge = [&[0; 2][..], &subsystem.to_be_bytes()].concat();

    let mut batch = Batch::default();
    batch.mark(u16::from(byte(libc::NFNL_MSG_BATCH_BEGIN)), &edge);
    batch.message(kind(libc::NFT_MSG_NEWTABLE), NEW, &fixed, |batch| batch.text(nft::TABLE_NAME, TABLE));
    for (chain, purpose, priority) in [
        (ASIDE, "filter", libc::NF_IP_PRI_RAW),
        (OUT, "nat", libc::NF_IP_PRI_NAT_DST),
        (BOUND, "filter", libc::NF_IP_PRI_FILTER),
    ] {
        batch.message(kind(libc::NFT_MSG_NEWCHAIN), NEW, &fixed, |batch| {
            batch.text(nft::CHAIN_TABLE, TABLE);
            batch.text(nft::CHAIN_NAME, chain);
            batch.nest(nft::CHAIN_HOOK, |batch| {
                batch.attribute(nft::HOOK_NUMBER, &libc::NF_INET_LOCAL_OUT.to_be_bytes());
                batch.attribute(nft::HOOK_PRIORITY, &priority.to_be_bytes());
            });
            batch.text(nft::CHAIN_TYPE, purpose);
        });
    }
    let mut rule = |chain: &str, expressions: &dyn Fn(&mut Rule<'_>)| {
        batch.message(kind(libc::NFT_MSG_NEWRULE), CREATE | APPEND, &fixed, |batch| {
            batch.text(nft::RULE_TABLE, TABLE);
            batch.text(nft::RULE_CHAIN, chain);
            batch.nest(nft::RULE_EXPRESSIONS, |batch| expressions(&mut Rule(batch)));
        });
    };
    // Answers of egress must find their way back to the sender.
    for port in [CONNECTIONS, QUESTIONS] {
        rule(ASIDE, &|rule| rule.port_of_origin(port).end(libc::NFT_RETURN));
    }
    // The first octet is the whole of 127.0.0.0/8.
    rule(ASIDE, &|rule| rule.at_v4(&[127]).untracked());
    rule(ASIDE, &|rule| rule.at_v4(&OWN_V4.octets()).untracked());
    if families == Families::Both {
        rule(ASIDE, &|rule| rule.at_v6(Ipv6Addr::LOCALHOST).untracked());
        rule(ASIDE, &|rule| rule.at_v6(OWN_V6).untracked());
    }
    rule(ASIDE, &|rule| rule.over(libc::IPPROTO_UDP).at_port(53).end(libc::NFT_RETURN));
    rule(ASIDE, &|rule| rule.not_over(libc::IPPROTO_TCP).untracked());
    for protocol in [libc::IPPROTO_UDP, libc::IPPROTO_TCP] {
        rule(OUT, &|rule| rule.over(protocol).at_port(53).redirect_to(QUESTIONS));
    }
    rule(OUT, &|rule| rule.over(libc::IPPROTO_TCP).redirect_to(CONNECTIONS));
    rule(BOUND, &|rule| rule.over(libc::IPPROTO_TCP).fresh().too_fast().end(libc::NF_DROP));
    rule(BOUND, &|rule| rule.fresh().too_many().end(libc::NF_DROP));
    batch.mark(u16::from(byte(libc::NFNL_MSG_BATCH_END)), &edge);
    batch
}

/// A rule under construction: expressions that are tried one after another.
struct Rule<'a>(&'a mut Batch);

/// The one register that all of it needs.
const REGISTER: [u8; 4] = libc::NFT_REG_1.to_be_bytes();

impl Rule<'_> {
    fn expression(&mut self, name: &str, data: impl FnOnce(&mut Batch)) -> &mut Self {
        self.0.nest(nft::LIST_ELEMENT, |batch| {
            batch.text(nft::EXPRESSION_NAME, name);
            batch.nest(nft::EXPRESSION_DATA, data);
        });
        self
    }

    fn meta(&mut self, key: i32) -> &mut Self {
        self.expression("meta", |batch| {
            batch.attribute(nft::META_KEY, &key.to_be_bytes());
            batch.attribute(nft::META_TO, &REGISTER);
        })
    }

    fn payload(&mut self, base: i32, offset: u32, value: &[u8]) -> &mut Self {
        let length = u32::from(byte(value.len()));
        self.expression("payload", |batch| {
            batch.attribute(nft::PAYLOAD_TO, &REGISTER);
            batch.attribute(nft::PAYLOAD_BASE, &base.to_be_bytes());
            batch.attribute(nft::PAYLOAD_OFFSET, &offset.to_be_bytes());
            batch.attribute(nft::PAYLOAD_LENGTH, &length.to_be_bytes());
        });
        self.compare(libc::NFT_CMP_EQ, value)
    }

    fn compare(&mut self, how: i32, value: &[u8]) -> &mut Self {
        self.expression("cmp", |batch| {
            batch.attribute(nft::COMPARE_FROM, &REGISTER);
            batch.attribute(nft::COMPARE_HOW, &how.to_be_bytes());
            batch.nest(nft::COMPARE_WITH, |batch| batch.attribute(nft::DATA_VALUE, value));
        })
    }

    /// IPv4, with a destination that begins so.
    fn at_v4(&mut self, beginning: &[u8]) -> &mut Self {
        self.meta(libc::NFT_META_NFPROTO).compare(libc::NFT_CMP_EQ, &[byte(libc::NFPROTO_IPV4)]);
        self.payload(libc::NFT_PAYLOAD_NETWORK_HEADER, 16, beginning)
    }

    fn at_v6(&mut self, destination: Ipv6Addr) -> &mut Self {
        self.meta(libc::NFT_META_NFPROTO).compare(libc::NFT_CMP_EQ, &[byte(libc::NFPROTO_IPV6)]);
        self.payload(libc::NFT_PAYLOAD_NETWORK_HEADER, 24, &destination.octets())
    }

    fn over(&mut self, protocol: i32) -> &mut Self {
        self.meta(libc::NFT_META_L4PROTO).compare(libc::NFT_CMP_EQ, &[byte(protocol)])
    }

    fn not_over(&mut self, protocol: i32) -> &mut Self {
        self.meta(libc::NFT_META_L4PROTO).compare(libc::NFT_CMP_NEQ, &[byte(protocol)])
    }

    fn port_of_origin(&mut self, port: u16) -> &mut Self {
        self.payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, 0, &port.to_be_bytes())
    }

    fn at_port(&mut self, port: u16) -> &mut Self {
        self.payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, 2, &port.to_be_bytes())
    }

    /// Of no connection that the kernel tracks already.
    fn fresh(&mut self) -> &mut Self {
        // `NF_CT_STATE_BIT(IP_CT_NEW)`
        const NEW: u32 = 8;
        let value =
            |number: u32| move |batch: &mut Batch| batch.attribute(nft::DATA_VALUE, &number.to_ne_bytes());
        self.expression("ct", |batch| {
            batch.attribute(nft::CT_TO, &REGISTER);
            batch.attribute(nft::CT_KEY, &libc::NFT_CT_STATE.to_be_bytes());
        });
        self.expression("bitwise", |batch| {
            batch.attribute(nft::BITWISE_FROM, &REGISTER);
            batch.attribute(nft::BITWISE_TO, &REGISTER);
            batch.attribute(nft::BITWISE_LENGTH, &4u32.to_be_bytes());
            batch.nest(nft::BITWISE_MASK, value(NEW));
            batch.nest(nft::BITWISE_XOR, value(0));
        });
        self.compare(libc::NFT_CMP_NEQ, &0u32.to_ne_bytes())
    }

    fn too_fast(&mut self) -> &mut Self {
        self.expression("limit", |batch| {
            batch.attribute(nft::LIMIT_RATE, &NEW_PER_SECOND.to_be_bytes());
            batch.attribute(nft::LIMIT_UNIT, &1u64.to_be_bytes());
            batch.attribute(nft::LIMIT_BURST, &NEW_AT_ONCE.to_be_bytes());
            batch.attribute(nft::LIMIT_FLAGS, &nft::BEYOND.to_be_bytes());
        })
    }

    fn too_many(&mut self) -> &mut Self {
        self.expression("connlimit", |batch| {
            batch.attribute(nft::COUNT_LIMIT, &TRACKED.to_be_bytes());
            batch.attribute(nft::COUNT_FLAGS, &nft::BEYOND.to_be_bytes());
        })
    }

    fn untracked(&mut self) {
        self.expression("notrack", |_| {});
    }

    fn end(&mut self, verdict: i32) {
        self.expression("immediate", |batch| {
            batch.attribute(nft::IMMEDIATE_TO, &libc::NFT_REG_VERDICT.to_be_bytes());
            batch.nest(nft::IMMEDIATE_DATA, |batch| {
                batch.nest(nft::DATA_VERDICT, |batch| {
                    batch.attribute(nft::VERDICT_CODE, &verdict.to_be_bytes());
                });
            });
        });
    }

    fn redirect_to(&mut self, port: u16) {
        self.expression("immediate", |batch| {
            batch.attribute(nft::IMMEDIATE_TO, &REGISTER);
            batch.nest(nft::IMMEDIATE_DATA, |batch| batch.attribute(nft::DATA_VALUE, &port.to_be_bytes()));
        });
        self.expression("redir", |batch| batch.attribute(nft::REDIRECT_PORT, &REGISTER));
    }
}

/// Constants of the kernel have many types and small values.
fn byte(value: impl TryInto<u8>) -> u8 {
    value.try_into().unwrap_or_else(|_| unreachable!("all of these are small"))
}

#[cfg(test)]
#[path = "redirect_tests.rs"]
mod tests;
