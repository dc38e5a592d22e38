//! Commands that a project's policy refuses, however a client words the request.

use coffer_core::command::{Effect, Rule};
use coffer_wire::envd::process::{ProcessConfig, Pty, StartRequest};
use http_body_util::BodyExt;
use prost::Message;

use super::*;

const JSON: &str = "application/connect+json";
const BINARY: &str = "application/connect+proto";
const START: &str = "/process.Process/Start";

/// The start requests that reached agentd: each program with its arguments.
type Started = Arc<Mutex<Vec<Vec<String>>>>;

fn start(words: &[&str]) -> StartRequest {
    let process = ProcessConfig {
        cmd: words[0].into(),
        args: words[1..].iter().map(|word| (*word).to_string()).collect(),
        envs: [("KEY".to_string(), "välue".to_string())].into(),
        cwd: Some("/tmp".into()),
    };
    StartRequest { process: Some(process), tag: Some("t".into()), ..StartRequest::default() }
}

fn json(words: &[&str]) -> Vec<u8> {
    envelope(0, &serde_json::to_vec(&start(words)).unwrap())
}

fn binary(words: &[&str]) -> Vec<u8> {
    envelope(0, &start(words).encode_to_vec())
}

fn envelope(flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[flags][..], &length, payload].concat()
}

/// A sandbox of a project that forbids `rm`, and its agentd, which starts every command.
async fn guarded(token: Option<&str>) -> (World, Started) {
    let world = World::new().await;
    let rule = Rule { effect: Effect::Deny, pattern: "rm".parse().unwrap(), note: Some("keep it".into()) };
    *world.book.policy.lock().unwrap() = CommandPolicy { default: Effect::Allow, rules: vec![rule] };
    *world.book.guard.lock().unwrap() = Some(Guard { access_token: token.map(String::from) });
    let started = Started::default();
    let note = started.clone();
    Agentd::start(world.socket(), move |request| {
        let note = note.clone();
        async move {
            let path = request.uri().path().to_string();
            let kind =
                request.headers().get("content-type").and_then(|kind| kind.to_str().ok()).map(String::from);
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            // As lenient as any agentd could be: the first envelope counts, whatever the path.
            if path.to_ascii_lowercase().contains("start") && body.len() >= 5 {
                let length = u32::from_be_bytes([body[1], body[2], body[3], body[4]]) as usize;
                let payload = body.get(5..5 + length).unwrap_or(&body[5..]);
                let read = match kind.as_deref() {
                    Some(BINARY) => StartRequest::decode(payload).ok(),
                    _ => serde_json::from_slice::<StartRequest>(payload).ok(),
                };
                let process = read.and_then(|read| read.process).unwrap_or_default();
                note.lock().unwrap().push(std::iter::once(process.cmd).chain(process.args).collect());
            }
            Response::new(Body::from("started"))
        }
    });
    (world, started)
}

fn request(world: &World, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: 49983-{}.test\r\nContent-Length: {}\r\n{headers}\r\n",
        world.id,
        body.len()
    );
    [head.as_bytes(), body].concat()
}

async fn send(world: &World, bytes: &[u8]) -> Reply {
    let mut stream = world.connect().await;
    // A server that has refused may close while we write.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    Reply::parse(&answer)
}

async fn ask(world: &World, path: &str, headers: &str, body: &[u8]) -> Reply {
    send(world, &request(world, path, &format!("Connection: close\r\n{headers}"), body)).await
}

fn of_type(kind: &str) -> String {
    format!("Content-Type: {kind}\r\n")
}

#[track_caller]
fn assert_denied(reply: &Reply, what: &str) {
    assert!(reply.body.contains("permission_denied"), "{what}: {} {}", reply.status, reply.body);
}

#[tokio::test]
async fn a_refused_command_is_an_error_of_its_stream_and_is_told() {
    let (world, started) = guarded(None).await;
    let line = &["/bin/bash", "-l", "-c", "ls && rm -rf /"][..];
    for (kind, body) in [
        (JSON, json(&["rm", "-rf", "/"])),
        (BINARY, binary(&["/bin/rm", "-rf", "/"])),
        (JSON, json(line)),
        (BINARY, binary(line)),
        ("Application/Connect+JSON; charset=utf-8", json(line)),
        (BINARY, {
            let pty = Some(Pty { size: None });
            envelope(0, &StartRequest { pty, ..start(&["rm"]) }.encode_to_vec())
        }),
    ] {
        let reply = ask(&world, START, &of_type(kind), &body).await;
        assert_eq!(reply.status, 200, "{kind}");
        let expected = if kind == BINARY { BINARY } else { JSON };
        assert_eq!(reply.header("content-type"), Some(expected));
        assert_eq!(reply.body.as_bytes()[0], 2, "the last message of a stream");
        assert_denied(&reply, kind);
        assert!(reply.body.contains("rule 0") && reply.body.contains("keep it"), "{}", reply.body);
    }
    assert!(started.lock().unwrap().is_empty());
    let told = world.book.refused.lock().unwrap();
    assert_eq!((told.len(), told[0].rule, &*told[0].words[0]), (6, Some(0), "rm"));
}

