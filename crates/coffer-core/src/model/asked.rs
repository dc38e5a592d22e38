//! What a request asks for, as far as its price depends on it.

use super::bound::InputBound;
use super::json::Json;
use super::{Call, CallKind, Provider};

/// A request whose body was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    pub model: String,
    pub input: InputBound,
    /// The most tokens of each answer; `None` if only the model bounds it.
    pub most_output: Option<u64>,
    /// How many answers it asks for.
    pub answers: u64,
    /// It asks for faster, dearer service.
    pub is_fast: bool,
    /// Tools that the provider runs and charges for by the call.
    pub searches: bool,
    /// Tools of the provider whose price is not known here.
    pub foreign_tool: Option<String>,
    /// Thinking that the answer's limit must leave room for.
    pub thinking: u64,
    /// The client did not ask for the usage at the end of its stream: the gateway does.
    pub hides_usage: bool,
    body: Json,
    kind: CallKind,
}

/// The body cannot be passed on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCall {
    #[error("the body is not JSON that can be read in only one way: {0}")]
    Json(String),
    #[error("`{0}` {1}")]
    Field(&'static str, &'static str),
}

const LONGEST_MODEL: usize = 200;

impl Asked {
    /// Reads the body of a call.
    pub fn read(call: &Call, body: &[u8]) -> Result<Self, BadCall> {
        let body: Json = serde_json::from_slice(body).map_err(|error| BadCall::Json(error.to_string()))?;
        if !matches!(body, Json::Object(_)) {
            return Err(BadCall::Json("an object is needed".into()));
        }
        let model = match &call.model {
            Some(model) => model.clone(),
            None => {
                let named = body.get("model").and_then(Json::text).map(str::to_string);
                named.ok_or(BadCall::Field("model", "is needed"))?
            }
        };
        if model.is_empty() || model.len() > LONGEST_MODEL || model.chars().any(char::is_control) {
            return Err(BadCall::Field("model", "must have 1 to 200 characters, none of them invisible"));
        }
        let mut asked = Self {
            model,
            input: InputBound::of(&body),
            most_output: None,
            answers: 1,
            is_fast: false,
            searches: false,
            foreign_tool: None,
            thinking: 0,
            hides_usage: false,
            kind: call.kind,
            body,
        };
        match call.kind {
            CallKind::Messages => asked.read_messages()?,
            CallKind::Responses => asked.read_responses()?,
            CallKind::Chat => asked.read_chat()?,
            CallKind::Generate => asked.read_generate()?,
            CallKind::CountTokens | CallKind::Models => {}
        }
        asked.is_fast |= asked.wants_fast();
        asked.read_tools(call.provider);
        asked.input.is_open |= asked.searches;
        Ok(asked)
    }

    /// The body as it is sent: as it was read, with what the gateway changed.
    pub fn body(&self) -> Vec<u8> {
        serde_json::to_vec(&self.body).expect("JSON that was read can be written")
    }

    /// The same request for another model.
    pub fn with_model(&self, model: &str) -> Self {
        let mut other = Self { model: model.to_string(), ..self.clone() };
        // Gemini's is in the path.
        if self.kind != CallKind::Generate {
            other.body.set("model", Json::Text(model.to_string()));
        }
        other
    }

    /// Lowers the limit of each answer, so that the call fits what is left of a budget.
    pub fn limit_output(&mut self, most: u64) {
        self.most_output = Some(most);
        match self.kind {
            CallKind::Messages => self.body.set("max_tokens", most.into()),
            CallKind::Responses => self.body.set("max_output_tokens", most.into()),
            CallKind::Chat => {
                let old = self.body.get("max_tokens").is_some_and(|value| !value.is_null());
                let new = self.body.get("max_completion_tokens").is_some_and(|value| !value.is_null());
                if old {
                    self.body.set("max_tokens", most.into());
                }
                if new || !old {
                    self.body.set("max_completion_tokens", most.into());
                }
            }
            CallKind::Generate => {
                let name = spelling(&self.body, ["generationConfig", "generation_config"]);
                let mut config = self.body.get(name).cloned().unwrap_or(Json::Object(Vec::new()));
                let field = spelling(&config, ["maxOutputTokens", "max_output_tokens"]);
                config.set(field, most.into());
                self.body.set(name, config);
            }
            CallKind::CountTokens | CallKind::Models => {}
        }
    }

