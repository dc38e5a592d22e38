//! `POST /coffer/unpack`: unpacks an archive for template builds, inside the sandbox that it is for.
//!
//! The archive is hostile. It is decompressed and read in bounded memory, and the kernel keeps what is written
//! within its bounds: below the destination of a copy, on the root's own mount for a layer. All of it runs with
//! the rights of the sandbox's root, behind the sandbox's walls.

mod archive;
mod copy;
mod fault;
mod input;
mod layer;
mod names;
mod progress;
mod records;
mod source;
#[cfg(test)]
mod tests;
mod tree;

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use coffer_wire::agentd::{Unpack, Unpacked};
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::task::JoinError;

use crate::account::{Accounts, NoAccount};
use crate::agent::Agent;
use crate::query::Query;
use crate::reply::{self, Refusal, Reply};

use archive::{Archive, End};
use fault::{Fault, shown};
use input::{AHEAD, Feed, Piece, decompress};
#[cfg(any(test, fuzzing))]
use names::Names;
use progress::Progress;
use source::Source;
use tree::{IDS, Owner};

pub(crate) async fn unpack(agent: &Arc<Agent>, query: &Query, mut body: Incoming) -> Reply {
    let order = match serde_json::from_str::<Unpack>(query.get("order").unwrap_or_default()) {
        Ok(order) => order,
        Err(error) => return Refusal::bad_request(format!("invalid `order`: {error}")).reply(),
    };
    let agent = Arc::clone(agent);
    let (sender, pieces) = mpsc::channel::<Piece>(AHEAD);
    let mut work = tokio::task::spawn_blocking(move || {
        let unpacked = run(&order, Path::new("/"), Feed::new(pieces));
        agent.watchers.settle();
        unpacked
    });
    // The thread reads until the body ends. If this future is dropped, because the client has gone, so is the
    // sender, and the thread stops.
    let feed = async {
        loop {
            let piece = match body.frame().await {
                None => Ok(bytes::Bytes::new()),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => Ok(data),
                    _ => continue,
                },
                Some(Err(error)) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, error)),
            };
            let is_last = piece.as_ref().map_or(true, bytes::Bytes::is_empty);
            if sender.send(piece).await.is_err() || is_last {
                return;
            }
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = &mut work => outcome,
        () = feed => work.await,
    };
    match settled(outcome) {
        Ok(unpacked) => reply::json(StatusCode::OK, &unpacked),
        Err(refusal) => {
            reply::drain(&mut body).await;
            refusal.reply()
        }
    }
}

/// A panic refuses this archive, and ends nothing else.
fn settled(outcome: Result<Result<Unpacked, Refusal>, JoinError>) -> Result<Unpacked, Refusal> {
    outcome.unwrap_or_else(|failed| {
        let message = format!("could not unpack the archive: {failed}");
        Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, message))
    })
}

/// Unpacks an archive to a root, which is `/` but in tests.
fn run(order: &Unpack, root: &Path, source: impl Read) -> Result<Unpacked, Refusal> {
    let mut progress = Progress::default();
    match apply(&mut progress, order, root, source) {
        Ok(()) => Ok(progress.unpacked),
        Err(fault) => Err(fault.refusal(progress.unpacked.entries + progress.unpacked.removed)),
    }
}

fn apply(progress: &mut Progress, order: &Unpack, root: &Path, source: impl Read) -> Result<(), Fault> {
    let open = |end| {
        let source = decompress(source).map_err(|error| Fault::reading(&error))?;
        Ok::<_, Fault>(Archive::new(source, end))
    };
    match order {
        Unpack::Layer => layer::unpack(&mut open(End::MayBeUnmarked)?, root, progress),
        Unpack::Copy { source: named, dest, into_directory, owner, mode } => {
            let order = copy::Order {
                source: Source::parse(named)?,
                dest: destination(dest)?,
                into_directory: *into_directory,
                owner: owner.as_deref().map_or(Ok(Owner::ROOT), find_owner)?,
                mode: mode.map(permissions).transpose()?,
            };
            copy::unpack(&mut open(End::Marked)?, &order, root, progress)
        }
    }
}

