//! The node's control connection, over real sockets with real descriptors.

use std::io::Read as _;
use std::net::{TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use coffer_core::SandboxId;
use coffer_core::network::{Base, Policy, RefusedKind};
use coffer_egress::{Egress, Settings, control};
use coffer_wire::egress::{EgressErrorCode, FromEgress, PROTOCOL, Reply, Request, ToEgress, send};
use coffer_wire::node::read_frame;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::world::{PATIENCE, World, accepted, assert_reset, egress_in, policy, until};

/// An egress with a control socket.
struct Door {
    directory: TempDir,
    _serving: AbortOnDropHandle<()>,
}

impl Door {
    fn open(egress: &Arc<Egress>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("sock")).unwrap();
        let serving = tokio::spawn(control::serve(Arc::clone(egress), listener));
        Self { directory, _serving: AbortOnDropHandle::new(serving) }
    }

    async fn connect(&self) -> Node {
        Node { stream: UnixStream::connect(self.directory.path().join("sock")).await.unwrap(), next: 0 }
    }

    /// A node after its hello.
    async fn node(&self) -> Node {
        let mut node = self.connect().await;
        let hello = node.ask(Request::Hello { protocol: PROTOCOL }, &[]).await;
        assert_eq!(hello, Ok(Reply::Hello { protocol: PROTOCOL }));
        node
    }
}

struct Node {
    stream: UnixStream,
    next: u64,
}

impl Node {
    async fn ask(
        &mut self,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply, EgressErrorCode> {
        self.next += 1;
        send(&self.stream, &ToEgress { id: self.next, request }, descriptors).await.unwrap();
        let reply: FromEgress = self.heard().await.expect("egress hung up");
        assert_eq!(reply.id, self.next);
        reply.result.map_err(|error| error.code)
    }

    async fn heard(&mut self) -> Option<FromEgress> {
        timeout(PATIENCE, read_frame(&mut self.stream)).await.expect("no answer").unwrap_or(None)
    }

    async fn served(&mut self) -> Vec<SandboxId> {
        match self.ask(Request::Traffic, &[]).await {
            Ok(Reply::Traffic { sandboxes }) => sandboxes.into_iter().map(|(id, _)| id).collect(),
            other => panic!("{other:?}"),
        }
    }
}

/// The sockets of a sandbox as the node opens them, and keeps.
struct Sockets {
    tcp: StdTcpListener,
    dns_udp: StdUdpSocket,
    dns_tcp: StdTcpListener,
}

impl Sockets {
    fn open() -> Self {
        Self {
            tcp: StdTcpListener::bind("127.0.0.1:0").unwrap(),
            dns_udp: StdUdpSocket::bind("127.0.0.1:0").unwrap(),
            dns_tcp: StdTcpListener::bind("127.0.0.1:0").unwrap(),
        }
    }

