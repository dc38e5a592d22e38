//! The client of a node: one connection, many requests in progress, reconnecting by itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coffer_core::network::{Policy, Refusals};
use coffer_core::{Boot, Memory, SandboxId, SnapshotId, TemplateDefaults, VolumeId};
use coffer_wire::node::{
    FromNode, NodeError, NodeErrorCode, Notice, PROTOCOL, Reply, Request, ToNode, VolumeInfo, write_frame,
};
use coffer_wire::rpc::Connection;
use tokio::net::UnixStream;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    CreateSandbox, Engine, EngineError, EngineNotice, NodeInfo, Placement, Sample, SandboxStatus,
    SnapshotInfo, TemplateInfo, on_behalf,
};

/// A request waits this long for a connection and its reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for requests that write a sandbox's files or memory to disk.
const PATIENCE_FOR_DISKS: Duration = Duration::from_secs(180);
const RETRY: Duration = Duration::from_millis(100);

type Answer = oneshot::Sender<Result<Reply, EngineError>>;

/// A request, and on whose behalf it is sent.
#[derive(Debug, Clone)]
struct Ask {
    request: Request,
    behalf: Option<Arc<str>>,
}

/// A request that was sent and not answered yet.
#[derive(Debug)]
struct Waiting {
    ask: Ask,
    answer: Answer,
    /// Whether it was already sent to an earlier node.
    repeated: bool,
}

/// Talks to one node over its Unix socket.
#[derive(Debug, Clone)]
pub struct NodeEngine {
    asks: mpsc::Sender<(Ask, Answer)>,
    notices: Arc<broadcast::Sender<EngineNotice>>,
}

impl NodeEngine {
    /// Starts a client that connects, and reconnects whenever the connection breaks.
    pub fn start(socket: PathBuf, stop: CancellationToken) -> Self {
        let (asks, inbox) = mpsc::channel(1024);
        let notices = Arc::new(broadcast::channel(4096).0);
        #[expect(
            clippy::disallowed_methods,
            reason = "ends with `stop` or its last handle, and holds nothing that outlives it"
        )]
        tokio::spawn(stay_connected(socket, inbox, notices.clone(), stop));
        Self { asks, notices }
    }

    async fn ask(&self, request: Request) -> Result<Reply, EngineError> {
        let (answer, reply) = oneshot::channel();
        let gone = || EngineError::Unavailable("its client has stopped".into());
        let patience = match request {
            Request::Snapshot { .. } | Request::Rollback { .. } | Request::Hibernate { .. } => {
                PATIENCE_FOR_DISKS
            }
            _ => PATIENCE,
        };
        tokio::time::timeout(patience, async {
            self.asks.send((Ask { request, behalf: on_behalf() }, answer)).await.map_err(|_| gone())?;
            reply.await.map_err(|_| gone())?
        })
        .await
        .unwrap_or_else(|_| {
            Err(EngineError::Unavailable(format!("no reply within {} s", patience.as_secs())))
        })
    }
}

