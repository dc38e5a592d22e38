//! Sandboxes live on while parts of ours die, stop and come back.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Home, Up, cannot_run_sandboxes};

#[test]
fn a_sandbox_outlives_every_part_of_ours() {
    if cannot_run_sandboxes() {
        return;
    }
    let home = Home::new();
    let data = home.data();
    let up = Up::start(&data, &[]);
    let (key, sandbox) = (up.key.clone(), up.create());
    assert!(up.answers(&sandbox));

    // Twice each: pauses between restarts must not grow for parts that were healthy.
    for _ in 0..2 {
        for role in ["server", "node"] {
            let away = up.kill_part(role, || {
                up.answers(&sandbox) && up.api("GET", "/v2/sandboxes", &Value::Null).0 == 200
            });
            eprintln!("the {role} was away for {away:?}");
            assert!(away < Duration::from_secs(3), "{role}: {away:?}");
            std::thread::sleep(Duration::from_millis(3100));
        }
    }
    let second = up.create();

    up.end(Signal::KILL);
    let up = Up::start(&data, &[]);
    assert_eq!(up.key, key);
    assert!(up.answers(&sandbox) && up.answers(&second), "lost by the death of `up`");

    assert!(up.end(Signal::TERM).success());
    // Takes everything down with it at last.
    let up = Up::start(&data, &["--ephemeral"]);
    assert!(up.answers(&sandbox) && up.answers(&second), "lost by a stop");
    assert_eq!(up.api("DELETE", &format!("/sandboxes/{sandbox}"), &Value::Null).0, 204);
    assert!(up.end(Signal::TERM).success());
    assert_eq!((home.left_over(), data.exists()), (vec![], false));
}

#[test]
fn creates_under_way_are_finished_when_it_is_told_to_stop() {
    if cannot_run_sandboxes() {
        return;
    }
    let home = Home::new();
    let data = home.data();
    let up = Up::start(&data, &[]);
    up.create();
    let order = json!({"templateID": "base", "timeout": 300});
    let made = std::thread::scope(|scope| {
        let creates: Vec<_> =
            (0..40).map(|_| scope.spawn(|| up.api("POST", "/v2/sandboxes", &order))).collect();
        std::thread::sleep(Duration::from_millis(40));
        up.signal(Signal::TERM);
        let answers = creates.into_iter().map(|create| create.join().unwrap());
        answers.filter(|(status, _)| *status != 0).collect::<Vec<_>>()
    });
    assert!(up.end(Signal::TERM).success());
    // Who came too late was not heard at all; who was heard got what was asked for.
    assert!(made.iter().all(|(status, _)| *status == 201), "{made:?}");
    let up = Up::start(&data, &["--ephemeral"]);
    for (_, sandbox) in &made {
        assert!(up.answers(sandbox["sandboxID"].as_str().unwrap()), "{sandbox} was promised");
    }
    let (_, listed) = up.api("GET", "/v2/sandboxes", &Value::Null);
    assert_eq!(listed.as_array().unwrap().len(), made.len() + 1);
    assert!(up.end(Signal::TERM).success());
}
