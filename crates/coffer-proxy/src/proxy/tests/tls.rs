//! Servers inside that use TLS, with certificates that cannot be verified.

use super::*;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use coffer_guest::Route;

fn acceptor() -> TlsAcceptor {
    // Valid for one day, long ago, and signed by itself.
    let certificate = CertificateDer::from(&include_bytes!("certificate/self-signed.der")[..]);
    let key = PrivatePkcs8KeyDer::from(&include_bytes!("certificate/self-signed.key.der")[..]);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::Pkcs8(key))
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn a_port_set_to_https_is_spoken_to_in_tls() {
    let mut world = World::new().await;
    world.target.https_ports = vec![3000];
    world.route(Route::Running(world.target.clone()));
    Agentd::with_port(world.socket(), |stream| async move {
        let stream = acceptor().accept(stream).await.unwrap();
        let name = stream.get_ref().1.server_name().map(str::to_owned);
        http(stream, move |request: Request<Incoming>| {
            let answer = format!("{} under {name:?}", request.uri());
            async move { Response::new(Body::from(answer)) }
        })
        .await;
    });
    let reply = world.ask("GET", "/a", 3000, "\r\n").await;
    assert_eq!((reply.status, reply.body), (200, format!("/a under Some(\"3000-{}.test\")", world.id)));
}

#[tokio::test]
async fn a_port_set_to_https_that_is_not_is_a_502() {
    let mut world = World::new().await;
    world.target.https_ports = vec![3000];
    world.route(Route::Running(world.target.clone()));
    Agentd::with_port(world.socket(), |stream| http(stream, show));
    let reply = world.ask("GET", "/a", 3000, "\r\n").await;
    assert_eq!(reply.status, 502);
    assert!(reply.body.contains("did not answer in TLS"), "{}", reply.body);
}
