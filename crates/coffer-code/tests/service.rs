//! The whole program, over HTTP, with Bash: the one language that needs nothing but what every host has. The others are
//! tested in sandboxes (`make code`).
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests may block and unwrap")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// The keeper and its service, in a group that ends with the test.
struct Service {
    keeper: Child,
    port: u16,
    scratch: tempfile::TempDir,
}

impl Service {
    fn start() -> Self {
        Self::start_with(1)
    }

    /// Next to an agentd on that port.
    fn start_with(agentd: u16) -> Self {
        use std::os::unix::process::CommandExt as _;

        let scratch = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let keeper = Command::new(env!("CARGO_BIN_EXE_coffer-code"))
            .env("COFFER_CODE_HOME", scratch.path())
            .env("COFFER_CODE_RUN", scratch.path().join("run"))
            .env("COFFER_CODE_WORK", scratch.path())
            .env("COFFER_CODE_START", "bash")
            .env("COFFER_CODE_AGENTD", agentd.to_string())
            .env("COFFER_CODE_IDENTITY", scratch.path().join("identity"))
            .env("COFFER_CODE_PORT", port.to_string())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let service = Self { keeper, port, scratch };
        service.wait();
        service
    }

    /// Gives the sandbox another name, as a copy has one.
    fn rename(&self, name: &str) {
        std::fs::write(self.scratch.path().join("identity"), name).unwrap();
    }

    fn wait(&self) {
        let until = Instant::now() + PATIENCE;
        while self.try_ask("GET", "/health", &Value::Null).is_none_or(|(status, _)| status != 200) {
            assert!(Instant::now() < until, "the service does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Option<BufReader<TcpStream>> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
        Some(BufReader::new(stream))
    }

    fn try_ask(&self, method: &str, path: &str, body: &Value) -> Option<(u16, String)> {
        let mut answer = String::new();
        self.send(method, path, body)?.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_string()))
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        self.try_ask(method, path, body).unwrap()
    }

    /// Runs Bash, with more fields in the request; the lines of the answer.
    fn run(&self, code: &str, mut more: Value) -> Vec<Value> {
        more["code"] = code.into();
        if more.get("context_id").is_none() {
            more["language"] = "bash".into();
        }
        let (status, body) = self.ask("POST", "/execute", &more);
        assert_eq!(status, 200, "{body}");
        body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn said(&self, code: &str, more: Value) -> String {
        let lines = self.run(code, more);
        let out = lines.iter().filter(|line| line["type"] == "stdout");
        out.map(|line| line["text"].as_str().unwrap()).collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.keeper);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        self.keeper.wait().unwrap();
    }
}

#[test]
fn a_call_is_a_stream_of_lines_and_state_is_kept() {
    let service = Service::start();
    let lines = service.run("x=5; echo out; echo é >&2; (exit 3)", json!({}));
    let kinds: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[0], "number_of_executions");
    assert_eq!(kinds[kinds.len() - 2..], ["error", "end_of_execution"]);
    assert_eq!(lines[kinds.len() - 2]["value"], "3");
    assert!(lines.iter().any(|line| line["type"] == "stderr" && line["text"] == "é\n"));
    assert_eq!(service.said("echo $x", json!({})), "5\n");
    let call = json!({"env_vars": {"A": "a'b\n$(id)", "not a name": "x"}});
    assert_eq!(service.said("printf %s \"$A\"", call), "a'b\n$(id)");
    assert_eq!(service.said("echo ${A-unset}", json!({})), "unset\n");
}

