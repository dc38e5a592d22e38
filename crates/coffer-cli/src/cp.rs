//! `cp`: files and directories into sandboxes and out of them.
//!
//! A file is one request. A directory is an archive through a `tar` in the sandbox, so that ten thousand small files are one
//! stream too. An archive from a sandbox is hostile: see [`unpack`].

use std::io::{IsTerminal as _, Read, Write as _};
use std::path::{Component, Path};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use clap::Args;
use coffer_client::{Client, Command, FileKind, Output, Upload};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;

use crate::context::Context;
use crate::failure::{Failure, NOT_FOUND, Outcome};
use crate::{escape, printer, sandboxes};

const PIECE: usize = 256 << 10;
/// Pieces of an archive that wait.
const MOST_PIECES: usize = 8;

/// Copy files and directories into a sandbox, or out of it
///
/// One of the two is SANDBOX:PATH, where a relative path is below the user's home; `-` is stdin or stdout.
#[derive(Debug, Args)]
pub struct Cp {
    /// What to copy
    source: String,
    /// Where to; a directory that exists gets the copy inside it
    target: String,
    /// The owner of new files in the sandbox
    #[arg(short, long, value_name = "NAME")]
    user: Option<String>,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// A path on one of the two sides.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Here(&'a Path),
    Inside { sandbox: &'a str, path: &'a str },
}

impl<'a> Place<'a> {
    fn parse(text: &'a str) -> Self {
        match text.split_once(':') {
            // `./a:b` and `C:\a` are paths here.
            Some((sandbox, path)) if sandbox.len() > 1 && !sandbox.contains(['/', '\\']) => {
                Self::Inside { sandbox, path }
            }
            _ => Self::Here(Path::new(text)),
        }
    }
}

/// A path for the API: absolute, or below the home.
fn inside(path: &str) -> String {
    match path {
        "" | "." | "~" | "~/" => "~".into(),
        path if path.starts_with('/') || path.starts_with("~/") => path.into(),
        path => format!("~/{}", path.strip_prefix("./").unwrap_or(path)),
    }
}

/// The same for a program that starts in the home.
fn for_program(path: &str) -> String {
    match path.strip_prefix("~/") {
        Some(rest) => format!("./{rest}"),
        None if path == "~" => ".".into(),
        None => path.to_string(),
    }
}

impl Cp {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let client = &context.client;
        let progress = Progress::new(self.quiet);
        let copied = match (Place::parse(&self.source), Place::parse(&self.target)) {
            (Place::Here(from), Place::Inside { sandbox, path }) => {
                let id = sandboxes::resolve(context, sandbox).await?;
                let to =
                    Remote { client, id: &id, user: self.user.as_deref(), path: inside(path), given: path };
                upload(from, &to, &progress).await
            }
            (Place::Inside { sandbox, path }, Place::Here(to)) => {
                let id = sandboxes::resolve(context, sandbox).await?;
                let from =
                    Remote { client, id: &id, user: self.user.as_deref(), path: inside(path), given: path };
                download(&from, to, &progress).await
            }
            (Place::Here(_), Place::Here(_)) => {
                Err(Failure::usage("neither path is in a sandbox").hint("one of them is SANDBOX:PATH"))
            }
            (Place::Inside { .. }, Place::Inside { .. }) => {
                Err(Failure::usage("both paths are in sandboxes")
                    .hint("copy to this machine first, or use a volume"))
            }
        };
        progress.finish();
        copied.map(|()| 0)
    }
}

/// A path in a sandbox.
struct Remote<'a> {
    client: &'a Client,
    id: &'a str,
    user: Option<&'a str>,
    path: String,
    /// As the user wrote it.
    given: &'a str,
}

impl Remote<'_> {
    async fn kind(&self) -> Result<Option<FileKind>, Failure> {
        if self.path == "~" || self.path == "/" {
            return Ok(Some(FileKind::Directory));
        }
        Ok(self.client.file_kind(self.id, self.path.trim_end_matches('/')).await?)
    }

    /// Where a copy of something of this name goes.
    async fn target(&self, name: &str) -> Result<String, Failure> {
        let into = self.given.ends_with('/') || self.kind().await? == Some(FileKind::Directory);
        let path = self.path.trim_end_matches('/');
        Ok(if into { format!("{path}/{name}") } else { path.to_string() })
    }
}

