//! Connections: which are opened, to which address, and how they end.

use std::time::Duration;

use coffer_core::ProjectId;
use coffer_core::network::RefusedKind;
use coffer_core::network::{Base, Policy};
use coffer_egress::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{OWN, PATIENCE, World, accepted, assert_reset, client_hello, end, policy, take, until};

fn only(names: &[&str]) -> Policy {
    policy(Base::Public, names, &["0.0.0.0/0", "::/0"])
}

#[tokio::test]
async fn bytes_go_both_ways_and_are_counted() {
    let world = World::new(Policy::of(Base::Web)).await;
    let server = world.internet.server("1.1.1.1:443").await;
    let mut stream = world.connect("1.1.1.1:443").await;
    let mut outside = accepted(&server).await;
    world.round_trip(&mut stream, &mut outside).await;
    // The sandbox has closed its side; the answer still arrives.
    stream.shutdown().await.unwrap();
    assert_eq!(end(&mut outside).await.unwrap(), b"");
    outside.write_all(b"the rest").await.unwrap();
    drop(outside);
    assert_eq!(end(&mut stream).await.unwrap(), b"the rest");
    until(|| world.egress.traffic(world.id).unwrap().open == 0).await;
    let traffic = world.egress.traffic(world.id).unwrap();
    assert_eq!((traffic.sent_bytes, traffic.received_bytes), (4, 12));
    assert_eq!((traffic.opened, traffic.failed, traffic.refused), (1, 0, 0));
}

#[tokio::test]
async fn the_server_may_be_done_first() {
    let world = World::new(Policy::of(Base::Public)).await;
    let server = world.internet.server("1.1.1.1:7").await;
    let mut stream = world.connect("1.1.1.1:7").await;
    let mut outside = accepted(&server).await;
    outside.shutdown().await.unwrap();
    assert_eq!(end(&mut stream).await.unwrap(), b"");
    stream.write_all(b"late").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(end(&mut outside).await.unwrap(), b"late");
}

