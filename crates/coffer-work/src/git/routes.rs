//! The repositories at each sandbox's gate, with valid credentials.
//!
//! They are built from the records when a repository is cloned, when a push begins and ends, after a restart,
//! and again before a credential expires. They are only in memory.

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

/// The requested lifetime of a credential.
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
    /// Builds the routes of a sandbox and sends them to the engine. `needed` must be among them; others that
    /// fail are left out.
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
                    tracing::warn!(sandbox.id = %sandbox, "sandbox {sandbox} cannot reach repository `{}`: {}", remote.slug, error);
                }
            }
        }
        let told = self.fleet.set_git(session.record.clone(), routes).await;
        Ok(told?)
    }

    /// Ensures that the gate has a repository: a sandbox from a snapshot has its repositories on record
    /// before its gate does.
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
                format!("repository `{}` has {what} that the git gate cannot use", row.name),
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

    /// Ends operations that an earlier process left in progress, then renews routes until `stop`.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        match self.store.interrupt_git_operations(&self.store.operator()).await {
            Ok(0) => {}
            Ok(count) => tracing::info!("the last stop interrupted {count} git operations"),
            Err(error) => tracing::warn!("could not record interrupted git operations: {error}"),
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
        // Some have repositories at the gate that are no longer on record.
        sandboxes.extend(self.fleet.with_gates());
        for sandbox in sandboxes {
            let Some(record) = self.fleet.any(sandbox) else { continue };
            let Ok(_turn) = record.git.turn.try_lock() else { continue };
            if !record.git.is_old() {
                continue;
            }
            let session = own_session(&operator, record.clone());
            if let Err(error) = self.open_gate(&session, "", None).await {
                tracing::warn!(
                    sandbox.id = %sandbox,
                    "could not renew the git routes of sandbox {sandbox}: {}",
                    error
                );
            }
        }
        Ok(())
    }
}

/// A session of the server itself, on behalf of the sandbox's project.
fn own_session(operator: &coffer_store::Operator, record: Arc<Record>) -> Session {
    let scope = operator.acting_for(record.project, None);
    Session { scope, record, actor: "server".to_string(), key: None }
}
