//! One call after its cost was reserved: sent, passed on as it comes, read, and settled.
//!
//! A task of the server carries it, not the agent's connection: an agent that does not wait for the end of an answer
//! has paid for it all the same, so the answer is read on until its usage is known. What never becomes known costs
//! what was reserved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use coffer_core::Millis;
use coffer_core::model::{AnswerReader, Asked, Call, ModelTry, Read, Used, refusal_body};
use coffer_core::{ModelCallId, ProjectId};
use coffer_http::{Failure, Pieces};
use coffer_shares::Place;
use coffer_store::{CallOutcome, ModelBodies, Settled};
use coffer_telemetry::ModelCalled;
use http::Response;
use http::header::{self, HeaderMap, HeaderValue};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument as _;

use super::fallback::{self, Outgoing, Tried};
use super::service::{Grant, Models};
use super::shapes::{ModelAnswer, whole};
use super::upstream::shown;
use super::ways::Way;
use coffer_core::clock::now_ms;

const CONNECT_WITHIN: Duration = Duration::from_secs(30);
/// How long an answer is read on that nobody waits for; and after the end of the turn.
const DRAIN: Duration = Duration::from_secs(120);
const DRAIN_AT_END: Duration = Duration::from_secs(15);
/// How long an agent may take to read what it was sent.
const SLOW_READER: Duration = Duration::from_secs(300);
/// Pieces of an answer on their way to the agent.
const AHEAD: usize = 16;
/// Most bytes of an error's text, and of each kept body.
const MOST_ERROR: usize = 64 << 10;
const MOST_KEPT: usize = 1 << 20;

/// What a call needs until it has ended.
pub(super) struct Held {
    pub(super) _place: Place<ProjectId>,
    pub(super) memory: Vec<Place<ProjectId>>,
}

/// What was reserved for a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) call: ModelCallId,
    pub(super) nanos: i64,
}

/// A call to carry.
pub(super) struct Order {
    pub(super) call: Call,
    pub(super) asked: Option<Asked>,
    /// Where it may go, its own provider first; never empty.
    pub(super) ways: Vec<Way>,
    pub(super) headers: HeaderMap,
    /// `None` for calls that cost nothing and are not recorded.
    pub(super) reserved: Option<Taken>,
    /// Whether the project keeps bodies.
    pub(super) keeps: bool,
}

impl Order {
    fn outgoing(&self, grant: &Grant) -> Outgoing<'_> {
        Outgoing {
            project: grant.row.project,
            provider: self.call.provider,
            asked: self.asked.as_ref(),
            headers: &self.headers,
            ways: &self.ways,
            reserved_nanos: self.reserved.map(|taken| taken.nanos),
        }
    }
}

/// How carrying ended.
struct Ended {
    outcome: CallOutcome,
    status: Option<u16>,
    read: Read,
    /// The usage is unknown: the cost is all that was reserved.
    is_unknown: bool,
    first_byte_ms: Option<Millis>,
    error: Option<String>,
    answer: String,
    /// The model that was asked at last, if it is another one.
    other: Option<String>,
    tries: Vec<ModelTry>,
}

impl Ended {
    fn failed(outcome: CallOutcome, error: String, is_unknown: bool) -> Self {
        Self {
            outcome,
            status: None,
            read: Read::default(),
            is_unknown,
            first_byte_ms: None,
            error: Some(error),
            answer: String::new(),
            other: None,
            tries: Vec::new(),
        }
    }
}

/// Carries a call in a task of its own; returns when its answer begins.
pub(super) async fn begin(models: &Arc<Models>, grant: &Arc<Grant>, order: Order, held: Held) -> ModelAnswer {
    let provider = order.call.provider;
    let (head, heard) = oneshot::channel();
    let (models, grant) = (models.clone(), grant.clone());
    let tasks = models.tasks.clone();
    let row = &grant.row;
    let span = tracing::info_span!(
        "model call",
        sandbox.id = %row.sandbox,
        run.id = row.run.map(tracing::field::display),
        task.id = row.task.map(tracing::field::display),
    );
    tasks.spawn(async move { carry(&models, &grant, order, held, head).await }.instrument(span));
    heard.await.unwrap_or_else(|_| {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = refusal_body(Some(provider), 502, "Cofferdam: the provider's answer was lost").to_string();
        ModelAnswer { status: 502, headers, body: whole(body.into()) }
    })
}

