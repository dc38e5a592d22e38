//! The rules in a real kernel, in network namespaces that the tests create.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

use super::*;
use crate::network::Listeners;

/// Runs in a sandbox's namespace that the test created itself.
fn inside(families: Families, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let running = scope.spawn(move || {
            if let Err(errno) = enter_new_namespace() {
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
        // Some versions print names for priorities.
        let rules =
            rules.replace("priority raw", "priority -300").replace("priority dstnat", "priority -100");
        assert_eq!(
            rules.replace("priority filter", "priority 0"),
            "table inet coffer { \
             chain aside { type filter hook output priority -300; policy accept; \
             th sport 64443 return th sport 64053 return \
             ip daddr 127.0.0.0/8 notrack ip daddr 192.0.2.1 notrack \
             ip6 daddr ::1 notrack ip6 daddr 2001:db8::1 notrack \
             udp dport 53 return meta l4proto != tcp notrack } \
             chain out { type nat hook output priority -100; policy accept; \
             udp dport 53 redirect to :64053 tcp dport 53 redirect to :64053 \
             meta l4proto tcp redirect to :64443 } \
             chain bound { type filter hook output priority 0; policy accept; \
             meta l4proto tcp ct state new limit rate over 200/second burst 1000 packets drop \
             ct state new ct count over 4096 drop } }"
        );
        for (family, own) in [("-4", "192.0.2.1"), ("-6", "2001:db8::1")] {
            let route = listed(&["ip", family, "route", "show", "default"]).unwrap();
            assert!(route.starts_with("default dev lo") && route.contains(&format!("src {own}")), "{route}");
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

/// Accepts at one of the sockets and returns the original destination of the connection.
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
        let [tcp_v4, tcp_v6, udp_v4, udp_v6, dns_v4, dns_v6] = &sockets[..] else { panic!("{sockets:?}") };
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
        // Connections to its own addresses stay inside.
        for own in ["127.0.0.1:0", "127.8.9.1:0", "192.0.2.1:0", "[::1]:0", "[2001:db8::1]:0"] {
            let service = TcpListener::bind(own).unwrap();
            let _stream = TcpStream::connect(service.local_addr().unwrap()).unwrap();
            service.accept().unwrap();
        }
        assert_eq!(accepted(tcp_v4).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // No process inside can take the ports while they are held.
        for (port, family) in [(CONNECTIONS, "127.0.0.1"), (CONNECTIONS, "0.0.0.0"), (QUESTIONS, "[::1]")] {
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
        if let Err(errno) = enter_new_namespace() {
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

/// Connections that the kernel tracks here.
fn tracked() -> usize {
    std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap().lines().count()
}

#[test]
fn what_is_tracked_is_bounded() {
    inside(Families::Both, || {
        if std::fs::read("/proc/thread-self/net/nf_conntrack").is_err() {
            println!("SKIPPED: this kernel does not list what it tracks");
            return;
        }
        let _listeners = Listeners::open(Families::Both).unwrap();
        // Inside, and to unroutable addresses: not tracked at all.
        let service = TcpListener::bind("192.0.2.1:0").unwrap();
        let _stream = TcpStream::connect(service.local_addr().unwrap()).unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        for port in 1000..1100 {
            socket.send_to(b"x", ("9.9.9.9", port)).unwrap();
            socket.send_to(b"x", ("127.0.0.1", port)).unwrap();
        }
        assert_eq!(tracked(), 0);
        // Each address is another question to track.
        let mut refused = 0;
        for number in 0..TRACKED + 100 {
            let server = Ipv4Addr::from(0x0900_0000 + number);
            refused += usize::from(socket.send_to(b"x", (server, 53)).is_err());
        }
        assert!(refused >= 50, "{refused} of 100 too many were refused");
        let most = TRACKED as usize;
        assert!(tracked() > most - 100 && tracked() <= most + 50, "{} tracked", tracked());
    });
}
