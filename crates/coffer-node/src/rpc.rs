//! The node's socket: servers connect, send requests, and receive notices.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::sync::Arc;
use std::time::Duration;

use coffer_wire::node::{FromNode, NodeError, NodeErrorCode, Request, ToNode, read_frame, write_frame};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::answer;
use crate::node::Node;

/// Requests of one connection that may be in progress; more wait unread.
const UNDER_WAY: usize = 256;
/// How long a connection that ends waits for its last answers to be read.
const PARTING: Duration = Duration::from_secs(10);

pub(crate) async fn serve(node: &Arc<Node>, stop: &CancellationToken) -> io::Result<()> {
    let path = node.run_dir.join("node.sock");
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    chown(&path, None, Some(node.server_gid))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660))?;
    tracing::info!("node listens at `{}`", path.display());
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (node, stop) = (node.clone(), stop.clone());
                    node.requests.clone().spawn(async move {
                        if let Err(error) = converse(&node, stream, &stop).await {
                            tracing::warn!("a server's connection broke: {error}");
                        }
                    });
                }
                // Probably out of descriptors: continue when some are free again.
                Err(error) => {
                    tracing::error!("could not accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

async fn converse(node: &Arc<Node>, stream: UnixStream, stop: &CancellationToken) -> io::Result<()> {
    // Before the first request, so that no death between a list and the first notice is missed.
    let notices = node.notices.subscribe();
    let (mut from_server, to_server) = stream.into_split();
    let (answers, outbox) = mpsc::channel(64);
    #[expect(clippy::disallowed_methods, reason = "awaited or aborted below")]
    let mut writer = tokio::spawn(write(to_server, outbox, notices));
    let places = Arc::new(Semaphore::new(UNDER_WAY));
    let ended = loop {
        let frame = tokio::select! {
            () = stop.cancelled() => break Ok(()),
            _ = &mut writer => return Ok(()),
            // Dropped half-way only when the connection ends anyway.
            frame = read_frame::<ToNode>(&mut from_server) => frame,
        };
        let ToNode { id, request, request_id } = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (node, answers) = (node.clone(), answers.clone());
        let requests = node.requests.clone();
        let request_id = request_id.filter(|id| is_printable(id));
        let span = request_id.map_or_else(Span::none, |id| tracing::info_span!("request", request.id = %id));
        let answer = async move {
            let kind = describe(&request);
            let result = answer::answer(&node, request).await;
            if let Err(NodeError { code: NodeErrorCode::Internal, message }) = &result {
                tracing::error!("{kind} failed: {message}");
            }
            let _ = answers.send(FromNode::Reply { id, result }).await;
            drop(place);
        };
        requests.spawn(answer.instrument(span));
    };
    drop(answers);
    // Answers that are still coming are sent, if the server still reads.
    if tokio::time::timeout(PARTING, &mut writer).await.is_err() {
        writer.abort();
    }
    ended
}

/// Whether a server's text is safe for the node's log, which root reads.
fn is_printable(text: &str) -> bool {
    const LONGEST: usize = 128;
    text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_graphic())
}

async fn write(
    mut stream: tokio::net::unix::OwnedWriteHalf,
    mut outbox: mpsc::Receiver<FromNode>,
    mut notices: broadcast::Receiver<coffer_wire::node::Notice>,
) -> io::Result<()> {
    loop {
        let frame = tokio::select! {
            answer = outbox.recv() => match answer {
                Some(answer) => answer,
                None => return Ok(()),
            },
            notice = notices.recv() => match notice {
                Ok(notice) => FromNode::Notice(notice),
                // The server missed some notices: it must reconnect and compare.
                Err(broadcast::error::RecvError::Lagged(_) | broadcast::error::RecvError::Closed) => return Ok(()),
            },
        };
        match (write_frame(&mut stream, &frame).await, frame) {
            // Nothing of it was written. One answer that is too long must not end all the others.
            (Err(error), FromNode::Reply { id, .. }) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::error!("could not send an answer: {error}");
                let refusal = NodeError::new(NodeErrorCode::Internal, "the answer is too long to be sent");
                write_frame(&mut stream, &FromNode::Reply { id, result: Err(refusal) }).await?;
            }
            (written, _) => written?,
        }
    }
}

fn describe(request: &Request) -> String {
    match request {
        Request::Hello { .. } => "hello".into(),
        Request::Create(spec) => format!("create of sandbox {}", spec.sandbox),
        Request::Destroy { sandbox } => format!("destroy of sandbox {sandbox}"),
        Request::Freeze { sandbox } => format!("freeze of sandbox {sandbox}"),
        Request::Thaw { sandbox } => format!("thaw of sandbox {sandbox}"),
        Request::Stop { sandbox } => format!("stop of sandbox {sandbox}"),
        Request::Start { sandbox, .. } => format!("start of sandbox {sandbox}"),
        Request::Hibernate { sandbox } => format!("hibernation of sandbox {sandbox}"),
        Request::Snapshot { sandbox, snapshot, .. } => format!("snapshot {snapshot} of sandbox {sandbox}"),
        Request::DeleteSnapshot { snapshot } => format!("deletion of snapshot {snapshot}"),
        Request::Snapshots { .. } => "snapshots".into(),
        Request::CreateVolume { volume, .. } => format!("create of volume {volume}"),
        Request::DeleteVolume { volume } => format!("deletion of volume {volume}"),
        Request::Volumes => "volumes".into(),
        Request::Rollback { sandbox, snapshot, .. } => {
            format!("rollback of sandbox {sandbox} to snapshot {snapshot}")
        }
        Request::SetNetwork { sandbox, .. } => format!("new network policy of sandbox {sandbox}"),
        Request::SetDefaults { sandbox, .. } => format!("new defaults of sandbox {sandbox}"),
        Request::Refusals { sandbox, .. } => format!("refusals of sandbox {sandbox}"),
        Request::List { .. } => "list".into(),
        Request::Stats => "stats".into(),
        Request::Templates => "templates".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_id_cannot_forge_a_line_of_the_log() {
        assert!(is_printable("req_01h8-abc") && is_printable(""));
        for id in ["a b", "a\nERROR forged", "\u{1b}[2J", "é", &"a".repeat(129)] {
            assert!(!is_printable(id), "{id:?}");
        }
    }
}
