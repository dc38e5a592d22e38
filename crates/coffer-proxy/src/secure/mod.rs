//! HTTPS on a port: the server's certificate, which can be replaced while connections are open.

mod certificate;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::sync::Mutex;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::sign::SingleCertAndKey;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use certificate::{BadCertificate, Certificate, CertificateText};

/// How long a client may take for the TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 15 });

/// The certificate that new connections get. Open ones keep theirs.
#[derive(Debug)]
pub struct Certificates(Mutex<Arc<ServerConfig>>);

impl Certificates {
    pub fn new(certificate: Certificate) -> Self {
        Self(Mutex::new(config(certificate)))
    }

    /// From now on new connections get this one.
    pub fn replace(&self, certificate: Certificate) {
        *self.0.lock() = config(certificate);
    }

    /// Takes a client's handshake.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.0.lock().clone();
        let greeted = timeout(HANDSHAKE_WITHIN, TlsAcceptor::from(config).accept(stream)).await;
        greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

fn config(certificate: Certificate) -> Arc<ServerConfig> {
    // Named, not taken from the process: which provider is the default is the binary's choice.
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate.into_key())));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Without tickets every connection of a client costs a signature.
    if let Ok(ticketer) = ring::Ticketer::new() {
        config.ticketer = ticketer;
    }
    Arc::new(config)
}