async fn carry(
    models: &Models,
    grant: &Grant,
    mut order: Order,
    mut held: Held,
    head: oneshot::Sender<ModelAnswer>,
) {
    let began = Instant::now();
    let body = order.asked.as_ref().map(Asked::body).unwrap_or_default();
    let kept = order.keeps.then(|| cut(&String::from_utf8_lossy(&body)));
    drop(body);
    let Tried { sent, way, tries } = fallback::send(models, order.outgoing(grant)).await;
    // From here on only the one that answers counts.
    order.ways.swap(0, way);
    order.ways.truncate(1);
    let status = sent.as_ref().ok().map(|answer| answer.status().as_u16());
    // What counts tokens or lists models says nothing of whether the model answers, and the refusal of another place
    // nothing of the agent's key.
    if order.reserved.is_some() && (way == 0 || status != Some(401)) {
        grant.answers.count(order.call.provider, status);
    }
    // The request is sent: its memory is free.
    held.memory.clear();
    let (mut ended, rest) = match sent {
        Err(failure) => {
            let why = format!("the provider does not answer: {}", coffer_core::chain(&failure));
            // A call that took too long may have been charged.
            let is_unknown = matches!(failure, Failure::Timeout(_));
            let body = refusal_body(Some(order.call.provider), 502, &format!("Cofferdam: {why}")).to_string();
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let answer = ModelAnswer { status: 502, headers, body: whole(body.into()) };
            (Ended::failed(CallOutcome::Broken, why, is_unknown), Rest::Head(head, answer))
        }
        Ok(answer) if answer.status().is_success() => pass_on(models, grant, &order, answer, head).await,
        Ok(answer) => complain(&order, answer, head).await,
    };
    ended.other = order.ways[0].asked.as_ref().map(|asked| asked.model.clone());
    ended.tries = tries;
    settle(models, grant, &order, ended, kept, began).await;
    grant.settled.notify_waiters();
    // The agent sees the end of its answer when the call is settled.
    rest.finish().await;
    drop(held);
}

/// What the agent gets once the call is settled.
enum Rest {
    Nothing,
    Head(oneshot::Sender<ModelAnswer>, ModelAnswer),
    Piece(mpsc::Sender<Result<Bytes, std::io::Error>>, Result<Bytes, std::io::Error>),
    End(mpsc::Sender<Result<Bytes, std::io::Error>>),
}

impl Rest {
    async fn finish(self) {
        match self {
            Self::Nothing => {}
            Self::End(sender) => drop(sender),
            Self::Head(head, answer) => drop(head.send(answer)),
            Self::Piece(sender, piece) => drop(tokio::time::timeout(SLOW_READER, sender.send(piece)).await),
        }
    }
}

/// Passes an error of the provider on, without the key should it quote it.
async fn complain(
    order: &Order,
    answer: Response<Pieces>,
    head: oneshot::Sender<ModelAnswer>,
) -> (Ended, Rest) {
    let (parts, pieces) = answer.into_parts();
    let status = parts.status.as_u16();
    let body = pieces.whole(MOST_ERROR, CONNECT_WITHIN).await.unwrap_or_default();
    let text = order.ways[0].upstream.without_key(&String::from_utf8_lossy(&body));
    let message = serde_json::from_str::<serde_json::Value>(&text).ok();
    let message = message.as_ref().and_then(|json| json["error"]["message"].as_str()).unwrap_or(&text);
    let error: String = message.chars().take(300).collect();
    let mut headers = shown(&parts.headers);
    let body = match status {
        // Providers quote parts of keys there.
        401 => {
            let why = "Cofferdam: the provider refused the key; set the secret of the agent's key again";
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            refusal_body(Some(order.call.provider), 401, why).to_string()
        }
        300..=399 => {
            let why = "Cofferdam: the provider redirects, and redirects are not followed";
            refusal_body(Some(order.call.provider), 502, why).to_string()
        }
        _ => text.clone(),
    };
    let told = if (300..=399).contains(&status) { 502 } else { status };
    let answer = ModelAnswer { status: told, headers, body: whole(body.into()) };
    let ended = Ended {
        status: Some(status),
        first_byte_ms: Some(now_ms()),
        answer: cut(&text),
        ..Ended::failed(
            CallOutcome::Failed,
            if status == 401 { "the key was refused".into() } else { error },
            false,
        )
    };
    (ended, Rest::Head(head, answer))
}