async fn stay_connected(
    socket: PathBuf,
    mut inbox: mpsc::Receiver<(Ask, Answer)>,
    notices: Arc<broadcast::Sender<EngineNotice>>,
    stop: CancellationToken,
) {
    let mut again = Vec::new();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            stream = UnixStream::connect(&socket) => stream,
        };
        match stream {
            Ok(stream) => {
                // Listeners compare their records with the node's.
                let _ = notices.send(EngineNotice::Reconnected);
                tokio::select! {
                    () = stop.cancelled() => return,
                    ended = serve(stream, &mut inbox, &mut again, &notices) => match ended {
                        Ended::CallersGone => return,
                        Ended::Disconnected(why) => tracing::warn!("lost the node at {}: {why}", socket.display()),
                    },
                }
            }
            Err(error) => tracing::debug!("no node at {} yet: {error}", socket.display()),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

enum Ended {
    CallersGone,
    Disconnected(String),
}

/// Passes requests and replies until the connection breaks. Requests in progress are then put into `again`,
/// for the next connection: every request is idempotent, and a node that died is back soon. A request that
/// two nodes left unanswered fails; it may have killed them.
async fn serve(
    stream: UnixStream,
    inbox: &mut mpsc::Receiver<(Ask, Answer)>,
    again: &mut Vec<(Ask, Answer)>,
    notices: &broadcast::Sender<EngineNotice>,
) -> Ended {
    let mut connection = Connection::<FromNode, Waiting>::new(stream);
    let ended = loop {
        tokio::select! {
            frame = connection.receive() => match frame {
                Ok(FromNode::Reply { id, result }) => {
                    if let Some(Waiting { answer, .. }) = connection.finish(id) {
                        let _ = answer.send(result.map_err(EngineError::from));
                    }
                }
                Ok(FromNode::Notice(Notice::Died { sandbox, cause })) => {
                    let _ = notices.send(EngineNotice::Died { sandbox, cause });
                }
                Err(error) => break Ended::Disconnected(error.to_string()),
            },
            ask = next_ask(again, inbox) => {
                let Some((ask, answer, repeated)) = ask else { break Ended::CallersGone };
                let Ask { request, behalf } = ask.clone();
                let id = connection.begin(Waiting { ask, answer, repeated });
                let frame = ToNode { id, request, request_id: behalf.map(|id| id.to_string()) };
                match write_frame(connection.writer(), &frame).await {
                    Ok(()) => {}
                    // Nothing of it was written. The other requests are not to blame.
                    Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                        if let Some(Waiting { answer, .. }) = connection.finish(id) {
                            let _ = answer.send(Err(EngineError::Failed(format!("could not send the request: {error}"))));
                        }
                    }
                    Err(error) => break Ended::Disconnected(error.to_string()),
                }
            }
        }
    };
    for Waiting { ask, answer, repeated } in connection.abandon() {
        if repeated {
            let _ = answer.send(Err(EngineError::Unavailable(
                "the connection to the node broke before it replied".into(),
            )));
        } else {
            again.push((ask, answer));
        }
    }
    ended
}

/// The next request to send, and whether it was sent before. `None` if there are no callers left.
async fn next_ask(
    again: &mut Vec<(Ask, Answer)>,
    inbox: &mut mpsc::Receiver<(Ask, Answer)>,
) -> Option<(Ask, Answer, bool)> {
    while let Some((ask, answer)) = again.pop() {
        // Skip it if its caller has stopped waiting.
        if !answer.is_closed() {
            return Some((ask, answer, true));
        }
    }
    inbox.recv().await.map(|(ask, answer)| (ask, answer, false))
}

impl From<NodeError> for EngineError {
    fn from(error: NodeError) -> Self {
        match error.code {
            NodeErrorCode::UnknownTemplate => Self::UnknownTemplate(error.message),
            NodeErrorCode::WrongState => Self::WrongState(error.message),
            NodeErrorCode::NoCapacity => Self::NoCapacity(error.message),
            NodeErrorCode::Unavailable => Self::Unavailable(error.message),
            NodeErrorCode::Unsupported => Self::Unsupported(error.message),
            NodeErrorCode::UnknownSandbox => Self::UnknownSandbox,
            NodeErrorCode::UnknownSnapshot => Self::UnknownSnapshot,
            NodeErrorCode::UnknownVolume => Self::UnknownVolume,
            NodeErrorCode::ProtocolMismatch | NodeErrorCode::Internal => Self::Failed(error.message),
        }
    }
}

/// Where the next page of a list begins. A node whose pages go back would never end.
fn next_page<Id: Ord>(before: Option<Id>, after: Option<Id>) -> Result<Option<Id>, EngineError> {
    match (&before, &after) {
        (Some(before), Some(after)) if after <= before => {
            Err(EngineError::Failed("the node repeats a page of its list".into()))
        }
        _ => Ok(after),
    }
}

fn unexpected(reply: &Reply) -> EngineError {
    EngineError::Failed(format!("unexpected reply from the node: {reply:?}"))
}

