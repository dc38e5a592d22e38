//! Changing policies, and sandboxes that come and go.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::SandboxId;
use coffer_core::network::{Base, Policy, RefusedKind, Traffic};
use coffer_egress::{Descriptors, Listeners, NoSuchSandbox, NotAdded};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::world::{World, accepted, assert_reset, client_hello, policy, take, until};

#[tokio::test]
async fn a_new_policy_cuts_what_it_forbids_and_nothing_else() {
    let world = World::new(policy(Base::Public, &["good.com"], &["7.0.0.0/8"])).await;
    world.internet.name("good.com", &["7.7.7.7"]);
    let web = world.internet.server("1.1.1.1:443").await;
    let ssh = world.internet.server("1.1.1.1:22").await;
    let named = world.internet.server("7.7.7.7:443").await;
    let mut to_web = world.connect("1.1.1.1:443").await;
    let mut web = accepted(&web).await;
    let mut to_ssh = world.connect("1.1.1.1:22").await;
    let mut ssh = accepted(&ssh).await;
    let mut to_named = world.connect("7.7.7.7:443").await;
    let hello = client_hello("good.com");
    to_named.write_all(&hello).await.unwrap();
    let mut named = accepted(&named).await;
    take(&mut named, hello.len()).await;

    assert_eq!(
        world.egress.replace_policy(world.id, policy(Base::Web, &["good.com"], &["7.0.0.0/8"])),
        Ok(1)
    );
    assert_reset(&mut to_ssh).await;
    assert_reset(&mut ssh).await;
    world.round_trip(&mut to_web, &mut web).await;
    world.round_trip(&mut to_named, &mut named).await;
    let refusal = &world.refusals()[0];
    assert_eq!((refusal.kind, refusal.rule.as_str(), refusal.port), (RefusedKind::Cut, "base:web", Some(22)));

    assert_eq!(world.egress.replace_policy(world.id, policy(Base::None, &["good.com"], &[])), Ok(1));
    assert_reset(&mut to_web).await;
    world.round_trip(&mut to_named, &mut named).await;

    assert_eq!(world.egress.replace_policy(world.id, Policy::default()), Ok(1));
    assert_reset(&mut to_named).await;
    assert_eq!(world.rules(3).await, ["base:web", "base:none", "base:none"]);
    assert_eq!(world.refusals()[2].name.as_ref().unwrap().as_str(), "good.com");
    assert_eq!(world.egress.policy(world.id), Ok(Policy::default()));
}

#[tokio::test]
async fn a_name_that_only_the_sandbox_vouches_for_keeps_nothing_open() {
    // A denied name makes egress read names, and the address decides.
    let world = World::new(policy(Base::Public, &[], &["bad.com"])).await;
    let evil = world.internet.server("6.6.6.6:443").await;
    let mut stream = world.connect("6.6.6.6:443").await;
    stream.write_all(&client_hello("good.com")).await.unwrap();
    let _outside = accepted(&evil).await;
    // It claims to be good.com, which the new policy allows; but it uses an address of its own choice.
    assert_eq!(world.egress.replace_policy(world.id, policy(Base::None, &["good.com"], &[])), Ok(1));
    assert_reset(&mut stream).await;
    // Its claim can still be used to deny it.
    world.egress.replace_policy(world.id, policy(Base::Public, &[], &["bad.com"])).unwrap();
    let mut stream = world.connect("6.6.6.6:443").await;
    stream.write_all(&client_hello("meh.com")).await.unwrap();
    let _outside = accepted(&evil).await;
    assert_eq!(world.egress.replace_policy(world.id, policy(Base::Public, &[], &["meh.com"])), Ok(1));
    assert_reset(&mut stream).await;
}

#[tokio::test]
async fn a_connection_that_is_being_dialled_is_cut_as_well() {
    let world = World::new(Policy::of(Base::Public)).await;
    let server = world.internet.server("1.1.1.1:22").await;
    let gate = Arc::new(Semaphore::new(0));
    *world.internet.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let mut stream = world.connect("1.1.1.1:22").await;
    until(|| !world.internet.dialled().is_empty()).await;
    assert_eq!(world.egress.replace_policy(world.id, Policy::of(Base::Web)), Ok(1));
    assert_reset(&mut stream).await;
    gate.add_permits(10);
    assert!(tokio::time::timeout(Duration::from_millis(100), server.accept()).await.is_err());
}

