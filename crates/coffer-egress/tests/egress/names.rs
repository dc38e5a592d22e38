//! DNS questions.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::network::RefusedKind;
use coffer_core::network::{Base, Policy};
use coffer_egress::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::world::{OWN, PATIENCE, World, policy, until};

const A: u16 = 1;
const AAAA: u16 = 28;
const HTTPS: u16 = 65;
const REFUSED: u8 = 5;
const NO_SUCH_NAME: u8 = 3;
const FAILED: u8 = 2;

pub(crate) fn question(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut out: Vec<u8> = [id, 0x0100, 1, 0, 0, 0].iter().flat_map(|n| n.to_be_bytes()).collect();
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out.extend(kind.to_be_bytes());
    out.extend([0, 1]);
    out
}

#[derive(Debug, PartialEq)]
struct Answer {
    code: u8,
    addresses: Vec<IpAddr>,
    ttl_s: Option<u32>,
    truncated: bool,
}

fn fine(addresses: &[&str]) -> (u8, Vec<IpAddr>) {
    (0, addresses.iter().map(|text| text.parse().unwrap()).collect())
}

/// Reads an answer to `question`, whose records all belong to the asked name.
fn read(question: &[u8], answer: &[u8]) -> Answer {
    assert_eq!(answer[..2], question[..2], "the id");
    assert_eq!(answer[2] & 0x80, 0x80, "it is an answer");
    let count = u16::from_be_bytes([answer[6], answer[7]]);
    assert_eq!(answer[12..question.len()], question[12..], "the question");
    let mut at = question.len();
    let (mut addresses, mut ttl_s) = (Vec::new(), None);
    for _ in 0..count {
        assert_eq!(answer[at..at + 2], [0xc0, 12]);
        ttl_s = Some(u32::from_be_bytes(answer[at + 6..at + 10].try_into().unwrap()));
        let length = usize::from(answer[at + 11]);
        let data = &answer[at + 12..at + 12 + length];
        addresses.push(match length {
            4 => IpAddr::from(<[u8; 4]>::try_from(data).unwrap()),
            16 => IpAddr::from(<[u8; 16]>::try_from(data).unwrap()),
            other => panic!("{other}"),
        });
        at += 12 + length;
    }
    assert_eq!(at, answer.len());
    Answer { code: answer[3] & 15, addresses, ttl_s, truncated: answer[2] & 2 != 0 }
}

async fn ask(world: &World, name: &str, kind: u16) -> Answer {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let question = question(7, name, kind);
    socket.send_to(&question, world.dns_udp).await.unwrap();
    let mut buffer = [0; 2048];
    let length = timeout(PATIENCE, socket.recv(&mut buffer)).await.expect("no answer").unwrap();
    read(&question, &buffer[..length])
}

/// The IPv4 addresses that a name has for a sandbox.
pub(crate) async fn addresses_of(world: &World, name: &str) -> Vec<IpAddr> {
    ask(world, name, A).await.addresses
}

async fn ask_by_tcp(stream: &mut TcpStream, name: &str, kind: u16) -> Answer {
    let question = question(9, name, kind);
    let length = u16::try_from(question.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length[..], &question].concat()).await.unwrap();
    let mut answer = vec![0; timeout(PATIENCE, stream.read_u16()).await.expect("no answer").unwrap().into()];
    stream.read_exact(&mut answer).await.unwrap();
    read(&question, &answer)
}

fn plain(answer: Answer) -> (u8, Vec<IpAddr>) {
    (answer.code, answer.addresses)
}

