//! `stream-json` as Claude Code writes it; Cursor, Amp and Qwen Code write much the same.

use serde_json::Value;

use super::error::{is_quoted, message, readable};
use crate::agent::report::Tokens;
use crate::agent::transcript::{Ended, Scribe, Todo, TodoState, count, cut, items, name};

const MOST_TASKS: usize = 100;
/// Lines of a patch that are looked at.
const MOST_LINES: usize = 400;

/// What lines remember for later ones.
#[derive(Debug, Default)]
pub(super) struct Claude {
    /// The message whose tokens were counted last: several lines are about the same one.
    counted: Option<String>,
    /// The list that `TaskCreate` and `TaskUpdate` keep, by id.
    tasks: Vec<(String, Todo)>,
}

impl Claude {
    pub(super) fn read(&mut self, value: &Value, scribe: &mut Scribe) {
        scribe.subagent = value["parent_tool_use_id"].is_string();
        match value["type"].as_str() {
            Some("system") => system(value, scribe),
            Some("assistant") => self.assistant(value, scribe),
            Some("user") => self.results(value, scribe),
            Some("tool_call") => cursor(value, scribe),
            Some("rate_limit_event") if value["rate_limit_info"]["status"] == "rejected" => {
                scribe.retries("the account's rate limit is reached", None, None, None);
            }
            Some("result") => result(value, scribe),
            _ => {}
        }
    }

    fn assistant(&mut self, value: &Value, scribe: &mut Scribe) {
        let message = &value["message"];
        for part in items(&message["content"]) {
            match part["type"].as_str() {
                Some("text") => {
                    let text = part["text"].as_str().unwrap_or_default();
                    // Errors of its model come as its own words, from Claude Code with a mark.
                    if value["error"].is_string() || is_quoted(text) {
                        scribe.complained(&readable(text));
                    } else {
                        scribe.said(text);
                    }
                }
                Some("thinking") => scribe.thought(part["thinking"].as_str().unwrap_or_default()),
                Some("tool_use") => {
                    let tool = part["name"].as_str().unwrap_or_default();
                    scribe.call(&part["id"], tool, &part["input"]);
                    if tool == "TaskUpdate" {
                        self.update(&part["input"], scribe);
                    }
                }
                _ => {}
            }
        }
        let id = name(&message["id"]);
        if id.is_none() || id != self.counted {
            self.counted = id;
            scribe.used(tokens(&message["usage"]));
        }
    }

    fn results(&mut self, value: &Value, scribe: &mut Scribe) {
        let told = &value["tool_use_result"];
        for part in items(&value["message"]["content"]).iter().filter(|part| part["type"] == "tool_result") {
            let text = content(&part["content"]);
            let failed = part["is_error"] == Value::Bool(true);
            let code =
                text.strip_prefix("Exit code ").and_then(|rest| rest.lines().next()?.trim().parse().ok());
            let code = code.or_else(|| (told["stdout"].is_string() && !failed).then_some(0));
            let shown = match text.split_once('\n') {
                Some((first, rest)) if code.is_some() && first.starts_with("Exit code ") => rest,
                None if text.starts_with("Exit code ") => "",
                _ => &*text,
            };
            let diff = patch(&told["structuredPatch"]);
            scribe.ended(&part["tool_use_id"], &Ended { failed, text: shown, exit_code: code, diff });
        }
        let made = &told["task"];
        if let (Some(id), Some(subject)) = (name(&made["id"]), made["subject"].as_str())
            && self.tasks.len() < MOST_TASKS
            && self.tasks.iter().all(|(known, _)| *known != id)
        {
            self.tasks.push((id, Todo { text: cut(subject, 500), state: TodoState::Pending }));
            self.tell_tasks(scribe);
        }
    }

    fn update(&mut self, input: &Value, scribe: &mut Scribe) {
        let Some(id) = name(&input["taskId"]) else { return };
        let Some((_, task)) = self.tasks.iter_mut().find(|(known, _)| *known == id) else { return };
        task.state = match input["status"].as_str() {
            Some("completed") => TodoState::Done,
            Some("in_progress") => TodoState::InProgress,
            Some("pending") => TodoState::Pending,
            Some("deleted" | "cancelled") => TodoState::Cancelled,
            _ => return,
        };
        self.tell_tasks(scribe);
    }

    fn tell_tasks(&self, scribe: &mut Scribe) {
        scribe.todos(self.tasks.iter().map(|(_, task)| task.clone()).collect());
    }
}

