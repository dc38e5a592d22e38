//! The part of agentd that the server itself calls.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use coffer_wire::agentd::{
    Init, JournalAck, JournalPage, JournalRecord, OutputStream, ProcessFact, VolumeEntry, VolumeEntryKind,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::guest::Guest;
use crate::interpreter::{self, Interpreter};

/// How an agentd behaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Manners {
    #[default]
    Good,
    /// Accepts connections and never answers.
    Deaf,
    /// Answers `/init` with a failure.
    Broken,
    /// Answers `/init` with a huge body.
    Endless,
    /// Has already run a command.
    Talkative,
    /// Answers journal requests with this.
    Journal(&'static str),
    /// The same, `.0` times in a row.
    LongJournal(usize, &'static str),
}

/// Serves a socket until its last clone is dropped.
#[derive(Debug, Clone)]
pub struct FakeAgentd {
    shared: Arc<Shared>,
    _alive: Arc<DropGuard>,
}

#[derive(Debug)]
struct Shared {
    frozen: watch::Sender<bool>,
    manners: Manners,
    inits: Mutex<Vec<Init>>,
    journal: watch::Sender<Journal>,
    guest: Guest,
    interpreter: Arc<Interpreter>,
    /// The files of the volume that it serves.
    volume: Mutex<BTreeMap<String, Bytes>>,
}

impl FakeAgentd {
    pub fn start(socket: &Path, manners: Manners) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let shared = Arc::new(Shared {
            frozen: watch::Sender::new(manners == Manners::Deaf),
            manners,
            inits: Mutex::default(),
            guest: Guest::default(),
            interpreter: Arc::default(),
            volume: Mutex::default(),
            journal: watch::Sender::new(Journal::new(manners)),
        });
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, shared.clone(), stop.clone()));
        Self { shared, _alive: Arc::new(stop.drop_guard()) }
    }

    /// Adds a record to its journal.
    pub fn happen(&self, pid: u32, what: ProcessFact) {
        self.shared.journal.send_modify(|journal| journal.tell(pid, what));
    }

    /// The server's acknowledgements.
    pub fn acks(&self) -> Vec<JournalAck> {
        self.shared.journal.borrow().acks.clone()
    }

    /// While frozen it accepts connections and answers nothing.
    pub fn freeze(&self, frozen: bool) {
        self.shared.frozen.send_replace(frozen);
    }

    /// As if a server had initialised it.
    pub fn tell(&self, sandbox: &str) {
        let env_vars = [("E2B_SANDBOX_ID".to_string(), sandbox.to_string())].into();
        self.shared.inits.lock().unwrap().push(Init { env_vars, ..Init::default() });
    }

    /// The part for clients.
    pub fn guest(&self) -> &Guest {
        &self.shared.guest
    }

    /// Its code interpreter, which is not installed at first.
    pub fn interpreter(&self) -> &Arc<Interpreter> {
        &self.shared.interpreter
    }

    /// The received `/init` requests.
    pub fn inits(&self) -> Vec<Init> {
        self.shared.inits.lock().unwrap().clone()
    }
}