#[tokio::test]
async fn allowed_names_have_addresses_and_others_are_refused() {
    let world = World::new(policy(Base::Public, &["*.good.com"], &["0.0.0.0/0", "::/0"])).await;
    world.internet.name("a.good.com", &["1.1.1.1", "2606:4700::1", "1.0.0.1"]);
    world.internet.name("evil.com", &["6.6.6.6"]);
    assert_eq!(plain(ask(&world, "a.good.com", A).await), fine(&["1.1.1.1", "1.0.0.1"]));
    assert_eq!(plain(ask(&world, "A.GOOD.com", AAAA).await), fine(&["2606:4700::1"]));
    assert_eq!(plain(ask(&world, "a.good.com", HTTPS).await), fine(&[]));
    assert_eq!(ask(&world, "none.good.com", A).await.code, NO_SUCH_NAME);
    assert_eq!(ask(&world, "evil.com", A).await.code, REFUSED);
    assert_eq!(ask(&world, "secret.evil.com", HTTPS).await.code, REFUSED);
    assert_eq!(world.rules(2).await, ["deny:0.0.0.0/0"; 2]);
    let refusal = &world.refusals()[0];
    assert_eq!((refusal.kind, refusal.name.as_ref().unwrap().as_str()), (RefusedKind::Question, "evil.com"));
    // Refused names are not looked up.
    assert!(world.internet.looked_up.lock().unwrap().iter().all(|name| name.ends_with("good.com")));
    assert_eq!(world.egress.traffic(world.id).unwrap().questions, 6);
}

#[tokio::test]
async fn nothing_is_answered_where_nothing_is_allowed() {
    let world = World::new(Policy::default()).await;
    world.internet.name("a.com", &["1.1.1.1"]);
    assert_eq!(ask(&world, "a.com", A).await.code, REFUSED);
    assert_eq!(world.rules(1).await, ["base:none"]);
    world.egress.replace_policy(world.id, Policy::of(Base::Web)).unwrap();
    assert_eq!(plain(ask(&world, "a.com", A).await), fine(&["1.1.1.1"]));
    world.egress.replace_policy(world.id, Policy::default()).unwrap();
    assert_eq!(ask(&world, "a.com", A).await.code, REFUSED, "a cached answer is no permission");
}

#[tokio::test]
async fn inner_addresses_are_left_out_of_answers() {
    let world = World::new(Policy::of(Base::Public)).await;
    world.internet.name("mixed.com", &["10.0.0.1", "1.1.1.1", "127.0.0.1", OWN]);
    world.internet.name("inner.com", &["169.254.169.254", "::1", "::ffff:1.1.1.1"]);
    assert_eq!(plain(ask(&world, "mixed.com", A).await), fine(&["1.1.1.1"]));
    assert_eq!(ask(&world, "inner.com", A).await.code, REFUSED);
    assert_eq!(plain(ask(&world, "inner.com", AAAA).await), (REFUSED, vec![]));
    assert_eq!(world.rules(3).await, ["never:host", "never:metadata", "never:loopback"]);
    assert_eq!(world.refusals()[1].address, Some("169.254.169.254".parse().unwrap()));
}