fn system(value: &Value, scribe: &mut Scribe) {
    match value["subtype"].as_str() {
        // A background subagent that ends begins another round of the same session.
        Some("init")
            if scribe.report().session.is_none() || name(&value["session_id"]) != scribe.report().session =>
        {
            scribe.started(&value["session_id"], &value["model"]);
        }
        Some("api_retry") => {
            let why = value["error"].as_str().filter(|why| *why != "unknown").unwrap_or("no answer");
            let why = match value["error_status"].as_u64() {
                Some(status) => format!("{why} ({status})"),
                None => why.to_string(),
            };
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is within bounds"
            )]
            let wait = value["retry_delay_ms"].as_f64().map(|wait| wait.clamp(0.0, 1e12) as u64);
            scribe.retries(&why, value["attempt"].as_u64(), value["max_retries"].as_u64(), wait);
        }
        _ => {}
    }
}

/// Cursor's form of tools: an object with one member, which is the tool.
fn cursor(value: &Value, scribe: &mut Scribe) {
    let Some((tool, call)) = value["tool_call"].as_object().and_then(|call| call.iter().next()) else {
        return;
    };
    match value["subtype"].as_str() {
        Some("started") => scribe.call(&value["call_id"], tool, &call["args"]),
        Some("completed") => {
            let done = &call["result"]["success"];
            let failed = !done.is_object();
            let text = done["stdout"].as_str().or_else(|| done["content"].as_str());
            let text = text.or_else(|| call["result"]["error"]["message"].as_str()).unwrap_or_default();
            let exit_code = done["exitCode"].as_i64();
            scribe.ended(&value["call_id"], &Ended { failed, text, exit_code, diff: None });
        }
        _ => {}
    }
}

fn result(value: &Value, scribe: &mut Scribe) {
    // All models of the session so far, subagents included; `usage` is the main loop since the last result.
    let models: Vec<Tokens> = value["modelUsage"]
        .as_object()
        .into_iter()
        .flat_map(|models| models.values())
        .map(by_model)
        .collect();
    let mut total = Tokens::default();
    models.into_iter().for_each(|tokens| total.add(tokens));
    if value["usage"]["total_tokens"].is_u64() {
        // Qwen Code counts the whole session.
        scribe.used_in_session(tokens(&value["usage"]));
    } else {
        scribe.used_in_all(if total.is_none() { tokens(&value["usage"]) } else { total });
    }
    scribe.cost(value["total_cost_usd"].as_f64(), false);
    let text = value["result"].as_str().filter(|text| !text.trim().is_empty());
    if value["is_error"] == Value::Bool(true) || text.is_some_and(is_quoted) {
        // The subtype of a failure says the least.
        let why = text.map(readable).or_else(|| message(&value["error"]));
        let why = why.or_else(|| items(&value["errors"]).iter().find_map(message));
        let why = why.or_else(|| name(&value["subtype"])).unwrap_or_default();
        scribe.complained(&why);
    } else {
        scribe.succeeded();
        if let Some(text) = text {
            scribe.report.summary = Some(cut(text, 16 * 1024));
        }
    }
}

fn by_model(usage: &Value) -> Tokens {
    let cached = count(&usage["cacheReadInputTokens"]);
    let written = count(&usage["cacheCreationInputTokens"]);
    Tokens {
        input: count(&usage["inputTokens"]).saturating_add(cached).saturating_add(written),
        cached,
        output: count(&usage["outputTokens"]),
    }
}

fn tokens(usage: &Value) -> Tokens {
    let (input, output) = (count(&usage["input_tokens"]), count(&usage["output_tokens"]));
    let cached = count(&usage["cache_read_input_tokens"]);
    // Qwen Code tells a total, and its input has the cached ones in it already.
    if usage["total_tokens"].is_u64() {
        return Tokens { input, cached: cached.min(input), output };
    }
    let written = count(&usage["cache_creation_input_tokens"]);
    Tokens { input: input.saturating_add(cached).saturating_add(written), cached, output }
}

/// The text of a tool's result, which may be in parts.
fn content(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => {
            let parts: Vec<&str> = items(other).iter().filter_map(|part| part["text"].as_str()).collect();
            parts.join("\n")
        }
    }
}

fn patch(hunks: &Value) -> Option<String> {
    let mut diff = String::new();
    for hunk in items(hunks) {
        let number = |name: &str| count(&hunk[name]);
        diff.push_str(&format!(
            "@@ -{},{} +{},{} @@\n",
            number("oldStart"),
            number("oldLines"),
            number("newStart"),
            number("newLines")
        ));
        for line in items(&hunk["lines"]).iter().filter_map(Value::as_str).take(MOST_LINES) {
            diff.push_str(line);
            diff.push('\n');
        }
    }
    (!diff.is_empty()).then_some(diff)
}
