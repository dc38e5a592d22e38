//! Git LFS through the gate: batches return addresses of objects, transfers move them.
//!
//! ```text
//! batch ──► read, written again, with the token ──► forge ──► each place of the answer sealed ──► sandbox
//! transfer ──► opened: which object, where, with which headers ──► the place, past the walls ──► counted bytes
//! ```
//!
//! Downloads pass whenever fetches do, uploads only while a push may. Only the object itself is passed on:
//! other parts of a store's answer may quote the credential that it got.

mod batch;
mod place;
mod seal;

use coffer_core::clock::now_ms;
use coffer_core::git::gate::{CREDENTIAL_REFUSED, CREDENTIAL_UNKNOWN, FORGE_UNUSABLE};
use coffer_core::network::{GitRoute, GitSlug};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body, Bytes, Incoming};
use serde_json::{Value, json};
use tokio::time::timeout;

use batch::Batch;
use place::Place;
pub(crate) use seal::Seal;
use seal::{Action, Ticket};

use super::ask::{LfsAsk, LfsVerb};
use super::carry::{Answer, Sent, Target};
use super::rule::GitRule;
use super::{Gate, HEAD_PATIENCE, Instead, Service, copy, whole};
use crate::refusal::Cause;
use crate::sandbox::Passing;

const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/vnd.git-lfs+json");
/// A batch of a thousand objects, and the answer to it.
const MOST_ASKED: usize = 256 * 1024;
const MOST_ANSWERED: usize = 4 * 1024 * 1024;
const MOST_COMPLAINT: usize = 64 * 1024;

impl Gate {
    /// Passes a request of Git LFS, if allowed.
    pub(super) async fn pass_lfs(
        &self,
        ask: LfsAsk,
        parts: &Parts,
        body: Incoming,
    ) -> Result<Response<Answer>, Instead> {
        match ask.verb {
            LfsVerb::Batch => self.pass_batch(&ask.slug, &parts.headers, body).await,
            LfsVerb::Transfer(token) => self.pass_transfer(&ask.slug, &token, parts, body).await,
            LfsVerb::VerifyLocks => {
                self.admit_lfs(&ask.slug, Service::Fetch)?;
                // As forges without locks answer; Git LFS then asks no more.
                Err(told(StatusCode::NOT_FOUND, "locks are not supported", None))
            }
        }
    }

    fn admit_lfs(&self, slug: &GitSlug, service: Service) -> Result<Passing, Instead> {
        self.sandbox.admit_git(slug, service).map_err(|cause| self.refuse_lfs(&cause))
    }

