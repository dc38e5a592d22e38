//! A client with one credential for one address: authorises, waits for rate limits, retries, caches, and
//! stops when the forge is down.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coffer_core::event::{Event, PullNote};
use coffer_core::sync::Mutex;
use coffer_core::{ProjectId, RepositoryId};
use coffer_store::{Credential, Secret, Store};
use http::{HeaderMap, Method, Response, StatusCode};
use serde_json::Value;

use super::app::{self, InstallationToken};
use super::convert::{list, repository, strange};
use super::limit::{self, Limits};
use super::transport::{Address, LONGEST_ANSWER, Silence, Transport};
use crate::ForgeError;
use crate::forge::{Pull, RemoteRepository};
use crate::place::secret_for;
use coffer_http::breaker::{Breaker, Policy, Standing};

type Answer<T> = Result<T, ForgeError>;

/// The client waits for a rate limit that ends within this time.
const PATIENCE: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// How long before its end an installation's token is renewed.
const RENEW_S: i64 = 300;
const POLICY: Policy =
    Policy { failures: 5, pause: Duration::from_secs(5), longest_pause: Duration::from_secs(60) };
/// The name of GitHub's circuit breakers, in logs and metrics.
pub(crate) const GITHUB_BREAKER: &str = "github";
/// Most cached answers with an ETag.
const MOST_REMEMBERED: usize = 256;
const LARGEST_REMEMBERED: usize = 128 * 1024;

/// Counters over all connections.
#[derive(Debug, Default)]
pub struct GitHubFigures {
    pub requests: AtomicU64,
    pub failures: AtomicU64,
    /// Requests that met a rate limit, and how long they waited.
    pub rate_limited: AtomicU64,
    pub waited_ms: AtomicU64,
    /// Answers that had not changed.
    pub unchanged: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Client {
    transport: Transport,
    store: Store,
    project: ProjectId,
    credential: Credential,
    limits: Limits,
    breaker: Breaker,
    figures: Arc<GitHubFigures>,
    installation: tokio::sync::Mutex<Option<InstallationToken>>,
    remembered: Mutex<HashMap<String, (String, Bytes)>>,
}

/// A new request.
struct Ask<'a> {
    method: Method,
    path: &'a str,
    accept: &'static str,
    body: Option<Bytes>,
}

