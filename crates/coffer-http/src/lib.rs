//! What every client of ours over HTTP needs: a circuit breaker, and TLS that trusts the machine's authorities.
#![forbid(unsafe_code)]

pub mod breaker;

use std::sync::Arc;

use tokio_rustls::TlsConnector;

/// Checks certificates by what this host trusts.
pub fn client_tls() -> TlsConnector {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the usual versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}
