//! Following a process across lost connections, and readers that do not read.

use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Agentd, Events, base64, eventually, peak_memory, unbase64, within};

/// agentd's memory limit, whatever readers do.
const FLAT: u64 = 48 << 20;

/// A client that knows how much of each stream it has, as resuming requires.
#[derive(Debug, Default)]
struct Follower {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    pty: Vec<u8>,
    exit_code: Option<i64>,
}

impl Follower {
    fn had(&self) -> Value {
        json!({"stdout": self.stdout.len(), "stderr": self.stderr.len(), "pty": self.pty.len()})
    }

    /// Takes one event; false when it was the last.
    fn take(&mut self, message: &Value) -> bool {
        let event = &message["event"];
        if let Some(data) = event.get("data") {
            let streams =
                [("stdout", &mut self.stdout), ("stderr", &mut self.stderr), ("pty", &mut self.pty)];
            for (name, had) in streams {
                if let Some(bytes) = data.get(name) {
                    assert_eq!(number(&data["offset"]), had.len() as u64, "{name}");
                    had.extend(unbase64(bytes));
                }
            }
        } else if let Some(end) = event.get("end") {
            self.exit_code = Some(end["exitCode"].as_i64().unwrap_or_default());
        }
        self.exit_code.is_none()
    }

    /// Resumes where it was, takes this many events and disconnects.
    async fn resume(&mut self, agentd: &Agentd, pid: u32, events: usize) {
        let mut stream = connect(agentd, pid, json!({"resumeFrom": self.had()})).await;
        let start = stream.next().await["event"]["start"].clone();
        assert_eq!(offsets(&start), offsets(&json!({"offsets": self.had()})));
        for _ in 0..events {
            if !self.take(&stream.next().await) {
                return;
            }
        }
    }
}

/// A 64-bit number is a string in the JSON of protobuf.
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| value.as_str().unwrap_or("0").parse().unwrap())
}

fn offsets(start: &Value) -> [u64; 3] {
    let offsets = start.get("offsets").unwrap_or_else(|| panic!("no offsets: {start}"));
    ["stdout", "stderr", "pty"].map(|stream| number(&offsets[stream]))
}

async fn connect(agentd: &Agentd, pid: u32, more: Value) -> Events {
    let mut message = json!({"process": {"pid": pid}});
    message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    agentd.stream("process.Process/Connect", message).await
}

#[tokio::test]
async fn a_stream_that_breaks_goes_on_without_loss_or_repetition() {
    let agentd = Agentd::start().await;
    let script = "for i in {1..3000}; do echo $i; echo -$i >&2; ((i % 100)) || sleep 0.01; done; exit 9";
    let (pid, mut events) = agentd.bash_with(script, json!({"offsets": true}), &[]).await;
    let mut follower = Follower::default();
    for _ in 0..3 {
        follower.take(&events.next().await);
    }
    drop(events);
    let mut breaks = 0;
    while follower.exit_code.is_none() {
        breaks += 1;
        follower.resume(&agentd, pid, breaks).await;
    }
    assert!(breaks > 1);
    let lines = |sign: &str| (1..=3000).map(|i| format!("{sign}{i}\n")).collect::<String>();
    assert_eq!(String::from_utf8(follower.stdout.clone()).unwrap(), lines(""));
    assert_eq!(String::from_utf8(follower.stderr.clone()).unwrap(), lines("-"));
    assert_eq!(follower.exit_code, Some(9));

    // A client that has everything still gets the end; one that has nothing gets all of it.
    follower.exit_code = None;
    follower.resume(&agentd, pid, 1).await;
    assert_eq!(follower.exit_code, Some(9));
    let late = connect(&agentd, pid, json!({})).await.finish().await;
    assert_eq!((late.stdout, late.stderr, &late.end["exitCode"]), (lines(""), lines("-"), &json!(9)));
}

#[tokio::test]
async fn a_process_waits_for_one_that_may_come_back() {
    let agentd = Agentd::start().await;
    let (pid, mut events) = agentd.bash_with("seq 1200000; exit 4", json!({"offsets": true}), &[]).await;
    let mut follower = Follower::default();
    follower.take(&events.next().await);
    drop(events);
    let [kept, written] = stands_still(&agentd, pid).await;
    assert!(kept <= follower.stdout.len() as u64 && written < 8_000_000, "{kept} {written}");
    while follower.exit_code.is_none() {
        follower.resume(&agentd, pid, 20).await;
    }
    assert_eq!(follower.exit_code, Some(4));
    let expected: String = (1..=1_200_000).map(|i| format!("{i}\n")).collect();
    assert!(follower.stdout == expected.as_bytes(), "{} of {}", follower.stdout.len(), expected.len());
}

#[tokio::test]
async fn those_who_do_not_ask_get_no_offsets() {
    let agentd = Agentd::start().await;
    let message = json!({"process": {"cmd": "/bin/echo", "args": ["hi"], "cwd": "/"}});
    let mut events = agentd.stream("process.Process/Start", message).await;
    let start = events.next().await;
    let pid = start["event"]["start"]["pid"].clone();
    let data = json!({"event": {"data": {"stdout": base64(b"hi\n")}}});
    assert_eq!(start, json!({"event": {"start": {"pid": pid}}}));
    assert_eq!(events.next().await, data);
    events.finish().await;
    let mut events = agentd.stream("process.Process/Connect", json!({"process": {"pid": pid}})).await;
    assert_eq!((events.next().await, events.next().await), (start, data));
}

