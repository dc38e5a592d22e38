//! The part of agentd that clients of a sandbox use: fake processes, and files in memory.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use coffer_wire::envd::filesystem::{
    EntryInfo, FileType, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest,
    MoveResponse, RemoveRequest, RemoveResponse, StatRequest, StatResponse,
};
use coffer_wire::envd::process::process_event::data_event::Output;
use coffer_wire::envd::process::process_event::{DataEvent, EndEvent, Event, StartEvent};
use coffer_wire::envd::process::process_input::Input;
use coffer_wire::envd::process::process_selector::Selector;
use coffer_wire::envd::process::{
    CloseStdinResponse, ListResponse, ProcessEvent, ProcessInfo, SendInputRequest, SendInputResponse,
    SendSignalRequest, SendSignalResponse, StartRequest, StartResponse,
};
use http::request::Parts;
use http::{Method, Response, StatusCode, header};
use http_body_util::Full;
use prost::Message;
use tokio::sync::watch;

type Reply = Response<Full<Bytes>>;

/// Records what clients did to this sandbox.
#[derive(Debug, Default)]
pub struct Guest {
    pub starts: Mutex<Vec<(StartRequest, Option<String>)>>,
    pub signals: Mutex<Vec<SendSignalRequest>>,
    /// Whether the server has looked for a killed process and found it.
    pub seen: watch::Sender<bool>,
    /// Contents by path; `None` for a directory.
    pub files: Mutex<BTreeMap<String, Option<Bytes>>>,
    pub stdin: watch::Sender<Bytes>,
    living: Mutex<Vec<ProcessInfo>>,
}

impl Guest {
    /// Answers clients' requests; `None` for others.
    pub async fn answer(&self, parts: &Parts, body: &Bytes) -> Option<Reply> {
        let query = parts.uri.query().unwrap_or_default();
        Some(match (&parts.method, parts.uri.path()) {
            (_, "/process.Process/Start") => self.start(parts, body).await,
            (_, "/process.Process/List") => {
                let processes = self.living.lock().unwrap().clone();
                if !processes.is_empty() {
                    self.seen.send_replace(true);
                }
                proto(&ListResponse { processes })
            }
            (_, "/process.Process/SendInput") => {
                let request = SendInputRequest::decode(&body[..]).unwrap();
                if let Some(Input::Stdin(data)) = request.input.unwrap().input {
                    self.stdin.send_replace(data);
                }
                proto(&SendInputResponse {})
            }
            (_, "/process.Process/CloseStdin") => proto(&CloseStdinResponse {}),
            (_, "/process.Process/SendSignal") => {
                let request = SendSignalRequest::decode(&body[..]).unwrap();
                let selector = request.process.clone().and_then(|process| process.selector);
                self.signals.lock().unwrap().push(request);
                if selector == Some(Selector::Pid(404)) {
                    return Some(refusal(
                        StatusCode::NOT_FOUND,
                        "not_found",
                        "process with pid 404 not found",
                    ));
                }
                proto(&SendSignalResponse {})
            }
            (&Method::GET | &Method::HEAD, "/files") => self.download(&path(query), parts),
            (&Method::POST, "/files") => {
                self.files.lock().unwrap().insert(path(query), Some(body.clone()));
                Response::new(Full::new(Bytes::from_static(b"[]")))
            }
            (_, "/filesystem.Filesystem/Stat") => {
                self.described(&StatRequest::decode(&body[..]).unwrap().path, |entry| StatResponse { entry })
            }
            (_, "/filesystem.Filesystem/ListDir") => {
                let under =
                    format!("{}/", ListDirRequest::decode(&body[..]).unwrap().path.trim_end_matches('/'));
                let files = self.files.lock().unwrap();
                let inside = files.iter().filter(|(path, _)| path.starts_with(&under));
                // Backwards: the order is not guaranteed.
                let entries = inside.rev().map(|(path, contents)| entry(path, contents)).collect();
                proto(&ListDirResponse { entries })
            }
            (_, "/filesystem.Filesystem/MakeDir") => {
                let path = MakeDirRequest::decode(&body[..]).unwrap().path;
                if self.files.lock().unwrap().contains_key(&path) {
                    return Some(refusal(StatusCode::CONFLICT, "already_exists", "directory already exists"));
                }
                self.files.lock().unwrap().insert(path.clone(), None);
                self.described(&path, |entry| MakeDirResponse { entry })
            }
            (_, "/filesystem.Filesystem/Move") => {
                let request = MoveRequest::decode(&body[..]).unwrap();
                let moved = self.files.lock().unwrap().remove(&request.source);
                let Some(moved) = moved else {
                    return Some(refusal(StatusCode::NOT_FOUND, "not_found", "source file not found"));
                };
                self.files.lock().unwrap().insert(request.destination.clone(), moved);
                self.described(&request.destination, |entry| MoveResponse { entry })
            }
            (_, "/filesystem.Filesystem/Remove") => {
                let gone = RemoveRequest::decode(&body[..]).unwrap().path;
                self.files.lock().unwrap().retain(|path, _| !path.starts_with(&gone));
                proto(&RemoveResponse {})
            }
            _ => return None,
        })
    }

