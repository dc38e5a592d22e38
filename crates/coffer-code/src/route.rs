//! E2B's routes of the code interpreter, with its statuses and bodies.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::context::{Call, Context};
use crate::contexts::{Contexts, NoContext};
use crate::language::Variables;
use crate::service::Service;
use crate::stream;
use crate::task;

const LARGEST: usize = 16 << 20;
/// A client that still sends does not hear why it is refused: so much is read and forgotten.
const READ_PAST: usize = 256 << 20;

pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

#[derive(Debug, Deserialize)]
struct Execute {
    code: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    env_vars: Option<Variables>,
}

#[derive(Debug, Deserialize)]
struct Create {
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    cwd: Option<String>,
}

pub(crate) async fn answer(service: Arc<Service>, request: Request<Incoming>) -> Answer {
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let contexts = &service.contexts;
    let mut answer = match (&method, parts.as_slice()) {
        (&Method::OPTIONS, _) => text(StatusCode::OK, "OK"),
        (&Method::GET, ["health"]) if service.is_ready() => json_body(StatusCode::OK, &json!("OK")),
        (&Method::GET, ["health"]) => text(StatusCode::SERVICE_UNAVAILABLE, "the kernels are starting"),
        (&Method::POST, ["execute"]) => execute(contexts, request).await,
        (&Method::GET, ["contexts"]) => {
            let listed: Vec<Value> = contexts.list().iter().map(|context| shape(context)).collect();
            json_body(StatusCode::OK, &Value::Array(listed))
        }
        (&Method::POST, ["contexts"]) => create(contexts, request).await,
        (&Method::POST, ["contexts", id, "restart"]) => restart(contexts, id).await,
        (&Method::DELETE, ["contexts", id]) => match contexts.remove(id) {
            Ok(()) => json_body(StatusCode::OK, &Value::Null),
            Err(error) => refuse(contexts, &error),
        },
        (_, ["health" | "execute" | "contexts"] | ["contexts", _] | ["contexts", _, "restart"]) => {
            json_body(StatusCode::METHOD_NOT_ALLOWED, &json!({"detail": "Method Not Allowed"}))
        }
        _ => json_body(StatusCode::NOT_FOUND, &json!({"detail": "Not Found"})),
    };
    for name in ["origin", "methods", "headers"] {
        let name = format!("access-control-allow-{name}");
        if let Ok(name) = http::HeaderName::try_from(name) {
            answer.headers_mut().insert(name, HeaderValue::from_static("*"));
        }
    }
    answer
}

async fn execute(contexts: &Contexts, request: Request<Incoming>) -> Answer {
    let token = request.headers().get("x-access-token").cloned();
    let asked: Execute = match read(request).await {
        Ok(asked) => asked,
        Err(answer) => return answer,
    };
    let found = match (asked.context_id, asked.language) {
        (Some(_), Some(_)) => {
            return text(StatusCode::BAD_REQUEST, "Only one of context_id or language can be provided");
        }
        (Some(id), None) => contexts.get(&id),
        (None, language) => contexts
            .language(language.as_deref().unwrap_or("python"))
            .and_then(|language| contexts.default_of(language)),
    };
    let context = match found {
        Ok(context) => context,
        Err(error) => return refuse(contexts, &error),
    };
    let (sink, lines) = stream::open();
    let call = Call { code: asked.code, variables: asked.env_vars.unwrap_or_default(), token };
    task::spawn(context.perform(call, sink));
    Response::new(lines.boxed_unsync())
}

async fn create(contexts: &Contexts, request: Request<Incoming>) -> Answer {
    let asked: Create = match read(request).await {
        Ok(asked) => asked,
        Err(answer) => return answer,
    };
    let made = contexts
        .language(asked.language.as_deref().unwrap_or("python"))
        .and_then(|language| contexts.create(language, asked.cwd));
    let context = match made {
        Ok(context) => context,
        Err(error) => return refuse(contexts, &error),
    };
    match context.open().await {
        Ok(()) => json_body(StatusCode::OK, &shape(&context)),
        Err(error) => {
            // It is ours, and was there a moment ago.
            let _gone = contexts.remove(&context.id);
            unstarted(&context, &error)
        }
    }
}

async fn restart(contexts: &Contexts, id: &str) -> Answer {
    let context = match contexts.get(id) {
        Ok(context) => context,
        Err(error) => return refuse(contexts, &error),
    };
    match context.restart().await {
        Ok(()) => json_body(StatusCode::OK, &Value::Null),
        Err(error) => unstarted(&context, &error),
    }
}

fn unstarted(context: &Context, error: &std::io::Error) -> Answer {
    let why = format!("{} could not be started: {error}", context.language.name());
    text(StatusCode::INTERNAL_SERVER_ERROR, &why)
}

fn refuse(contexts: &Contexts, error: &NoContext) -> Answer {
    let status = match error {
        NoContext::Unknown(_) => StatusCode::NOT_FOUND,
        NoContext::NoLanguage(_) => StatusCode::INTERNAL_SERVER_ERROR,
        NoContext::Full => StatusCode::TOO_MANY_REQUESTS,
    };
    text(status, &error.explain(&contexts.installed()))
}

fn shape(context: &Context) -> Value {
    json!({"id": context.id, "language": context.language.name(), "cwd": context.directory})
}

/// The body, or the answer of E2B's framework to one that it cannot read.
async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Answer> {
    let mut body = request.into_body();
    let (mut kept, mut count) = (BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(text(StatusCode::BAD_REQUEST, "the request was cut")) };
        let data = frame.into_data().unwrap_or_default();
        count += data.len();
        if count <= LARGEST {
            kept.extend_from_slice(&data);
        } else if count > READ_PAST {
            break;
        }
    }
    if count > LARGEST {
        let why = format!("a request may have {} MiB", LARGEST >> 20);
        return Err(text(StatusCode::PAYLOAD_TOO_LARGE, &why));
    }
    let body = kept.freeze();
    serde_json::from_slice(&body).map_err(|error| {
        let kind = if error.is_data() { "value_error" } else { "json_invalid" };
        let detail = json!([{"type": kind, "loc": ["body"], "msg": error.to_string(), "input": {}}]);
        json_body(StatusCode::UNPROCESSABLE_ENTITY, &json!({"detail": detail}))
    })
}

fn json_body(status: StatusCode, value: &Value) -> Answer {
    with_type(status, "application/json", value.to_string())
}

fn text(status: StatusCode, text: &str) -> Answer {
    with_type(status, "text/plain; charset=utf-8", text.to_string())
}

fn with_type(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    *answer.status_mut() = status;
    let headers: &mut HeaderMap = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