#[test]
fn contexts_are_made_listed_restarted_and_removed() {
    let service = Service::start();
    let (status, made) = service.ask("POST", "/contexts", &json!({"language": "BASH ", "cwd": "/tmp"}));
    assert_eq!(status, 200, "{made}");
    let made: Value = serde_json::from_str(&made).unwrap();
    let id = made["id"].as_str().unwrap();
    assert_eq!((&made["language"], &made["cwd"]), (&json!("bash"), &json!("/tmp")));
    let here = || json!({"context_id": id});
    assert_eq!(service.said("x=1; pwd", here()), "/tmp\n");
    assert_eq!(
        service.ask("POST", &format!("/contexts/{id}/restart"), &json!({})),
        (200, "null".to_string())
    );
    assert_eq!(service.said("echo ${x-gone}; pwd", here()), "gone\n/tmp\n");
    let listed: Value = serde_json::from_str(&service.ask("GET", "/contexts", &Value::Null).1).unwrap();
    assert_eq!(listed.as_array().unwrap().last().unwrap(), &made);
    assert_eq!(service.ask("DELETE", &format!("/contexts/{id}"), &Value::Null), (200, "null".to_string()));
    let gone = (404, format!("Context {id} not found"));
    let mut call = here();
    call["code"] = "1".into();
    assert_eq!(service.ask("POST", "/execute", &call), gone);
    assert_eq!(service.ask("DELETE", &format!("/contexts/{id}"), &Value::Null), gone);
    let both = json!({"code": "1", "context_id": "x", "language": "bash"});
    assert_eq!(service.ask("POST", "/execute", &both).0, 400);
    assert_eq!(service.ask("POST", "/execute", &json!({"code": "1", "language": "python"})).0, 500);
    assert_eq!(service.ask("POST", "/execute", &json!({"code": 1})).0, 422);
}

#[test]
fn a_client_that_leaves_interrupts_its_code_and_state_is_kept() {
    let service = Service::start();
    service.run("x=7", json!({}));
    let endless = json!({"language": "bash", "code": "echo began; while :; do sleep 1; done"});
    let mut call = service.send("POST", "/execute", &endless).unwrap();
    let mut line = String::new();
    while !line.contains("began") {
        line.clear();
        assert_ne!(call.read_line(&mut line).unwrap(), 0);
    }
    drop(call);
    assert_eq!(service.said("echo $x", json!({})), "7\n");
}

#[test]
fn a_kernel_that_dies_is_started_again() {
    let service = Service::start();
    let lines = service.run("exit 1", json!({}));
    let error = lines.iter().find(|line| line["type"] == "error").unwrap();
    assert_eq!(
        (&error["name"], &error["value"]),
        (&json!("ContextRestarting"), &json!("Context was restarted"))
    );
    let lines = service.run("echo again", json!({}));
    assert_eq!(lines[0]["execution_count"], 1);
    assert_eq!(lines[1]["text"], "again\n");
}

#[test]
fn a_service_that_dies_is_started_again() {
    let service = Service::start();
    for _ in 0..3 {
        // The service is the parent of its kernels.
        service.run("kill -9 $PPID; sleep 10", json!({}));
        service.wait();
        assert_eq!(service.said("echo here", json!({})), "here\n");
    }
}

/// Answers what agentd would, with no variables, to everybody who asks.
fn answer_as_agentd() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut read = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                read.read_line(&mut line).unwrap();
            }
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}").unwrap();
        }
    });
    port
}

/// What Bash draws after a sandbox's memory was copied to another one: a seed was chosen before, when it was used by an
/// owner or not.
fn drawn_in_a_copy(is_owned: bool) -> (String, String) {
    let agentd = if is_owned { answer_as_agentd() } else { 1 };
    let service = Service::start_with(agentd);
    service.rename("original");
    assert_eq!(service.said("kept=1; RANDOM=5", json!({})), "");
    service.rename("copy");
    let drawn = service.said("echo $kept $RANDOM $RANDOM $RANDOM", json!({}));
    let again = service.said("RANDOM=5; echo $kept $RANDOM $RANDOM $RANDOM", json!({}));
    let unmoved = service.said("echo $RANDOM", json!({}));
    let same = service.said("RANDOM=5; : $RANDOM $RANDOM $RANDOM; echo $RANDOM", json!({}));
    assert_eq!(unmoved, same, "a call does not change seeds in a sandbox that stays the same");
    (drawn, again)
}

#[test]
fn a_copy_of_an_unused_kernel_has_seeds_of_its_own() {
    let (drawn, seeded) = drawn_in_a_copy(false);
    assert_ne!(drawn, seeded);
    assert!(drawn.starts_with("1 "), "{drawn}");
}

#[test]
fn a_fork_of_a_used_kernel_keeps_its_seeds() {
    let (drawn, seeded) = drawn_in_a_copy(true);
    assert_eq!(drawn, seeded);
}
