//! The server's way in, which can be shut and opened again.
//!
//! A listener and connections that lead out of the sandbox cannot be saved with its memory. So the node
//! has them given up before it saves, and hands over a new listener when the sandbox goes on, be it here
//! or restored ([`crate::control`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::Agent;
use crate::listen;

/// Connections end as soon as their tasks have a turn.
const SHUT_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Entrance {
    agent: Arc<Agent>,
    current: Mutex<Connections>,
}

/// Everything that came in through one listener: what belongs to it ends with it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections {
    shut: CancellationToken,
    tasks: TaskTracker,
}

impl Connections {
    /// Runs until it is done or the door is shut.
    pub(crate) fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let shut = self.shut.clone();
        self.tasks.spawn(async move {
            shut.run_until_cancelled_owned(connection).await;
        });
    }
}

impl Entrance {
    pub(crate) fn new(agent: Arc<Agent>) -> Arc<Self> {
        Arc::new(Self { agent, current: Mutex::default() })
    }

    /// Serves the server at `listener`, and at no other any more.
    pub(crate) fn open(&self, listener: UnixListener) {
        let connections = Connections::default();
        connections.spawn(listen::serve_unix(Arc::clone(&self.agent), listener, connections.clone()));
        let before = std::mem::replace(&mut *self.current(), connections);
        before.shut.cancel();
    }

    /// Closes the listener and every connection; says whether all are closed.
    pub(crate) async fn shut(&self) -> bool {
        let current = self.current().clone();
        current.shut.cancel();
        current.tasks.close();
        tokio::time::timeout(SHUT_WITHIN, current.tasks.wait()).await.is_ok()
            && self.agent.watchers.set_aside().await
    }

    /// Goes on after a [`shut`](Self::shut).
    pub(crate) async fn reopen(&self, listener: UnixListener) {
        self.agent.watchers.take_up().await;
        self.open(listener);
    }

    fn current(&self) -> MutexGuard<'_, Connections> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
