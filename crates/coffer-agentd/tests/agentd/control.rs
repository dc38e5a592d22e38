//! Routes that only the server may use, and refusals of others.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Agentd, base64, request, within};

#[tokio::test]
async fn health_environment_and_metrics_answer() {
    let agentd = Agentd::start().await;
    let answer = agentd.get("/health", &[]).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (StatusCode::NO_CONTENT, "*"));
    agentd.init(json!({"envVars": {"A": "1"}, "diskTotal": 5000})).await;
    assert_eq!(agentd.get("/envs", &[]).await.json(), json!({"A": "1"}));
    let metrics = agentd.get("/metrics", &[]).await.json();
    for name in [
        "ts",
        "cpu_count",
        "cpu_used_pct",
        "mem_total",
        "mem_used",
        "mem_cache",
        "mem_total_mib",
        "mem_used_mib",
        "disk_used",
        "disk_total",
    ] {
        assert!(metrics[name].is_number(), "{name}: {metrics}");
    }
    assert_eq!(metrics["disk_total"], 5000);
    assert!(metrics["cpu_count"].as_u64() > Some(0) && metrics["mem_used"].as_u64() > Some(0));
    agentd.init(json!({})).await;
    assert_eq!(agentd.get("/envs", &[]).await.json(), json!({}), "the last one counts");
    assert_eq!(agentd.post("/init", &[], "no json").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(agentd.post("/health", &[], "").await.status, StatusCode::METHOD_NOT_ALLOWED);
    let options = request(
        Method::OPTIONS,
        "/files",
        &[("access-control-request-headers", "authorization,x-access-token")],
        "",
    );
    let answer = agentd.call(options).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.header("access-control-allow-headers"), "authorization,x-access-token");
}

