//! The newest records of logs with readers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use coffer_core::SandboxId;
use coffer_core::sync::RwLock;
use tokio::sync::watch;

use super::record::LogRecord;

pub(super) type Tails = HashMap<SandboxId, Weak<Tail>>;

#[derive(Debug)]
pub(super) struct Tail {
    pub(super) kept: RwLock<Kept>,
    /// The end of the log.
    pub(super) end: watch::Sender<i64>,
}

#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) records: VecDeque<Arc<LogRecord>>,
    pub(super) size: usize,
}
