//! Credentials for registries.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use coffer_core::settings::SecretText;
use http::HeaderValue;

use crate::digest::Digest;

const LONGEST_NAME: usize = 1024;
const LONGEST_PASSWORD: usize = 32 << 10;

/// What a project shows a registry. Sent to the registry in the image's name, and to the token server that this registry
/// names; never to a mirror, and not along a redirect.
#[derive(Clone)]
pub struct Credentials(Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    Login(Login),
    /// Exchanged for a login of ECR, Amazon's registry.
    Aws(AwsKey),
}

/// A user name and a password.
#[derive(Clone)]
pub(crate) struct Login {
    username: String,
    password: SecretText,
}

#[derive(Clone)]
pub(crate) struct AwsKey {
    pub(crate) id: String,
    pub(crate) secret: SecretText,
    pub(crate) region: String,
}

/// Why credentials cannot be used. Has nothing of them in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadCredentials {
    #[error("username must have 1 to {LONGEST_NAME} characters, without `:` and control characters")]
    Username,
    #[error("password must have 1 to {LONGEST_PASSWORD} bytes")]
    Password,
    #[error("the service account must be the JSON of a key that Google Cloud created")]
    ServiceAccount,
    #[error("AWS key id and region must be letters, digits and `-`, and the secret must not be empty")]
    Aws,
}

impl Credentials {
    pub fn login(username: &str, password: &str) -> Result<Self, BadCredentials> {
        Login::new(username, password).map(|login| Self(Kind::Login(login)))
    }

    /// For Artifact Registry and GCR, by the JSON of a service account's key.
    pub fn gcp(service_account_json: &str) -> Result<Self, BadCredentials> {
        let key: serde_json::Value =
            serde_json::from_str(service_account_json).map_err(|_| BadCredentials::ServiceAccount)?;
        if !key["private_key"].is_string() || !key["client_email"].is_string() {
            return Err(BadCredentials::ServiceAccount);
        }
        Self::login("_json_key", service_account_json)
    }

    /// For ECR, by an access key of AWS.
    pub fn aws(key_id: &str, secret: &str, region: &str) -> Result<Self, BadCredentials> {
        let is_word = |text: &str, most: usize| {
            (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        if !is_word(key_id, 128) || !is_word(region, 32) || !(1..=1024).contains(&secret.len()) {
            return Err(BadCredentials::Aws);
        }
        let (id, region) = (key_id.to_string(), region.to_ascii_lowercase());
        Ok(Self(Kind::Aws(AwsKey { id, secret: SecretText::new(secret), region })))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Tells credentials apart in caches, without having them there.
    pub(crate) fn fingerprint(&self) -> Digest {
        let (kind, parts) = match &self.0 {
            Kind::Login(login) => ("login", [login.username.as_str(), login.password.reveal(), ""]),
            Kind::Aws(key) => ("aws", [key.id.as_str(), key.secret.reveal(), &key.region]),
        };
        // Lengths keep neighbours apart.
        let text: String = parts.iter().map(|part| format!("{}:{part}", part.len())).collect();
        Digest::of(format!("{kind}:{text}").as_bytes())
    }
}

impl Login {
    pub(crate) fn new(username: &str, password: &str) -> Result<Self, BadCredentials> {
        if !(1..=LONGEST_NAME).contains(&username.len())
            || username.contains(|letter: char| letter == ':' || letter.is_control())
        {
            return Err(BadCredentials::Username);
        }
        if !(1..=LONGEST_PASSWORD).contains(&password.len()) {
            return Err(BadCredentials::Password);
        }
        Ok(Self { username: username.into(), password: SecretText::new(password) })
    }

    /// The value of an `Authorization` header.
    pub(crate) fn basic(&self) -> HeaderValue {
        let pair = format!("{}:{}", self.username, self.password.reveal());
        let text = format!("Basic {}", STANDARD.encode(pair));
        let mut value = HeaderValue::try_from(text).expect("base64 fits into a header");
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_checked_and_not_shown() {
        let some = Credentials::login("user", "pa:ss wörd").unwrap();
        let Kind::Login(login) = some.kind() else { panic!() };
        assert_eq!(login.basic(), "Basic dXNlcjpwYTpzcyB3w7ZyZA==");
        let aws = Credentials::aws("AKIA0", "secret", "eu-west-1").unwrap();
        assert_eq!(format!("{some:?} {aws:?}"), "Credentials(…) Credentials(…)");
        let gcp = r#"{"type":"service_account","private_key":"k","client_email":"a@b"}"#;
        assert!(
            matches!(Credentials::gcp(gcp).unwrap().kind(), Kind::Login(login) if login.username == "_json_key")
        );
        assert_eq!(Credentials::login("a:b", "x").unwrap_err(), BadCredentials::Username);
        assert_eq!(Credentials::login("a\r\n", "x").unwrap_err(), BadCredentials::Username);
        assert_eq!(Credentials::login("a", "").unwrap_err(), BadCredentials::Password);
        assert_eq!(Credentials::gcp("{}").unwrap_err(), BadCredentials::ServiceAccount);
        assert_eq!(Credentials::aws("AKIA", "s", "evil.com/").unwrap_err(), BadCredentials::Aws);
    }

    #[test]
    fn different_credentials_have_different_fingerprints() {
        let of = |name, password| Credentials::login(name, password).unwrap().fingerprint();
        assert_eq!(of("a", "b"), of("a", "b"));
        assert_ne!(of("a", "b"), of("ab", "b"));
        assert_ne!(of("a", "1:b"), of("a1:".trim_end_matches(':'), "b"));
    }
}