async fn upload(from: &Path, to: &Remote<'_>, progress: &Progress) -> Result<(), Failure> {
    if from == Path::new("-") {
        let content = Upload::stream(progress.reading(tokio::io::stdin()), None);
        to.client.write_file(to.id, &to.path, to.user, content).await?;
        return Ok(());
    }
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::new(format!("'{}' not found on this machine", from.display())).exit(NOT_FOUND)
        }
        _ => Failure::new(format!("could not read '{}': {error}", from.display())),
    };
    let found = std::fs::metadata(from).map_err(failed)?;
    let whole = from.canonicalize().map_err(failed)?;
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let target = to.target(&name).await?;
    if found.is_dir() {
        return upload_directory(from, to, &target, progress).await;
    }
    progress.length(found.len());
    let file = tokio::fs::File::open(from).await.map_err(failed)?;
    // A file that grows meanwhile is sent as long as it was.
    let content =
        Upload::stream(progress.reading(tokio::io::AsyncReadExt::take(file, found.len())), Some(found.len()));
    to.client.write_file(to.id, &target, to.user, content).await?;
    Ok(())
}

/// Creates the directory, and unpacks stdin in it.
const UNPACK: &str = "mkdir -p -- \"$1\" && exec tar -xf - -C \"$1\"";

async fn upload_directory(
    from: &Path,
    to: &Remote<'_>,
    target: &str,
    progress: &Progress,
) -> Result<(), Failure> {
    let mut command = helper(UNPACK, target);
    command.stdin = true;
    command.user = to.user.map(str::to_string);
    let mut process = to.client.guest(to.id).await?.start(&command).await?;
    let input = process.input();
    let (pieces, mut archive) = mpsc::channel(MOST_PIECES);
    let source = from.to_path_buf();
    let packed = tokio::task::spawn_blocking(move || pack(&source, pieces));
    let send = async {
        while let Some(piece) = archive.recv().await {
            progress.add(piece.len());
            if input.send(piece).await.is_err() {
                // tar ended: its exit code and message say why.
                break;
            }
        }
        drop(archive);
        let _ended = input.finish().await;
    };
    let (_, ended) = tokio::join!(send, drain(&mut process));
    let packed = packed.await.map_err(|error| Failure::new(error.to_string()))?;
    ended?;
    packed.map_err(|error| Failure::new(format!("could not pack '{}': {error}", from.display())))
}

/// A script with one argument, whose streams are an archive: nothing for the log.
fn helper(script: &str, path: &str) -> Command {
    let words = ["/bin/sh", "-c", script, "sh", &for_program(path)];
    Command { piped: true, ..Command::words(words.map(str::to_string)) }
}

/// Waits for the end of a helper in the sandbox, and reports its failure with the end of its messages.
async fn drain(process: &mut coffer_client::Process) -> Result<(), Failure> {
    let mut said = Vec::new();
    while let Some(output) = process.next().await? {
        match output {
            Output::Stdout(_) | Output::Terminal(_) => {}
            Output::Stderr(bytes) => keep_end(&mut said, &bytes),
            Output::Ended(end) => return judge(&end, &said),
        }
    }
    Ok(())
}

fn keep_end(said: &mut Vec<u8>, bytes: &[u8]) {
    said.extend_from_slice(bytes);
    let excess = said.len().saturating_sub(2000);
    said.drain(..excess);
}

fn judge(end: &coffer_client::End, said: &[u8]) -> Result<(), Failure> {
    if end.exit_code == Some(0) {
        return Ok(());
    }
    let said = escape::lines(String::from_utf8_lossy(said).trim());
    let why = if said.is_empty() { end.status.clone() } else { said };
    Err(Failure::new(format!("`tar` failed in the sandbox: {why}")))
}

