//! `goose run --output-format stream-json`.

use serde_json::Value;

use crate::agent::report::Tokens;
use crate::agent::transcript::{Ended, Scribe, count, items, name};

/// What begins an error that is told as a message; goose exits with 0 after it.
const MARK: &str = "Ran into this error:";
const ADVICE: &str = "Please retry if you think this is a transient or recoverable error.";

pub(super) fn read(value: &Value, scribe: &mut Scribe) {
    match value["type"].as_str() {
        Some("message") => {
            let message = &value["message"];
            if let Some(model) = name(&message["metadata"]["inference"]["requestedModel"]) {
                scribe.report.model = Some(model);
            }
            for part in items(&message["content"]) {
                read_part(part, message["role"] == "assistant", scribe);
            }
        }
        Some("notification") if value["message"].is_string() => {
            scribe.line(value["message"].as_str().unwrap_or_default());
        }
        Some("error") => scribe.complained(&words(value["error"].as_str().unwrap_or_default())),
        Some("complete") => {
            let (input, output) = (count(&value["input_tokens"]), count(&value["output_tokens"]));
            let known = input.saturating_add(output);
            // Older versions report only the sum; most of it is input.
            let input = if known == 0 { count(&value["total_tokens"]) } else { input };
            let cached = count(&value["cache_read_input_tokens"]).min(input);
            scribe.used(Tokens { input, cached, output });
            scribe.cost(value["cost_usd"].as_f64().or_else(|| value["cost"].as_f64()), false);
        }
        _ => {}
    }
}

fn words(text: &str) -> String {
    let text = text.trim().strip_prefix(MARK).unwrap_or(text).trim();
    text.strip_suffix(ADVICE).unwrap_or(text).trim().to_string()
}

fn read_part(part: &Value, is_agents: bool, scribe: &mut Scribe) {
    match part["type"].as_str() {
        Some("text") if is_agents => {
            let text = part["text"].as_str().unwrap_or_default();
            // It writes its text in pieces, each a message.
            if text.trim_start().starts_with(MARK) {
                scribe.complained(&words(text))
            } else {
                scribe.said_on(text)
            }
        }
        Some("error") => scribe.complained(&words(part["message"].as_str().unwrap_or_default())),
        Some("thinking" | "reasoning") => {
            let text = part["thinking"].as_str().or_else(|| part["text"].as_str());
            scribe.thought(text.unwrap_or_default());
        }
        Some("toolRequest") => {
            let call = &part["toolCall"]["value"];
            scribe.call(&part["id"], call["name"].as_str().unwrap_or_default(), &call["arguments"]);
        }
        Some("toolResponse") => {
            let result = &part["toolResult"];
            let value = &result["value"];
            // Of older versions the value is the list itself.
            let parts = if value.is_array() { items(value) } else { items(&value["content"]) };
            let parts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            let failed = result["status"] == "error" || value["isError"] == Value::Bool(true);
            let text = result["error"].as_str().map_or_else(|| parts.join("\n"), String::from);
            let exit_code = value["structuredContent"]["exit_code"].as_i64();
            scribe.ended(&part["id"], &Ended { failed, text: &text, exit_code, diff: None });
        }
        _ => {}
    }
}