#[tokio::test]
async fn a_token_keeps_others_out() {
    let agentd = Agentd::start().await;
    agentd.init(json!({"accessToken": "secret", "defaultUser": "root"})).await;
    assert_eq!(agentd.get("/health", &[]).await.status, StatusCode::NO_CONTENT);
    for target in ["/metrics", "/envs"] {
        assert_eq!(agentd.get(target, &[]).await.json()["code"], 401, "{target}");
        let answer = agentd.get(target, &[("x-access-token", "secret")]).await;
        assert_eq!(answer.status, StatusCode::OK, "{target}");
    }
    for token in ["", "wrong", "secretly"] {
        let headers = [("content-type", "application/json"), ("x-access-token", token)];
        let answer = agentd.post("/process.Process/List", &headers, "{}").await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        let answer = agentd.post("/files/compose", &headers, "{}").await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    }
    let headers = [("content-type", "application/json"), ("x-access-token", "secret")];
    assert_eq!(agentd.post("/process.Process/List", &headers, "{}").await.status, StatusCode::OK);
    // Only the server's socket gets here, and it replaces the token.
    agentd.init(json!({})).await;
    assert_eq!(agentd.get("/metrics", &[]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn callers_inside_have_no_control_routes() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let agentd = Agentd::start_with(&["--tcp", &format!("127.0.0.1:{port}")]).await;
    let ask = async |head: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let head = format!("{head} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(ask("GET /health").await, "204");
    assert_eq!(ask("GET /envs").await, "200");
    assert_eq!(ask("POST /init").await, "404");
    assert_eq!(ask("GET /coffer/journal").await, "404");
    assert_eq!(ask("POST /coffer/journal/ack").await, "404");
    assert_eq!(ask(&format!("CONNECT 127.0.0.1:{port}")).await, "404");
    assert_eq!(agentd.get("/coffer/journal", &[]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_journal_holds_until_it_is_acknowledged() {
    let agentd = Agentd::start().await;
    let (pid, events) = agentd.bash("printf one; sleep 0.1; printf two; printf err >&2; exit 7").await;
    events.finish().await;
    let page = agentd.get("/coffer/journal", &[]).await.json();
    let records = page["records"].as_array().unwrap();
    assert_eq!(records[0]["what"]["kind"], "started");
    assert!(records[0]["what"]["command"].as_str().unwrap().starts_with("/bin/bash -c printf one"));
    assert!(records.iter().all(|record| record["pid"] == pid));
    assert!(records.iter().enumerate().all(|(index, record)| record["offset"] == index));
    let stdout: Vec<&Value> =
        records.iter().map(|record| &record["what"]).filter(|what| what["stream"] == "stdout").collect();
    let output = |position: u64, data: &[u8]| json!({"kind": "output", "stream": "stdout", "position": position, "data": base64(data)});
    assert_eq!(stdout, [&output(0, b"one"), &output(3, b"two")]);
    assert_eq!(
        records.last().unwrap()["what"],
        json!({"kind": "ended", "exit_code": 7, "status": "exit status 7", "untold": 0})
    );
    assert_eq!((&page["next"], &page["dropped"]), (&json!(records.len()), &json!(0)));

    let again = agentd.get("/coffer/journal?from=0", &[]).await.json();
    assert_eq!(again, page, "reading takes nothing away");
    let rest = agentd.get("/coffer/journal?from=2", &[]).await.json();
    assert_eq!(rest["records"].as_array().unwrap().len(), records.len() - 2);
    let ack = json!({"upto": page["next"]}).to_string();
    assert_eq!(agentd.post("/coffer/journal/ack", &[], ack).await.status, StatusCode::NO_CONTENT);
    let empty = agentd.get("/coffer/journal?from=0", &[]).await.json();
    assert_eq!(empty["records"], json!([]));
    assert_eq!(agentd.get("/coffer/journal?from=x", &[]).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn tunnels_lead_to_loopback_and_nowhere_else() {
    let agentd = Agentd::start().await;
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address).await else {
            println!("SKIPPED: {address} is not there");
            continue;
        };
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            stream.read_to_end(&mut asked).await.unwrap();
            asked.reverse();
            stream.write_all(&asked).await.unwrap();
        });
        let response =
            agentd.send(request(Method::CONNECT, &format!("127.0.0.1:{port}"), &[], Bytes::new())).await;
        assert_eq!(response.status(), StatusCode::OK);
        let mut tunnel = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        tunnel.write_all(b"stressed").await.unwrap();
        tunnel.shutdown().await.unwrap();
        let mut answer = String::new();
        within(tunnel.read_to_string(&mut answer)).await.unwrap();
        assert_eq!(answer, "desserts");
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let answer = agentd.call(request(Method::CONNECT, &format!("127.0.0.1:{closed}"), &[], "")).await;
    assert_eq!((answer.status, answer.json()["code"].as_u64()), (StatusCode::BAD_GATEWAY, Some(502)));
    let answer = agentd.call(request(Method::CONNECT, "192.0.2.1:80", &[], "")).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn oversized_requests_are_refused_and_nothing_breaks() {
    let agentd = Agentd::start().await;
    let headers = [("content-type", "application/json")];
    // Too long by its last bytes, so that all of it is sent before it is refused: a client that is refused
    // while sending may not read the reason.
    let huge = format!("{{\"path\": \"{}\"}}", "x".repeat(16 << 20));
    let answer = agentd.post("/filesystem.Filesystem/Stat", &headers, huge).await;
    assert_eq!(answer.json()["code"], "resource_exhausted");
    let long = json!({"path": "x".repeat(5000)}).to_string();
    let answer = agentd.post("/filesystem.Filesystem/Stat", &headers, long).await;
    assert_eq!(answer.json()["code"], "invalid_argument");
    let broken = agentd.post("/filesystem.Filesystem/Stat", &headers, "{\"path\":").await;
    assert_eq!(
        (broken.status, &broken.json()["code"]),
        (StatusCode::BAD_REQUEST, &json!("invalid_argument"))
    );
    // Refused while it is still being sent.
    let mut raw = agentd.connect().await;
    let head = format!("GET /health HTTP/1.1\r\nhost: x\r\nx-big: {}\r\n\r\n", "h".repeat(1 << 20));
    let _refused = raw.write_all(head.as_bytes()).await;
    let mut answer = [0; 12];
    within(raw.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
    let answer = agentd.post("/process.Process/Nothing", &headers, "{}").await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(agentd.get("/health", &[]).await.status, StatusCode::NO_CONTENT);
}
