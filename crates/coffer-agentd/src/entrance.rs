//! The server's listener, which can be closed and reopened.
//!
//! A listener and connections that lead out of the sandbox cannot be saved with its memory. So the node closes
//! them before it saves, and passes a new listener when the sandbox continues, here or restored
//! ([`crate::control`]).

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use coffer_core::sync::Mutex;
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

/// The connections of one listener: they end with it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections {
    shut: CancellationToken,
    tasks: TaskTracker,
}

impl Connections {
    /// Runs until it is done or the listener is closed.
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

    /// Serves `listener` instead of any other.
    pub(crate) fn open(&self, listener: UnixListener) {
        let connections = Connections::default();
        connections.spawn(listen::serve_unix(Arc::clone(&self.agent), listener, connections.clone()));
        let before = std::mem::replace(&mut *self.current(), connections);
        before.shut.cancel();
    }

    /// Closes the listener and every connection; returns whether all are closed.
    pub(crate) async fn shut(&self) -> bool {
        let current = self.current().clone();
        current.shut.cancel();
        current.tasks.close();
        tokio::time::timeout(SHUT_WITHIN, current.tasks.wait()).await.is_ok()
            && self.agent.watchers.set_aside().await
    }

    /// Continues after a [`shut`](Self::shut).
    pub(crate) async fn reopen(&self, listener: UnixListener) {
        self.agent.watchers.take_up().await;
        self.open(listener);
    }

    fn current(&self) -> MutexGuard<'_, Connections> {
        self.current.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    async fn healthy(stream: &mut UnixStream) -> bool {
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut start = [0; 12];
        stream.read_exact(&mut start).await.is_ok() && &start == b"HTTP/1.1 204"
    }

    #[tokio::test]
    async fn nothing_stays_open_and_another_listener_is_served() {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (home.path().join("first"), home.path().join("second"));
        let entrance = Entrance::new(Agent::new());
        entrance.open(UnixListener::bind(&first).unwrap());
        let mut busy = UnixStream::connect(&first).await.unwrap();
        assert!(healthy(&mut busy).await);
        let mut silent = UnixStream::connect(&first).await.unwrap();
        // Connections that wait for the next listener are not lost.
        let next = UnixListener::bind(&second).unwrap();
        let mut waiting = UnixStream::connect(&second).await.unwrap();
        assert!(entrance.shut().await);
        let mut rest = Vec::new();
        let _reset = busy.read_to_end(&mut rest).await;
        assert!(matches!(silent.read(&mut [0]).await, Ok(0) | Err(_)));
        assert!(UnixStream::connect(&first).await.is_err());
        entrance.reopen(next).await;
        assert!(healthy(&mut waiting).await);
        // It can be called again, also without a listener.
        assert!(entrance.shut().await && entrance.shut().await);
        assert!(UnixStream::connect(&second).await.is_err());
    }
}