#[tokio::test]
async fn a_policy_that_changes_while_a_name_is_looked_up_counts() {
    let world = World::new(policy(Base::None, &["good.com"], &[])).await;
    world.internet.name("good.com", &["1.2.3.4"]);
    let gate = Arc::new(Semaphore::new(0));
    *world.internet.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let mut stream = world.connect("1.2.3.4:443").await;
    stream.write_all(&client_hello("good.com")).await.unwrap();
    until(|| !world.internet.looked_up.lock().unwrap().is_empty()).await;
    assert_eq!(world.egress.replace_policy(world.id, Policy::default()), Ok(0));
    gate.add_permits(10);
    assert_reset(&mut stream).await;
    assert_eq!(world.rules(1).await, ["base:none"]);
    assert!(world.internet.dialled().is_empty());
}

#[tokio::test]
async fn a_removed_sandbox_has_no_network() {
    let world = World::new(Policy::of(Base::Web)).await;
    let server = world.internet.server("1.1.1.1:443").await;
    let mut stream = world.connect("1.1.1.1:443").await;
    let mut outside = accepted(&server).await;
    world.round_trip(&mut stream, &mut outside).await;
    assert_eq!(world.egress.list(), [world.id]);
    let again = world.egress.add(world.id, Policy::default(), Listeners::default());
    assert_eq!(again, Err(NotAdded::AlreadyThere(world.id)));
    let traffic = world.egress.remove(world.id).unwrap();
    assert_eq!((traffic.sent_bytes, traffic.received_bytes), (4, 4));
    assert_reset(&mut stream).await;
    assert_reset(&mut outside).await;
    assert!(world.egress.list().is_empty());
    assert_eq!(world.egress.remove(world.id), Err(NoSuchSandbox(world.id)));
    assert!(world.egress.refusals(SandboxId::generate(), 0).is_err());
    // Its listeners are closed.
    let mut closed = false;
    for _ in 0..100 {
        closed =
            TcpStream::connect(world.tcp).await.is_err() && TcpStream::connect(world.dns_tcp).await.is_err();
        if closed {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(closed);
}

#[tokio::test]
async fn stopping_waits_for_everything() {
    let world = World::new(Policy::of(Base::Web)).await;
    let server = world.internet.server("1.1.1.1:443").await;
    let mut stream = world.connect("1.1.1.1:443").await;
    let _outside = accepted(&server).await;
    let _silent = TcpStream::connect(world.dns_tcp).await.unwrap();
    tokio::time::timeout(crate::world::PATIENCE, world.egress.stop()).await.expect("it hangs");
    assert_reset(&mut stream).await;
    assert_eq!(Arc::strong_count(&world.internet), 4, "the test, and the three seams of egress");
}

#[tokio::test]
async fn one_sandbox_knows_nothing_of_another() {
    let world = World::new(Policy::of(Base::Web)).await;
    let other = SandboxId::generate();
    world.egress.add(other, Policy::of(Base::Public), Listeners::default()).unwrap();
    assert_reset(&mut world.connect("1.1.1.1:22").await).await;
    assert_eq!(world.rules(1).await, ["base:web"]);
    assert_eq!(world.egress.refusals(other, 0).unwrap().total, 0);
    assert_eq!(world.egress.traffic(other).unwrap(), Traffic::default());
    assert_eq!(world.egress.refusals(world.id, 1).unwrap().refusals, []);
}

#[tokio::test]
async fn only_the_right_sockets_are_adopted() {
    let listening = || OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let bound = || OwnedFd::from(std::net::UdpSocket::bind("[::1]:0").unwrap());
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let unix = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
    let connected = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        OwnedFd::from(std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    };
    let good = Descriptors { tcp: vec![listening()], dns_udp: vec![bound()], dns_tcp: vec![listening()] };
    let listeners = Listeners::adopt(good).unwrap();
    assert_eq!((listeners.tcp.len(), listeners.dns_udp.len(), listeners.dns_tcp.len()), (1, 1, 1));
    for wrong in [bound(), file(), unix(), connected()] {
        assert!(Listeners::adopt(Descriptors { tcp: vec![wrong], ..Default::default() }).is_err());
    }
    for wrong in [listening(), file(), unix()] {
        assert!(Listeners::adopt(Descriptors { dns_udp: vec![wrong], ..Default::default() }).is_err());
    }
}