fn pack(source: &Path, pieces: mpsc::Sender<Bytes>) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(std::io::BufWriter::with_capacity(PIECE, ToChannel(pieces)));
    archive.follow_symlinks(false);
    match archive.append_dir_all(".", source).and_then(|()| archive.into_inner()?.flush()) {
        // The other side has gone, and says why.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

struct ToChannel(mpsc::Sender<Bytes>);

impl std::io::Write for ToChannel {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let sent = self.0.blocking_send(Bytes::copy_from_slice(bytes));
        sent.map_err(|_| std::io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct FromChannel {
    pieces: mpsc::Receiver<Bytes>,
    held: Bytes,
}

impl Read for FromChannel {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.held.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.held = piece,
                None => return Ok(0),
            }
        }
        let count = self.held.len().min(into.len());
        self.held.copy_to_slice(&mut into[..count]);
        Ok(count)
    }
}

async fn download(from: &Remote<'_>, to: &Path, progress: &Progress) -> Result<(), Failure> {
    let not_found =
        || Failure::new(format!("file '{}' not found in the sandbox", from.given)).exit(NOT_FOUND);
    let kind = from.kind().await?.ok_or_else(not_found)?;
    let name = from.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = if name == "~" || name.is_empty() || name == ".." { "files" } else { name };
    let target = if to.is_dir() { to.join(name) } else { to.to_path_buf() };
    match kind {
        FileKind::Directory if to == Path::new("-") => Err(Failure::usage("a directory cannot go to stdout")),
        FileKind::Directory => download_directory(from, &target, progress).await,
        FileKind::File { .. } => download_file(from, to, &target, progress).await,
    }
}

async fn download_file(
    from: &Remote<'_>,
    to: &Path,
    target: &Path,
    progress: &Progress,
) -> Result<(), Failure> {
    let mut content = from.client.read_file(from.id, &from.path, 0).await?;
    progress.length(content.length.unwrap_or(0));
    if to == Path::new("-") {
        while let Some(piece) = content.next().await? {
            progress.add(piece.len());
            if printer::raw(&piece, false).is_err() {
                break;
            }
        }
        return Ok(());
    }
    let failed =
        |error: std::io::Error| Failure::new(format!("could not write '{}': {error}", target.display()));
    // The file appears when it is complete.
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".coffer-cp-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(parent).map_err(failed)?;
    while let Some(piece) = content.next().await? {
        progress.add(piece.len());
        file.write_all(&piece).map_err(failed)?;
    }
    file.persist(target).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Packs the directory into stdout.
const PACK: &str = "exec tar -cf - -C \"$1\" .";

async fn download_directory(from: &Remote<'_>, target: &Path, progress: &Progress) -> Result<(), Failure> {
    let path = from.path.trim_end_matches('/');
    let mut command = helper(PACK, if path.is_empty() { "/" } else { path });
    command.user = from.user.map(str::to_string);
    let mut process = from.client.guest(from.id).await?.start(&command).await?;
    let (pieces, archive) = mpsc::channel(MOST_PIECES);
    let place = target.to_path_buf();
    let unpacked = tokio::task::spawn_blocking(move || {
        unpack(FromChannel { pieces: archive, held: Bytes::new() }, &place)
    });
    let mut said = Vec::new();
    let mut ended = Ok(());
    while let Some(output) = process.next().await? {
        match output {
            Output::Stdout(piece) | Output::Terminal(piece) => {
                progress.add(piece.len());
                if pieces.send(piece).await.is_err() {
                    // The reason is the other side's.
                    break;
                }
            }
            Output::Stderr(bytes) => keep_end(&mut said, &bytes),
            Output::Ended(end) => ended = judge(&end, &said),
        }
    }
    drop(pieces);
    // What could not be written here comes first: the sandbox's tar ends because of it.
    unpacked.await.map_err(|error| Failure::new(error.to_string()))??;
    ended
}

/// Unpacks an archive that a sandbox wrote. Nothing is written outside `target`, through a link of the archive, as a
/// device, or with a set-uid bit.
fn unpack(archive: impl Read, target: &Path) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::new(format!("could not write '{}': {error}", target.display()));
    std::fs::create_dir_all(target).map_err(failed)?;
    let mut archive = tar::Archive::new(std::io::BufReader::with_capacity(PIECE, archive));
    archive.set_preserve_permissions(false);
    archive.set_unpack_xattrs(false);
    archive.set_overwrite(true);
    for entry in archive.entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let path = entry.path().map_err(failed)?.into_owned();
        let kind = entry.header().entry_type();
        let usual = kind.is_file()
            || kind.is_dir()
            || kind.is_symlink()
            || kind.is_hard_link()
            || kind.is_contiguous()
            || kind.is_gnu_sparse();
        if !usual {
            printer::note(&format!(
                "skipped {}: it is neither a file, a directory nor a link",
                path.display()
            ));
            continue;
        }
        let leaves = path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir));
        // `unpack_in` refuses what lies below a link that leads out, and returns false for `..`.
        if leaves || !entry.unpack_in(target).map_err(failed)? {
            let shown = path.display().to_string();
            return Err(Failure::new(format!(
                "the sandbox's archive has the path '{}', which leaves the target",
                escape::line(&shown)
            )));
        }
    }
    Ok(())
}