#[tokio::test]
async fn output_that_is_gone_is_out_of_range() {
    let agentd = Agentd::start().await;
    let done = agentd.path("done");
    let (pid, events) = agentd.bash(&format!("head -c 8000000 /dev/zero; echo end; touch {done}")).await;
    drop(events);
    eventually("it wrote more than is kept", || Path::new(&done).exists()).await;

    let refused = async |from: Value| {
        let error = connect(&agentd, pid, json!({"resumeFrom": from})).await.error().await;
        assert_eq!(error["code"], "out_of_range");
        error["message"].as_str().unwrap().to_owned()
    };
    let message = refused(json!({"stdout": 1000})).await;
    assert!(message.starts_with("requested stdout from byte 1000, but only bytes "), "{message}");
    refused(json!({"stdout": 8_000_005})).await;
    refused(json!({"stdout": 8_000_000, "stderr": 1})).await;

    // The error says which range is kept, and can be resumed from there.
    let mut events = connect(&agentd, pid, json!({"offsets": true})).await;
    let [kept, ..] = offsets(&events.next().await["event"]["start"]);
    assert!(kept > 0);
    let first = events.next().await;
    assert_eq!(number(&first["event"]["data"]["offset"]), kept);
    let mut stream = connect(&agentd, pid, json!({"resumeFrom": {"stdout": kept + 1}})).await;
    assert_eq!(offsets(&stream.next().await["event"]["start"]), [kept + 1, 0, 0]);
    let rest = stream.finish().await.stdout;
    assert_eq!(rest.len() as u64, 8_000_004 - kept - 1);
    assert!(rest.ends_with("end\n"));
}

#[tokio::test]
async fn a_terminal_goes_on_where_it_was() {
    let agentd = Agentd::start().await;
    let message = json!({
        "process": {"cmd": "/bin/bash", "args": ["--norc", "-i"], "cwd": "/",
                    "envs": {"TERM": "xterm", "PS1": "$ "}},
        "pty": {"size": {"cols": 80, "rows": 24}},
        "offsets": true,
    });
    let mut events = agentd.stream("process.Process/Start", message).await;
    let start = events.next().await["event"]["start"].clone();
    assert_eq!(offsets(&start), [0, 0, 0]);
    let pid = u32::try_from(start["pid"].as_u64().unwrap()).unwrap();
    let send = |data: &str| json!({"process": {"pid": pid}, "input": {"pty": base64(data.as_bytes())}});
    let mut follower = Follower::default();
    agentd.rpc("process.Process/SendInput", send("echo one''1\n")).await;
    while !String::from_utf8_lossy(&follower.pty).contains("one1") {
        follower.take(&events.next().await);
    }
    drop(events);
    agentd.rpc("process.Process/SendInput", send("echo two''2; exit 3\n")).await;
    while follower.exit_code.is_none() {
        follower.resume(&agentd, pid, 2).await;
    }
    let shown = String::from_utf8(follower.pty).unwrap();
    assert_eq!((shown.matches("one1").count(), shown.matches("two2").count()), (1, 1), "{shown}");
    assert_eq!(follower.exit_code, Some(3));
    // A client that opens the terminal again sees the same screen.
    assert_eq!(connect(&agentd, pid, json!({})).await.finish().await.pty, shown);
}

#[tokio::test]
async fn a_reader_that_does_not_read_costs_little_and_ends_nothing() {
    let agentd = Agentd::start().await;
    let done = agentd.path("done");
    let script = format!("head -c 64000000 /dev/zero; touch {done}; exit 6");
    let (pid, stuck) = agentd.bash(&script).await;
    // The process waits for its reader, as at a pipe, so its output stops growing.
    let [kept, written] = stands_still(&agentd, pid).await;
    assert!(written < 64_000_000 && !Path::new(&done).exists(), "{written}");
    assert_eq!(kept, 0, "nothing is dropped while it waits");
    assert_eq!(agentd.get("/health", &[]).await.status, StatusCode::NO_CONTENT);
    // Once the reader is gone (or has stalled for too long), the process continues.
    drop(stuck);
    eventually("it goes on without its reader", || Path::new(&done).exists()).await;
    let late = connect(&agentd, pid, json!({})).await.finish().await;
    assert_eq!(late.end["exitCode"], 6);
    let peak = peak_memory(agentd.pid());
    assert!(peak < FLAT, "{peak}");
}

/// Waits until there is much output that no longer grows, and returns its range.
async fn stands_still(agentd: &Agentd, pid: u32) -> [u64; 2] {
    let standing = async {
        let mut before = [0; 2];
        loop {
            let now = range(agentd, pid).await;
            if now == before && now[1] > 1 << 20 {
                return now;
            }
            before = now;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(standing).await
}

/// The kept range of standard output: no client has had this much of it.
async fn range(agentd: &Agentd, pid: u32) -> [u64; 2] {
    let beyond = json!({"resumeFrom": {"stdout": u64::MAX}});
    let error = connect(agentd, pid, beyond).await.error().await;
    let message = error["message"].as_str().unwrap();
    let mut numbers = message.split(' ').rev().filter_map(|word| word.parse().ok());
    let written = numbers.next().unwrap();
    [numbers.next().unwrap(), written]
}

#[tokio::test]
async fn remembering_the_ended_costs_no_descriptors() {
    let agentd = Agentd::start().await;
    let open = || std::fs::read_dir(format!("/proc/{}/fd", agentd.pid())).unwrap().count();
    let before = open();
    for more in [json!({"stdin": true}), json!({"pty": {"size": {"cols": 80, "rows": 24}}})] {
        let (pid, events) = agentd.bash_with("echo hello", more, &[]).await;
        events.finish().await;
        let late = connect(&agentd, pid, json!({})).await.finish().await;
        assert_eq!((late.stdout + &late.pty).trim_end(), "hello");
    }
    eventually("all are closed", || open() <= before).await;
}