    fn all(&self) -> [BorrowedFd<'_>; 3] {
        [self.tcp.as_fd(), self.dns_udp.as_fd(), self.dns_tcp.as_fd()]
    }
}

fn add(sandbox: SandboxId, base: Base, counts: [usize; 3]) -> Request {
    let [tcp, dns_udp, dns_tcp] = counts;
    Request::Add { sandbox, policy: Policy::of(base), tcp, dns_udp, dns_tcp }
}

#[tokio::test]
async fn a_node_adds_a_sandbox_changes_its_policy_asks_and_removes_it() {
    let mut world = World::new(Policy::default()).await;
    let door = Door::open(&world.egress);
    let server = world.internet.server("1.2.3.4:443").await;
    let (sandbox, sockets) = (SandboxId::generate(), Sockets::open());
    let mut node = door.node().await;
    assert_eq!(node.ask(add(sandbox, Base::Public, [1, 1, 1]), &sockets.all()).await, Ok(Reply::Done));

    world.tcp = sockets.tcp.local_addr().unwrap();
    let mut stream = world.connect("1.2.3.4:443").await;
    let mut far = accepted(&server).await;
    world.round_trip(&mut stream, &mut far).await;
    let Ok(Reply::Traffic { sandboxes }) = node.ask(Request::Traffic, &[]).await else { panic!() };
    let (_, traffic) = sandboxes.iter().find(|(id, _)| *id == sandbox).unwrap();
    assert_eq!((traffic.sent_bytes, traffic.received_bytes, traffic.open), (4, 4, 1));

    // Adding it again is a change of policy; its descriptors are closed.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let again = add(sandbox, Base::Web, [1, 0, 0]);
    assert_eq!(node.ask(again, &[writer.as_fd()]).await, Ok(Reply::Done));
    drop(writer);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    world.round_trip(&mut stream, &mut far).await;

    let replace = |policy| Request::ReplacePolicy { sandbox, policy };
    let deny = policy(Base::Public, &[], &["1.2.3.0/24"]);
    assert_eq!(node.ask(replace(deny), &[]).await, Ok(Reply::Replaced { cut: 1 }));
    assert_reset(&mut stream).await;
    let Ok(Reply::Refusals(refusals)) = node.ask(Request::Refusals { sandbox, after: 0 }, &[]).await else {
        panic!()
    };
    let [cut] = refusals.refusals.as_slice() else { panic!("{refusals:?}") };
    assert_eq!((cut.kind, cut.rule.as_str()), (RefusedKind::Cut, "deny:1.2.3.0/24"));

    assert_eq!(node.ask(Request::Remove { sandbox }, &[]).await, Ok(Reply::Done));
    assert_eq!(node.ask(Request::Remove { sandbox }, &[]).await, Ok(Reply::Done));
    assert_eq!(node.served().await, [world.id]);
    let unknown = Err(EgressErrorCode::UnknownSandbox);
    assert_eq!(node.ask(replace(Policy::default()), &[]).await, unknown);
    assert_eq!(node.ask(Request::Refusals { sandbox, after: 0 }, &[]).await, unknown);
}

#[tokio::test]
async fn a_new_node_takes_over_and_sandboxes_are_served_without_any() {
    let mut world = World::new(Policy::default()).await;
    let door = Door::open(&world.egress);
    let server = world.internet.server("1.2.3.4:443").await;
    let (sandbox, sockets) = (SandboxId::generate(), Sockets::open());
    world.tcp = sockets.tcp.local_addr().unwrap();
    let mut first = door.node().await;
    assert_eq!(first.ask(add(sandbox, Base::Public, [1, 1, 1]), &sockets.all()).await, Ok(Reply::Done));
    let mut stream = world.connect("1.2.3.4:443").await;
    let mut far = accepted(&server).await;

    let mut second = door.node().await;
    assert!(first.heard().await.is_none(), "the first node is still listened to");
    assert!(second.served().await.contains(&sandbox));
    world.round_trip(&mut stream, &mut far).await;
    drop(second);
    world.round_trip(&mut stream, &mut far).await;
    let mut another = world.connect("1.2.3.4:443").await;
    world.round_trip(&mut another, &mut accepted(&server).await).await;
}

#[tokio::test]
async fn connections_wait_for_the_next_egress_in_the_sockets_that_the_node_keeps() {
    let mut world = World::new(Policy::default()).await;
    let server = world.internet.server("1.2.3.4:443").await;
    let (sandbox, sockets) = (SandboxId::generate(), Sockets::open());
    world.tcp = sockets.tcp.local_addr().unwrap();
    let request = add(sandbox, Base::Public, [1, 1, 1]);
    let door = Door::open(&world.egress);
    assert_eq!(door.node().await.ask(request.clone(), &sockets.all()).await, Ok(Reply::Done));
    world.egress.stop().await;
    drop(door);
    let mut stream = world.connect("1.2.3.4:443").await;
    stream.write_all(b"early").await.unwrap();

    let next = egress_in(&world.internet, Settings::default());
    let door = Door::open(&next);
    assert_eq!(door.node().await.ask(request, &sockets.all()).await, Ok(Reply::Done));
    let mut far = accepted(&server).await;
    assert_eq!(crate::world::take(&mut far, 5).await, b"early");
    world.round_trip(&mut stream, &mut far).await;
}

#[tokio::test]
async fn descriptors_that_are_not_what_was_said_are_refused_and_closed() {
    let world = World::new(Policy::default()).await;
    let door = Door::open(&world.egress);
    let mut node = door.node().await;
    let sockets = Sockets::open();
    let unconnected = tokio::net::TcpSocket::new_v4().unwrap();
    let (_left, unix) = UnixStream::pair().unwrap();
    let unix_listener = UnixListener::bind(door.directory.path().join("other")).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (tcp, udp, pipe) = (sockets.tcp.as_fd(), sockets.dns_udp.as_fd(), writer.as_fd());
    let lies: [(&str, [usize; 3], Vec<BorrowedFd<'_>>); 11] = [
        ("a pipe", [1, 0, 0], vec![pipe]),
        ("a pipe among sockets", [1, 1, 1], vec![tcp, udp, pipe]),
        ("UDP for TCP", [1, 0, 0], vec![udp]),
        ("TCP for UDP", [1, 1, 0], vec![tcp, tcp]),
        ("a socket that does not listen", [1, 0, 0], vec![unconnected.as_fd()]),
        ("a Unix socket", [1, 0, 0], vec![unix.as_fd()]),
        ("a Unix listener", [1, 0, 0], vec![unix_listener.as_fd()]),
        ("fewer than promised", [2, 0, 0], vec![tcp]),
        ("more than promised", [1, 0, 0], vec![tcp, pipe]),
        ("none", [0, 0, 0], vec![]),
        ("numbers that overflow", [usize::MAX, 2, 0], vec![tcp]),
    ];
    for (lie, counts, descriptors) in lies {
        let answer = node.ask(add(SandboxId::generate(), Base::None, counts), &descriptors).await;
        assert_eq!(answer, Err(EgressErrorCode::BadDescriptors), "{lie}");
    }
    let answer = node.ask(Request::Traffic, &[pipe]).await;
    assert_eq!(answer, Err(EgressErrorCode::BadDescriptors), "descriptors with another request");
    assert_eq!(node.served().await, [world.id]);
    drop(writer);
    // Ends only because no other process has the other end open.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[tokio::test]
async fn a_node_that_errs_ends_its_own_connection_only() {
    let world = World::new(Policy::default()).await;
    let door = Door::open(&world.egress);
    let frame = |body: &[u8]| [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], body].concat();
    let lies: [(&str, Vec<u8>); 7] = [
        ("no JSON", frame(b"{")),
        ("another shape", frame(b"[1,2]")),
        ("an unknown request", frame(br#"{"id":1,"request":{"op":"exec","path":"/bin/sh"}}"#)),
        ("an id that is none", frame(br#"{"id":1,"request":{"op":"remove","sandbox":"../../etc"}}"#)),
        (
            "a policy that is none",
            frame(br#"{"id":1,"request":{"op":"replace_policy","sandbox":"0","policy":{"base":"all"}}}"#),
        ),
        ("a length without end", vec![0xff; 4]),
        ("nested without end", frame(&vec![b'['; 100_000])),
    ];
    for (lie, bytes) in lies {
        let mut node = door.node().await;
        node.stream.write_all(&bytes).await.unwrap();
        assert!(node.heard().await.is_none(), "{lie} was answered");
    }
    for first in [Request::Hello { protocol: PROTOCOL + 1 }, Request::Traffic] {
        let mut node = door.connect().await;
        assert_eq!(node.ask(first, &[]).await, Err(EgressErrorCode::ProtocolMismatch));
        assert!(node.heard().await.is_none());
    }
    assert_eq!(door.node().await.served().await, [world.id]);
}

#[tokio::test]
async fn no_more_sandboxes_than_there_is_room_for() {
    let settings = Settings { sandboxes: 2, ..Settings::default() };
    let world = World::with(Policy::default(), settings).await;
    let door = Door::open(&world.egress);
    let mut node = door.node().await;
    let sockets = Sockets::open();
    let (second, third) = (SandboxId::generate(), SandboxId::generate());
    let order = |sandbox| add(sandbox, Base::None, [1, 1, 1]);
    assert_eq!(node.ask(order(second), &sockets.all()).await, Ok(Reply::Done));
    let full = node.ask(order(third), &sockets.all()).await;
    assert_eq!(full, Err(EgressErrorCode::NoCapacity));
    node.ask(Request::Remove { sandbox: second }, &[]).await.unwrap();
    until(|| !world.egress.list().contains(&second)).await;
    assert_eq!(node.ask(order(third), &sockets.all()).await, Ok(Reply::Done));
}

#[tokio::test]
async fn an_address_that_the_machine_gets_is_walled_off_at_once() {
    let world = World::new(Policy::of(Base::Public)).await;
    let server = world.internet.server("1.2.3.4:443").await;
    let mut stream = world.connect("1.2.3.4:443").await;
    world.round_trip(&mut stream, &mut accepted(&server).await).await;
    world.egress.replace_walls(coffer_core::network::Walls::new(["1.2.3.4".parse().unwrap()]));
    assert_reset(&mut stream).await;
    assert_reset(&mut world.connect("1.2.3.4:443").await).await;
    assert_eq!(world.rules(2).await, ["never:host", "never:host"]);
}
