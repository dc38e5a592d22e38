//! Sends spans by OTLP over HTTP, in batches, in the background.
//!
//! A destination that is down costs only its spans: a batch is tried a few times with growing pauses, then
//! dropped and counted, and while the circuit breaker is open batches are dropped at once. The queue is
//! bounded, and adding a span never waits.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use coffer_core::settings::SecretText;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use prometheus_client::metrics::counter::Counter;
use prost::Message;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use coffer_http::breaker::{Breaker, Policy};
use coffer_http::{Address, BadUrl, Client, Failure, Read, anywhere, retry_after};

use super::otlp::{ExportTraceServiceRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span};
use super::settings::{BadTraceSetting, TraceSettings};

const LARGEST_BATCH: usize = 512;
/// How long a batch waits for more spans.
const GATHER: Duration = Duration::from_secs(2);
/// Time of one try, including the connection.
const PATIENCE: Duration = Duration::from_secs(10);
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// After this many failed batches in a row, the next ones are dropped for a while without a try.
const POLICY: Policy =
    Policy { failures: 3, pause: Duration::from_secs(15), longest_pause: Duration::from_secs(120) };
/// Time for the last batch, when the server stops.
const FAREWELL: Duration = Duration::from_secs(3);
/// Answers are read to their end, so that connections close properly, up to this bound.
const READ: Read = Read::Beginning { most: 64 * 1024, patience: PATIENCE };

/// A destination of spans.
#[derive(Clone)]
pub(super) struct Destination {
    pub(super) name: &'static str,
    pub(super) breaker: Arc<Breaker>,
    client: Client,
    address: Address,
    path: String,
    headers: HeaderMap,
}

impl std::fmt::Debug for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Destination({} at {}:{})", self.name, self.address.host(), self.address.port())
    }
}

/// The destinations in the settings; none by default.
pub(super) fn destinations(settings: &TraceSettings) -> Result<Vec<Destination>, BadTraceSetting> {
    let set = |value: &Option<String>| value.clone().filter(|value| !value.trim().is_empty());
    let secret = |value: &Option<SecretText>| {
        value.as_ref().map(|value| value.reveal().to_string()).filter(|value| !value.trim().is_empty())
    };
    let mut all = Vec::new();
    if let Some(endpoint) = set(&settings.endpoint) {
        let mut destination = Destination::at("otlp", "traces.endpoint", &endpoint, "/v1/traces")?;
        for pair in
            secret(&settings.headers).unwrap_or_default().split(',').filter(|pair| !pair.trim().is_empty())
        {
            let bad = |why: &str| BadTraceSetting { setting: "traces.headers", why: why.into() };
            let (name, value) = pair.split_once('=').ok_or_else(|| bad("it is not a list of name=value"))?;
            let name =
                HeaderName::try_from(name.trim()).map_err(|_| bad("a name is not a valid header name"))?;
            // The specification percent-encodes values.
            let value = percent_encoding::percent_decode_str(value.trim()).collect::<Vec<u8>>();
            let value =
                HeaderValue::try_from(value).map_err(|_| bad("a value is not a valid header value"))?;
            destination.headers.insert(name, value);
        }
        all.push(destination);
    }
    let keys = (set(&settings.langfuse_public_key), secret(&settings.langfuse_secret_key));
    match (set(&settings.langfuse_host), keys) {
        (Some(host), (Some(public), Some(secret))) => {
            let mut destination =
                Destination::at("langfuse", "traces.langfuse_host", &host, "/api/public/otel/v1/traces")?;
            let basic = base64::engine::general_purpose::STANDARD.encode(format!("{public}:{secret}"));
            let mut value = HeaderValue::try_from(format!("Basic {basic}")).expect("base 64 is text");
            value.set_sensitive(true);
            destination.headers.insert(AUTHORIZATION, value);
            all.push(destination);
        }
        (None, (None, None)) => {}
        _ => {
            let why = "Langfuse needs its host, its public key and its secret key".to_string();
            return Err(BadTraceSetting { setting: "traces.langfuse_host", why });
        }
    }
    Ok(all)
}

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Unanswered(#[from] Failure),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("it did not answer in time")]
    TooSlow,
}

