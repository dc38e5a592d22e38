//! Grants: opened for a turn of an agent, found by the pass that egress sends, closed with the turn.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use coffer_core::agent::{Preset, Tokens};
use coffer_core::model::{Prices, Provider};
use coffer_core::network::{HeaderText, ModelRoute};
use coffer_core::sync::Mutex;
use coffer_core::{AgentId, ModelGrantId, ProjectId, RunId, SandboxId, StepCode, TaskId};
use coffer_fleet::{Fleet, Record};
use coffer_http::Client;
use coffer_shares::{PoolSettings, Shares, pool};
use coffer_store::{GrantRow, GrantTotals, ModelKey, NewGrant, ProjectScope, Store, StoreError};
use coffer_telemetry::Telemetry;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answers::{Answers, FailedAnswer};
use super::error::ModelError;
use super::pace::Pace;
use super::settings::{ModelConfig, ModelSettings};
use super::upstream::Upstream;
use super::ways::Places;

/// The prefix that distinguishes passes from keys.
const MARK: &str = "cofmodel_";
/// How often grants of sandboxes that are gone are looked for.
const LOOK: Duration = Duration::from_secs(10);
/// How long the end of a turn waits for calls that the agent did not wait for.
const LAST_CALLS: Duration = Duration::from_secs(20);

/// The gateway.
#[derive(Debug)]
pub struct Models {
    pub(super) store: Store,
    pub(super) fleet: Arc<Fleet>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) settings: ModelSettings,
    /// Without entries if they are in another currency than budgets.
    pub(super) prices: Prices,
    pub(super) currency: String,
    pub(super) client: Client,
    pub(super) calls: Shares<ProjectId>,
    pub(super) memory: Shares<ProjectId>,
    pub(super) tasks: TaskTracker,
    /// This server's own address, as `http://127.0.0.1:3000`.
    here: String,
    grants: Mutex<HashMap<String, Arc<Grant>>>,
    pub(super) places: Places,
}

/// A grant in this process.
#[derive(Debug)]
pub struct Grant {
    pub(super) row: GrantRow,
    pub(super) scope: ProjectScope,
    pub(super) pace: Mutex<Pace>,
    /// Signals when a call was settled.
    pub(super) settled: Notify,
    /// Cancelled when the turn has ended.
    pub(super) closing: CancellationToken,
    /// Refused calls that were recorded.
    pub(super) refusals: AtomicU32,
    pub(super) answers: Answers,
}

impl Grant {
    pub fn id(&self) -> ModelGrantId {
        self.row.id
    }

    /// Whether a provider refuses the agent's key again and again.
    pub fn is_key_refused(&self) -> bool {
        self.answers.refuses()
    }

    fn secret(&self, provider: Provider) -> Option<&str> {
        Some(&self.row.keys.get(&provider)?.secret)
    }

    /// Failed answers of providers that were not told yet.
    pub fn failed_answers(&self) -> Vec<FailedAnswer> {
        self.answers.take()
    }

    /// Why the agent's calls failed in the end, if they did: a code, and a reason for people.
    pub fn trouble(&self) -> Option<(StepCode, String)> {
        let last = self.answers.last()?;
        let provider = last.provider.as_str();
        if last.streak.status == Some(401) {
            let secret = self.secret(last.provider).unwrap_or_default();
            let message = format!(
                "provider `{provider}` refuses the key in secret `{secret}`; set the secret again and start again"
            );
            return Some((StepCode::ModelKeyRefused, message));
        }
        let times = match last.streak.times {
            1 => "last call".to_string(),
            times => format!("last {times} calls"),
        };
        let message =
            format!("provider `{provider}` answered {} to the agent's {times}", last.streak.words());
        Some((StepCode::ModelUnavailable, message))
    }

    /// Whether any call was answered.
    pub fn was_answered(&self) -> bool {
        self.answers.any_good()
    }
}

/// A grant to open.
#[derive(Debug)]
pub struct GrantOrder {
    pub scope: ProjectScope,
    pub record: Arc<Record>,
    /// Names the turn.
    pub key: String,
    pub agent: Option<AgentId>,
    pub task: Option<TaskId>,
    pub run: Option<RunId>,
    pub preset: Preset,
    pub keys: BTreeMap<Provider, ModelKey>,
    /// What the sandbox in all and the calls of this turn may cost.
    pub budget_nanos: Option<i64>,
    /// What the calls of all turns of the run may cost together.
    pub run_budget_nanos: Option<i64>,
}

/// What the calls of a turn used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spending {
    pub calls: i64,
    pub tokens: Tokens,
    /// `None` if some call's model has no price.
    pub cost_nanos: Option<i64>,
    /// At least this much.
    pub known_cost_nanos: i64,
    /// A budget refused a call.
    pub was_refused: bool,
    /// It was not the task's own.
    pub by_another: bool,
}

