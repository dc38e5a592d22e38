//! The server's RPC to a node.
//!
//! A stream of frames in both directions: a big-endian `u32` length, then that much JSON. The
//! server sends [`ToNode`], the node [`FromNode`]. Requests carry a number that their reply
//! repeats; replies come in any order. Notices come unasked. The first request is
//! [`Request::Hello`], so that a server and a node of different versions find out at once.

use std::path::PathBuf;

use coffer_core::network::{Policy, Refusals, Traffic};
use coffer_core::{
    Boot, Limits, Memory, MountPath, ProjectId, SandboxId, SnapshotId, StartCommand, TemplateDefaults,
    VolumeId,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Raised whenever the meaning of a frame changes.
pub const PROTOCOL: u32 = 1;

/// The longest frame; ten thousand sandboxes' stats fit.
const LONGEST_FRAME: usize = 16 * 1024 * 1024;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToNode {
    pub id: u64,
    pub request: Request,
    /// The id of the client's request that caused this one, for logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "nearly every frame is a reply")]
pub enum FromNode {
    Reply { id: u64, result: Result<Reply, NodeError> },
    Notice(Notice),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    Hello {
        protocol: u32,
    },
    /// Creates a sandbox and starts its agentd. Idempotent by id.
    Create(CreateSandbox),
    /// Ends all processes and releases all resources. Unknown ids are allowed.
    Destroy {
        sandbox: SandboxId,
    },
    /// Freezes all processes.
    Freeze {
        sandbox: SandboxId,
    },
    Thaw {
        sandbox: SandboxId,
    },
    /// Ends all processes, keeps the files.
    Stop {
        sandbox: SandboxId,
    },
    /// Boots a stopped sandbox on its files, or restores a hibernated one.
    Start {
        sandbox: SandboxId,
        /// Cold boots a hibernated one too, which discards its memory.
        #[serde(default, rename = "cold")]
        boot: Boot,
    },
    /// Saves all processes to disk and ends them. Refused, with nothing changed, if memory cannot be saved.
    Hibernate {
        sandbox: SandboxId,
    },
    /// Saves the files of a sandbox at one moment; with `memory` its processes too. Idempotent by id.
    Snapshot {
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    },
    /// Deletes a snapshot: nothing can start from it afterwards. Files that sandboxes use stay until those
    /// are gone. Unknown ids are allowed.
    DeleteSnapshot {
        snapshot: SnapshotId,
    },
    /// The snapshots that sandboxes can start from, as [`SnapshotInfo::listed`]. If `paged`, those after this one that
    /// fit into a frame; otherwise all of them.
    Snapshots {
        #[serde(default)]
        paged: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<SnapshotId>,
    },
    /// Creates a volume, or changes the limit of the one of that id.
    CreateVolume {
        volume: VolumeId,
        limit_mib: u64,
    },
    /// Deletes a volume. Refused while a sandbox mounts it, running or not. Unknown ids are allowed.
    DeleteVolume {
        volume: VolumeId,
    },
    /// Every volume.
    Volumes,
    /// Replaces a sandbox's files with those of a snapshot, its own or another's, and boots it on them.
    Rollback {
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    },
    /// Replaces the defaults of a sandbox's template, for its later snapshots and what starts from those. A
    /// build calls it before it takes a snapshot.
    SetDefaults {
        sandbox: SandboxId,
        defaults: TemplateDefaults,
    },
    /// Replaces the policy. After the answer, no connection that it forbids is open.
    SetNetwork {
        sandbox: SandboxId,
        policy: Policy,
    },
    /// The refusals after this sequence; 0 for all that are kept.
    Refusals {
        sandbox: SandboxId,
        after: u64,
    },
    /// The sandboxes of the node, including dead ones that were not destroyed. If `paged`, those after this one that
    /// fit into a frame; otherwise all of them.
    List {
        #[serde(default)]
        paged: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<SandboxId>,
    },
    /// A sample of every running sandbox.
    Stats,
    Templates,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateSandbox {
    pub sandbox: SandboxId,
    /// A template's name, as in [`TemplateInfo`].
    pub template: String,
    pub hostname: String,
    pub limits: Limits,
    /// Its network policy. Nothing, for sandboxes of older versions without a network.
    #[serde(default)]
    pub network: Policy,
    /// Start on the files of this snapshot; the template is then the snapshot's, whatever `template` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Whether the snapshot is a template's, so that more sandboxes from it are likely: the node may keep some ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_template: bool,
    /// The project whose template it is; nothing for a template of all projects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_owner: Option<ProjectId>,
    /// Continue the snapshot's processes instead of booting.
    #[serde(default)]
    pub memory: bool,
    /// Volumes to mount at every start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<NodeMount>,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMount {
    pub volume: VolumeId,
    pub path: MountPath,
    #[serde(default)]
    pub read_only: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Reply {
    Hello(Box<NodeInfo>),
    /// The sandbox has a running agentd (create, start, thaw).
    Placed(Placement),
    /// Done, without data (destroy, freeze, stop).
    Done,
    Sandboxes {
        sandboxes: Vec<SandboxStatus>,
        /// The last of this page, if there are more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        more_after: Option<SandboxId>,
    },
    Stats {
        samples: Vec<Sample>,
    },
    Templates {
        templates: Vec<TemplateInfo>,
    },
    Refusals(Refusals),
    Snapshot(SnapshotInfo),
    Snapshots {
        snapshots: Vec<SnapshotInfo>,
        /// The last of this page, if there are more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        more_after: Option<SnapshotId>,
    },
    Volumes {
        volumes: Vec<VolumeInfo>,
    },
}

/// A volume of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    pub volume: VolumeId,
    /// Zero where the pool does not count.
    pub used_bytes: u64,
    /// The sandboxes that mount it.
    pub sandboxes: Vec<SandboxId>,
}

/// A snapshot that sandboxes can start from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    pub snapshot: SnapshotId,
    /// Its source.
    pub sandbox: SandboxId,
    pub made_ms: i64,
    /// Whether it includes the processes.
    pub memory: bool,
    /// Bytes that the source had written on top of its origin.
    pub files_bytes: u64,
    pub memory_bytes: u64,
    /// The snapshots that its files depend on, itself included.
    pub depth: u32,
    /// How long the source was frozen for it.
    pub paused_us: u64,
    pub template: TemplateInfo,
    pub limits: Limits,
}

impl SnapshotInfo {
    /// The same without what its sandboxes start with, which projects choose: a node has many snapshots.
    #[must_use]
    pub fn listed(mut self) -> Self {
        self.template.env.clear();
        self.template.start = None;
        self.template.default_workdir = None;
        self
    }
}

/// The socket of a sandbox's agentd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub socket: PathBuf,
    /// The template that was actually used; it may be a fallback.
    pub template: TemplateInfo,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    pub protocol: u32,
    pub engine: String,
    pub capabilities: Capabilities,
    /// Why memory cannot be saved, if it cannot.
    #[serde(default)]
    pub memory_snapshot_lacks: Option<String>,
    /// The size of the disk pool, if it is bounded.
    pub pool_bytes: Option<u64>,
    /// Processors that sandboxes can use; `None` from a node that does not report it.
    #[serde(default)]
    pub cpu_count: Option<u32>,
    /// Memory that all sandboxes together may have; `None` from a node that does not report it.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// The free space in the disk pool.
    #[serde(default)]
    pub pool_free_bytes: Option<u64>,
    /// Sandboxes in the warm pool.
    #[serde(default)]
    pub warm_ready: u64,
    /// Missing features of this host and their effects, for people.
    pub warnings: Vec<String>,
    /// The part of the last ten seconds in which some process of a sandbox waited for each resource; empty if
    /// the kernel does not report it.
    #[serde(default)]
    pub pressure: Vec<Pressure>,
    /// Every kernel feature that the node knows how to use.
    #[serde(default)]
    pub kernel: Vec<KernelFeature>,
    /// Orphans that the node found when it started, and removed.
    #[serde(default)]
    pub orphans: Vec<Orphan>,
}

/// The pressure on a resource, of all sandboxes together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// `cpu`, `memory` or `io`.
    pub resource: String,
    /// The part of the time in which some process waited, in hundredths of a percent.
    pub waiting_bp: u32,
}

