//! Reads what a call used from its answer, while the answer passes.
//!
//! Streams (server-sent events) are read event by event, other answers as a whole. Whatever the provider sends,
//! memory is bounded; an answer that cannot be read has no usage, and costs as much as was reserved for it.

use serde_json::Value;

use super::{CallKind, Used};

/// Most bytes of one event, or of an answer that is not a stream.
const MOST_KEPT: usize = 16 << 20;

/// Reads an answer piece by piece.
#[derive(Debug)]
pub struct AnswerReader {
    kind: CallKind,
    is_stream: bool,
    /// Leave out the event that the client did not ask for.
    hides_usage: bool,
    /// The event, or the answer, so far; and where its last line begins.
    kept: Vec<u8>,
    line: usize,
    is_too_long: bool,
    read: Read,
}

/// What an answer said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Read {
    /// As far as it was told.
    pub used: Used,
    /// Whether that is all of it.
    pub is_complete: bool,
    /// Whether the provider told of any usage.
    pub is_told: bool,
    /// The model that answered.
    pub model: Option<String>,
    /// An error in the middle of a stream.
    pub error: Option<String>,
    /// Bytes of the answer.
    pub bytes: u64,
}

impl AnswerReader {
    pub const fn new(kind: CallKind, is_stream: bool, hides_usage: bool) -> Self {
        Self {
            kind,
            is_stream,
            hides_usage: hides_usage && is_stream,
            kept: Vec::new(),
            line: 0,
            is_too_long: false,
            read: Read {
                used: Used {
                    input: 0,
                    cached: 0,
                    cache_write: 0,
                    cache_write_hour: 0,
                    output: 0,
                    searches: 0,
                },
                is_complete: false,
                is_told: false,
                model: None,
                error: None,
                bytes: 0,
            },
        }
    }

