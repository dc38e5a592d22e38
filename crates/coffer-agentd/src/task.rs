//! Tasks of agentd.

use tokio::task::JoinHandle;

/// Runs a task next to the others. No stop waits for it: agentd never ends by itself, it is killed with its sandbox.
#[expect(clippy::disallowed_methods, reason = "agentd has no stop that could wait for a task")]
pub(crate) fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(task)
}
