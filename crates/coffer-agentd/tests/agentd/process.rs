//! `process.Process`.

use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Agentd, base64, envelope, eventually, request, running, zombies};

fn exited(code: i64) -> Value {
    let status = format!("exit status {code}");
    if code == 0 {
        json!({"exited": true, "status": status})
    } else {
        json!({"exitCode": code, "exited": true, "status": status, "error": status})
    }
}

fn killed() -> Value {
    json!({"exitCode": -1, "status": "signal: killed", "error": "signal: killed"})
}

#[tokio::test]
async fn a_command_streams_both_outputs_and_its_end() {
    let agentd = Agentd::start().await;
    let (_, events) = agentd.bash("echo out; echo err >&2; exit 3").await;
    let finished = events.finish().await;
    assert_eq!((&*finished.stdout, &*finished.stderr, finished.end), ("out\n", "err\n", exited(3)));
    let (_, events) = agentd.bash("true").await;
    assert_eq!(events.finish().await.end, exited(0));
}

#[tokio::test]
async fn large_output_arrives_whole_and_in_small_pieces() {
    let agentd = Agentd::start().await;
    let (_, mut events) = agentd.bash("head -c 5000000 /dev/zero | tr '\\0' x").await;
    let mut total = 0;
    loop {
        let message = events.next().await;
        match message["event"]["data"]["stdout"].as_str() {
            Some(data) => {
                let length = data.len() / 4 * 3 - data.matches('=').count();
                assert!(length <= 32 << 10, "{length}");
                total += length;
            }
            None => break,
        }
    }
    assert_eq!(total, 5_000_000);
}

#[tokio::test]
async fn errors_of_streams_come_in_the_last_envelope() {
    let agentd = Agentd::start().await;
    let start = |config: Value| json!({"process": config});
    let cases = [
        (start(json!({"cmd": "/bin/true", "cwd": "/nowhere"})), "invalid_argument"),
        (start(json!({"cmd": "/nowhere/at/all", "cwd": "/"})), "invalid_argument"),
        (start(json!({"cmd": "/bin/true", "cwd": "/", "envs": {"A=B": "x"}})), "invalid_argument"),
        (json!({}), "invalid_argument"),
    ];
    for (message, code) in cases {
        let error = agentd.stream("process.Process/Start", message.clone()).await.error().await;
        assert_eq!(error["code"], code, "{message}");
    }
    let message = start(json!({"cmd": "/bin/true", "cwd": "/nowhere"}));
    let error = agentd.stream("process.Process/Start", message).await.error().await;
    assert_eq!(error["message"], "cwd '/nowhere' does not exist");

    let unknown = json!({"process": {"pid": 999_999}});
    let error = agentd.stream("process.Process/Connect", unknown).await.error().await;
    assert_eq!(error["code"], "not_found");

    let user = format!("Basic {}", base64(b"nobody-at-all:"));
    let mut events = agentd
        .stream_with("process.Process/Start", start(json!({"cmd": "/bin/true"})), &[("authorization", &user)])
        .await;
    assert_eq!(
        events.error().await,
        json!({"code": "unauthenticated", "message": "invalid username: 'nobody-at-all'"})
    );

    // A failed start leaves nothing to reap.
    eventually("all of them are collected", || zombies(agentd.pid()) == 0).await;
}

