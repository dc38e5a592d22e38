//! HTTPS next to plain HTTP on real listeners.

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::port::{Entrances, Secure};
use crate::secure::{Certificate, CertificateText, Certificates};

/// A certificate that is its own authority.
fn pair() -> CertificateText {
    let key = KeyPair::generate().unwrap();
    let names = vec!["coffer.test".to_string(), "*.coffer.test".to_string()];
    let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    CertificateText { certificates: certificate.pem(), key: key.serialize_pem() }
}

/// The addresses of plain HTTP, HTTPS and the redirect of a world, and its certificates.
struct Addresses {
    plain: SocketAddr,
    https: SocketAddr,
    redirect: SocketAddr,
    certificates: Arc<Certificates>,
}

impl World {
    async fn secure(&self, certificate: &CertificateText) -> Addresses {
        let bind = || TcpListener::bind("127.0.0.1:0");
        let (plain, listener, redirect) =
            (bind().await.unwrap(), bind().await.unwrap(), bind().await.unwrap());
        let certificates = Arc::new(Certificates::new(Certificate::parse(certificate).unwrap()));
        let addresses = Addresses {
            plain: plain.local_addr().unwrap(),
            https: listener.local_addr().unwrap(),
            redirect: redirect.local_addr().unwrap(),
            certificates: certificates.clone(),
        };
        let hsts = Some(Duration::from_secs(3600));
        let secure = Some(Secure { listener, certificates, redirect: Some(redirect), hsts });
        tokio::spawn(serve(Entrances { plain, secure }, self.front.clone(), self.stop.clone()));
        addresses
    }
}

/// Connects as a client that trusts one certificate.
async fn greet(
    at: SocketAddr,
    name: &str,
    trusted: &CertificateText,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.certificates.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(at).await?;
    let name = ServerName::try_from(name.to_string()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> Reply {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    // The end without a closing message of TLS is an end too.
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    Reply::parse(&bytes)
}

#[tokio::test]
async fn the_api_and_sandboxes_answer_by_https_and_know_it() {
    let world = World::new().await;
    Agentd::with_port(world.socket(), |stream| {
        http(stream, |request: Request<Incoming>| async move {
            let proto =
                request.headers().get("x-forwarded-proto").map(|value| value.to_str().unwrap().to_string());
            Response::new(Body::from(proto.unwrap_or_default()))
        })
    });
    let certificate = pair();
    let at = world.secure(&certificate).await;
    let mut stream = greet(at.https, "api.coffer.test", &certificate).await.unwrap();
    let ask = "GET / HTTP/1.1\r\nHost: api.coffer.test\r\nConnection: close\r\n\r\n";
    let api = exchange(&mut stream, ask).await;
    assert_eq!((api.status, api.header("strict-transport-security")), (418, Some("max-age=3600")));

    let host = format!("3000-{}.coffer.test", world.id);
    let mut stream = greet(at.https, &host, &certificate).await.unwrap();
    let spoofed =
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-Proto: http\r\nConnection: close\r\n\r\n");
    let inside = exchange(&mut stream, &spoofed).await;
    assert_eq!((inside.status, inside.body.as_str()), (200, "https"));
    assert_eq!(inside.header("strict-transport-security"), None);
}

#[tokio::test]
async fn new_connections_get_the_new_certificate_and_open_ones_stay() {
    let world = World::new().await;
    let (old, new) = (pair(), pair());
    let at = world.secure(&old).await;
    let mut open = greet(at.https, "coffer.test", &old).await.unwrap();
    at.certificates.replace(Certificate::parse(&new).unwrap());
    assert!(greet(at.https, "coffer.test", &old).await.is_err());
    greet(at.https, "coffer.test", &new).await.unwrap();
    let ask = "GET / HTTP/1.1\r\nHost: coffer.test\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(&mut open, ask).await.status, 418);
}

#[tokio::test]
async fn plain_http_serves_this_machine_and_the_other_port_redirects() {
    let world = World::new().await;
    let at = world.secure(&pair()).await;
    let ask = "GET /a?b=c HTTP/1.1\r\nHost: coffer.test\r\nConnection: close\r\n\r\n";
    let mut stream = TcpStream::connect(at.plain).await.unwrap();
    assert_eq!(exchange(&mut stream, ask).await.status, 418, "a program on this machine");
    let mut stream = TcpStream::connect(at.redirect).await.unwrap();
    let reply = exchange(&mut stream, ask).await;
    let expected = format!("https://coffer.test:{}/a?b=c", at.https.port());
    assert_eq!((reply.status, reply.header("location")), (308, Some(expected.as_str())));
}

#[tokio::test]
async fn a_client_that_speaks_no_tls_or_nothing_at_all_is_closed() {
    let world = World::new().await;
    let at = world.secure(&pair()).await;
    let mut sink = Vec::new();
    let mut plain = TcpStream::connect(at.https).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: coffer.test\r\n\r\n").await.unwrap();
    let _ = soon(plain.read_to_end(&mut sink)).await;
    assert!(!sink.starts_with(b"HTTP"), "no answer in clear text");
    let mut silent = TcpStream::connect(at.https).await.unwrap();
    sink.clear();
    let _ = soon(silent.read_to_end(&mut sink)).await;
    assert!(sink.is_empty());
}
