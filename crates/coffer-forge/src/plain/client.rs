//! Speaks to one git server over HTTPS, with one credential. Follows no redirect, and dials only where forges may be.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use coffer_core::ProjectId;
use coffer_core::forge::{BranchName, CommitId};
use coffer_http::breaker::{Breaker, Policy};
use coffer_http::{Address, Client, Failure, Pieces, retry_after};
use coffer_store::{Secret, Store};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::Full;

use super::RemotePath;
use super::wire::{self, Advertised, PackReader};
use crate::ForgeError;
use crate::forge::{MissingPermission, Permissions, Upstream};
use crate::place::{may_be_at, secret_for};
use crate::serve::Service;

type Answer<T> = Result<T, ForgeError>;

const CONNECT: Duration = Duration::from_secs(10);
/// Until the head of an answer: a server may count objects before that.
const HEAD_WITHIN: Duration = Duration::from_secs(60);
/// For a whole list of branches, and for a report on a push.
const PATIENCE: Duration = Duration::from_secs(60);
const LONGEST_LIST: usize = 32 << 20;
const LONGEST_REPORT: usize = 1 << 20;
const TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const POLICY: Policy =
    Policy { failures: 5, pause: Duration::from_secs(5), longest_pause: Duration::from_secs(60) };

/// A git server, as one connection reaches it.
#[derive(Debug)]
pub(crate) struct GitHost {
    pub(crate) address: Address,
    pub(crate) http: Client,
    /// Whether the operator allows it at a private address.
    pub(crate) on_site: bool,
    pub(crate) store: Store,
    pub(crate) project: ProjectId,
    pub(crate) user: String,
    /// The name of the secret with the password or token.
    pub(crate) secret: String,
    breaker: Breaker,
}

impl GitHost {
    pub(crate) fn new(
        address: Address,
        http: Client,
        on_site: bool,
        (store, project): (Store, ProjectId),
        (user, secret): (String, String),
    ) -> Self {
        let breaker = Breaker::new("git", POLICY);
        Self { address, http, on_site, store, project, user, secret, breaker }
    }

    /// The value of the header `Authorization`.
    async fn authorization(&self) -> Answer<Secret> {
        let password = secret_for(&self.store, self.project, &self.secret, self.address.host()).await?;
        let both = format!("{}:{}", self.user, password.reveal());
        Ok(Secret::new(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(both))))
    }
}

/// One repository of a git server.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    pub(crate) host: Arc<GitHost>,
    pub(crate) path: RemotePath,
}

/// What a push did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Moved,
    /// The branch is no longer where the pusher saw it.
    Late,
    Refused(String),
}

impl Remote {
    pub(crate) fn url(&self) -> String {
        format!("{}/{}", self.host.address.origin(), self.path)
    }

    /// The branches, and what the server can do for this service.
    pub(crate) async fn refs(&self, service: Service) -> Answer<Advertised> {
        let path = format!("info/refs?service={}", service.as_str());
        let answer = self.ask(Method::GET, &path, None).await?;
        let media = format!("application/x-{}-advertisement", service.as_str());
        self.check_media(&answer, &media)?;
        let body = answer.into_body().whole(LONGEST_LIST, PATIENCE).await.map_err(silent)?;
        let told = Advertised::parse(service.as_str(), &body);
        let told = told.map_err(|why| ForgeError::Strange(why.to_string()))?;
        if !told.is_sha1() {
            return Err(ForgeError::invalid(
                "remote",
                "has hashes of SHA-256, which this server cannot keep",
            ));
        }
        Ok(told)
    }

