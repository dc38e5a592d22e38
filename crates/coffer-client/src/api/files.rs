//! Files in sandboxes, as streams.

use coffer_api_types::exec::WatchQuery;
use coffer_api_types::files::{Entry, FileAction, ListQuery, RemoveQuery, UserQuery};
use futures_util::TryStreamExt as _;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RANGE};
use http::{HeaderValue, Method};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;

use crate::client::{Client, at, encode, inside, read, with_query};
use crate::connection::{Body, Flow, empty, full};
use crate::error::Error;
use crate::pages::Pages;

const PIECE: usize = 256 << 10;

/// The content of a file to write.
#[derive(Debug)]
pub struct Upload {
    body: Body,
    /// If it is known.
    length: Option<u64>,
}

impl Upload {
    pub fn bytes(bytes: impl Into<bytes::Bytes>) -> Self {
        Self { body: full(bytes), length: None }
    }

    /// Everything that `source` has. With a length, the server refuses an upload that ends early.
    pub fn stream(source: impl AsyncRead + Send + 'static, length: Option<u64>) -> Self {
        let pieces = ReaderStream::with_capacity(source, PIECE).map_ok(Frame::data);
        Self { body: StreamBody::new(pieces).boxed_unsync(), length }
    }
}

/// What a path in a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File { length: Option<u64> },
    Directory,
}

/// A file that is being read.
#[derive(Debug)]
pub struct FileContent {
    /// If the sandbox says it.
    pub length: Option<u64>,
    flow: Flow,
}

impl FileContent {
    /// The next piece; `None` at the end. Ends with an error if the file is cut off.
    pub async fn next(&mut self) -> Result<Option<bytes::Bytes>, Error> {
        self.flow.next().await
    }

    /// All of it, if it has at most `most` bytes.
    pub async fn whole(self, most: usize) -> Result<Vec<u8>, Error> {
        self.flow.whole(most).await
    }
}

fn route(sandbox: &str, path: &str) -> String {
    format!("{}/{}", at(["sandboxes", sandbox, "files"]), inside(path))
}

impl Client {
    /// Entries of a directory, directories before their contents.
    pub fn list_files(&self, sandbox: &str, query: &ListQuery) -> Pages<Entry> {
        self.list(at(["sandboxes", sandbox, "files"]), query)
    }

    /// Reads a file, from `offset` on. The path is absolute, or begins with `~/`.
    pub async fn read_file(&self, sandbox: &str, path: &str, offset: u64) -> Result<FileContent, Error> {
        let mut headers = self.headers("*/*");
        if offset > 0 {
            headers.insert(RANGE, HeaderValue::from_str(&format!("bytes={offset}-")).expect("digits"));
        }
        let answer = self.send(Method::GET, &route(sandbox, path), headers, empty(), None).await?;
        let length = answer.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(FileContent { length, flow: answer.into_body() })
    }

    /// The content of another route.
    pub(crate) async fn content(&self, path: &str) -> Result<FileContent, Error> {
        let answer = self.send(Method::GET, path, self.headers("*/*"), empty(), None).await?;
        let length = answer.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(FileContent { length, flow: answer.into_body() })
    }

    /// Reads a small file without waking a paused sandbox, and without counting as activity.
    pub async fn watch_file(&self, sandbox: &str, path: &str, most: usize) -> Result<Vec<u8>, Error> {
        let path = with_query(route(sandbox, path), &encode(&WatchQuery { watch: Some(true) }));
        let answer = self.send(Method::GET, &path, self.headers("*/*"), empty(), None).await?;
        answer.into_body().whole(most).await
    }

    /// What a path is; `None` if nothing is there.
    pub async fn file_kind(&self, sandbox: &str, path: &str) -> Result<Option<FileKind>, Error> {
        let asked = self.send(Method::HEAD, &route(sandbox, path), self.headers("*/*"), empty(), None).await;
        match asked {
            Ok(answer) => {
                let length =
                    answer.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
                Ok(Some(FileKind::File { length }))
            }
            // Answers to HEAD have no body; the sandbox itself is asked for to tell the two cases apart.
            Err(error) if matches!(error.code(), Some("not_found" | "conflict")) => {
                let is_directory = error.code() == Some("conflict");
                let state = self.sandbox(sandbox).await?.state;
                match (state.as_str(), is_directory) {
                    ("running", true) => Ok(Some(FileKind::Directory)),
                    ("running", false) => Ok(None),
                    // The list is refused with the reason.
                    _ => self.list_files(sandbox, &ListQuery::default()).next().await.map(|_| None),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a file, with missing parent directories.
    pub async fn write_file(
        &self,
        sandbox: &str,
        path: &str,
        user: Option<&str>,
        content: Upload,
    ) -> Result<Entry, Error> {
        let mut headers = self.headers("application/json");
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        if let Some(length) = content.length {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let path = with_query(route(sandbox, path), &encode(&UserQuery { user: user.map(str::to_string) }));
        read(self.send(Method::PUT, &path, headers, content.body, None).await?).await
    }

    pub async fn delete_file(&self, sandbox: &str, path: &str, recursive: bool) -> Result<(), Error> {
        let query = RemoveQuery { recursive: recursive.then_some(true) };
        self.delete(&with_query(route(sandbox, path), &encode(&query))).await
    }

    /// Creates a directory with its parents, or moves a file.
    pub async fn act_on_files(&self, sandbox: &str, action: &FileAction) -> Result<Entry, Error> {
        self.call(Method::POST, &at(["sandboxes", sandbox, "files"]), Some(action)).await
    }
}
