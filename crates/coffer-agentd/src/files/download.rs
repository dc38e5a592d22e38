//! `GET /files`: a file's contents, in part or compressed on request.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use coffer_core::sync::Mutex;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::fs::{FsWord, Mode, OFlags, PROC_SUPER_MAGIC};

use super::encoding::{self, Coding};
use super::off_thread;
use super::range::{self, Part, Version};
use crate::agent::{self, Agent};
use crate::conduit::{Conduit, Feed};
use crate::path;
use crate::query::Query;
use crate::reply::{self, Body, Refusal, Reply};
use crate::signature::{self, Operation};

/// Bytes per read; a download holds about three of them.
const CHUNK: usize = 256 << 10;

/// Bytes examined to guess whether it is text.
const SNIFFED: usize = 512;

/// Shorter files are not worth a pipe.
const SPLICED: u64 = 128 << 10;

pub(crate) async fn download(agent: &Arc<Agent>, asked: &Parts, query: &Query) -> Reply {
    match serve(agent, &asked.headers, query, asked.extensions.get()).await {
        Ok(reply) => reply,
        Err(refusal) => refusal.reply(),
    }
}

async fn serve(
    agent: &Agent,
    headers: &HeaderMap,
    query: &Query,
    conduit: Option<&Conduit>,
) -> Result<Reply, Refusal> {
    let init = agent.init();
    signature::permit(headers, query, Operation::Read, &init).map_err(Refusal::unauthorized)?;
    let account = agent::account(query.get("username"), &init).map_err(Refusal::unauthorized)?;
    let asked = query.get("path").unwrap_or_default();
    let path =
        path::resolve(asked, &account, init.default_workdir.as_deref()).map_err(Refusal::bad_request)?;
    let name = path::base_name(&path);
    // The server sets this for read-only callers: links must not lead them to the memory of processes.
    let kernel_files = query.get("kernel") != Some("false");
    let mut opened = off_thread(move || Opened::open(&path, kernel_files))
        .await
        .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error))??;
    let mut coding =
        encoding::accepted(headers).map_err(|message| Refusal::new(StatusCode::NOT_ACCEPTABLE, message))?;
    if range::is_special(headers) {
        // Ranges and versions refer to the plain file, not to a compressed form.
        coding = Coding::Identity;
    }

    let mut reply = Response::new(reply::full(Bytes::new()));
    describe(reply.headers_mut(), &name, &opened);
    let (first, end) = match range::select(headers, &opened.version) {
        Part::All => (0, opened.version.size),
        Part::Bytes(first, end) => {
            *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
            let content_range = format!("bytes {first}-{}/{}", end - 1, opened.version.size);
            insert(reply.headers_mut(), header::CONTENT_RANGE, &content_range);
            (first, end)
        }
        Part::None(status) => {
            *reply.status_mut() = status;
            if status == StatusCode::RANGE_NOT_SATISFIABLE {
                let content_range = format!("bytes */{}", opened.version.size);
                insert(reply.headers_mut(), header::CONTENT_RANGE, &content_range);
            }
            return Ok(reply);
        }
    };
    // Files in `/proc` report a size of 0; only reading shows.
    let unsized_file = opened.version.size == 0 && !opened.head.is_empty();
    if coding == Coding::Gzip {
        insert(reply.headers_mut(), header::CONTENT_ENCODING, "gzip");
    } else if !unsized_file {
        insert(reply.headers_mut(), header::CONTENT_LENGTH, &(end - first).to_string());
    }
    opened
        .file
        .seek(SeekFrom::Start(first))
        .map_err(|error| Refusal::from_io("error reading file", &error))?;
    let rest = if unsized_file { u64::MAX } else { end - first };
    let exact = !unsized_file;
    let plain = |exact| Plain { file: opened.file, rest, exact, spare: Spare::default() };
    *reply.body_mut() = match (coding, conduit) {
        (Coding::Gzip, _) => body(Compressed {
            source: plain(false),
            encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())),
        }),
        (Coding::Identity, Some(conduit)) if exact && rest >= SPLICED => {
            body(Moved { source: plain(exact), feed: Feed::new(conduit.clone()) })
        }
        (Coding::Identity, _) => body(plain(exact)),
    };
    Ok(reply)
}