    /// A pack with the commits `wants`, for somebody who has `haves`.
    pub(crate) async fn fetch(
        &self,
        wants: &[CommitId],
        haves: &[CommitId],
        told: &Advertised,
        silence: Duration,
    ) -> Answer<BoxStream<'static, Result<Bytes, String>>> {
        let body = wire::want(wants, haves, told);
        let answer = self.ask(Method::POST, "git-upload-pack", Some(body.into())).await?;
        self.check_media(&answer, "application/x-git-upload-pack-result")?;
        let state = Some((answer.into_body(), PackReader::default()));
        let pieces = futures_util::stream::unfold(state, move |state| async move {
            let (mut body, mut reader) = state?;
            loop {
                match reader.next() {
                    Err(why) => return Some((Err(why), None)),
                    Ok(Some(piece)) => return Some((Ok(piece), Some((body, reader)))),
                    Ok(None) if reader.is_over() => return None,
                    Ok(None) => {}
                }
                match body.next(silence).await {
                    Ok(Some(piece)) => reader.push(&piece),
                    Ok(None) if reader.may_end() => return None,
                    Ok(None) => return Some((Err("its pack ended too early".into()), None)),
                    Err(failure) => return Some((Err(reason(failure)), None)),
                }
            }
        });
        Ok(pieces.boxed())
    }

    /// Moves a branch from `old` to `new`; `pack` has the objects that the server lacks.
    pub(crate) async fn push(
        &self,
        branch: &BranchName,
        (old, new): (&CommitId, &CommitId),
        pack: &[u8],
    ) -> Answer<Pushed> {
        let told = self.refs(Service::ReceivePack).await?;
        match told.branches.get(branch) {
            Some(tip) if tip == new => return Ok(Pushed::Moved),
            Some(tip) if tip == old => {}
            _ => return Ok(Pushed::Late),
        }
        let mut body = wire::command(branch, old, new, &told);
        body.extend_from_slice(pack);
        let answer = self.ask(Method::POST, "git-receive-pack", Some(body.into())).await?;
        self.check_media(&answer, "application/x-git-receive-pack-result")?;
        let report = answer.into_body().whole(LONGEST_REPORT, PATIENCE).await.map_err(silent)?;
        let Some(why) = wire::refusal(&report, branch) else { return Ok(Pushed::Moved) };
        // Its words for a lost race differ; where the branch is does not.
        let told = self.refs(Service::UploadPack).await?;
        Ok(match told.branches.get(branch) {
            Some(tip) if tip == new => Pushed::Moved,
            Some(tip) if tip == old => Pushed::Refused(why),
            _ => Pushed::Late,
        })
    }

    /// What the credential may do, by what the server says to a reader and to a pusher.
    pub(crate) async fn permissions(&self) -> Answer<Permissions> {
        self.refs(Service::UploadPack).await?;
        let mut told = Permissions { sufficient: true, granted: vec!["read".into()], missing: Vec::new() };
        match self.refs(Service::ReceivePack).await {
            Ok(_) => told.granted.push("write".into()),
            Err(
                ForgeError::PermissionMissing { .. } | ForgeError::TokenExpired | ForgeError::NotFound { .. },
            ) => {
                told.sufficient = false;
                told.missing.push(MissingPermission {
                    scope: "write".into(),
                    needed_to: "push branches and merge pull requests".into(),
                });
            }
            Err(error) => return Err(error),
        }
        Ok(told)
    }

    pub(crate) async fn upstream(&self) -> Answer<Upstream> {
        Ok(Upstream {
            url: self.url(),
            authorization: self.host.authorization().await?,
            expires_in: None,
            enforces_branch: false,
            on_site: self.host.on_site,
        })
    }

    /// Sends a request; reads are sent again if there is no answer.
    async fn ask(&self, method: Method, path: &str, body: Option<Bytes>) -> Answer<Response<Pieces>> {
        let host = &self.host;
        let mut authorization =
            HeaderValue::try_from(host.authorization().await?.reveal()).map_err(|_| {
                ForgeError::Credential { name: host.secret.clone(), why: "is not one line of text" }
            })?;
        authorization.set_sensitive(true);
        let mut tried = 0;
        loop {
            let leave = host.breaker.admit().map_err(|open| ForgeError::Unreachable {
                why: "it did not answer the last requests; not trying again for a while".into(),
                retry_after: Some(open.retry_after),
            })?;
            tried += 1;
            let answer = match self.send(&method, path, body.clone(), &authorization).await {
                Ok(answer) => answer,
                Err(failure) => {
                    leave.failed();
                    let again = method == Method::GET || failure.is_unsent();
                    // Where it may not be, it will not be in a moment.
                    let refused = matches!(failure, Failure::Refused(_));
                    if again && !refused && tried < TRIES {
                        pause(tried).await;
                        continue;
                    }
                    return Err(silent(failure));
                }
            };
            leave.answered();
            if answer.status().is_server_error() && method == Method::GET && tried < TRIES {
                pause(tried).await;
                continue;
            }
            return self.judge(answer, path);
        }
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Option<Bytes>,
        authorization: &HeaderValue,
    ) -> Result<Response<Pieces>, Failure> {
        let host = &self.host;
        let mut request = http::Request::builder()
            .method(method.clone())
            .uri(format!("/{}/{path}", self.path))
            .header("host", host.address.host_header())
            .header("authorization", authorization.clone())
            .header("user-agent", concat!("git/2.40 coffer/", env!("CARGO_PKG_VERSION")));
        if body.is_some() {
            let media = format!("application/x-{path}");
            request = request
                .header("content-type", format!("{media}-request"))
                .header("accept", format!("{media}-result"));
        }
        // Everything in it was checked, so it can be built; an odd `host` would say so as a broken exchange.
        let Ok(request) = request.body(Full::new(body.unwrap_or_default())) else {
            return Err(Failure::Name);
        };
        let check = |ip| may_be_at(host.address.host(), host.on_site, ip);
        let connection = host.http.connect(&host.address, &check, CONNECT).await?;
        let begun = tokio::time::timeout(HEAD_WITHIN, connection.begin(request)).await;
        begun.unwrap_or(Err(Failure::Timeout(HEAD_WITHIN)))
    }

    fn judge(&self, answer: Response<Pieces>, path: &str) -> Answer<Response<Pieces>> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let is_push = path.contains("receive-pack");
        Err(match status {
            StatusCode::UNAUTHORIZED => ForgeError::TokenExpired,
            StatusCode::FORBIDDEN => ForgeError::PermissionMissing {
                doing: if is_push { "push" } else { "fetch" }.into(),
                scope: if is_push { "write access" } else { "read access" }.into(),
            },
            StatusCode::NOT_FOUND | StatusCode::GONE => ForgeError::not_found("repository", self.url()),
            StatusCode::TOO_MANY_REQUESTS => ForgeError::RateLimited {
                retry_after: retry_after(answer.headers()).unwrap_or(Duration::from_secs(60)),
            },
            _ if status.is_redirection() => {
                let to = answer
                    .headers()
                    .get("location")
                    .map(|to| wire::remark(to.as_bytes()))
                    .unwrap_or_default();
                let why = format!(
                    "is redirected to `{to}`, which is not followed: use the address that it has now"
                );
                ForgeError::invalid("remote", why)
            }
            _ => ForgeError::Unreachable { why: format!("it answered {status}"), retry_after: None },
        })
    }

    /// A page for people is no answer of a git server.
    fn check_media(&self, answer: &Response<Pieces>, wanted: &str) -> Answer<()> {
        let told =
            answer.headers().get("content-type").and_then(|told| told.to_str().ok()).unwrap_or_default();
        if told.split(';').next().unwrap_or_default().trim() == wanted {
            return Ok(());
        }
        let why =
            format!("is no git repository over smart HTTP: `{}` answered with something else", self.url());
        Err(ForgeError::invalid("remote", why))
    }
}

/// Without the address: projects must not learn addresses inside the operator's network.
fn reason(failure: Failure) -> String {
    match failure {
        Failure::Connect(_, error) => error.to_string(),
        other => other.to_string(),
    }
}

fn silent(failure: Failure) -> ForgeError {
    ForgeError::Unreachable { why: reason(failure), retry_after: None }
}

async fn pause(tried: u32) {
    let pause = FIRST_PAUSE * 2u32.pow(tried.saturating_sub(1));
    tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.5))).await;
}