    /// Pretends to run a command; its last word says what it does.
    async fn start(&self, parts: &Parts, body: &Bytes) -> Reply {
        let request = StartRequest::decode(&body[5..]).unwrap();
        let header = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap().to_string());
        self.starts.lock().unwrap().push((request.clone(), header("authorization")));
        let config = request.process.clone().unwrap();
        let line = config.args.last().unwrap_or(&config.cmd).clone();
        let mut body = message(Event::Start(StartEvent { pid: 77, offsets: None }));
        let out = |data: Vec<u8>| {
            message(Event::Data(DataEvent { output: Some(Output::Stdout(data.into())), offset: None }))
        };
        let mut code = 0;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("echo", text) => body.extend(out(format!("{text}\n").into_bytes())),
            ("flood", bytes) => {
                for _ in 0..bytes.parse::<usize>().unwrap() / 1024 {
                    body.extend(out(vec![b'x'; 1024]));
                }
            }
            ("fail", text) => {
                let error = Some(Output::Stderr(text.to_string().into_bytes().into()));
                body.extend(message(Event::Data(DataEvent { output: error, offset: None })));
                code = 3;
            }
            ("hang", _) => {
                let millis = header("connect-timeout-ms").expect("a time limit").parse().unwrap();
                tokio::time::sleep(Duration::from_millis(millis)).await;
                let info = ProcessInfo { config: request.process, pid: 77, tag: request.tag };
                self.living.lock().unwrap().push(info);
                body.extend(frame(2, br#"{"error":{"code":"deadline_exceeded","message":"late"}}"#));
                // As if the kill took a moment.
                return stream(body);
            }
            ("nowhere", _) => {
                let error = br#"{"error":{"code":"invalid_argument","message":"cwd does not exist"}}"#;
                return stream(frame(2, error));
            }
            _ => {}
        }
        let end = EndEvent { exit_code: code, exited: true, status: "exit".into(), error: None };
        body.extend(message(Event::End(end)));
        body.extend(frame(2, b"{}"));
        stream(body)
    }

    /// Removes killed processes.
    pub fn bury(&self) {
        self.living.lock().unwrap().clear();
    }

    fn download(&self, path: &str, parts: &Parts) -> Reply {
        let files = self.files.lock().unwrap();
        let Some(found) = files.get(path) else {
            return refusal(StatusCode::NOT_FOUND, "404", "path does not exist");
        };
        let Some(contents) = found else {
            return refusal(StatusCode::BAD_REQUEST, "400", "path is a directory");
        };
        let mut reply = Response::new(Full::new(contents.clone()));
        if parts.headers.get("range").is_some_and(|range| range == "bytes=2-3") {
            *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
            *reply.body_mut() = Full::new(contents.slice(2..4));
            reply.headers_mut().insert(header::CONTENT_RANGE, "bytes 2-3/6".parse().unwrap());
        }
        reply.headers_mut().insert(header::CONTENT_TYPE, "text/html".parse().unwrap());
        reply.headers_mut().insert(header::SET_COOKIE, "evil=1".parse().unwrap());
        reply
    }

    fn described<M: Message>(&self, path: &str, answer: impl Fn(Option<EntryInfo>) -> M) -> Reply {
        match self.files.lock().unwrap().get(path) {
            Some(contents) => proto(&answer(Some(entry(path, contents)))),
            None => refusal(StatusCode::NOT_FOUND, "not_found", "file not found"),
        }
    }
}

fn entry(path: &str, contents: &Option<Bytes>) -> EntryInfo {
    let kind = if contents.is_some() { FileType::File } else { FileType::Directory };
    EntryInfo {
        name: path.rsplit('/').next().unwrap().into(),
        r#type: kind.into(),
        path: path.into(),
        size: contents.as_ref().map_or(0, |contents| contents.len().try_into().unwrap()),
        ..EntryInfo::default()
    }
}

/// The path in a query of agentd.
fn path(query: &str) -> String {
    let text = query.split('&').find_map(|pair| pair.strip_prefix("path=")).unwrap();
    percent_encoding::percent_decode_str(text).decode_utf8().unwrap().into_owned()
}

fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[flags][..], &length, payload].concat()
}

fn message(event: Event) -> Vec<u8> {
    frame(0, &StartResponse { event: Some(ProcessEvent { event: Some(event) }) }.encode_to_vec())
}

fn stream(body: Vec<u8>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    reply.headers_mut().insert(header::CONTENT_TYPE, "application/connect+proto".parse().unwrap());
    reply
}

fn proto(message: &impl Message) -> Reply {
    Response::new(Full::new(message.encode_to_vec().into()))
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Reply {
    let code = code.parse::<u16>().map_or_else(|_| code.into(), serde_json::Value::from);
    let body = serde_json::json!({"code": code, "message": message}).to_string();
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    *reply.status_mut() = status;
    reply
}