/// A bar on a terminal, otherwise nothing.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        Self(shown.then(|| {
            let style =
                ProgressStyle::with_template("{spinner} {bytes:>10} of {total_bytes} {bytes_per_sec}");
            let bar = ProgressBar::no_length().with_style(style.expect("the template is constant"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        }))
    }

    fn length(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(bytes);
        }
    }

    fn add(&self, bytes: usize) {
        if let Some(bar) = &self.0 {
            bar.inc(bytes as u64);
        }
    }

    fn reading(
        &self,
        source: impl tokio::io::AsyncRead + Send + Unpin + 'static,
    ) -> impl tokio::io::AsyncRead + Send + 'static {
        let bar = self.0.clone();
        tokio_util::io::InspectReader::new(source, move |bytes: &[u8]| {
            if let Some(bar) = &bar {
                bar.inc(bytes.len() as u64);
            }
        })
    }

    fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        assert_eq!(Place::parse("box:/a/b"), Place::Inside { sandbox: "box", path: "/a/b" });
        assert_eq!(Place::parse("box:"), Place::Inside { sandbox: "box", path: "" });
        for here in ["a", "./a:b", "/x/a:b", "C:\\a", "-"] {
            assert_eq!(Place::parse(here), Place::Here(Path::new(here)));
        }
        assert_eq!(["", "a/b", "./a", "/a", "~/a"].map(inside), ["~", "~/a/b", "~/a", "/a", "~/a"]);
    }

    /// An archive with one entry, as a hostile sandbox writes it.
    fn archive(path: &[u8], kind: tar::EntryType, link: Option<&str>, mode: u32) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_old();
        header.as_old_mut().name[..path.len()].copy_from_slice(path);
        header.set_entry_type(kind);
        if let Some(link) = link {
            header.set_link_name_literal(link).unwrap();
        }
        header.set_mode(mode);
        header.set_size(if kind.is_file() { 4 } else { 0 });
        header.set_cksum();
        builder.append(&header, if kind.is_file() { &b"evil"[..] } else { &[][..] }).unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn an_archive_cannot_leave_its_target() {
        use tar::EntryType as Kind;
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("in");
        for path in [&b"../out"[..], b"/tmp/coffer-out", b"a/../../out"] {
            assert!(unpack(&archive(path, Kind::Regular, None, 0o644)[..], &target).is_err(), "{path:?}");
        }
        // A link that leads out, and then a file below it.
        unpack(&archive(b"way", Kind::Symlink, Some(".."), 0o777)[..], &target).unwrap();
        assert!(unpack(&archive(b"way/out", Kind::Regular, None, 0o644)[..], &target).is_err());
        assert!(!dir.path().join("out").exists());
        // Devices are skipped.
        unpack(&archive(b"null", Kind::Char, None, 0o666)[..], &target).unwrap();
        assert!(!target.join("null").exists());
    }

    #[cfg(unix)]
    #[test]
    fn set_uid_bits_are_dropped() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        unpack(&archive(b"file", tar::EntryType::Regular, None, 0o6755)[..], dir.path()).unwrap();
        let mode = std::fs::metadata(dir.path().join("file")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7000, 0, "{mode:o}");
    }
}
