//! Shows an attempt at a task until it is over, and what became of it.

use std::time::Duration;

use coffer_api_types::Event;
use coffer_api_types::attempts::Attempt;
use coffer_api_types::events::EventQuery;
use coffer_api_types::tasks::Task;
use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::{BUDGET_SPENT, CHECK_FAILED, FAILED, Failure, Outcome};
use crate::{escape, printer};

const LONGEST_LINE: usize = 160;
/// The end of an attempt is written before the event of it can be read; longer than this it cannot take.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);

/// Follows the newest attempt at a task and prints its pull request. The exit code says how it ended.
pub(super) async fn until_over(context: &Context, task: &Task) -> Outcome {
    let run = task.run_id.clone().unwrap_or_default();
    let shows = context.printer.is_table();
    if shows {
        let repository = task.repository.as_deref().unwrap_or("no repository");
        printer::note(&format!("task {}: {} ({repository})", task.id, task.title));
    }
    let query = EventQuery { subject: Some(task.id.clone()), kind: Vec::new() };
    // From the beginning: the attempt may have begun before the stream.
    let mut stream = context.client.follow_events(&query, Some(0));
    let mut teller = Teller::default();
    loop {
        let message = stream.next().await?;
        let Ok(event) = serde_json::from_str::<Event>(&message.data) else { continue };
        if event.kind == "task.deleted" {
            return Err(Failure::new(format!("task {} was deleted", task.id)));
        }
        if event.payload.get("run").is_some_and(|of| of != run.as_str()) {
            continue;
        }
        if shows && let Some(line) = teller.line(&event) {
            eprintln!("{line}");
        }
        if event.kind == "run.ended" {
            break;
        }
        if let Some(waits) = waits_for_budget(&event, &task.id) {
            return Err(waits);
        }
    }
    let (task, attempt) = ended(context, &task.id, &run).await?;
    if shows {
        printer::note(&figures(&attempt));
    }
    conclude(context, &task, &attempt)
}

/// At its budget an attempt waits for a person, which can take a day: nobody waits here for that.
fn waits_for_budget(event: &Event, task: &str) -> Option<Failure> {
    let attention = event.payload.get("attention")?;
    if event.kind != "task.needs_attention" || attention.get("code")?.as_str() != Some("budget_wanted") {
        return None;
    }
    let message = escape::line(attention.get("message")?.as_str().unwrap_or_default()).to_string();
    let hint = format!("`coffer task answer {task} --raise AMOUNT`, or `--finish`, or `--stop`");
    Some(Failure::new(message).exit(BUDGET_SPENT).hint(hint))
}