    async fn pass_batch(
        &self,
        slug: &GitSlug,
        headers: &HeaderMap,
        body: Incoming,
    ) -> Result<Response<Answer>, Instead> {
        let refused = |rule| self.refuse_lfs(&Cause::Git(rule));
        // Batches are held in memory, so their number is bounded.
        let turn = timeout(HEAD_PATIENCE, self.sandbox.lfs_batches.acquire()).await;
        let _turn = turn.map_err(|_| refused(GitRule::LfsLarge))?;
        let mut passing = self.admit_lfs(slug, Service::Fetch)?;
        let read = read_whole(body, MOST_ASKED).await.ok_or(GitRule::LfsLarge);
        let batch = read.and_then(|bytes| Batch::read(&bytes)).map_err(refused)?;
        if batch.is_upload() {
            passing = self.admit_lfs(slug, Service::Push)?;
            batch.judge(&passing.route).map_err(refused)?;
        }
        let route = passing.route.clone();
        let mut request = Request::new(Sent::whole(batch.written().into()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.address(&format!("{}/info/lfs/objects/batch", route.upstream.path()))?;
        let sent = request.headers_mut();
        copy(headers, sent, &[header::USER_AGENT]);
        sent.insert(header::HOST, self.text(&route.upstream.authority())?);
        sent.insert(header::ACCEPT, MEDIA_TYPE);
        sent.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        sent.insert(header::CONTENT_TYPE, MEDIA_TYPE);
        self.authorize(&route, sent)?;
        let answer = self.carry(passing, Target::of(&route), request).await;
        let answer = answer.map_err(|why| self.failed_lfs(&why))?;
        let status = answer.status();
        if status != StatusCode::OK {
            return Err(self.declined(answer).await);
        }
        let bytes = read_whole(answer.into_body(), MOST_ANSWERED).await;
        let bytes =
            bytes.ok_or_else(|| self.failed_lfs("its answer to a batch is too long or incomplete"))?;
        let rewritten = batch.rewrite(&bytes, &route, &self.sandbox.seal, now_ms());
        let rewritten = rewritten.map_err(|why| self.failed_lfs(&why))?;
        if rewritten.refused > 0 {
            self.record(&Cause::Git(GitRule::LfsPlace));
        }
        Ok(shown(StatusCode::OK, &json!(rewritten.answer)))
    }

    async fn pass_transfer(
        &self,
        slug: &GitSlug,
        token: &str,
        parts: &Parts,
        body: Incoming,
    ) -> Result<Response<Answer>, Instead> {
        let refused = |rule| self.refuse_lfs(&Cause::Git(rule));
        let ticket = self.sandbox.seal.open(slug, token).filter(|ticket| ticket.until_ms > now_ms());
        let ticket = ticket.filter(|ticket| ticket.action.method() == parts.method);
        let ticket = ticket.ok_or_else(|| refused(GitRule::LfsTransfer))?;
        let service = if ticket.action == Action::Download { Service::Fetch } else { Service::Push };
        let passing = self.admit_lfs(slug, service)?;
        if passing.route.upstream.to_string() != ticket.upstream {
            return Err(refused(GitRule::LfsTransfer));
        }
        let place = Place::read(&ticket.href, &passing.route).ok_or_else(|| refused(GitRule::LfsPlace))?;
        let body = match ticket.action {
            Action::Download => Sent::whole(Bytes::new()),
            Action::Upload => {
                // This body is streamed, so its length must be known before the gate dials.
                if body.size_hint().exact() != Some(ticket.size) {
                    return Err(refused(GitRule::LfsSize));
                }
                Sent::new(Bytes::new(), body)
            }
            Action::Verify => {
                let said = json!({ "oid": ticket.oid, "size": ticket.size });
                Sent::whole(said.to_string().into())
            }
        };
        let mut request = Request::new(body);
        *request.method_mut() = ticket.action.method();
        *request.uri_mut() = self.address(&place.path)?;
        self.head(&ticket, &place, &passing.route, &parts.headers, request.headers_mut())?;
        let answer = self.carry(passing, place.target(), request).await;
        let answer = answer.map_err(|why| self.failed_lfs(&why))?;
        if !answer.status().is_success() {
            return Err(self.not_moved(&answer));
        }
        if ticket.action != Action::Download {
            return Ok(shown(StatusCode::OK, &json!({})));
        }
        self.downloaded(&ticket, answer)
    }

    /// The headers of a transfer: the forge's for this object, and few of the sandbox's.
    fn head(
        &self,
        ticket: &Ticket,
        place: &Place,
        route: &GitRoute,
        asked: &HeaderMap,
        sent: &mut HeaderMap,
    ) -> Result<(), Instead> {
        copy(asked, sent, &[header::USER_AGENT]);
        sent.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        match ticket.action {
            Action::Download => {
                if let Some(range) = asked.get(header::RANGE).filter(|range| is_range(range)) {
                    sent.insert(header::RANGE, range.clone());
                }
            }
            Action::Upload => {
                sent.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            }
            Action::Verify => {
                sent.insert(header::ACCEPT, MEDIA_TYPE);
                sent.insert(header::CONTENT_TYPE, MEDIA_TYPE);
            }
        }
        if place.is_own {
            self.authorize(route, sent)?;
        }
        for (name, value) in &ticket.header {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| self.unusable())?;
            let mut value = self.text(value)?;
            value.set_sensitive(true);
            sent.insert(name, value);
        }
        sent.insert(header::HOST, self.text(&place.authority)?);
        Ok(())
    }

    /// A downloaded object: never longer than announced.
    fn downloaded(&self, ticket: &Ticket, answer: Response<Answer>) -> Result<Response<Answer>, Instead> {
        let (parts, body) = answer.into_parts();
        let good = matches!(parts.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT);
        if !good || body.size_hint().lower() > ticket.size {
            self.record(&Cause::Git(GitRule::LfsSize));
            return Err(self.failed_lfs(GitRule::LfsSize.why()));
        }
        let most = usize::try_from(ticket.size).unwrap_or(usize::MAX);
        let counted = Limited::new(body, most).map_err(std::io::Error::other).boxed_unsync();
        let mut shown = Response::new(counted);
        *shown.status_mut() = parts.status;
        let names = [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CONTENT_RANGE];
        copy(&parts.headers, shown.headers_mut(), &names);
        Ok(shown)
    }

    fn authorize(&self, route: &GitRoute, sent: &mut HeaderMap) -> Result<(), Instead> {
        if let Some(text) = &route.authorization {
            let mut value = self.text(text.reveal())?;
            value.set_sensitive(true);
            sent.insert(header::AUTHORIZATION, value);
        }
        Ok(())
    }

    fn address(&self, path: &str) -> Result<Uri, Instead> {
        path.parse().map_err(|_| self.unusable())
    }

    fn text(&self, text: &str) -> Result<HeaderValue, Instead> {
        HeaderValue::from_str(text).map_err(|_| self.unusable())
    }

    fn unusable(&self) -> Instead {
        self.failed_lfs("its address or credential is not valid in an HTTP request")
    }

    /// The error for a forge that does not answer a batch.
    async fn declined(&self, answer: Response<Answer>) -> Instead {
        let status = answer.status();
        if status == StatusCode::UNAUTHORIZED {
            return self.failed_lfs(CREDENTIAL_REFUSED);
        }
        if status.is_redirection() {
            return self.failed_lfs("it redirects to another address, and redirects are not followed");
        }
        let retry = answer.headers().get(header::RETRY_AFTER).cloned();
        let bytes = read_whole(answer.into_body(), MOST_COMPLAINT).await.unwrap_or_default();
        let said = serde_json::from_slice::<Value>(&bytes).ok();
        let said = said.as_ref().and_then(|said| said["message"].as_str()).map(batch::plain);
        let said = said.unwrap_or_else(|| format!("the forge answers {status}"));
        let status = if status.is_client_error() || status.is_server_error() {
            status
        } else {
            StatusCode::BAD_GATEWAY
        };
        let mut instead = told(status, &said, Some("git:forge"));
        if let Some(retry) = retry {
            instead.0.headers_mut().insert(header::RETRY_AFTER, retry);
        }
        instead
    }

    /// The store did not return or accept an object. Its text is not passed on: it may quote the credential.
    fn not_moved(&self, answer: &Response<Answer>) -> Instead {
        let status = answer.status();
        let passed =
            [403, 404, 410, 413, 416, 422, 429, 507].contains(&status.as_u16()) || status.is_server_error();
        let shown = if passed { status } else { StatusCode::BAD_GATEWAY };
        let why = format!("the forge's object store answered {status}");
        let mut instead = told(shown, &why, Some("git:forge"));
        if let Some(retry) = answer.headers().get(header::RETRY_AFTER) {
            instead.0.headers_mut().insert(header::RETRY_AFTER, retry.clone());
        }
        instead
    }

    fn refuse_lfs(&self, cause: &Cause) -> Instead {
        self.record(cause);
        match cause {
            Cause::Git(rule) => told(rule.status(), rule.why(), Some(&rule.to_string())),
            _ => told(StatusCode::SERVICE_UNAVAILABLE, CREDENTIAL_UNKNOWN, Some(&cause.to_string())),
        }
    }

    fn failed_lfs(&self, why: &str) -> Instead {
        self.count_failed();
        told(StatusCode::BAD_GATEWAY, &format!("{FORGE_UNUSABLE}: {why}"), Some("git:forge"))
    }
}

impl Action {
    fn method(self) -> Method {
        match self {
            Self::Download => Method::GET,
            Self::Upload => Method::PUT,
            Self::Verify => Method::POST,
        }
    }
}

/// Whether a header is a single range, as Git LFS sends it to resume.
fn is_range(value: &HeaderValue) -> bool {
    let range = value
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix("bytes="))
        .and_then(|text| text.split_once('-'));
    let digits = |text: &str| text.len() <= 19 && text.bytes().all(|b| b.is_ascii_digit());
    range.is_some_and(|(from, to)| !from.is_empty() && digits(from) && digits(to))
}