    /// Reads a piece. Returns what to pass on instead, if it is not the piece itself.
    pub fn push(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        self.read.bytes = self.read.bytes.saturating_add(piece.len() as u64);
        if !self.is_stream {
            self.keep(piece);
            return None;
        }
        let mut passed = Vec::new();
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            self.keep(line);
            rest = after;
            let is_blank =
                self.kept[self.line.min(self.kept.len())..].iter().all(|byte| matches!(byte, b'\r' | b'\n'));
            self.line = self.kept.len();
            if is_blank || self.is_too_long {
                let is_shown = self.end_event();
                if is_shown {
                    passed.extend_from_slice(&self.kept);
                }
                self.kept.clear();
                self.line = 0;
                // The rest of a long event passes unread, line by line.
                self.is_too_long &= !is_blank;
            }
        }
        self.keep(rest);
        self.hides_usage.then_some(passed)
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.kept.len() + bytes.len() > MOST_KEPT && !self.hides_usage {
            self.is_too_long = true;
            self.kept.clear();
            self.line = 0;
        }
        if !self.is_too_long || self.hides_usage {
            self.kept.extend_from_slice(bytes);
        }
    }

    /// The end of the answer; returns what is left to pass on, and what was read.
    pub fn finish(mut self) -> (Vec<u8>, Read) {
        if self.is_stream {
            if !self.kept.is_empty() {
                self.end_event();
            }
        } else if !self.is_too_long
            && let Ok(answer) = serde_json::from_slice::<Value>(&self.kept)
        {
            self.hear_whole(&answer);
        }
        if self.kind == CallKind::Generate {
            // Each piece tells all so far: the last one told all of it.
            self.read.is_complete = self.read.is_told && self.read.error.is_none();
        }
        let left = if self.hides_usage { std::mem::take(&mut self.kept) } else { Vec::new() };
        (left, self.read)
    }

    /// What was read so far.
    pub const fn so_far(&self) -> &Read {
        &self.read
    }

    /// Reads the event in `kept`; returns whether the client gets it.
    fn end_event(&mut self) -> bool {
        if self.is_too_long {
            return true;
        }
        let text = String::from_utf8_lossy(&self.kept);
        let mut data = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("data:") {
                data.push_str(rest.strip_prefix(' ').unwrap_or(rest));
            }
        }
        // Most events are pieces of text.
        if !data.contains("usage") && !data.contains("\"error\"") {
            return true;
        }
        let Ok(event) = serde_json::from_str::<Value>(&data) else { return true };
        self.hear_event(&event);
        let is_only_usage =
            event["choices"].as_array().is_some_and(Vec::is_empty) && event["usage"].is_object();
        !(self.hides_usage && is_only_usage)
    }

    fn hear_event(&mut self, event: &Value) {
        match self.kind {
            CallKind::Messages => match event["type"].as_str() {
                Some("message_start") => {
                    self.hear_model(&event["message"]["model"]);
                    self.hear_anthropic(&event["message"]["usage"]);
                }
                Some("message_delta") => {
                    self.hear_anthropic(&event["usage"]);
                    self.read.is_complete |= event["usage"]["output_tokens"].is_u64();
                }
                Some("error") => self.hear_error(&event["error"]),
                _ => {}
            },
            CallKind::Responses => {
                let response = &event["response"];
                match event["type"].as_str() {
                    Some("response.completed" | "response.incomplete" | "response.failed") => {
                        self.hear_response(response);
                        if !response["error"].is_null() {
                            self.hear_error(&response["error"]);
                        }
                    }
                    Some("error") => self.hear_error(event),
                    _ => {}
                }
            }
            CallKind::Chat | CallKind::Generate => self.hear_whole(event),
            CallKind::CountTokens | CallKind::Models => {}
        }
    }

    fn hear_whole(&mut self, answer: &Value) {
        match self.kind {
            CallKind::Messages => {
                self.hear_model(&answer["model"]);
                self.hear_anthropic(&answer["usage"]);
                self.read.is_complete |= answer["usage"]["output_tokens"].is_u64();
            }
            CallKind::Responses => self.hear_response(answer),
            CallKind::Chat => {
                self.hear_model(&answer["model"]);
                let usage = &answer["usage"];
                if usage.is_object() {
                    self.hear_openai(usage, "prompt_tokens", "completion_tokens", "prompt_tokens_details");
                    self.read.is_complete = true;
                }
            }
            CallKind::Generate => match answer {
                Value::Array(pieces) => pieces.iter().for_each(|piece| self.hear_gemini(piece)),
                piece => self.hear_gemini(piece),
            },
            CallKind::CountTokens | CallKind::Models => {}
        }
        if !answer["error"].is_null() {
            self.hear_error(&answer["error"]);
        }
    }

    fn hear_model(&mut self, model: &Value) {
        if let Some(model) = model.as_str().filter(|model| !model.is_empty() && model.len() <= 200) {
            self.read.model = Some(model.to_string());
        }
    }

    fn hear_error(&mut self, error: &Value) {
        let message = error["message"].as_str().or_else(|| error["type"].as_str()).unwrap_or("unknown");
        self.read.error = Some(message.chars().take(300).collect());
    }

    /// Anthropic's counts are cumulative, and its kinds of input are apart.
    fn hear_anthropic(&mut self, usage: &Value) {
        let used = &mut self.read.used;
        let hear = |name: &str, place: &mut u64| {
            if let Some(count) = usage[name].as_u64() {
                *place = count.max(*place);
            }
        };
        hear("input_tokens", &mut used.input);
        hear("cache_read_input_tokens", &mut used.cached);
        hear("output_tokens", &mut used.output);
        let written = usage["cache_creation_input_tokens"].as_u64();
        let hour = usage["cache_creation"]["ephemeral_1h_input_tokens"].as_u64();
        if let Some(hour) = hour {
            used.cache_write_hour = hour;
        }
        if let Some(written) = written {
            used.cache_write = written.saturating_sub(used.cache_write_hour);
        }
        if let Some(searches) = usage["server_tool_use"]["web_search_requests"].as_u64() {
            used.searches = searches;
        }
        self.read.is_told |= usage.is_object();
    }

    fn hear_response(&mut self, response: &Value) {
        self.hear_model(&response["model"]);
        let is_search =
            |item: &&Value| item["type"].as_str().is_some_and(|kind| kind.starts_with("web_search"));
        let searches =
            response["output"].as_array().map_or(0, |items| items.iter().filter(is_search).count());
        let usage = &response["usage"];
        if usage.is_object() {
            self.hear_openai(usage, "input_tokens", "output_tokens", "input_tokens_details");
            self.read.used.searches = searches as u64;
            self.read.is_complete = true;
        }
    }

    /// OpenAI's input includes what was cached.
    fn hear_openai(&mut self, usage: &Value, input: &str, output: &str, details: &str) {
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let cached = count(&usage[details]["cached_tokens"]);
        let written = count(&usage[details]["cache_write_tokens"]);
        self.read.used = Used {
            input: count(&usage[input]).saturating_sub(cached).saturating_sub(written),
            cached,
            cache_write: written,
            cache_write_hour: 0,
            output: count(&usage[output]),
            searches: self.read.used.searches,
        };
        self.read.is_told = true;
    }

    /// Gemini's input includes what was cached; thoughts are output that is counted apart.
    fn hear_gemini(&mut self, piece: &Value) {
        self.hear_model(&piece["modelVersion"]);
        let candidates = piece["candidates"].as_array();
        let searched = candidates.is_some_and(|all| {
            all.iter().any(|one| {
                one["groundingMetadata"]["webSearchQueries"].as_array().is_some_and(|q| !q.is_empty())
            })
        });
        self.read.used.searches = self.read.used.searches.max(u64::from(searched));
        let usage = &piece["usageMetadata"];
        if !usage.is_object() {
            return;
        }
        let count = |name: &str| usage[name].as_u64().unwrap_or(0);
        let cached = count("cachedContentTokenCount");
        let used = &mut self.read.used;
        let input = count("promptTokenCount").saturating_add(count("toolUsePromptTokenCount"));
        used.input = input.saturating_sub(cached).max(used.input);
        used.cached = cached.max(used.cached);
        used.output =
            count("candidatesTokenCount").saturating_add(count("thoughtsTokenCount")).max(used.output);
        self.read.is_told = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an answer in pieces of every size; all must tell the same.
    fn read(kind: CallKind, is_stream: bool, hides: bool, text: &str) -> (String, Read) {
        let mut told = None;
        for size in [1, 2, 7, 64, 100_000] {
            let mut reader = AnswerReader::new(kind, is_stream, hides);
            let mut passed = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                match reader.push(piece) {
                    Some(instead) => passed.extend(instead),
                    None => passed.extend_from_slice(piece),
                }
            }
            let (left, read) = reader.finish();
            passed.extend(left);
            let this = (String::from_utf8(passed).unwrap(), read);
            assert_eq!(*told.get_or_insert(this.clone()), this, "in pieces of {size}");
        }
        told.unwrap()
    }

    const MESSAGES: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-x\",\"usage\":{\"input_tokens\":10,\"cache_read_input_tokens\":70,\"cache_creation_input_tokens\":30,\"cache_creation\":{\"ephemeral_5m_input_tokens\":20,\"ephemeral_1h_input_tokens\":10},\"output_tokens\":1}}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"hi\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":42}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

    #[test]
    fn a_stream_of_anthropic_tells_its_usage_at_both_ends() {
        let (passed, told) = read(CallKind::Messages, true, false, MESSAGES);
        assert_eq!(passed, MESSAGES);
        let used =
            Used { input: 10, cached: 70, cache_write: 20, cache_write_hour: 10, output: 42, searches: 0 };
        assert_eq!((told.used, told.is_complete, told.model.as_deref()), (used, true, Some("claude-x")));
        let (half, _) = MESSAGES.split_once("event: message_delta").unwrap();
        let (_, told) = read(CallKind::Messages, true, false, half);
        assert!(!told.is_complete && told.is_told && told.used.input == 10);
        let broken = format!(
            "{half}event: error\r\ndata: {{\"type\":\"error\",\"error\":{{\"message\":\"Overloaded\"}}}}\r\n\r\n"
        );
        let (_, told) = read(CallKind::Messages, true, false, &broken);
        assert_eq!((told.is_complete, told.error.as_deref()), (false, Some("Overloaded")));
    }

    #[test]
    fn whole_answers_tell_theirs() {
        let answer = r#"{"model":"claude-x","usage":{"input_tokens":1,"output_tokens":2,"server_tool_use":{"web_search_requests":3}}}"#;
        let (_, told) = read(CallKind::Messages, false, false, answer);
        assert_eq!(
            (told.used.input, told.used.output, told.used.searches, told.is_complete),
            (1, 2, 3, true)
        );
        let answer = r#"{"model":"gpt","output":[{"type":"web_search_call"}],"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60},"output_tokens":7}}"#;
        let (_, told) = read(CallKind::Responses, false, false, answer);
        assert_eq!((told.used.input, told.used.cached, told.used.output, told.used.searches), (40, 60, 7, 1));
        let answer = r#"{"modelVersion":"gemini-x","usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":30,"candidatesTokenCount":5,"thoughtsTokenCount":6,"totalTokenCount":111}}"#;
        for text in [answer.to_string(), format!("[{},{answer}]", answer.replace(":5,", ":1,"))] {
            let (_, told) = read(CallKind::Generate, false, false, &text);
            assert_eq!(
                (told.used.input, told.used.cached, told.used.output, told.is_complete),
                (70, 30, 11, true)
            );
        }
        for bad in ["", "no", "{}", "[]", r#"{"usage":{}}"#] {
            let (_, told) = read(CallKind::Messages, false, false, bad);
            assert!(!told.is_complete, "{bad}");
        }
    }

    #[test]
    fn the_usage_that_the_gateway_asked_for_is_left_out_of_a_chat() {
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"a usage\"}}],\"usage\":null}\n\n";
        let usage = "data: {\"model\":\"gpt\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4},\"completion_tokens\":3}}\n\n";
        let whole = format!("{text}{usage}data: [DONE]\n\n");
        let (passed, told) = read(CallKind::Chat, true, true, &whole);
        assert_eq!(passed, format!("{text}data: [DONE]\n\n"));
        assert_eq!((told.used.input, told.used.cached, told.used.output, told.is_complete), (5, 4, 3, true));
        let (passed, _) = read(CallKind::Chat, true, false, &whole);
        assert_eq!(passed, whole);
    }

    #[test]
    fn streams_of_the_others_tell_theirs() {
        let text = "data: {\"type\":\"response.output_text.delta\",\"delta\":\"usage\"}\n\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt\",\"usage\":{\"input_tokens\":10,\"output_tokens\":20}}}\n\n";
        let (_, told) = read(CallKind::Responses, true, false, text);
        assert_eq!((told.used.input, told.used.output, told.is_complete), (10, 20, true));
        let text = "data: {\"candidates\":[],\"usageMetadata\":{\"promptTokenCount\":10}}\r\n\r\ndata: {\"usageMetadata\":{\"promptTokenCount\":10,\"candidatesTokenCount\":4}}\r\n\r\n";
        let (_, told) = read(CallKind::Generate, true, false, text);
        assert_eq!((told.used.input, told.used.output, told.is_complete), (10, 4, true));
    }

    #[test]
    fn an_answer_without_end_fills_no_memory() {
        let mut reader = AnswerReader::new(CallKind::Messages, true, false);
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..40 {
            reader.push(&piece);
            assert!(reader.kept.len() <= MOST_KEPT);
        }
        reader.push(b"\n\n");
        reader.push(MESSAGES.as_bytes());
        assert!(reader.finish().1.is_complete, "what follows is read");
    }
}
