//! Parses agents' output: progress, tokens and cost if it has them, plain text otherwise.
//!
//! The output comes from a sandbox, so it may be anything: endless lines, huge numbers, JSON of another
//! shape. Lines are bounded, unknown lines are text, and nothing is trusted beyond being shown.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::OutputFormat;

/// Longer lines are skipped.
const LONGEST_LINE: usize = 1024 * 1024;
/// Longest text of an event.
const LONGEST_TEXT: usize = 2000;
/// Longest summary.
const LONGEST_RESULT: usize = 16 * 1024;
const LONGEST_NAME: usize = 200;
/// Most tokens that an agent may report: more is nonsense.
const MOST_TOKENS: u64 = 1 << 50;
const MOST_DOLLARS: f64 = 1e6;

/// An event in an agent's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AgentEvent {
    /// It started.
    Started { session: Option<String>, model: Option<String> },
    /// It wrote a message.
    Text { text: String },
    /// It used a tool.
    Tool { name: String, about: String },
    /// It reported an error.
    Error { message: String },
    /// It finished, as it reports.
    Finished { ok: bool },
    /// Any other line.
    Raw { line: String },
}

/// Tokens that an agent reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Includes those read from a cache.
    pub input: u64,
    pub cached: u64,
    pub output: u64,
}

impl Tokens {
    fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input).min(MOST_TOKENS);
        self.cached = self.cached.saturating_add(other.cached).min(MOST_TOKENS);
        self.output = self.output.saturating_add(other.output).min(MOST_TOKENS);
    }

    const fn is_none(&self) -> bool {
        self.input == 0 && self.cached == 0 && self.output == 0
    }
}

/// The state of an agent's work so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    /// The session by which it can be continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `None` if it did not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// In billionths of a dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nanos: Option<i64>,
    /// Its last message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The reason of its failure, as it reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub tools: u64,
    pub lines: u64,
    /// Lines that were too long to parse.
    pub passed_over: u64,
}

/// Parses an agent's output as it arrives, in any pieces.
#[derive(Debug)]
pub struct AgentReader {
    format: OutputFormat,
    line: Vec<u8>,
    /// The line is too long: the rest of it is dropped.
    passing_over: bool,
    report: AgentReport,
    /// The message whose tokens were counted last: several lines are about the same one.
    counted: Option<String>,
}

impl AgentReader {
    pub fn new(format: OutputFormat) -> Self {
        Self { format, line: Vec::new(), passing_over: false, report: AgentReport::default(), counted: None }
    }