/// Whether the file system is the kernel's, as `/proc` and `/sys`, whatever path led to it.
fn is_of_the_kernel(file: &File) -> io::Result<bool> {
    const SYSFS_MAGIC: FsWord = 0x6265_6572;
    let kind = rustix::fs::fstatfs(file)?.f_type;
    Ok(kind == PROC_SUPER_MAGIC || kind == SYSFS_MAGIC)
}

/// A file that can be served.
struct Opened {
    file: File,
    version: Version,
    /// Its first bytes.
    head: Vec<u8>,
}

impl Opened {
    fn open(path: &Path, kernel_files: bool) -> Result<Self, Refusal> {
        let shown = path.display();
        // Non-blocking, so that a pipe without a writer cannot block us.
        let opened = rustix::fs::open(
            path,
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let file = match opened {
            Ok(fd) => File::from(fd),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
                return Err(Refusal::not_found(format!("path '{shown}' does not exist")));
            }
            Err(error) => {
                return Err(Refusal::from_io(&format!("error opening file '{shown}'"), &error.into()));
            }
        };
        let fail = |error| Refusal::from_io(&format!("error reading file '{shown}'"), &error);
        if !kernel_files && is_of_the_kernel(&file).map_err(fail)? {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                format!("path '{shown}' leads to the kernel's files"),
            ));
        }
        let found = file.metadata().map_err(fail)?;
        if found.is_dir() {
            return Err(Refusal::bad_request(format!("path '{shown}' is a directory")));
        }
        if !found.is_file() {
            return Err(Refusal::bad_request(format!("path '{shown}' is not a regular file")));
        }
        let modified = found.modified().map_err(fail)?;
        let mut head = Vec::with_capacity(SNIFFED);
        (&file).take(SNIFFED as u64).read_to_end(&mut head).map_err(fail)?;
        Ok(Self { file, version: Version::new(found.len(), modified), head })
    }
}

fn describe(headers: &mut HeaderMap, name: &str, opened: &Opened) {
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let modified = httpdate::fmt_http_date(opened.version.modified);
    insert(headers, header::LAST_MODIFIED, &modified);
    insert(headers, header::ETAG, &opened.version.tag);
    insert(headers, header::CONTENT_TYPE, content_type(name, &opened.head));
    insert(headers, header::CONTENT_DISPOSITION, &disposition(name));
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Plain names are quoted, others percent-encoded (RFC 6266).
fn disposition(name: &str) -> String {
    let plain = name.bytes().all(|byte| (0x20..0x7f).contains(&byte) && !matches!(byte, b'"' | b'\\'));
    if plain {
        format!("inline; filename=\"{name}\"")
    } else {
        let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC);
        format!("inline; filename*=UTF-8''{encoded}")
    }
}

/// By the name's extension for types that browsers show, else by whether it looks like text.
fn content_type(name: &str, head: &[u8]) -> &'static str {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    match ending.to_ascii_lowercase().as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "xml" => "text/xml; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "md" => "text/markdown; charset=utf-8",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "wasm" => "application/wasm",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        _ if is_text(head) => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn is_text(head: &[u8]) -> bool {
    let valid = match std::str::from_utf8(head) {
        Ok(_) => true,
        // The cut may have split a character.
        Err(error) => error.error_len().is_none(),
    };
    valid && !head.iter().any(|byte| *byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b))
}

/// A source of pieces; `None` means the end.
trait Pieces: Send + Sized + 'static {
    fn next(&mut self) -> io::Result<Option<Bytes>>;
}