#[tokio::test]
async fn a_process_is_its_user_with_a_clean_environment() {
    let agentd = Agentd::start().await;
    agentd.init(json!({"envVars": {"SHARED": "sandbox", "OWN": "sandbox"}})).await;
    let user = format!("Basic {}", base64(b"nobody:"));
    let script = "id -un; id -G; umask; pwd; readlink /proc/self/fd/0; ls /proc/self/fd | wc -l; \
                  cat /proc/self/oom_score_adj; ps -o sid= -p $$ | tr -d ' '; echo $$; env | sort";
    let (_, events) = agentd
        .bash_with(
            script,
            json!({"process": {
                "cmd": "/bin/bash", "args": ["-c", script], "cwd": "/tmp",
                "envs": {"OWN": "request"},
            }}),
            &[("authorization", &user)],
        )
        .await;
    let finished = events.finish().await;
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(lines[..5], ["nobody", "65534", "0022", "/tmp", "/dev/null"], "{finished:?}");
    // Of `ls` itself: the three standard ones and the directory.
    assert_eq!(lines[5..7], ["4", "600"]);
    assert_eq!(lines[7], lines[8], "leads its own session");
    let env: Vec<_> = lines[9..]
        .iter()
        .filter(|line| !["PWD=", "SHLVL=", "_="].iter().any(|shell| line.starts_with(shell)))
        .copied()
        .collect();
    let path = format!("PATH={}", std::env::var("PATH").unwrap());
    assert_eq!(
        env,
        [
            "E2B_SANDBOX=true",
            "HOME=/nonexistent",
            "LOGNAME=nobody",
            "OWN=request",
            &path,
            "SHARED=sandbox",
            "USER=nobody",
        ]
    );
}

#[tokio::test]
async fn input_reaches_the_process_until_it_is_closed() {
    let agentd = Agentd::start().await;
    let gate = agentd.path("gate");
    let script = format!("cat; while [ ! -e {gate} ]; do sleep 0.02; done; echo done");
    let (pid, events) = agentd.bash_with(&script, json!({"stdin": true}), &[]).await;
    let process = json!({"pid": pid});
    let send = |data: &[u8]| json!({"process": process, "input": {"stdin": base64(data)}});
    agentd.rpc("process.Process/SendInput", send(b"one\n")).await;
    agentd.rpc("process.Process/SendInput", send(b"")).await;

    let mut body = envelope(&json!({"start": {"process": process}}));
    body.extend(envelope(&json!({"data": {"input": {"stdin": base64(b"two\n")}}})));
    body.extend(envelope(&json!({"keepalive": {}})));
    body.extend(envelope(&json!({"data": {"input": {"stdin": base64(b"three\n")}}})));
    let answer = agentd
        .call(request(
            Method::POST,
            "/process.Process/StreamInput",
            &[("content-type", "application/connect+json")],
            body,
        ))
        .await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(&answer.body[..], b"\0\0\0\0\x02{}\x02\0\0\0\x02{}");

    let pty = json!({"process": process, "input": {"pty": base64(b"x")}});
    assert_eq!(agentd.rpc_error("process.Process/SendInput", pty).await, (400, "failed_precondition".into()));
    agentd.rpc("process.Process/CloseStdin", json!({"process": process})).await;
    assert_eq!(agentd.rpc_error("process.Process/SendInput", send(b"late")).await.1, "failed_precondition");
    std::fs::write(&gate, "").unwrap();
    let finished = events.finish().await;
    assert_eq!(finished.stdout, "one\ntwo\nthree\ndone\n");
    assert_eq!(
        agentd.rpc_error("process.Process/SendInput", send(b"later")).await,
        (404, "not_found".into())
    );
}

#[tokio::test]
async fn a_terminal_echoes_resizes_and_hangs_up() {
    let agentd = Agentd::start().await;
    let message = json!({
        "process": {"cmd": "/bin/bash", "args": ["--norc", "-i"], "cwd": "/",
                    "envs": {"TERM": "xterm", "PS1": "$ "}},
        "pty": {"size": {"cols": 80, "rows": 24}},
    });
    let mut events = agentd.stream("process.Process/Start", message).await;
    let pid = events.next().await["event"]["start"]["pid"].clone();
    let process = json!({"pid": pid});
    let send = |data: &str| json!({"process": process, "input": {"pty": base64(data.as_bytes())}});
    agentd.rpc("process.Process/SendInput", send("stty size; tty\n")).await;
    let size = json!({"process": process, "pty": {"size": {"cols": 100, "rows": 30}}});
    eventually("the terminal is in use", || running("bash --norc -i") > 0).await;
    agentd.rpc("process.Process/Update", size).await;
    agentd.rpc("process.Process/SendInput", send("stty size; exit 4\n")).await;
    let stdin = json!({"process": process, "input": {"stdin": base64(b"x")}});
    assert_ne!(agentd.try_rpc("process.Process/SendInput", stdin).await.status, StatusCode::OK);
    let finished = events.finish().await;
    assert!(finished.pty.contains("/dev/pts/"), "{finished:?}");
    assert!(finished.pty.contains("30 100"), "{finished:?}");
    assert_eq!(finished.end, exited(4));
    assert_eq!((&*finished.stdout, &*finished.stderr), ("", ""));
}

