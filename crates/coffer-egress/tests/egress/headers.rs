//! Headers for named hosts: which requests get them, and what hostile clients cannot do.

use std::sync::Arc;

use coffer_core::network::Policy;
use coffer_egress::{Authority, AuthorityText};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::world::{PATIENCE, World, accepted, assert_reset, until};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Another authority, of which the internet has many.
struct Outside {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Outside {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = authority.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(authority, key) }
    }

    fn acceptor(&self, name: &str) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let leaf =
            CertificateParams::new(vec![name.to_string()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A sandbox that trusts its installation and `outside`, and a host `api.test` with rules.
struct Place {
    world: World,
    outside: Outside,
    server: TcpListener,
    authority: String,
}

fn rules(token: &str) -> Policy {
    let headers = json!([{"hosts": ["api.test"], "headers": {"Authorization": token}}]);
    serde_json::from_value(json!({"base": "web", "headers": headers})).unwrap()
}

impl Place {
    async fn new(policy: Policy) -> Self {
        let (world, outside) = (World::new(policy).await, Outside::new());
        let text = AuthorityText::generate().unwrap();
        world.egress.replace_authority(Authority::new(&text, &outside.certificate).unwrap());
        let server = world.internet.server("1.1.1.1:443").await;
        world.internet.name("api.test", &["1.1.1.1"]);
        Self { world, outside, server, authority: text.certificate }
    }

    fn connector(&self, roots: &[&str]) -> TlsConnector {
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(store)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }

    /// A connection of the sandbox to `api.test`, at an invented address, and the host's end of it.
    async fn open(&self) -> (client::TlsStream<TcpStream>, server::TlsStream<TcpStream>) {
        let stream = self.world.connect("9.9.9.9:443").await;
        let connector = self.connector(&[&self.authority]);
        let inside = connector.connect(ServerName::try_from("api.test").unwrap(), stream);
        let outside = async { self.outside.acceptor("api.test").accept(accepted(&self.server).await).await };
        let (inside, outside) = timeout(PATIENCE, async { tokio::join!(inside, outside) }).await.unwrap();
        (inside.expect("the sandbox trusts it"), outside.expect("egress trusts the host"))
    }
}

/// Reads a head.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let byte = timeout(PATIENCE, stream.read_u8()).await.expect("no head came");
        bytes.push(byte.unwrap_or_else(|error| panic!("{error} after {}", String::from_utf8_lossy(&bytes))));
    }
    String::from_utf8(bytes).unwrap()
}

async fn say(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
}

/// Everything until the end, in any form.
async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("it goes on");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn every_request_of_a_connection_gets_the_token_and_none_of_the_sandboxs_own() {
    let place = Place::new(rules("Bearer one")).await;
    let (mut inside, mut outside) = place.open().await;
    assert_eq!(place.world.internet.dialled(), ["1.1.1.1:443"], "the address is ours");
    say(&mut inside, b"POST /a HTTP/1.1\r\nHost: api.test\r\naUTHORIZATION: mine\r\nAuthorization: two\r\nContent-Length: 4\r\n\r\nbody").await;
    let sent = head(&mut outside).await;
    assert!(sent.starts_with("POST /a HTTP/1.1\r\n"), "{sent}");
    let tokens: Vec<_> =
        sent.lines().filter(|line| line.to_lowercase().starts_with("authorization:")).collect();
    assert!(tokens.len() == 1 && tokens[0].ends_with("Bearer one"), "{sent}");
    let mut body = [0; 4];
    outside.read_exact(&mut body).await.unwrap();
    assert_eq!(&body, b"body");
    say(&mut outside, OK).await;
    assert!(head(&mut inside).await.starts_with("HTTP/1.1 200"));
    inside.read_exact(&mut [0; 2]).await.unwrap();
    // Two at once, one of them in the absolute form and in chunks, after the secret has changed.
    place.world.egress.replace_policy(place.world.id, rules("Bearer two")).unwrap();
    say(&mut inside, b"PUT https://api.test/b HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\nGET /c HTTP/1.1\r\nHost: api.test:443\r\n\r\n").await;
    let sent = head(&mut outside).await;
    assert!(sent.starts_with("PUT /b HTTP/1.1\r\n") && sent.contains("Bearer two"), "{sent}");
    let mut chunks = [0; 13];
    outside.read_exact(&mut chunks).await.unwrap();
    assert_eq!(&chunks, b"3\r\nabc\r\n0\r\n\r\n");
    say(&mut outside, OK).await;
    let sent = head(&mut outside).await;
    assert!(sent.starts_with("GET /c HTTP/1.1\r\n") && sent.contains("Bearer two"), "{sent}");
    say(&mut outside, OK).await;
    for _ in 0..2 {
        assert!(head(&mut inside).await.starts_with("HTTP/1.1 200"));
        inside.read_exact(&mut [0; 2]).await.unwrap();
    }
    drop(inside);
    assert_eq!(rest(&mut outside).await, "");
    until(|| place.world.egress.traffic(place.world.id).unwrap().open == 0).await;
    assert!(place.world.egress.traffic(place.world.id).unwrap().sent_bytes > 100);
}

