//! Which requests pass the gateway.

use super::Provider;

/// A request that passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub provider: Provider,
    pub kind: CallKind,
    /// Its path and query below the provider's URL.
    pub path: String,
    /// The model, where the path names it.
    pub model: Option<String>,
    /// Whether the path asks for a stream.
    pub streams: bool,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Responses.
    Responses,
    /// OpenAI's Chat Completions.
    Chat,
    /// Gemini's `generateContent` and `streamGenerateContent`.
    Generate,
    /// Counts tokens, at no cost.
    CountTokens,
    /// Lists models, at no cost.
    Models,
}

impl CallKind {
    /// Its name in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Responses => "responses",
            Self::Chat => "chat",
            Self::Generate => "generate",
            Self::CountTokens => "count_tokens",
            Self::Models => "models",
        }
    }

    /// Whether the provider charges for it.
    pub const fn is_billed(self) -> bool {
        !matches!(self, Self::CountTokens | Self::Models)
    }

    pub const fn has_body(self) -> bool {
        !matches!(self, Self::Models)
    }
}

/// The request is for something that does not pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} does not pass the model gateway; it passes /anthropic/v1/messages, /anthropic/v1/messages/count_tokens, \
     /openai/v1/responses, /openai/v1/chat/completions, generateContent, streamGenerateContent and countTokens of \
     /gemini/v1beta/models, and lists of models"
)]
pub struct NotACall(String);

/// Parameters of a query that are passed on. Others are dropped; `key` may have a dummy.
const PASSED_ON: [&str; 7] = ["beta", "alt", "limit", "after_id", "before_id", "pageSize", "pageToken"];

impl Call {
    /// Reads a request's first line. The path begins with the provider's name.
    pub fn read(method: &str, path: &str, query: Option<&str>) -> Result<Self, NotACall> {
        let shown = || NotACall(format!("{method} {}", path.chars().take(120).collect::<String>()));
        let rest = path.strip_prefix('/').ok_or_else(shown)?;
        let (name, rest) = rest.split_once('/').ok_or_else(shown)?;
        let provider = Provider::parse(name).ok_or_else(shown)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        // Clients differ in whether the version is a part of their base URL.
        let (version, rest) = match rest.split_once('/') {
            Some((version @ ("v1" | "v1beta" | "v1alpha"), rest)) => (version, rest),
            _ if provider == Provider::Gemini => ("v1beta", rest),
            _ => ("v1", rest),
        };
        if provider != Provider::Gemini && version != "v1" {
            return Err(shown());
        }
        let (mut model, mut streams) = (None, false);
        let kind = match (provider, method, rest) {
            (Provider::Anthropic, "POST", "messages") => CallKind::Messages,
            (Provider::Anthropic, "POST", "messages/count_tokens") => CallKind::CountTokens,
            (Provider::OpenAi, "POST", "responses") => CallKind::Responses,
            (Provider::OpenAi, "POST", "chat/completions") => CallKind::Chat,
            (_, "GET", "models") => CallKind::Models,
            (_, "GET", one) if one.strip_prefix("models/").is_some_and(is_model) => CallKind::Models,
            (Provider::Gemini, "POST", one) => {
                let (name, verb) =
                    one.strip_prefix("models/").and_then(|one| one.split_once(':')).ok_or_else(shown)?;
                model = Some(name.to_string()).filter(|name| is_model(name));
                if model.is_none() {
                    return Err(shown());
                }
                streams = verb == "streamGenerateContent";
                match verb {
                    "generateContent" | "streamGenerateContent" => CallKind::Generate,
                    "countTokens" => CallKind::CountTokens,
                    _ => return Err(shown()),
                }
            }
            _ => return Err(shown()),
        };
        let query = kept(query.unwrap_or_default());
        let path = match query.is_empty() {
            true => format!("/{version}/{rest}"),
            false => format!("/{version}/{rest}?{query}"),
        };
        Ok(Self { provider, kind, path, model, streams })
    }

    /// The same call for another model, where the path names it; `None` if such a path is not possible.
    pub fn with_model(&self, model: &str) -> Option<Self> {
        let Some(old) = &self.model else { return Some(self.clone()) };
        let path = self.path.replacen(&format!("/models/{old}:"), &format!("/models/{model}:"), 1);
        is_model(model).then(|| Self { path, model: Some(model.to_string()), ..self.clone() })
    }
}

fn kept(query: &str) -> String {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_-.=%".contains(&b);
    let is_kept = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        PASSED_ON.contains(&name) && pair.len() <= 256 && pair.bytes().all(fits)
    };
    query.split('&').filter(is_kept).collect::<Vec<_>>().join("&")
}

/// Whether a text can be the name of a model in a path.
fn is_model(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=128).contains(&text.len()) && text.bytes().all(fits) && !text.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &str, uri: &str) -> Result<(CallKind, String), NotACall> {
        let (path, query) = uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
        Call::read(method, path, query).map(|call| (call.kind, call.path))
    }

    #[test]
    fn what_agents_ask_passes() {
        for (method, uri, kind, path) in [
            ("POST", "/anthropic/v1/messages?beta=true", CallKind::Messages, "/v1/messages?beta=true"),
            (
                "POST",
                "/anthropic/v1/messages/count_tokens",
                CallKind::CountTokens,
                "/v1/messages/count_tokens",
            ),
            ("POST", "/openai/v1/responses", CallKind::Responses, "/v1/responses"),
            ("POST", "/openai/chat/completions", CallKind::Chat, "/v1/chat/completions"),
            ("GET", "/openai/v1/models", CallKind::Models, "/v1/models"),
            ("GET", "/anthropic/v1/models/claude-x", CallKind::Models, "/v1/models/claude-x"),
            (
                "POST",
                "/gemini/v1beta/models/gemini-3:streamGenerateContent?key=dummy&alt=sse",
                CallKind::Generate,
                "/v1beta/models/gemini-3:streamGenerateContent?alt=sse",
            ),
        ] {
            assert_eq!(read(method, uri), Ok((kind, path.to_string())));
        }
    }

    #[test]
    fn nothing_else_does() {
        for (method, uri) in [
            ("GET", "/"),
            ("POST", "/v1/messages"),
            ("GET", "/anthropic/v1/messages"),
            ("POST", "/anthropic/v1/messages/batches"),
            ("POST", "/anthropic/v1beta/messages"),
            ("POST", "/anthropic/../openai/v1/responses"),
            ("POST", "/openai/v1/files"),
            ("GET", "/openai/v1/responses/resp_1"),
            ("POST", "/openai/v1/images/generations"),
            ("POST", "/gemini/v1beta/cachedContents"),
            ("POST", "/gemini/v1beta/models/a/b:generateContent"),
            ("POST", "/gemini/v1beta/models/..:generateContent"),
            ("POST", "/gemini/v1beta/models/x:batchGenerateContent"),
            ("DELETE", "/openai/v1/models/x"),
            ("GET", "/openai/v1/models/x/../../files"),
        ] {
            assert!(read(method, uri).is_err(), "{method} {uri}");
        }
    }
}
