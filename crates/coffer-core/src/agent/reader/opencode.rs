//! `opencode run --format json`.

use serde_json::Value;

use super::error::readable;
use crate::agent::report::Tokens;
use crate::agent::transcript::{Ended, Scribe, count};

pub(super) fn read(value: &Value, scribe: &mut Scribe) {
    let part = &value["part"];
    if value["sessionID"].is_string() && scribe.report().session.is_none() {
        scribe.started(&value["sessionID"], &Value::Null);
    }
    match value["type"].as_str() {
        Some("text") => scribe.said(part["text"].as_str().unwrap_or_default()),
        Some("reasoning") => scribe.thought(part["text"].as_str().unwrap_or_default()),
        Some("tool_use") => tool(part, scribe),
        Some("step_finish") => {
            let tokens = &part["tokens"];
            let cached = count(&tokens["cache"]["read"]);
            let written = count(&tokens["cache"]["write"]);
            scribe.used(Tokens {
                input: count(&tokens["input"]).saturating_add(cached).saturating_add(written),
                cached,
                output: count(&tokens["output"]).saturating_add(count(&tokens["reasoning"])),
            });
            scribe.cost(part["cost"].as_f64(), true);
            if part["reason"] == "stop" {
                scribe.succeeded();
            }
        }
        Some("error") => {
            let error = &value["error"];
            let text = error["data"]["message"].as_str().or_else(|| error["message"].as_str());
            let text = text.or_else(|| error["name"].as_str()).map_or_else(|| error.to_string(), readable);
            scribe.complained(&text);
        }
        _ => {}
    }
}

/// A call is told once it is over.
fn tool(part: &Value, scribe: &mut Scribe) {
    let (tool, state) = (part["tool"].as_str().unwrap_or_default(), &part["state"]);
    let text = state["output"].as_str().or_else(|| state["error"].as_str()).unwrap_or_default();
    // The header of the patch repeats the path.
    let diff = state["metadata"]["diff"].as_str().and_then(|diff| Some(diff[diff.find("@@")?..].to_string()));
    let how = Ended {
        failed: state["status"] == "error",
        text,
        exit_code: state["metadata"]["exit"].as_i64(),
        diff,
    };
    scribe.called(tool, &state["input"], &how);
}
