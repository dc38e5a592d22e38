//! Connections through a SOCKS5 proxy of the sandbox's owner.

use std::time::Duration;

use coffer_core::network::{Base, Policy, Proxy};
use coffer_egress::Settings;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::world::{World, accepted, assert_reset, policy, take, until};

const PROXY: &str = "5.5.5.5:1080";

fn through(address: &str) -> Policy {
    Policy::of(Base::Public).through(Some(Proxy::new(address, Some("me"), Some("secret")).unwrap()))
}

/// The proxy's side of the handshake; returns the requested destination.
async fn asked(proxy: &TcpListener) -> (TcpStream, Vec<u8>) {
    let mut proxy = accepted(proxy).await;
    assert_eq!(take(&mut proxy, 4).await, [5, 2, 0, 2]);
    proxy.write_all(&[5, 2]).await.unwrap();
    assert_eq!(take(&mut proxy, 11).await, b"\x01\x02me\x06secret");
    proxy.write_all(&[1, 0]).await.unwrap();
    let mut request = take(&mut proxy, 4).await;
    let rest = if request[3] == 1 { 6 } else { 18 };
    request.extend(take(&mut proxy, rest).await);
    (proxy, request)
}

#[tokio::test]
async fn what_is_allowed_goes_through_the_proxy_and_nothing_past_it() {
    let world = World::new(through(PROXY)).await;
    let proxy = world.internet.server(PROXY).await;
    let mut stream = world.connect("1.2.3.4:443").await;
    let (mut far, request) = asked(&proxy).await;
    assert_eq!(request, [5, 1, 0, 1, 1, 2, 3, 4, 1, 187]);
    // The first bytes of the destination come with the answer.
    far.write_all(b"\x05\x00\x00\x03\x04host\x00\x01first").await.unwrap();
    assert_eq!(take(&mut stream, 5).await, b"first");
    world.round_trip(&mut stream, &mut far).await;

    let _six = world.connect("[2606:4700::1]:22").await;
    let (_far, request) = asked(&proxy).await;
    assert_eq!(request[..6], [5, 1, 0, 4, 0x26, 0x06]);
    assert_eq!(request[20..], [0, 22]);
    assert_eq!(world.internet.dialled(), [PROXY, PROXY]);
}

#[tokio::test]
async fn the_policy_is_asked_first_and_looks_names_up_itself() {
    let proxy = Proxy::new("proxy.org:1080", None, None).unwrap();
    let only = policy(Base::Public, &["good.com"], &["0.0.0.0/0"]).through(Some(proxy));
    let world = World::new(only).await;
    world.internet.name("good.com", &["1.2.3.4"]);
    world.internet.name("proxy.org", &["10.0.0.1", "5.5.5.5"]);
    let proxy = world.internet.server(PROXY).await;
    assert_reset(&mut world.connect("1.1.1.1:443").await).await;
    assert_reset(&mut world.connect("10.0.0.9:443").await).await;
    assert!(world.internet.dialled().is_empty());
    let mut stream = world.connect("6.6.6.6:443").await;
    stream.write_all(&crate::world::client_hello("good.com")).await.unwrap();
    let mut far = accepted(&proxy).await;
    assert_eq!(take(&mut far, 3).await, [5, 1, 0]);
    far.write_all(&[5, 0]).await.unwrap();
    assert_eq!(take(&mut far, 10).await, [5, 1, 0, 1, 1, 2, 3, 4, 1, 187]);
    assert_eq!(world.internet.dialled(), [PROXY], "not the proxy's inner address");
}

#[tokio::test]
async fn a_proxy_that_fails_is_no_reason_to_go_past_it() {
    let settings = Settings { dial: Duration::from_millis(300), ..Settings::default() };
    for answers in [
        &b""[..],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x05\xff",
        b"\x05\x02\x01\x01",
        b"\x05\x00\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00",
        b"\x05\x00\x05\x00\x00\x09",
    ] {
        let world = World::with(through(PROXY), settings.clone()).await;
        let proxy = world.internet.server(PROXY).await;
        let mut stream = world.connect("1.2.3.4:443").await;
        let mut far = accepted(&proxy).await;
        far.write_all(answers).await.unwrap();
        assert_reset(&mut stream).await;
        assert_eq!(world.internet.dialled(), [PROXY], "{answers:?}");
        until(|| world.egress.traffic(world.id).unwrap().failed == 1).await;
    }
    for inner in ["127.0.0.1:1080", "[::ffff:10.0.0.1]:1080", "169.254.169.254:80", "inner.com:1080"] {
        let world = World::with(through(inner), settings.clone()).await;
        world.internet.name("inner.com", &["192.168.0.1", "::1"]);
        assert_reset(&mut world.connect("1.2.3.4:443").await).await;
        assert!(world.internet.dialled().is_empty(), "{inner}");
    }
}

#[tokio::test]
async fn another_proxy_cuts_what_goes_through_the_old_one() {
    let world = World::new(Policy::of(Base::Public)).await;
    let server = world.internet.server("1.2.3.4:443").await;
    let mut stream = world.connect("1.2.3.4:443").await;
    world.round_trip(&mut stream, &mut accepted(&server).await).await;
    assert_eq!(world.egress.replace_policy(world.id, through(PROXY)), Ok(1));
    assert_reset(&mut stream).await;
    assert_eq!(world.rules(1).await, ["proxy-changed"]);
    assert_eq!(world.egress.replace_policy(world.id, through(PROXY)), Ok(0));
}
