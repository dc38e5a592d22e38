//! Downloads archives of the npm registry and compares them with their checksums.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use coffer_http::{Address, BadUrl, Client, Failure, anywhere};
use http::{Request, StatusCode, header};
use http_body_util::Full;
use sha2::{Digest as _, Sha512};

use super::package::Package;
use crate::progress::{Phase, Progress};

const CONNECT: Duration = Duration::from_secs(20);
/// Between two pieces.
const PIECE: Duration = Duration::from_secs(60);
/// Registries send clients elsewhere for the bytes.
const MOST_REDIRECTS: usize = 5;
/// No archive is nearly as large.
const LARGEST: u64 = 256 << 20;

/// Why an archive could not be downloaded.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum FetchError {
    #[error("`{url}` {source}")]
    Url { url: String, source: BadUrl },
    #[error(transparent)]
    Http(#[from] Failure),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("it leads elsewhere too often")]
    Redirects,
    #[error("it is larger than {LARGEST} bytes")]
    TooLarge,
    #[error("its checksum is {found}, and should be {expected}")]
    Checksum { found: String, expected: &'static str },
    #[error("could not write `{path}`: {source}")]
    Write { path: String, source: io::Error },
    #[error("could not begin: {0}")]
    Begin(io::Error),
}

/// A client of one registry.
#[derive(Debug)]
pub(super) struct Fetcher {
    registry: String,
    client: Client,
}

impl Fetcher {
    pub(super) fn new(registry: &str, extra_roots: Option<&str>) -> Self {
        Self { registry: registry.trim_end_matches('/').to_string(), client: Client::new(extra_roots) }
    }

    /// The registry's host, for messages: a URL may have a password.
    pub(super) fn shown(&self) -> String {
        Address::parse(&self.registry).map_or_else(|_| "the registry".to_string(), |at| at.host().to_string())
    }

    /// Downloads an archive to a file. A file whose checksum differs is not left behind.
    pub(super) fn fetch(
        &self,
        package: &Package,
        to: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), FetchError> {
        let Package { name, version, sha512 } = package;
        let url = format!("{}/{name}/-/{name}-{version}.tgz", self.registry);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(FetchError::Begin)?;
        let fetched = runtime.block_on(self.download(url, to, progress));
        let checked = fetched.and_then(|found| match found == *sha512 {
            true => Ok(()),
            false => Err(FetchError::Checksum { found, expected: sha512 }),
        });
        if checked.is_err() {
            let _ = std::fs::remove_file(to);
        }
        checked
    }

    /// Returns the checksum.
    async fn download(
        &self,
        mut url: String,
        to: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<String, FetchError> {
        for _ in 0..=MOST_REDIRECTS {
            let parsed = Address::parse(&url);
            let address = parsed.map_err(|source| FetchError::Url { url: url.clone(), source })?;
            let request = Request::get(address.path_and_query())
                .header(header::HOST, address.host_header())
                .header(header::ACCEPT, "*/*")
                .header(header::USER_AGENT, concat!("coffer/", env!("CARGO_PKG_VERSION")))
                .body(Full::new(Bytes::new()))
                .map_err(|_| FetchError::Url { url: url.clone(), source: BadUrl::Malformed })?;
            // The operator chose the registry, and the checksum decides over what it sends.
            let connection = self.client.connect(&address, &anywhere, CONNECT).await?;
            let answer = tokio::time::timeout(PIECE, connection.begin(request)).await;
            let answer = answer.map_err(|_| Failure::Timeout(PIECE))??;
            if answer.status().is_redirection() {
                let next = answer.headers().get(header::LOCATION).and_then(|next| next.to_str().ok());
                url = match next.ok_or(FetchError::Status(answer.status()))? {
                    path if path.starts_with('/') => format!("{}{path}", address.origin()),
                    whole => whole.to_string(),
                };
                continue;
            }
            if answer.status() != StatusCode::OK {
                return Err(FetchError::Status(answer.status()));
            }
            return save(answer, to, progress).await;
        }
        Err(FetchError::Redirects)
    }
}

async fn save(
    answer: http::Response<coffer_http::Pieces>,
    to: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<String, FetchError> {
    let failed = |source| FetchError::Write { path: to.display().to_string(), source };
    let length = answer.headers().get(header::CONTENT_LENGTH);
    let total = length.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0);
    let mut file = File::create(to).map_err(failed)?;
    let (mut hash, mut done, mut body) = (Sha512::new(), 0_u64, answer.into_body());
    while let Some(piece) = body.next(PIECE).await? {
        done += piece.len() as u64;
        if done > LARGEST {
            return Err(FetchError::TooLarge);
        }
        hash.update(&piece);
        file.write_all(&piece).map_err(failed)?;
        progress(Progress { phase: Phase::Node, done, total });
    }
    Ok(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::net::TcpListener;

    use super::*;

    /// Answers one request after another with these, and returns the requested paths.
    fn serve(answers: Vec<Vec<u8>>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mirror/", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                asked.push(lines.next().unwrap().unwrap());
                while !lines.next().unwrap().unwrap().is_empty() {}
                (&stream).write_all(&answer).unwrap();
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = (&stream).take(1).read_to_end(&mut Vec::new());
            }
            asked
        });
        (url, served)
    }

    fn ok(body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    const GOOD: Package = Package {
        name: "tool",
        version: "1.2.3",
        // Of `hello`.
        sha512: "9b71d224bd62f3785d96d46ad3ea3d73319bfbc2890caadae2dff72519673ca7\
                 2323c3d99ba5c11d7c7acc6e14b8c5da0c4663475c2e5c3adef46f73bcdec043",
    };

    #[test]
    fn an_archive_is_fetched_by_its_usual_path_also_after_a_redirect() {
        let away = b"HTTP/1.1 302 Found\r\nLocation: /blob\r\nContent-Length: 0\r\n\r\n".to_vec();
        let (url, served) = serve(vec![away, ok(b"hello")]);
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("tool.tgz");
        let mut last = None;
        Fetcher::new(&url, None).fetch(&GOOD, &to, &mut |progress| last = Some(progress)).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"hello");
        assert_eq!(last, Some(Progress { phase: Phase::Node, done: 5, total: 5 }));
        let asked = served.join().unwrap();
        assert_eq!(asked, ["GET /mirror/tool/-/tool-1.2.3.tgz HTTP/1.1", "GET /blob HTTP/1.1"]);
    }

    #[test]
    fn other_bytes_are_refused_and_removed() {
        let (url, served) = serve(vec![ok(b"hellO")]);
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("tool.tgz");
        let refused = Fetcher::new(&url, None).fetch(&GOOD, &to, &mut |_| {});
        assert!(matches!(refused, Err(FetchError::Checksum { .. })), "{refused:?}");
        assert!(!to.exists());
        served.join().unwrap();
    }

    #[test]
    fn a_registry_that_fails_or_is_away_is_told() {
        let (url, served) = serve(vec![b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec()]);
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("tool.tgz");
        let fetcher = Fetcher::new(&url, None);
        assert!(
            matches!(fetcher.fetch(&GOOD, &to, &mut |_| {}), Err(FetchError::Status(status)) if status == 404)
        );
        served.join().unwrap();
        assert!(matches!(fetcher.fetch(&GOOD, &to, &mut |_| {}), Err(FetchError::Http(_))));
        let nonsense = Fetcher::new("ftp://x", None).fetch(&GOOD, &to, &mut |_| {});
        assert!(matches!(nonsense, Err(FetchError::Url { .. })), "{nonsense:?}");
    }
}