/// The destination relative to the root. `..` in it depends on no links, as in Docker.
fn destination(dest: &str) -> Result<Vec<u8>, Fault> {
    let bad = || Fault::new(format!("the destination '{}' is not an absolute path", shown(dest.as_bytes())));
    if !dest.starts_with('/') || dest.len() > archive::LONGEST_NAME {
        return Err(bad());
    }
    let cleaned = crate::path::clean(Path::new(dest));
    names::clean(cleaned.as_os_str().as_encoded_bytes(), names::Absolute::Relative).map_err(|_| bad())
}

fn permissions(mode: u32) -> Result<u32, Fault> {
    if mode > 0o7777 {
        return Err(Fault::new(format!("the mode {mode:o} is not made of permissions")));
    }
    Ok(mode)
}

/// `user[:group]` by numbers, or by names of the sandbox. A user alone brings its group: that of its name, or the
/// same number.
fn find_owner(text: &str) -> Result<Owner, Fault> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let (uid, own) = match user.parse() {
        Ok(uid) => (uid, uid),
        Err(_) => match Accounts::find(user) {
            Ok(account) => (account.uid, account.gid),
            Err(NoAccount::Unknown) => {
                return Err(Fault::new(format!("user '{}' not found", shown(user.as_bytes()))));
            }
            Err(NoAccount::Unreadable(error)) => {
                let user = shown(user.as_bytes());
                return Err(Fault::new(format!(
                    "user '{user}' not found: could not read /etc/passwd: {error}"
                )));
            }
        },
    };
    let gid = match group {
        None | Some("") => own,
        Some(group) => match group.parse() {
            Ok(gid) => gid,
            Err(_) => Accounts::find_group(group)
                .ok_or_else(|| Fault::new(format!("group '{}' not found", shown(group.as_bytes()))))?,
        },
    };
    if uid >= IDS || gid >= IDS {
        return Err(Fault::new(format!(
            "owner '{}': ids of a sandbox are below {IDS}",
            shown(text.as_bytes())
        )));
    }
    Ok(Owner { uid, gid })
}

/// Reads an archive as a request would, without writing: names must come out clean, and memory stay bounded.
#[cfg(any(test, fuzzing))]
pub fn fuzz_archive(data: &[u8]) {
    /// A small archive may become large; the rest is the same again.
    const ENOUGH: u64 = 4 << 20;
    let Ok(source) = decompress(data) else { return };
    let mut archive = Archive::new(source.take(ENOUGH), End::MayBeUnmarked);
    let mut buffer = [0; 4096];
    let mut names = Names::default();
    while let Ok(Some(member)) = archive.next() {
        assert!(member.name.len() <= archive::LONGEST_NAME, "a name of {} bytes", member.name.len());
        assert!(member.mode <= 0o7777 && member.mtime.1 < 1_000_000_000, "{member:?}");
        if let Ok(name) = names::clean(&member.name, names::Absolute::Relative) {
            let mut components = name.split(|byte| *byte == b'/');
            let is_clean = |component: &[u8]| !matches!(component, b"" | b"." | b"..");
            assert!(name.is_empty() || components.all(is_clean), "{}", name.escape_ascii());
            assert!(!name.starts_with(b"/") && !name.contains(&0), "{}", name.escape_ascii());
            if names.admit(&name, member.kind == archive::Kind::Directory).is_err() {
                return;
            }
            for source in ["a", "**/[a-c]*"] {
                let source = Source::parse(source).expect("a source");
                if let Some(source::Place::Below(path)) = source.place(&name, false) {
                    assert!(name.ends_with(path), "{} below {}", path.escape_ascii(), name.escape_ascii());
                }
            }
        }
        while archive.read(&mut buffer).is_ok_and(|length| length > 0) {}
    }
}
