//! What people get wrong, and what they read then.

use std::os::unix::process::CommandExt;
use std::process::{Output, Stdio};

use rustix::fs::{FlockOperation, flock};

use crate::harness::coffer;

fn run(arguments: &[&str]) -> (i32, String, String) {
    told(coffer().args(arguments).output().unwrap())
}

fn told(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// A refusal says what is wrong on standard error, and nothing on standard output.
#[track_caller]
fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let (status, stdout, stderr) = run(arguments);
    assert_eq!((status, stdout.as_str()), (code, ""), "{arguments:?}: {stderr}");
    for word in words {
        assert!(stderr.contains(word), "{arguments:?} should say {word:?}: {stderr}");
    }
}

#[test]
fn help_names_what_people_may_start_and_hides_the_parts() {
    let (status, stdout, stderr) = run(&["--help"]);
    assert_eq!((status, stderr.as_str()), (0, ""));
    let verbs: Vec<&str> = stdout
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(verbs[..3], ["up", "config", "template"]);
    assert_eq!((verbs.contains(&"exec"), verbs.last()), (true, Some(&"help")));
    for hidden in ["node", "preflight", "server", "egress", "git", "spawner"] {
        assert!(!verbs.contains(&hidden), "{hidden}");
    }
    let (status, stdout, _) = run(&["--version"]);
    assert_eq!((status, stdout), (0, format!("coffer {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn unknown_words_are_refused() {
    refused(&[], 2, &["Usage: coffer [OPTIONS] <COMMAND>"]);
    refused(&["fly"], 2, &["unrecognized subcommand 'fly'"]);
    refused(&["template", "fly"], 2, &["unrecognized subcommand 'fly'"]);
    refused(
        &["template", "build", "fly"],
        2,
        &["invalid value 'fly'", "[possible values: base, debian-12, debian-13, agent-aider, agent-amp, "],
    );
}

#[test]
fn bad_settings_are_refused_before_anything_is_made() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let data = data.to_str().unwrap();
    for (settings, words) in [
        (["--listen", "here"], "`listen` = \"here\" (flag --listen): invalid socket address syntax"),
        (["--sandbox-cpus", "0"], "`sandbox.cpus` = 0 (flag --sandbox-cpus): must be from 1 to 1024"),
        (
            ["--sandbox-processes", "8"],
            "`sandbox.processes` = 8 (flag --sandbox-processes): must be from 64 to 1000000",
        ),
        (
            ["--max-timeout", "25h"],
            "`sandbox.max_timeout` = \"25h\" (flag --max-timeout): must not be longer than `sandbox.max_lifetime`, \
             which is 24h",
        ),
        (
            ["--max-timeout", "0s"],
            "`sandbox.max_timeout` = \"0s\" (flag --max-timeout): must be more than zero",
        ),
        (
            ["--max-lifetime", "-1h"],
            "`sandbox.max_lifetime` = \"-1h\" (flag --max-lifetime): `-1h` is not a duration such as `30s`, `1h 30m` or `7d`",
        ),
        (
            ["--idle-timeout", "0s"],
            "`sandbox.idle_timeout` = \"0s\" (flag --idle-timeout): must be more than zero",
        ),
        (
            ["--sandbox-memory", "1MiB"],
            "`sandbox.memory` = \"1MiB\" (flag --sandbox-memory): must be at least 64MiB",
        ),
        (["--pool-size", "1MiB"], "`node.pool_size` = \"1MiB\" (flag --pool-size): must be at least 256MiB"),
        (
            ["--pool-size", "much"],
            "`node.pool_size` = \"much\" (flag --pool-size): `much` is not a size such as `512MiB` or `2GB`",
        ),
        (
            ["--domain", "https://a.com"],
            "`domain` = \"https://a.com\" (flag --domain): must be a plain name such as `sandboxes.example.com`",
        ),
        (
            ["--sandbox-disk", "1KiB"],
            "`sandbox.disk` = \"1KiB\" (flag --sandbox-disk): must be at least 16MiB",
        ),
        (
            ["--set", "mirrors.pypi=https://me:hidden@pypi.test/simple"],
            "`mirrors.pypi` = \"https://********@pypi.test/simple\" (flag --set): must not have a user or a \
             password: sandboxes would learn them. Store the credential as a secret, and add it to requests by \
             a header rule of the network policy",
        ),
        (
            ["--set", "catalogue.build=node,nodes"],
            "`catalogue.build` = [\"node\",\"nodes\"] (flag --set): has `nodes`, which is not in the catalogue: \
             agent-aider, agent-amp, agent-claude-code, agent-codex, agent-copilot, agent-gemini, agent-goose, \
             agent-opencode, agent-qwen, agent-sandbox-dev-node22, code-interpreter-v1, minimal, node, python",
        ),
        (
            ["--set", "mirrors.hosts=10.0.0.1"],
            "`mirrors.hosts` = [\"10.0.0.1\"] (flag --set): must be names such as `pypi.example.com` or \
             `pypi.example.com:8443`; `10.0.0.1` is none",
        ),
        (
            ["--set", "mirrors.apt=http://169.254.169.254/debian"],
            "`mirrors.apt` = \"http://169.254.169.254/debian\" (flag --set): must not be at `169.254.169.254`: \
             metadata addresses stay closed",
        ),
        (
            ["--log", "=,="],
            "`log.filter` = \"=,=\" (flag --log): must be a filter such as `info` or `coffer_node=debug`",
        ),
    ] {
        let said = format!(
            "error: bad setting {words}\nhint: `coffer config show` lists every setting and its source\n"
        );
        // `up` and `config check` agree.
        for verb in [&["up"][..], &["config", "check"]] {
            let arguments = [verb, &["--data-dir", data], &settings].concat();
            assert_eq!(run(&arguments), (1, String::new(), said.clone()));
        }
    }
    assert!(!temp.path().join("data").exists());
}

#[test]
fn settings_are_shown_with_their_origin() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("my.toml");
    std::fs::write(&file, "[sandbox]\nmemory = \"1GiB\"\n").unwrap();
    let file = file.to_str().unwrap();
    let mut command = coffer();
    command.env("COFFER_DATABASE_URL", "postgres://user:canary@host/db");
    command.args(["config", "show", "--changed", "--config", file, "--sandbox-cpus", "3"]);
    let (status, stdout, stderr) = told(command.output().unwrap());
    assert_eq!((status, stderr.as_str()), (0, ""));
    let rows: Vec<Vec<&str>> = stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let place = format!("{file}:2");
    assert_eq!(
        rows,
        [
            vec!["SETTING", "VALUE", "FROM"],
            vec!["database.url", "********", "environment", "COFFER_DATABASE_URL"],
            vec!["sandbox.cpus", "3", "flag", "--sandbox-cpus"],
            vec!["sandbox.memory", "\"1GiB\"", &place],
        ]
    );
    let mut command = coffer();
    command.env("GITHUB_TOKEN", "canary").args(["config", "show", "--json", "--config", file]);
    let (status, stdout, _) = told(command.output().unwrap());
    let shown: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let of =
        |name: &str| shown.as_array().unwrap().iter().find(|one| one["setting"] == name).unwrap().clone();
    assert_eq!(status, 0);
    assert!(!stdout.contains("canary"));
    assert_eq!(of("github.token")["origin"]["variable"], "GITHUB_TOKEN");
    assert_eq!(of("sandbox.memory")["origin"], serde_json::json!({"kind": "file", "file": file, "line": 2}));
    assert_eq!(of("listen")["origin"]["kind"], "default");
    refused(
        &["config", "check", "--config", file, "--set", "sandbox.cpu=1"],
        1,
        &["did you mean `sandbox.cpus`?"],
    );
}

#[test]
fn up_needs_root_and_says_so() {
    let mut command = coffer();
    command.arg("up");
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return eprintln!("SKIPPED: nobody cannot start the binary here: {error}"),
    };
    let expected = "error: `coffer up` needs root: it creates namespaces, mounts and cgroups\n\
                    hint: run it with sudo; the server process drops root at once\n";
    assert_eq!(told(output), (1, String::new(), expected.to_string()));
}

#[test]
fn a_data_directory_has_one_user() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: not root");
    }
    let temp = tempfile::tempdir().unwrap();
    let lock = std::fs::File::create(temp.path().join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let path = temp.path().canonicalize().unwrap();
    let expected = format!(
        "error: another coffer uses the data directory `{}`\n\
         hint: stop it, or give this one a directory of its own with --data-dir\n",
        path.display()
    );
    let arguments = ["up", "--data-dir", path.to_str().unwrap()];
    assert_eq!(run(&arguments), (1, String::new(), expected));
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1, "only the lock is there");
}

#[test]
fn nobody_reading_the_output_is_no_failure() {
    let temp = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = coffer();
    command.args(["template", "list", "--template-dir"]).arg(temp.path()).stdout(Stdio::from(writer));
    assert_eq!(told(command.output().unwrap()), (0, String::new(), String::new()));
}