impl Client {
    pub(crate) fn new(
        transport: Transport,
        store: Store,
        project: ProjectId,
        credential: Credential,
        figures: Arc<GitHubFigures>,
    ) -> Self {
        Self {
            transport,
            store,
            project,
            credential,
            limits: Limits::default(),
            breaker: Breaker::new(GITHUB_BREAKER, POLICY),
            figures,
            installation: tokio::sync::Mutex::new(None),
            remembered: Mutex::default(),
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        self.breaker.standing()
    }

    pub(crate) fn address(&self) -> &Address {
        &self.transport.address
    }

    pub(super) fn is_on_site(&self) -> bool {
        self.transport.on_site
    }

    /// The value of a secret, if it may be sent to this address.
    async fn secret(&self, name: &str) -> Answer<Secret> {
        secret_for(&self.store, self.project, name, self.address().host()).await
    }

    /// The current token.
    async fn token(&self) -> Answer<Secret> {
        Ok(self.token_and_life().await?.0)
    }

    /// The same, with how long it is valid, if known.
    pub(super) async fn token_and_life(&self) -> Answer<(Secret, Option<Duration>)> {
        match &self.credential {
            Credential::Token { secret } => Ok((self.secret(secret).await?, None)),
            Credential::App { installation_id, .. } => {
                let mut held = self.installation.lock().await;
                let good = held.as_ref().filter(|token| token.expires_s - RENEW_S > now_s());
                let token = match good {
                    Some(token) => token.clone(),
                    None => self.installation_token(*installation_id).await?,
                };
                *held = Some(token.clone());
                let left = u64::try_from(token.expires_s - now_s()).unwrap_or(0);
                Ok((token.token, Some(Duration::from_secs(left))))
            }
            Credential::Basic { .. } => Err(not_github()),
        }
    }

    async fn proof(&self) -> Answer<Option<Secret>> {
        let Credential::App { secret, app_id, .. } = &self.credential else { return Ok(None) };
        let key = self.secret(secret).await?;
        let proof = app::proof(key.reveal(), *app_id, now_s());
        proof.map(Some).map_err(|why| ForgeError::Credential { name: secret.clone(), why })
    }

    async fn installation_token(&self, installation: i64) -> Answer<InstallationToken> {
        let proof = self.proof().await?.ok_or(ForgeError::TokenExpired)?;
        let path = format!("/app/installations/{installation}/access_tokens");
        let ask =
            Ask { method: Method::POST, path: &path, accept: JSON, body: Some(Bytes::from_static(b"{}")) };
        let answer = self.ask_as(&ask, &proof).await?;
        let what = ("installation of the App", installation.to_string());
        let told = json_of(&checked(answer, "act as its App", &what)?)?;
        let token = told["token"].as_str().ok_or_else(|| strange("no token"))?;
        let expires = told["expires_at"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
        let expires_s = expires.map_or_else(|| now_s() + 600, |at| at.as_second());
        Ok(InstallationToken { token: Secret::new(token), expires_s })
    }

    /// The permissions of a GitHub App; `None` for a token.
    pub(super) async fn app_permissions(&self) -> Answer<Option<Value>> {
        let Credential::App { installation_id, .. } = &self.credential else { return Ok(None) };
        let Some(proof) = self.proof().await? else { return Ok(None) };
        let path = format!("/app/installations/{installation_id}");
        let ask = Ask { method: Method::GET, path: &path, accept: JSON, body: None };
        let answer = self.ask_as(&ask, &proof).await?;
        let what = ("installation of the App", installation_id.to_string());
        Ok(Some(json_of(&checked(answer, "see its installation", &what)?)?["permissions"].take()))
    }

    /// A page of the repositories that the credential can see; `None` for one that cannot be read.
    pub(crate) async fn repositories(&self, page: u32, size: usize) -> Answer<Vec<Option<RemoteRepository>>> {
        let what = || ("repositories of the connection", "the".to_string());
        let part = format!("per_page={size}&page={page}");
        let told = match &self.credential {
            Credential::Token { .. } => {
                let path = format!("/user/repos?sort=pushed&{part}");
                self.json(Method::GET, &path, None, "list repositories", what()).await?
            }
            Credential::App { .. } => {
                let path = format!("/installation/repositories?{part}");
                self.json(Method::GET, &path, None, "list repositories", what()).await?["repositories"].take()
            }
            Credential::Basic { .. } => return Err(not_github()),
        };
        Ok(list(&told)?.iter().map(repository).collect())
    }

    /// Records that a pull request was opened through this server.
    pub(super) async fn record_opened(&self, repository: Option<RepositoryId>, pull: &Pull) -> Answer<()> {
        let Some(repository) = repository else { return Ok(()) };
        let scope = self.store.operator().acting_for(self.project, None);
        let note = PullNote {
            number: pull.number,
            head: pull.head.clone(),
            base: pull.base.clone(),
            state: pull.state,
            head_commit: pull.head_commit.clone(),
            merge_commit: None,
        };
        Ok(self.store.record_repository_event(&scope, repository, Event::PullOpened(note)).await?)
    }

    /// Requests JSON.
    pub(super) async fn json(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        doing: &'static str,
        what: (&'static str, String),
    ) -> Answer<Value> {
        let body = body.map(|body| Bytes::from(body.to_string()));
        let answer = self.ask(Ask { method, path, accept: JSON, body }).await?;
        json_of(&checked(answer, doing, &what)?)
    }

    /// Requests text.
    pub(super) async fn text(
        &self,
        path: &str,
        accept: &'static str,
        doing: &'static str,
        what: (&'static str, String),
    ) -> Answer<String> {
        let answer = self.ask(Ask { method: Method::GET, path, accept, body: None }).await?;
        Ok(String::from_utf8_lossy(&checked(answer, doing, &what)?).into_owned())
    }

    /// Requests something whose answer has no content.
    pub(super) async fn nothing(
        &self,
        method: Method,
        path: &str,
        doing: &'static str,
        what: (&'static str, String),
    ) -> Answer<()> {
        let answer = self.ask(Ask { method, path, accept: JSON, body: None }).await?;
        checked(answer, doing, &what).map(drop)
    }

    async fn ask(&self, ask: Ask<'_>) -> Answer<Response<Bytes>> {
        let token = self.token().await?;
        let answer = self.ask_as(&ask, &token).await?;
        let is_app = matches!(self.credential, Credential::App { .. });
        if answer.status() != StatusCode::UNAUTHORIZED || !is_app {
            return Ok(answer);
        }
        // It may have been revoked early. Nothing was done, so the request can be repeated.
        *self.installation.lock().await = None;
        let token = self.token().await?;
        self.ask_as(&ask, &token).await
    }

    /// Sends with retries: reads on silence and server errors, writes only if they were not sent.
    async fn ask_as(&self, ask: &Ask<'_>, token: &Secret) -> Answer<Response<Bytes>> {
        let is_read = ask.method == Method::GET;
        let (mut path, mut hops) = (ask.path.to_string(), 0);
        let mut tried = 0;
        loop {
            self.turn().await?;
            let leave = self.breaker.admit().map_err(|open| ForgeError::Unreachable {
                why: "it did not answer the last requests; not trying again for a while".into(),
                retry_after: Some(open.retry_after),
            })?;
            tried += 1;
            self.figures.requests.fetch_add(1, Ordering::Relaxed);
            let sent = self.transport.send(
                self.head(ask, &path, token),
                &path,
                ask.body.clone().unwrap_or_default(),
            );
            let answer = match sent.await {
                Ok(answer) => {
                    leave.answered();
                    answer
                }
                Err(Silence::TooLong) => {
                    leave.answered();
                    return Err(ForgeError::TooLarge {
                        what: "the forge's answer",
                        most: LONGEST_ANSWER as u64,
                    });
                }
                Err(silence) => {
                    leave.failed();
                    self.figures.failures.fetch_add(1, Ordering::Relaxed);
                    let (why, may_retry) = match silence {
                        Silence::Unsent(why) => (why, true),
                        Silence::Unanswered(why) => (why, is_read),
                        Silence::TooLong => (String::new(), false),
                    };
                    if may_retry && tried < TRIES {
                        pause(tried).await;
                        continue;
                    }
                    return Err(ForgeError::Unreachable { why, retry_after: None });
                }
            };
            if let Some(wait) = limit::told(answer.status(), answer.headers(), answer.body(), now_s()) {
                self.figures.rate_limited.fetch_add(1, Ordering::Relaxed);
                self.limits.hold(wait, Instant::now());
                if tried < TRIES {
                    continue;
                }
                return Err(ForgeError::RateLimited { retry_after: wait });
            }
            if let Some(wait) = limit::spent(answer.headers(), now_s()) {
                self.limits.hold(wait, Instant::now());
            }
            if answer.status().is_server_error() {
                self.figures.failures.fetch_add(1, Ordering::Relaxed);
                if is_read && tried < TRIES {
                    pause(tried).await;
                    continue;
                }
                let why = format!("it answered {}", answer.status());
                return Err(ForgeError::Unreachable { why, retry_after: None });
            }
            if is_read && answer.status().is_redirection() && answer.status() != StatusCode::NOT_MODIFIED {
                let to = answer.headers().get("location").and_then(|to| to.to_str().ok());
                match to.and_then(|to| self.address().within(to)) {
                    Some(to) if hops < 3 => {
                        (path, hops) = (to, hops + 1);
                        continue;
                    }
                    _ => return Err(strange("a redirect that leads elsewhere")),
                }
            }
            return self.remember(ask, &path, answer);
        }
    }

    /// Waits for a rate limit, if that is not long.
    async fn turn(&self) -> Answer<()> {
        let Some(wait) = self.limits.wait(Instant::now()) else { return Ok(()) };
        if wait > PATIENCE {
            return Err(ForgeError::RateLimited { retry_after: wait });
        }
        let waited = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        self.figures.waited_ms.fetch_add(waited, Ordering::Relaxed);
        tokio::time::sleep(wait).await;
        Ok(())
    }

    fn head(&self, ask: &Ask<'_>, path: &str, token: &Secret) -> http::request::Builder {
        let mut authorization = http::HeaderValue::try_from(format!("Bearer {}", token.reveal()))
            .unwrap_or_else(|_| http::HeaderValue::from_static("Bearer"));
        authorization.set_sensitive(true);
        let mut head = http::Request::builder()
            .method(ask.method.clone())
            .header("authorization", authorization)
            .header("accept", ask.accept)
            .header("user-agent", concat!("coffer/", env!("CARGO_PKG_VERSION")))
            .header("x-github-api-version", "2022-11-28");
        if ask.body.is_some() {
            head = head.header("content-type", "application/json");
        }
        if let Some((tag, _)) = self.remembered_of(ask, path) {
            head = head.header("if-none-match", tag);
        }
        head
    }

    fn key(ask: &Ask<'_>, path: &str) -> Option<String> {
        (ask.method == Method::GET).then(|| format!("{} {path}", ask.accept))
    }

    fn remembered_of(&self, ask: &Ask<'_>, path: &str) -> Option<(String, Bytes)> {
        let key = Self::key(ask, path)?;
        self.remembered.lock().get(&key).cloned()
    }

    /// Caches an answer with an ETag, and returns the cached one if it has not changed.
    fn remember(&self, ask: &Ask<'_>, path: &str, answer: Response<Bytes>) -> Answer<Response<Bytes>> {
        if answer.status() == StatusCode::NOT_MODIFIED {
            self.figures.unchanged.fetch_add(1, Ordering::Relaxed);
            let (_, body) = self.remembered_of(ask, path).ok_or_else(|| strange("no change of nothing"))?;
            let (mut parts, _) = answer.into_parts();
            parts.status = StatusCode::OK;
            return Ok(Response::from_parts(parts, body));
        }
        let tag = answer.headers().get("etag").and_then(|tag| tag.to_str().ok()).map(str::to_string);
        if let (Some(key), Some(tag), StatusCode::OK) = (Self::key(ask, path), tag, answer.status())
            && answer.body().len() <= LARGEST_REMEMBERED
        {
            let mut remembered = self.remembered.lock();
            if remembered.len() >= MOST_REMEMBERED {
                remembered.clear();
            }
            remembered.insert(key, (tag, answer.body().clone()));
        }
        Ok(answer)
    }
}

const JSON: &str = "application/vnd.github+json";

fn not_github() -> ForgeError {
    ForgeError::invalid("connection", "is not one to GitHub")
}

async fn pause(tried: u32) {
    let pause = FIRST_PAUSE * 2u32.pow(tried.saturating_sub(1));
    tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.5))).await;
}

fn now_s() -> i64 {
    coffer_core::clock::now_ms().div_euclid(1000)
}

fn json_of(body: &Bytes) -> Answer<Value> {
    serde_json::from_slice(body).map_err(|_| strange("no JSON"))
}

/// The body of a successful answer, or the error.
fn checked(answer: Response<Bytes>, doing: &'static str, what: &(&'static str, String)) -> Answer<Bytes> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer.into_body());
    }
    let told: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let mut message = told["message"].as_str().unwrap_or("GitHub gave no reason").to_string();
    for error in told["errors"].as_array().into_iter().flatten().take(5) {
        let more = error["message"].as_str().or(error.as_str()).map(str::to_string);
        let field = || Some(format!("{}: {}", error["field"].as_str()?, error["code"].as_str()?));
        if let Some(more) = more.or_else(field) {
            message = format!("{message}: {more}");
        }
    }
    let message: String = message.chars().filter(|c| !c.is_control()).take(500).collect();
    Err(match status {
        StatusCode::UNAUTHORIZED => ForgeError::TokenExpired,
        StatusCode::NOT_FOUND | StatusCode::GONE => ForgeError::not_found(what.0, &what.1),
        StatusCode::FORBIDDEN if message.contains("protected branch") => {
            ForgeError::Protected { branch: what.1.clone(), why: message }
        }
        StatusCode::FORBIDDEN => {
            ForgeError::PermissionMissing { doing: doing.into(), scope: scope_of(answer.headers(), &message) }
        }
        // Not mergeable, for a reason that the message has.
        StatusCode::METHOD_NOT_ALLOWED
            if message.to_lowercase().contains("review") || message.contains("protected") =>
        {
            ForgeError::Protected { branch: what.1.clone(), why: message }
        }
        StatusCode::METHOD_NOT_ALLOWED => ForgeError::Conflict { why: message, paths: Vec::new() },
        StatusCode::CONFLICT => ForgeError::Raced { why: message },
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST => ForgeError::Invalid {
            field: "the request",
            why: format!("is not accepted by the forge: {message}"),
        },
        StatusCode::NOT_ACCEPTABLE => {
            ForgeError::TooLarge { what: "the forge's answer", most: LONGEST_ANSWER as u64 }
        }
        status => ForgeError::Strange(format!("{status}: {message}")),
    })
}

/// The sufficient permission, from GitHub's answer.
fn scope_of(headers: &HeaderMap, message: &str) -> String {
    let told = |name: &str| headers.get(name)?.to_str().ok().filter(|told| !told.trim().is_empty());
    let scope = told("x-accepted-github-permissions").or_else(|| told("x-accepted-oauth-scopes"));
    let scope = scope.map_or_else(|| format!("a permission ({message})"), str::to_string);
    scope.chars().filter(|c| !c.is_control()).take(300).collect()
}
