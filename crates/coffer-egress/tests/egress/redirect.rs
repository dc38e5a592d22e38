//! The kernel's original destination of a redirected connection, in its own network namespace.

use std::net::SocketAddr;
use std::process::Command;

use coffer_egress::{OriginalDestination, Redirected};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::world::PATIENCE;

const PORT: u16 = 4711;
const DNS_PORT: u16 = 4712;

/// The namespace of a sandbox: only `lo`, and every connection that is not for `lo` is redirected.
const SETUP: &str = r"
set -e
ip link set lo up
ip address add 192.0.2.1/32 dev lo
ip route add default dev lo src 192.0.2.1
ip -6 address add 2001:db8::1/128 dev lo nodad
ip -6 route add default dev lo src 2001:db8::1
nft -f - <<END
table inet coffer {
  chain out {
    type nat hook output priority -100;
    ip daddr 127.0.0.0/8 return
    ip6 daddr ::1 return
    udp dport 53 redirect to :4712
    tcp dport 53 redirect to :4712
    meta l4proto tcp redirect to :4711
  }
}
END
";

#[test]
fn the_kernel_says_where_a_redirected_connection_was_meant_to_go() {
    let namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", script]);
        command
    };
    match namespace(SETUP).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            println!("SKIPPED: no redirecting namespace: {}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        Err(error) => {
            println!("SKIPPED: no unshare: {error}");
            return;
        }
    }
    let test = std::env::current_exe().unwrap();
    let script = format!("{SETUP} exec {} --ignored --exact redirect::inside --nocapture", test.display());
    let output = namespace(&script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
#[ignore = "runs inside the namespace that the other test makes"]
async fn inside() {
    let v4 = TcpListener::bind(("127.0.0.1", PORT)).await.unwrap();
    let v6 = TcpListener::bind(("::1", PORT)).await.unwrap();
    for (listener, destination) in [(&v4, "1.1.1.1:443"), (&v4, "10.1.2.3:22"), (&v6, "[2606:4700::1111]:80")]
    {
        let destination: SocketAddr = destination.parse().unwrap();
        let _stream = TcpStream::connect(destination).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert_eq!(Redirected.of(&accepted).unwrap(), destination);
    }
    // Questions to any server reach ours, and the answer seems to come from the intended server.
    for (ours, server) in [("127.0.0.1", "8.8.8.8:53"), ("::1", "[2001:4860:4860::8888]:53")] {
        let server: SocketAddr = server.parse().unwrap();
        let (dns_udp, dns_tcp) = (
            UdpSocket::bind((ours, DNS_PORT)).await.unwrap(),
            TcpListener::bind((ours, DNS_PORT)).await.unwrap(),
        );
        let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let asker = UdpSocket::bind(any).await.unwrap();
        asker.connect(server).await.unwrap();
        asker.send(b"question").await.unwrap();
        let mut buffer = [0; 64];
        let (length, from) = timeout(PATIENCE, dns_udp.recv_from(&mut buffer)).await.unwrap().unwrap();
        assert_eq!(&buffer[..length], b"question");
        dns_udp.send_to(b"answer", from).await.unwrap();
        let length = timeout(PATIENCE, asker.recv(&mut buffer)).await.unwrap().unwrap();
        assert_eq!(&buffer[..length], b"answer");
        let _stream = TcpStream::connect(server).await.unwrap();
        let (accepted, _) = dns_tcp.accept().await.unwrap();
        assert_eq!(Redirected.of(&accepted).unwrap(), server);
    }
    // Directly to the listener: the kernel knows no destination, or names the listener, which is behind the
    // walls.
    for (listener, direct) in [(&v4, ("127.0.0.1", PORT)), (&v6, ("::1", PORT))] {
        let _stream = TcpStream::connect(direct).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert!(Redirected.of(&accepted).map_or(true, |to| to.ip().is_loopback()));
    }
}