#[tokio::test]
async fn signals_end_a_command_with_its_children() {
    let agentd = Agentd::start().await;
    let (pid, events) = agentd.bash("sleep 4711.25; true").await;
    eventually("the child runs", || running("sleep 4711.25") == 2).await;
    let signal = |signal: &str| json!({"process": {"pid": pid}, "signal": signal});
    assert_eq!(
        agentd.rpc_error("process.Process/SendSignal", signal("SIGNAL_UNSPECIFIED")).await.1,
        "unimplemented"
    );
    agentd.rpc("process.Process/SendSignal", signal("SIGNAL_SIGKILL")).await;
    assert_eq!(events.finish().await.end, killed());
    eventually("both are gone", || running("sleep 4711.25") == 0).await;
    assert_eq!(
        agentd.rpc_error("process.Process/SendSignal", signal("SIGNAL_SIGKILL")).await,
        (404, "not_found".into())
    );

    let (pid, events) = agentd.bash("exec sleep 60").await;
    let term = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGTERM"});
    agentd.rpc("process.Process/SendSignal", term).await;
    assert_eq!(events.finish().await.end["status"], "signal: terminated");
}

#[tokio::test]
async fn the_output_of_a_pipe_is_counted_and_not_kept() {
    let agentd = Agentd::start().await;
    let (_, events) = agentd.bash_with("echo secret-of-rsync", json!({"piped": true}), &[]).await;
    assert_eq!(events.finish().await.stdout, "secret-of-rsync\n");
    let journal = agentd.get("/coffer/journal", &[]).await.json().to_string();
    assert!(journal.contains("echo secret-of-rsync"), "the command is there: {journal}");
    assert!(!journal.contains(&base64(b"secret-of-rsync\n")), "{journal}");
}

