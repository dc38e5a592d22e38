//! One sandbox in egress: its policy, open connections and refusals.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use coffer_core::clock::now_ms;
use coffer_core::model::MODEL_NAME;
use coffer_core::network::{
    Decision, Destination, GATE_ADDRESS, GATE_NAME, GATE_PORT, GitRoute, GitSlug, HostName, MODEL_ADDRESS,
    MODEL_PORT, ModelRoute, Policy, Refusals, RefusedKind, Rule, Traffic, Walls, decide,
};
use coffer_core::sync::{Mutex, RwLock};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::Seams;
use crate::dns::{Cache, Family, Found, LookupError};
use crate::gate::{GitRule, Seal, Service};
use crate::inject::Authority;
use crate::refusal::{Cause, Refused, Ring};
use crate::settings::Settings;

/// Most TCP connections for DNS of a sandbox.
const DNS_CONNECTIONS: usize = 32;
/// Most batches of Git LFS of one sandbox in memory.
const LFS_BATCHES: usize = 4;

/// The authority of the installation, once it is known.
pub(crate) type Standing = Arc<RwLock<Option<Arc<Authority>>>>;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) opened: AtomicU64,
    pub(crate) failed: AtomicU64,
    questions: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) settings: Arc<Settings>,
    pub(crate) seams: Seams,
    pub(crate) counters: Counters,
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) questions: Arc<Semaphore>,
    pub(crate) dns_connections: Arc<Semaphore>,
    pub(crate) lfs_batches: Arc<Semaphore>,
    /// Seals what the gate passes through the sandbox.
    pub(crate) seal: Seal,
    /// Ends everything of this sandbox.
    pub(crate) stop: CancellationToken,
    standing: Standing,
    cache: Cache,
    refusals: Mutex<Ring>,
    state: Mutex<State>,
}

/// The policy and the connections it allows, under one lock: every connection in the table is allowed by the
/// policy next to it.
#[derive(Debug)]
struct State {
    policy: Arc<Policy>,
    walls: Arc<Walls>,
    open: HashMap<u64, Open>,
    /// Requests that pass the git gate.
    passing: HashMap<u64, PassingGit>,
    /// Requests to the model gateway.
    models: HashMap<u64, PassingModel>,
    next: u64,
}

#[derive(Debug)]
struct PassingGit {
    route: GitRoute,
    service: Service,
    cut: CancellationToken,
}

#[derive(Debug)]
struct PassingModel {
    route: ModelRoute,
    cut: CancellationToken,
}

#[derive(Debug)]
struct Open {
    route: Route,
    cut: CancellationToken,
}

/// The address of a connection, and which side chose it.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) destination: Destination,
    pub(crate) address: AddressFrom,
}

/// Which side chose the address of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressFrom {
    /// We looked the name up, so the name can be relied on.
    Us,
    /// The sandbox did; the name is only its claim.
    Sandbox,
}

impl Route {
    /// Decides without trusting a name that only the sandbox claims. A claimed name can deny but not allow.
    fn judge(&self, policy: &Policy, walls: &Walls) -> Decision {
        let decision = decide(policy, walls, &self.destination);
        if self.address == AddressFrom::Sandbox && decision.is_allowed_by_name() {
            return decide(policy, walls, &Destination { name: None, ..self.destination.clone() });
        }
        decision
    }
}

/// A place in the table of open connections; released when dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    sandbox: Arc<Sandbox>,
    key: u64,
    /// Cancelled when a new policy forbids the connection.
    pub(crate) cut: CancellationToken,
    /// The policy that admitted it, and with it the proxy to go through.
    pub(crate) policy: Arc<Policy>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.sandbox.state().open.remove(&self.key);
    }
}

/// A request that may pass a gate: of git, or to the model gateway.
#[derive(Debug)]
pub(crate) struct Passing<R = GitRoute> {
    sandbox: Arc<Sandbox>,
    key: u64,
    /// Cancelled when a new policy forbids it, or its window has closed.
    pub(crate) cut: CancellationToken,
    pub(crate) policy: Arc<Policy>,
    pub(crate) route: R,
}

impl<R> Drop for Passing<R> {
    fn drop(&mut self) {
        let mut state = self.sandbox.state();
        // Keys are of one sequence.
        state.passing.remove(&self.key);
        state.models.remove(&self.key);
        drop(state);
        // Ends the task that waits for its window to close.
        self.cut.cancel();
    }
}