/// Passes an answer on as it comes, and reads it.
async fn pass_on(
    models: &Models,
    grant: &Grant,
    order: &Order,
    answer: Response<Pieces>,
    head: oneshot::Sender<ModelAnswer>,
) -> (Ended, Rest) {
    let (parts, mut pieces) = answer.into_parts();
    let status = parts.status.as_u16();
    let kind =
        parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_stream = kind.starts_with("text/event-stream");
    let hides = order.asked.as_ref().is_some_and(|asked| asked.hides_usage);
    let mut reader = AnswerReader::new(order.call.kind, is_stream, hides);
    let (sender, body) = mpsc::channel(AHEAD);
    let first_byte_ms = Some(now_ms());
    let mut is_heard = head.send(ModelAnswer { status, headers: shown(&parts.headers), body }).is_ok();
    let mut kept = Vec::new();
    let patience = Duration::from(models.settings.timeout);
    let mut deadline: Option<Instant> = None;
    let broken = loop {
        if !is_heard && deadline.is_none() {
            deadline = Some(Instant::now() + DRAIN);
        }
        let next = match deadline {
            None => pieces.next(patience).await,
            Some(deadline) => match drain(&mut pieces, deadline, grant).await {
                Some(next) => next,
                None => break Some(Broken::GaveUp),
            },
        };
        let piece = match next {
            Ok(None) => break None,
            Ok(Some(piece)) => piece,
            Err(failure) => break Some(Broken::By(failure)),
        };
        if order.keeps && kept.len() < MOST_KEPT {
            kept.extend_from_slice(&piece[..piece.len().min(MOST_KEPT - kept.len())]);
        }
        let passed = reader.push(&piece).map_or(piece, Bytes::from);
        if is_heard && !passed.is_empty() {
            let sent = tokio::time::timeout(SLOW_READER, sender.send(Ok(passed))).await;
            is_heard = matches!(sent, Ok(Ok(())));
        }
    };
    let (left, read) = reader.finish();
    let answer = String::from_utf8_lossy(&kept).into_owned();
    let is_free = order.reserved.is_none();
    let ended = |outcome, is_unknown, error: Option<String>, read: Read| Ended {
        outcome,
        status: Some(status),
        read,
        is_unknown,
        first_byte_ms,
        error,
        answer,
        other: None,
        tries: Vec::new(),
    };
    let outcome = if is_heard { CallOutcome::Answered } else { CallOutcome::Aborted };
    match broken {
        None if read.is_complete || is_free => {
            let (error, outcome) = match &read.error {
                Some(error) => (Some(error.clone()), CallOutcome::Failed),
                None => (None, outcome),
            };
            let rest = if left.is_empty() { Rest::End(sender) } else { Rest::Piece(sender, Ok(left.into())) };
            (ended(outcome, false, error, read), rest)
        }
        // The provider itself ended a stream with an error: what it told so far is all that is known.
        None if read.error.is_some() => {
            let error = read.error.clone();
            let rest = if left.is_empty() { Rest::End(sender) } else { Rest::Piece(sender, Ok(left.into())) };
            let is_unknown = !read.is_told;
            (ended(CallOutcome::Failed, is_unknown, error, read), rest)
        }
        None => {
            let error = "the answer does not say what it used".to_string();
            let rest = if left.is_empty() { Rest::End(sender) } else { Rest::Piece(sender, Ok(left.into())) };
            (ended(outcome, true, Some(error), read), rest)
        }
        Some(Broken::GaveUp) => {
            let error = "the agent did not wait for the answer, and its usage never came".to_string();
            let is_unknown = !read.is_complete;
            (ended(CallOutcome::Aborted, is_unknown, Some(error), read), Rest::Nothing)
        }
        Some(Broken::By(failure)) => {
            let error = format!("the provider's answer broke off: {}", coffer_core::chain(&failure));
            let is_unknown = !read.is_complete;
            let rest = Rest::Piece(sender, Err(std::io::ErrorKind::ConnectionAborted.into()));
            (ended(CallOutcome::Broken, is_unknown, Some(error), read), rest)
        }
    }
}

