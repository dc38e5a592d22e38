//! A fake code interpreter on port 49999 of a fake sandbox. The first word of code says what it does.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use serde_json::{Value, json};
use tokio::sync::watch;

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// The port that it has in every sandbox.
pub const PORT: u16 = 49999;
/// As many as the real one allows would take longer.
const MOST_CONTEXTS: usize = 4;

/// Records what it was asked, and how often code was interrupted.
#[derive(Debug)]
pub struct Interpreter {
    installed: watch::Sender<bool>,
    pub executed: Mutex<Vec<Value>>,
    contexts: Mutex<Vec<(String, String, String)>>,
    pub interrupted: watch::Sender<usize>,
}

impl Default for Interpreter {
    fn default() -> Self {
        Self {
            installed: watch::Sender::new(false),
            executed: Mutex::default(),
            contexts: Mutex::new(vec![("default-python".into(), "python".into(), "/home/user".into())]),
            interrupted: watch::Sender::new(0),
        }
    }
}

/// Counts an interruption if it is dropped before the end.
struct Running(Arc<Interpreter>, bool);

impl Running {
    fn finish(mut self) {
        self.1 = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.1 {
            self.0.interrupted.send_modify(|count| *count += 1);
        }
    }
}

impl Interpreter {
    /// From now on the sandbox has one.
    pub fn install(&self) {
        self.installed.send_replace(true);
    }

    pub fn is_installed(&self) -> bool {
        *self.installed.borrow()
    }

    /// Waits until code was interrupted this often.
    pub async fn was_interrupted(&self, times: usize) {
        let mut seen = self.interrupted.subscribe();
        let waiting = seen.wait_for(|count| *count >= times);
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("an interrupt in time").unwrap();
    }

    /// Serves a tunnel.
    pub(crate) async fn serve(self: Arc<Self>, tunnel: OnUpgrade) {
        let Ok(tunnel) = tunnel.await else { return };
        let service = service_fn(|request| {
            let this = self.clone();
            async move { Ok::<_, Infallible>(this.answer(request).await) }
        });
        let _ended = hyper::server::conn::http1::Builder::new().serve_connection(tunnel, service).await;
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
        let shape = |(id, language, cwd): &(String, String, String)| json!({"id": id, "language": language, "cwd": cwd});
        match (&parts.method, path.as_slice()) {
            (&Method::GET, ["contexts"]) => {
                let all: Vec<Value> = self.contexts.lock().unwrap().iter().map(shape).collect();
                said(StatusCode::OK, json!(all).to_string())
            }
            (&Method::POST, ["contexts"]) => {
                let mut contexts = self.contexts.lock().unwrap();
                if contexts.len() >= MOST_CONTEXTS {
                    return said(StatusCode::TOO_MANY_REQUESTS, "there are 4 contexts already".into());
                }
                let text = |name: &str, usual: &str| body[name].as_str().unwrap_or(usual).to_string();
                let made = (
                    format!("context-{}", contexts.len()),
                    text("language", "python"),
                    text("cwd", "/home/user"),
                );
                contexts.push(made.clone());
                said(StatusCode::OK, shape(&made).to_string())
            }
            (&Method::POST, ["contexts", id, "restart"]) => self.known(id),
            (&Method::DELETE, ["contexts", id]) => {
                let reply = self.known(id);
                self.contexts.lock().unwrap().retain(|context| context.0 != *id);
                reply
            }
            (&Method::POST, ["execute"]) => {
                let mut order = body.clone();
                order["token"] = json!(parts.headers.get("x-access-token").and_then(|it| it.to_str().ok()));
                self.executed.lock().unwrap().push(order);
                self.execute(body["code"].as_str().unwrap_or_default())
            }
            _ => said(StatusCode::NOT_FOUND, "Not Found".into()),
        }
    }

    fn known(&self, id: &str) -> Reply {
        match self.contexts.lock().unwrap().iter().any(|context| context.0 == id) {
            true => said(StatusCode::OK, "null".into()),
            false => said(StatusCode::NOT_FOUND, format!("Context {id} not found")),
        }
    }

    fn execute(self: Arc<Self>, code: &str) -> Reply {
        let (what, rest) = code.split_once(' ').unwrap_or((code, ""));
        let print = |text: &str| json!({"type": "stdout", "text": text, "timestamp": "now"});
        let mut lines = vec![json!({"type": "number_of_executions", "execution_count": 7}).to_string()];
        let (mut ends, mut hangs) = (true, false);
        match what {
            "print" => lines.push(print(rest).to_string()),
            "warn" => lines.push(json!({"type": "stderr", "text": rest}).to_string()),
            "show" => {
                lines.push(print("before\n").to_string());
                lines.push(
                    r#"{"type":"result","text":"<Figure>","png":"aGVs\nbG8=","chart":{"type":"bar","z":1,"a":[2]},"data":{"z":[1],"a":[2]},"extra":{"application/x-own":{"b":1}},"is_main_result":false}"#
                        .to_string(),
                );
                lines.push(json!({"type": "keepalive"}).to_string());
                lines.push(print("after\n").to_string());
                lines.push(json!({"type": "result", "text": rest, "extra": {}, "is_main_result": true}).to_string());
            }
            "raise" => lines.push(
                json!({"type": "error", "name": "ZeroDivisionError", "value": rest, "traceback": "line 1\nline 2"})
                    .to_string(),
            ),
            "flood" => {
                let text = print(&"x".repeat(1 << 16)).to_string();
                lines.extend(std::iter::repeat_n(text, rest.parse().unwrap()));
            }
            "long" => lines.push(format!("{{\"type\":\"result\",\"text\":\"{}\"}}", "y".repeat(17 << 20))),
            "deep" => lines.push(format!("{{\"type\":\"result\",\"json\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000))),
            "nonsense" => lines.push("<html>".into()),
            "die" => {
                lines.push(print("last words\n").to_string());
                ends = false;
            }
            "hang" => {
                lines.push(print("hanging\n").to_string());
                hangs = true;
            }
            "missing" => {
                return said(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "language 'r' is not installed; there are python".into(),
                );
            }
            _ => lines.push(
                json!({"type": "result", "text": "2", "extra": {}, "is_main_result": true}).to_string(),
            ),
        }
        if ends && !hangs {
            lines.push(json!({"type": "end_of_execution"}).to_string());
        }
        let running = Running(self, false);
        let lines = stream::unfold((lines.into_iter(), running), move |(mut lines, running)| async move {
            match lines.next() {
                Some(line) => {
                    Some((Ok::<_, Infallible>(Frame::data(Bytes::from(line + "\n"))), (lines, running)))
                }
                None if hangs => std::future::pending().await,
                None => {
                    running.finish();
                    None
                }
            }
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }
}

fn said(status: StatusCode, body: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    *reply.status_mut() = status;
    reply
}
