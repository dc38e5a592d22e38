//! A fake internet for a test, and a sandbox in it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use coffer_core::network::{Base, HostName, Policy, Refusal, Walls};
use coffer_core::{ProjectId, SandboxId};
use coffer_egress::{
    Dialer, Egress, Family, Found, Listeners, LookupError, OriginalDestination, Resolver, Seams, Settings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Long enough for a busy machine, short enough for a test that hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub(crate) struct Internet {
    hosts: Mutex<HashMap<SocketAddr, SocketAddr>>,
    names: Mutex<HashMap<HostName, Vec<IpAddr>>>,
    /// The intended destinations of the sandbox's connections, by their near end.
    meant: Mutex<HashMap<SocketAddr, SocketAddr>>,
    pub(crate) dialled: Mutex<Vec<SocketAddr>>,
    pub(crate) looked_up: Mutex<Vec<String>>,
    /// While it is set, dialling and lookups wait for it.
    pub(crate) gate: Mutex<Option<Arc<Semaphore>>>,
    pub(crate) ttl: Mutex<Duration>,
}

impl Internet {
    async fn pass_gate(&self) {
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
    }

    /// Creates a server at a public address; it passes its connections to the test.
    pub(crate) async fn server(&self, public: &str) -> TcpListener {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.hosts.lock().unwrap().insert(public.parse().unwrap(), listener.local_addr().unwrap());
        listener
    }

    pub(crate) fn name(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        self.names.lock().unwrap().insert(name.parse().unwrap(), addresses);
    }

    pub(crate) fn dialled(&self) -> Vec<String> {
        self.dialled.lock().unwrap().iter().map(ToString::to_string).collect()
    }
}

#[async_trait]
impl Dialer for Internet {
    async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.dialled.lock().unwrap().push(address);
        self.pass_gate().await;
        let host = self.hosts.lock().unwrap().get(&address).copied();
        TcpStream::connect(host.ok_or(io::ErrorKind::ConnectionRefused)?).await
    }
}

#[async_trait]
impl Resolver for Internet {
    async fn addresses(&self, name: &HostName, family: Family) -> Result<Found, LookupError> {
        self.looked_up.lock().unwrap().push(name.to_string());
        self.pass_gate().await;
        let names = self.names.lock().unwrap();
        let addresses = names.get(name).ok_or(LookupError::NoSuchName)?.iter().copied();
        let addresses = addresses.filter(|address| address.is_ipv4() == (family == Family::V4)).collect();
        Ok(Found { addresses, ttl: *self.ttl.lock().unwrap() })
    }
}

#[derive(Debug)]
struct Meant(Arc<Internet>);

impl OriginalDestination for Meant {
    fn of(&self, stream: &TcpStream) -> io::Result<SocketAddr> {
        let meant = self.0.meant.lock().unwrap();
        meant.get(&stream.peer_addr()?).copied().ok_or(io::ErrorKind::NotFound.into())
    }
}

pub(crate) struct World {
    pub(crate) internet: Arc<Internet>,
    pub(crate) egress: Arc<Egress>,
    pub(crate) id: SandboxId,
    pub(crate) tcp: SocketAddr,
    pub(crate) tcp6: SocketAddr,
    pub(crate) dns_udp: SocketAddr,
    pub(crate) dns_tcp: SocketAddr,
}

/// An address of the machine itself, in these tests.
pub(crate) const OWN: &str = "198.41.0.4";

pub(crate) fn policy(base: Base, allow: &[&str], deny: &[&str]) -> Policy {
    let entries = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
    Policy::new(base, entries(allow), entries(deny)).unwrap()
}

/// An egress in the world `internet`.
pub(crate) fn egress_in(internet: &Arc<Internet>, settings: Settings) -> Arc<Egress> {
    let seams = Seams {
        resolver: Arc::clone(internet) as _,
        dialer: Arc::clone(internet) as _,
        original: Arc::new(Meant(Arc::clone(internet))),
    };
    Arc::new(Egress::new(settings, seams, Walls::new([OWN.parse().unwrap()])))
}