    /// Takes the next bytes; emits the events that they complete.
    pub fn push(&mut self, mut bytes: &[u8], tell: &mut dyn FnMut(AgentEvent)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.take(&bytes[..end]);
            self.end_line(tell);
            bytes = &bytes[end + 1..];
        }
        self.take(bytes);
    }

    /// The final report.
    pub fn finish(mut self, tell: &mut dyn FnMut(AgentEvent)) -> AgentReport {
        if !self.line.is_empty() || self.passing_over {
            self.end_line(tell);
        }
        self.report
    }

    /// The report so far.
    pub const fn report(&self) -> &AgentReport {
        &self.report
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.passing_over {
            return;
        }
        if self.line.len() + bytes.len() > LONGEST_LINE {
            self.passing_over = true;
            self.line = Vec::new();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self, tell: &mut dyn FnMut(AgentEvent)) {
        self.report.lines = self.report.lines.saturating_add(1);
        if std::mem::take(&mut self.passing_over) {
            self.report.passed_over = self.report.passed_over.saturating_add(1);
            return;
        }
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\r');
        if text.trim().is_empty() {
            return;
        }
        let value = match self.format {
            OutputFormat::Text | OutputFormat::Aider => None,
            _ => serde_json::from_str::<Value>(text).ok().filter(|value| value["type"].is_string()),
        };
        let Some(value) = value else {
            if self.format == OutputFormat::Aider {
                self.aider(text);
            }
            // Without events the last line is the best summary.
            if matches!(self.format, OutputFormat::Text | OutputFormat::Aider) {
                self.report.summary = Some(cut(text, LONGEST_TEXT));
            }
            return tell(AgentEvent::Raw { line: cut(text, LONGEST_TEXT) });
        };
        match self.format {
            OutputFormat::ClaudeStream => self.claude(&value, tell),
            OutputFormat::CodexStream => self.codex(&value, tell),
            OutputFormat::GeminiStream => self.gemini(&value, tell),
            OutputFormat::OpenCodeStream => self.opencode(&value, tell),
            OutputFormat::GooseStream => self.goose(&value, tell),
            OutputFormat::Text | OutputFormat::Aider => {}
        }
    }

    fn started(&mut self, session: &Value, model: &Value, tell: &mut dyn FnMut(AgentEvent)) {
        let (session, model) = (name(session), name(model));
        self.report.session = session.clone().or(self.report.session.take());
        self.report.model = model.clone().or(self.report.model.take());
        tell(AgentEvent::Started { session, model });
    }

    fn said(&mut self, text: &Value, tell: &mut dyn FnMut(AgentEvent)) {
        let Some(text) = text.as_str().filter(|text| !text.trim().is_empty()) else { return };
        self.report.summary = Some(cut(text, LONGEST_RESULT));
        tell(AgentEvent::Text { text: cut(text, LONGEST_TEXT) });
    }

    fn tool(&mut self, tool: &Value, about: &Value, tell: &mut dyn FnMut(AgentEvent)) {
        self.report.tools = self.report.tools.saturating_add(1);
        let about = match about {
            Value::Null => String::new(),
            Value::String(text) => cut(text, LONGEST_TEXT),
            other => cut(&other.to_string(), LONGEST_TEXT),
        };
        tell(AgentEvent::Tool { name: name(tool).unwrap_or_else(|| "tool".into()), about });
    }

    fn complained(&mut self, message: &Value, tell: &mut dyn FnMut(AgentEvent)) {
        let message = message.as_str().map_or_else(|| message.to_string(), String::from);
        self.report.error = Some(cut(&message, LONGEST_TEXT));
        tell(AgentEvent::Error { message: cut(&message, LONGEST_TEXT) });
    }

    fn finished(&mut self, ok: bool, tell: &mut dyn FnMut(AgentEvent)) {
        if ok {
            self.report.error = None;
        }
        tell(AgentEvent::Finished { ok });
    }

    fn used(&mut self, tokens: Tokens) {
        if !tokens.is_none() {
            self.report.tokens.get_or_insert_default().add(tokens);
        }
    }

    fn cost(&mut self, dollars: &Value, add: bool) {
        let Some(nanos) = dollars.as_f64().and_then(nanos) else { return };
        let before = self.report.cost_nanos.filter(|_| add).unwrap_or_default();
        self.report.cost_nanos = Some(before.saturating_add(nanos));
    }

    fn claude(&mut self, value: &Value, tell: &mut dyn FnMut(AgentEvent)) {
        match value["type"].as_str() {
            Some("system") if value["subtype"] == "init" => {
                self.started(&value["session_id"], &value["model"], tell)
            }
            Some("assistant") => {
                let message = &value["message"];
                for part in items(&message["content"]) {
                    match part["type"].as_str() {
                        Some("text") => self.said(&part["text"], tell),
                        Some("tool_use") => self.tool(&part["name"], &part["input"], tell),
                        _ => {}
                    }
                }
                let id = name(&message["id"]);
                if id.is_none() || id != self.counted {
                    self.counted = id;
                    self.used(claude_tokens(&message["usage"]));
                }
            }
            // Cursor's form of tools: an object with one member, which is the tool.
            Some("tool_call") if value["subtype"] == "started" => {
                if let Some((tool, call)) = value["tool_call"].as_object().and_then(|call| call.iter().next())
                {
                    self.tool(&Value::String(tool.clone()), &call["args"], tell);
                }
            }
            Some("result") => {
                let total = claude_tokens(&value["usage"]);
                if !total.is_none() {
                    // The total of everything reported before.
                    self.report.tokens = Some(total);
                }
                self.cost(&value["total_cost_usd"], false);
                let failed = value["is_error"] == Value::Bool(true);
                let why = if value["result"].is_string() { &value["result"] } else { &value["subtype"] };
                if failed {
                    self.complained(why, tell);
                } else if let Some(text) = value["result"].as_str().filter(|text| !text.trim().is_empty()) {
                    self.report.summary = Some(cut(text, LONGEST_RESULT));
                }
                self.finished(!failed, tell);
            }
            _ => {}
        }
    }

    fn codex(&mut self, value: &Value, tell: &mut dyn FnMut(AgentEvent)) {
        match value["type"].as_str() {
            Some("thread.started") => self.started(&value["thread_id"], &Value::Null, tell),
            Some(kind @ ("item.started" | "item.completed")) => {
                let item = &value["item"];
                let begins = kind == "item.started";
                match item["type"].as_str() {
                    Some("agent_message") if !begins => self.said(&item["text"], tell),
                    Some("command_execution") if begins => self.tool(&item["type"], &item["command"], tell),
                    Some("mcp_tool_call") if begins => self.tool(&item["tool"], &item["arguments"], tell),
                    Some("web_search") if begins => self.tool(&item["type"], &item["query"], tell),
                    Some("file_change") if !begins => self.tool(&item["type"], &item["changes"], tell),
                    Some("error") if !begins => {
                        // Not the end: the turn says whether it failed.
                        let message = item["message"].as_str().unwrap_or_default();
                        tell(AgentEvent::Error { message: cut(message, LONGEST_TEXT) });
                    }
                    _ => {}
                }
            }
            Some("turn.completed") => {
                let usage = &value["usage"];
                self.used(Tokens {
                    input: count(&usage["input_tokens"]),
                    cached: count(&usage["cached_input_tokens"]),
                    output: count(&usage["output_tokens"]),
                });
                self.finished(true, tell);
            }
            Some("turn.failed") => {
                self.complained(&value["error"]["message"], tell);
                self.finished(false, tell);
            }
            Some("error") => self.complained(&value["message"], tell),
            _ => {}
        }
    }

    fn gemini(&mut self, value: &Value, tell: &mut dyn FnMut(AgentEvent)) {
        match value["type"].as_str() {
            Some("init") => self.started(&value["session_id"], &value["model"], tell),
            Some("message") if value["role"] == "assistant" => {
                // Pieces of one text come one after another.
                let before = self.report.summary.take().filter(|_| value["delta"] == Value::Bool(true));
                self.said(&value["content"], tell);
                if let Some(mut before) = before {
                    before.push_str(self.report.summary.as_deref().unwrap_or_default());
                    self.report.summary = Some(cut(&before, LONGEST_RESULT));
                }
            }
            Some("tool_use") => {
                self.tool(&value["tool_name"], &value["parameters"], tell);
                self.report.summary = None;
            }
            Some("error") => {
                let message = value["message"].as_str().unwrap_or_default();
                tell(AgentEvent::Error { message: cut(message, LONGEST_TEXT) });
            }
            Some("result") => {
                let stats = &value["stats"];
                self.used(Tokens {
                    input: count(&stats["input_tokens"]),
                    cached: count(&stats["cached"]),
                    output: count(&stats["output_tokens"]),
                });
                let ok = value["status"] == "success";
                if !ok {
                    self.complained(&value["error"]["message"], tell);
                }
                self.finished(ok, tell);
            }
            _ => {}
        }
    }

    fn opencode(&mut self, value: &Value, tell: &mut dyn FnMut(AgentEvent)) {
        let part = &value["part"];
        match value["type"].as_str() {
            Some("step_start") if self.report.session.is_none() => {
                self.started(&value["sessionID"], &Value::Null, tell);
            }
            Some("text") => self.said(&part["text"], tell),
            Some("tool_use") => self.tool(&part["tool"], &part["state"]["input"], tell),
            Some("step_finish") => {
                let tokens = &part["tokens"];
                let cached = count(&tokens["cache"]["read"]);
                let written = count(&tokens["cache"]["write"]);
                self.used(Tokens {
                    input: count(&tokens["input"]).saturating_add(cached).saturating_add(written),
                    cached,
                    output: count(&tokens["output"]).saturating_add(count(&tokens["reasoning"])),
                });
                self.cost(&part["cost"], true);
                if part["reason"] == "stop" {
                    self.finished(true, tell);
                }
            }
            Some("error") => {
                let error = &value["error"];
                let message = &error["data"]["message"];
                self.complained(if message.is_string() { message } else { error }, tell);
            }
            _ => {}
        }
    }

    fn goose(&mut self, value: &Value, tell: &mut dyn FnMut(AgentEvent)) {
        match value["type"].as_str() {
            Some("message") if value["message"]["role"] == "assistant" => {
                for part in items(&value["message"]["content"]) {
                    match part["type"].as_str() {
                        Some("text") => self.said(&part["text"], tell),
                        Some("toolRequest") => {
                            let call = &part["toolCall"]["value"];
                            self.tool(&call["name"], &call["arguments"], tell);
                        }
                        _ => {}
                    }
                }
            }
            Some("error") => self.complained(&value["error"], tell),
            Some("complete") => {
                let (input, output) = (count(&value["input_tokens"]), count(&value["output_tokens"]));
                let known = input.saturating_add(output);
                // Older versions report only the sum; most of it is input.
                let input = if known == 0 { count(&value["total_tokens"]) } else { input };
                self.used(Tokens { input, cached: 0, output });
                self.cost(&value["cost"], false);
                self.finished(true, tell);
            }
            _ => {}
        }
    }

    /// `Tokens: 12k sent, 1.5k received. Cost: $0.05 message, $0.12 session.`
    fn aider(&mut self, line: &str) {
        let Some(told) = line.trim_start().strip_prefix("Tokens: ") else { return };
        let (tokens, cost) = told.split_once(" Cost: ").unwrap_or((told, ""));
        let mut used = Tokens::default();
        for part in tokens.trim_end_matches('.').split(", ") {
            let Some((number, what)) = part.trim().split_once(' ') else { continue };
            let number = shortened(number);
            match what {
                "sent" => used.input = used.input.saturating_add(number),
                "cache hit" => {
                    used.cached = number;
                    used.input = used.input.saturating_add(number);
                }
                "cache write" => used.input = used.input.saturating_add(number),
                "received" => used.output = number,
                _ => {}
            }
        }
        self.used(used);
        let session = cost.split(", ").find_map(|part| part.trim_end_matches('.').strip_suffix(" session"));
        let dollars = session.and_then(|text| text.trim().strip_prefix('$')?.parse::<f64>().ok());
        if let Some(nanos) = dollars.and_then(nanos) {
            self.report.cost_nanos = Some(nanos);
        }
    }
}

