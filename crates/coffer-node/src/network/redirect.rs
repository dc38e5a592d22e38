//! What a sandbox's network namespace holds: `lo`, an address of each family, routes that lead nowhere
//! else, and rules that bring every connection and every question to the listeners.
//!
//! ```text
//! lo up · 192.0.2.1/32 and 2001:db8::1/128 nodad on it · default routes to it from these
//! table inet coffer, chain out: type nat hook output priority -100
//!   ip daddr 127.0.0.0/8, 192.0.2.1 · ip6 daddr ::1, 2001:db8::1   return
//!   udp dport 53, tcp dport 53                                     redirect to QUESTIONS
//!   meta l4proto tcp                                               redirect to CONNECTIONS
//! ```
//!
//! `nft -f` would take fifteen milliseconds for this; said to the kernel directly it takes less than one.

use std::net::{Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;
use rustix::net::netlink;
use serde::{Deserialize, Serialize};

use super::netlink::Batch;

/// Where a sandbox's connections arrive. Sandboxes outlive nodes, so these two never change. They lie
/// beyond the ports that the kernel chooses from and that programs like.
pub(super) const CONNECTIONS: u16 = 64_443;
/// Where its questions for names do.
pub(super) const QUESTIONS: u16 = 64_053;

/// A sandbox's own addresses, of the blocks that are for documentation: nobody else has them.
const OWN_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// Whom a sandbox asks for names. Nobody is there; all questions end at [`QUESTIONS`].
pub(crate) const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);

/// What the host's kernel knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Families {
    V4,
    Both,
}

/// Sets the current network namespace up. Without families it has `lo` and no way out.
pub(crate) fn set_up(families: Option<Families>) -> Result<(), Errno> {
    links(families).send(None)?;
    match families {
        Some(families) => rules(families).send(Some(netlink::NETFILTER)),
        None => Ok(()),
    }
}

/// What this host's kernel can redirect, and if nothing, why. Tries it in a namespace of its own.
pub(super) fn probe() -> Result<Families, Errno> {
    let attempt = |families| {
        // A thread of its own, which takes the namespace with it when it ends.
        let tried = std::thread::spawn(move || {
            // SAFETY: a new network namespace takes nothing from other threads; this one opens no files.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?;
            set_up(Some(families)).map(|()| families)
        });
        tried.join().unwrap_or(Err(Errno::CANCELED))
    };
    attempt(Families::Both).or_else(|_| attempt(Families::V4))
}

/// The kernel gives every namespace's `lo` this number.
const LOOPBACK: u32 = 1;
const NEW: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
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
        // Nobody else is on `lo`, so nobody need be asked whether the address is taken.
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
}

