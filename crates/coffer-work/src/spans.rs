//! An attempt as one trace: its steps, the turns of its agent, the calls of tools and models.
//!
//! Put together from the records when the run has ended, with ids that its records give. So a run that several servers
//! worked on is one trace, and a trace that is sent twice is the same one. Attributes are those of OpenTelemetry's conventions for
//! generative AI; commands, texts and results are not among them.

use coffer_core::agent::transcript::{CallState, EntryBody};
use coffer_core::{Millis, RunId, TaskId};
use coffer_store::{
    ModelCallFilter, ModelCallRow, RunRow, StepRow, StepState, Store, StoreError, TranscriptEntry,
    TranscriptFilter, TranscriptOf,
};
use coffer_telemetry::{RecordedIds, Telemetry, Traces, Value};

/// Most calls of models, and of tools, in a trace: the last ones.
const MOST_CALLS: u32 = 1000;

/// Sends the trace of a run.
pub(crate) async fn tell(store: &Store, telemetry: &Telemetry, run: RunId) {
    match read(store, run).await {
        Ok(Some(story)) => send(&telemetry.traces, &story),
        Ok(None) => {}
        Err(error) => tracing::warn!(run.id = %run, "could not put together the trace of run {run}: {error}"),
    }
}

/// The records of a run.
struct Story {
    run: RunRow,
    task: Option<TaskId>,
    steps: Vec<StepRow>,
    calls: Vec<ModelCallRow>,
    entries: Vec<TranscriptEntry>,
}

async fn read(store: &Store, id: RunId) -> Result<Option<Story>, StoreError> {
    let operator = store.operator();
    let Some(run) = store.run(&operator, id).await? else { return Ok(None) };
    let scope = operator.acting_for(run.project, None);
    let steps = store.run_steps(&operator, id).await?;
    let filter = ModelCallFilter { run: Some(id), limit: MOST_CALLS, ..ModelCallFilter::default() };
    let calls = store.model_calls(&scope, &filter).await?;
    let task: Option<TaskId> = run.input["task"].as_str().and_then(|task| task.parse().ok());
    let mut entries = Vec::new();
    if let Some(task) = task {
        let of = TranscriptOf::Task(task);
        entries = store.transcript_end(&scope, of, TranscriptFilter::default(), MOST_CALLS).await?;
        entries.retain(|entry| entry.run == id);
    }
    Ok(Some(Story { run, task, steps, calls, entries }))
}

