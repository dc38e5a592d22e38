//! The repositories at each sandbox's gate, with credentials that are good.
//!
//! They are made from what is on record when a repository is cloned, when a push begins and ends, after a restart, and
//! again before a credential ends. Only memory has them.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::forge::BranchName;
use coffer_core::network::{GitRoute, HeaderText, Policy, PushWindow};
use coffer_forge::GitAccess;
use coffer_store::{GitRemote, ProjectScope, StoreError};
use tokio_util::sync::CancellationToken;

use super::GitError;
use super::{Git, Session};
use coffer_core::{Code, Refusal};
use coffer_fleet::Record;

/// How long a credential is asked for.
const LIFETIME: Duration = Duration::from_secs(2 * 3600);
const LOOK: Duration = Duration::from_secs(10);

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
    ) -> Result<(), GitError> {
        let sandbox = session.record.id;
        let remotes = self.store.git_remotes(&session.scope, sandbox).await?;
        if remotes.len() > Policy::MOST_ROUTES {
            let message = format!("a sandbox has at most {} repositories", Policy::MOST_ROUTES);
            return Err(Refusal::conflict(message).into());
        }
        let mut routes = Vec::new();
        for remote in remotes {
            let opening = opening.as_ref().filter(|opening| opening.slug == remote.slug);
            match self.route(&session.scope, &session.actor, &remote, opening).await {
                Ok(route) => routes.push(route),
                Err(error) if remote.slug == needed => return Err(error),
                Err(error) => {
                    tracing::warn!(sandbox.id = %sandbox, "sandbox {sandbox} is without `{}`: {}", remote.slug, error);
                }
            }
        }
        let told = self.fleet.set_git(session.record.clone(), routes).await;
        Ok(told?)
    }

    /// Sees to it that the gate leads to a repository: a sandbox that began with another's files has its repositories on
    /// record before its gate knows.
    pub(super) async fn ensure_gate(&self, session: &Session, slug: &str) -> Result<(), GitError> {
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
    ) -> Result<GitRoute, GitError> {
        let row = self.store.repository(scope, &remote.repository.to_string()).await;
        let row = row?;
        let row = row.ok_or_else(|| GitError::NoRepository(remote.slug.clone()))?;
        let forge = self.forges.open(scope, &row, actor).await?;
        let access = match opening {
            Some(opening) => GitAccess::Push(opening.branch.clone()),
            None => GitAccess::Fetch,
        };
        let upstream = forge.upstream(access, LIFETIME).await?;
        let unusable = |what: &str| {
            Refusal::new(
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
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
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
                tracing::warn!(sandbox.id = %sandbox, "sandbox {sandbox} does not have its repositories: {}", error);
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
