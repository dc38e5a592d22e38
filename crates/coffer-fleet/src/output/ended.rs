//! How code ended.

use coffer_store::ExecutionState;

/// How code ended.
#[derive(Debug)]
pub struct CodeEnd {
    pub state: ExecutionState,
    /// 0, or 1 after an error in the code; `None` if it was interrupted or its end is unknown.
    pub exit_code: Option<i64>,
    /// In words.
    pub status: String,
    /// The number that the kernel gave it.
    pub execution_count: Option<u64>,
}
