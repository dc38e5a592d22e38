//! Between the server and agentd, over the sandbox's own Unix socket.
//!
//! That socket speaks HTTP/1.1: all of envd's surface, and below it the routes that only the
//! server may use. The socket is on the host, so nothing inside a sandbox can reach them:
//!
//! - `POST /init` ([`Init`]): names the sandbox; 204. Repeatable, the last one counts.
//! - `CONNECT 127.0.0.1:<port>`: a tunnel to a port inside; 502 when nothing listens there.
//! - `GET /coffer/journal?from=<offset>&wait=<seconds>` ([`JournalPage`]): process starts, output and
//!   exits that the server has not acknowledged, oldest first; an empty page comes only after `wait`.
//!   `POST /coffer/journal/ack` ([`JournalAck`]) drops them; 204.
//!
//! Client traffic goes through the same socket, so the proxy must keep these routes to itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The port that clients name to reach agentd itself.
pub const PORT: u16 = 49983;

/// The envd version whose protocol agentd speaks, as SDKs gate features on it.
pub const ENVD_VERSION: &str = "0.6.4";

/// The abstract socket, in the sandbox's network namespace, on which agentd takes the node's orders.
pub const CONTROL_SOCKET: &[u8] = b"coffer-agentd";

/// What the node has to say when it saves a sandbox's memory: one byte, which is repeated when it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlOrder {
    /// Give up the listener and every connection of the server's.
    Shut,
    /// Serve the server at the listener that comes with this order.
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

/// What makes an anonymous agentd the agentd of one sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Init {
    /// Environment of every process started from now on.
    pub env_vars: BTreeMap<String, String>,
    /// What `X-Access-Token` must be; absent means unsecured.
    pub access_token: Option<String>,
    /// The user of calls that name none.
    pub default_user: Option<String>,
    /// The directory of empty paths; the user's home when absent.
    pub default_workdir: Option<String>,
    /// Size of the disk in bytes as `/metrics` shows it; `statvfs` would show the whole pool.
    pub disk_total: Option<u64>,
}

/// Part of what happened to the processes of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalPage {
    pub records: Vec<JournalRecord>,
    /// Where to read on.
    pub next: u64,
    /// Records that the bounded journal dropped before they were acknowledged.
    pub dropped: u64,
    /// Another with every start of agentd, whose offsets begin at 0.
    #[serde(default)]
    pub boot: u64,
}

/// The server has everything before `upto`, which is the `next` of a page it has stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalAck {
    pub upto: u64,
    /// Processes whose further output need not be told: it is only counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mute: Vec<u32>,
}

/// One thing that happened to a process. Offsets count records and never restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalRecord {
    pub offset: u64,
    pub time_ms: i64,
    pub pid: u32,
    pub what: ProcessFact,
}

/// What a [`JournalRecord`] tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ProcessFact {
    Started {
        command: String,
        /// What the request called the process.
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
        /// Bytes this stream had produced before these.
        position: u64,
        data: String,
    },
    Ended {
        exit_code: i32,
        status: String,
        /// Bytes of output that were counted and not told.
        #[serde(default)]
        untold: u64,
    },
}

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
    Pty,
}