    /// A count that must be whole and not negative, if it is there.
    fn count(value: Option<&Json>, name: &'static str) -> Result<Option<u64>, BadCall> {
        match value {
            None | Some(Json::Null) => Ok(None),
            Some(value) => match value.count() {
                Some(count) => Ok(Some(count)),
                None => Err(BadCall::Field(name, "must be a whole number that is not negative")),
            },
        }
    }

    fn read_messages(&mut self) -> Result<(), BadCall> {
        self.most_output = Self::count(self.body.get("max_tokens"), "max_tokens")?;
        let thinking = self.body.get("thinking").and_then(|thinking| thinking.get("budget_tokens"));
        self.thinking = Self::count(thinking, "thinking.budget_tokens")?.unwrap_or(0);
        let servers = self.body.get("mcp_servers").is_some_and(|servers| !servers.list().is_empty());
        self.input.is_open |= servers || is_set(&self.body, "container");
        Ok(())
    }

    fn read_responses(&mut self) -> Result<(), BadCall> {
        self.most_output = Self::count(self.body.get("max_output_tokens"), "max_output_tokens")?;
        if self.body.get("background").is_some_and(|value| !value.is_null() && *value != Json::Bool(false)) {
            return Err(BadCall::Field("background", "does not pass: the answer would not say what it cost"));
        }
        let elsewhere = ["previous_response_id", "conversation", "prompt"];
        self.input.is_open |= elsewhere.iter().any(|name| is_set(&self.body, name));
        Ok(())
    }

    fn read_chat(&mut self) -> Result<(), BadCall> {
        let old = Self::count(self.body.get("max_tokens"), "max_tokens")?;
        let new = Self::count(self.body.get("max_completion_tokens"), "max_completion_tokens")?;
        self.most_output = old.max(new);
        self.answers = Self::count(self.body.get("n"), "n")?.unwrap_or(1).max(1);
        self.searches = is_set(&self.body, "web_search_options");
        if is_set(&self.body, "audio") {
            self.foreign_tool = Some("audio".into());
        }
        let streams = self.body.get("stream").is_some_and(Json::is_true);
        let options = self.body.get("stream_options");
        let asks = options.and_then(|options| options.get("include_usage")).is_some_and(Json::is_true);
        if streams && !asks {
            self.hides_usage = true;
            let mut options = match options {
                Some(options @ Json::Object(_)) => options.clone(),
                _ => Json::Object(Vec::new()),
            };
            options.set("include_usage", Json::Bool(true));
            self.body.set("stream_options", options);
        }
        Ok(())
    }

    fn read_generate(&mut self) -> Result<(), BadCall> {
        let config = one_spelling(&self.body, ["generationConfig", "generation_config"])?;
        if let Some(config) = config {
            let most = one_spelling(config, ["maxOutputTokens", "max_output_tokens"])?;
            self.most_output = Self::count(most, "generationConfig.maxOutputTokens")?;
            let answers = one_spelling(config, ["candidateCount", "candidate_count"])?;
            self.answers = Self::count(answers, "generationConfig.candidateCount")?.unwrap_or(1).max(1);
            let kinds = one_spelling(config, ["responseModalities", "response_modalities"])?;
            let is_text = |kind: &Json| kind.text().is_some_and(|kind| kind.eq_ignore_ascii_case("text"));
            if kinds.is_some_and(|kinds| !kinds.list().iter().all(is_text)) {
                self.foreign_tool = Some("responseModalities".into());
            }
        }
        let cached = one_spelling(&self.body, ["cachedContent", "cached_content"])?;
        self.input.is_open |= cached.is_some_and(|cached| !cached.is_null());
        Ok(())
    }

