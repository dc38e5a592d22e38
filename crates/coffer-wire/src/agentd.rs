//! Between the server and agentd, over the sandbox's own Unix socket.
//!
//! That socket speaks HTTP/1.1: all of envd's routes, and the following ones that only the server may use.
//! The socket is on the host, so nothing inside a sandbox can reach them:
//!
//! - `POST /init` ([`Init`]): initialises the sandbox; 204. Repeatable, the last one counts.
//! - `CONNECT 127.0.0.1:<port>`: a tunnel to a port inside; 502 when nothing listens there.
//! - `GET /coffer/journal?from=<offset>&wait=<seconds>` ([`JournalPage`]): process starts, output and
//!   exits that the server has not acknowledged, oldest first; an empty page comes only after `wait`.
//!   `POST /coffer/journal/ack` ([`JournalAck`]) drops them; 204.
//! - `POST /coffer/unpack?order=<JSON>` ([`Unpack`]): unpacks the archive in the body, which may be of any length
//!   ([`Unpacked`]). A refusal is a 422, or a 507 if the disk is full; the archive may then be unpacked in part.
//! - `/coffer/volume/path|dir|file?path=…`: the files below [`VOLUME_ROOT`], as E2B's content API has them
//!   ([`VolumeEntry`], [`VolumePatch`]).
//!
//! Client traffic goes through the same socket, so the proxy must not pass these routes.

use std::collections::BTreeMap;

use coffer_core::StartCommand;
use serde::{Deserialize, Serialize};

/// The port by which clients reach agentd itself.
pub const PORT: u16 = 49983;

/// Where a sandbox that serves the content of a volume mounts it.
pub const VOLUME_ROOT: &str = "/volume";

/// The envd version of agentd's protocol; SDKs enable features by it.
pub const ENVD_VERSION: &str = "0.6.4";

/// The abstract socket, in the sandbox's network namespace, on which agentd takes the node's commands.
pub const CONTROL_SOCKET: &[u8] = b"coffer-agentd";

/// A command of the node while it saves a sandbox's memory: one byte, which agentd repeats when it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlOrder {
    /// Close the listener and every connection of the server.
    Shut,
    /// Serve the server at the listener that comes with this command.
    Open,
}

impl ControlOrder {
    pub const fn byte(self) -> u8 {
        match self {
            Self::Shut => b's',
            Self::Open => b'o',
        }
    }

    pub fn of(byte: u8) -> Option<Self> {
        [Self::Shut, Self::Open].into_iter().find(|order| order.byte() == byte)
    }
}

/// A file or directory of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeEntry {
    pub name: String,
    pub kind: VolumeEntryKind,
    pub path: String,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub atime_ms: i64,
    pub mtime_ms: i64,
    pub ctime_ms: i64,
    /// Of a link, as it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeEntryKind {
    Unknown,
    File,
    Directory,
    Symlink,
}

/// A change of owner or mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumePatch {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mode: Option<u32>,
}

/// Initialises the agentd of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Init {
    /// Environment of every process started from now on.
    pub env_vars: BTreeMap<String, String>,
    /// The required `X-Access-Token`; absent means unsecured.
    pub access_token: Option<String>,
    /// The default user.
    pub default_user: Option<String>,
    /// The directory of empty paths; the user's home if absent.
    pub default_workdir: Option<String>,
    /// A service that agentd starts with the first `init` of its life, and waits for.
    pub start: Option<StartCommand>,
    /// Size of the disk in bytes for `/metrics`; `statvfs` would show the whole pool.
    pub disk_total: Option<u64>,
}

/// A page of the journal of a sandbox's processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalPage {
    pub records: Vec<JournalRecord>,
    /// The offset to continue from.
    pub next: u64,
    /// Records that the bounded journal dropped before they were acknowledged.
    pub dropped: u64,
    /// Differs with every start of agentd, whose offsets begin at 0.
    #[serde(default)]
    pub boot: u64,
}

/// The server has everything before `upto`, which is the `next` of a page it has stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalAck {
    pub upto: u64,
    /// Processes whose further output is only counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mute: Vec<u32>,
}

/// How to unpack an archive: tar, plain or compressed with gzip or zstd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Unpack {
    /// As `COPY` of a Dockerfile. Members are named relative to the build context; their owners are ignored.
    Copy {
        /// As the client wrote it: a file, a directory, `.`, or a pattern with `*`, `?`, `[…]` and `**`. Other
        /// members of the archive are skipped.
        source: String,
        /// An absolute path: the new name of a single file, or the directory that gets the files. Missing
        /// parents belong to root.
        dest: String,
        /// Whether the destination is a directory even if it does not exist; clients write a final slash.
        #[serde(default)]
        into_directory: bool,
        /// `user[:group]`, by names of the sandbox or by numbers; root if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// The mode of all files and directories, instead of the archive's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
    },
    /// As a layer of an image, onto `/`: with owners, capabilities and whiteouts.
    Layer,
}

/// What was unpacked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unpacked {
    /// Files, directories and links that were written.
    pub entries: u64,
    /// Bytes in files.
    pub bytes: u64,
    /// Files and directories that whiteouts removed, each with everything in it.
    pub removed: u64,
    /// Members whose owner or group was 65536 or more, and is 65534 now.
    pub squashed_ids: u64,
    /// Device nodes, which a sandbox cannot have.
    pub skipped_devices: u64,
    /// Members of a layer on a mount of the sandbox, such as `/proc`.
    pub skipped_on_mounts: u64,
    /// Extended attributes that a sandbox must not or cannot set.
    pub skipped_xattrs: u64,
}

/// A record about a process. Offsets count records and never restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalRecord {
    pub offset: u64,
    pub time_ms: i64,
    pub pid: u32,
    pub what: ProcessFact,
}

/// The content of a [`JournalRecord`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ProcessFact {
    Started {
        command: String,
        /// The tag of the process in the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tag: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
    },
    /// Output as base64, at most 32 KiB of it.
    Output {
        stream: OutputStream,
        /// The number of bytes of this stream before these.
        position: u64,
        data: String,
    },
    Ended {
        exit_code: i32,
        status: String,
        /// Bytes of output that were only counted.
        #[serde(default)]
        untold: u64,
    },
}

/// The source of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
    Pty,
}
