//! `POST /files`: streams the contents of one or several files.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use coffer_wire::agentd::Init;
use flate2::write::MultiGzDecoder;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rustix::fs::{Gid, Mode, OFlags, Uid};
use serde::Serialize;

use super::encoding::{self, Coding};
use super::metadata::{self, Metadata};
use super::multipart::{self, Form, Malformed, PartHead, Parts};
use super::{ensure_dirs, off_thread};
use crate::account::Account;
use crate::agent::{self, Agent};
use crate::path;
use crate::query::Query;
use crate::reply::{self, Refusal, Reply};
use crate::signature::{self, Operation};

/// Bytes that may arrive while others are written.
const HANDED_OVER: usize = 512 << 10;

/// Smaller files are written at once: a watcher then sees one write.
const WRITE_BUFFER: usize = 128 << 10;

/// Compressed bytes unpacked at a time; each may become a thousand.
const UNPACKED_AT_ONCE: usize = 4 << 10;

/// Most files in one request.
const FILE_LIMIT: usize = 10_000;

/// A written file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Written {
    pub(super) name: String,
    pub(super) path: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub(super) metadata: Metadata,
}

impl Written {
    pub(super) fn file(path: &Path, metadata: Metadata) -> Self {
        Self {
            name: path::base_name(path),
            path: path.to_string_lossy().into_owned(),
            kind: "file",
            metadata,
        }
    }
}

pub(crate) async fn upload(
    agent: &Arc<Agent>,
    headers: &HeaderMap,
    query: &Query,
    mut body: Incoming,
) -> Reply {
    match receive(agent, headers, query, &mut body).await {
        Ok(written) => reply::json(StatusCode::OK, &written),
        Err(refusal) => {
            reply::drain(&mut body).await;
            refusal.reply()
        }
    }
}

async fn receive(
    agent: &Arc<Agent>,
    headers: &HeaderMap,
    query: &Query,
    body: &mut Incoming,
) -> Result<Vec<Written>, Refusal> {
    let init = agent.init();
    signature::permit(headers, query, Operation::Write, &init).map_err(Refusal::unauthorized)?;
    let account = agent::account(query.get("username"), &init).map_err(Refusal::unauthorized)?;
    let mut upload = Upload::new(headers, query, account, init)?;
    upload = off_thread(move || upload.begin().map(|()| upload)).await.map_err(failed)??;
    // While some bytes are written the next arrive, and are handed over in larger pieces: each costs a switch
    // between two threads.
    let mut writing: Option<tokio::task::JoinHandle<_>> = None;
    let mut idle = Some(upload);
    let mut waiting: Vec<Bytes> = Vec::new();
    let mut ended = false;
    while !ended {
        match body.frame().await {
            Some(Ok(frame)) => waiting.extend(frame.into_data()),
            Some(Err(error)) => {
                return Err(Refusal::bad_request(format!("error reading request body: {error}")));
            }
            None => ended = true,
        }
        let much = waiting.iter().map(Bytes::len).sum::<usize>() >= HANDED_OVER;
        let free = writing.as_ref().is_none_or(tokio::task::JoinHandle::is_finished);
        if !waiting.is_empty() && (much || free || ended) {
            let mut upload = settled(&mut idle, &mut writing).await?;
            let pieces = std::mem::take(&mut waiting);
            let write =
                off_thread(move || pieces.iter().try_for_each(|piece| upload.push(piece)).map(|()| upload));
            writing = Some(crate::task::spawn(write));
        }
    }
    let upload = settled(&mut idle, &mut writing).await?;
    let agent = Arc::clone(agent);
    off_thread(move || {
        let written = upload.finish();
        agent.watchers.settle();
        written
    })
    .await
    .map_err(failed)?
}