impl Shared {
    /// A tunnel to the code interpreter, if it is installed; nothing else listens.
    fn connect(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::default());
        let port = request.uri().authority().and_then(http::uri::Authority::port_u16);
        if port == Some(interpreter::PORT) && self.interpreter.is_installed() {
            tokio::spawn(self.interpreter.clone().serve(hyper::upgrade::on(request)));
        } else {
            *response.status_mut() = StatusCode::BAD_GATEWAY;
        }
        response
    }

    /// Files by the whole query that names them; there are no directories.
    fn serve_volume(&self, method: &Method, what: &str, query: &str, body: Bytes) -> Response<Full<Bytes>> {
        let mut files = self.volume.lock().unwrap();
        let entry = |size: usize| {
            let entry = VolumeEntry {
                name: "file".into(),
                kind: VolumeEntryKind::File,
                path: query.to_string(),
                size: size as u64,
                mode: 0o600,
                uid: 1,
                gid: 2,
                atime_ms: 1000,
                mtime_ms: 2000,
                ctime_ms: 3000,
                target: None,
            };
            Bytes::from(serde_json::to_vec(&entry).unwrap())
        };
        let (status, body) = match (method, what, files.get(query).cloned()) {
            (_, "file", _) if query.contains("full") => {
                (StatusCode::INSUFFICIENT_STORAGE, Bytes::from_static(b"{\"code\":507,\"message\":\"full\"}"))
            }
            (&Method::PUT, "file", _) => {
                let entry = entry(body.len());
                files.insert(query.to_string(), body);
                (StatusCode::CREATED, entry)
            }
            (&Method::GET, "file", Some(content)) => (StatusCode::OK, content),
            (&Method::GET, "path", Some(content)) => (StatusCode::OK, entry(content.len())),
            (&Method::DELETE, "path", Some(_)) => {
                files.remove(query);
                (StatusCode::NO_CONTENT, Bytes::new())
            }
            _ => {
                (StatusCode::NOT_FOUND, Bytes::from_static(b"{\"code\":404,\"message\":\"path not found\"}"))
            }
        };
        Response::builder().status(status).body(Full::new(body)).unwrap()
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
            let served = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
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
    if request.method() == Method::CONNECT {
        return Ok(shared.connect(request));
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    if let Some(reply) = shared.guest.answer(&parts, &body).await {
        return Ok(reply);
    }
    if let Some(what) = parts.uri.path().strip_prefix("/coffer/volume/") {
        return Ok(shared.serve_volume(&parts.method, what, parts.uri.query().unwrap_or_default(), body));
    }
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
        (&Method::GET, "/envs") => {
            let inits = shared.inits.lock().unwrap();
            let told = inits.last().map(|init| init.env_vars.clone()).unwrap_or_default();
            (StatusCode::OK, serde_json::to_vec(&told).unwrap().into())
        }
        (&Method::GET, "/coffer/journal") => {
            let journal = match shared.manners {
                Manners::Journal(text) => Bytes::from_static(text.as_bytes()),
                Manners::LongJournal(times, text) => text.repeat(times).into(),
                _ => journal(parts.uri.query(), &shared).await,
            };
            (StatusCode::OK, journal)
        }
        (&Method::POST, "/coffer/journal/ack") => {
            let ack: JournalAck = serde_json::from_slice(&body).unwrap();
            shared.journal.send_modify(|journal| {
                journal.records.retain(|record| record.offset >= ack.upto);
                journal.acks.push(ack);
            });
            (StatusCode::NO_CONTENT, Bytes::new())
        }
        _ => (StatusCode::NOT_FOUND, Bytes::new()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    Ok(response)
}

/// The journal, until the server acknowledges it.
#[derive(Debug)]
struct Journal {
    records: Vec<JournalRecord>,
    next: u64,
    boot: u64,
    acks: Vec<JournalAck>,
}

impl Journal {
    fn new(manners: Manners) -> Self {
        let boot = rand::random::<u64>() >> 1;
        let mut journal = Self { records: Vec::new(), next: 0, boot, acks: Vec::new() };
        if manners == Manners::Talkative {
            let command = "echo hello".into();
            journal.tell(42, ProcessFact::Started { command, tag: None, cwd: None, user: None });
            let (stream, data) = (OutputStream::Stdout, "aGVsbG8K".into());
            journal.tell(42, ProcessFact::Output { stream, position: 0, data });
            journal.tell(42, ProcessFact::Ended { exit_code: 3, status: "exit status 3".into(), untold: 0 });
        }
        journal
    }

    fn tell(&mut self, pid: u32, what: ProcessFact) {
        // Far in the future: the server must not trust this clock.
        self.records.push(JournalRecord { offset: self.next, time_ms: 4_000_000_000_000, pid, what });
        self.next += 1;
    }
}

/// Pages of two records, so that there are several.
async fn journal(query: Option<&str>, shared: &Shared) -> Bytes {
    let number = |name: &str| -> u64 {
        let mut pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map_or(0, |(_, value)| value.parse().unwrap())
    };
    let (from, wait) = (number("from"), number("wait"));
    let mut journal = shared.journal.subscribe();
    let came = journal.wait_for(|journal| journal.next > from);
    let _ = tokio::time::timeout(Duration::from_secs(wait), came).await;
    let journal = shared.journal.borrow();
    let fresh = journal.records.iter().filter(|record| record.offset >= from);
    let records: Vec<_> = fresh.take(2).cloned().collect();
    let next = records.last().map_or(journal.next.max(from), |last| last.offset + 1);
    serde_json::to_vec(&JournalPage { records, next, dropped: 0, boot: journal.boot }).unwrap().into()
}