/// Why an answer has no end.
enum Broken {
    By(Failure),
    GaveUp,
}

/// The next piece of an answer that nobody waits for; `None` if it takes too long.
async fn drain(
    pieces: &mut Pieces,
    deadline: Instant,
    grant: &Grant,
) -> Option<Result<Option<Bytes>, Failure>> {
    let over = async {
        tokio::select! {
            () = tokio::time::sleep_until(deadline.into()) => {}
            () = async {
                grant.closing.cancelled().await;
                tokio::time::sleep(DRAIN_AT_END).await;
            } => {}
        }
    };
    tokio::select! {
        next = pieces.next(DRAIN) => Some(next),
        () = over => None,
    }
}

async fn settle(
    models: &Models,
    grant: &Grant,
    order: &Order,
    ended: Ended,
    request: Option<String>,
    began: Instant,
) {
    let (Some(taken), Some(asked)) = (order.reserved, &order.asked) else { return };
    let Ended { outcome, status, read, is_unknown, first_byte_ms, error, answer, other, tries } = ended;
    let provider = order.call.provider;
    let used = read.used;
    // By the model that answered, if it has a price.
    let answered = read.model.as_deref().filter(|model| models.prices.of(model).is_some());
    let sent = other.as_deref().unwrap_or(&asked.model);
    let model = answered.unwrap_or(sent);
    let priced = models.prices.of(sent).is_some() || answered.is_some();
    let is_fast = asked.is_fast;
    let cost_nanos = match (priced, is_unknown) {
        (true, true) => Some(taken.nanos),
        (true, false) => models.prices.cost(provider, model, &used, is_fast),
        (false, _) if used == Used::default() && !is_unknown => Some(0),
        (false, _) => None,
    };
    models.telemetry.metrics.model_called(&ModelCalled {
        provider: provider.as_str(),
        model: models.label_of(sent),
        agent: grant.row.preset.as_str(),
        outcome: outcome.as_str(),
        input: used.all_input().saturating_sub(used.cached),
        cached: used.cached,
        output: used.output,
        cost: cost_nanos.unwrap_or(0) as f64 / 1e9,
        currency: &models.currency,
        took: began.elapsed(),
    });
    let bodies = request.map(|request| ModelBodies { request, answer });
    let settled = Settled {
        outcome,
        status,
        used,
        cost_nanos,
        is_estimated: is_unknown,
        answered_by: read.model.or(other),
        first_byte_ms,
        error,
        bodies,
        tries,
    };
    let project = grant.row.project;
    let mut pause = Duration::from_millis(200);
    loop {
        match models.store.settle_call(&models.store.operator(), project, taken.call, settled.clone()).await {
            Ok(()) | Err(coffer_store::StoreError::Closed) => return,
            Err(error) if pause < Duration::from_secs(30) => {
                tracing::warn!("could not settle call {} of a model, trying again: {error}", taken.call);
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            Err(error) => {
                tracing::error!("could not settle call {} of a model: {error}", taken.call);
                return;
            }
        }
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MOST_KEPT)].to_string()
}