#[tokio::test]
async fn much_arrives_whole_in_both_directions() {
    const MUCH: usize = 8 << 20;
    let world = World::new(Policy::of(Base::Web)).await;
    let server = world.internet.server("[2606:4700::1]:443").await;
    let stream = world.connect("[2606:4700::1]:443").await;
    let outside = accepted(&server).await;
    let bytes: Vec<u8> = (0..MUCH).map(|n| u8::try_from(n * 31 % 251).unwrap()).collect();
    let both_ways = |stream: TcpStream, bytes: Vec<u8>| async move {
        let (mut from, mut to) = stream.into_split();
        let sent = bytes.clone();
        let sending = tokio::spawn(async move {
            to.write_all(&sent).await.unwrap();
            to.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        from.read_to_end(&mut received).await.unwrap();
        sending.await.unwrap();
        assert!(received == bytes, "{} bytes came", received.len());
    };
    let both = async { tokio::join!(both_ways(stream, bytes.clone()), both_ways(outside, bytes.clone())) };
    tokio::time::timeout(PATIENCE * 3, both).await.expect("too slow");
    let traffic = world.egress.traffic(world.id).unwrap();
    assert_eq!((traffic.sent_bytes, traffic.received_bytes), (MUCH as u64, MUCH as u64));
}

#[tokio::test]
async fn a_refusal_is_a_reset_and_is_recorded() {
    let world = World::new(Policy::of(Base::Web)).await;
    let _server = world.internet.server("1.1.1.1:22").await;
    assert_reset(&mut world.connect("1.1.1.1:22").await).await;
    assert_eq!(world.rules(1).await, ["base:web"]);
    let refusal = &world.refusals()[0];
    assert_eq!((refusal.kind, refusal.port), (RefusedKind::Connection, Some(22)));
    assert_eq!(refusal.address, Some("1.1.1.1".parse().unwrap()));
    assert!(refusal.at_ms > 1_700_000_000_000);
    assert!(world.internet.dialled().is_empty());
}

#[tokio::test]
async fn no_spelling_of_a_walled_address_is_dialled() {
    let everything = policy(Base::Public, &["*", "0.0.0.0/0", "::/0"], &[]);
    let world = World::new(everything).await;
    let destinations = [
        ("127.0.0.1:80", "never:loopback"),
        ("127.9.9.9:80", "never:loopback"),
        ("[::1]:80", "never:loopback"),
        ("0.0.0.0:80", "never:unspecified"),
        ("[::]:80", "never:unspecified"),
        ("10.0.0.1:80", "never:private"),
        ("172.16.0.1:80", "never:private"),
        ("192.168.0.1:80", "never:private"),
        ("192.0.2.1:80", "never:documentation"),
        ("100.64.0.1:80", "never:carrier-shared"),
        ("169.254.169.254:80", "never:metadata"),
        ("[fd00:ec2::254]:80", "never:metadata"),
        ("[fd12::1]:80", "never:unique-local"),
        ("[fe80::1]:80", "never:link-local"),
        ("[fec0::1]:80", "never:site-local"),
        ("224.0.0.1:80", "never:multicast"),
        ("[ff02::1]:80", "never:multicast"),
        ("255.255.255.255:80", "never:broadcast"),
        ("[::ffff:127.0.0.1]:80", "never:loopback"),
        ("[::ffff:169.254.169.254]:80", "never:metadata"),
        ("[64:ff9b::10.0.0.1]:80", "never:private"),
        ("[2002:7f00:1::]:80", "never:transition"),
        ("[::127.0.0.1]:80", "never:transition"),
        ("198.41.0.4:80", "never:host"),
        ("[::ffff:198.41.0.4]:80", "never:host"),
    ];
    for (destination, _) in destinations {
        assert_reset(&mut world.connect(destination).await).await;
    }
    let expected: Vec<&str> = destinations.iter().map(|(_, rule)| *rule).collect();
    assert_eq!(world.rules(destinations.len()).await, expected);
    assert!(world.internet.dialled().is_empty());
}

#[tokio::test]
async fn without_a_destination_there_is_no_way() {
    let world = World::new(Policy::of(Base::Public)).await;
    // Directly to the listener, without a redirect.
    for listener in [world.tcp, world.tcp6] {
        assert_reset(&mut TcpStream::connect(listener).await.unwrap()).await;
    }
    assert_eq!(world.rules(2).await, ["no-destination", "no-destination"]);
}

#[tokio::test]
async fn a_name_that_opens_the_way_is_dialled_by_its_own_address() {
    let world = World::new(only(&["*.good.com", "plain.org:80"])).await;
    world.internet.name("api.good.com", &["1.2.3.4"]);
    world.internet.name("plain.org", &["2606:4700::5"]);
    let good = world.internet.server("1.2.3.4:443").await;
    let plain = world.internet.server("[2606:4700::5]:80").await;
    let evil = world.internet.server("6.6.6.6:443").await;
    // The sandbox names a good host at an evil address: the good one gets it.
    let mut stream = world.connect("6.6.6.6:443").await;
    let hello = client_hello("api.good.com");
    stream.write_all(&hello).await.unwrap();
    let mut outside = accepted(&good).await;
    assert_eq!(take(&mut outside, hello.len()).await, hello);
    world.round_trip(&mut stream, &mut outside).await;
    // The same by `Host`, in pieces, and over to the other family.
    let mut stream = world.connect("6.6.6.6:80").await;
    let request = b"GET / HTTP/1.1\r\nHost: PLAIN.org\r\n\r\n";
    for piece in request.chunks(7) {
        stream.write_all(piece).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut outside = accepted(&plain).await;
    assert_eq!(take(&mut outside, request.len()).await, request);
    assert_eq!(world.internet.dialled(), ["1.2.3.4:443", "[2606:4700::5]:80"]);
    assert!(tokio::time::timeout(Duration::from_millis(50), evil.accept()).await.is_err());
    assert!(world.refusals().is_empty());
}

#[tokio::test]
async fn other_names_and_no_names_are_refused() {
    let world = World::new(only(&["good.com:443"])).await;
    world.internet.name("good.com", &["1.2.3.4"]);
    let _good = world.internet.server("1.2.3.4:443").await;
    let doubtful = b"GET / HTTP/1.1\r\nHost: good.com\r\nHost: evil.com\r\n\r\n".to_vec();
    let hellos = [
        client_hello("evil.com"),
        client_hello("good.com.evil.com"),
        b"SSH-2.0-x\r\n".to_vec(),
        doubtful,
        vec![],
    ];
    for hello in &hellos {
        let mut stream = world.connect("1.2.3.4:443").await;
        stream.write_all(hello).await.unwrap();
        assert_reset(&mut stream).await;
    }
    // A port at which no name is allowed is refused before any byte.
    assert_reset(&mut world.connect("1.2.3.4:22").await).await;
    assert_eq!(world.rules(6).await, ["deny:0.0.0.0/0"; 6]);
    let names: Vec<Option<String>> =
        world.refusals().iter().map(|r| r.name.as_ref().map(ToString::to_string)).collect();
    assert_eq!(names[..2], [Some("evil.com".into()), Some("good.com.evil.com".into())]);
    assert!(world.internet.dialled().is_empty());
}

#[tokio::test]
async fn a_name_turned_to_an_inner_address_leads_nowhere() {
    let world = World::new(only(&["good.com"])).await;
    for address in
        ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00:ec2::254", "::ffff:10.0.0.1", OWN]
    {
        let name = format!("x{}.good.com", address.replace([':', '.'], "-").trim_matches('-'));
        world.egress.replace_policy(world.id, only(&[&name])).unwrap();
        world.internet.name(&name, &[address]);
        let mut stream = world.connect("1.2.3.4:443").await;
        stream.write_all(&client_hello(&name)).await.unwrap();
        assert_reset(&mut stream).await;
    }
    let rules = world.rules(7).await;
    assert!(rules.iter().all(|rule| rule.starts_with("never:")), "{rules:?}");
    // A good address next to a bad one is used, and the bad one is not.
    world.internet.name("good.com", &["10.0.0.1", "1.2.3.4"]);
    world.egress.replace_policy(world.id, only(&["good.com"])).unwrap();
    let good = world.internet.server("1.2.3.4:443").await;
    let mut stream = world.connect("1.2.3.4:443").await;
    stream.write_all(&client_hello("good.com")).await.unwrap();
    accepted(&good).await;
    assert_eq!(world.internet.dialled(), ["1.2.3.4:443"]);
}

#[tokio::test]
async fn where_the_server_speaks_first_the_address_decides() {
    let world = World::new(policy(Base::None, &["good.com", "9.8.7.6:25"], &[])).await;
    let mail = world.internet.server("9.8.7.6:25").await;
    let mut stream = world.connect("9.8.7.6:25").await;
    let mut outside = accepted(&mail).await;
    outside.write_all(b"220 hello\r\n").await.unwrap();
    assert_eq!(take(&mut stream, 11).await, b"220 hello\r\n");
    // Neither side sends, and the address is not allowed: refused once the wait for a name is over.
    assert_reset(&mut world.connect("9.8.7.6:26").await).await;
    assert_eq!(world.rules(1).await, ["base:none"]);
    // If a name could only deny, silence leaves the connection open.
    world.egress.replace_policy(world.id, policy(Base::Public, &[], &["bad.com"])).unwrap();
    let mut stream = world.connect("9.8.7.6:25").await;
    let mut outside = accepted(&mail).await;
    world.round_trip(&mut stream, &mut outside).await;
    let mut stream = world.connect("9.8.7.6:25").await;
    stream.write_all(&client_hello("bad.com")).await.unwrap();
    assert_reset(&mut stream).await;
    assert_eq!(world.rules(2).await[1], "deny:bad.com");
}

#[tokio::test]
async fn a_hello_that_never_ends_is_given_up() {
    let settings = Settings {
        first_byte: Duration::from_millis(100),
        hello: Duration::from_millis(300),
        ..Settings::default()
    };
    let world = World::with(only(&["good.com"]), settings).await;
    let mut stream = world.connect("1.2.3.4:443").await;
    let hello = client_hello("good.com");
    stream.write_all(&hello[..hello.len() - 1]).await.unwrap();
    assert_reset(&mut stream).await;
    let mut stream = world.connect("1.2.3.4:80").await;
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    // Egress stops reading at its bound, so the rest may not be accepted; the end must come all the same.
    let (mut from, mut to) = stream.into_split();
    let flood = tokio::spawn(async move { while to.write_all(&[b'x'; 1024]).await.is_ok() {} });
    let mut rest = Vec::new();
    assert!(tokio::time::timeout(PATIENCE, from.read_to_end(&mut rest)).await.unwrap().is_err());
    flood.await.unwrap();
    assert_eq!(world.rules(2).await, ["deny:0.0.0.0/0"; 2]);
}

#[tokio::test]
async fn whoever_does_not_answer_is_a_failure_and_no_refusal() {
    let world = World::new(policy(Base::Public, &["good.com", "none.com"], &["0.0.0.0/0:443"])).await;
    world.internet.name("good.com", &["1.2.3.4", "1.2.3.5", "2606:4700::9"]);
    assert_reset(&mut world.connect("1.1.1.1:80").await).await;
    let mut stream = world.connect("1.2.3.4:443").await;
    stream.write_all(&client_hello("good.com")).await.unwrap();
    assert_reset(&mut stream).await;
    assert_eq!(world.internet.dialled(), ["1.1.1.1:80", "1.2.3.4:443", "1.2.3.5:443", "[2606:4700::9]:443"]);
    assert_eq!(world.egress.traffic(world.id).unwrap().failed, 2);
    assert!(world.refusals().is_empty());
    // A name without any address cannot be reached.
    let mut stream = world.connect("1.2.3.4:443").await;
    stream.write_all(&client_hello("none.com")).await.unwrap();
    assert_reset(&mut stream).await;
    assert_eq!(world.rules(1).await, ["name-without-address"]);
}

#[tokio::test]
async fn a_project_with_many_sandboxes_leaves_connections_to_others() {
    let settings = Settings { connections_in_all: 8, ..Settings::default() };
    let (one, two) = (ProjectId::generate(), ProjectId::generate());
    let world = World::with(Policy::of(Base::Web).of_project(one), settings).await;
    let (again, other) = (world.neighbour(one).await, world.neighbour(two).await);
    let server = world.internet.server("1.1.1.1:443").await;
    let mut held = Vec::new();
    for sandbox in [&world, &again, &world, &again] {
        let stream = sandbox.connect("1.1.1.1:443").await;
        held.push((stream, accepted(&server).await));
    }
    // A project may have half of the host's connections, however many sandboxes it has.
    for sandbox in [&world, &again] {
        assert_reset(&mut sandbox.connect("1.1.1.1:443").await).await;
        assert_eq!(sandbox.rules(1).await, ["limit:connections-of-project"]);
    }
    let mut stream = other.connect("1.1.1.1:443").await;
    let mut outside = accepted(&server).await;
    other.round_trip(&mut stream, &mut outside).await;
}

#[tokio::test]
async fn a_sandbox_has_so_many_connections_and_no_more() {
    let settings = Settings { connections: 3, ..Settings::default() };
    let world = World::with(Policy::of(Base::Web), settings).await;
    let server = world.internet.server("1.1.1.1:443").await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let stream = world.connect("1.1.1.1:443").await;
        held.push((stream, accepted(&server).await));
    }
    assert_reset(&mut world.connect("1.1.1.1:443").await).await;
    assert_eq!(world.rules(1).await, ["limit:connections"]);
    assert_eq!(world.egress.traffic(world.id).unwrap().open, 3);
    drop(held.pop());
    until(|| world.egress.traffic(world.id).unwrap().open == 2).await;
    // The place is released a moment after the count.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut stream = world.connect("1.1.1.1:443").await;
    let mut outside = accepted(&server).await;
    world.round_trip(&mut stream, &mut outside).await;
}

#[tokio::test]
async fn silence_ends_a_connection() {
    let settings = Settings {
        idle: Duration::from_millis(400),
        half_closed: Duration::from_millis(150),
        ..Settings::default()
    };
    let world = World::with(Policy::of(Base::Web), settings).await;
    let server = world.internet.server("1.1.1.1:443").await;
    let mut silent = world.connect("1.1.1.1:443").await;
    let mut silent_outside = accepted(&server).await;
    let mut half = world.connect("1.1.1.1:443").await;
    let mut half_outside = accepted(&server).await;
    half.shutdown().await.unwrap();
    assert_eq!(end(&mut half_outside).await.unwrap(), b"");
    let mut busy = world.connect("1.1.1.1:443").await;
    let mut busy_outside = accepted(&server).await;
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_millis(900) {
        world.round_trip(&mut busy, &mut busy_outside).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_reset(&mut half).await;
    assert_reset(&mut silent).await;
    assert_reset(&mut silent_outside).await;
    assert_eq!(world.egress.traffic(world.id).unwrap().open, 1);
}

#[tokio::test]
async fn a_reset_of_one_side_reaches_the_other() {
    let world = World::new(Policy::of(Base::Web)).await;
    let server = world.internet.server("1.1.1.1:443").await;
    let mut stream = world.connect("1.1.1.1:443").await;
    let outside = accepted(&server).await;
    outside.set_zero_linger().unwrap();
    drop(outside);
    assert_reset(&mut stream).await;
}

#[tokio::test]
async fn a_server_that_refuses_an_upload_is_heard() {
    let world = World::new(Policy::of(Base::Web)).await;
    let server = world.internet.server("1.1.1.1:80").await;
    for _ in 0..20 {
        let stream = world.connect("1.1.1.1:80").await;
        let mut outside = accepted(&server).await;
        let (mut from, mut to) = stream.into_split();
        let upload = tokio::spawn(async move { while to.write_all(&[0; 65_536]).await.is_ok() {} });
        // Closing with the upload unread is a reset, right behind the answer.
        take(&mut outside, 1000).await;
        outside.write_all(b"too long").await.unwrap();
        drop(outside);
        let mut answer = vec![0; 8];
        tokio::time::timeout(PATIENCE, from.read_exact(&mut answer)).await.expect("no answer").unwrap();
        assert_eq!(answer, b"too long");
        upload.await.unwrap();
    }
}
