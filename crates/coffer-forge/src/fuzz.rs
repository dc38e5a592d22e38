//! Fuzz targets: parsers of hostile bytes, with the properties of their results.

use std::time::Duration;

use bytes::Bytes;
use coffer_core::forge::BranchName;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use crate::local::bundle::Upload;
use crate::serve::commands::{Command, Commands};
use crate::serve::inflate::Inflate;

/// Longer than any input takes.
const SILENCE: Duration = Duration::from_secs(10);
/// The largest inflated body.
const MOST: u64 = 64 << 10;

fn run<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime of one thread can be built");
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

fn body(bytes: &[u8], piece: usize) -> BoxStream<'static, Result<Bytes, String>> {
    let pieces: Vec<_> = bytes.chunks(piece.max(1)).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    futures_util::stream::iter(pieces).boxed()
}

/// Parses the commands of a push; returns what goes to git: the commands' own bytes, then the rest.
async fn read_push(bytes: &[u8], piece: usize, gzip: bool) -> Option<(Vec<Command>, Vec<u8>)> {
    let mut body = Inflate::new(body(bytes, piece), gzip, MOST);
    let (commands, first) = Commands::read(&mut body, SILENCE).await.ok()?;
    let mut passed = first.to_vec();
    while let Some(piece) = body.next().await {
        let Ok(piece) = piece else { break };
        passed.extend_from_slice(&piece);
    }
    assert!(passed.len() as u64 <= MOST, "{} bytes went on to git", passed.len());
    let Some(commands) = commands else { return Some((Vec::new(), passed)) };
    assert!(!commands.all.is_empty());
    let report = commands.refused(|_| "no".into());
    assert!(commands.moved(&report).is_empty(), "a refusal was read as a success");
    let refusals = commands.refusals(&[], None);
    for command in commands.all.iter().filter(|command| !refusals.contains_key(&command.name)) {
        let kinds = ["refs/heads/", "refs/tags/", "refs/notes/"];
        let name = kinds.iter().find_map(|kind| command.name.strip_prefix(kind)).expect("a kind of ref");
        assert!(name.parse::<BranchName>().is_ok(), "{name:?}");
        assert!(!name.contains("..") && !name.starts_with('/'), "{name:?}");
    }
    Some((commands.all, passed))
}

/// A push, whole and in pieces, compressed or not.
pub fn push(data: &[u8]) {
    let [piece, gzip, bytes @ ..] = data else { return };
    let gzip = gzip % 2 == 1;
    run(async {
        let whole = read_push(bytes, bytes.len(), gzip).await;
        let pieces = read_push(bytes, usize::from(*piece), gzip).await;
        if !gzip {
            assert_eq!(whole, pieces, "pieces of {piece} read otherwise");
            if let Some((_, passed)) = whole {
                assert_eq!(passed, bytes, "what goes to git is what came");
            }
        }
    });
}

/// The header of a bundle, whole and in pieces.
pub fn bundle(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let read = async |piece: usize| {
        let mut upload = Upload::new(body(bytes, piece), MOST, SILENCE);
        let header = upload.header().await.ok()?;
        let mut pack = Vec::new();
        while let Some(piece) = upload.next().await.ok()? {
            pack.extend_from_slice(&piece);
        }
        Some((header.refs, pack))
    };
    run(async {
        let whole = read(bytes.len()).await;
        assert_eq!(whole, read(usize::from(*piece)).await, "pieces of {piece} read otherwise");
        let Some((refs, pack)) = whole else { return };
        assert!(bytes.starts_with(b"# v") && bytes.ends_with(&pack));
        assert!(bytes[..bytes.len() - pack.len()].ends_with(b"\n\n"), "the pack begins after an empty line");
        for (name, id) in refs {
            let kinds = ["refs/heads/", "refs/tags/"];
            let rest = kinds.iter().find_map(|kind| name.strip_prefix(kind)).expect("a branch or a tag");
            assert!(rest.parse::<BranchName>().is_ok() && !name.contains(".."), "{name:?}");
            assert!(id.as_str().len() == 40 && !id.is_zero());
        }
    });
}

#[cfg(test)]
#[path = "../../../fuzz/seeded.rs"]
mod seeded;

#[cfg(test)]
mod tests {
    use super::seeded;

    #[test]
    fn pushes() {
        seeded::run("forge_push", super::push);
    }

    #[test]
    fn bundles() {
        seeded::run("bundle", super::bundle);
    }
}
