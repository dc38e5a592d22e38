//! The operator's package mirrors: the only private addresses that sandboxes reach, and never by address.

use coffer_core::network::{Base, Mirror, Mirrors, Policy, Proxy, RefusedKind, Walls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::names::addresses_of;
use crate::world::{OWN, PATIENCE, World, accepted, assert_reset, client_hello, end, policy, take, until};

const NAME: &str = "pypi.corp.test";
const INNER: &str = "10.1.2.3";

fn mirror(name: &str, ports: &[u16]) -> Mirror {
    Mirror { name: name.parse().unwrap(), ports: ports.iter().copied().collect(), address: None }
}

fn walls(mirrors: impl IntoIterator<Item = Mirror>) -> Walls {
    Walls::new([OWN, "10.0.0.9"].map(|own| own.parse().unwrap())).with_mirrors(Mirrors::new(mirrors).unwrap())
}

/// A world with a mirror at a private address, a neighbour at the same one, and the mirror's stand-in.
async fn mirrored(policy: Policy) -> (World, String) {
    let world = World::new(policy).await;
    let walls = walls([mirror(NAME, &[80, 443, 3141])]);
    let stand_in = walls.mirrors().named(&NAME.parse().unwrap()).unwrap().0.to_string();
    world.egress.replace_walls(walls);
    world.internet.name(NAME, &[INNER]);
    world.internet.name("gitlab.corp.test", &[INNER]);
    (world, stand_in)
}

async fn say(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
}

async fn head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(timeout(PATIENCE, stream.read_u8()).await.expect("no head came").unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_sandbox_learns_a_stand_in_and_is_connected_to_the_mirror() {
    let (world, stand_in) = mirrored(Policy::of(Base::Web)).await;
    assert_eq!(addresses_of(&world, NAME).await, [stand_in.parse::<std::net::IpAddr>().unwrap()]);
    assert!(world.internet.looked_up.lock().unwrap().is_empty(), "no question leaves for a mirror");
    assert!(addresses_of(&world, "gitlab.corp.test").await.is_empty());
    let server = world.internet.server(&format!("{INNER}:3141")).await;
    let mut inside = world.connect(&format!("{stand_in}:3141")).await;
    let hello = client_hello(NAME);
    say(&mut inside, &hello).await;
    let mut outside = accepted(&server).await;
    assert_eq!(take(&mut outside, hello.len()).await, hello, "TLS is passed as it is");
    world.round_trip(&mut inside, &mut outside).await;
    assert_eq!(world.internet.dialled(), [format!("{INNER}:3141")]);
    assert_eq!(world.rules(1).await, ["never:private"], "only the neighbour's name");
}

#[tokio::test]
async fn nothing_else_at_the_mirrors_address_is_reached() {
    let (world, stand_in) = mirrored(Policy::of(Base::Public)).await;
    let _server = world.internet.server(&format!("{INNER}:443")).await;
    for (to, name, rule) in [
        (format!("{stand_in}:8443"), NAME, "never:benchmarking"),
        ("198.19.255.254:443".to_string(), NAME, "never:benchmarking"),
        (format!("{INNER}:443"), NAME, "never:private"),
        ("169.254.169.254:80".to_string(), NAME, "never:metadata"),
        // Another site at the same address, and a connection that says no name.
        (format!("{stand_in}:443"), "gitlab.corp.test", "mirror:other-name"),
        (format!("{stand_in}:443"), "", "mirror:other-name"),
    ] {
        let before = world.refusals().len();
        let mut inside = world.connect(&to).await;
        let hello = if name.is_empty() { b"SSH-2.0-x\r\n".to_vec() } else { client_hello(name) };
        say(&mut inside, &hello).await;
        assert_reset(&mut inside).await;
        let rules = world.rules(before + 1).await;
        assert_eq!(rules[before..], [rule.to_string()], "{to} {name}");
    }
    let refused = world.refusals();
    let last = refused.last().unwrap();
    assert_eq!(last.address.unwrap().to_string(), stand_in, "a refusal does not say where the mirror is");
    assert!(world.internet.dialled().is_empty());
}

#[tokio::test]
async fn each_request_of_plain_http_is_for_the_mirror() {
    let (world, stand_in) = mirrored(Policy::of(Base::Web)).await;
    let server = world.internet.server(&format!("{INNER}:80")).await;
    let mut inside = world.connect(&format!("{stand_in}:80")).await;
    let get = |host: &str| format!("GET /debian HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
    // Two at once, as apt sends them.
    say(&mut inside, &[get(NAME), get(NAME)].concat()).await;
    let mut outside = accepted(&server).await;
    for _ in 0..2 {
        assert!(head(&mut outside).await.starts_with("GET /debian HTTP/1.1\r\n"));
        say(&mut outside, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert!(head(&mut inside).await.starts_with("HTTP/1.1 200"));
        assert_eq!(take(&mut inside, 2).await, b"ok");
    }
    say(&mut inside, &get("gitlab.corp.test")).await;
    assert!(head(&mut inside).await.starts_with("HTTP/1.1 421"));
    assert!(end(&mut outside).await.unwrap().is_empty(), "nothing more was passed on");
    // The first request, too.
    let mut inside = world.connect(&format!("{stand_in}:80")).await;
    say(&mut inside, &get("gitlab.corp.test")).await;
    assert_reset(&mut inside).await;
    assert_eq!(world.rules(1).await, ["mirror:other-name"]);
}

#[tokio::test]
async fn policies_close_a_mirror_and_cut_what_is_open() {
    let (world, stand_in) = mirrored(Policy::default()).await;
    assert!(addresses_of(&world, NAME).await.is_empty());
    assert_reset(&mut world.connect(&format!("{stand_in}:443")).await).await;
    assert_eq!(world.rules(2).await, ["base:none"; 2]);
    assert_eq!(world.refusals()[1].name.as_ref().unwrap().as_str(), NAME);

    let set = |policy| world.egress.replace_policy(world.id, policy).unwrap();
    set(policy(Base::None, &[NAME], &[]));
    let server = world.internet.server(&format!("{INNER}:443")).await;
    let (mut inside, mut outside) = open(&world, &server, &stand_in).await;
    assert_eq!(set(policy(Base::Public, &["*"], &["*.corp.test"])), 1);
    assert_reset(&mut inside).await;
    assert_eq!(world.refusals().last().unwrap().kind, RefusedKind::Cut);
    assert_eq!(world.rules(3).await[2], "deny:*.corp.test");
    assert!(end(&mut outside).await.is_err());

    // An operator who takes a mirror back closes it, too.
    set(Policy::of(Base::Web));
    let (mut inside, _outside) = open(&world, &server, &stand_in).await;
    world.egress.replace_walls(walls([]));
    assert_reset(&mut inside).await;
    assert_eq!(world.rules(4).await[3], "never:benchmarking");
}

async fn open(world: &World, server: &TcpListener, stand_in: &str) -> (TcpStream, TcpStream) {
    let mut inside = world.connect(&format!("{stand_in}:443")).await;
    let hello = client_hello(NAME);
    say(&mut inside, &hello).await;
    let mut outside = accepted(server).await;
    take(&mut outside, hello.len()).await;
    (inside, outside)
}

#[tokio::test]
async fn a_resolver_cannot_lead_a_mirror_to_this_machine_or_to_credentials() {
    for (address, rule) in [
        ("127.0.0.1", "never:loopback"),
        ("10.0.0.9", "never:host"),
        (OWN, "never:host"),
        ("169.254.169.254", "never:metadata"),
        ("169.254.1.1", "never:link-local"),
        ("198.19.1.1", "never:benchmarking"),
    ] {
        let (world, stand_in) = mirrored(Policy::of(Base::Public)).await;
        world.internet.name(NAME, &[address]);
        let _server = world.internet.server(&format!("{address}:443")).await;
        let mut inside = world.connect(&format!("{stand_in}:443")).await;
        say(&mut inside, &client_hello(NAME)).await;
        assert_reset(&mut inside).await;
        assert_eq!(world.rules(1).await, [rule], "{address}");
        let refusal = &world.refusals()[0];
        assert_eq!(refusal.address.unwrap().to_string(), stand_in);
        assert!(world.internet.dialled().is_empty());
    }
    let (world, stand_in) = mirrored(Policy::of(Base::Public)).await;
    world.internet.name(NAME, &[]);
    let mut inside = world.connect(&format!("{stand_in}:443")).await;
    say(&mut inside, &client_hello(NAME)).await;
    assert_reset(&mut inside).await;
    assert_eq!(world.rules(1).await, ["name-without-address"]);
}

#[tokio::test]
async fn a_mirror_on_this_machine_is_reached_if_the_operator_wrote_its_address() {
    let world = World::new(Policy::of(Base::Web)).await;
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let name = "apt.mirrors.coffer.internal";
    let walls = walls([Mirror { address: "127.0.0.1".parse().ok(), ..mirror(name, &[port]) }]);
    let stand_in = walls.mirrors().named(&name.parse().unwrap()).unwrap().0;
    world.egress.replace_walls(walls);
    assert_eq!(addresses_of(&world, name).await, [std::net::IpAddr::from(stand_in)]);
    let mut inside = world.connect(&format!("{stand_in}:{port}")).await;
    say(&mut inside, format!("GET / HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n").as_bytes()).await;
    assert!(head(&mut accepted(&server).await).await.starts_with("GET / "));
    assert!(world.internet.looked_up.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_mirror_is_dialled_directly_though_the_sandbox_has_a_proxy() {
    let proxy = Proxy::new("5.5.5.5:1080", None, None).unwrap();
    let (world, stand_in) = mirrored(Policy::of(Base::Web).through(Some(proxy))).await;
    let server = world.internet.server(&format!("{INNER}:443")).await;
    let _both = open(&world, &server, &stand_in).await;
    until(|| world.internet.dialled() == [format!("{INNER}:443")]).await;
}
