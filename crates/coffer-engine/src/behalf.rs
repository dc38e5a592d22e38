//! On whose behalf something is asked: the id of a request goes with it, through tasks and over the wire.

use std::future::Future;
use std::sync::Arc;

tokio::task_local! {
    static REQUEST: Arc<str>;
}

/// Does `work` on behalf of a request, or of nobody in particular.
pub async fn on_behalf_of<F: Future>(request: Option<Arc<str>>, work: F) -> F::Output {
    match request {
        Some(request) => REQUEST.scope(request, work).await,
        None => work.await,
    }
}

/// The request on whose behalf this task works. A task that it starts has to be told.
pub fn on_behalf() -> Option<Arc<str>> {
    REQUEST.try_with(Arc::clone).ok()
}
