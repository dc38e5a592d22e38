//! Who sent a request over HTTP, and the place that a session holds.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use coffer_client::Client;
use coffer_core::sync::Mutex;

/// Who sent a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Sends requests with the caller's key.
    pub client: Client,
    /// Names the key.
    pub key: String,
    pub(crate) seat: Option<Seat>,
}

impl Caller {
    pub fn new(client: Client, key: String) -> Self {
        Self { client, key, seat: None }
    }
}

/// A session's place, given back when the session has ended.
#[derive(Clone)]
pub(crate) struct Seat(#[expect(dead_code, reason = "held for its drop")] pub(crate) Arc<Held>);

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seat")
    }
}

pub(crate) struct Held {
    pub(crate) id: Mutex<Option<String>>,
    pub(crate) owners: Owners,
    #[expect(dead_code, reason = "held for its drop")]
    pub(crate) place: Box<dyn Any + Send + Sync>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(id) = self.id.lock().take() {
            self.owners.lock().remove(&id);
        }
    }
}

/// The key of each open session.
pub(crate) type Owners = Arc<Mutex<HashMap<String, String>>>;