#[tokio::test]
async fn answers_are_kept_for_a_bounded_time() {
    let world = World::new(Policy::of(Base::Web)).await;
    world.internet.name("a.com", &["1.1.1.1"]);
    *world.internet.ttl.lock().unwrap() = Duration::from_secs(86_400);
    let ttl_s = ask(&world, "a.com", A).await.ttl_s.unwrap();
    assert!((58..=60).contains(&ttl_s), "{ttl_s}");
    world.internet.name("a.com", &["2.2.2.2"]);
    assert_eq!(plain(ask(&world, "a.com", A).await), fine(&["1.1.1.1"]), "from the cache");
    assert_eq!(world.internet.looked_up.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_long_answer_is_cut_by_udp_and_whole_by_tcp() {
    let world = World::new(Policy::of(Base::Web)).await;
    let addresses: Vec<String> = (0..40).map(|n| format!("2606:4700::{n}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    world.internet.name("many.com", &addresses);
    let cut = ask(&world, "many.com", AAAA).await;
    assert!(cut.truncated && cut.addresses.len() < 20, "{cut:?}");
    let mut stream = TcpStream::connect(world.dns_tcp).await.unwrap();
    let whole = ask_by_tcp(&mut stream, "many.com", AAAA).await;
    assert_eq!((whole.truncated, whole.addresses.len()), (false, 32));
    // The same connection serves again, and a refusal uses it too.
    assert_eq!(ask_by_tcp(&mut stream, "none.com", A).await.code, NO_SUCH_NAME);
    world.egress.replace_policy(world.id, Policy::default()).unwrap();
    assert_eq!(ask_by_tcp(&mut stream, "many.com", A).await.code, REFUSED);
}

#[tokio::test]
async fn nonsense_does_not_stop_the_answers() {
    let world = World::new(Policy::of(Base::Web)).await;
    world.internet.name("a.com", &["1.1.1.1"]);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for nonsense in [&b""[..], b"\0", &[0xff; 12], &[0xff; 1400], &question(1, "a.com", A)[..15], &[0; 12]] {
        socket.send_to(nonsense, world.dns_udp).await.unwrap();
        let mut stream = TcpStream::connect(world.dns_tcp).await.unwrap();
        stream.write_all(&u16::try_from(nonsense.len()).unwrap().to_be_bytes()).await.unwrap();
        stream.write_all(nonsense).await.unwrap();
    }
    let mut too_long = TcpStream::connect(world.dns_tcp).await.unwrap();
    too_long.write_all(&[0xff, 0xff, 0]).await.unwrap();
    // It is closed without an answer; by a reset if bytes were left unread.
    assert!(crate::world::end(&mut too_long).await.unwrap_or_default().is_empty());
    assert_eq!(plain(ask(&world, "a.com", A).await), fine(&["1.1.1.1"]));
}

#[tokio::test]
async fn a_sandbox_asks_so_many_questions_at_a_time_and_no_more() {
    let settings = Settings { questions: 4, ..Settings::default() };
    let world = World::with(Policy::of(Base::Web), settings).await;
    world.internet.name("a.com", &["1.1.1.1"]);
    let gate = Arc::new(Semaphore::new(0));
    *world.internet.gate.lock().unwrap() = Some(Arc::clone(&gate));
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for id in 0..4 {
        socket.send_to(&question(id, "a.com", A), world.dns_udp).await.unwrap();
    }
    until(|| world.internet.looked_up.lock().unwrap().len() == 4).await;
    assert_eq!(ask(&world, "a.com", A).await.code, FAILED);
    assert_eq!(world.rules(1).await, ["limit:questions"]);
    gate.add_permits(100);
    let mut buffer = [0; 512];
    for _ in 0..4 {
        timeout(PATIENCE, socket.recv(&mut buffer)).await.expect("no answer").unwrap();
        assert_eq!(buffer[3] & 15, 0);
    }
    assert_eq!(plain(ask(&world, "a.com", A).await), fine(&["1.1.1.1"]));
}

#[tokio::test]
async fn a_resolver_that_hangs_is_given_up() {
    let settings = Settings { look_up: Duration::from_millis(100), ..Settings::default() };
    let world = World::with(Policy::of(Base::Web), settings).await;
    *world.internet.gate.lock().unwrap() = Some(Arc::new(Semaphore::new(0)));
    assert_eq!(ask(&world, "a.com", A).await.code, FAILED);
}

#[tokio::test]
async fn questions_by_tcp_are_bounded_in_connections() {
    let world = World::new(Policy::of(Base::Web)).await;
    let mut held = Vec::new();
    for _ in 0..32 {
        let mut stream = TcpStream::connect(world.dns_tcp).await.unwrap();
        assert_eq!(ask_by_tcp(&mut stream, "none.com", A).await.code, NO_SUCH_NAME);
        held.push(stream);
    }
    crate::world::assert_reset(&mut TcpStream::connect(world.dns_tcp).await.unwrap()).await;
    assert_eq!(world.rules(1).await, ["limit:questions"]);
}