/// A span before it is sent.
#[derive(Debug, PartialEq)]
struct Told {
    /// `None` for the root.
    id: Option<String>,
    parent: Option<String>,
    name: String,
    began_ms: Millis,
    ended_ms: Millis,
    attributes: Vec<(&'static str, Value)>,
    error: Option<String>,
}

fn send(traces: &Traces, story: &Story) {
    let trace = format!("run/{}", story.run.id);
    let (run, project) = (story.run.id.to_string(), story.run.project.to_string());
    for told in spans(story) {
        let ids = RecordedIds { trace: &trace, span: told.id.as_deref(), parent: told.parent.as_deref() };
        let mut span = traces.recorded(ids, told.name, told.began_ms, told.ended_ms);
        span.set("run.id", || run.as_str().into());
        span.set("project.id", || project.as_str().into());
        if let Some(task) = story.task {
            // Attempts at one task are one session.
            span.set("task.id", || task.to_string().into());
            span.set("session.id", || task.to_string().into());
        }
        for (key, value) in told.attributes {
            span.set(key, || value);
        }
        if let Some(why) = told.error {
            span.fail(|| why);
        }
    }
}

fn spans(story: &Story) -> Vec<Told> {
    let Story { run, steps, calls, entries, .. } = story;
    let began_ms = run.started_ms.unwrap_or(run.created_ms);
    let ended_ms = run.ended_ms.unwrap_or(began_ms).max(began_ms);
    let name = match (story.task, run.kind.as_str()) {
        (Some(task), "task") => format!("task {task}"),
        (_, kind) => format!("{kind} {}", run.id),
    };
    let mut all = vec![Told {
        id: None,
        parent: None,
        name: format!("run {}", run.kind),
        began_ms,
        ended_ms,
        attributes: vec![
            ("langfuse.trace.name", name.into()),
            ("langfuse.observation.type", "span".into()),
            ("run.state", run.state.as_str().into()),
        ],
        error: run.failure.as_ref().map(|failure| failure.message.clone()),
    }];
    all.extend(steps.iter().map(|step| step_span(step, ended_ms)));
    let turn_of = |at_ms: Millis| {
        let turn = steps.iter().filter(|step| is_turn(&step.name) && step.started_ms <= at_ms);
        turn.max_by_key(|step| step.started_ms).map(|step| step_id(&step.name))
    };
    all.extend(calls.iter().rev().map(|call| call_span(call, turn_of(call.began_ms))));
    all.extend(entries.iter().filter_map(|entry| tool_span(entry, turn_of(entry.at_ms))));
    all
}

fn is_turn(step: &str) -> bool {
    step.starts_with("agent")
}

fn step_id(name: &str) -> String {
    format!("step/{name}")
}

fn step_span(step: &StepRow, run_ended_ms: Millis) -> Told {
    let mut attributes =
        vec![("run.step", step.name.as_str().into()), ("run.step.starts", step.starts.into())];
    if is_turn(&step.name) {
        attributes.push(("gen_ai.operation.name", "invoke_agent".into()));
        attributes.push(("langfuse.observation.type", "agent".into()));
    }
    let failed = matches!(step.state, StepState::Failed).then(|| step.error.as_ref()).flatten();
    Told {
        id: Some(step_id(&step.name)),
        parent: None,
        name: step.name.clone(),
        began_ms: step.started_ms,
        ended_ms: step.ended_ms.unwrap_or(run_ended_ms),
        attributes,
        error: failed.map(|failure| failure.message.clone()),
    }
}

fn call_span(call: &ModelCallRow, turn: Option<String>) -> Told {
    let provider = match call.provider.as_str() {
        "gemini" => "gcp.gemini",
        other => other,
    };
    let operation = if call.kind == "generate" { "generate_content" } else { "chat" };
    let mut attributes = vec![
        ("gen_ai.operation.name", operation.into()),
        ("gen_ai.provider.name", provider.into()),
        // Its name before OpenTelemetry changed it, which is still read.
        ("gen_ai.system", provider.into()),
        ("gen_ai.request.model", call.model.as_str().into()),
        ("gen_ai.usage.input_tokens", call.input_tokens.into()),
        ("gen_ai.usage.cache_read.input_tokens", call.cached_tokens.into()),
        ("gen_ai.usage.output_tokens", call.output_tokens.into()),
        ("langfuse.observation.type", "generation".into()),
        ("model.call.id", call.id.to_string().into()),
        ("model.call.tries", i64::try_from(call.tries.len().max(1)).unwrap_or(1).into()),
    ];
    if let Some(model) = &call.answered_by {
        attributes.push(("gen_ai.response.model", model.as_str().into()));
    }
    if let Some(nanos) = call.cost_nanos {
        attributes.push(("gen_ai.usage.cost", (nanos as f64 / 1e9).into()));
    }
    if let Some(status) = call.status {
        attributes.push(("http.response.status_code", status.into()));
    }
    let outcome = call.outcome.as_deref().unwrap_or("lost");
    Told {
        id: Some(format!("call/{}", call.id)),
        parent: turn,
        name: format!("{operation} {}", call.model),
        began_ms: call.began_ms,
        ended_ms: call.ended_ms.unwrap_or(call.began_ms),
        attributes,
        error: (outcome != "answered").then(|| call.error.clone().unwrap_or_else(|| outcome.to_string())),
    }
}

fn tool_span(entry: &TranscriptEntry, turn: Option<String>) -> Option<Told> {
    let (tool, state) = match &entry.body {
        EntryBody::Tool { name, state, .. } => (name.as_str(), *state),
        EntryBody::Command { state, .. } => ("command", *state),
        EntryBody::Edit { state, .. } => ("edit", *state),
        _ => return None,
    };
    Some(Told {
        id: Some(format!("tool/{}", entry.sequence)),
        parent: turn,
        name: format!("execute_tool {tool}"),
        began_ms: entry.at_ms,
        ended_ms: entry.updated_ms.max(entry.at_ms),
        attributes: vec![
            ("gen_ai.operation.name", "execute_tool".into()),
            ("gen_ai.tool.name", tool.into()),
            ("langfuse.observation.type", "tool".into()),
            ("transcript.sequence", entry.sequence.into()),
        ],
        error: matches!(state, CallState::Failed).then(|| "the call failed".to_string()),
    })
}

#[cfg(test)]
mod tests {
    use coffer_core::agent::transcript::Text;
    use coffer_core::model::{ModelTry, TryOutcome};
    use coffer_core::{ModelCallId, ProjectId, SandboxId};
    use coffer_store::RunState;
    use serde_json::json;