/// Reads on a blocking thread, always one piece ahead of the one being sent. A client that reads nothing
/// holds no thread.
fn body<P: Pieces>(pieces: P) -> Body {
    let read = |mut pieces: P| {
        off_thread(move || {
            let piece = pieces.next();
            (piece, pieces)
        })
    };
    let frames = stream::unfold(Ahead::Begin(pieces), move |ahead| async move {
        let read_ahead = match ahead {
            Ahead::Begin(pieces) => read(pieces).await,
            Ahead::Reading(reading) => reading.await.unwrap_or_else(|error| Err(error.to_string())),
            Ahead::End => return None,
        };
        match read_ahead {
            Ok((Ok(None), _)) => None,
            Ok((Ok(Some(piece)), pieces)) => {
                Some((Ok(Frame::data(piece)), Ahead::Reading(crate::task::spawn(read(pieces)))))
            }
            Ok((Err(error), _)) => Some((Err(error), Ahead::End)),
            Err(error) => Some((Err(io::Error::other(error)), Ahead::End)),
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

/// A piece that was read, and its source.
type Read<P> = (io::Result<Option<Bytes>>, P);

/// The state of a download.
enum Ahead<P> {
    Begin(P),
    Reading(tokio::task::JoinHandle<Result<Read<P>, String>>),
    End,
}

/// Sent buffers of one download, for reuse: the allocator would map and unmap each of them.
#[derive(Default)]
struct Spare(Arc<Mutex<Vec<Vec<u8>>>>);

impl Spare {
    fn take(&self) -> Vec<u8> {
        let spare = self.0.lock().pop();
        spare.unwrap_or_else(|| Vec::with_capacity(CHUNK))
    }

    /// Wraps `buffer` so that it comes back after it was sent.
    fn lend(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { buffer, home: Arc::clone(&self.0) })
    }
}

struct Lent {
    buffer: Vec<u8>,
    home: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        self.home.lock().push(buffer);
    }
}

struct Plain {
    file: File,
    rest: u64,
    /// Whether less than `rest` is an error: the length has been announced.
    exact: bool,
    spare: Spare,
}

impl Pieces for Plain {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        if self.rest == 0 {
            return Ok(None);
        }
        let wanted = usize::try_from(self.rest).map_or(CHUNK, |rest| rest.min(CHUNK));
        let mut buffer = self.spare.take();
        let length = loop {
            match rustix::io::read(&self.file, rustix::buffer::spare_capacity(&mut buffer)) {
                Err(rustix::io::Errno::INTR) => {}
                read => break read?,
            }
        };
        if length == 0 {
            return if self.exact { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
        }
        // The buffer may have been larger than requested.
        buffer.truncate(wanted);
        self.rest -= buffer.len() as u64;
        Ok(Some(self.spare.lend(buffer)))
    }
}

/// Sends without a copy.
struct Moved {
    source: Plain,
    feed: Feed,
}

impl Pieces for Moved {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        if self.source.rest == 0 {
            return Ok(None);
        }
        match self.feed.next(&self.source.file, self.source.rest) {
            Ok(piece) if piece.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(piece) => {
                self.source.rest -= piece.len() as u64;
                Ok(Some(piece))
            }
            // This file system does not support it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.source.next(),
            Err(error) => Err(error),
        }
    }
}

struct Compressed {
    source: Plain,
    /// `None` once its last bytes are out.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Pieces for Compressed {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        let Some(mut encoder) = self.encoder.take() else {
            return Ok(None);
        };
        loop {
            let Some(piece) = self.source.next()? else {
                return Ok(Some(encoder.finish()?.into()));
            };
            encoder.write_all(&piece)?;
            if !encoder.get_ref().is_empty() {
                let ready = std::mem::take(encoder.get_mut());
                self.encoder = Some(encoder);
                return Ok(Some(ready.into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_in_the_disposition() {
        assert_eq!(disposition("a b.txt"), "inline; filename=\"a b.txt\"");
        assert_eq!(disposition("é\".txt"), "inline; filename*=UTF-8''%C3%A9%22%2Etxt");
    }

    #[test]
    fn types_come_from_the_name_or_the_start() {
        assert_eq!(content_type("a.JSON", b""), "application/json");
        assert_eq!(content_type("a", b"hello\n"), "text/plain; charset=utf-8");
        assert_eq!(content_type("a", "é".as_bytes().split_at(1).0), "text/plain; charset=utf-8");
        assert_eq!(content_type("a", b"\x7fELF\x02\x01"), "application/octet-stream");
    }
}