    /// Whether it asks for more than the usual speed. `serviceTier` is how Gemini spells it.
    fn wants_fast(&self) -> bool {
        let usual = ["", "auto", "default", "standard", "standard_only", "flex", "batch", "unspecified"];
        let is_dear = |name: &str| {
            let wish = self.body.get(name).filter(|wish| !wish.is_null());
            wish.is_some_and(|wish| !wish.text().is_some_and(|text| usual.contains(&&*text.to_lowercase())))
        };
        ["service_tier", "serviceTier", "speed"].into_iter().any(is_dear)
    }

    fn read_tools(&mut self, provider: Provider) {
        let (mut searches, mut foreign) = (false, None);
        for tool in self.body.get("tools").map(Json::list).unwrap_or_default() {
            match (provider, tool) {
                (Provider::Gemini, Json::Object(fields)) => {
                    for (name, _) in fields {
                        match name.as_str() {
                            "functionDeclarations" | "function_declarations" => {}
                            "googleSearch" | "google_search" | "urlContext" | "url_context"
                            | "codeExecution" | "code_execution" => searches = true,
                            other => foreign = Some(other.to_string()),
                        }
                    }
                }
                _ => match tool.get("type").and_then(Json::text).unwrap_or("function") {
                    kind if is_local(kind) => {}
                    kind if kind.starts_with("web_search") || kind.starts_with("web_fetch") => {
                        searches = true
                    }
                    other => foreign = Some(other.to_string()),
                },
            }
        }
        self.searches |= searches;
        let shown = |name: String| name.chars().take(64).collect();
        self.foreign_tool = self.foreign_tool.take().or(foreign.map(shown));
    }
}

/// Whether the client runs tools of this type itself.
fn is_local(kind: &str) -> bool {
    let named = ["function", "custom", "local_shell", "shell", "apply_patch", "namespace", "tool_search"];
    let dated = ["bash_", "text_editor_", "computer_20", "memory_", "tool_search_tool_"];
    named.contains(&kind) || dated.iter().any(|begins| kind.starts_with(begins))
}

fn is_set(object: &Json, name: &str) -> bool {
    object.get(name).is_some_and(|value| !value.is_null())
}

/// The spelling of a field that an object uses: Google's parsers take two.
fn spelling<'a>(object: &Json, [camel, snake]: [&'a str; 2]) -> &'a str {
    if object.get(snake).is_some() { snake } else { camel }
}

