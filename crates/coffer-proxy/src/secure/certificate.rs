//! A certificate with its key, read from PEM, and what can be said about it.

use std::fmt;

use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};
use serde::{Deserialize, Serialize};

/// A certificate and its key as PEM, as the files have them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateText {
    /// The certificate, then those that lead to an authority.
    pub certificates: String,
    pub key: String,
}

/// Without the key.
impl fmt::Debug for CertificateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateText").field("certificates", &self.certificates).finish_non_exhaustive()
    }
}

/// Why a certificate cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCertificate {
    #[error("the certificate file has no `BEGIN CERTIFICATE`")]
    NoCertificate,
    #[error("the key file has no unencrypted private key")]
    NoKey,
    #[error("the key belongs to another certificate")]
    OtherKey,
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
}

/// A certificate whose key fits.
#[derive(Debug)]
pub struct Certificate {
    key: CertifiedKey,
    /// Seconds since 1970.
    not_before_s: i64,
    not_after_s: i64,
}

impl Certificate {
    /// Reads a pair. Neither its time nor its issuer has to be right: clients decide that.
    pub fn parse(text: &CertificateText) -> Result<Self, BadCertificate> {
        let chain = chain(&text.certificates)?;
        let leaf = chain.first().ok_or(BadCertificate::NoCertificate)?;
        let unreadable = |why: &str| BadCertificate::Unreadable(why.to_string());
        let (not_before_s, not_after_s) =
            validity(leaf).ok_or_else(|| unreadable("it says no time of validity"))?;
        let key = PrivateKeyDer::from_pem_slice(text.key.as_bytes()).map_err(|_| BadCertificate::NoKey)?;
        let provider = ring::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => BadCertificate::OtherKey,
            other => unreadable(&other.to_string()),
        })?;
        Ok(Self { key, not_before_s, not_after_s })
    }

    /// Seconds since 1970.
    pub fn not_before_s(&self) -> i64 {
        self.not_before_s
    }

    /// Seconds since 1970.
    pub fn not_after_s(&self) -> i64 {
        self.not_after_s
    }

    /// Whether it is valid for a host name or address.
    pub fn covers(&self, name: &str) -> bool {
        let (Ok(name), Ok(leaf)) = (ServerName::try_from(name), self.leaf()) else { return false };
        verify_server_name(&leaf, &name).is_ok()
    }

    /// Whether clients that trust `roots` (PEM) believe it at a time; the error says why not.
    pub fn is_trusted(&self, roots: &str, at_s: i64) -> Result<(), String> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(chain(roots).unwrap_or_default());
        let leaf = self.leaf().map_err(|error| error.to_string())?;
        let between = self.key.cert.get(1..).unwrap_or_default();
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(u64::try_from(at_s).unwrap_or(0)));
        let algorithms = ring::default_provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&leaf, &store, between, at, algorithms)
            .map_err(|error| error.to_string())
    }

    fn leaf(&self) -> Result<ParsedCertificate<'_>, Error> {
        ParsedCertificate::try_from(self.key.end_entity_cert()?)
    }

    pub(super) fn into_key(self) -> CertifiedKey {
        self.key
    }
}

fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, BadCertificate> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| BadCertificate::Unreadable(error.to_string()))
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// From when to when a certificate is valid. `rustls` says only whether it is valid now.
fn validity(certificate: &[u8]) -> Option<(i64, i64)> {
    let (outer, _) = element(certificate, SEQUENCE)?;
    let (mut body, _) = element(outer, SEQUENCE)?;
    if body.first() == Some(&VERSION) {
        body = skip(body)?;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        body = skip(body)?;
    }
    let (validity, _) = element(body, SEQUENCE)?;
    let (from, rest) = time(validity)?;
    let (until, _) = time(rest)?;
    Some((from, until))
}

/// The content of a DER element that must have this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, _) = bytes.split_first()?;
    if first != tag {
        return None;
    }
    split(bytes)
}

