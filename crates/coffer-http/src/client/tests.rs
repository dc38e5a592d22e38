use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::address::anywhere;

const PATIENCE: Duration = Duration::from_secs(10);
const WHOLE: Read = Read::Whole { most: 100 };
const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &str) {
    let mut request = [0; 1024];
    while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
        let _ = stream.write_all(text.as_bytes()).await;
    }
}

/// A server that gives every request the same answer, and counts its connections.
async fn server(ip: [u8; 4], text: &'static str) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((IpAddr::from(ip), 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(answer(stream, text));
        }
    });
    (port, connections)
}

fn request() -> Request<Full<Bytes>> {
    Request::get("/").header("host", "x").body(Full::default()).unwrap()
}

async fn get(port: u16, check: Check<'_>, read: Read) -> Result<Response<Bytes>, Failure> {
    let to = Address::parse(&format!("http://127.0.0.1:{port}/")).unwrap();
    Client::new(None).send(&to, check, request(), read, PATIENCE).await
}

#[tokio::test]
async fn the_checked_address_is_the_one_that_is_dialled() {
    // Listens on 127.0.0.2 alone: a client that dialled what the URL names would find no server.
    let (port, connections) = server([127, 0, 0, 2], HELLO).await;
    let moved = |_| Ok(IpAddr::from([127, 0, 0, 2]));
    assert_eq!(get(port, &moved, WHOLE).await.unwrap().body(), "hello");
    let refused = get(port, &anywhere, WHOLE).await.unwrap_err();
    assert!(matches!(refused, Failure::Connect(..)) && refused.is_unsent(), "{refused}");
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_refused_address_is_never_dialled() {
    let (port, connections) = server([127, 0, 0, 1], HELLO).await;
    let refused = get(port, &|ip| Err(format!("{ip} is near").into()), WHOLE).await.unwrap_err();
    assert_eq!(refused.to_string(), "127.0.0.1 is near");
    assert!(get(port, &anywhere, WHOLE).await.is_ok());
    assert_eq!(connections.load(Ordering::SeqCst), 1, "the refused request made no connection");
}

#[tokio::test]
async fn redirects_are_answers() {
    let (elsewhere, reached) = server([127, 0, 0, 1], HELLO).await;
    let moved =
        format!("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{elsewhere}/\r\ncontent-length: 0\r\n\r\n");
    let (port, _) = server([127, 0, 0, 1], moved.leak()).await;
    assert_eq!(get(port, &anywhere, WHOLE).await.unwrap().status(), 302);
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn answers_are_bounded() {
    let (port, _) = server([127, 0, 0, 1], HELLO).await;
    let long = get(port, &anywhere, Read::Whole { most: 4 }).await.unwrap_err();
    assert!(matches!(long, Failure::TooLong), "{long}");
    let first = Read::Beginning { most: 4, patience: PATIENCE };
    assert_eq!(get(port, &anywhere, first).await.unwrap().body(), "hell");
    // The client stops reading a body that never ends after its timeout.
    let (port, _) = server([127, 0, 0, 1], "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello").await;
    let first = Read::Beginning { most: 100, patience: Duration::from_millis(100) };
    assert_eq!(get(port, &anywhere, first).await.unwrap().body(), "hello");
    let head = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(4 * LONGEST_HEAD));
    let (port, _) = server([127, 0, 0, 1], head.leak()).await;
    let failed = get(port, &anywhere, WHOLE).await.unwrap_err();
    assert!(matches!(failed, Failure::Exchange(_)) && !failed.is_unsent(), "{failed}");
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let (port, _) = server([127, 0, 0, 1], "").await;
    let to = Address::parse(&format!("http://127.0.0.1:{port}/")).unwrap();
    let patience = Duration::from_millis(200);
    let failed = Client::new(None).send(&to, &anywhere, request(), WHOLE, patience).await.unwrap_err();
    assert!(matches!(failed, Failure::Timeout(_)) && !failed.is_unsent());
    assert_eq!(failed.to_string(), "no answer within 0.2 s");
}

#[tokio::test]
async fn a_connection_serves_more_than_one_request() {
    let (port, connections) = server([127, 0, 0, 1], HELLO).await;
    let to = Address::parse(&format!("http://127.0.0.1:{port}/")).unwrap();
    let mut connection = Client::new(None).connect(&to, &anywhere, PATIENCE).await.unwrap();
    for _ in 0..3 {
        assert_eq!(connection.exchange(request(), WHOLE).await.unwrap().body(), "hello");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_body_is_read_piece_by_piece_and_its_end_is_known() {
    let begin = async |text: &'static str| {
        let (port, _) = server([127, 0, 0, 1], text).await;
        let to = Address::parse(&format!("http://127.0.0.1:{port}/")).unwrap();
        let connection = Client::new(None).connect(&to, &anywhere, PATIENCE).await.unwrap();
        connection.begin(request()).await.unwrap().into_body()
    };
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";
    let mut pieces = begin(chunked).await;
    let mut all = Vec::new();
    while let Some(piece) = pieces.next(PATIENCE).await.unwrap() {
        all.extend_from_slice(&piece);
    }
    assert_eq!(all, b"hello");
    assert_eq!(begin(HELLO).await.whole(5, PATIENCE).await.unwrap(), "hello");
    assert!(matches!(begin(HELLO).await.whole(4, PATIENCE).await, Err(Failure::TooLong)));
    // The rest of the body never comes.
    let mut pieces = begin("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello").await;
    assert_eq!(pieces.next(PATIENCE).await.unwrap().unwrap(), "hello");
    let failed = pieces.next(Duration::from_millis(100)).await.unwrap_err();
    assert!(matches!(failed, Failure::Timeout(_)), "{failed}");
    // A size that is no size.
    let mut pieces = begin("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n").await;
    assert!(matches!(pieces.next(PATIENCE).await, Err(Failure::BrokenOff)));
}

#[tokio::test]
async fn certificates_are_checked_against_known_authorities_and_the_name() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(answer(stream, HELLO));
            }
        }
    });
    let get = async |client: Client, host: &str| {
        let to = Address::parse(&format!("https://{host}:{port}/")).unwrap();
        let home = |_| Ok(IpAddr::from([127, 0, 0, 1]));
        client.send(&to, &home, request(), WHOLE, PATIENCE).await
    };
    let trusting = Client::new(Some(&made.cert.pem()));
    assert_eq!(get(trusting.clone(), "localhost").await.unwrap().body(), "hello");
    for failed in [get(trusting, "127.0.0.1").await, get(Client::new(None), "localhost").await] {
        assert!(matches!(failed, Err(Failure::Tls(_))), "{failed:?}");
    }
}

#[test]
fn retry_after_is_read_in_seconds() {
    let mut headers = HeaderMap::new();
    assert_eq!(retry_after(&headers), None);
    for (value, wait) in [("7", Some(7)), ("Wed, 21 Oct 2015 07:28:00 GMT", None), ("-1", None)] {
        headers.insert("retry-after", value.parse().unwrap());
        assert_eq!(retry_after(&headers), wait.map(Duration::from_secs), "{value}");
    }
}