fn one_spelling<'j>(object: &'j Json, names: [&'static str; 2]) -> Result<Option<&'j Json>, BadCall> {
    if names.iter().all(|name| object.get(name).is_some()) {
        return Err(BadCall::Field(names[0], "is there in two spellings"));
    }
    Ok(object.get(spelling(object, names)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(uri: &str, body: &str) -> Result<Asked, BadCall> {
        Asked::read(&Call::read("POST", uri, None).unwrap(), body.as_bytes())
    }

    const CHAT: &str = "/openai/v1/chat/completions";
    const GEMINI: &str = "/gemini/v1beta/models/g:generateContent";

    #[test]
    fn the_limits_of_each_api_are_read() {
        let read = asked("/anthropic/v1/messages", r#"{"model":"m","max_tokens":7,"messages":[]}"#).unwrap();
        assert_eq!((read.model.as_str(), read.most_output, read.answers), ("m", Some(7), 1));
        let read = asked("/openai/v1/responses", r#"{"model":"m","previous_response_id":"r"}"#).unwrap();
        assert!(read.most_output.is_none() && read.input.is_open);
        let read = asked(CHAT, r#"{"model":"m","max_tokens":7,"max_completion_tokens":9,"n":3}"#).unwrap();
        assert_eq!((read.most_output, read.answers), (Some(9), 3));
        let read =
            asked(GEMINI, r#"{"generation_config":{"max_output_tokens":5,"candidateCount":2}}"#).unwrap();
        assert_eq!((read.model.as_str(), read.most_output, read.answers), ("g", Some(5), 2));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for (uri, body) in [
            ("/anthropic/v1/messages", r#"{"model":"a","model":"b","max_tokens":1}"#),
            ("/anthropic/v1/messages", r#"{"model":"a","max_tokens":-1}"#),
            ("/anthropic/v1/messages", r#"{"model":"a","max_tokens":"7"}"#),
            ("/anthropic/v1/messages", r#"{"model":"a","max_tokens":1.5}"#),
            ("/anthropic/v1/messages", r#"{"max_tokens":1}"#),
            ("/anthropic/v1/messages", "[]"),
            ("/anthropic/v1/messages", "{"),
            ("/openai/v1/responses", r#"{"model":"a","background":true}"#),
            (CHAT, r#"{"model":"a","n":-3}"#),
            (GEMINI, r#"{"generationConfig":{},"generation_config":{}}"#),
            (GEMINI, r#"{"generationConfig":{"maxOutputTokens":1,"max_output_tokens":9}}"#),
        ] {
            assert!(asked(uri, body).is_err(), "{body}");
        }
    }

    #[test]
    fn a_chat_stream_is_asked_for_its_usage() {
        let read = asked(CHAT, r#"{"model":"m","stream":true,"stream_options":{"x":1}}"#).unwrap();
        assert!(read.hides_usage);
        let sent = String::from_utf8(read.body()).unwrap();
        assert_eq!(sent, r#"{"model":"m","stream":true,"stream_options":{"x":1,"include_usage":true}}"#);
        let own = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
        let read = asked(CHAT, own).unwrap();
        assert!(!read.hides_usage && read.body() == own.as_bytes());
        assert!(!asked(CHAT, r#"{"model":"m"}"#).unwrap().hides_usage);
    }

    #[test]
    fn a_limit_is_lowered_where_the_client_wrote_it() {
        for (uri, body, sent) in [
            ("/anthropic/v1/messages", r#"{"max_tokens":9,"model":"m"}"#, r#"{"max_tokens":3,"model":"m"}"#),
            ("/openai/v1/responses", r#"{"model":"m"}"#, r#"{"model":"m","max_output_tokens":3}"#),
            (CHAT, r#"{"model":"m","max_tokens":9}"#, r#"{"model":"m","max_tokens":3}"#),
            (CHAT, r#"{"model":"m"}"#, r#"{"model":"m","max_completion_tokens":3}"#),
            (GEMINI, "{}", r#"{"generationConfig":{"maxOutputTokens":3}}"#),
            (
                GEMINI,
                r#"{"generation_config":{"max_output_tokens":9}}"#,
                r#"{"generation_config":{"max_output_tokens":3}}"#,
            ),
        ] {
            let mut read = asked(uri, body).unwrap();
            read.limit_output(3);
            assert_eq!(String::from_utf8(read.body()).unwrap(), sent);
            assert_eq!(asked(uri, sent).unwrap().most_output, Some(3));
        }
    }

    #[test]
    fn tools_and_tiers_with_prices_of_their_own_are_noticed() {
        let messages =
            |rest: &str| asked("/anthropic/v1/messages", &format!(r#"{{"model":"m",{rest}}}"#)).unwrap();
        assert!(messages(r#""service_tier":"priority""#).is_fast && messages(r#""speed":"fast""#).is_fast);
        assert!(messages(r#""service_tier":7"#).is_fast, "unknown is dear");
        assert!(!messages(r#""service_tier":"auto""#).is_fast);
        let read = messages(r#""tools":[{"name":"x","input_schema":{}},{"type":"bash_20250124"}]"#);
        assert!(!read.searches && read.foreign_tool.is_none());
        let read = messages(r#""tools":[{"type":"web_search_20250305"}]"#);
        assert!(read.searches && read.input.is_open);
        let read = messages(r#""tools":[{"type":"code_execution_20250522"}]"#);
        assert_eq!(read.foreign_tool.as_deref(), Some("code_execution_20250522"));
        let read = asked(GEMINI, r#"{"tools":[{"functionDeclarations":[]},{"googleSearch":{}}]}"#).unwrap();
        assert!(read.searches && read.foreign_tool.is_none());
    }
}