impl Models {
    /// Settles calls that the last server left, and opens its grants again.
    pub async fn start(
        store: Store,
        fleet: Arc<Fleet>,
        telemetry: Arc<Telemetry>,
        config: ModelConfig,
        extra_roots: Option<&str>,
        pools: &PoolSettings,
        here: String,
    ) -> Result<Arc<Self>, StoreError> {
        let operator = store.operator();
        let lost = store.settle_lost_calls(&operator).await?;
        if lost > 0 {
            tracing::info!("the last stop interrupted {lost} calls of models: they cost what was reserved");
        }
        let currency = fleet.usage.settings().currency.clone();
        let mut prices = config.prices;
        if prices.currency != currency {
            tracing::warn!(
                "prices of models are in {}, and usage.currency is {currency}: models have no price; hint: set \
                 models.prices to a file in {currency}",
                prices.currency
            );
            prices.models.clear();
        }
        let models = Arc::new(Self {
            client: Client::new(extra_roots),
            calls: pools.shares(pool::MODEL_CALLS),
            memory: pools.shares(pool::MODEL_MEMORY),
            settings: config.settings,
            tasks: TaskTracker::new(),
            grants: Mutex::default(),
            places: Places::default(),
            store,
            fleet,
            telemetry,
            prices,
            currency,
            here,
        });
        models.reopen().await?;
        Ok(models)
    }

    pub const fn is_enabled(&self) -> bool {
        self.settings.enabled
    }

    /// The prices that calls are charged at.
    pub const fn prices(&self) -> &Prices {
        &self.prices
    }

    /// Opens the grants on record again. The old passes stay valid until egress has the new ones.
    async fn reopen(&self) -> Result<(), StoreError> {
        let operator = self.store.operator();
        for row in self.store.open_grants(&operator).await? {
            let Some(record) = self.fleet.any(row.sandbox) else { continue };
            let (pass, digest) = new_pass();
            let old = row.pass_digest.clone();
            if !self.store.renew_grant(&operator, row.id, digest.clone()).await? {
                continue;
            }
            let grant = self.remember(row, &old);
            self.grants.lock().insert(digest, grant);
            if let Some(route) = self.route(&pass) {
                record.git.replace_model(Some(route));
            }
        }
        Ok(())
    }

    fn remember(&self, row: GrantRow, digest: &str) -> Arc<Grant> {
        let mut grants = self.grants.lock();
        let known =
            grants.values().find(|grant| grant.row.id == row.id && !grant.closing.is_cancelled()).cloned();
        let grant = known.filter(|known| known.row.budget_nanos == row.budget_nanos).unwrap_or_else(|| {
            Arc::new(Grant {
                scope: self.store.operator().acting_for(row.project, None),
                row,
                pace: Mutex::new(Pace::new(Instant::now())),
                settled: Notify::new(),
                closing: CancellationToken::new(),
                refusals: AtomicU32::new(0),
                answers: Answers::default(),
            })
        });
        grants.insert(digest.to_string(), grant.clone());
        grant
    }

    fn route(&self, pass: &str) -> Option<ModelRoute> {
        let upstream = format!("{}/model", self.here).parse().ok()?;
        let authorization = HeaderText::parse(&format!("Bearer {pass}")).ok()?;
        Some(ModelRoute { upstream, authorization: Some(authorization) })
    }

