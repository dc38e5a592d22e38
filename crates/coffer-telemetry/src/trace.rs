//! Spans for OpenTelemetry.
//!
//! A request is its own trace, or part of its client's (`traceparent`). A sandbox is a trace too, with ids
//! derived from the sandbox's: its whole life is the root span, and create, pause, resume, end and each
//! execution are below it, with a link to the request that caused them. So a sandbox's trace stays one over
//! restarts of the server, and over all its clients.

use std::future::Future;
use std::sync::Arc;

use coffer_core::{AgentId, Millis, ProjectId, SandboxId};
use prometheus_client::metrics::counter::Counter;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Metrics;
use super::export::{Destination, export};
use super::metrics::label;
use super::otlp::{KeyValue, Link, Span, SpanKind, Status, StatusCode, Value};
use coffer_core::clock::now_ms;

/// Most spans that wait for one destination; further ones are dropped and counted.
const MOST_WAITING: usize = 4096;
const LONGEST_TEXT: usize = 1024;

/// The identity of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    trace: [u8; 16],
    span: [u8; 8],
}

tokio::task_local! {
    static CURRENT: SpanContext;
}

/// The span of this task.
pub fn current() -> Option<SpanContext> {
    CURRENT.try_with(|context| *context).ok()
}

/// Runs `work` in this span.
pub async fn within<F: Future>(context: Option<SpanContext>, work: F) -> F::Output {
    match context {
        Some(context) => CURRENT.scope(context, work).await,
        None => work.await,
    }
}

/// Parses the W3C header `traceparent`.
pub fn parse_traceparent(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, length| {
        text.len() == length
            && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    if !is_hex(version, 2) || version == "ff" || !is_hex(flags, 2) || !is_hex(trace, 32) || !is_hex(span, 16)
    {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?.to_be_bytes();
    let span = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?.to_be_bytes();
    Some(SpanContext { trace, span })
}

/// Collects spans for the exporters. Without a destination it does nothing.
#[derive(Debug, Clone)]
pub struct Traces {
    sinks: Arc<[Sink]>,
}

#[derive(Debug)]
struct Sink {
    queue: mpsc::Sender<Span>,
    dropped: Counter,
}

impl Traces {
    pub(super) fn start(
        destinations: Vec<Destination>,
        metrics: &Metrics,
        exporters: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let sinks = destinations.into_iter().map(|destination| {
            let (queue, inbox) = mpsc::channel(MOST_WAITING);
            let count = |outcome| {
                let labels = label([("destination", destination.name), ("outcome", outcome)]);
                metrics.spans.get_or_create_owned(&labels)
            };
            let (sent, dropped) = (count("sent"), count("dropped"));
            exporters.spawn(export(destination, inbox, sent, dropped.clone(), stop.clone()));
            Sink { queue, dropped }
        });
        Self { sinks: sinks.collect() }
    }

    pub fn are_on(&self) -> bool {
        !self.sinks.is_empty()
    }

    /// Starts the span of a request, as a child of its client's span if it has one.
    pub fn request(&self, name: impl FnOnce() -> String, parent: Option<SpanContext>) -> Active {
        if !self.are_on() {
            return Active(None);
        }
        let own = SpanContext {
            trace: parent.map_or_else(rand::random, |parent| parent.trace),
            span: rand::random(),
        };
        self.begin(name(), own, parent, SpanKind::Server)
    }

    /// Starts the span of an operation on a sandbox.
    pub fn step(&self, name: &'static str, sandbox: &Whose) -> Active {
        if !self.are_on() {
            return Active(None);
        }
        let root = root(sandbox.id);
        let own = SpanContext { span: rand::random(), ..root };
        let mut step = self.begin(name.to_string(), own, Some(root), SpanKind::Internal);
        if let Some(open) = &mut step.0 {
            open.span.links.extend(
                current().map(|asked| Link { trace_id: asked.trace.to_vec(), span_id: asked.span.to_vec() }),
            );
        }
        step.belongs(sandbox);
        step
    }

    /// The span of a sandbox's whole life, which is over now.
    pub fn life(&self, sandbox: &Whose, began_ms: Millis) -> Active {
        if !self.are_on() {
            return Active(None);
        }
        let mut life = self.begin("sandbox".into(), root(sandbox.id), None, SpanKind::Internal);
        life.began(began_ms);
        life.belongs(sandbox);
        life.set("langfuse.trace.name", || format!("sandbox {}", sandbox.id).into());
        life
    }

    /// A span of something that is on record: `ids` names it, and always gives the same span.
    pub fn recorded(&self, ids: RecordedIds<'_>, name: String, began_ms: Millis, ended_ms: Millis) -> Active {
        if !self.are_on() {
            return Active(None);
        }
        let root = derived(ids.trace);
        let own = ids.span.map_or(root, |span| SpanContext { span: derived(span).span, ..root });
        let parent = ids.span.map(|_| match ids.parent {
            Some(parent) => SpanContext { span: derived(parent).span, ..root },
            None => root,
        });
        let mut span = self.begin(name, own, parent, SpanKind::Internal);
        if let Some(open) = &mut span.0 {
            open.span.start_time_unix_nano = nanos(began_ms);
            let took = u64::try_from(ended_ms.saturating_sub(began_ms)).unwrap_or(0);
            open.took = Some(std::time::Duration::from_millis(took));
        }
        span
    }

    fn begin(&self, name: String, own: SpanContext, parent: Option<SpanContext>, kind: SpanKind) -> Active {
        let span = Span {
            trace_id: own.trace.to_vec(),
            span_id: own.span.to_vec(),
            parent_span_id: parent.map(|parent| parent.span.to_vec()).unwrap_or_default(),
            name,
            kind: kind.into(),
            start_time_unix_nano: nanos(now_ms()),
            ..Span::default()
        };
        Active(Some(Box::new(Open {
            span,
            context: own,
            began: std::time::Instant::now(),
            took: None,
            sinks: self.sinks.clone(),
        })))
    }
}

/// The sandbox that a span is about.
#[derive(Debug, Clone, Copy)]
pub struct Whose {
    pub id: SandboxId,
    pub project: ProjectId,
    pub agent: Option<AgentId>,
}

/// What the ids of a span are made of.
#[derive(Debug, Clone, Copy)]
pub struct RecordedIds<'a> {
    pub trace: &'a str,
    /// `None` for the root.
    pub span: Option<&'a str>,
    /// `None` for the root as parent.
    pub parent: Option<&'a str>,
}

/// The root of a sandbox's trace; always the same.
fn root(sandbox: SandboxId) -> SpanContext {
    derived(&sandbox.to_string())
}

/// The ids that a name gives; always the same.
fn derived(name: &str) -> SpanContext {
    let digest = Sha256::digest(name);
    let mut context = SpanContext { trace: [0; 16], span: [0; 8] };
    context.trace.copy_from_slice(&digest[..16]);
    context.span.copy_from_slice(&digest[16..24]);
    context
}

fn nanos(ms: Millis) -> u64 {
    u64::try_from(ms).unwrap_or(0).saturating_mul(1_000_000)
}

/// A started span; it ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Active(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    span: Span,
    context: SpanContext,
    began: std::time::Instant,
    /// The duration, if it is measured elsewhere.
    took: Option<std::time::Duration>,
    sinks: Arc<[Sink]>,
}