impl NodeEngine {
    async fn done(&self, request: Request) -> Result<(), EngineError> {
        match self.ask(request).await? {
            Reply::Done | Reply::Placed(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn placed(&self, request: Request) -> Result<Placement, EngineError> {
        match self.ask(request).await? {
            Reply::Placed(placement) => Ok(placement),
            other => Err(unexpected(&other)),
        }
    }
}

#[async_trait]
impl Engine for NodeEngine {
    async fn info(&self) -> Result<NodeInfo, EngineError> {
        match self.ask(Request::Hello { protocol: PROTOCOL }).await? {
            Reply::Hello(info) => Ok(*info),
            other => Err(unexpected(&other)),
        }
    }

    async fn templates(&self) -> Result<Vec<TemplateInfo>, EngineError> {
        match self.ask(Request::Templates).await? {
            Reply::Templates { templates } => Ok(templates),
            other => Err(unexpected(&other)),
        }
    }

    async fn create(&self, spec: &CreateSandbox) -> Result<Placement, EngineError> {
        self.placed(Request::Create(spec.clone())).await
    }

    async fn destroy(&self, sandbox: SandboxId) -> Result<(), EngineError> {
        self.done(Request::Destroy { sandbox }).await
    }

    async fn freeze(&self, sandbox: SandboxId) -> Result<(), EngineError> {
        self.done(Request::Freeze { sandbox }).await
    }

    async fn thaw(&self, sandbox: SandboxId) -> Result<(), EngineError> {
        self.done(Request::Thaw { sandbox }).await
    }

    async fn stop(&self, sandbox: SandboxId) -> Result<(), EngineError> {
        self.done(Request::Stop { sandbox }).await
    }

    async fn start(&self, sandbox: SandboxId, boot: Boot) -> Result<Placement, EngineError> {
        self.placed(Request::Start { sandbox, boot }).await
    }

    async fn hibernate(&self, sandbox: SandboxId) -> Result<(), EngineError> {
        self.done(Request::Hibernate { sandbox }).await
    }

    async fn snapshot(
        &self,
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    ) -> Result<SnapshotInfo, EngineError> {
        match self.ask(Request::Snapshot { sandbox, snapshot, memory }).await? {
            Reply::Snapshot(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    async fn delete_snapshot(&self, snapshot: SnapshotId) -> Result<(), EngineError> {
        self.done(Request::DeleteSnapshot { snapshot }).await
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, EngineError> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            match self.ask(Request::Snapshots { paged: true, after }).await? {
                Reply::Snapshots { snapshots, more_after } => {
                    all.extend(snapshots);
                    after = next_page(after, more_after)?;
                }
                other => return Err(unexpected(&other)),
            }
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    async fn create_volume(&self, volume: VolumeId, limit_mib: u64) -> Result<(), EngineError> {
        self.done(Request::CreateVolume { volume, limit_mib }).await
    }

    async fn delete_volume(&self, volume: VolumeId) -> Result<(), EngineError> {
        self.done(Request::DeleteVolume { volume }).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeInfo>, EngineError> {
        match self.ask(Request::Volumes).await? {
            Reply::Volumes { volumes } => Ok(volumes),
            other => Err(unexpected(&other)),
        }
    }

    async fn rollback(
        &self,
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    ) -> Result<Placement, EngineError> {
        self.placed(Request::Rollback { sandbox, snapshot, memory }).await
    }

    async fn set_network(&self, sandbox: SandboxId, policy: &Policy) -> Result<(), EngineError> {
        self.done(Request::SetNetwork { sandbox, policy: policy.clone() }).await
    }

    async fn set_defaults(&self, sandbox: SandboxId, defaults: &TemplateDefaults) -> Result<(), EngineError> {
        self.done(Request::SetDefaults { sandbox, defaults: defaults.clone() }).await
    }

    async fn refusals(&self, sandbox: SandboxId, after: u64) -> Result<Refusals, EngineError> {
        match self.ask(Request::Refusals { sandbox, after }).await? {
            Reply::Refusals(refusals) => Ok(refusals),
            other => Err(unexpected(&other)),
        }
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, EngineError> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            match self.ask(Request::List { paged: true, after }).await? {
                Reply::Sandboxes { sandboxes, more_after } => {
                    all.extend(sandboxes);
                    after = next_page(after, more_after)?;
                }
                other => return Err(unexpected(&other)),
            }
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    async fn stats(&self) -> Result<Vec<Sample>, EngineError> {
        match self.ask(Request::Stats).await? {
            Reply::Stats { samples } => Ok(samples),
            other => Err(unexpected(&other)),
        }
    }

    fn notices(&self) -> broadcast::Receiver<EngineNotice> {
        self.notices.subscribe()
    }
}
