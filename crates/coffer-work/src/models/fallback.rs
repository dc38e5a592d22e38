//! Where a call goes when its provider is overloaded, fails or is away: other places, keys and models, by the project's rules.
//!
//! Only before the first byte of an answer has gone to the agent, and never after a time-out, which may have been charged.
//! A place that fails several times in a row is left alone for a while, by this project with this key only.

use std::time::{Duration, Instant};

use bytes::Bytes;
use coffer_core::ProjectId;
use coffer_core::model::{
    Asked, Call, MOST_FALLBACKS, ModelFallback, ModelPolicy, ModelTry, Provider, TryOutcome,
};
use coffer_http::{Address, Failure, Pieces};
use coffer_store::{ModelKey, SecretValues, Worth};
use http::header::HeaderMap;
use http::{Method, Request, Response};
use http_body_util::Full;

use super::service::Models;
use super::upstream::Upstream;
use super::ways::{Way, check};
use super::worth::worth;

const CONNECT_WITHIN: Duration = Duration::from_secs(30);

/// A call to send.
#[derive(Clone, Copy)]
pub(super) struct Outgoing<'a> {
    pub(super) project: ProjectId,
    pub(super) provider: Provider,
    pub(super) asked: Option<&'a Asked>,
    pub(super) headers: &'a HeaderMap,
    /// Where it may go, its own provider first; never empty.
    pub(super) ways: &'a [Way],
    /// What was reserved for it.
    pub(super) reserved_nanos: Option<i64>,
}

/// What the tries of a call led to.
pub(super) struct Tried {
    pub(super) sent: Result<Response<Pieces>, Failure>,
    /// Which way answered, or failed first.
    pub(super) way: usize,
    pub(super) tries: Vec<ModelTry>,
}

/// Whether another place may do better.
const fn judge(status: u16) -> TryOutcome {
    match status {
        429 | 529 => TryOutcome::Overloaded,
        500..=599 => TryOutcome::Failed,
        _ => TryOutcome::Answered,
    }
}

impl Models {
    /// Checks a project's fallbacks; the error says which one, and why.
    pub fn check_fallbacks(&self, policy: &ModelPolicy) -> Result<(), String> {
        if policy.fallbacks.len() > MOST_FALLBACKS {
            return Err(format!("may have at most {MOST_FALLBACKS} entries"));
        }
        let hosts = self.settings.hosts();
        for (at, fallback) in policy.fallbacks.iter().enumerate() {
            check(fallback, &hosts).map_err(|why| format!("[{at}]: {why}"))?;
        }
        Ok(())
    }

    /// The ways of a call after the first one. Those that cannot be used now are left out.
    pub(super) fn ways(
        &self,
        policy: &ModelPolicy,
        (call, asked): (&Call, &Asked),
        key: &ModelKey,
        values: &SecretValues,
    ) -> Vec<Way> {
        let of_provider = policy.fallbacks.iter().filter(|one| one.provider == call.provider);
        of_provider.filter_map(|one| self.way(policy, one, (call, asked), key, values)).collect()
    }

    fn way(
        &self,
        policy: &ModelPolicy,
        fallback: &ModelFallback,
        (call, asked): (&Call, &Asked),
        key: &ModelKey,
        values: &SecretValues,
    ) -> Option<Way> {
        let key = ModelKey {
            secret: fallback.secret.clone().unwrap_or_else(|| key.secret.clone()),
            header: fallback.header.unwrap_or(key.header),
        };
        let upstream = match &fallback.url {
            None => Upstream::of(&self.settings, call.provider, &key, values),
            Some(url) => {
                let address = Address::parse(url).ok()?;
                let is_vouched = self.settings.hosts().has(address.host(), address.port());
                Upstream::at((address, is_vouched), &key, values)
            }
        };
        let upstream = match upstream {
            Ok(upstream) => upstream,
            Err(error) => {
                tracing::debug!("a fallback of models cannot be used: {error}");
                return None;
            }
        };
        let other = fallback.model.as_ref().filter(|model| **model != asked.model);
        if other.is_some_and(|model| !policy.allows(model)) {
            return None;
        }
        let (call, asked) = match other {
            Some(model) => (call.with_model(model)?, Some(asked.with_model(model))),
            None => (call.clone(), None),
        };
        Some(Way { upstream, call, asked, secret: key.secret })
    }

    /// What a call can cost by whichever way: what is reserved suffices for all that have a price.
    pub(super) fn worth_of_all(&self, own: Worth, call: &Call, ways: &[Way]) -> Worth {
        let Worth::Between { mut least, mut most } = own else { return own };
        for other in ways.iter().filter_map(|way| way.asked.as_ref()) {
            if let Worth::Between { least: more, most: at_most } = worth(&self.prices, call, other) {
                (least, most) = (least.max(more), most.max(at_most));
            }
        }
        Worth::Between { least, most }
    }
}

