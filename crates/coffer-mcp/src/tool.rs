//! What a tool is: a name, a description, schemas of what it takes and returns, and a function.

use std::sync::Arc;

use coffer_client::{Client, Error};
use futures_util::future::BoxFuture;
use rmcp::RoleServer;
use rmcp::handler::server::tool::{schema_for_input, schema_for_output};
use rmcp::model::{
    CallToolResult, ContentBlock, JsonObject, MetaObject, ProgressNotificationParam, ToolAnnotations,
};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::plain::plain;

/// The longest text of a result, whatever a tool makes of its own bounds.
const LONGEST_TEXT: usize = 160 << 10;

/// One call.
#[derive(Debug)]
pub(crate) struct Call {
    /// Sends requests with the caller's key.
    pub(crate) client: Client,
    context: RequestContext<RoleServer>,
}

impl Call {
    pub(crate) fn new(client: Client, context: RequestContext<RoleServer>) -> Self {
        Self { client, context }
    }

    /// Returns when the client no longer wants the result.
    pub(crate) async fn cancelled(&self) {
        self.context.ct.cancelled().await;
    }

    /// Whether the client asked for progress.
    pub(crate) fn wants_progress(&self) -> bool {
        self.context.meta.get_progress_token().is_some()
    }

    /// Says how far the work is; `progress` grows from call to call.
    pub(crate) async fn tell(&self, progress: f64, message: String) {
        if let Some(token) = self.context.meta.get_progress_token() {
            let told = ProgressNotificationParam::new(token, progress).with_message(plain(&message));
            // A client that has gone needs none.
            let _gone = self.context.peer.notify_progress(told).await;
        }
    }
}

/// The result of a call: for programs, and in words.
#[derive(Debug)]
pub(crate) struct Outcome<T> {
    pub(crate) text: String,
    pub(crate) result: T,
    pub(crate) images: Vec<Image>,
}

/// An image that a model can see.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) base64: String,
    pub(crate) mime_type: &'static str,
}

impl<T> Outcome<T> {
    pub(crate) fn new(text: impl Into<String>, result: T) -> Self {
        Self { text: text.into(), result, images: Vec::new() }
    }
}

/// Why a call has no result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Failure {
    pub(crate) code: String,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// Names the request in the server's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
}

impl Failure {
    pub(crate) fn bad_request(message: impl Into<String>, hint: impl Into<String>) -> Self {
        let (message, hint) = (message.into(), Some(hint.into()));
        Self { code: "bad_request".into(), message, hint, request_id: None }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let Some(refusal) = error.refusal() else {
            let hint = match &error {
                Error::Unreachable { .. } => Some("check that the server runs, and COFFER_URL".to_string()),
                error if error.is_transient() => Some("try again in a moment".to_string()),
                _ => None,
            };
            let code = if error.is_transient() { "unavailable" } else { "unknown" };
            return Self { code: code.into(), message: error.to_string(), hint, request_id: None };
        };
        let wait = refusal.retry_after.map(|wait| format!("try again in {} s", wait.as_secs()));
        Self {
            code: refusal.code.clone(),
            message: refusal.message.clone(),
            hint: refusal.hint.clone().or(wait),
            request_id: refusal.request_id.clone(),
        }
    }
}

type Result<T> = std::result::Result<T, Failure>;
type Run = Arc<dyn Fn(Call, JsonObject) -> BoxFuture<'static, CallToolResult> + Send + Sync>;

/// A tool with its function.
pub(crate) struct Tool {
    pub(crate) description: rmcp::model::Tool,
    run: Run,
}

/// What a tool does to the world, as clients show it to people.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Effect {
    Reads,
    /// Adds, and a repetition adds again.
    Adds,
    /// Sets something; a repetition changes nothing.
    Sets,
    /// May delete or overwrite.
    Destroys {
        again: bool,
    },
}

impl Tool {
    pub(crate) fn new<I, O, F, W>(
        name: &'static str,
        title: &str,
        about: &'static str,
        effect: Effect,
        function: F,
    ) -> Self
    where
        I: DeserializeOwned + JsonSchema + Send + 'static,
        O: Serialize + JsonSchema + 'static,
        F: Fn(Call, I) -> W + Copy + Send + Sync + 'static,
        W: Future<Output = Result<Outcome<O>>> + Send + 'static,
    {
        let hints = ToolAnnotations::with_title(title);
        let hints = match effect {
            Effect::Reads => hints.read_only(true).idempotent(true).destructive(false),
            Effect::Adds => hints.read_only(false).destructive(false).idempotent(false),
            Effect::Sets => hints.read_only(false).destructive(false).idempotent(true),
            Effect::Destroys { again } => hints.read_only(false).destructive(true).idempotent(again),
        };
        let input = schema_for_input::<I>().expect("inputs are structs; a test makes every tool");
        let description = rmcp::model::Tool::new(name, about, input)
            .with_title(title)
            .with_raw_output_schema(schema_for_output::<O>())
            .with_annotations(hints.open_world(true));
        let run: Run = Arc::new(move |call, arguments| {
            Box::pin(async move {
                let input = match serde_json::from_value::<I>(Value::Object(arguments)) {
                    Ok(input) => input,
                    Err(error) => {
                        let hint = "the tool's input schema names every field";
                        return failed(&Failure::bad_request(format!("{name}: {error}"), hint));
                    }
                };
                match function(call, input).await {
                    Ok(outcome) => succeeded(outcome),
                    Err(failure) => failed(&failure),
                }
            })
        });
        Self { description, run }
    }

    pub(crate) async fn call(&self, call: Call, arguments: JsonObject) -> CallToolResult {
        (self.run)(call, arguments).await
    }
}

fn succeeded(outcome: Outcome<impl Serialize>) -> CallToolResult {
    let text = crate::cut::text(&plain(&outcome.text), LONGEST_TEXT);
    let images = outcome.images.into_iter().map(|image| ContentBlock::image(image.base64, image.mime_type));
    let content = std::iter::once(ContentBlock::text(text)).chain(images).collect();
    let mut result = CallToolResult::success(content);
    result.structured_content = serde_json::to_value(outcome.result).ok().map(clean);
    result
}

/// The same rules for every text in a structured result.
fn clean(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(plain(&text)),
        Value::Array(items) => Value::Array(items.into_iter().map(clean).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, clean(value))).collect())
        }
        other => other,
    }
}

/// An error that a model can read. It has no structured content, which clients would compare with the tool's schema.
pub(crate) fn failed(failure: &Failure) -> CallToolResult {
    let mut text = format!("{}: {}", failure.code, failure.message);
    if let Some(hint) = &failure.hint {
        text.push_str(&format!("\nhint: {hint}"));
    }
    let mut result =
        CallToolResult::error(vec![ContentBlock::text(crate::cut::text(&plain(&text), LONGEST_TEXT))]);
    let mut meta = MetaObject::new();
    if let Ok(value) = serde_json::to_value(failure) {
        meta.0.insert("coffer/error".into(), clean(value));
    }
    result.meta = Some(meta);
    result
}