#[tokio::test]
async fn a_timeout_ends_everything_the_command_started() {
    let agentd = Agentd::start().await;
    let script = "setsid sleep 4712.25 & (sleep 4712.5 &) ; trap '' TERM; sleep 4712.75 & wait";
    let started = Instant::now();
    let (pid, mut events) = agentd.bash_with(script, json!({}), &[("connect-timeout-ms", "4000")]).await;
    eventually("all of them run", || running("sleep 4712.") == 4).await;
    assert_eq!(events.error().await["code"], "deadline_exceeded");
    assert!(started.elapsed() >= Duration::from_secs(4));
    eventually("all of them are gone", || running("sleep 4712.") == 0).await;
    // Other clients see that it was killed.
    let late = agentd.stream("process.Process/Connect", json!({"process": {"pid": pid}})).await;
    assert_eq!(late.finish().await.end, killed());
    eventually("all of them are collected", || zombies(agentd.pid()) == 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_kills_nothing_and_a_late_one_gets_it_all() {
    let agentd = Agentd::start().await;
    let gate = agentd.path("gate");
    let script = format!("echo first; while [ ! -e {gate} ]; do sleep 0.02; done; echo second >&2; exit 5");
    let (pid, mut events) = agentd.bash_with(&script, json!({"tag": "mine"}), &[]).await;
    assert!(events.next().await["event"]["data"]["stdout"].is_string());
    drop(events);
    let listed = agentd.rpc("process.Process/List", json!({})).await;
    assert_eq!(
        listed["processes"],
        json!([{
            "config": {"cmd": "/bin/bash", "args": ["-c", script], "cwd": "/"},
            "pid": pid, "tag": "mine",
        }])
    );
    let attached = agentd.stream("process.Process/Connect", json!({"process": {"tag": "mine"}})).await;
    std::fs::write(&gate, "").unwrap();
    let finished = attached.finish().await;
    assert_eq!((&*finished.stdout, &*finished.stderr, &finished.end), ("first\n", "second\n", &exited(5)));
    // Ended, but not forgotten.
    let mut late = agentd.stream("process.Process/Connect", json!({"process": {"pid": pid}})).await;
    assert_eq!(late.next().await["event"]["start"]["pid"], pid);
    let late = late.finish().await;
    assert_eq!((late.stdout, late.end), (finished.stdout, finished.end));
    assert_eq!(agentd.rpc("process.Process/List", json!({})).await, json!({}));
}

#[tokio::test]
async fn a_process_runs_on_while_nobody_reads() {
    let agentd = Agentd::start().await;
    let done = agentd.path("done");
    let (pid, events) = agentd.bash(&format!("head -c 8000000 /dev/zero; echo end; touch {done}")).await;
    drop(events);
    eventually("it wrote more than is kept", || std::path::Path::new(&done).exists()).await;
    let late = agentd.stream("process.Process/Connect", json!({"process": {"pid": pid}})).await;
    let finished = late.finish().await;
    assert!(finished.stdout.len() <= 4 << 20, "{}", finished.stdout.len());
    assert!(finished.stdout.ends_with("end\n"));
}

#[tokio::test]
async fn a_child_that_keeps_the_output_open_does_not_delay_the_end() {
    let agentd = Agentd::start().await;
    let mark = agentd.path("mark");
    let started = Instant::now();
    let script = format!("(sleep 3; echo late && touch {mark}) & echo early");
    let (_, events) = agentd.bash(&script).await;
    let finished = events.finish().await;
    assert_eq!((&*finished.stdout, finished.end), ("early\n", exited(0)));
    assert!(started.elapsed() < Duration::from_millis(2500), "{:?}", started.elapsed());
    eventually("and it does not die of a broken pipe", || std::path::Path::new(&mark).exists()).await;
}

#[tokio::test]
async fn silence_is_broken_by_keepalives() {
    let agentd = Agentd::start().await;
    let (_, events) = agentd.bash_with("sleep 2.5", json!({}), &[("keepalive-ping-interval", "1")]).await;
    assert_eq!(events.finish().await.keepalives, 2);
}

#[tokio::test]
async fn orphans_are_collected_too() {
    let agentd = Agentd::start().await;
    for _ in 0..20 {
        let (_, events) = agentd.bash("(sleep 0.05 & sleep 0.05 &) ; exit 0").await;
        assert_eq!(events.finish().await.end, exited(0));
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    eventually("no zombies stay", || zombies(agentd.pid()) == 0).await;
}

#[tokio::test]
async fn as_first_process_it_stays_and_collects() {
    let Some(agentd) = Agentd::start_first().await else {
        println!("SKIPPED: namespaces need root and `unshare`");
        return;
    };
    let script = "echo $PPID; kill -TERM 1; kill -INT 1; kill -KILL 1; (setsid sleep 0.1 &) ; \
                  sleep 0.4; ps -e -o stat= | grep -c Z; ls -l /proc/1/fd | grep -c socket; echo $PATH";
    let (pid, events) = agentd.bash(script).await;
    let finished = events.finish().await;
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(lines[..2], ["1", "0"], "{finished:?}");
    assert!(pid < 100, "{pid}");
    // Its environment was empty, and commands are found all the same.
    assert!(lines[3].starts_with("/usr/local/sbin:"), "{finished:?}");
    assert_eq!(agentd.get("/health", &[]).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn exits_are_never_mixed_up_under_load() {
    let agentd = Agentd::start().await;
    for round in 0..10 {
        let starts = (0..8).map(|index| agentd.bash_owned(format!("(true &); exit {}", round * 8 + index)));
        let ends = futures_util::future::join_all(starts).await;
        for (index, end) in ends.into_iter().enumerate() {
            assert_eq!(end, exited(round * 8 + index as i64));
        }
    }
}

impl Agentd {
    async fn bash_owned(&self, script: String) -> Value {
        let (_, events) = self.bash(&script).await;
        events.finish().await.end
    }
}
