//! Runs code in the code interpreters of sandboxes.

pub(super) mod contexts;
mod keep;
pub(super) mod notebook;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response, Sse, sse};
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, header};
use serde::Serialize;

use self::keep::Keeper;
use crate::app::App;
use crate::auth::{NamedId, Write};
use crate::body::Checked;
use crate::check;
use crate::error::ApiError;
use coffer_api_types::ErrorShape;
use coffer_api_types::code::{
    CodeEnd, CodeError, CodeFailed, CodeRan, CodeResult, CodeStarted, CodeSummary, NewCode,
};
use coffer_core::clock::rfc3339;
use coffer_fleet::code::{Call, CodeEnded, CodeOrder, CodeSettings, Language, Place, Step};

const HEARTBEAT: Duration = Duration::from_secs(15);
const LONGEST_CONTEXT: usize = 64;

fn language(name: Option<&str>) -> Result<Language, ApiError> {
    let name = name.unwrap_or("python");
    Language::parse(name)
        .ok_or_else(|| ApiError::invalid("language", format!("must be one of {}", Language::names())))
}

fn checked(new: NewCode, settings: &CodeSettings) -> Result<CodeOrder, ApiError> {
    if new.code.is_empty() {
        return Err(ApiError::invalid("code", "must not be empty"));
    }
    if new.code.contains('\0') {
        return Err(ApiError::invalid("code", "must not contain NUL"));
    }
    let place = match (new.context_id, new.language) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("context_id", "has a language of its own; leave out `language`"));
        }
        (Some(context), None) if (1..=LONGEST_CONTEXT).contains(&context.len()) => Place::Context(context),
        (Some(context), None) => {
            let shown: String = context.chars().take(LONGEST_CONTEXT).collect();
            return Err(ApiError::nothing("context", shown));
        }
        (None, name) => Place::Language(language(name.as_deref())?),
    };
    check::env(&new.env)?;
    let longest = i64::try_from(settings.longest_timeout.as_secs()).unwrap_or(i64::MAX);
    let usual = i64::try_from(settings.timeout.as_secs()).unwrap_or(i64::MAX);
    let timeout_s = new.timeout_s.unwrap_or(usual);
    if !(1..=longest).contains(&timeout_s) {
        return Err(ApiError::invalid("timeout_s", format!("must be between 1 and {longest}")));
    }
    let largest = i64::try_from(settings.most_output.as_bytes()).unwrap_or(i64::MAX);
    let most = new.max_output_bytes.unwrap_or(largest);
    if !(0..=largest).contains(&most) {
        return Err(ApiError::invalid("max_output_bytes", format!("must be between 0 and {largest}")));
    }
    Ok(CodeOrder {
        code: new.code,
        place,
        env: new.env,
        timeout: Duration::from_secs(timeout_s.unsigned_abs()),
        most: usize::try_from(most).unwrap_or(0),
    })
}

/// Runs code in the code interpreter of a sandbox and returns what it printed, showed and raised.
///
/// With `Accept: text/event-stream` the server streams that while it runs, as the events `start`, `stdout`, `stderr`,
/// `result`, `error` (of the code) and `end`, or `failed` if the sandbox or its interpreter failed. If the client
/// disconnects, or at the timeout, the code is interrupted; the interpreter's state stays. An error in the code is no
/// error of the request.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/code", tag = "code", request_body = NewCode, params(("id" = String, Path)),
    responses(
        (status = 200, body = CodeRan, description = "it ended or timed out"),
        (status = 403, body = ErrorShape, description = "also `command_refused`: the project's policy does not allow code"),
        (status = 409, body = ErrorShape, description = "the sandbox does not run; or `code_interpreter_missing`")
    )
)]
pub(super) async fn run(
    State(app): State<Arc<App>>,
    named: NamedId<Write>,
    headers: HeaderMap,
    Checked(new): Checked<NewCode>,
) -> Result<Response, ApiError> {
    let record =
        app.fleet.find(&named.caller.scope, named.id).ok_or_else(|| ApiError::no_sandbox(&named.text))?;
    let keeps = new.artifacts;
    let order = checked(new, &app.code.settings)?;
    let call = app.code.run(&record, order, Some(named.caller.key_id)).await;
    let call = call.map_err(|error| ApiError::from(error.explain(&named.text)))?;
    let keeper = keeps.then(|| Keeper::new(app.clone(), &named.caller, named.id, call.id));
    let mut told = Told { call, keeper, results: 0, unread: 0, sandbox: named.text, over: false };
    let wants_stream = headers.get_all(header::ACCEPT).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("text/event-stream"))
    });
    if wants_stream {
        let events =
            Sse::new(stream(told)).keep_alive(sse::KeepAlive::new().interval(HEARTBEAT).text("alive"));
        return Ok(events.into_response());
    }
    let (mut stdout, mut stderr, mut results, mut error) = (String::new(), String::new(), Vec::new(), None);
    loop {
        match told.next().await? {
            Happening::Stdout(text) => stdout.push_str(&text),
            Happening::Stderr(text) => stderr.push_str(&text),
            Happening::Result(result) => results.push(*result),
            Happening::Error(first) => drop(error.get_or_insert(first)),
            Happening::Ended(_, summary) => {
                return Ok(
                    Json(CodeRan { stdout, stderr, results, error, summary: *summary }).into_response()
                );
            }
        }
    }
}