impl World {
    pub(crate) async fn new(policy: Policy) -> Self {
        Self::with(policy, Settings { first_byte: Duration::from_millis(200), ..Settings::default() }).await
    }

    pub(crate) async fn with(policy: Policy, settings: Settings) -> Self {
        let internet = Arc::new(Internet::default());
        let egress = egress_in(&internet, settings);
        Self::of(policy, internet, egress).await
    }

    /// Another sandbox of the same egress, of a project.
    pub(crate) async fn neighbour(&self, project: ProjectId) -> Self {
        Self::of(Policy::of(Base::Web).of_project(project), self.internet.clone(), self.egress.clone()).await
    }

    async fn of(policy: Policy, internet: Arc<Internet>, egress: Arc<Egress>) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp6 = TcpListener::bind("[::1]:0").await.unwrap();
        let dns_tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dns_udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let id = SandboxId::generate();
        let world = Self {
            tcp: tcp.local_addr().unwrap(),
            tcp6: tcp6.local_addr().unwrap(),
            dns_udp: dns_udp.local_addr().unwrap(),
            dns_tcp: dns_tcp.local_addr().unwrap(),
            internet,
            egress,
            id,
        };
        let listeners = Listeners { tcp: vec![tcp, tcp6], dns_udp: vec![dns_udp], dns_tcp: vec![dns_tcp] };
        world.egress.add(id, policy, listeners).unwrap();
        world
    }

    /// Connects as the sandbox would to `destination`.
    pub(crate) async fn connect(&self, destination: &str) -> TcpStream {
        let destination: SocketAddr = destination.parse().unwrap();
        let (socket, near, listener) = if destination.is_ipv4() {
            (TcpSocket::new_v4().unwrap(), "127.0.0.1:0", self.tcp)
        } else {
            (TcpSocket::new_v6().unwrap(), "[::1]:0", self.tcp6)
        };
        socket.bind(near.parse().unwrap()).unwrap();
        self.internet.meant.lock().unwrap().insert(socket.local_addr().unwrap(), destination);
        socket.connect(listener).await.unwrap()
    }

    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        self.egress.refusals(self.id, 0).unwrap().refusals
    }

    /// The rules of all refusals, as soon as there are `count` of them.
    pub(crate) async fn rules(&self, count: usize) -> Vec<String> {
        until(|| self.refusals().len() >= count).await;
        self.refusals().into_iter().map(|refusal| refusal.rule).collect()
    }

    /// Returns whether bytes of the sandbox arrive at `server`, and the other way round.
    pub(crate) async fn round_trip(&self, stream: &mut TcpStream, server: &mut TcpStream) {
        stream.write_all(b"ping").await.unwrap();
        assert_eq!(take(server, 4).await, b"ping");
        server.write_all(b"pong").await.unwrap();
        assert_eq!(take(stream, 4).await, b"pong");
    }
}

pub(crate) async fn accepted(server: &TcpListener) -> TcpStream {
    timeout(PATIENCE, server.accept()).await.expect("nobody connected").unwrap().0
}

pub(crate) async fn take(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    timeout(PATIENCE, stream.read_exact(&mut bytes)).await.expect("nothing came").unwrap();
    bytes
}

/// Waits for the end of `stream` and returns how it ended.
pub(crate) async fn end(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("it goes on")?;
    Ok(bytes)
}

pub(crate) async fn assert_reset(stream: &mut TcpStream) {
    let ended = end(stream).await;
    assert_eq!(ended.map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionReset));
}

pub(crate) async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("it never came true");
}

/// A ClientHello for `name`.
pub(crate) fn client_hello(name: &str) -> Vec<u8> {
    let block16 = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat();
    let entry = [&[0][..], &block16(name.as_bytes())].concat();
    let extension = [&[0, 0][..], &block16(&block16(&entry))].concat();
    let body = [&[3, 3][..], &[7; 32], &[0], &block16(&[0x13, 1]), &[1, 0], &block16(&extension)].concat();
    let message = [&[1, 0][..], &block16(&body)].concat();
    [&[22, 3, 1][..], &block16(&message)].concat()
}
