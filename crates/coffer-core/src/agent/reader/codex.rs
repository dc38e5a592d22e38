//! `codex exec --json`.

use serde_json::Value;

use super::error::{message, readable};
use crate::agent::report::Tokens;
use crate::agent::transcript::{CallState, EditKind, Ended, EntryBody, Scribe, count, cut, items};

pub(super) fn read(value: &Value, scribe: &mut Scribe) {
    match value["type"].as_str() {
        Some("thread.started") => scribe.started(&value["thread_id"], &Value::Null),
        Some("item.started") => begins(&value["item"], scribe),
        Some("item.updated") if value["item"]["type"] == "todo_list" => todos(&value["item"], scribe),
        Some("item.completed") => ends(&value["item"], scribe),
        Some("turn.completed") => {
            let usage = &value["usage"];
            scribe.used_in_session(Tokens {
                input: count(&usage["input_tokens"]),
                cached: count(&usage["cached_input_tokens"]),
                output: count(&usage["output_tokens"]),
            });
            scribe.succeeded();
        }
        Some("turn.failed") => scribe.complained(&message(&value["error"]).unwrap_or_default()),
        Some("error") => {
            let text = value["message"].as_str().unwrap_or_default();
            match text.strip_prefix("Reconnecting... ") {
                Some(retry) => retries(retry, scribe),
                None => scribe.complained(&readable(text)),
            }
        }
        _ => {}
    }
}

/// `4/5 (unexpected status 401 Unauthorized: …)`.
fn retries(text: &str, scribe: &mut Scribe) {
    let (which, why) = text.split_once(' ').unwrap_or((text, ""));
    let (attempt, of) = which.split_once('/').unwrap_or((which, ""));
    let why = why.trim().trim_start_matches('(').trim_end_matches(')');
    let why = if why.is_empty() { "no answer" } else { why };
    scribe.retries(why, attempt.parse().ok(), of.parse().ok(), None);
}

/// `/bin/bash -lc 'ls'`: the shell says nothing.
fn command(item: &Value) -> Value {
    let line = item["command"].as_str().unwrap_or_default();
    let inner =
        ["/bin/bash -lc ", "bash -lc ", "/bin/sh -c "].iter().find_map(|shell| line.strip_prefix(shell));
    let quoted = inner.and_then(|inner| inner.strip_prefix('\'')?.strip_suffix('\''));
    // A quote within is written in a way that only a shell reads.
    let plain =
        quoted.filter(|text| !text.contains('\'')).or(inner.filter(|text| !text.starts_with(['\'', '"'])));
    serde_json::json!({ "command": plain.unwrap_or(line) })
}

fn begins(item: &Value, scribe: &mut Scribe) {
    match item["type"].as_str() {
        Some("command_execution") => scribe.call(&item["id"], "shell", &command(item)),
        Some("mcp_tool_call") => {
            scribe.call(&item["id"], item["tool"].as_str().unwrap_or_default(), &item["arguments"]);
        }
        Some("web_search") => scribe.call(&item["id"], "web_search", &item["query"]),
        Some("collab_tool_call") => scribe.call(&item["id"], "subagent", &item["prompt"]),
        Some("todo_list") => todos(item, scribe),
        _ => {}
    }
}

fn ends(item: &Value, scribe: &mut Scribe) {
    let failed = item["status"] == "failed";
    match item["type"].as_str() {
        Some("agent_message") => scribe.said(item["text"].as_str().unwrap_or_default()),
        Some("reasoning") => scribe.thought(item["text"].as_str().unwrap_or_default()),
        Some("command_execution") => {
            let text = item["aggregated_output"].as_str().unwrap_or_default();
            let exit_code = item["exit_code"].as_i64();
            scribe.ended(&item["id"], &Ended { failed, text, exit_code, diff: None });
        }
        Some("mcp_tool_call") => {
            let parts: Vec<&str> =
                items(&item["result"]["content"]).iter().filter_map(|part| part["text"].as_str()).collect();
            let text = message(&item["error"]).unwrap_or_else(|| parts.join("\n"));
            scribe.ended(&item["id"], &Ended { failed, text: &text, ..Ended::default() });
        }
        Some("web_search" | "collab_tool_call") => {
            scribe.ended(&item["id"], &Ended { failed, ..Ended::default() })
        }
        Some("file_change") => changes(item, failed, scribe),
        Some("todo_list") => todos(item, scribe),
        // Not the end: the turn says whether it failed.
        Some("error") => scribe.warned(item["message"].as_str().unwrap_or_default()),
        _ => {}
    }
}

/// Each file that a patch changed; codex does not tell the lines.
fn changes(item: &Value, failed: bool, scribe: &mut Scribe) {
    scribe.report.tools = scribe.report.tools.saturating_add(1);
    scribe.report.error = None;
    for change in items(&item["changes"]).iter().take(100) {
        let edit = match change["kind"].as_str() {
            Some("add") => EditKind::Written,
            Some("delete") => EditKind::Deleted,
            _ => EditKind::Changed,
        };
        scribe.entry(EntryBody::Edit {
            path: cut(change["path"].as_str().unwrap_or_default(), 1024),
            edit,
            state: if failed { CallState::Failed } else { CallState::Done },
            diff: None,
            error: None,
        });
    }
}

fn todos(item: &Value, scribe: &mut Scribe) {
    scribe.todos(crate::agent::transcript::todos(item));
}
