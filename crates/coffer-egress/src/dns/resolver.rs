//! Looks up addresses of names.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use coffer_core::network::{HostName, parse_address};
use coffer_core::sync::RwLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::Family;
use super::message::{Reply, ask, read_reply};

const DNS_PORT: u16 = 53;
/// As many as the C library uses.
const MOST_SERVERS: usize = 3;
const ROUNDS: usize = 2;
const LARGEST_REPLY: usize = 4096;

/// The addresses of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub addresses: Vec<IpAddr>,
    pub ttl: Duration,
}

/// Why a name has no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("the name does not exist")]
    NoSuchName,
    #[error("no resolver answered")]
    Failed,
}

/// Finds the addresses of names. They are not trusted: the caller checks each.
#[async_trait]
pub trait Resolver: Send + Sync + fmt::Debug {
    async fn addresses(&self, name: &HostName, family: Family) -> Result<Found, LookupError>;
}

/// Queries the resolvers of this machine, by UDP and, if an answer is too long, by TCP.
///
/// Clones share their servers, also when they are replaced.
#[derive(Debug, Clone)]
pub struct Upstream {
    servers: Arc<RwLock<Vec<SocketAddr>>>,
    v4_alone: Arc<AtomicBool>,
    patience: Duration,
}

impl Upstream {
    /// Uses `servers` in this order; tries the next if one does not answer.
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self {
            servers: Arc::new(RwLock::new(servers)),
            v4_alone: Arc::default(),
            patience: Duration::from_secs(2),
        }
    }

    /// Replaces the servers.
    pub fn replace_servers(&self, servers: Vec<SocketAddr>) {
        *self.servers.write() = servers;
    }

    /// Sets whether to leave out IPv6 addresses: on a machine without IPv6, programs would try them first and
    /// fail.
    pub fn use_v4_alone(&self, alone: bool) {
        self.v4_alone.store(alone, Ordering::Relaxed);
    }

    /// Sets how long to wait for each answer.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    async fn ask_one(&self, server: SocketAddr, name: &HostName, family: Family) -> Option<Reply> {
        let by_udp = timeout(self.patience, by_udp(server, name, family)).await;
        match by_udp.ok()?.ok()? {
            Reply::Truncated => timeout(self.patience, by_tcp(server, name, family)).await.ok()?.ok()?,
            reply => Some(reply),
        }
    }
}

#[async_trait]
impl Resolver for Upstream {
    async fn addresses(&self, name: &HostName, family: Family) -> Result<Found, LookupError> {
        if family == Family::V6 && self.v4_alone.load(Ordering::Relaxed) {
            return Ok(Found { addresses: Vec::new(), ttl: Duration::ZERO });
        }
        let servers = self.servers.read().clone();
        for server in std::iter::repeat_n(&servers, ROUNDS).flatten() {
            match self.ask_one(*server, name, family).await {
                Some(Reply::Addresses { addresses, ttl_s }) => {
                    return Ok(Found { addresses, ttl: Duration::from_secs(ttl_s.into()) });
                }
                Some(Reply::NoSuchName) => return Err(LookupError::NoSuchName),
                Some(Reply::Truncated | Reply::Failed) | None => {}
            }
        }
        Err(LookupError::Failed)
    }
}

/// Uses a new socket for each question, so that a forger must guess its port as well as the id.
async fn by_udp(server: SocketAddr, name: &HostName, family: Family) -> std::io::Result<Reply> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Connect it, so that only packets of the server arrive.
    socket.connect(server).await?;
    let id = rand::random();
    socket.send(&ask(id, name, family)).await?;
    let mut buffer = [0; LARGEST_REPLY];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(reply) = read_reply(&buffer[..length], id, name, family) {
            return Ok(reply);
        }
    }
}

async fn by_tcp(server: SocketAddr, name: &HostName, family: Family) -> std::io::Result<Option<Reply>> {
    let mut stream = TcpStream::connect(server).await?;
    let id = rand::random();
    let question = ask(id, name, family);
    let length = u16::try_from(question.len()).expect("a question is short");
    stream.write_all(&[&length.to_be_bytes()[..], &question].concat()).await?;
    let mut reply = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut reply).await?;
    Ok(read_reply(&reply, id, name, family))
}

/// Parses the servers of a `resolv.conf`. Servers with a zone are skipped.
pub fn nameservers(resolv_conf: &str) -> Vec<SocketAddr> {
    let lines = resolv_conf.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some("nameserver")).then(|| parse_address(words.next()?)).flatten()
    });
    lines.take(MOST_SERVERS).map(|address| SocketAddr::new(address, DNS_PORT)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameservers_are_read() {
        let text = "# nameserver 9.9.9.9\nsearch example.com\nnameserver 127.0.0.53\n\tnameserver   ::1 # x\n\
                    nameserver fe80::1%eth0\nnameserver\nnameserverx 1.1.1.1\nnameserver 1.1\noptions edns0\n\
                    nameserver 1.1.1.1\nnameserver 8.8.8.8\n";
        let servers: Vec<String> = nameservers(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["127.0.0.53:53", "[::1]:53", "1.1.1.1:53"]);
        assert!(nameservers("").is_empty());
    }
}