/// The task and the attempt as they are at its end.
async fn ended(context: &Context, task: &str, run: &str) -> Result<(Task, Attempt), Failure> {
    let look = async {
        loop {
            let attempts = context.client.attempts(task).await?;
            let over =
                attempts.into_iter().find(|attempt| attempt.run_id == run && attempt.ended_at.is_some());
            if let Some(over) = over {
                return Ok::<_, Failure>((context.client.task(task).await?, over));
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let late = |_| Failure::new(format!("the end of run {run} is not on record"));
    tokio::time::timeout(PATIENCE, look).await.map_err(late)?
}

fn conclude(context: &Context, task: &Task, attempt: &Attempt) -> Outcome {
    if let (Some(url), "done") = (&attempt.pull_url, attempt.state.as_str()) {
        print_result(context, task, url)?;
        return Ok(0);
    }
    if !context.printer.is_table() {
        context.printer.show(&json!({"task": task, "attempt": attempt, "pull_url": null}))?;
    }
    let (code, why) = match &attempt.error {
        Some(error) => (error.code.as_str(), error.message.clone()),
        None => (attempt.state.as_str(), format!("the attempt was {}", attempt.state)),
    };
    let exit = match code {
        "check_failed" => CHECK_FAILED,
        "budget_exceeded" => BUDGET_SPENT,
        _ => FAILED,
    };
    let id = &task.id;
    Err(Failure::new(format!("{code}: {why}"))
        .hint(format!(
            "`coffer task show {id}`; `coffer task say {id} --start` tells the agent what to do instead"
        ))
        .exit(exit))
}

/// The pull request on stdout, and for one of the server's own how to go on.
pub(super) fn print_result(context: &Context, task: &Task, url: &str) -> Result<(), Failure> {
    let is_own = url.starts_with('/');
    let url = if is_own { format!("{}{url}", context.client.url()) } else { url.to_string() };
    if !context.printer.is_table() {
        return context.printer.show(&json!({"task": task, "pull_url": url}));
    }
    printer::print(&format!("{}\n", escape::line(&url)));
    if is_own {
        let id = &task.id;
        printer::note(&format!(
            "hint: `coffer task diff {id}`, `coffer task checkout {id}`, `coffer task merge {id}`"
        ));
    }
    Ok(())
}

fn figures(attempt: &Attempt) -> String {
    let tokens = match (attempt.input_tokens, attempt.output_tokens) {
        (None, None) => String::new(),
        (input, output) => format!(", {} tokens in and {} out", input.unwrap_or(0), output.unwrap_or(0)),
    };
    let cost = attempt.agent_cost.map(|cost| format!(", cost {cost:.4}")).unwrap_or_default();
    format!("attempt {}: {}{tokens}{cost}", attempt.number, attempt.state)
}

/// Turns events into lines, without telling anything twice.
#[derive(Debug, Default)]
struct Teller {
    said: String,
    used: String,
}

impl Teller {
    fn line(&mut self, event: &Event) -> Option<String> {
        let text = |name: &str| event.payload.get(name).and_then(Value::as_str);
        match event.kind.as_str() {
            "run.queued" => Some(row("queue", "waiting for a place")),
            "run.step_finished" => {
                let step = text("step")?;
                // What people want to know of these are other lines.
                let is_quiet = ["prepare", "hear-", "finish"].iter().any(|quiet| step.starts_with(quiet));
                let seconds = event.payload.get("duration_ms").and_then(Value::as_i64).unwrap_or(0).max(0);
                (!is_quiet).then(|| row(step, &format!("done, {:.1} s", seconds_of(seconds))))
            }
            "run.step_failed" => {
                let message = event.payload.get("error").and_then(|error| error.get("message"));
                let message = message.or_else(|| event.payload.get("message")).and_then(Value::as_str);
                Some(row(text("step")?, &format!("failed: {}", message.unwrap_or("no reason is on record"))))
            }
            "task.progress" => {
                let doing = event.payload.get("doing").filter(|doing| !doing.is_null())?;
                let part = |name: &str| doing.get(name).and_then(Value::as_str).unwrap_or_default();
                let used = format!("{} {}", part("tool"), part("about")).trim().to_string();
                let mut lines = Vec::new();
                if !part("message").is_empty() && part("message") != self.said {
                    self.said = part("message").to_string();
                    lines.push(row("agent", &self.said));
                }
                if !used.is_empty() && used != self.used {
                    self.used = used;
                    lines.push(row("agent", &format!("[{}]", self.used)));
                }
                (!lines.is_empty()).then(|| lines.join("\n"))
            }
            "task.message" => Some(row("said", &format!("{}: {}", text("author")?, text("body")?))),
            "run.cancelling" => Some(row("cancel", text("reason").unwrap_or_default())),
            _ => None,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn seconds_of(ms: i64) -> f64 {
    ms as f64 / 1000.0
}

/// One line for people, of text that others wrote.
fn row(what: &str, text: &str) -> String {
    let text = escape::line(text.trim());
    let cut: String = text.chars().take(LONGEST_LINE).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("  {:<8}  {cut}{more}", escape::line(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, payload: Value) -> Event {
        serde_json::from_value(json!({
            "sequence": 1, "kind": kind, "subject": "t", "payload": payload, "at": "2026-01-01T00:00:00.000Z"
        }))
        .unwrap()
    }

    #[test]
    fn what_an_agent_does_is_told_once_and_harmless() {
        let mut teller = Teller::default();
        let doing = json!({"doing": {"message": "a\u{1b}[2Jb", "tool": "Bash", "about": "make"}});
        let told = teller.line(&event("task.progress", doing.clone())).unwrap();
        assert_eq!(told, "  agent     a\\u{1b}[2Jb\n  agent     [Bash make]");
        assert_eq!(teller.line(&event("task.progress", doing)), None);
        assert_eq!(teller.line(&event("task.progress", json!({"commit": "c"}))), None);
        let step = json!({"step": "clone", "duration_ms": 1500});
        assert_eq!(teller.line(&event("run.step_finished", step)).unwrap(), "  clone     done, 1.5 s");
        assert_eq!(
            teller.line(&event("run.step_finished", json!({"step": "hear-1", "duration_ms": 1}))),
            None
        );
    }

    #[test]
    fn a_long_line_is_cut() {
        assert!(row("agent", &"x".repeat(1000)).ends_with("x…"));
    }
}