const TABLE: &str = "coffer";
const CHAIN: &str = "out";

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
    batch.message(kind(libc::NFT_MSG_NEWCHAIN), NEW, &fixed, |batch| {
        batch.text(nft::CHAIN_TABLE, TABLE);
        batch.text(nft::CHAIN_NAME, CHAIN);
        batch.nest(nft::CHAIN_HOOK, |batch| {
            batch.attribute(nft::HOOK_NUMBER, &libc::NF_INET_LOCAL_OUT.to_be_bytes());
            batch.attribute(nft::HOOK_PRIORITY, &libc::NF_IP_PRI_NAT_DST.to_be_bytes());
        });
        batch.text(nft::CHAIN_TYPE, "nat");
    });
    let mut rule = |expressions: &dyn Fn(&mut Rule<'_>)| {
        let flags = NEW | libc::NLM_F_APPEND as u16;
        batch.message(kind(libc::NFT_MSG_NEWRULE), flags & !(libc::NLM_F_EXCL as u16), &fixed, |batch| {
            batch.text(nft::RULE_TABLE, TABLE);
            batch.text(nft::RULE_CHAIN, CHAIN);
            batch.nest(nft::RULE_EXPRESSIONS, |batch| expressions(&mut Rule(batch)));
        });
    };
    // The first octet is the whole of 127.0.0.0/8.
    rule(&|rule| rule.to_v4(&[127]).leave_alone());
    rule(&|rule| rule.to_v4(&OWN_V4.octets()).leave_alone());
    if families == Families::Both {
        rule(&|rule| rule.to_v6(Ipv6Addr::LOCALHOST).leave_alone());
        rule(&|rule| rule.to_v6(OWN_V6).leave_alone());
    }
    for protocol in [libc::IPPROTO_UDP, libc::IPPROTO_TCP] {
        rule(&|rule| rule.over(protocol).to_port(53).redirect_to(QUESTIONS));
    }
    rule(&|rule| rule.over(libc::IPPROTO_TCP).redirect_to(CONNECTIONS));
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

    fn meta(&mut self, key: i32, value: &[u8]) -> &mut Self {
        self.expression("meta", |batch| {
            batch.attribute(nft::META_KEY, &key.to_be_bytes());
            batch.attribute(nft::META_TO, &REGISTER);
        });
        self.equals(value)
    }

    fn payload(&mut self, base: i32, offset: u32, value: &[u8]) -> &mut Self {
        let length = u32::from(byte(value.len()));
        self.expression("payload", |batch| {
            batch.attribute(nft::PAYLOAD_TO, &REGISTER);
            batch.attribute(nft::PAYLOAD_BASE, &base.to_be_bytes());
            batch.attribute(nft::PAYLOAD_OFFSET, &offset.to_be_bytes());
            batch.attribute(nft::PAYLOAD_LENGTH, &length.to_be_bytes());
        });
        self.equals(value)
    }

    fn equals(&mut self, value: &[u8]) -> &mut Self {
        self.expression("cmp", |batch| {
            batch.attribute(nft::COMPARE_FROM, &REGISTER);
            batch.attribute(nft::COMPARE_HOW, &libc::NFT_CMP_EQ.to_be_bytes());
            batch.nest(nft::COMPARE_WITH, |batch| batch.attribute(nft::DATA_VALUE, value));
        })
    }

    /// IPv4, with a destination that begins so.
    fn to_v4(&mut self, beginning: &[u8]) -> &mut Self {
        self.meta(libc::NFT_META_NFPROTO, &[byte(libc::NFPROTO_IPV4)]);
        self.payload(libc::NFT_PAYLOAD_NETWORK_HEADER, 16, beginning)
    }

    fn to_v6(&mut self, destination: Ipv6Addr) -> &mut Self {
        self.meta(libc::NFT_META_NFPROTO, &[byte(libc::NFPROTO_IPV6)]);
        self.payload(libc::NFT_PAYLOAD_NETWORK_HEADER, 24, &destination.octets())
    }

    fn over(&mut self, protocol: i32) -> &mut Self {
        self.meta(libc::NFT_META_L4PROTO, &[byte(protocol)])
    }

    fn to_port(&mut self, port: u16) -> &mut Self {
        self.payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, 2, &port.to_be_bytes())
    }

    fn leave_alone(&mut self) {
        self.expression("immediate", |batch| {
            batch.attribute(nft::IMMEDIATE_TO, &libc::NFT_REG_VERDICT.to_be_bytes());
            batch.nest(nft::IMMEDIATE_DATA, |batch| {
                batch.nest(nft::DATA_VERDICT, |batch| {
                    batch.attribute(nft::VERDICT_CODE, &libc::NFT_RETURN.to_be_bytes());
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
mod tests {
    use std::io;
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::os::fd::OwnedFd;
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::network::Listeners;

    /// Runs in a sandbox's namespace that the test made itself.
    fn inside(families: Families, test: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let running = scope.spawn(move || {
                // SAFETY: a new network namespace takes nothing from other threads.
                if let Err(errno) =
                    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
                {
                    println!("SKIPPED: no network namespace of its own: {errno}");
                    return;
                }
                match set_up(Some(families)) {
                    Ok(()) => test(),
                    Err(errno) => println!("SKIPPED: this kernel cannot redirect {families:?}: {errno}"),
                }
            });
            running.join().unwrap();
        });
    }

    fn listed(command: &[&str]) -> Option<String> {
        let output = Command::new(command[0]).args(&command[1..]).output().ok()?;
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        let words = String::from_utf8(output.stdout).unwrap();
        Some(words.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_kernel_reads_what_was_meant() {
        inside(Families::Both, || {
            let Some(rules) = listed(&["nft", "list", "ruleset"]) else {
                println!("SKIPPED: no nft to read the rules with");
                return;
            };
            assert_eq!(
                // Some versions know a name for it.
                rules.replace("priority dstnat", "priority -100"),
                "table inet coffer { chain out { type nat hook output priority -100; policy accept; \
                 ip daddr 127.0.0.0/8 return ip daddr 192.0.2.1 return ip6 daddr ::1 return \
                 ip6 daddr 2001:db8::1 return udp dport 53 redirect to :64053 \
                 tcp dport 53 redirect to :64053 meta l4proto tcp redirect to :64443 } }"
            );
            for (family, own) in [("-4", "192.0.2.1"), ("-6", "2001:db8::1")] {
                let route = listed(&["ip", family, "route", "show", "default"]).unwrap();
                assert!(
                    route.starts_with("default dev lo") && route.contains(&format!("src {own}")),
                    "{route}"
                );
            }
        });
    }

    #[test]
    fn without_ipv6_the_rest_is_there() {
        inside(Families::V4, || {
            assert_eq!(Listeners::open(Families::V4).unwrap().all().len(), 3);
            connect("1.1.1.1:443").unwrap_err();
            connect("[2606:4700::1111]:443").unwrap_err();
            let _listeners = Listeners::open(Families::V4).unwrap();
            connect("1.1.1.1:443").unwrap();
        });
    }

    fn connect(to: &str) -> io::Result<TcpStream> {
        TcpStream::connect_timeout(&to.parse().unwrap(), Duration::from_secs(5))
    }

    /// Accepts at one of the sockets and says where the connection was meant to go.
    fn accepted(listener: &OwnedFd) -> io::Result<SocketAddr> {
        let stream = TcpListener::from(listener.try_clone()?).accept()?.0;
        Ok(match stream.local_addr()? {
            SocketAddr::V4(_) => rustix::net::sockopt::ip_original_dst(&stream)?.into(),
            SocketAddr::V6(_) => rustix::net::sockopt::ipv6_original_dst(&stream)?.into(),
        })
    }

    #[test]
    fn everything_arrives_at_the_listeners_and_its_own_at_itself() {
        inside(Families::Both, || {
            let listeners = Listeners::open(Families::Both).unwrap();
            let sockets: Vec<OwnedFd> =
                listeners.all().iter().map(|socket| socket.try_clone_to_owned().unwrap()).collect();
            let [tcp_v4, tcp_v6, udp_v4, udp_v6, dns_v4, dns_v6] = &sockets[..] else {
                panic!("{sockets:?}")
            };
            for (listener, destination) in [
                (tcp_v4, "1.1.1.1:443"),
                (tcp_v4, "10.1.2.3:22"),
                (tcp_v4, "169.254.169.254:80"),
                (tcp_v6, "[2606:4700::1111]:80"),
                (dns_v4, "8.8.8.8:53"),
                (dns_v6, "[2001:4860:4860::8888]:53"),
            ] {
                let _stream = connect(destination).unwrap();
                assert_eq!(accepted(listener).unwrap(), destination.parse().unwrap());
            }
            for (socket, server) in
                [(udp_v4, "8.8.8.8:53"), (udp_v4, "192.0.2.53:53"), (udp_v6, "[2001:4860:4860::8888]:53")]
            {
                let server: SocketAddr = server.parse().unwrap();
                let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let asker = UdpSocket::bind(any).unwrap();
                asker.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                asker.connect(server).unwrap();
                asker.send(b"question").unwrap();
                let ours = UdpSocket::from(socket.try_clone().unwrap());
                let mut buffer = [0; 16];
                let (length, from) = ours.recv_from(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], b"question");
                ours.send_to(b"answer", from).unwrap();
                assert_eq!(asker.recv(&mut buffer).unwrap(), 6, "the answer comes from {server}");
            }
            // Its own addresses are its own.
            for own in ["127.0.0.1:0", "127.8.9.1:0", "192.0.2.1:0", "[::1]:0", "[2001:db8::1]:0"] {
                let service = TcpListener::bind(own).unwrap();
                let _stream = TcpStream::connect(service.local_addr().unwrap()).unwrap();
                service.accept().unwrap();
            }
            assert_eq!(accepted(tcp_v4).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            // Nobody inside can take the ports while they are held.
            for (port, family) in [(CONNECTIONS, "127.0.0.1"), (CONNECTIONS, "0.0.0.0"), (QUESTIONS, "[::1]")]
            {
                let taken = TcpListener::bind(format!("{family}:{port}")).unwrap_err();
                assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
            }
            UdpSocket::bind(("127.0.0.1", QUESTIONS)).unwrap_err();
        });
    }

    #[test]
    fn lingering_connections_do_not_hold_the_ports() {
        inside(Families::Both, || {
            let listeners = Listeners::open(Families::Both).unwrap();
            let stream = connect("1.1.1.1:443").unwrap();
            let listener = TcpListener::from(listeners.all()[0].try_clone_to_owned().unwrap());
            drop(listener.accept().unwrap());
            drop(listener);
            drop(listeners);
            Listeners::open(Families::Both).unwrap();
            drop(stream);
        });
    }

    #[test]
    fn without_families_there_is_no_way_out() {
        std::thread::spawn(|| {
            // SAFETY: a new network namespace takes nothing from other threads.
            if let Err(errno) =
                unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
            {
                println!("SKIPPED: no network namespace of its own: {errno}");
                return;
            }
            set_up(None).unwrap();
            assert_eq!(connect("1.1.1.1:443").unwrap_err().kind(), io::ErrorKind::NetworkUnreachable);
            let service = TcpListener::bind("127.0.0.1:0").unwrap();
            TcpStream::connect(service.local_addr().unwrap()).unwrap();
        })
        .join()
        .unwrap();
    }
}