#[tokio::test]
async fn a_request_that_is_doubtful_or_for_another_host_is_not_sent_on() {
    let long = format!("GET / HTTP/1.1\r\nHost: api.test\r\nX: {}\r\n\r\n", "a".repeat(200_000));
    let many = format!("GET / HTTP/1.1\r\nHost: api.test\r\n{}\r\n", "X: y\r\n".repeat(1000));
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: other.test\r\n\r\n", "421"),
        ("GET / HTTP/1.1\r\nHost: api.test:80\r\n\r\n", "421"),
        ("GET https://other.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n", "421"),
        ("GET https://api.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n", "421"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: api.test\r\nHost: other.test\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: api.test\r\n folded\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost : api.test\r\n\r\n", "400"),
        ("CONNECT api.test:443 HTTP/1.1\r\nHost: api.test\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", "400"),
        ("POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: +5\r\n\r\nabcde", "400"),
        ("POST / HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "400"),
        (
            "POST / HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
            "400",
        ),
        ("POST / HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: api.test\r\nX: a\0b\r\n\r\n", "400"),
        ("GET / HTTP/2.0\r\nHost: api.test\r\n\r\n", ""),
        ("\0\0\0\0\0\0\0\0", ""),
        // Too long to be read completely, so that a reset may overtake the answer.
        (&long, ""),
        (&many, "431"),
    ] {
        let place = Place::new(rules("Bearer hidden")).await;
        let (mut inside, mut outside) = place.open().await;
        let shown: String = request.chars().take(100).collect();
        // The answer may arrive before everything was sent.
        let _ = inside.write_all(request.as_bytes()).await;
        // The rest must not be taken for another request.
        let _ = inside.write_all(b"GET /smuggled HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        let _ = inside.flush().await;
        let answer = rest(&mut inside).await;
        let answered = answer.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..)).unwrap_or_default();
        assert!(answered.starts_with(status), "{shown}: {answer}");
        assert!(!answer.contains("hidden"), "{shown}: {answer}");
        assert_eq!(rest(&mut outside).await, "", "{shown}");
    }
}

#[tokio::test]
async fn a_body_cannot_become_a_request() {
    let place = Place::new(rules("Bearer hidden")).await;
    for (request, sent) in [
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: 44\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: other.test\r\n\r\n",
            1,
        ),
        // Two lengths, of which one is used and sent on.
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: other.test\r\n\r\n",
            1,
        ),
        // An invalid end of a chunk, an invalid size, and an extension full of lines.
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcGET /smuggled HTTP/1.1\r\nHost: api.test\r\n\r\n",
            1,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: api.test\r\n\r\n",
            1,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nGET /smuggled HTTP/1.1\r\nHost: api.test\r\n\r\n",
            1,
        ),
        (
            "POST /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n3;\nx\r\nabc\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: api.test\r\n\r\n",
            1,
        ),
    ] {
        let (mut inside, mut outside) = place.open().await;
        let _ = inside.write_all(request.as_bytes()).await;
        let _ = inside.flush().await;
        let _ = inside.shutdown().await;
        // Time for a request that might follow.
        let _ = outside.write_all(OK).await;
        let _ = outside.flush().await;
        let seen = rest(&mut outside).await;
        let both = seen.to_lowercase().contains("content-length")
            && seen.to_lowercase().contains("transfer-encoding");
        assert!(!both, "{request}: {seen}");
        let tokens = seen.matches("Bearer hidden").count();
        assert!(tokens <= sent, "{request}: {seen}");
        if let Some((_, after)) = seen.split_once("\r\n\r\n") {
            assert!(!after.contains("Bearer hidden"), "{request}: {seen}");
        }
    }
}

