//! A registry that does what a test says: one request per connection, over plain HTTP.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::Made;

#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Close the connection after so many bytes of the body.
    cut: Option<usize>,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), cut: None }
    }

    pub(crate) fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.into(), value.to_string()));
        self
    }

    pub(crate) fn cut(mut self, after: usize) -> Self {
        self.cut = Some(after);
        self
    }

    /// The part that was asked for, as blob stores send it.
    pub(crate) fn part(seen: &Seen, body: &[u8]) -> Self {
        let from = seen.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        match from.map(|from| from.parse::<usize>().unwrap()) {
            None => Self::new(200, body),
            Some(from) if from >= body.len() => Self::new(416, ""),
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", body.len() - 1, body.len());
                Self::new(206, &body[from..]).header("content-range", range)
            }
        }
    }
}

pub(crate) struct Fake {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<Mutex<u64>>,
}

impl Fake {
    pub(crate) async fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, connections) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::<Mutex<u64>>::default());
        let (answer, log, count) = (Arc::new(answer), seen.clone(), connections.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *count.lock().unwrap() += 1;
                let (answer, log) = (answer.clone(), log.clone());
                tokio::spawn(async move { serve(stream, &*answer, &log).await });
            }
        });
        Self { port, seen, connections }
    }

    /// A registry with one image, under any name and tag.
    pub(crate) async fn with(made: &Made) -> Self {
        let made = made.clone();
        Self::start(move |seen| image(&made, seen)).await
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Requests whose path has `part` in it.
    pub(crate) fn requests(&self, part: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path.contains(part)).collect()
    }

    pub(crate) fn connections(&self) -> u64 {
        *self.connections.lock().unwrap()
    }
}

/// How a registry with this image answers.
pub(crate) fn image(made: &Made, seen: &Seen) -> Reply {
    if seen.path.contains("/manifests/") {
        return Reply::new(200, made.manifest.clone()).header("content-type", made.media_type);
    }
    match made.blob(&seen.path) {
        Some(bytes) => Reply::part(seen, &bytes),
        None => Reply::new(404, r#"{"errors":[{"code":"BLOB_UNKNOWN"}]}"#),
    }
}

async fn serve(
    stream: TcpStream,
    answer: &(dyn Fn(&Seen) -> Reply + Send + Sync),
    log: &Mutex<Vec<Seen>>,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let path = line.split(' ').nth(1)?.to_string();
    let mut headers = HashMap::new();
    loop {
        line.clear();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_string());
    }
    let seen = Seen { path, headers };
    let reply = answer(&seen);
    log.lock().unwrap().push(seen);
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    let has_length =
        reply.headers.iter().any(|(name, _)| name == "content-length" || name == "transfer-encoding");
    if !has_length {
        head += &format!("content-length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).await.ok()?;
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len()).min(reply.body.len())];
    stream.write_all(body).await.ok()?;
    stream.shutdown().await.ok()
}
