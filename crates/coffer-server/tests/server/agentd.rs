//! As much of agentd as the server itself speaks to.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use coffer_wire::agentd::{Init, JournalPage, JournalRecord, OutputStream, ProcessFact};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How an agentd behaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Manners {
    #[default]
    Good,
    /// Takes connections and never answers.
    Deaf,
    /// Answers `/init` with a failure.
    Broken,
    /// Answers `/init` with more than anybody should read.
    Endless,
    /// Answers questions for its journal with this.
    Journal(&'static str),
    /// The same, `.0` times in a row.
    LongJournal(usize, &'static str),
}

/// Serves a socket until its last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct FakeAgentd {
    shared: Arc<Shared>,
    _alive: Arc<DropGuard>,
}

#[derive(Debug)]
struct Shared {
    frozen: watch::Sender<bool>,
    manners: Manners,
    inits: Mutex<Vec<Init>>,
}

impl FakeAgentd {
    pub(crate) fn start(socket: &Path, manners: Manners) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let shared = Arc::new(Shared {
            frozen: watch::Sender::new(manners == Manners::Deaf),
            manners,
            inits: Mutex::default(),
        });
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, shared.clone(), stop.clone()));
        Self { shared, _alive: Arc::new(stop.drop_guard()) }
    }

    /// While frozen it accepts connections and answers nothing.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.shared.frozen.send_replace(frozen);
    }

    /// What it was told by `/init`, each time.
    pub(crate) fn inits(&self) -> Vec<Init> {
        self.shared.inits.lock().unwrap().clone()
    }
}

async fn serve(listener: UnixListener, shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, _) = accepted.unwrap();
        let (shared, stop) = (shared.clone(), stop.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, shared.clone()));
            let served =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = served => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut frozen = shared.frozen.subscribe();
    if frozen.wait_for(|frozen| !frozen).await.is_err() {
        std::future::pending::<()>().await;
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let (status, body) = match (&parts.method, parts.uri.path()) {
        (&Method::POST, "/init") if shared.manners == Manners::Broken => {
            (StatusCode::INTERNAL_SERVER_ERROR, Bytes::from_static(b"no"))
        }
        (&Method::POST, "/init") if shared.manners == Manners::Endless => {
            (StatusCode::OK, Bytes::from(vec![b'x'; 64 << 20]))
        }
        (&Method::POST, "/init") => {
            shared.inits.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            (StatusCode::NO_CONTENT, Bytes::new())
        }
        (&Method::GET, "/health") => (StatusCode::NO_CONTENT, Bytes::new()),
        (&Method::GET, "/coffer/journal") => {
            let journal = match shared.manners {
                Manners::Journal(text) => Bytes::from_static(text.as_bytes()),
                Manners::LongJournal(times, text) => text.repeat(times).into(),
                _ => journal(parts.uri.query()),
            };
            (StatusCode::OK, journal)
        }
        _ => (StatusCode::NOT_FOUND, Bytes::new()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    Ok(response)
}

/// Two pages: a process that started and wrote, then its end.
fn journal(query: Option<&str>) -> Bytes {
    let record = |offset, what| JournalRecord { offset, time_ms: 4_000_000_000_000, pid: 42, what };
    let records = match query {
        Some("from=0") => vec![
            record(0, ProcessFact::Started { command: "echo hello".into() }),
            record(
                1,
                ProcessFact::Output { stream: OutputStream::Stdout, position: 0, data: "aGVsbG8K".into() },
            ),
        ],
        Some("from=2") => {
            vec![record(2, ProcessFact::Ended { exit_code: 3, status: "exit status 3".into() })]
        }
        _ => Vec::new(),
    };
    let next = if query == Some("from=0") { 2 } else { 3 };
    serde_json::to_vec(&JournalPage { records, next, dropped: 0 }).unwrap().into()
}