    /// Tells egress of reopened grants, and closes those whose sandbox is gone, until `stop`.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let mut is_first = true;
        loop {
            match self.look(is_first).await {
                Ok(()) => is_first = false,
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!("could not look after grants of models: {error}"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn look(&self, is_first: bool) -> Result<(), StoreError> {
        let operator = self.store.operator();
        for row in self.store.open_grants(&operator).await? {
            let Some(record) = self.fleet.any(row.sandbox) else {
                let scope = operator.acting_for(row.project, None);
                let known = self.store.sandbox(&scope, row.sandbox).await?;
                let lives_elsewhere = known.is_some_and(|known| known.state.is_live());
                if !lives_elsewhere {
                    self.forget(row.id);
                    self.store.close_grant(&operator, row.id).await?;
                }
                continue;
            };
            let route = record.git.model().filter(|_| is_first);
            if route.is_some()
                && let Err(error) = self.fleet.set_models(record.clone(), route).await
            {
                let id = row.sandbox;
                tracing::warn!(sandbox.id = %id, "could not open the way to models for sandbox {id} again: {error}");
            }
        }
        Ok(())
    }

    /// Opens the grant of a turn, and the sandbox's way to the gateway.
    pub async fn open(&self, order: GrantOrder) -> Result<Arc<Grant>, ModelError> {
        let GrantOrder { scope, record, key, agent, task, run, preset, keys, budget_nanos, run_budget_nanos } =
            order;
        let values = self.store.read_secrets(scope.project()).await?;
        for (provider, key) in &keys {
            Upstream::of(&self.settings, *provider, key, &values)?;
        }
        let names = keys.values().map(|key| key.secret.clone()).collect();
        let (pass, pass_digest) = new_pass();
        let sandbox = record.id;
        let new = NewGrant {
            key,
            sandbox,
            agent,
            task,
            run,
            preset,
            keys,
            pass_digest: pass_digest.clone(),
            budget_nanos,
            run_budget_nanos,
        };
        let row = self.store.open_grant(&scope, new).await?;
        let grant = self.remember(row, &pass_digest);
        self.fleet.set_models(record.clone(), self.route(&pass)).await?;
        self.fleet.note_secrets(&record, names);
        Ok(grant)
    }

    /// The grant of a pass: the value of an `Authorization` header. Looked up by digest, so the time reveals nothing
    /// of the text.
    pub fn find(&self, authorization: &str) -> Option<Arc<Grant>> {
        let pass = authorization.strip_prefix("Bearer ").filter(|pass| pass.starts_with(MARK))?;
        self.grants.lock().get(&digest(pass)).filter(|grant| !grant.closing.is_cancelled()).cloned()
    }

    fn forget(&self, grant: ModelGrantId) {
        self.grants.lock().retain(|_, known| {
            let stays = known.row.id != grant;
            if !stays {
                known.closing.cancel();
            }
            stays
        });
    }

    /// Closes all grants of a sandbox that a person may now use.
    pub async fn close_all(&self, sandbox: SandboxId) {
        let known: Vec<Arc<Grant>> =
            self.grants.lock().values().filter(|grant| grant.row.sandbox == sandbox).cloned().collect();
        for grant in known {
            if let Err(error) = self.close(&grant).await {
                tracing::warn!(sandbox.id = %sandbox, "could not close the way to models of sandbox {sandbox}: {error}");
            }
        }
    }

    /// Ends the grant of a turn: no call begins any more, and those in progress are settled soon.
    pub async fn close(&self, grant: &Grant) -> Result<Spending, ModelError> {
        self.forget(grant.row.id);
        grant.closing.cancel();
        self.store.close_grant(&self.store.operator(), grant.row.id).await?;
        if let Some(record) = self.fleet.any(grant.row.sandbox)
            && let Err(error) = self.fleet.set_models(record, None).await
        {
            // The pass is worth nothing any more.
            tracing::debug!("could not close the way to models of sandbox {}: {error}", grant.row.sandbox);
        }
        let since = Instant::now();
        loop {
            let settled = grant.settled.notified();
            let totals = self.store.grant_totals(&grant.scope, grant.row.id).await?;
            if totals.open == 0 || since.elapsed() > LAST_CALLS {
                return Ok(self.spending(grant, totals).await?);
            }
            let _ = tokio::time::timeout(Duration::from_secs(1), settled).await;
        }
    }

    /// What the calls of a turn used so far.
    pub async fn spent(&self, grant: &Grant) -> Result<Spending, ModelError> {
        let totals = self.store.grant_totals(&grant.scope, grant.row.id).await?;
        Ok(self.spending(grant, totals).await?)
    }

    async fn spending(&self, grant: &Grant, totals: GrantTotals) -> Result<Spending, StoreError> {
        let row = self.store.grant(&grant.scope, grant.row.id).await?;
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok(Spending {
            calls: totals.calls,
            tokens: Tokens {
                input: count(totals.input_tokens),
                cached: count(totals.cached_tokens),
                output: count(totals.output_tokens),
            },
            cost_nanos: (totals.unpriced == 0).then_some(totals.cost_nanos),
            known_cost_nanos: totals.cost_nanos,
            by_another: row
                .as_ref()
                .and_then(|row| row.refused_by.as_deref())
                .is_some_and(|whose| whose != "task"),
            was_refused: row.is_some_and(|row| row.was_refused),
        })
    }

    /// Waits for calls in progress.
    pub async fn finish(&self, patience: Duration) {
        self.tasks.close();
        if tokio::time::timeout(patience, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                "gave up waiting for {} calls of models: they cost what was reserved",
                self.tasks.len()
            );
        }
    }
}

/// A new pass, and its digest.
fn new_pass() -> (String, String) {
    let pass = format!("{MARK}{}", hex::encode(rand::random::<[u8; 32]>()));
    let digest = digest(&pass);
    (pass, digest)
}

fn digest(text: &str) -> String {
    hex::encode(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref())
}
