//! The repositories that a sandbox reaches through the git gate, with the credentials for them. Only memory has these.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use coffer_core::network::{BadPolicy, GitRoute, Policy};
use coffer_core::sync::Mutex;

/// When credentials are asked for again: GitHub's own live for an hour.
const RENEW_AFTER: Duration = Duration::from_secs(25 * 60);

/// What one sandbox's gate leads to.
#[derive(Debug, Default)]
pub struct GitGate {
    routes: Mutex<Routes>,
    /// Pushes of a sandbox come one after another: a window is for one.
    pub turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Routes {
    routes: Vec<GitRoute>,
    made: Option<Instant>,
}

impl GitGate {
    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock()
    }

    pub fn is_empty(&self) -> bool {
        self.routes().routes.is_empty()
    }

    /// Puts others in their place, and returns what was there.
    pub fn replace(&self, routes: Vec<GitRoute>) -> Vec<GitRoute> {
        let mut held = self.routes();
        held.made = Some(Instant::now());
        std::mem::replace(&mut held.routes, routes)
    }

    /// Begins with what another sandbox's leads to, no window open: the same repositories, under the same credentials,
    /// for as long as those hold.
    pub fn begin_as(&self, source: &Self) {
        let (routes, made) = {
            let held = source.routes();
            (held.routes.clone(), held.made)
        };
        let closed = routes.into_iter().map(|route| GitRoute { push: None, ..route }).collect();
        *self.routes() = Routes { routes: closed, made };
    }

    /// Has the routes made anew soon: there may be others on record.
    pub fn outdate(&self) {
        self.routes().made = None;
    }

    pub fn leads_to(&self, slug: &str) -> bool {
        self.routes().routes.iter().any(|route| route.slug.as_str() == slug)
    }

    /// The policy with them.
    pub fn opens(&self, policy: Policy) -> Result<Policy, BadPolicy> {
        policy.with_git(self.routes().routes.clone())
    }

    pub fn is_old(&self) -> bool {
        self.routes().made.is_none_or(|made| made.elapsed() > RENEW_AFTER)
    }
}
