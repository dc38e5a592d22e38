//! One call until it is sent: who asks, for what, is it allowed, and is there money for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use coffer_core::event::{Event, ModelBudgetReached};
use coffer_core::model::{Asked, Call, refusal_body};
use coffer_core::{BudgetPeriod, ProjectId};
use coffer_fleet::usage::first_day;
use coffer_shares::Place;
use coffer_store::{ModelLimit, NewCall, Periods, Reserved, Worth};
use coffer_telemetry::ModelCalled;
use http::header::{self, HeaderMap, HeaderValue};

use super::carry;
use super::error::ModelError;
use super::service::{Grant, Models};
use super::shapes::{MOST_BODY, ModelAnswer, ModelRequest, whole};
use super::upstream::Upstream;
use super::ways::Way;
use super::worth::worth;
use coffer_core::clock::now_ms;

const A_PLACE: usize = 1 << 20;
/// Most values of a request, as far as its punctuation tells.
const MOST_VALUES: usize = 2_000_000;
/// How long a call waits for others that hold the rest of a budget.
const HELD_FOR: Duration = Duration::from_secs(300);
/// Refused calls of a grant that are recorded; more only count in metrics.
const MOST_REFUSALS: u32 = 50;

/// An agent with a valid pass, and a place for its call.
#[derive(Debug)]
pub struct Entered {
    pub(super) grant: Arc<Grant>,
    place: Place<ProjectId>,
    memory: Vec<Place<ProjectId>>,
}

impl Entered {
    pub fn project(&self) -> ProjectId {
        self.grant.row.project
    }
}

impl Models {
    /// Lets an agent in by its pass, if there is room for another call of its project.
    pub fn enter(&self, authorization: Option<&str>) -> Result<Entered, ModelError> {
        let grant = authorization.and_then(|text| self.find(text)).ok_or(ModelError::NoGrant)?;
        let place = self.calls.try_take(grant.row.project)?;
        if !grant.pace.lock().may(Instant::now()) {
            return Err(ModelError::TooFast);
        }
        Ok(Entered { grant, place, memory: Vec::new() })
    }

    /// Makes room for a body of `bytes` in all.
    pub fn make_room(&self, entered: &mut Entered, bytes: usize) -> Result<(), ModelError> {
        if bytes > MOST_BODY {
            return Err(ModelError::TooLong);
        }
        while entered.memory.len() * A_PLACE < bytes {
            entered.memory.push(self.memory.try_take(entered.grant.row.project)?);
        }
        Ok(())
    }

    /// Carries a call; refusals are answers, in the shape of the provider.
    pub async fn call(self: &Arc<Self>, entered: Entered, request: ModelRequest) -> ModelAnswer {
        let provider = request.path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let provider = coffer_core::model::Provider::parse(provider);
        match self.pass(entered, request).await {
            Ok(answer) => answer,
            Err(error) => refused(provider, &error),
        }
    }

