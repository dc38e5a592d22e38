//! Answers to challenges: passwords and tokens, cached until they expire.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use coffer_core::sync::Mutex;
use coffer_http::{Address, retry_after};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::challenge::{Challenge, challenge_of};
use super::ecr;
use super::wire::{PATIENCE, Source, Wire, request};
use crate::credentials::{AwsKey, Credentials, Kind, Login};
use crate::digest::Digest;
use crate::error::ImageError;

const MOST_CACHED: usize = 1000;
const LONGEST_ANSWER: usize = 256 << 10;
const LONGEST_TOKEN: usize = 32 << 10;
/// A token without an expiry is good for this long, by Docker's protocol.
const USUAL_LIFE: u64 = 60;
const LONGEST_LIFE: u64 = 3600;
/// Renew a token this long before it expires.
const MARGIN: u64 = 10;
/// A password is known to be wanted for this long.
const PASSWORD_LIFE: Duration = Duration::from_secs(300);
/// Logins of ECR are good for twelve hours.
const ECR_LIFE: Duration = Duration::from_secs(6 * 3600);

/// For whom an answer is good. Another project's answer has another fingerprint; without credentials it is everyone's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    host: String,
    repository: String,
    credentials: Option<Digest>,
}

#[derive(Default)]
pub(super) struct Logins {
    /// Values of `Authorization`.
    answers: Mutex<HashMap<Key, (Instant, HeaderValue)>>,
    ecr: Mutex<HashMap<Option<Digest>, (Instant, Login)>>,
}

#[derive(Deserialize)]
struct TokenReply {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl std::fmt::Debug for Logins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Logins({})", self.answers.lock().len())
    }
}

fn key(source: &Source, credentials: Option<&Credentials>) -> Key {
    Key {
        host: source.host.clone(),
        repository: source.repository.clone(),
        credentials: credentials.map(Credentials::fingerprint),
    }
}

impl Logins {
    /// The cached answer for a source.
    pub(super) fn known(&self, source: &Source, credentials: Option<&Credentials>) -> Option<HeaderValue> {
        let answers = self.answers.lock();
        let (until, value) = answers.get(&key(source, credentials))?;
        (*until > Instant::now()).then(|| value.clone())
    }

    /// Answers the challenge in `headers`, which `source` sent with status 401.
    pub(super) async fn answer(
        &self,
        wire: &Wire,
        source: &Source,
        credentials: Option<&Credentials>,
        headers: &HeaderMap,
    ) -> Result<HeaderValue, ImageError> {
        let key = key(source, credentials);
        // What was known is no longer good.
        self.answers.lock().remove(&key);
        let refused = || ImageError::Unauthorized {
            host: source.host.clone(),
            repository: source.repository.clone(),
            credentials_sent: false,
        };
        let challenge = challenge_of(headers).ok_or_else(refused)?;
        let login = match credentials.map(Credentials::kind) {
            None => None,
            Some(Kind::Login(login)) => Some(login.clone()),
            Some(Kind::Aws(aws)) => Some(self.ecr_login(wire, source, aws, key.credentials).await?),
        };
        let (value, life) = match challenge {
            Challenge::Basic => (login.ok_or_else(refused)?.basic(), PASSWORD_LIFE),
            Challenge::Bearer { realm, service, scope } => {
                let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", source.repository));
                token(wire, source, login.as_ref(), &realm, service.as_deref(), &scope).await?
            }
        };
        insert(&self.answers, key, (Instant::now() + life, value.clone()));
        Ok(value)
    }

    async fn ecr_login(
        &self,
        wire: &Wire,
        source: &Source,
        aws: &AwsKey,
        fingerprint: Option<Digest>,
    ) -> Result<Login, ImageError> {
        let Some(endpoint) = ecr::endpoint(&source.host, &aws.region) else {
            let why = format!("they are for registries `….dkr.ecr.{}.amazonaws.com`", aws.region);
            return Err(ImageError::Unsupported {
                what: format!("AWS credentials for `{}`", source.host),
                why,
            });
        };
        let known = self.ecr.lock().get(&fingerprint).filter(|(until, _)| *until > Instant::now()).cloned();
        if let Some((_, login)) = known {
            return Ok(login);
        }
        let login = ecr::log_in(wire, &endpoint, aws, source).await?;
        insert(&self.ecr, fingerprint, (Instant::now() + ECR_LIFE, login.clone()));
        Ok(login)
    }
}

/// Adds an entry to a cache; a full cache is cleared of what has expired, and then of everything.
fn insert<K: std::hash::Hash + Eq, V>(cache: &Mutex<HashMap<K, (Instant, V)>>, key: K, entry: (Instant, V)) {
    let mut cache = cache.lock();
    if cache.len() >= MOST_CACHED {
        let now = Instant::now();
        cache.retain(|_, (until, _)| *until > now);
        if cache.len() >= MOST_CACHED {
            cache.clear();
        }
    }
    cache.insert(key, entry);
}

/// Gets a token from the server that a registry names. It gets the login, as Docker's protocol requires; its address is
/// checked as the registry's is, and its redirects are not followed.
async fn token(
    wire: &Wire,
    source: &Source,
    login: Option<&Login>,
    realm: &str,
    service: Option<&str>,
    scope: &str,
) -> Result<(HeaderValue, Duration), ImageError> {
    let bad = |why: &str| ImageError::invalid(format!("the token server of `{}`", source.host), why);
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let join = if realm.contains('?') { '&' } else { '?' };
    let service = service.map_or_else(String::new, |service| format!("service={}&", encode(service)));
    let url = format!("{realm}{join}{service}scope={}", encode(scope));
    let to = Address::parse(&url).map_err(|_| bad("has no valid URL"))?;
    let mut request = request(Method::GET, &to);
    if let Some(login) = login {
        request = request.header(AUTHORIZATION, login.basic());
    }
    let (head, body) = wire.send(&to, source, request, Bytes::new()).await?.into_parts();
    let host = to.host_header().to_string();
    match head.status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let (repository, credentials_sent) = (source.repository.clone(), login.is_some());
            return Err(ImageError::Unauthorized { host, repository, credentials_sent });
        }
        StatusCode::TOO_MANY_REQUESTS => {
            return Err(ImageError::RateLimited { host, retry_after: retry_after(&head.headers) });
        }
        status => return Err(ImageError::Status { host, status: status.as_u16(), detail: String::new() }),
    }
    let body = body.whole(LONGEST_ANSWER, PATIENCE).await;
    let body = body.map_err(|failure| ImageError::from_failure(&host, failure, LONGEST_ANSWER))?;
    let reply: TokenReply = serde_json::from_slice(&body).map_err(|_| bad("did not answer with a token"))?;
    let token = [reply.token, reply.access_token].into_iter().flatten().find(|token| !token.is_empty());
    let token =
        token.filter(|token| token.len() <= LONGEST_TOKEN).ok_or_else(|| bad("sent no usable token"))?;
    let mut value =
        HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| bad("sent no usable token"))?;
    value.set_sensitive(true);
    let life = reply.expires_in.unwrap_or(USUAL_LIFE).min(LONGEST_LIFE).saturating_sub(MARGIN);
    Ok((value, Duration::from_secs(life)))
}