fn claude_tokens(usage: &Value) -> Tokens {
    let cached = count(&usage["cache_read_input_tokens"]);
    let written = count(&usage["cache_creation_input_tokens"]);
    Tokens {
        input: count(&usage["input_tokens"]).saturating_add(cached).saturating_add(written),
        cached,
        output: count(&usage["output_tokens"]),
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default().min(MOST_TOKENS)
}

#[expect(clippy::cast_possible_truncation, reason = "it is within bounds by then")]
fn nanos(dollars: f64) -> Option<i64> {
    (dollars.is_finite() && (0.0..=MOST_DOLLARS).contains(&dollars)).then(|| (dollars * 1e9).round() as i64)
}

/// `1,234`, `12k`, `1.5M`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within bounds by then")]
fn shortened(text: &str) -> u64 {
    let text = text.replace(',', "");
    let (digits, times) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        _ => (&*text, 1.0),
    };
    let number = digits.parse::<f64>().unwrap_or_default() * times;
    if number.is_finite() { number.clamp(0.0, 1e15) as u64 } else { 0 }
}

fn name(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(|text| cut(text, LONGEST_NAME))
}

fn cut(text: &str, longest: usize) -> String {
    text[..text.floor_char_boundary(longest)].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(format: OutputFormat, text: &str) -> (AgentReport, Vec<AgentEvent>) {
        let mut events = Vec::new();
        let mut reader = AgentReader::new(format);
        // In pieces, as pipes return them.
        for piece in text.as_bytes().chunks(7) {
            reader.push(piece, &mut |event| events.push(event));
        }
        let report = reader.finish(&mut |event| events.push(event));
        (report, events)
    }

    fn tokens(input: u64, cached: u64, output: u64) -> Option<Tokens> {
        Some(Tokens { input, cached, output })
    }

    #[test]
    fn claude_code() {
        let (report, events) = read(
            OutputFormat::ClaudeStream,
            r#"{"type":"system","subtype":"init","session_id":"s-1","model":"opus"}
{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"Looking"}],"usage":{"input_tokens":5,"cache_read_input_tokens":10,"output_tokens":2}}}
{"type":"assistant","message":{"id":"m1","content":[{"type":"tool_use","name":"Bash","input":{"command":"ls"}}],"usage":{"input_tokens":5,"cache_read_input_tokens":10,"output_tokens":2}}}
{"type":"user","message":{"content":[{"type":"tool_result","content":"x"}]}}
{"type":"result","subtype":"success","is_error":false,"result":"Done.","total_cost_usd":0.0123,"usage":{"input_tokens":7,"cache_read_input_tokens":20,"cache_creation_input_tokens":1,"output_tokens":9}}
"#,
        );
        assert_eq!(report.tokens, tokens(28, 20, 9));
        assert_eq!((report.cost_nanos, report.tools), (Some(12_300_000), 1));
        assert_eq!((report.summary.as_deref(), report.session.as_deref()), (Some("Done."), Some("s-1")));
        assert_eq!(report.error, None);
        let bash = AgentEvent::Tool { name: "Bash".into(), about: r#"{"command":"ls"}"#.into() };
        assert_eq!(
            events[1..],
            [AgentEvent::Text { text: "Looking".into() }, bash, AgentEvent::Finished { ok: true }]
        );
        // Before the end the sum of messages is known, each counted once.
        let (cut_off, _) = read(
            OutputFormat::ClaudeStream,
            r#"{"type":"assistant","message":{"id":"m1","content":[],"usage":{"input_tokens":5,"output_tokens":2}}}
{"type":"assistant","message":{"id":"m1","content":[],"usage":{"input_tokens":5,"output_tokens":2}}}
{"type":"assistant","message":{"id":"m2","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}"#,
        );
        assert_eq!(cut_off.tokens, tokens(6, 0, 3));
        let (failed, _) = read(
            OutputFormat::ClaudeStream,
            r#"{"type":"result","subtype":"error_max_turns","is_error":true}"#,
        );
        assert_eq!(failed.error.as_deref(), Some("error_max_turns"));
    }

    #[test]
    fn codex() {
        let (report, events) = read(
            OutputFormat::CodexStream,
            r#"{"type":"thread.started","thread_id":"t-1"}
{"type":"turn.started"}
{"type":"item.started","item":{"id":"i0","type":"command_execution","command":"bash -lc ls","status":"in_progress"}}
{"type":"item.completed","item":{"id":"i0","type":"command_execution","command":"bash -lc ls","status":"completed"}}
{"type":"item.completed","item":{"id":"i1","type":"agent_message","text":"Fixed."}}
{"type":"turn.completed","usage":{"input_tokens":100,"cached_input_tokens":40,"output_tokens":10}}
{"type":"turn.completed","usage":{"input_tokens":1,"cached_input_tokens":0,"output_tokens":1}}
"#,
        );
        assert_eq!((report.tokens, report.cost_nanos, report.tools), (tokens(101, 40, 11), None, 1));
        assert_eq!(report.summary.as_deref(), Some("Fixed."));
        assert_eq!(events.len(), 5);
        let (failed, _) =
            read(OutputFormat::CodexStream, r#"{"type":"turn.failed","error":{"message":"no quota"}}"#);
        assert_eq!(failed.error.as_deref(), Some("no quota"));
    }

    #[test]
    fn gemini() {
        let (report, _) = read(
            OutputFormat::GeminiStream,
            r#"{"type":"init","session_id":"g","model":"gemini-x"}
{"type":"message","role":"user","content":"do it"}
{"type":"message","role":"assistant","content":"All ","delta":true}
{"type":"message","role":"assistant","content":"good","delta":true}
{"type":"tool_use","tool_name":"run_shell_command","tool_id":"1","parameters":{"command":"ls"}}
{"type":"message","role":"assistant","content":"Rea","delta":true}
{"type":"message","role":"assistant","content":"dy","delta":true}
{"type":"result","status":"success","stats":{"total_tokens":12,"input_tokens":8,"output_tokens":4,"cached":3}}
"#,
        );
        assert_eq!((report.tokens, report.summary.as_deref()), (tokens(8, 3, 4), Some("Ready")));
        assert_eq!((report.model.as_deref(), report.tools), (Some("gemini-x"), 1));
    }

    #[test]
    fn opencode_goose_and_aider() {
        let (report, _) = read(
            OutputFormat::OpenCodeStream,
            r#"{"type":"step_start","sessionID":"ses_1","part":{"type":"step-start"}}
{"type":"tool_use","sessionID":"ses_1","part":{"tool":"read","state":{"status":"completed","input":{"path":"a"}}}}
{"type":"step_finish","sessionID":"ses_1","part":{"reason":"tool-calls","cost":0.001,"tokens":{"input":10,"output":2,"reasoning":1,"cache":{"read":5,"write":0}}}}
{"type":"text","sessionID":"ses_1","part":{"text":"There."}}
{"type":"step_finish","sessionID":"ses_1","part":{"reason":"stop","cost":0.002,"tokens":{"input":1,"output":1,"reasoning":0,"cache":{"read":0,"write":0}}}}
"#,
        );
        assert_eq!((report.tokens, report.cost_nanos), (tokens(16, 5, 4), Some(3_000_000)));
        assert_eq!((report.summary.as_deref(), report.session.as_deref()), (Some("There."), Some("ses_1")));
        let (report, _) = read(
            OutputFormat::GooseStream,
            r#"{"type":"message","message":{"role":"assistant","content":[{"type":"text","text":"Hm"},{"type":"toolRequest","toolCall":{"value":{"name":"developer__shell","arguments":{"command":"ls"}}}}]}}
{"type":"complete","total_tokens":77}"#,
        );
        assert_eq!((report.tokens, report.tools), (tokens(77, 0, 0), 1));
        let (report, events) = read(
            OutputFormat::Aider,
            "Added a.py\nTokens: 12k sent, 1.5k cache hit, 1,234 received. Cost: $0.05 message, $0.12 session.\nBye\n",
        );
        assert_eq!((report.tokens, report.cost_nanos), (tokens(13_500, 1500, 1234), Some(120_000_000)));
        assert_eq!((events.len(), report.summary.as_deref()), (3, Some("Bye")));
    }

    #[test]
    fn what_is_hostile_costs_nothing_and_is_not_believed() {
        let endless = "x".repeat(3 * LONGEST_LINE);
        let mut reader = AgentReader::new(OutputFormat::ClaudeStream);
        let mut told = 0;
        for _ in 0..3 {
            reader.push(endless.as_bytes(), &mut |_| told += 1);
            assert!(reader.line.capacity() <= 2 * LONGEST_LINE);
        }
        reader.push(b"\n{\"type\":\"result\",\"total_cost_usd\":-5,\"usage\":{\"input_tokens\":18446744073709551615}}\n", &mut |_| told += 1);
        reader.push(
            b"{\"type\":\"result\",\"total_cost_usd\":1e300,\"usage\":{\"input_tokens\":1.5}}\n",
            &mut |_| told += 1,
        );
        let report = reader.finish(&mut |_| {});
        assert_eq!((report.passed_over, report.lines, report.cost_nanos), (1, 3, None));
        assert_eq!(report.tokens, tokens(MOST_TOKENS, 0, 0));
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let (report, events) =
            read(OutputFormat::CodexStream, &format!("{{\"type\":{deep}}}\n\u{1b}[31mnot json\n"));
        assert_eq!((report.lines, events.len()), (2, 2));
        assert!(events.iter().all(|event| matches!(event, AgentEvent::Raw { .. })));
    }
}
