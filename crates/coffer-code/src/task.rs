//! Tasks of the service.

/// Runs a task next to the others. No stop waits for it: the service is killed with its sandbox.
#[expect(clippy::disallowed_methods, reason = "the service has no stop that could wait for a task")]
pub(crate) fn spawn<F>(task: F)
where
    F: Future<Output: Send> + Send + 'static,
{
    drop(tokio::spawn(task));
}