/// The upload, after the write in progress.
async fn settled(
    idle: &mut Option<Upload>,
    writing: &mut Option<tokio::task::JoinHandle<Result<Result<Upload, Refusal>, String>>>,
) -> Result<Upload, Refusal> {
    match (idle.take(), writing.take()) {
        (Some(upload), _) => Ok(upload),
        (None, Some(writing)) => writing.await.map_err(|error| failed(error.to_string()))?.map_err(failed)?,
        (None, None) => Err(failed("the upload has already ended".into())),
    }
}

fn failed(error: String) -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error)
}

/// A body being written to files.
struct Upload {
    unpack: Option<Box<MultiGzDecoder<Vec<u8>>>>,
    layout: Layout,
    files: Files,
}

enum Layout {
    Form(Form),
    /// The body is the file.
    Raw,
}

impl Upload {
    fn new(headers: &HeaderMap, query: &Query, account: Account, init: Arc<Init>) -> Result<Self, Refusal> {
        let unpack = match encoding::of_body(headers).map_err(Refusal::bad_request)? {
            Coding::Identity => None,
            Coding::Gzip => Some(Box::new(MultiGzDecoder::new(Vec::new()))),
        };
        let files = Files {
            path: query.get("path").map(str::to_owned),
            metadata: metadata::from_headers(headers).map_err(Refusal::bad_request)?,
            account,
            init,
            open: None,
            written: Vec::new(),
        };
        let content_type =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let layout = if essence.eq_ignore_ascii_case("application/octet-stream") {
            if files.path.as_deref().is_none_or(str::is_empty) {
                return Err(Refusal::bad_request("path is required for an application/octet-stream upload"));
            }
            Layout::Raw
        } else if essence.eq_ignore_ascii_case("multipart/form-data") {
            let boundary = multipart::boundary(content_type)
                .ok_or_else(|| Refusal::bad_request("the form has no boundary"))?;
            Layout::Form(Form::new(&boundary))
        } else {
            return Err(Refusal::bad_request(format!(
                "unsupported Content-Type '{content_type}', use multipart/form-data or \
                 application/octet-stream"
            )));
        };
        Ok(Self { unpack, layout, files })
    }