    async fn pass(
        self: &Arc<Self>,
        entered: Entered,
        request: ModelRequest,
    ) -> Result<ModelAnswer, ModelError> {
        let Entered { grant, place, memory } = entered;
        let call = Call::read(&request.method, &request.path, request.query.as_deref())?;
        let key = grant.row.keys.get(&call.provider).ok_or(ModelError::NoKey(call.provider))?;
        let secrets = self.store.secret_values(grant.row.project).await?;
        let upstream = Upstream::of(&self.settings, call.provider, key, &secrets)?;
        let held = carry::Held { _place: place, memory };
        if !call.kind.has_body() {
            let order = carry::Order {
                ways: vec![Way::first(upstream, call.clone(), key)],
                call,
                asked: None,
                headers: request.headers,
                reserved: None,
                keeps: false,
            };
            return Ok(carry::begin(self, &grant, order, held).await);
        }
        let encoding = request.headers.get(header::CONTENT_ENCODING);
        if encoding.is_some_and(|encoding| encoding != "identity") {
            return Err(ModelError::Compressed);
        }
        // Each value takes more memory than its bytes.
        let values = request.body.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
        if values > MOST_VALUES {
            return Err(ModelError::TooMany);
        }
        let mut asked = Asked::read(&call, &request.body)?;
        drop(request.body);
        let policy = self.store.model_policy(&grant.scope).await?.policy;
        let mut ways = vec![Way::first(upstream, call.clone(), key)];
        ways.extend(self.ways(&policy, (&call, &asked), key, &secrets));
        let mut reserved = None;
        if call.kind.is_billed() {
            let mut new = self.new_call(&grant, &call, &asked).await?;
            new.worth = self.worth_of_all(new.worth, &call, &ways);
            let checked = match policy.allows(&asked.model) {
                true => self.reserve(&grant, &mut new, &mut asked).await,
                false => Err(ModelError::NotAllowed(asked.model.clone())),
            };
            match checked {
                Ok(taken) => {
                    reserved = Some(taken);
                    if let Some(most) = asked.most_output {
                        // Near the end of a budget the answer became shorter, whoever gives it.
                        for other in ways.iter_mut().filter_map(|way| way.asked.as_mut()) {
                            if other.most_output.is_none_or(|own| own > most) {
                                other.limit_output(most);
                            }
                        }
                    }
                }
                Err(error) => {
                    self.note_refusal(&grant, new, &error).await;
                    return Err(error);
                }
            }
        } else if !policy.allows(&asked.model) {
            return Err(ModelError::NotAllowed(asked.model.clone()));
        }
        let order = carry::Order {
            call,
            asked: Some(asked),
            ways,
            headers: request.headers,
            reserved,
            keeps: policy.keep_bodies,
        };
        Ok(carry::begin(self, &grant, order, held).await)
    }

    async fn new_call(&self, grant: &Grant, call: &Call, asked: &Asked) -> Result<NewCall, ModelError> {
        let now = now_ms();
        let sandbox_cost_nanos = match grant.row.budget_nanos {
            Some(_) => self.fleet.usage.cost_of(&grant.scope, grant.row.sandbox).await?,
            None => 0,
        };
        Ok(NewCall {
            grant: grant.row.clone(),
            provider: call.provider,
            kind: call.kind,
            model: asked.model.clone(),
            worth: worth(&self.prices, call, asked),
            sandbox_cost_nanos,
            periods: Periods {
                day: first_day(BudgetPeriod::Day, now),
                month: first_day(BudgetPeriod::Month, now),
            },
        })
    }

    /// Reserves the cost of a call; waits for calls that hold the rest of a budget, and limits the answer to what is
    /// left.
    async fn reserve(
        &self,
        grant: &Grant,
        new: &mut NewCall,
        asked: &mut Asked,
    ) -> Result<carry::Taken, ModelError> {
        let since = Instant::now();
        loop {
            let settled = grant.settled.notified();
            match self.store.reserve_call(new.clone()).await? {
                Reserved::Yes { call, nanos } => {
                    if let Worth::Between { most, .. } = new.worth
                        && nanos < most
                    {
                        self.shorten(new, asked, nanos);
                    }
                    return Ok(carry::Taken { call, nanos });
                }
                Reserved::Closed => return Err(ModelError::NoGrant),
                Reserved::Wait if since.elapsed() > HELD_FOR => return Err(ModelError::Held),
                Reserved::Wait => {
                    tokio::select! {
                        () = grant.closing.cancelled() => return Err(ModelError::NoGrant),
                        () = settled => {}
                        () = tokio::time::sleep(Duration::from_secs(1)) => {}
                    }
                }
                Reserved::Unknown { limit } => {
                    let whose = whose(limit);
                    return Err(match &asked.foreign_tool {
                        Some(tool) => ModelError::NoToolPrice { tool: tool.clone(), whose },
                        None => ModelError::NoPrice { model: asked.model.clone(), whose },
                    });
                }
                Reserved::Over { limit, left_nanos, amount_nanos } => {
                    let (left, amount) = (amount(left_nanos), amount(amount_nanos));
                    let (currency, whose) = (self.currency.clone(), whose(limit));
                    return Err(ModelError::OverBudget { left, amount, currency, whose });
                }
            }
        }
    }