#[tokio::test]
async fn other_hosts_and_connections_without_a_name_are_left_alone() {
    let place = Place::new(rules("Bearer hidden")).await;
    place.world.internet.name("other.test", &["1.1.1.1"]);
    let other = ServerName::try_from("other.test").unwrap();
    let nameless = ServerName::try_from("1.1.1.1").unwrap();
    for (name, certified) in [(other, "other.test"), (nameless, "1.1.1.1")] {
        let stream = place.world.connect("1.1.1.1:443").await;
        // A client that trusts only the outside connects: the certificate is the host's own.
        let connector = place.connector(&[&place.outside.certificate]);
        let outside =
            async { place.outside.acceptor(certified).accept(accepted(&place.server).await).await.unwrap() };
        let (inside, mut outside) =
            timeout(PATIENCE, async { tokio::join!(connector.connect(name, stream), outside) })
                .await
                .unwrap();
        let mut inside = inside.unwrap();
        // Even if it claims to be for the other.
        say(&mut inside, b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        assert_eq!(head(&mut outside).await, "GET / HTTP/1.1\r\nHost: api.test\r\n\r\n");
    }
}

#[tokio::test]
async fn a_host_that_cannot_prove_its_name_gets_no_request() {
    let place = Place::new(rules("Bearer hidden")).await;
    let strangers = Outside::new();
    for acceptor in [strangers.acceptor("api.test"), place.outside.acceptor("other.test")] {
        let stream = place.world.connect("1.1.1.1:443").await;
        let connector = place.connector(&[&place.authority]);
        let inside = connector.connect(ServerName::try_from("api.test").unwrap(), stream);
        let outside = async { acceptor.accept(accepted(&place.server).await).await };
        let (inside, outside) = timeout(PATIENCE, async { tokio::join!(inside, outside) }).await.unwrap();
        let mut inside = inside.unwrap();
        say(&mut inside, b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        let answer = rest(&mut inside).await;
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("certificate"), "{answer}");
        if let Ok(mut outside) = outside {
            assert_eq!(rest(&mut outside).await, "");
        }
    }
}

#[tokio::test]
async fn what_is_not_known_yet_keeps_the_way_shut() {
    let place = Place::new(rules("Bearer hidden").without_secrets()).await;
    let stream = place.world.connect("1.1.1.1:443").await;
    let connector = place.connector(&[&place.authority]);
    assert!(connector.connect(ServerName::try_from("api.test").unwrap(), stream).await.is_err());
    assert_eq!(place.world.rules(1).await, ["secrets-unknown"]);
    // Once the secrets are known, connections are allowed.
    place.world.egress.replace_policy(place.world.id, rules("Bearer told")).unwrap();
    let (mut inside, mut outside) = place.open().await;
    say(&mut inside, b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
    assert!(head(&mut outside).await.contains("Bearer told"));
    // And what a later policy forbids is cut.
    let shut = serde_json::from_value(json!({"base": "none"})).unwrap();
    assert_eq!(place.world.egress.replace_policy(place.world.id, shut).unwrap(), 1);
    rest(&mut inside).await;
    rest(&mut outside).await;
}

#[tokio::test]
async fn rules_that_went_away_put_nothing_in_any_more() {
    let place = Place::new(rules("Bearer hidden")).await;
    let (mut inside, mut outside) = place.open().await;
    place
        .world
        .egress
        .replace_policy(place.world.id, serde_json::from_value(json!({"base": "web"})).unwrap())
        .unwrap();
    say(&mut inside, b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
    let answer = rest(&mut inside).await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("connect again"), "{answer}");
    assert_eq!(rest(&mut outside).await, "");
}

#[tokio::test]
async fn a_websocket_passes_with_the_token_in_its_first_request() {
    let place = Place::new(rules("Bearer one")).await;
    let (mut inside, mut outside) = place.open().await;
    say(&mut inside, b"GET /ws HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n").await;
    let sent = head(&mut outside).await;
    assert!(sent.contains("Bearer one") && sent.to_lowercase().contains("upgrade: websocket"), "{sent}");
    say(
        &mut outside,
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst",
    )
    .await;
    assert!(head(&mut inside).await.starts_with("HTTP/1.1 101"));
    let mut first = [0; 5];
    timeout(PATIENCE, inside.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"first");
    say(&mut inside, b"\x81\x00frames, not HTTP").await;
    let mut frames = [0; 18];
    timeout(PATIENCE, outside.read_exact(&mut frames)).await.unwrap().unwrap();
    assert_eq!(&frames, b"\x81\x00frames, not HTTP");
    drop(outside);
    rest(&mut inside).await;
}

#[tokio::test]
async fn plain_http_gets_headers_only_when_the_rule_says_so() {
    for plain in [false, true] {
        let headers = json!([{"hosts": ["api.test"], "headers": {"X-Token": "hidden"}, "plain_http": plain}]);
        let policy = serde_json::from_value(json!({"base": "web", "headers": headers})).unwrap();
        let place = Place::new(policy).await;
        let server = place.world.internet.server("1.1.1.1:80").await;
        // The address that the sandbox claims for the host; used only if no header is added.
        let _liar = place.world.internet.server("9.9.9.9:80").await;
        let to = if plain { "9.9.9.9:80" } else { "1.1.1.1:80" };
        let mut inside = place.world.connect(to).await;
        say(&mut inside, b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
        let mut outside = accepted(&server).await;
        assert_eq!(head(&mut outside).await.contains("hidden"), plain);
        say(&mut outside, OK).await;
        assert!(head(&mut inside).await.starts_with("HTTP/1.1 200"));
    }
    // At the TLS port, headers are added only to TLS.
    let place = Place::new(rules("Bearer hidden")).await;
    let mut inside = place.world.connect("1.1.1.1:443").await;
    say(&mut inside, b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").await;
    let mut outside = accepted(&place.server).await;
    assert_eq!(head(&mut outside).await, "GET / HTTP/1.1\r\nHost: api.test\r\n\r\n");
    drop(outside);
    // And a forbidden host is not reached because of its headers.
    let headers = json!([{"hosts": ["api.test"], "headers": {"X-Token": "hidden"}}]);
    let shut = json!({"base": "web", "deny": ["api.test"], "headers": headers});
    place.world.egress.replace_policy(place.world.id, serde_json::from_value(shut).unwrap()).unwrap();
    let mut inside = place.world.connect("1.1.1.1:443").await;
    inside.write_all(&crate::world::client_hello("api.test")).await.unwrap();
    assert_reset(&mut inside).await;
}
