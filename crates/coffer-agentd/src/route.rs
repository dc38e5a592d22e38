//! Routes requests to the part that handles them.

use std::sync::Arc;
use std::time::Duration;

use coffer_wire::agentd::{Init, JournalAck};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use crate::agent::{Access, Agent, access};
use crate::query::Query;
use crate::reply::{self, Refusal, Reply};
use crate::{files, process, tunnel, unpack, volume};

/// The largest JSON body of a plain HTTP route; environment variables are the only large one.
const JSON_LIMIT: usize = 4 << 20;

/// Routes of the files of a volume.
const VOLUME: &str = "/coffer/volume/";

/// Where a request came in, which decides what it may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The socket on the host: the server.
    Server,
    /// The port inside: anything that runs in the sandbox.
    Inside,
}

pub(crate) async fn answer(agent: Arc<Agent>, door: Door, request: Request<Incoming>) -> Reply {
    let origin = request.headers().contains_key(header::ORIGIN);
    let mut reply = if request.method() == Method::OPTIONS {
        preflight(request.headers())
    } else {
        dispatch(agent, door, request).await
    };
    let headers = reply.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    if origin {
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    }
    reply
}

async fn dispatch(agent: Arc<Agent>, door: Door, request: Request<Incoming>) -> Reply {
    if request.method() == Method::CONNECT {
        return match door {
            Door::Server => tunnel::open(request).await,
            Door::Inside => not_found(),
        };
    }
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let method = match &parts.method {
        // The HTTP layer omits the body of the answer.
        &Method::HEAD => Method::GET,
        method => method.clone(),
    };

    match (&method, path, door) {
        (&Method::GET, "/health", _) => {
            return not_stored(reply::empty(StatusCode::NO_CONTENT));
        }
        (&Method::GET, "/files", _) => {
            return files::download(&agent, &parts, &query).await;
        }
        (&Method::POST, "/files", _) => {
            return files::upload(&agent, &parts.headers, &query, body).await;
        }
        (&Method::POST, "/init", Door::Server) => return init(&agent, body).await,
        (&Method::GET, "/coffer/journal", Door::Server) => return journal(&agent, &query).await,
        (&Method::POST, "/coffer/journal/ack", Door::Server) => {
            return acknowledge(&agent, body).await;
        }
        (&Method::POST, "/coffer/unpack", Door::Server) => {
            return unpack::unpack(&agent, &query, body).await;
        }
        (method, path, Door::Server) if path.starts_with(VOLUME) => {
            return volume::answer(method, &path[VOLUME.len()..], &query, body).await;
        }
        (_, "/init", Door::Inside) => return not_found(),
        (_, path, Door::Inside) if path.starts_with("/coffer/") => return not_found(),
        _ => {}
    }

    if access(&parts.headers, &agent.init()) != Access::Granted {
        return Refusal::unauthorized(
            "unauthorized access, please provide a valid access token or method signing if \
             supported",
        )
        .reply();
    }
    if let Some((service, name)) = path
        .strip_prefix('/')
        .and_then(|path| path.split_once('/'))
        .filter(|(service, _)| matches!(*service, "process.Process" | "filesystem.Filesystem"))
    {
        if method != Method::POST {
            return method_not_allowed("POST");
        }
        let replied = if service == "process.Process" {
            process::call(&agent, name, &parts.headers, body).await
        } else {
            files::call(&agent, name, &parts.headers, body).await
        };
        return replied.unwrap_or_else(not_found);
    }
    match (&method, path) {
        (&Method::GET, "/metrics") => {
            not_stored(reply::json(StatusCode::OK, &agent.meter.read(&agent.init())))
        }
        (&Method::GET, "/envs") => not_stored(reply::json(StatusCode::OK, &agent.init().env_vars)),
        (&Method::POST, "/files/compose") => match read_json(body).await {
            Ok(asked) => files::compose(&agent, asked).await,
            Err(refusal) => refusal.reply(),
        },
        (_, "/health" | "/metrics" | "/envs") => method_not_allowed("GET"),
        (_, "/files") => method_not_allowed("GET, POST"),
        (_, "/init" | "/files/compose") => method_not_allowed("POST"),
        _ => not_found(),
    }
}

async fn init(agent: &Agent, body: Incoming) -> Reply {
    match read_json::<Init>(body).await {
        Ok(init) => {
            agent.set_init(init);
            agent.begin_service().await;
            not_stored(reply::empty(StatusCode::NO_CONTENT))
        }
        Err(refusal) => refusal.reply(),
    }
}

async fn journal(agent: &Agent, query: &Query) -> Reply {
    let number = |name| query.get(name).unwrap_or("0").parse::<u64>();
    match (number("from"), number("wait")) {
        (Ok(from), Ok(wait)) => {
            let page = agent.journal.page_within(from, Duration::from_secs(wait)).await;
            not_stored(reply::json(StatusCode::OK, &page))
        }
        _ => Refusal::bad_request("`from` is not an offset, or `wait` is not a number of seconds").reply(),
    }
}

async fn acknowledge(agent: &Agent, body: Incoming) -> Reply {
    match read_json::<JournalAck>(body).await {
        Ok(ack) => {
            agent.journal.acknowledge(&ack, |pid| agent.processes.lives(pid));
            reply::empty(StatusCode::NO_CONTENT)
        }
        Err(refusal) => refusal.reply(),
    }
}

async fn read_json<T: DeserializeOwned>(body: Incoming) -> Result<T, Refusal> {
    let bytes = Limited::new(body, JSON_LIMIT)
        .collect()
        .await
        .map_err(|error| Refusal::bad_request(format!("could not read the request: {error}")))?
        .to_bytes();
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(bytes)
        .map_err(|error| Refusal::bad_request(format!("invalid request body: {error}")))
}

fn not_stored(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply
}

fn not_found() -> Reply {
    Refusal::not_found("not found").reply()
}

fn method_not_allowed(allowed: &'static str) -> Reply {
    let mut reply = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed").reply();
    reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    reply
}

/// Answers CORS preflight requests; `*` does not cover `Authorization`, so the headers are echoed.
fn preflight(asked: &HeaderMap) -> Reply {
    let mut reply = reply::empty(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
    );
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned().unwrap_or(HeaderValue::from_static("*")),
    );
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    reply
}