/// Reads a whole body; `None` if it is too long, or incomplete.
async fn read_whole<B>(body: B, most: usize) -> Option<Bytes>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let read = timeout(HEAD_PATIENCE, Limited::new(body, most).collect()).await;
    Some(read.ok()?.ok()?.to_bytes())
}

/// Git LFS shows its user the message of an answer in its own media type.
fn shown(status: StatusCode, value: &Value) -> Response<Answer> {
    let mut answer = Response::new(whole(value.to_string().into_bytes()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, MEDIA_TYPE);
    answer
}

/// Our own answer, after which the connection ends: the rest of the request is not read.
fn told(status: StatusCode, why: &str, rule: Option<&str>) -> Instead {
    let mut answer = shown(status, &json!({ "message": why }));
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    if let Some(rule) = rule.and_then(|rule| HeaderValue::from_str(rule).ok()) {
        answer.headers_mut().insert("x-coffer-rule", rule);
    }
    Instead(Box::new(answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_one_part() {
        for (text, good) in [
            ("bytes=5-", true),
            ("bytes=0-9", true),
            ("bytes=-5", false),
            ("bytes=0-1,5-9", false),
            ("lines=1-2", false),
            ("bytes=99999999999999999999-", false),
        ] {
            assert_eq!(is_range(&HeaderValue::from_static(text)), good, "{text}");
        }
    }
}