fn skip(bytes: &[u8]) -> Option<&[u8]> {
    split(bytes).map(|(_, rest)| rest)
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.get(1..)?.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // The length has a length of its own; certificates are shorter than 2^32.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (digits.iter().fold(0, |sum, &digit| sum << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// Seconds since 1970, and what follows.
fn time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let tag = *bytes.first()?;
    let (text, rest) = split(bytes)?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, text) = match tag {
        UTC_TIME => {
            let (year, text) = text.split_at_checked(2)?;
            let year: i64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, text)
        }
        GENERALIZED_TIME => {
            let (year, text) = text.split_at_checked(4)?;
            (year.parse().ok()?, text)
        }
        _ => return None,
    };
    if text.len() != 10 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let at = |from: usize| text[from..from + 2].parse::<i64>().ok();
    let (month, day) = (at(0)?, at(2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = (at(4)? * 60 + at(6)?) * 60 + at(8)?;
    Some((days_since_1970(year, month, day) * 86_400 + seconds, rest))
}

/// Years begin in March here, so that the leap day is the last one of a year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn pair(names: &[&str]) -> CertificateText {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2024, 2, 29);
        params.not_after = date_time_ymd(2051, 3, 1);
        let certificate = params.self_signed(&key).unwrap();
        CertificateText { certificates: certificate.pem(), key: key.serialize_pem() }
    }

    #[test]
    fn names_and_times_are_read() {
        let certificate = Certificate::parse(&pair(&["coffer.test", "*.coffer.test", "127.0.0.1"])).unwrap();
        for name in ["coffer.test", "49983-abc.coffer.test", "api.coffer.test", "127.0.0.1"] {
            assert!(certificate.covers(name), "{name}");
        }
        for name in ["a.b.coffer.test", "other.test", "127.0.0.2", "", "*"] {
            assert!(!certificate.covers(name), "{name}");
        }
        // The first is a UTCTime, the second a GeneralizedTime.
        assert_eq!(certificate.not_before_s(), 1_709_164_800);
        assert_eq!(certificate.not_after_s(), 2_561_241_600);
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        let (one, other) = (pair(&["a.test"]), pair(&["a.test"]));
        let bad = |certificates: &str, key: &str| {
            let text = CertificateText { certificates: certificates.into(), key: key.into() };
            Certificate::parse(&text).unwrap_err()
        };
        assert_eq!(bad(&one.certificates, &other.key), BadCertificate::OtherKey);
        assert_eq!(bad("", &one.key), BadCertificate::NoCertificate);
        assert_eq!(bad(&one.certificates, ""), BadCertificate::NoKey);
        assert_eq!(bad(&one.certificates, &one.certificates), BadCertificate::NoKey);
        let cut = &one.certificates[..one.certificates.len() / 2];
        assert!(matches!(bad(cut, &one.key), BadCertificate::Unreadable(_) | BadCertificate::NoCertificate));
        let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(bad(garbage, &one.key), BadCertificate::Unreadable(_)));
        assert!(!format!("{one:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_certificate_is_trusted_below_its_authority_and_in_its_time() {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&authority_key).unwrap();
        let issuer = rcgen::Issuer::new(params, authority_key);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["a.test".into()]).unwrap();
        params.not_before = date_time_ymd(2024, 1, 1);
        params.not_after = date_time_ymd(2025, 1, 1);
        let certificates = params.signed_by(&key, &issuer).unwrap().pem();
        let certificate = Certificate::parse(&CertificateText { certificates, key: key.serialize_pem() });
        let certificate = certificate.unwrap();
        let then = certificate.not_after_s() - 1;
        certificate.is_trusted(&authority.pem(), then).unwrap();
        assert!(certificate.is_trusted(&authority.pem(), then + 2).is_err());
        assert!(certificate.is_trusted("", then).is_err());
    }

    #[test]
    fn hostile_bytes_have_no_times() {
        let whole = chain(&pair(&["a.test"]).certificates).unwrap();
        let whole: &[u8] = &whole[0];
        for end in 0..whole.len().min(200) {
            let _no_panic = validity(&whole[..end]);
        }
        for bytes in [&[][..], &[SEQUENCE], &[SEQUENCE, 0x84, 0xff, 0xff, 0xff, 0xff], &[SEQUENCE, 0x80]] {
            assert_eq!(validity(bytes), None);
        }
    }
}