    /// The one file of a raw body is known before its first byte.
    fn begin(&mut self) -> Result<(), Refusal> {
        match &self.layout {
            Layout::Raw => self.files.open(None),
            Layout::Form(_) => Ok(()),
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let Some(unpack) = &mut self.unpack else {
            return self.layout.push(bytes, &mut self.files);
        };
        for piece in bytes.chunks(UNPACKED_AT_ONCE) {
            unpack.write_all(piece).map_err(|error| bad_gzip(&error))?;
            let unpacked = std::mem::take(unpack.get_mut());
            self.layout.push(&unpacked, &mut self.files)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Written>, Refusal> {
        if let Some(unpack) = &mut self.unpack {
            unpack.try_finish().map_err(|error| bad_gzip(&error))?;
            let unpacked = std::mem::take(unpack.get_mut());
            self.layout.push(&unpacked, &mut self.files)?;
        }
        match &self.layout {
            Layout::Form(form) => form.finish().map_err(Refusal::from)?,
            Layout::Raw => self.files.close()?,
        }
        Ok(std::mem::take(&mut self.files.written))
    }
}

fn bad_gzip(error: &io::Error) -> Refusal {
    Refusal::bad_request(format!("error decompressing request body: {error}"))
}

impl Layout {
    fn push(&mut self, bytes: &[u8], files: &mut Files) -> Result<(), Refusal> {
        match self {
            Self::Form(form) => form.push(bytes, files),
            Self::Raw => files.data(bytes),
        }
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::bad_request(format!("error parsing multipart form: {}", malformed.0))
    }
}

/// The files of a request, written one after the other.
struct Files {
    /// From the query; without it each part has its own.
    path: Option<String>,
    metadata: Metadata,
    account: Account,
    init: Arc<Init>,
    open: Option<OpenFile>,
    written: Vec<Written>,
}

impl Files {
    fn open(&mut self, filename: Option<&str>) -> Result<(), Refusal> {
        let asked = self
            .path
            .as_deref()
            .or(filename)
            .filter(|path| !path.is_empty())
            .ok_or_else(|| Refusal::bad_request("a file has neither path nor filename"))?;
        let path = path::resolve(asked, &self.account, self.init.default_workdir.as_deref())
            .map_err(Refusal::bad_request)?;
        let shown = path.to_string_lossy();
        if self.written.iter().any(|written| written.path == shown) {
            return Err(Refusal::bad_request(format!(
                "you cannot upload multiple files to the same path '{shown}' in one upload \
                 request, only the first specified file was uploaded"
            )));
        }
        if self.written.len() >= FILE_LIMIT {
            return Err(Refusal::bad_request(format!("more than {FILE_LIMIT} files in one request")));
        }
        self.open = Some(OpenFile::create(path, &self.account)?);
        Ok(())
    }

    fn close(&mut self) -> Result<(), Refusal> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let path = open.finish(&self.metadata)?;
        self.written.push(Written::file(&path, self.metadata.clone()));
        Ok(())
    }
}

impl Parts for Files {
    type Error = Refusal;

    fn begin(&mut self, head: PartHead) -> Result<(), Refusal> {
        // Skip other fields of the form.
        if head.name.as_deref() == Some("file") {
            self.open(head.filename.as_deref())?;
        }
        Ok(())
    }

    fn data(&mut self, data: &[u8]) -> Result<(), Refusal> {
        match &mut self.open {
            Some(open) => {
                open.file.write_all(data).map_err(|error| Refusal::from_io("error writing file", &error))
            }
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), Refusal> {
        self.close()
    }
}

/// A file that is being written. If it is dropped unfinished, a new file is removed again.
struct OpenFile {
    path: PathBuf,
    file: BufWriter<File>,
    ours: bool,
}

impl OpenFile {
    /// Creates or truncates the file and gives it to `account`, in an order that watchers rely on: create,
    /// change of owner, write.
    fn create(path: PathBuf, account: &Account) -> Result<Self, Refusal> {
        if let Some(parent) = path.parent() {
            ensure_dirs(parent, account).map_err(|error| match error.kind() {
                io::ErrorKind::NotADirectory => Refusal::bad_request(error.to_string()),
                _ => Refusal::from_io("error ensuring directories", &error),
            })?;
        }
        let existing = std::fs::metadata(&path).ok();
        if let Some(existing) = &existing {
            let kind = existing.file_type();
            if kind.is_dir() {
                return Err(Refusal::bad_request(format!("path is a directory: {}", path.display())));
            }
            if kind.is_fifo() || kind.is_socket() {
                return Err(Refusal::bad_request(format!("path is not a regular file: {}", path.display())));
            }
        }
        // Non-blocking, so that a pipe that has just taken the file's place cannot block us.
        let opened = rustix::fs::open(
            &path,
            OFlags::WRONLY
                | OFlags::CREATE
                | OFlags::TRUNC
                | OFlags::NONBLOCK
                | OFlags::NOCTTY
                | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o666),
        )
        .map_err(|error| Refusal::from_io("error opening file", &error.into()))?;
        let open = Self {
            path,
            file: BufWriter::with_capacity(WRITE_BUFFER, File::from(opened)),
            ours: existing.is_none(),
        };
        // A device keeps its owner.
        if existing.is_none_or(|existing| existing.is_file()) {
            let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
            rustix::fs::fchown(open.file.get_ref(), Some(uid), Some(gid))
                .map_err(|error| Refusal::from_io("error changing file ownership", &error.into()))?;
        }
        Ok(open)
    }

    fn finish(mut self, metadata: &Metadata) -> Result<PathBuf, Refusal> {
        self.file.flush().map_err(|error| Refusal::from_io("error writing file", &error))?;
        metadata::replace(self.file.get_ref(), metadata)
            .map_err(|error| Refusal::from_io("error storing file metadata", &error.into()))?;
        self.ours = false;
        Ok(std::mem::take(&mut self.path))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.ours {
            let _gone_already = std::fs::remove_file(&self.path);
        }
    }
}