/// What a caller hears next.
enum Happening {
    Stdout(String),
    Stderr(String),
    Result(Box<CodeResult>),
    Error(CodeError),
    /// The last one.
    Ended(bool, Box<CodeSummary>),
}

/// Code that runs, and what becomes of its results.
struct Told {
    call: Call,
    keeper: Option<Keeper>,
    results: u64,
    /// Bytes of results that could not be read.
    unread: u64,
    sandbox: String,
    over: bool,
}

impl Told {
    async fn next(&mut self) -> Result<Happening, ApiError> {
        loop {
            let step = self.call.next().await.ok_or_else(ApiError::internal)?;
            return Ok(match step {
                Step::Stdout(text) => Happening::Stdout(text),
                Step::Stderr(text) => Happening::Stderr(text),
                Step::Result(json) => match serde_json::from_str::<CodeResult>(json.get()) {
                    Ok(result) => {
                        if let Some(keeper) = &mut self.keeper {
                            keeper.take(self.results, &result);
                        }
                        self.results += 1;
                        Happening::Result(Box::new(result))
                    }
                    // Such as half a surrogate pair in a text.
                    Err(_) => {
                        self.unread += json.get().len() as u64;
                        continue;
                    }
                },
                Step::Error(json) => Happening::Error(serde_json::from_str(json.get()).unwrap_or_default()),
                Step::Ended(ended) => {
                    let summary = self.summary(&ended).await;
                    Happening::Ended(ended.failed, Box::new(summary))
                }
                Step::Failed(error) => return Err(error.explain(&self.sandbox).into()),
            });
        }
    }

    async fn summary(&mut self, ended: &CodeEnded) -> CodeSummary {
        let (artifacts, artifacts_error) = match self.keeper.take() {
            Some(keeper) => keeper.keep().await,
            None => (Vec::new(), None),
        };
        let duration_ms = i64::try_from(ended.duration.as_millis()).unwrap_or(i64::MAX);
        let dropped_bytes = ended.dropped_bytes + self.unread;
        CodeSummary {
            execution_id: self.call.id.to_string(),
            language: self.call.language.clone(),
            context_id: self.call.context.clone(),
            execution_count: ended.execution_count,
            timed_out: ended.timed_out,
            truncated: dropped_bytes > 0,
            dropped_bytes,
            stdout_bytes: ended.stdout_bytes,
            stderr_bytes: ended.stderr_bytes,
            artifacts,
            artifacts_error,
            started_at: rfc3339(self.call.started_ms),
            ended_at: rfc3339(self.call.started_ms + duration_ms),
            duration_ms,
        }
    }
}

/// The events of a call. Dropping them interrupts the code.
fn stream(told: Told) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let start = CodeStarted {
        execution_id: told.call.id.to_string(),
        language: told.call.language.clone(),
        context_id: told.call.context.clone(),
    };
    let start = futures_util::stream::once(std::future::ready(event("start", &start)));
    let events = futures_util::stream::unfold(told, async |mut told| {
        if told.over {
            return None;
        }
        let next = match told.next().await {
            Ok(Happening::Stdout(text)) => event("stdout", &serde_json::json!({ "data": text })),
            Ok(Happening::Stderr(text)) => event("stderr", &serde_json::json!({ "data": text })),
            Ok(Happening::Result(result)) => event("result", &result),
            Ok(Happening::Error(error)) => event("error", &error),
            Ok(Happening::Ended(failed, summary)) => {
                told.over = true;
                event("end", &CodeEnd { failed, results: told.results, summary: *summary })
            }
            Err(error) => {
                told.over = true;
                let (code, message, hint) = error.into_parts();
                event("failed", &CodeFailed { code: code.to_string(), message, hint })
            }
        };
        Some((next, told))
    });
    start.chain(events).map(Ok)
}

fn event(name: &str, data: &impl Serialize) -> sse::Event {
    sse::Event::default().event(name).data(serde_json::to_string(data).expect("plain data"))
}
