//! The client of a node against a node that the test plays, over a real Unix socket.
#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

use std::path::Path;
use std::time::Duration;

use coffer_core::SandboxId;
use coffer_engine::{DeathCause, Engine, EngineError, EngineNotice, NodeEngine, Notice};
use coffer_wire::node::{
    FromNode, NodeError, NodeErrorCode, Reply, Request, ToNode, read_frame, write_frame,
};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(10);

struct PlayedNode {
    stream: UnixStream,
}

impl PlayedNode {
    async fn accept(listener: &UnixListener) -> Self {
        let (stream, _) = tokio::time::timeout(SOON, listener.accept()).await.unwrap().unwrap();
        Self { stream }
    }

    async fn asked(&mut self) -> ToNode {
        read_frame(&mut self.stream).await.unwrap().expect("a request")
    }

    async fn reply(&mut self, id: u64, result: Result<Reply, NodeError>) {
        write_frame(&mut self.stream, &FromNode::Reply { id, result }).await.unwrap();
    }
}

fn start(dir: &Path) -> (UnixListener, NodeEngine, CancellationToken) {
    let socket = dir.join("node.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let stop = CancellationToken::new();
    (listener, NodeEngine::start(socket, stop.clone()), stop)
}

#[tokio::test]
async fn replies_find_their_callers_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let (listener, engine, _stop) = start(dir.path());
    let (first, second) = (SandboxId::generate(), SandboxId::generate());
    let node = async {
        let mut node = PlayedNode::accept(&listener).await;
        let (a, b) = (node.asked().await, node.asked().await);
        for asked in [b, a] {
            let Request::Destroy { sandbox } = asked.request else { panic!("{asked:?}") };
            let result = if sandbox == first {
                Ok(Reply::Done)
            } else {
                Err(NodeError::new(NodeErrorCode::NoCapacity, "full"))
            };
            node.reply(asked.id, result).await;
        }
    };
    let ((), one, two) = tokio::join!(node, engine.destroy(first), engine.destroy(second));
    one.unwrap();
    assert!(matches!(two, Err(EngineError::NoCapacity(message)) if message == "full"));
}

#[tokio::test]
async fn a_node_that_comes_back_is_used_again_and_its_return_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (listener, engine, _stop) = start(dir.path());
    let mut notices = engine.notices();
    let mut node = PlayedNode::accept(&listener).await;
    let (result, ()) = tokio::join!(engine.list(), async {
        assert!(matches!(node.asked().await.request, Request::List { .. }));
        drop(node); // It dies with a request under way, which is repeated to the next one.
        let mut node = PlayedNode::accept(&listener).await;
        let asked = node.asked().await;
        assert!(matches!(asked.request, Request::List { .. }));
        node.reply(asked.id, Ok(Reply::Sandboxes { sandboxes: Vec::new(), more_after: None })).await;
    });
    assert!(result.unwrap().is_empty());
    for _ in 0..2 {
        let notice = tokio::time::timeout(SOON, notices.recv()).await.unwrap().unwrap();
        assert!(matches!(notice, EngineNotice::Reconnected));
    }
}

#[tokio::test]
async fn a_list_is_read_page_by_page() {
    let dir = tempfile::tempdir().unwrap();
    let (listener, engine, _stop) = start(dir.path());
    let mut node = PlayedNode::accept(&listener).await;
    let last = SandboxId::generate();
    let (result, ()) = tokio::join!(engine.list(), async {
        for (asked_after, more_after) in [(None, Some(last)), (Some(last), None)] {
            let asked = node.asked().await;
            let Request::List { paged: true, after } = asked.request else { panic!("{asked:?}") };
            assert_eq!(after, asked_after);
            node.reply(asked.id, Ok(Reply::Sandboxes { sandboxes: Vec::new(), more_after })).await;
        }
    });
    assert!(result.unwrap().is_empty());
    let (result, ()) = tokio::join!(engine.list(), async {
        for _ in 0..2 {
            let asked = node.asked().await;
            let more_after = Some(last);
            node.reply(asked.id, Ok(Reply::Sandboxes { sandboxes: Vec::new(), more_after })).await;
        }
    });
    assert!(matches!(result, Err(EngineError::Failed(_))), "a node that repeats itself: {result:?}");
}

#[tokio::test]
async fn a_request_that_is_too_long_fails_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (listener, engine, _stop) = start(dir.path());
    let mut node = PlayedNode::accept(&listener).await;
    let defaults = coffer_core::TemplateDefaults {
        user: "user".into(),
        workdir: None,
        env: [("A".to_string(), "x".repeat(17 << 20))].into(),
        start: None,
    };
    let (first, second) = (SandboxId::generate(), SandboxId::generate());
    let (destroyed, set, ()) =
        tokio::join!(engine.destroy(first), engine.set_defaults(second, &defaults), async {
            let asked = node.asked().await;
            assert!(matches!(asked.request, Request::Destroy { sandbox } if sandbox == first));
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            node.reply(asked.id, Ok(Reply::Done)).await;
        });
    destroyed.expect("it has the same connection");
    assert!(matches!(set, Err(EngineError::Failed(_))), "{set:?}");
}

#[tokio::test]
async fn what_two_nodes_left_unanswered_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (listener, engine, _stop) = start(dir.path());
    let (result, ()) = tokio::join!(engine.destroy(SandboxId::generate()), async {
        for _ in 0..2 {
            PlayedNode::accept(&listener).await.asked().await;
        }
    });
    assert!(matches!(result, Err(EngineError::Unavailable(_))), "{result:?}");
}

#[tokio::test]
async fn a_death_is_told_to_everybody_who_listens() {
    let dir = tempfile::tempdir().unwrap();
    let (listener, engine, _stop) = start(dir.path());
    let (mut one, mut two) = (engine.notices(), engine.notices());
    let mut node = PlayedNode::accept(&listener).await;
    let dead = SandboxId::generate();
    let notice = Notice::Died { sandbox: dead, cause: DeathCause::OutOfMemory };
    write_frame(&mut node.stream, &FromNode::Notice(notice)).await.unwrap();
    for notices in [&mut one, &mut two] {
        loop {
            match tokio::time::timeout(SOON, notices.recv()).await.unwrap().unwrap() {
                EngineNotice::Reconnected => {}
                EngineNotice::Died { sandbox, cause } => {
                    assert_eq!((sandbox, cause), (dead, DeathCause::OutOfMemory));
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn garbage_from_a_node_fails_the_call_and_not_the_client() {
    use tokio::io::AsyncWriteExt;
    let dir = tempfile::tempdir().unwrap();
    let (listener, engine, _stop) = start(dir.path());
    let (result, ()) = tokio::join!(engine.stats(), async {
        for _ in 0..2 {
            let mut node = PlayedNode::accept(&listener).await;
            node.asked().await;
            node.stream.write_all(&[0, 0, 0, 2, b'}', b'{']).await.unwrap();
        }
    });
    assert!(matches!(result, Err(EngineError::Unavailable(_))), "{result:?}");
    PlayedNode::accept(&listener).await;
}