/// The route of a git request, if it may pass.
fn git_route<'a>(policy: &'a Policy, slug: &GitSlug, service: Service) -> Result<&'a GitRoute, Cause> {
    let route = policy.git().iter().find(|route| route.slug == *slug);
    let route = route.ok_or(Cause::Git(GitRule::Repository))?;
    if policy.is_withheld() {
        return Err(Cause::SecretsUnknown);
    }
    let open = || route.push.as_ref().is_some_and(|window| window.until_ms > now_ms());
    if service == Service::Push && !open() {
        return Err(Cause::Git(GitRule::PushClosed));
    }
    Ok(route)
}

impl Sandbox {
    pub(crate) fn new(
        policy: Policy,
        settings: Arc<Settings>,
        seams: Seams,
        walls: Arc<Walls>,
        standing: Standing,
        stop: CancellationToken,
    ) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(settings.connections)),
            questions: Arc::new(Semaphore::new(settings.questions)),
            dns_connections: Arc::new(Semaphore::new(DNS_CONNECTIONS)),
            lfs_batches: Arc::new(Semaphore::new(LFS_BATCHES)),
            seal: Seal::new(),
            refusals: Mutex::new(Ring::new(settings.refusals)),
            state: Mutex::new(State {
                policy: Arc::new(policy),
                walls,
                open: HashMap::new(),
                passing: HashMap::new(),
                models: HashMap::new(),
                next: 0,
            }),
            counters: Counters::default(),
            standing,
            cache: Cache::default(),
            settings,
            seams,
            stop,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No change under the lock can be left half done.
        self.state.lock()
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.state().policy)
    }

    /// The authority for terminating TLS, once it is known.
    pub(crate) fn authority(&self) -> Option<Arc<Authority>> {
        self.standing.read().clone()
    }

    pub(crate) fn walls(&self) -> Arc<Walls> {
        Arc::clone(&self.state().walls)
    }

    /// Admits a connection, if the current policy allows it.
    pub(crate) fn admit(self: &Arc<Self>, route: Route) -> Result<Admitted, Rule> {
        let mut state = self.state();
        if let Decision::Refuse { rule } = route.judge(&state.policy, &state.walls) {
            return Err(rule);
        }
        let key = state.next;
        state.next += 1;
        let cut = self.stop.child_token();
        state.open.insert(key, Open { route, cut: cut.clone() });
        let policy = Arc::clone(&state.policy);
        drop(state);
        Ok(Admitted { sandbox: Arc::clone(self), key, cut, policy })
    }

    /// Admits a git request at the gate, if the current policy allows it.
    pub(crate) fn admit_git(self: &Arc<Self>, slug: &GitSlug, service: Service) -> Result<Passing, Cause> {
        let mut state = self.state();
        let route = git_route(&state.policy, slug, service)?.clone();
        let key = state.next;
        state.next += 1;
        let cut = self.stop.child_token();
        let passing = PassingGit { route: route.clone(), service, cut: cut.clone() };
        state.passing.insert(key, passing);
        let policy = Arc::clone(&state.policy);
        drop(state);
        if let (Service::Push, Some(window)) = (service, &route.push) {
            let left = u64::try_from(window.until_ms.saturating_sub(now_ms())).unwrap_or(0);
            let (closing, closed) = (cut.clone(), Duration::from_millis(left));
            #[expect(
                clippy::disallowed_methods,
                reason = "ends with the request, which the tracker of connections counts"
            )]
            tokio::spawn(async move {
                tokio::select! {
                    () = tokio::time::sleep(closed) => closing.cancel(),
                    // The request has ended, or the window was closed elsewhere.
                    () = closing.cancelled() => {}
                }
            });
        }
        Ok(Passing { sandbox: Arc::clone(self), key, cut, policy, route })
    }

    /// Admits a request to the model gateway, if the current policy has a way to it.
    pub(crate) fn admit_model(self: &Arc<Self>) -> Result<Passing<ModelRoute>, Cause> {
        let mut state = self.state();
        let route = state.policy.model().cloned().ok_or(Cause::NoModels)?;
        if route.authorization.is_none() {
            return Err(Cause::SecretsUnknown);
        }
        let key = state.next;
        state.next += 1;
        let cut = self.stop.child_token();
        state.models.insert(key, PassingModel { route: route.clone(), cut: cut.clone() });
        let policy = Arc::clone(&state.policy);
        drop(state);
        Ok(Passing { sandbox: Arc::clone(self), key, cut, policy, route })
    }

    /// Replaces the policy. When this returns, everything it forbids is cut; returns how many were.
    pub(crate) fn replace_policy(&self, policy: Policy) -> usize {
        self.change_rules(|state| state.policy = Arc::new(policy))
    }

    /// The same for the walls.
    pub(crate) fn replace_walls(&self, walls: Arc<Walls>) -> usize {
        self.change_rules(|state| state.walls = walls)
    }

    fn change_rules(&self, change: impl FnOnce(&mut State)) -> usize {
        let mut forbidden = Vec::new();
        {
            let mut state = self.state();
            let before = Arc::clone(&state.policy);
            change(&mut state);
            let State { policy, walls, open, passing, models, .. } = &mut *state;
            // A new pass does not end requests that the old one opened.
            let upstream = policy.model().map(|route| &route.upstream);
            models.retain(|_, passing| {
                if upstream == Some(&passing.route.upstream) {
                    return true;
                }
                passing.cut.cancel();
                let (address, port) = (MODEL_ADDRESS.into(), MODEL_PORT);
                let gateway = Destination { name: HostName::parse(MODEL_NAME).ok(), address, port };
                forbidden.push((gateway, Cause::NoModels));
                false
            });
            passing.retain(|_, passing| {
                let cause = match git_route(policy, &passing.route.slug, passing.service) {
                    Ok(route) if route.upstream != passing.route.upstream => Cause::Git(GitRule::Repository),
                    Ok(route) if passing.service == Service::Push && route.push != passing.route.push => {
                        Cause::Git(GitRule::PushClosed)
                    }
                    Ok(_) => return true,
                    Err(cause) => cause,
                };
                passing.cut.cancel();
                let (address, port) = (GATE_ADDRESS.into(), GATE_PORT);
                let gate = Destination { name: HostName::parse(GATE_NAME).ok(), address, port };
                forbidden.push((gate, cause));
                false
            });
            let same_way = policy.proxy() == before.proxy();
            open.retain(|_, open| {
                let cause = match open.route.judge(policy, walls) {
                    Decision::Allow { .. } if same_way => return true,
                    Decision::Allow { .. } => Cause::ProxyChanged,
                    Decision::Refuse { rule } => Cause::Rule(rule),
                };
                open.cut.cancel();
                forbidden.push((open.route.destination.clone(), cause));
                false
            });
        }
        let count = forbidden.len();
        for (destination, cause) in forbidden {
            self.refuse(refused(RefusedKind::Cut, destination), &cause);
        }
        count
    }

    /// Records a refusal.
    pub(crate) fn refuse(&self, refused: Refused, cause: &Cause) {
        tracing::debug!(?refused, rule = %cause, "refused");
        self.refusals.lock().push(refused, cause, now_ms());
    }

    pub(crate) fn refusals(&self, after: u64) -> Refusals {
        self.refusals.lock().after(after)
    }

    pub(crate) fn count_question(&self) {
        self.counters.questions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            sent_bytes: count(&self.counters.sent_bytes),
            received_bytes: count(&self.counters.received_bytes),
            open: self.open_now(),
            opened: count(&self.counters.opened),
            failed: count(&self.counters.failed),
            questions: count(&self.counters.questions),
            refused: self.refusals(u64::MAX).total,
        }
    }

    fn open_now(&self) -> u64 {
        let state = self.state();
        (state.open.len() + state.passing.len() + state.models.len()) as u64
    }

    /// The addresses of a name, unchecked, from the cache or the resolver.
    pub(crate) async fn look_up(&self, name: &HostName, family: Family) -> Result<Found, LookupError> {
        if let Some(found) = self.cache.find(name, family) {
            return Ok(found);
        }
        let looking = self.seams.resolver.addresses(name, family);
        let mut found = timeout(self.settings.look_up, looking).await.map_err(|_| LookupError::Failed)??;
        found.ttl = found.ttl.min(self.settings.longest_ttl);
        self.cache.keep(name, family, &found);
        Ok(found)
    }
}

/// A refusal of a connection to `destination`.
pub(crate) fn refused(kind: RefusedKind, destination: Destination) -> Refused {
    let Destination { name, address, port } = destination;
    Refused { kind, name, address: Some(address), port: Some(port) }
}
