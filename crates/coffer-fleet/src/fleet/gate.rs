//! The repositories that a sandbox reaches through the git gate, and its way to the model gateway, with their
//! credentials. They are only in memory.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use coffer_core::network::{BadPolicy, GitRoute, ModelRoute, Policy};
use coffer_core::sync::Mutex;

/// When credentials are renewed: GitHub's own last an hour.
const RENEW_AFTER: Duration = Duration::from_secs(25 * 60);

/// The routes of one sandbox's gate.
#[derive(Debug, Default)]
pub struct GitGate {
    routes: Mutex<Routes>,
    /// Serialises the pushes of a sandbox: a push window is for one push.
    pub turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Routes {
    routes: Vec<GitRoute>,
    made: Option<Instant>,
    model: Option<ModelRoute>,
}

impl GitGate {
    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock()
    }

    pub fn is_empty(&self) -> bool {
        let held = self.routes();
        held.routes.is_empty() && held.model.is_none()
    }

    /// Replaces the way to the model gateway, and returns the old one.
    pub fn replace_model(&self, route: Option<ModelRoute>) -> Option<ModelRoute> {
        std::mem::replace(&mut self.routes().model, route)
    }

    /// The way to the model gateway, if there is one.
    pub fn model(&self) -> Option<ModelRoute> {
        self.routes().model.clone()
    }

    /// Replaces the routes, and returns the old ones.
    pub fn replace(&self, routes: Vec<GitRoute>) -> Vec<GitRoute> {
        let mut held = self.routes();
        held.made = Some(Instant::now());
        std::mem::replace(&mut held.routes, routes)
    }

    /// Starts with the routes of another sandbox's gate, without a push window: the same repositories with
    /// the same credentials, as long as those are valid. A way to models is for one sandbox only.
    pub fn begin_as(&self, source: &Self) {
        let (routes, made) = {
            let held = source.routes();
            (held.routes.clone(), held.made)
        };
        let closed = routes.into_iter().map(|route| GitRoute { push: None, ..route }).collect();
        *self.routes() = Routes { routes: closed, made, model: None };
    }

    /// Marks the routes as outdated: the records may have others.
    pub fn outdate(&self) {
        self.routes().made = None;
    }

    pub fn leads_to(&self, slug: &str) -> bool {
        self.routes().routes.iter().any(|route| route.slug.as_str() == slug)
    }

    /// The policy with these routes.
    pub fn opens(&self, policy: Policy) -> Result<Policy, BadPolicy> {
        let held = self.routes();
        policy.with_git(held.routes.clone())?.with_model(held.model.clone())
    }

    pub fn is_old(&self) -> bool {
        self.routes().made.is_none_or(|made| made.elapsed() > RENEW_AFTER)
    }
}