#[tokio::test]
async fn an_allowed_command_reaches_agentd_as_it_was_understood() {
    let (world, started) = guarded(None).await;
    assert_eq!(ask(&world, START, &of_type(JSON), &json(&["ls", "-l"])).await.body, "started");
    assert_eq!(ask(&world, START, &of_type(BINARY), &binary(&["bash", "-c", "ls"])).await.body, "started");
    // In pieces.
    let body = json(&["echo", "in pieces"]);
    let mut chunked = format!(
        "POST {START} HTTP/1.1\r\nHost: 49983-{}.test\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n{}\r\n",
        world.id,
        of_type(JSON)
    )
    .into_bytes();
    for piece in body.chunks(3) {
        chunked.extend(format!("{:x};x=y\r\n", piece.len()).as_bytes());
        chunked.extend(piece);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\nX-Trailer: 1\r\n\r\n");
    assert_eq!(send(&world, &chunked).await.body, "started");
    // A client that waits for `100 Continue`, at an absolute target.
    let target = format!("http://49983-{}.test{START}", world.id);
    let reply =
        ask(&world, &target, &format!("{}Expect: 100-continue\r\n", of_type(BINARY)), &binary(&["id"])).await;
    assert!(reply.body.ends_with("started"), "{}", reply.body);
    // The last of two values counts, for us and for agentd.
    let both = [start(&["rm"]).encode_to_vec(), start(&["ls"]).encode_to_vec()].concat();
    assert_eq!(ask(&world, START, &of_type(BINARY), &envelope(0, &both)).await.body, "started");
    let both = [start(&["ls"]).encode_to_vec(), start(&["rm"]).encode_to_vec()].concat();
    assert_denied(&ask(&world, START, &of_type(BINARY), &envelope(0, &both)).await, "the last of two values");
    let commands: Vec<_> = started.lock().unwrap().iter().map(|words| words[0].clone()).collect();
    assert_eq!(commands, ["ls", "bash", "echo", "id", "ls"]);
}

#[tokio::test]
async fn no_wording_smuggles_a_command_past_the_policy() {
    let (world, started) = guarded(None).await;
    let rm = json(&["rm", "x"]);
    let (plain, ls) = (of_type(JSON), json(&["ls"]));
    let twice = |name: &str| format!("{}{}", of_type(name), of_type(JSON));
    let bodies: Vec<(&str, String, Vec<u8>)> = vec![
        ("two messages", plain.clone(), [ls.clone(), rm.clone()].concat()),
        ("something after the message", plain.clone(), [&ls[..], b"x"].concat()),
        ("compressed", plain.clone(), envelope(1, &rm[5..])),
        ("an end first", plain.clone(), [envelope(2, b"{}"), rm.clone()].concat()),
        ("unknown flags", plain.clone(), envelope(0x80, &rm[5..])),
        ("a length that lies", plain.clone(), [&[0, 0, 0, 0, 1][..], &rm[5..]].concat()),
        ("a length that goes on", plain.clone(), [&[0, 0, 1, 0, 0][..], &rm[5..]].concat()),
        ("no message", plain.clone(), Vec::new()),
        ("half a head", plain.clone(), vec![0, 0]),
        ("no JSON", plain.clone(), envelope(0, b"{\"process\":")),
        ("a field twice", plain.clone(), {
            envelope(0, br#"{"process":{"cmd":"ls"},"process":{"cmd":"rm"}}"#)
        }),
        ("the other codec", of_type(BINARY), rm.clone()),
        ("no type", String::new(), rm.clone()),
        ("another type", of_type("application/json"), rm[5..].to_vec()),
        ("gRPC", of_type("application/grpc+proto"), binary(&["rm"])),
        ("two types", twice(BINARY), rm.clone()),
        ("two types", twice(JSON), rm.clone()),
        ("compression agreed", format!("{plain}Connect-Content-Encoding: gzip\r\n"), envelope(1, &rm[5..])),
        ("compression agreed", format!("{plain}Connect-Content-Encoding: gzip\r\n"), rm.clone()),
        ("an encoding", format!("{plain}Content-Encoding: gzip\r\n"), rm.clone()),
        ("very long", plain.clone(), json(&["ls", &"x".repeat(3 << 20)])),
        ("many words", plain.clone(), {
            let words: Vec<_> = std::iter::repeat_n("x", 20_000).collect();
            json(&words)
        }),
        ("a name of a variable", plain.clone(), json(&["bash", "-c", "$X"])),
    ];
    let tries = bodies.len();
    for (what, headers, body) in bodies {
        assert_denied(&ask(&world, START, &headers, &body).await, what);
    }
    let paths = [
        "//process.Process/Start",
        "/process.Process//Start",
        "/process.Process/Start/",
        "/process.Process/start",
        "/PROCESS.PROCESS/START",
        "/%70rocess.Process/Start",
        "/%2570rocess.Process/Start",
        "/process.Process%2fStart",
        "/process.Process%2FSt%61rt",
        "/x/../process.Process/Start",
        "/./process.Process/Start",
        "/process.Process/./Start",
        "/process.Process\\Start",
        "/process.Process;x/Start",
        "/process.Process/Start;x",
    ];
    for path in paths {
        assert_denied(&ask(&world, path, &plain, &rm).await, path);
    }
    assert_denied(&ask(&world, "/process.Process/Start?x=/health", &plain, &rm).await, "a query");
    assert_eq!(started.lock().unwrap().len(), 0, "{:?}", started.lock().unwrap());
    assert_eq!(world.book.refused.lock().unwrap().len(), tries + paths.len() + 1);

    // One after the other on one connection, sent at once.
    let closing = format!("{plain}Connection: close\r\n");
    let all = [
        request(&world, START, &plain, &ls),
        request(&world, START, &plain, &rm),
        request(&world, START, &plain, &ls),
        request(&world, START, &closing, &rm),
    ]
    .concat();
    let mut stream = world.connect().await;
    stream.write_all(&all).await.unwrap();
    let mut answers = Vec::new();
    soon(stream.read_to_end(&mut answers)).await.unwrap();
    let answers = String::from_utf8_lossy(&answers);
    assert_eq!(
        (answers.matches("\r\n\r\nstarted").count(), answers.matches("permission_denied").count()),
        (2, 2)
    );
    let commands: Vec<_> = started.lock().unwrap().iter().map(|words| words[0].clone()).collect();
    assert_eq!(commands, ["ls", "ls"]);
}

#[tokio::test]
async fn strangers_learn_nothing_and_fill_no_log() {
    let (world, started) = guarded(Some("secret")).await;
    let rm = json(&["rm"]);
    for token in ["", "X-Access-Token: wrong\r\n", "X-Access-Token: secret\r\nX-Access-Token: secret\r\n"] {
        let reply = ask(&world, START, &format!("{}{token}", of_type(JSON)), &rm).await;
        assert_eq!(reply.status, 401, "{token}: {}", reply.body);
    }
    assert!(world.book.refused.lock().unwrap().is_empty());
    let known = format!("{}X-Access-Token: secret\r\n", of_type(JSON));
    assert_denied(&ask(&world, START, &known, &rm).await, "with the token");
    assert_eq!(ask(&world, START, &known, &json(&["ls"])).await.body, "started");
    assert_eq!(started.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn without_a_policy_and_elsewhere_nothing_is_looked_at() {
    let (world, started) = guarded(None).await;
    let rm = json(&["rm"]);
    for path in ["/process.Process/List", "/process.Process/Connect", "/files?path=/process.Process/Start"] {
        assert_eq!(ask(&world, path, &of_type(JSON), &rm).await.body, "started", "{path}");
    }
    *world.book.guard.lock().unwrap() = None;
    let two = [rm.clone(), rm].concat();
    assert_eq!(ask(&world, START, &of_type(JSON), &two).await.body, "started");
    assert_eq!(*started.lock().unwrap(), [["rm"]]);
}

#[tokio::test]
async fn a_client_that_never_ends_its_request_holds_up_nobody() {
    let (world, started) = guarded(None).await;
    let rm = request(&world, START, &of_type(JSON), &json(&["rm"]));
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut stream = world.connect().await;
        stream.write_all(&rm[..rm.len() - 1]).await.unwrap();
        slow.push(stream);
    }
    assert_eq!(ask(&world, START, &of_type(JSON), &json(&["ls"])).await.body, "started");
    for mut stream in slow {
        stream.write_all(&rm[rm.len() - 1..]).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"}}") {
            assert_ne!(soon(stream.read_buf(&mut answer)).await.unwrap(), 0, "{answer:?}");
        }
        assert!(String::from_utf8_lossy(&answer).contains("permission_denied"));
    }
    assert_eq!(started.lock().unwrap().len(), 1);
}
