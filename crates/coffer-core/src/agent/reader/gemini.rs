//! `gemini --output-format stream-json`.

use serde_json::Value;

use super::error::{message, readable};
use crate::agent::report::Tokens;
use crate::agent::transcript::{Ended, Scribe, count};

pub(super) fn read(value: &Value, scribe: &mut Scribe) {
    match value["type"].as_str() {
        Some("init") => scribe.started(&value["session_id"], &value["model"]),
        Some("message") if value["role"] == "assistant" => {
            let text = value["content"].as_str().unwrap_or_default();
            // Pieces of one text come one after another.
            if value["delta"] == Value::Bool(true) { scribe.said_on(text) } else { scribe.said(text) }
        }
        Some("tool_use") => {
            let tool = value["tool_name"].as_str().unwrap_or_default();
            scribe.call(&value["tool_id"], tool, &value["parameters"]);
            scribe.report.summary = None;
        }
        Some("tool_result") => {
            let failed = value["status"] == "error";
            let told = message(&value["error"]);
            let text = value["output"].as_str().or(told.as_deref()).unwrap_or_default();
            scribe.ended(&value["tool_id"], &Ended { failed, text, ..Ended::default() });
        }
        Some("error") => {
            let text = readable(value["message"].as_str().unwrap_or_default());
            if value["severity"] == "warning" { scribe.warned(&text) } else { scribe.complained(&text) }
        }
        Some("result") => {
            let stats = &value["stats"];
            let input = count(&stats["input_tokens"]);
            // `output_tokens` lacks what the model thought.
            let rest = count(&stats["total_tokens"]).saturating_sub(input);
            scribe.used(Tokens {
                input,
                cached: count(&stats["cached"]),
                output: rest.max(count(&stats["output_tokens"])),
            });
            if value["status"] == "success" {
                scribe.succeeded();
            } else {
                scribe.complained(&message(&value["error"]).unwrap_or_default());
            }
        }
        _ => {}
    }
}
