//! Handles each request of a server.

use std::sync::Arc;

use coffer_core::{Memory, SandboxId, SnapshotId};
use coffer_wire::node::{
    Capabilities, CreateSandbox, NodeError, NodeErrorCode, NodeInfo, PROTOCOL, Reply, Request, SnapshotInfo,
};

use crate::cgroup::Controller;
use crate::node::{Node, blocking};
use crate::registry::{Command, Handle};
use crate::{memory, page, sandbox};

/// Answers one request of a server.
pub(crate) async fn answer(node: &Arc<Node>, request: Request) -> Result<Reply, NodeError> {
    match request {
        Request::Hello { protocol } => hello(node, protocol),
        Request::Create(spec) => create(node, spec).await,
        Request::Destroy { sandbox } => match ask(node, sandbox, Command::Destroy).await {
            Err(error) if error.code == NodeErrorCode::UnknownSandbox => Ok(Reply::Done),
            answer => answer,
        },
        Request::Freeze { sandbox } => ask(node, sandbox, Command::Freeze).await,
        Request::Thaw { sandbox } => ask(node, sandbox, Command::Thaw).await,
        Request::Stop { sandbox } => ask(node, sandbox, Command::Stop).await,
        Request::Start { sandbox, boot } => ask(node, sandbox, Command::Start(boot)).await,
        Request::Hibernate { sandbox } => ask(node, sandbox, Command::Hibernate).await,
        Request::Snapshot { sandbox, snapshot, memory } => {
            take_snapshot(node, sandbox, snapshot, memory).await
        }
        Request::Rollback { sandbox, snapshot, memory } => {
            ask(node, sandbox, Command::Rollback { snapshot, memory }).await
        }
        Request::DeleteSnapshot { snapshot } => {
            sandbox::delete_snapshot(node, snapshot).await.map(|()| Reply::Done)
        }
        Request::Snapshots { paged, after } => {
            let all = node.snapshots.list().into_iter().map(SnapshotInfo::listed).collect();
            let (snapshots, more_after) = page::of(all, |info| info.snapshot, paged, after);
            Ok(Reply::Snapshots { snapshots, more_after })
        }
        Request::CreateVolume { volume, limit_mib } => {
            let node = node.clone();
            blocking(move || node.volumes.create(&node.pool, volume, limit_mib).map(|()| Reply::Done)).await
        }
        Request::DeleteVolume { volume } => {
            let node = node.clone();
            blocking(move || node.volumes.delete(&node.pool, volume).map(|()| Reply::Done)).await
        }
        Request::Volumes => {
            let node = node.clone();
            blocking(move || node.volumes.list(&node.pool).map(|volumes| Reply::Volumes { volumes })).await
        }
        Request::SetNetwork { sandbox, policy } => {
            ask(node, sandbox, Command::SetNetwork(Box::new(policy))).await
        }
        Request::SetDefaults { sandbox, defaults } => {
            ask(node, sandbox, Command::SetDefaults(Box::new(defaults))).await
        }
        Request::Refusals { sandbox, after } => refusals(node, sandbox, after).await,
        Request::List { paged, after } => {
            let all = node.sandboxes.all().iter().filter_map(Handle::status).collect();
            let (sandboxes, more_after) = page::of(all, |status| status.sandbox, paged, after);
            Ok(Reply::Sandboxes { sandboxes, more_after })
        }
        Request::Stats => Ok(Reply::Stats { samples: sandbox::sample_all(node).await }),
        Request::Templates => {
            let node = node.clone();
            blocking(move || {
                let templates = node.templates.list().into_iter().map(|template| template.info).collect();
                Ok(Reply::Templates { templates })
            })
            .await
        }
    }
}

fn hello(node: &Node, protocol: u32) -> Result<Reply, NodeError> {
    if protocol != PROTOCOL {
        let message = format!("the node speaks protocol {PROTOCOL}, not {protocol}");
        return Err(NodeError::new(NodeErrorCode::ProtocolMismatch, message));
    }
    let lacks = memory::lacks();
    let capabilities = Capabilities {
        disk_quota: node.pool.has_quota(),
        memory_limit: node.cgroups.has(Controller::Memory),
        cpu_limit: node.cgroups.has(Controller::Cpu),
        process_limit: node.cgroups.has(Controller::Pids),
        freeze: node.cgroups.can_freeze(),
        memory_snapshot: lacks.is_none(),
        network: node.network.families().is_some(),
        volumes: true,
    };
    let warnings = node.warnings.clone();
    let pool_bytes = node.pool.size_bytes();
    let info = NodeInfo {
        protocol: PROTOCOL,
        engine: "linux".into(),
        capabilities,
        memory_snapshot_lacks: lacks,
        pool_bytes,
        cpu_count: Some(node.processors.count()),
        memory_bytes: Some(node.cgroups.memory_bytes()),
        pool_free_bytes: node.pool.free_bytes(),
        warm_ready: node.warm.ready(),
        warnings,
        pressure: node.cgroups.pressure(),
        kernel: node.features.report(),
        orphans: node.orphans.get().cloned().unwrap_or_default(),
    };
    Ok(Reply::Hello(Box::new(info)))
}

async fn create(node: &Arc<Node>, spec: CreateSandbox) -> Result<Reply, NodeError> {
    let handle = node.sandboxes.get_or_insert(spec.sandbox, || sandbox::create(node, spec.clone()));
    handle.ask(Command::Create(Box::new(spec))).await
}

async fn take_snapshot(
    node: &Node,
    sandbox: SandboxId,
    snapshot: SnapshotId,
    memory: Memory,
) -> Result<Reply, NodeError> {
    match node.snapshots.get(snapshot) {
        // A retry, perhaps because a node died before it answered; the source may no longer exist.
        Ok(made) if made.info.sandbox == sandbox => Ok(Reply::Snapshot(made.info.clone())),
        _ => ask(node, sandbox, Command::Snapshot { snapshot, memory }).await,
    }
}

async fn refusals(node: &Node, sandbox: SandboxId, after: u64) -> Result<Reply, NodeError> {
    node.sandboxes.get(sandbox)?;
    node.network.refusals(sandbox, after).await.map(Reply::Refusals)
}

async fn ask(node: &Node, sandbox: SandboxId, command: Command) -> Result<Reply, NodeError> {
    node.sandboxes.get(sandbox)?.ask(command).await
}

/// Destroys every sandbox and every snapshot.
pub(crate) async fn destroy_all(node: &Arc<Node>) {
    let destroyed = node.sandboxes.all().into_iter().map(|handle| async move {
        let sandbox = handle.id();
        if let Err(error) = handle.ask(Command::Destroy).await {
            tracing::error!(sandbox.id = %sandbox, "could not destroy sandbox {sandbox}: {error}");
        }
    });
    futures_util::future::join_all(destroyed).await;
    let node = node.clone();
    let deleted = tokio::task::spawn_blocking(move || node.snapshots.delete_all(&node.pool, &node.images));
    deleted.await.expect("deleting snapshots does not panic");
}
