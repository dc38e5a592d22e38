//! The service behind `/mcp`: streamable HTTP, with sessions for clients that still have them.
//!
//! The route authenticates a request and puts a [`Caller`] into it before it calls [`Service::answer`]; nothing here
//! sees a request that has none. A session belongs to the key that began it, and holds a place of a pool while it is open.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::sync::Mutex;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

pub use crate::caller::Caller;
use crate::caller::{Held, Owners, Seat};
use crate::server::{Access, Server};

/// The header that names a session.
pub const SESSION: &str = "mcp-session-id";
/// A session ends when nothing was heard of its client for this long.
const IDLE: Duration = Duration::from_secs(600);
/// `write_file` has the content of a file in it.
const LARGEST_REQUEST: usize = 12 << 20;

type Inner = StreamableHttpService<Server, LocalSessionManager>;

/// The body of an answer.
pub type Body = http_body_util::combinators::BoxBody<bytes::Bytes, std::convert::Infallible>;

/// What the service did with a request.
pub enum Answer {
    Response(Response<Body>),
    /// The session does not exist, has ended, or belongs to another key.
    NoSession,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answer")
    }
}

/// The service. Clones share their sessions.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
    owners: Owners,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("sessions", &self.owners.lock().len()).finish()
    }
}

impl Service {
    /// Sessions end with `stop`.
    pub fn new(stop: CancellationToken) -> Self {
        Self::with_idle(stop, IDLE)
    }

    /// As [`Service::new`]; sessions end after `idle` without a request.
    pub fn with_idle(stop: CancellationToken, idle: Duration) -> Self {
        let mut config = SessionConfig::default();
        config.keep_alive = Some(idle);
        let mut sessions = LocalSessionManager::default();
        sessions.session_config = config;
        // The route checks Origin and Host by the server's own rule before a request comes here.
        let http = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_max_request_body_bytes(LARGEST_REQUEST)
            .with_cancellation_token(stop);
        let inner =
            StreamableHttpService::new(|| Ok(Server::new(Access::OfRequest)), Arc::new(sessions), http);
        Self { inner: Arc::new(inner), owners: Owners::default() }
    }

    /// How many sessions are open.
    pub fn open_sessions(&self) -> usize {
        self.owners.lock().len()
    }

    /// Whether a request may begin a session: the route takes a place for it from the pool of its project.
    pub fn may_begin<B>(request: &Request<B>) -> bool {
        request.method() == Method::POST && !request.headers().contains_key(SESSION)
    }

    /// Answers a request of `caller`. `place` is held until the session that the request begins has ended; a request
    /// that begins none gives it back at once.
    pub async fn answer<B>(
        &self,
        mut request: Request<B>,
        mut caller: Caller,
        place: Option<Box<dyn Any + Send + Sync>>,
    ) -> Answer
    where
        B: hyper::body::Body + Send + 'static,
        B::Error: std::fmt::Display,
    {
        if let Some(id) = session_of(request.headers())
            && self.owners.lock().get(&id) != Some(&caller.key)
        {
            return Answer::NoSession;
        }
        let held =
            place.map(|place| Arc::new(Held { id: Mutex::new(None), owners: self.owners.clone(), place }));
        caller.seat = held.clone().map(Seat);
        let key = caller.key.clone();
        forget_keys(request.headers_mut());
        request.extensions_mut().insert(caller);
        let answer = self.inner.handle(request).await;
        if let Some(held) = held
            && let Some(id) = session_of(answer.headers())
        {
            self.owners.lock().insert(id.clone(), key);
            *held.id.lock() = Some(id);
        }
        Answer::Response(answer)
    }
}

/// The SDK keeps the head of a request for as long as it works on it, and may log it.
fn forget_keys(headers: &mut HeaderMap) {
    headers.remove("x-api-key");
    headers.remove(http::header::AUTHORIZATION);
}

fn session_of(headers: &HeaderMap<HeaderValue>) -> Option<String> {
    headers.get(SESSION)?.to_str().ok().map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coffer_client::Client;
    use http_body_util::{BodyExt as _, Full};

    fn request(session: Option<&str>, body: &'static str) -> Request<Full<bytes::Bytes>> {
        let mut request = Request::post("/mcp")
            .header("host", "127.0.0.1")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(session) = session {
            request = request.header(SESSION, session);
        }
        request.body(Full::new(bytes::Bytes::from_static(body.as_bytes()))).unwrap()
    }

    const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",
        "capabilities":{},"clientInfo":{"name":"test","version":"0"}}}"#;
    const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    const PING: &str = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;

    #[tokio::test]
    async fn a_session_whose_client_vanished_ends_and_gives_its_place_back() {
        let stop = CancellationToken::new();
        let service = Service::with_idle(stop.clone(), Duration::from_millis(300));
        let caller = || Caller::new(Client::new("http://127.0.0.1:9", None).unwrap(), "key".into());
        let place = Arc::new(());
        let held: Box<dyn Any + Send + Sync> = Box::new(place.clone());
        let Answer::Response(begun) = service.answer(request(None, INITIALIZE), caller(), Some(held)).await
        else {
            panic!("a session begins");
        };
        assert_eq!(begun.status(), 200);
        let session = session_of(begun.headers()).unwrap();
        begun.into_body().collect().await.unwrap();
        let ready = service.answer(request(Some(&session), INITIALIZED), caller(), None).await;
        assert!(matches!(ready, Answer::Response(answer) if answer.status() == 202));
        assert_eq!((service.open_sessions(), Arc::strong_count(&place)), (1, 2));

        // From here on the client is silent.
        let ended = async {
            while service.open_sessions() > 0 || Arc::strong_count(&place) > 1 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the session ends");
        let late = service.answer(request(Some(&session), PING), caller(), None).await;
        assert!(matches!(late, Answer::NoSession), "a client that comes back begins another one");
        stop.cancel();
    }
}
