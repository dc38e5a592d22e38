//! The installation's own certificate authority, and its certificates for hosts.
//!
//! Its certificate is only in the trust stores of this installation's sandboxes; its key is here and in a file
//! of root. It signs certificates only for hosts that a sandbox's rules name.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coffer_core::network::HostName;
use coffer_core::sync::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// Longer than an installation runs without maintenance.
const LIFE_OF_AUTHORITY: time::Duration = time::Duration::days(20 * 365);
const LIFE_OF_LEAF: time::Duration = time::Duration::days(7);
/// For clients whose clocks are behind.
const BEFORE: time::Duration = time::Duration::days(1);
/// How long a certificate is cached.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Most cached certificates; a wildcard may match any number of hosts.
const MOST_KEPT: usize = 512;
/// The only protocol in which requests can be read.
pub(super) const HTTP: &[u8] = b"http/1.1";

/// An authority as stored: its certificate, and its private key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityText {
    pub certificate: String,
    pub key: String,
}

impl fmt::Debug for AuthorityText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityText").finish_non_exhaustive()
    }
}

/// Why an authority cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum BadAuthority {
    #[error("the authority's key or certificate is invalid: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

impl AuthorityText {
    /// Creates a new authority.
    pub fn generate() -> Result<Self, BadAuthority> {
        let key = KeyPair::generate()?;
        let certificate = parameters(&key).self_signed(&key)?.pem();
        Ok(Self { certificate, key: key.serialize_pem() })
    }
}

/// The parameters of an authority's certificate, which follow from its key.
fn parameters(key: &KeyPair) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let id = parameters.key_identifier(key);
    let id = hex::encode(id.get(..4).unwrap_or(&id));
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::OrganizationName, "Cofferdam");
    parameters.distinguished_name.push(DnType::CommonName, format!("Cofferdam sandboxes {id}"));
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = OffsetDateTime::now_utc();
    (parameters.not_before, parameters.not_after) = (now - BEFORE, now + LIFE_OF_AUTHORITY);
    parameters
}

/// Signs certificates for hosts, and verifies those of the outside.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// One key for all hosts: it never leaves this process, and generating keys costs more than signing.
    key: KeyPair,
    hosts: Mutex<HashMap<HostName, (Instant, Arc<ServerConfig>)>>,
    provider: Arc<CryptoProvider>,
    outside: Arc<ClientConfig>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Loads an authority; `roots` are the trusted roots for the outside, as PEM. Invalid ones are skipped;
    /// if there are none, the built-in roots are used.
    pub fn new(text: &AuthorityText, roots: &str) -> Result<Self, BadAuthority> {
        let key = KeyPair::from_pem(&text.key)?;
        let provider = Arc::new(default_provider());
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(CertificateDer::pem_slice_iter(roots.as_bytes()).flatten());
        if store.is_empty() {
            store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let mut outside = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(store)
            .with_no_client_auth();
        outside.alpn_protocols = vec![HTTP.to_vec()];
        Ok(Self {
            issuer: Issuer::new(parameters(&key), key),
            key: KeyPair::generate()?,
            hosts: Mutex::default(),
            provider,
            outside: Arc::new(outside),
        })
    }

    /// The TLS configuration for hosts outside.
    pub(super) fn outside(&self) -> Arc<ClientConfig> {
        self.outside.clone()
    }

    /// The TLS configuration for a sandbox that connects to `host`.
    pub(crate) fn inside(&self, host: &HostName) -> Result<Arc<ServerConfig>, BadAuthority> {
        let hosts = || self.hosts.lock();
        if let Some((made, config)) = hosts().get(host)
            && made.elapsed() < KEPT
        {
            return Ok(config.clone());
        }
        let config = Arc::new(self.make(host)?);
        let mut hosts = hosts();
        if hosts.len() >= MOST_KEPT
            && let Some(oldest) =
                hosts.iter().min_by_key(|(_, (made, _))| *made).map(|(host, _)| host.clone())
        {
            hosts.remove(&oldest);
        }
        hosts.insert(host.clone(), (Instant::now(), config.clone()));
        Ok(config)
    }

    fn make(&self, host: &HostName) -> Result<ServerConfig, BadAuthority> {
        let mut leaf = CertificateParams::new(vec![host.to_string()])?;
        leaf.distinguished_name = DistinguishedName::new();
        leaf.distinguished_name.push(DnType::OrganizationName, "Cofferdam");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let now = OffsetDateTime::now_utc();
        (leaf.not_before, leaf.not_after) = (now - BEFORE, now + LIFE_OF_LEAF);
        let certificate = leaf.signed_by(&self.key, &self.issuer)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![HTTP.to_vec()];
        // A session would outlive the rules under which it began.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}
