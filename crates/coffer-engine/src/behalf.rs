//! Passes the id of a client's request along, through tasks and over the wire.

use std::future::Future;
use std::sync::Arc;

tokio::task_local! {
    static REQUEST: Arc<str>;
}

/// Runs `work` on behalf of a request, or of none.
pub async fn on_behalf_of<F: Future>(request: Option<Arc<str>>, work: F) -> F::Output {
    match request {
        Some(request) => REQUEST.scope(request, work).await,
        None => work.await,
    }
}

/// The request on whose behalf this task works. Pass it to tasks that it starts.
pub fn on_behalf() -> Option<Arc<str>> {
    REQUEST.try_with(Arc::clone).ok()
}