impl Active {
    /// The context for tasks that run [`within`] this span.
    pub fn context(&self) -> Option<SpanContext> {
        self.0.as_ref().map(|open| open.context)
    }

    /// Adds an attribute; its value is computed only if spans are on. Never a secret, never a command's
    /// output.
    pub fn set(&mut self, key: &str, value: impl FnOnce() -> Value) {
        if let Some(open) = &mut self.0 {
            let mut value = value();
            if let Value::Text(text) = &mut value {
                text.truncate(text.floor_char_boundary(LONGEST_TEXT));
            }
            open.span.attributes.push(KeyValue::new(key, value));
        }
    }

    pub fn belongs(&mut self, sandbox: &Whose) {
        self.set("sandbox.id", || sandbox.id.to_string().into());
        self.set("session.id", || sandbox.id.to_string().into());
        self.set("project.id", || sandbox.project.to_string().into());
        if let Some(agent) = sandbox.agent {
            self.set("agent.id", || agent.to_string().into());
            self.set("user.id", || agent.to_string().into());
        }
    }

    /// Sets an earlier start.
    pub fn began(&mut self, at_ms: Millis) {
        if let Some(open) = &mut self.0 {
            open.span.start_time_unix_nano = nanos(at_ms);
            let ago = now_ms().saturating_sub(at_ms);
            let ago = std::time::Duration::from_millis(u64::try_from(ago).unwrap_or(0));
            open.began = open.began.checked_sub(ago).unwrap_or(open.began);
        }
    }

    /// Ends the span with this duration.
    pub fn ended_after(mut self, took: std::time::Duration) {
        if let Some(open) = &mut self.0 {
            open.took = Some(took);
        }
    }

    /// Marks the span as failed.
    pub fn fail(&mut self, why: impl FnOnce() -> String) {
        if let Some(open) = &mut self.0 {
            let mut message = why();
            message.truncate(message.floor_char_boundary(LONGEST_TEXT));
            open.span.status = Some(Status { message, code: StatusCode::Error.into() });
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // By the monotonic clock, so that no span ends before it began.
        let took = self.took.unwrap_or_else(|| self.began.elapsed());
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.span.end_time_unix_nano = self.span.start_time_unix_nano.saturating_add(took);
        let span = std::mem::take(&mut self.span);
        let Some((last, others)) = self.sinks.split_last() else { return };
        for sink in others {
            sink.leave(span.clone());
        }
        last.leave(span);
    }
}

impl Sink {
    fn leave(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_and_nonsense_is_none() {
        let read = parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert_eq!((read.trace[0], read.span[7]), (0x0a, 0x31));
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(parse_traceparent(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_sandbox_has_one_trace_for_ever() {
        let (one, other) = (SandboxId::generate(), SandboxId::generate());
        assert_eq!(root(one), root(one));
        assert_ne!(root(one).trace, root(other).trace);
    }

    #[test]
    fn without_a_destination_nothing_is_made() {
        let off = Traces { sinks: Arc::new([]) };
        let mut span = off.request(|| unreachable!("nobody asks for the name"), None);
        span.set("key", || unreachable!("nobody asks for the value"));
        assert_eq!(span.context(), None);
    }
}