/// Whether this host's kernel has a feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFeature {
    pub name: String,
    pub present: bool,
    /// The kernel's answer, if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The effect of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<String>,
}

/// Remains of a sandbox without a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// Its name on the host: usually a sandbox's id.
    pub name: String,
    /// Its remains, for people.
    pub had: Vec<String>,
}

/// The capabilities of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    /// Whether disk limits are enforced (a btrfs pool with quota).
    pub disk_quota: bool,
    pub memory_limit: bool,
    pub cpu_limit: bool,
    pub process_limit: bool,
    /// Whether processes can be frozen and thawed.
    pub freeze: bool,
    /// Whether memory can be saved to disk.
    pub memory_snapshot: bool,
    /// Whether sandboxes have a network for what a policy allows.
    #[serde(default)]
    pub network: bool,
    /// Whether there are volumes; older nodes have none.
    #[serde(default)]
    pub volumes: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateInfo {
    pub name: String,
    /// Changes with every build.
    pub build: String,
    pub default_user: String,
    pub default_workdir: Option<String>,
    pub env: std::collections::BTreeMap<String, String>,
    /// A service that agentd starts when the sandbox boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartCommand>,
}

impl TemplateInfo {
    /// Replaces what sandboxes start with.
    pub fn set_defaults(&mut self, defaults: TemplateDefaults) {
        self.default_user = defaults.user;
        self.default_workdir = defaults.workdir;
        self.env = defaults.env;
        self.start = defaults.start;
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStatus {
    pub sandbox: SandboxId,
    pub run: RunState,
    pub placement: Placement,
    /// Whether an operation is in progress, after which the state may change.
    #[serde(default)]
    pub changing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunState {
    Running,
    Frozen,
    Stopped,
    /// Its processes are on disk.
    Hibernated,
    /// Its first process ended by itself. Everything but this record was released.
    Dead {
        cause: DeathCause,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DeathCause {
    OutOfMemory,
    Signal {
        signal: i32,
    },
    Exit {
        code: i32,
    },
    /// It ended while no node was running.
    Unseen,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub sandbox: SandboxId,
    pub time_ms: i64,
    /// Processor time used since it started.
    pub cpu_us: u64,
    pub memory_bytes: u64,
    /// Part of `memory_bytes` that is page cache.
    pub cache_bytes: u64,
    pub disk_bytes: u64,
    pub processes: u64,
    /// The traffic of its network, if it has one.
    #[serde(default)]
    pub traffic: Traffic,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// A sandbox's first process ended by itself.
    Died { sandbox: SandboxId, cause: DeathCause },
}

/// Why a node refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct NodeError {
    pub code: NodeErrorCode,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeErrorCode {
    ProtocolMismatch,
    UnknownTemplate,
    UnknownSandbox,
    UnknownSnapshot,
    UnknownVolume,
    WrongState,
    /// Disk, uid ranges or another bounded resource ran out; retrying later may help.
    NoCapacity,
    /// A part of the node is unreachable and comes back by itself; retrying soon helps.
    Unavailable,
    Unsupported,
    Internal,
}

impl NodeError {
    pub fn new(code: NodeErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Reads one frame; `None` at the end of the stream.
pub async fn read_frame<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> std::io::Result<Option<T>> {
    let mut length = [0u8; 4];
    match stream.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST_FRAME {
        return Err(invalid(format!("a frame of {length} bytes is longer than {LONGEST_FRAME}")));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    serde_json::from_slice(&body).map(Some).map_err(|error| invalid(error.to_string()))
}

/// Writes one frame.
pub async fn write_frame<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    frame: &T,
) -> std::io::Result<()> {
    let body = serde_json::to_vec(frame).map_err(|error| invalid(error.to_string()))?;
    let length = u32::try_from(body.len()).ok().filter(|&length| length as usize <= LONGEST_FRAME);
    let length = length.ok_or_else(|| invalid("frame too long".to_string()))?;
    let mut bytes = Vec::with_capacity(4 + body.len());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&body);
    stream.write_all(&bytes).await
}

fn invalid(message: String) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_frame_reads_back() {
        let (mut left, mut right) = tokio::io::duplex(64);
        let sent = ToNode {
            id: 7,
            request: Request::Destroy { sandbox: SandboxId::generate() },
            request_id: Some("r1".into()),
        };
        let (written, read) = tokio::join!(write_frame(&mut left, &sent), read_frame::<ToNode>(&mut right));
        written.unwrap();
        assert_eq!(format!("{:?}", read.unwrap().unwrap()), format!("{sent:?}"));
        drop(left);
        assert!(read_frame::<ToNode>(&mut right).await.unwrap().is_none());
    }

    /// An older node reads this server's frames, and the other way round.
    #[test]
    fn requests_look_as_in_version_0_1() {
        let (sandbox, snapshot) = (SandboxId::generate(), SnapshotId::generate());
        let requests = [
            (
                Request::Start { sandbox, boot: Boot::Cold },
                serde_json::json!({ "op": "start", "sandbox": sandbox, "cold": true }),
            ),
            (
                Request::Start { sandbox, boot: Boot::AsPaused },
                serde_json::json!({ "op": "start", "sandbox": sandbox, "cold": false }),
            ),
            (
                Request::Snapshot { sandbox, snapshot, memory: Memory::With },
                serde_json::json!({ "op": "snapshot", "sandbox": sandbox, "snapshot": snapshot, "memory": true }),
            ),
            (
                Request::Rollback { sandbox, snapshot, memory: Memory::Without },
                serde_json::json!({ "op": "rollback", "sandbox": sandbox, "snapshot": snapshot, "memory": false }),
            ),
        ];
        for (request, json) in requests {
            assert_eq!(serde_json::to_value(&request).unwrap(), json);
            let read: Request = serde_json::from_value(json).unwrap();
            assert_eq!(format!("{read:?}"), format!("{request:?}"));
        }
        let plain = serde_json::json!({ "op": "start", "sandbox": sandbox });
        let read: Request = serde_json::from_value(plain).unwrap();
        assert!(matches!(read, Request::Start { boot: Boot::AsPaused, .. }));
    }

    #[tokio::test]
    async fn a_reply_reads_back() {
        for result in [Ok(Reply::Done), Err(NodeError::new(NodeErrorCode::WrongState, "no"))] {
            let (mut left, mut right) = tokio::io::duplex(256);
            let sent = FromNode::Reply { id: 1, result };
            write_frame(&mut left, &sent).await.unwrap();
            let read: FromNode = read_frame(&mut right).await.unwrap().unwrap();
            assert_eq!(format!("{read:?}"), format!("{sent:?}"));
        }
    }

    #[tokio::test]
    async fn an_overlong_frame_is_refused_before_it_is_read() {
        let mut hostile: &[u8] = &[0xff, 0xff, 0xff, 0xff, b'{'];
        let error = read_frame::<ToNode>(&mut hostile).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    }
}
