//! The repositories at each sandbox's gate, with credentials that are good.
//!
//! They are made from what is on record when a repository is cloned, when a push begins and ends, after a restart, and
//! again before a credential ends. Only memory has them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coffer_core::forge::BranchName;
use coffer_core::network::{BadPolicy, GitRoute, HeaderText, Policy, PushWindow};
use coffer_forge::GitAccess;
use coffer_store::{GitRemote, ProjectScope, StoreError};
use tokio_util::sync::CancellationToken;

use super::{Git, Session};
use crate::api::{ApiError, Code};
use crate::fleet::Record;

/// How long a credential is asked for, and when it is asked for anew: GitHub's own live for an hour.
const LIFETIME: Duration = Duration::from_secs(2 * 3600);
const RENEWED: Duration = Duration::from_secs(25 * 60);
const LOOK: Duration = Duration::from_secs(10);

/// What one sandbox's gate leads to.
#[derive(Debug, Default)]
pub(crate) struct AtGate {
    kept: Mutex<Kept>,
    /// Pushes of a sandbox come one after another: a window is for one.
    pub(super) turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Kept {
    routes: Vec<GitRoute>,
    made: Option<Instant>,
}

impl AtGate {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept().routes.is_empty()
    }

    /// Puts others in their place, and returns what was there.
    pub(crate) fn replace(&self, routes: Vec<GitRoute>) -> Vec<GitRoute> {
        let mut kept = self.kept();
        kept.made = Some(Instant::now());
        std::mem::replace(&mut kept.routes, routes)
    }

    /// Begins with what another sandbox's leads to, no window open: the same repositories, under the same credentials,
    /// for as long as those hold.
    pub(crate) fn begin_as(&self, source: &Self) {
        let (routes, made) = {
            let kept = source.kept();
            (kept.routes.clone(), kept.made)
        };
        let closed = routes.into_iter().map(|route| GitRoute { push: None, ..route }).collect();
        *self.kept() = Kept { routes: closed, made };
    }

    /// Has the routes made anew soon: there may be others on record.
    pub(crate) fn outdate(&self) {
        self.kept().made = None;
    }

    pub(super) fn leads_to(&self, slug: &str) -> bool {
        self.kept().routes.iter().any(|route| route.slug.as_str() == slug)
    }

    /// The policy with them.
    pub(crate) fn opens(&self, policy: Policy) -> Result<Policy, BadPolicy> {
        policy.with_git(self.kept().routes.clone())
    }

    fn is_old(&self) -> bool {
        self.kept().made.is_none_or(|made| made.elapsed() > RENEWED)
    }
}

/// A push that is about to begin.
#[derive(Debug)]
pub(super) struct Opening<'a> {
    pub(super) slug: &'a str,
    pub(super) branch: &'a BranchName,
    pub(super) window: PushWindow,
}

impl Git {
    /// Makes the routes of a sandbox anew and tells them. `needed` must be among them; another that cannot be had is
    /// left out.
    pub(super) async fn open_gate(
        &self,
        session: &Session,
        needed: &str,
        opening: Option<Opening<'_>>,
    ) -> Result<(), ApiError> {
        let sandbox = session.record.id;
        let remotes = self.store.git_remotes(&session.scope, sandbox).await.map_err(ApiError::store)?;
        if remotes.len() > Policy::MOST_ROUTES {
            let message = format!("a sandbox has at most {} repositories", Policy::MOST_ROUTES);
            return Err(ApiError::conflict(message));
        }
        let mut routes = Vec::new();
        for remote in remotes {
            let opening = opening.as_ref().filter(|opening| opening.slug == remote.slug);
            match self.route(&session.scope, &session.actor, &remote, opening).await {
                Ok(route) => routes.push(route),
                Err(error) if remote.slug == needed => return Err(error),
                Err(error) => {
                    tracing::warn!(sandbox.id = %sandbox, "sandbox {sandbox} is without `{}`: {}", remote.slug, error.message());
                }
            }
        }
        let told = self.fleet.set_git(session.record.clone(), routes).await;
        told.map_err(|error| ApiError::fleet(error, &sandbox.to_string()))
    }

    /// Sees to it that the gate leads to a repository: a sandbox that began with another's files has its repositories on
    /// record before its gate knows.
    pub(super) async fn ensure_gate(&self, session: &Session, slug: &str) -> Result<(), ApiError> {
        let gate = &session.record.git;
        if gate.leads_to(slug) {
            return Ok(());
        }
        let _turn = gate.turn.lock().await;
        if gate.leads_to(slug) { Ok(()) } else { self.open_gate(session, slug, None).await }
    }

    async fn route(
        &self,
        scope: &ProjectScope,
        actor: &str,
        remote: &GitRemote,
        opening: Option<&Opening<'_>>,
    ) -> Result<GitRoute, ApiError> {
        let row = self.store.repository(scope, &remote.repository.to_string()).await;
        let row = row.map_err(ApiError::store)?;
        let row = row.ok_or_else(|| ApiError::nothing("repository", &remote.slug))?;
        let forge = self.forges.open(scope, &row, actor).await.map_err(ApiError::forge)?;
        let access = match opening {
            Some(opening) => GitAccess::Push(opening.branch.clone()),
            None => GitAccess::Fetch,
        };
        let upstream = forge.upstream(access, LIFETIME).await.map_err(ApiError::forge)?;
        let unusable = |what: &str| {
            ApiError::of(
                Code::Conflict,
                format!("repository `{}` has {what} that the gate cannot use", row.name),
            )
        };
        Ok(GitRoute {
            slug: remote.slug.parse().map_err(|_| unusable("a name"))?,
            upstream: upstream.url.parse().map_err(|_| unusable("an address"))?,
            authorization: Some(
                HeaderText::parse(upstream.authorization.reveal()).map_err(|_| unusable("a credential"))?,
            ),
            on_site: upstream.on_site,
            neighbours: if upstream.on_site { self.forges.private_hosts() } else { Vec::new() },
            push: opening.map(|opening| opening.window.clone()),
        })
    }

    /// Ends what an earlier process left under way, then renews routes until `stop`.
    pub(crate) async fn keep(self: Arc<Self>, stop: CancellationToken) {
        match self.store.interrupt_git_operations(&self.store.operator()).await {
            Ok(0) => {}
            Ok(count) => tracing::info!("{count} operations of git were cut short by the last stop"),
            Err(error) => tracing::warn!("operations of git stay on record as running: {error}"),
        }
        loop {
            match self.renew().await {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!("could not look for sandboxes with repositories: {error}"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.fleet.gates_outdated() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn renew(&self) -> Result<(), StoreError> {
        let operator = self.store.operator();
        let mut sandboxes = self.store.sandboxes_with_git(&operator).await?;
        // Some have lost what was on record.
        sandboxes.extend(self.fleet.with_gates());
        for sandbox in sandboxes {
            let Some(record) = self.fleet.any(sandbox) else { continue };
            let Ok(_turn) = record.git.turn.try_lock() else { continue };
            if !record.git.is_old() {
                continue;
            }
            let session = own_session(&operator, record.clone());
            if let Err(error) = self.open_gate(&session, "", None).await {
                tracing::warn!(sandbox.id = %sandbox, "sandbox {sandbox} does not have its repositories: {}", error.message());
            }
        }
        Ok(())
    }
}

/// The server's own, on behalf of the sandbox's project.
fn own_session(operator: &coffer_store::Operator, record: Arc<Record>) -> Session {
    let scope = operator.acting_for(record.project, None);
    Session { scope, record, actor: "server".to_string(), key: None }
}