    use super::*;

    fn step(name: &str, started_ms: Millis, ended_ms: Millis) -> StepRow {
        StepRow {
            name: name.into(),
            position: 0,
            state: StepState::Done,
            starts: 1,
            failures: 0,
            output: None,
            error: None,
            started_ms,
            ended_ms: Some(ended_ms),
        }
    }

    fn story() -> Story {
        let (id, project, task) = (RunId::generate(), ProjectId::generate(), TaskId::generate());
        let tried = |outcome| ModelTry {
            place: "anthropic".into(),
            model: "large".into(),
            outcome,
            status: None,
            duration_ms: 1,
        };
        let call = ModelCallRow {
            id: ModelCallId::generate(),
            project,
            sandbox: SandboxId::generate(),
            agent: None,
            task: Some(task),
            run: Some(id),
            provider: "anthropic".into(),
            kind: "messages".into(),
            model: "large".into(),
            answered_by: Some("small".into()),
            outcome: Some("answered".into()),
            status: Some(200),
            reserved_nanos: 9,
            input_tokens: 100,
            cached_tokens: 40,
            cache_write_tokens: 0,
            output_tokens: 7,
            cost_nanos: Some(2_000_000_000),
            is_estimated: false,
            began_ms: 45,
            first_byte_ms: Some(46),
            ended_ms: Some(50),
            error: None,
            tries: vec![tried(TryOutcome::Overloaded), tried(TryOutcome::Answered)],
        };
        let text = |text: &str| Text::folded(text, 100, 100);
        let entry = |sequence, at_ms, body| TranscriptEntry {
            sequence,
            change: sequence,
            run: id,
            attempt: 1,
            turn: 1,
            subagent: false,
            body,
            at_ms,
            updated_ms: at_ms + 3,
        };
        let command = EntryBody::Command {
            command: text("cat secret.txt"),
            state: CallState::Failed,
            exit_code: Some(1),
            output: Some(text("hidden")),
        };
        Story {
            run: RunRow {
                id,
                project,
                kind: "task".into(),
                subject: task.to_string(),
                input: json!({"task": task}),
                state: RunState::Done,
                takes: 1,
                wake_ms: 0,
                cancel: None,
                unwinding: None,
                output: None,
                failure: None,
                created_ms: 5,
                started_ms: Some(10),
                ended_ms: Some(90),
            },
            task: Some(task),
            steps: vec![step("clone", 11, 20), step("agent-1", 20, 40), step("agent-2", 41, 80)],
            calls: vec![call],
            entries: vec![entry(1, 30, command), entry(2, 31, EntryBody::Message { text: text("hello") })],
        }
    }

    #[test]
    fn an_attempt_is_one_tree_whose_leaves_are_calls() {
        let story = story();
        let told = spans(&story);
        let of = |name: &str| told.iter().find(|span| span.name == name).unwrap();
        assert_eq!(told.len(), 1 + 3 + 1 + 1);
        assert!(told[0].id.is_none() && (told[0].began_ms, told[0].ended_ms) == (10, 90));
        let call = of("chat large");
        assert_eq!(call.parent.as_deref(), Some("step/agent-2"), "the turn in which it began");
        let has = |key: &str, value: Value| call.attributes.iter().any(|one| one.0 == key && one.1 == value);
        assert!(
            has("gen_ai.usage.input_tokens", 100_i64.into())
                && has("gen_ai.usage.output_tokens", 7_i64.into())
        );
        assert!(has("gen_ai.response.model", "small".into()) && has("gen_ai.usage.cost", 2.0_f64.into()));
        assert!(
            has("model.call.tries", 2_i64.into()) && has("langfuse.observation.type", "generation".into())
        );
        let tool = of("execute_tool command");
        assert_eq!((tool.parent.as_deref(), tool.error.is_some()), (Some("step/agent-1"), true));
        assert!(!format!("{told:?}").contains("secret") && !format!("{told:?}").contains("hidden"));
        // What is told again is the same.
        assert_eq!(told, spans(&story));
    }
}