/// Whether another model costs no more than what was reserved.
fn fits(models: &Models, way: &Way, order: Outgoing<'_>) -> bool {
    let (Some(other), Some(reserved), Some(asked)) = (&way.asked, order.reserved_nanos, order.asked) else {
        return true;
    };
    match worth(&models.prices, &way.call, other) {
        Worth::Between { most, .. } => most <= reserved,
        Worth::Unknown => models.prices.of(&asked.model).is_none(),
    }
}

/// Sends a call by one way, and waits until its answer begins.
async fn send_by(models: &Models, order: Outgoing<'_>, way: &Way) -> Result<Response<Pieces>, Failure> {
    let upstream = &way.upstream;
    let body = way.asked.as_ref().or(order.asked).map(Asked::body).unwrap_or_default();
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = if way.call.kind.has_body() { Method::POST } else { Method::GET };
    *request.uri_mut() = upstream.path(&way.call).parse().map_err(|_| Failure::Name)?;
    *request.headers_mut() = upstream.headers(order.provider, order.headers);
    let connection = models.client.connect(&upstream.address, upstream.check(), CONNECT_WITHIN).await?;
    let patience = Duration::from(models.settings.timeout);
    let answered = tokio::time::timeout(patience, connection.begin(request)).await;
    answered.unwrap_or(Err(Failure::Timeout(patience)))
}

/// Sends a call by the first way that works. If none does, its own provider's answer counts.
pub(super) async fn send(models: &Models, order: Outgoing<'_>) -> Tried {
    let [only] = order.ways else { return send_by_any(models, order).await };
    Tried { sent: send_by(models, order, only).await, way: 0, tries: Vec::new() }
}

async fn send_by_any(models: &Models, order: Outgoing<'_>) -> Tried {
    let mut tries: Vec<ModelTry> = Vec::new();
    let mut first: Option<(usize, Result<Response<Pieces>, Failure>)> = None;
    let provider = order.provider;
    for (at, way) in order.ways.iter().enumerate() {
        if at > 0 && !fits(models, way, order) {
            continue;
        }
        let began = Instant::now();
        let mut note = |outcome: TryOutcome, status: Option<u16>| {
            let place = if way.upstream.is_own { provider.as_str() } else { way.upstream.address.host() };
            let asked = way.asked.as_ref().or(order.asked);
            tries.push(ModelTry {
                place: place.to_string(),
                model: asked.map(|asked| asked.model.clone()).unwrap_or_default(),
                outcome,
                status,
                duration_ms: i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX),
            });
            if outcome != TryOutcome::Answered && at + 1 < order.ways.len() {
                models.telemetry.metrics.model_fell_back(provider.as_str(), outcome.as_str());
            }
        };
        let breaker = models.places.of(order.project, way);
        let Ok(leave) = breaker.admit() else {
            note(TryOutcome::Paused, None);
            continue;
        };
        let sent = send_by(models, order, way).await;
        let outcome = match &sent {
            Ok(answer) => judge(answer.status().as_u16()),
            Err(_) => TryOutcome::Unreachable,
        };
        let status = sent.as_ref().ok().map(|answer| answer.status().as_u16());
        if outcome == TryOutcome::Answered {
            leave.answered();
        } else {
            leave.failed();
        }
        // Another place that refuses the call or the key is no answer to the agent.
        let is_refusal = at > 0 && status.is_some_and(|status| !(200..300).contains(&status));
        let may_be_charged = matches!(sent, Err(Failure::Timeout(_)));
        match outcome {
            TryOutcome::Answered if !is_refusal => {
                note(outcome, status);
                // Nothing to tell of a call whose first try did it.
                let tries = if tries.len() > 1 { tries } else { Vec::new() };
                return Tried { sent, way: at, tries };
            }
            TryOutcome::Answered => note(TryOutcome::Failed, status),
            _ => note(outcome, status),
        }
        if may_be_charged {
            return Tried { sent, way: at, tries };
        }
        first = first.or(Some((at, sent)));
    }
    match first {
        Some((way, sent)) => Tried { sent, way, tries },
        // All of them rest: its own provider is asked all the same.
        None => Tried { sent: send_by(models, order, &order.ways[0]).await, way: 0, tries },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_overload_and_failures_go_on() {
        let next = |status| judge(status) != TryOutcome::Answered;
        assert!([429, 500, 502, 503, 504, 529].into_iter().all(next));
        assert!(![200, 201, 302, 400, 401, 402, 403, 404, 413, 422].into_iter().any(next));
    }
}