impl Destination {
    fn at(name: &'static str, setting: &'static str, url: &str, path: &str) -> Result<Self, BadTraceSetting> {
        let bad = |why: &str| BadTraceSetting { setting, why: why.to_string() };
        let address = Address::parse(url.trim()).map_err(|why| match why {
            BadUrl::Malformed => bad("it is not a URL"),
            BadUrl::NoHost => bad("it is a URL without a host"),
            BadUrl::Scheme => bad("it must begin with http:// or https://"),
        })?;
        let host = HeaderValue::try_from(address.host_header())
            .map_err(|_| bad("its host is not a valid header value"))?;
        let agent = concat!("coffer/", env!("CARGO_PKG_VERSION"));
        let headers = HeaderMap::from_iter([
            (HOST, host),
            (CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf")),
            (USER_AGENT, HeaderValue::from_static(agent)),
        ]);
        let path = format!("{}{path}", address.path().trim_end_matches('/'));
        let breaker = Arc::new(Breaker::new(name, POLICY));
        Ok(Self { name, breaker, client: Client::new(None), address, path, headers })
    }

    /// Sends once; returns the status, and the `Retry-After` if there is one.
    async fn send(&self, body: Bytes) -> Result<(StatusCode, Option<Duration>), SendError> {
        let mut request = Request::post(self.path.as_str()).body(Full::new(body))?;
        *request.headers_mut() = self.headers.clone();
        let answer = self.client.send(&self.address, &anywhere, request, READ, PATIENCE).await?;
        Ok((answer.status(), retry_after(answer.headers())))
    }

    /// Sends, with retries if they may help.
    async fn deliver(&self, body: Bytes, stop: &CancellationToken) -> Result<(), SendError> {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let (why, told) = match self.send(body.clone()).await {
                Ok((status, _)) if status.is_success() => return Ok(()),
                Ok((status, told)) => {
                    let may_pass = [429, 502, 503, 504].contains(&status.as_u16());
                    if !may_pass {
                        return Err(SendError::Status(status));
                    }
                    (SendError::Status(status), told)
                }
                Err(why) => (why, None),
            };
            if attempt >= TRIES || stop.is_cancelled() {
                return Err(why);
            }
            let wait = told.unwrap_or(pause).min(LONGEST_PAUSE).mul_f64(rand::random_range(0.75..1.25));
            tokio::select! {
                () = stop.cancelled() => return Err(why),
                () = tokio::time::sleep(wait) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        unreachable!("the loop returns")
    }
}

/// Sends incoming spans, until `stop`.
pub(super) async fn export(
    destination: Destination,
    mut inbox: mpsc::Receiver<Span>,
    sent: Counter,
    dropped: Counter,
    stop: CancellationToken,
) {
    let mut batch = Vec::new();
    loop {
        let ending = tokio::select! {
            received = inbox.recv_many(&mut batch, LARGEST_BATCH) => received == 0,
            () = stop.cancelled() => true,
        };
        if !ending && batch.len() < LARGEST_BATCH {
            gather(&mut inbox, &mut batch, &stop).await;
        }
        if ending {
            while batch.len() < LARGEST_BATCH
                && let Ok(span) = inbox.try_recv()
            {
                batch.push(span);
            }
        }
        let spans = std::mem::take(&mut batch);
        let count = spans.len() as u64;
        if count > 0 {
            let attempted = attempt(&destination, spans, ending, &stop).await;
            let outcome = if attempted.is_ok() { &sent } else { &dropped };
            outcome.inc_by(count);
            if let Err(Some(why)) = attempted {
                tracing::warn!("could not send {count} spans to {}: {why}", destination.name);
            }
        }
        if ending {
            return;
        }
    }
}

/// Sends a batch, unless the breaker is open: then it is dropped without a log line.
async fn attempt(
    destination: &Destination,
    spans: Vec<Span>,
    is_last: bool,
    stop: &CancellationToken,
) -> Result<(), Option<SendError>> {
    let leave = destination.breaker.admit().map_err(|_| None)?;
    let deliver = destination.deliver(encoded(spans).into(), stop);
    let delivered = if is_last {
        let last = tokio::time::timeout(FAREWELL, deliver).await;
        last.unwrap_or_else(|_| Err(SendError::TooSlow))
    } else {
        deliver.await
    };
    match delivered {
        Ok(()) => leave.answered(),
        Err(_) => leave.failed(),
    }
    delivered.map_err(Some)
}

async fn gather(inbox: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>, stop: &CancellationToken) {
    let deadline = tokio::time::sleep(GATHER);
    tokio::pin!(deadline);
    while batch.len() < LARGEST_BATCH {
        let room = LARGEST_BATCH - batch.len();
        tokio::select! {
            () = &mut deadline => return,
            () = stop.cancelled() => return,
            received = inbox.recv_many(batch, room) => if received == 0 {
                return;
            },
        }
    }
}

fn encoded(spans: Vec<Span>) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let attributes = vec![
        KeyValue::new("service.name", "coffer".into()),
        KeyValue::new("service.version", version.into()),
    ];
    let scope = Scope { name: "coffer".into(), version: version.into() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    let resource_spans = vec![ResourceSpans { resource: Some(Resource { attributes }), scope_spans }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}