    /// Limits the answer so that the call costs at most `nanos`.
    fn shorten(&self, new: &NewCall, asked: &mut Asked, nanos: i64) {
        let most = |output: u64| self.prices.most(new.provider, asked, output).unwrap_or(i64::MAX);
        let (mut fits, mut not) = (0, asked.most_output.unwrap_or(u64::from(u32::MAX)).max(1));
        while not - fits > 1 {
            let middle = fits + (not - fits) / 2;
            if most(middle) <= nanos {
                fits = middle;
            } else {
                not = middle;
            }
        }
        asked.limit_output(fits.max(1));
    }

    /// Records a refused call, with an event if a budget refused it.
    async fn note_refusal(&self, grant: &Grant, new: NewCall, error: &ModelError) {
        self.telemetry.metrics.model_called(&ModelCalled {
            provider: new.provider.as_str(),
            model: self.label_of(&new.model),
            agent: grant.row.preset.as_str(),
            outcome: "refused",
            input: 0,
            cached: 0,
            output: 0,
            cost: 0.0,
            currency: &self.currency,
            took: Duration::ZERO,
        });
        if grant.refusals.fetch_add(1, Ordering::Relaxed) >= MOST_REFUSALS {
            return;
        }
        let subject = grant.row.task.map_or_else(|| grant.row.sandbox.to_string(), |task| task.to_string());
        let (left, amount, limit) = match error {
            ModelError::OverBudget { left, amount, whose, .. } => (number(left), number(amount), *whose),
            ModelError::NoPrice { whose, .. } | ModelError::NoToolPrice { whose, .. } => (0.0, 0.0, *whose),
            _ => (0.0, 0.0, ""),
        };
        let limit = limit.trim_end_matches("'s").rsplit(' ').next().unwrap_or_default().to_string();
        let event = error.is_budget().then(|| {
            Event::ModelBudgetReached(ModelBudgetReached {
                sandbox: grant.row.sandbox,
                task: grant.row.task,
                run: grant.row.run,
                agent: grant.row.agent,
                model: new.model.clone(),
                limit: limit.clone(),
                left,
                amount,
                currency: self.currency.clone(),
            })
        });
        let recorded = self.store.record_refused_call(new, error.status(), error.told()).await;
        let noted = match event {
            Some(event) => self.store.note_refusal(&grant.scope, grant.row.id, subject, limit, event).await,
            None => Ok(()),
        };
        if let Err(error) = recorded.and(noted) {
            tracing::warn!("could not record a refused call of a model: {error}");
        }
    }

    /// A model's name as a label: agents choose names, and labels must be few.
    pub(super) fn label_of<'a>(&self, model: &'a str) -> &'a str {
        if self.prices.of(model).is_some() { model } else { "other" }
    }
}

const fn whose(limit: ModelLimit) -> &'static str {
    match limit {
        ModelLimit::Work => "the task's",
        ModelLimit::Project(_) => "the project's",
        ModelLimit::Sandbox(_) => "the sandbox's",
    }
}

/// Billionths as decimal text, in thousandths.
fn amount(nanos: i64) -> String {
    format!("{:.3}", nanos as f64 / 1e9)
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or(0.0)
}

/// The gateway's own answer.
fn refused(provider: Option<coffer_core::model::Provider>, error: &ModelError) -> ModelAnswer {
    let status = error.status();
    let body = refusal_body(provider, status, &format!("Cofferdam: {}", error.told())).to_string();
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let kind = if error.is_budget() { "budget" } else { "gateway" };
    headers.insert("x-coffer-refusal", HeaderValue::from_static(kind));
    match status {
        429 | 503 => drop(headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"))),
        // Some clients retry what they do not know.
        _ => drop(headers.insert("x-should-retry", HeaderValue::from_static("false"))),
    }
    ModelAnswer { status, headers, body: whole(body.into()) }
}
