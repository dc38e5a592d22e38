//! The client verbs against a real server: stdout, stderr and exit code of each, for good and bad input.
//!
//! One server serves all of them, one after another, so that the transcripts can build on each other. Ids, times and
//! keys differ from run to run and are filtered; what needs terminals and big files is in `e2e/cli/test_coffer.py`.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;

use crate::harness::{Home, Up, cannot_run_sandboxes, coffer};

/// A user with a profile of the server.
struct User<'a> {
    up: &'a Up,
    scratch: &'a Path,
    data: &'a Path,
}

/// Replaces what differs from run to run.
fn filtered(text: &str, user: &User) -> String {
    let text = text.replace(user.scratch.to_str().unwrap(), "SCRATCH");
    let text = text.replace(user.data.to_str().unwrap(), "DATA");
    // Signing keys are base64, whose signs are not part of words.
    let words = text.split_inclusive(char::is_whitespace).map(|word| match word.starts_with("whsec_") {
        true => format!("KEY{}", &word[word.trim_end().len()..]),
        false => word.to_string(),
    });
    let text: String = words.collect();
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_:.-".contains(letter);
    let mut shown = String::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        if end > 0 {
            shown.push_str(&stand_in(&rest[..end]));
        }
        let next = rest[end..].find(is_part).map_or(rest.len(), |next| end + next);
        shown.push_str(&rest[end..next]);
        rest = &rest[next..];
    }
    // Columns are as wide as their cells, which differ too.
    let lines = shown.lines().map(|line| {
        let words: Vec<&str> = line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
        if line.starts_with(' ') { format!("  {}", words.join("  ")) } else { words.join("  ") }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn stand_in(word: &str) -> String {
    if let Some(word) = word.strip_suffix(':') {
        return format!("{}:", stand_in(word));
    }
    let is_id = |word: &str| {
        word.len() == 26 && word.chars().all(|letter| letter.is_ascii_digit() || letter.is_ascii_lowercase())
    };
    let is_age = |word: &str| {
        word.len() > 1
            && word.ends_with(['s', 'm', 'h', 'd'])
            && word[..word.len() - 1].bytes().all(|byte| byte.is_ascii_digit())
    };
    if is_id(word) {
        return "ID".into();
    }
    if let Some((kind, id)) = word.split_once(':')
        && is_id(id)
    {
        return format!("{kind}:ID");
    }
    if word.len() > 18 && word.starts_with("20") && word.ends_with('Z') {
        return "TIME".into();
    }
    if word.starts_with("e2b_") {
        return "KEY".into();
    }
    if word.starts_with("127.0.0.1:") {
        return "127.0.0.1:PORT".into();
    }
    if is_age(word) { "AGE".into() } else { word.into() }
}

impl User<'_> {
    fn output(&self, arguments: &[&str], stdin: &str) -> (i32, String, String) {
        let mut command = coffer();
        command.env("COFFER_CONFIG_DIR", self.scratch.join("config")).env("NO_COLOR", "1");
        command.args(arguments).current_dir(self.scratch);
        if arguments.first().is_some_and(|verb| verb.starts_with("ssh")) {
            // It writes `.ssh/config` there.
            command.env("HOME", self.scratch);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }

    /// Transcripts of several calls in one snapshot.
    #[track_caller]
    fn check(&self, name: &str, calls: &[&[&str]]) {
        self.check_with(name, "", calls);
    }

    #[track_caller]
    fn check_with(&self, name: &str, stdin: &str, calls: &[&[&str]]) {
        let mut text = String::new();
        for arguments in calls {
            let (code, stdout, stderr) = self.output(arguments, stdin);
            text += &format!("$ coffer {}\nexit code: {code}\n", arguments.join(" "));
            for (name, output) in [("stdout", stdout), ("stderr", stderr)] {
                if !output.is_empty() {
                    text += &format!("----- {name}\n{output}");
                }
            }
            text += "\n";
        }
        insta::assert_snapshot!(format!("client_{name}"), filtered(&text, self));
    }

    /// Runs a call that must work, and returns its first line.
    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.output(arguments, "");
        assert_eq!(code, 0, "{arguments:?}: {stdout}{stderr}");
        stdout.lines().next().unwrap_or_default().to_string()
    }
}

#[test]
fn the_verbs_of_a_client() {
    if cannot_run_sandboxes() {
        return;
    }
    let home = Home::new();
    let data = home.data();
    let up = Up::start(&data, &["--ephemeral"]);
    let scratch = tempfile::tempdir().unwrap();
    let user = User { up: &up, scratch: scratch.path(), data: &data };
    signing_in(&user, &data);
    sandboxes(&user);
    commands(&user);
    code(&user);
    ssh(&user);
    copies(&user);
    watching(&user);
    snapshots(&user);
    owning(&user);
    working(&user);
    fixing(&user);
    templates(&user);
    bounds(&user);
    operators(&user, &data);
    assert!(up.end(Signal::TERM).success());
}

fn signing_in(user: &User, data: &Path) {
    let url = format!("http://{}", user.up.listen);
    user.check(
        "without_a_key",
        &[&["whoami", "--url", &url], &["ls", "--url", "http://127.0.0.1:1"], &["ls", "--url", "nowhere"]],
    );
    user.check_with(
        "login_with_a_bad_key",
        "e2b_0000000000000000000000000000000000000000",
        &[&["login", &url]],
    );
    user.check(
        "login_with_arguments",
        &[&["login", "e2b_canary"], &["login", &url], &["login", "--env-file", "nothing"]],
    );
    let env = data.join("env");
    user.check("login", &[&["login", "--env-file", env.to_str().unwrap()], &["whoami"], &["profile", "ls"]]);
    user.check_with("login_from_a_pipe", &user.up.key, &[&["login", &url, "--name", "second"]]);
    user.check(
        "profiles",
        &[
            &["profile", "use", "nothing"],
            &["profile", "use", "default"],
            &["profile", "rm", "second"],
            &["profile", "ls", "-o", "json"],
            &["ls", "--profile", "nothing"],
        ],
    );
    let stored = std::fs::read_to_string(user.scratch.join("config/profiles.toml")).unwrap();
    assert!(stored.contains(&user.up.key));
}

fn sandboxes(user: &User) {
    user.check("ls_empty", &[&["ls"], &["ls", "-o", "json"], &["ls", "-o", "yaml"]]);
    user.check(
        "create",
        &[&["create", "--name", "box", "-m", "team=core", "--lifetime", "10m", "-e", "COLOUR=blue"]],
    );
    user.check(
        "create_refused",
        &[
            &["create", "no-such-template"],
            &["create", "--memory", "much"],
            &["create", "-m", "x"],
            &["create", "--cpus", "100000"],
            &["create", "-e", "COFFER_TEST_NOT_SET"],
            &["create", "--volume", "data"],
        ],
    );
    user.check("ls", &[&["ls"], &["ls", "-m", "team=core"], &["ls", "-m", "team=other"], &["ls", "-m", "x"]]);
    user.check("show", &[&["show", "box"], &["show", "box", "-o", "yaml"], &["show", "nothing"], &["show"]]);
    // An id that is well-formed and of nothing.
    user.check("show_unknown_id", &[&["show", "01m7pkzxt0egeafbm0b2gst4x4"]]);
    let second = user.done(&["create", "--name", "box"]);
    user.check("ambiguous", &[&["show", "box"]]);
    user.done(&["rm", &second]);
    user.check("rm_refused", &[&["rm", "nothing"], &["rm"]]);
}

fn commands(user: &User) {
    user.check(
        "exec",
        &[
            &["exec", "box", "echo out; echo err >&2; exit 3"],
            &["exec", "box", "--", "printf", "%s\\n", "a b"],
            &["exec", "box", "-e", "NAME=value", "-c", "/tmp", "echo $NAME $COLOUR $PWD"],
            &["exec", "box", "--timeout", "1s", "sleep 60"],
        ],
    );
    user.check_with("exec_stdin", "three\nlines\nhere\n", &[&["exec", "box", "--", "wc", "-l"]]);
    user.check(
        "exec_refused",
        &[&["exec", "nothing", "true"], &["exec", "box"], &["exec", "box", "--", "no-such-program", "x"]],
    );
    user.check(
        "run",
        &[
            &["run", "--", "sh", "-c", "exit 4"],
            &["run", "--template", "nothing", "true"],
            &["ls", "-o", "table"],
        ],
    );
}

/// Answers as the code interpreter does; the real one needs a template that takes minutes to build.
const INTERPRETER: &str = include_str!("interpreter.py");

fn code(user: &User) {
    std::fs::write(user.scratch.join("value.py"), "value").unwrap();
    user.check(
        "code_refused",
        &[
            &["code", "box", "-c", "1 + 1"],
            &["code", "nothing", "-c", "1"],
            &["code", "box", "none.py"],
            &["code", "none.py"],
            &["code", "box", "value.py", "-c", "1"],
            &["code", "a", "b", "c"],
            &["code", "box", "-l", "perl", "-c", "1"],
            &["code", "--notebook", "out.ipynb"],
            &["code", "--notebook", "out.ipynb", "nothing"],
            &["code", "-c", "1"],
        ],
    );
    std::fs::write(user.scratch.join("interpreter.py"), INTERPRETER).unwrap();
    user.done(&["cp", "interpreter.py", "box:/tmp/interpreter.py"]);
    user.done(&[
        "exec",
        "box",
        "setsid python3 /tmp/interpreter.py >/dev/null 2>&1 & for n in $(seq 100); do \
         curl -fs http://127.0.0.1:49999/ && break; sleep 0.1; done",
    ]);
    user.check(
        "code",
        &[
            &["code", "box", "-c", "print"],
            &["code", "box", "value.py"],
            &["code", "box", "-c", "image"],
            &["code", "box", "-c", "image", "--save", "saved"],
            &["code", "box", "-c", "raise"],
            &["code", "box", "--context", "one", "-c", "value"],
            &["code", "box", "--context", "none", "-c", "value"],
            &["code", "--notebook", "out.ipynb", "box"],
        ],
    );
    user.check_with("code_stdin", "value", &[&["code", "box", "-"]]);
    assert_eq!(std::fs::read_to_string(user.scratch.join("saved/result-1.png")).unwrap(), "hello");
    let (exit, stdout, _) = user.output(&["code", "box", "-o", "json", "-c", "raise"], "");
    let ran: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((exit, ran["error"]["name"].as_str()), (1, Some("ValueError")), "{ran}");
    let notebook = std::fs::read_to_string(user.scratch.join("out.ipynb")).unwrap();
    let notebook: serde_json::Value = serde_json::from_str(&notebook).unwrap();
    assert_eq!(notebook["cells"][1]["outputs"][0]["data"]["text/plain"], "42");
    user.done(&["exec", "box", "pkill -f '[i]nterpreter.py'"]);
}

/// What needs `ssh` itself is in `e2e/cli/test_ssh.py`.
fn ssh(user: &User) {
    user.check(
        "ssh",
        &[
            &["ssh-proxy", "box.coffer"],
            &["ssh-config", "--write"],
            &["ssh-config", "box", "--write"],
            &["ssh-config", "no-such-sandbox"],
            &["ssh-config", "a b"],
            &["ssh-proxy", "no-such-sandbox.coffer"],
            &["ssh", "a b"],
        ],
    );
}

fn copies(user: &User) {
    std::fs::create_dir_all(user.scratch.join("tree/sub")).unwrap();
    std::fs::write(user.scratch.join("tree/sub/file"), "content").unwrap();
    user.check(
        "cp",
        &[
            &["cp", "tree", "box:"],
            &["exec", "box", "cat tree/sub/file"],
            &["cp", "box:tree/sub/file", "copy"],
            &["cp", "box:tree", "back"],
            &["cp", "box:tree/sub/file", "-"],
        ],
    );
    assert_eq!(std::fs::read_to_string(user.scratch.join("back/sub/file")).unwrap(), "content");
    assert_eq!(std::fs::read_to_string(user.scratch.join("copy")).unwrap(), "content");
    user.check(
        "cp_refused",
        &[
            &["cp", "nothing", "box:"],
            &["cp", "box:nothing", "."],
            &["cp", "a", "b"],
            &["cp", "box:a", "box:b"],
            &["cp", "box:tree", "-"],
        ],
    );
}

fn watching(user: &User) {
    user.check(
        "logs",
        &[
            &["logs", "box", "-n", "2", "--search", "content"],
            &["logs", "box", "--level", "loud"],
            &["logs", "nothing"],
        ],
    );
    user.check(
        "events",
        &[&["events", "--kind", "sandbox.*", "-n", "2"], &["events", "--kind", "nothing.at.all"]],
    );
    user.check("ports", &[&["ports", "box"], &["ports", "box", "x"]]);
}

fn snapshots(user: &User) {
    user.check(
        "snapshot",
        &[
            &["snapshot", "box", "--name", "built", "--files-only"],
            &["snapshot", "rm", "nothing"],
            &["snapshot"],
        ],
    );
    user.check("snapshot_is_a_template", &[&["run", "--template", "built", "cat tree/sub/file"]]);
    user.check("snapshot_rm", &[&["snapshot", "rm", "built"], &["snapshot", "ls"]]);
    user.check(
        "pause",
        &[
            &["pause", "box", "--files-only"],
            &["exec", "box", "true"],
            &["resume", "box"],
            &["resume", "box"],
            &["pause", "nothing"],
        ],
    );
    user.check(
        "fork",
        &[
            &["fork", "box", "--files-only", "-m", "fork=yes"],
            &["ls", "-m", "fork=yes"],
            &["fork", "nothing"],
        ],
    );
    user.check("rm", &[&["rm", "--all"], &["ls"]]);
}

fn owning(user: &User) {
    user.check(
        "volume",
        &[
            &["volume", "create", "data", "--size", "64MiB"],
            &["volume", "create", "data"],
            &["volume", "ls"],
            &["volume", "show", "data"],
            &["volume", "rm", "data"],
            &["volume", "rm", "data"],
        ],
    );
    user.check_with("secret_set", "s3cret\n", &[&["secret", "set", "TOKEN", "--host", "api.example.com"]]);
    user.check(
        "secret",
        &[
            &["secret", "set", "EMPTY"],
            &["secret", "ls"],
            &["secret", "rm", "TOKEN"],
            &["secret", "rm", "TOKEN"],
        ],
    );
    user.check(
        "key",
        &[
            &["key", "create", "ci", "--role", "read", "--expires", "1h"],
            &["key", "create", "x", "--role", "king"],
            &["key", "rm", "ci"],
            &["key", "rm", "nothing"],
        ],
    );
    user.check(
        "repo",
        &[
            &["repo", "add", "app"],
            &["repo", "ls"],
            &["repo", "add", "app"],
            &["repo", "branches", "app"],
            &["repo", "show", "nothing"],
        ],
    );
    user.check(
        "search",
        &[
            &["search", "app", "--kind", "repository"],
            &["search", "no", "such", "words"],
            &["search", "app", "--kind", "king"],
            &["search", "app", "-n", "0"],
        ],
    );
    user.check_with("agent_add", "a-key\n", &[&["agent", "add", "goose"]]);
    user.check(
        "agent",
        &[
            // Without a recipe, so that nothing is installed.
            &["agent", "add", "coder", "--preset", "cursor", "--model", "large"],
            &["agent", "ls"],
            &["agent", "add", "claude_code"],
            &["agent", "add", "nothing"],
            &["agent", "add", "claude_code", "--login", "PASSWORD"],
            &["agent", "add", "claude_code", "--key-env", "COFFER_TEST_NOT_SET"],
            &["agent", "add", "claude_code", "--template", "nothing", "--key-file", "/nothing"],
            &["agent", "test", "nothing"],
            &["agent", "add", "x", "--preset", "nothing"],
            &["agent", "show", "nothing"],
        ],
    );
    user.check("project", &[&["project", "show"], &["project", "ls"]]);
}

fn working(user: &User) {
    user.check_with(
        "task_add",
        "Fix it, with \u{1b}[31mcolours\u{1b}[0m.\n",
        &[&[
            "task",
            "add",
            "fix the build",
            "-p",
            "-",
            "--repo",
            "app",
            "--agent",
            "coder",
            "--check",
            "make test",
            "--priority",
            "high",
        ]],
    );
    user.check(
        "task",
        &[
            &["task", "ls"],
            &["task", "ls", "--state", "done"],
            &["task", "show", "nothing"],
            &["task", "add"],
            &["task", "add", "x", "--agent", "nothing"],
        ],
    );
    let id = user.done(&["task", "add", "second"]);
    user.check_with("task_say", "a remark", &[&["task", "say", &id], &["task", "show", &id]]);
    user.check(
        "task_verbs",
        &[
            &["task", "diff", &id],
            &["task", "checkout", &id],
            &["task", "merge", &id],
            &["task", "start", &id],
            &["task", "interrupt", &id],
            &["task", "answer", &id],
            &["task", "answer", &id, "--finish", "--stop"],
            &["task", "budget", &id, "--raise", "5"],
            &["task", "cancel", &id],
            &["task", "rm", &id],
        ],
    );
    user.check(
        "schedule",
        &[
            &["schedule", "ls"],
            &[
                "schedule",
                "add",
                "bad",
                "--cron",
                "99 * * * *",
                "--title",
                "x",
                "--agent",
                "coder",
                "--repo",
                "app",
            ],
            &[
                "schedule",
                "add",
                "nightly",
                "--cron",
                "@daily",
                "--zone",
                "Europe/Berlin",
                "--title",
                "Update",
                "--agent",
                "coder",
                "--repo",
                "app",
                "--paused",
            ],
            &["schedule", "ls"],
            &["schedule", "pause", "nothing"],
            &["schedule", "rm", "nightly"],
        ],
    );
    user.check(
        "compete_refused",
        &[
            &["compete", "x", "--agents", "nothing"],
            &["compete", "x"],
            &["compete", "x", "--agents", "coder,coder,coder", "--model", "a,b"],
        ],
    );
}

/// From a text and a directory to a pull request, without a forge; and what is refused before anything starts.
fn fixing(user: &User) {
    user.check(
        "fix_refused",
        &[
            &["fix"],
            &["fix", ""],
            &["fix", "https://github.com/octocat/hello-world"],
            &["fix", "https://github.com/octocat/hello-world/pull/3"],
            &["fix", "https://github.com/octocat/hello-world/issues/7", "--repo", "app"],
            &["fix", "https://github.com/octocat/hello-world/issues/7"],
            &["fix", "app#99"],
            &["fix", "do it", "--agent", "nothing"],
            &["fix", "do it", "--repo", "nothing"],
            &["fix", "do it", "--dir", "tree"],
        ],
    );
    user.check(
        "repo_connect",
        &[
            &["repo", "connect", "gitlab"],
            &["repo", "connect", "github", "--token-file", "nothing"],
            &["repo", "connect", "github", "--host", "https://ghe.example.com"],
            &["repo", "connections"],
            &["repo", "available"],
            &["repo", "disconnect", "nothing"],
            &["repo", "add", "https://github.com/octocat/hello-world"],
            &["repo", "add", "https://git.example.com/team/app.git"],
            &["repo", "add", "https://git.example.com/team/app.git", "--token-env", "COFFER_TEST_NOT_SET"],
            &["repo", "add", "http://git.example.com/team/app.git", "--user", "ada"],
            &["repo", "add", "https://ada@git.example.com/team/app.git", "--user", "ada"],
            &["repo", "add", "/srv/git/app.git", "--user", "ada"],
        ],
    );
    let directory = user.scratch.join("door");
    std::fs::create_dir_all(&directory).unwrap();
    let git = |words: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.current_dir(&directory)
            .args(["-c", "user.name=Ada", "-c", "user.email=ada@example.com"])
            .args(words);
        let output = git.env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    git(&["init", "--quiet", "--initial-branch=trunk"]);
    std::fs::write(directory.join("README"), "squeaks\n").unwrap();
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", "first"]);
    let definition = user.scratch.join("agent.json");
    let command = r#"{"preset": "custom", "command": ["sh", "-c", "echo oiled > README; echo I oiled it.", "{prompt}"]}"#;
    std::fs::write(&definition, command).unwrap();
    user.done(&["agent", "add", "oiler", "--definition", definition.to_str().unwrap()]);
    let fix =
        ["fix", "Oil the door", "--dir", "door", "--agent", "oiler", "--check", "grep oiled README", "--yes"];
    let (code, stdout, stderr) = user.output(&fix, "");
    let url = format!("http://{}/api/v1/repositories/door/pulls/1\n", user.up.listen);
    assert_eq!((code, stdout.as_str()), (0, url.as_str()), "{stderr}");
    for told in
        ["created repository door", "agent-1   done", "check     done", "pull      done", "attempt 1: done"]
    {
        assert!(stderr.contains(told), "{told}: {stderr}");
    }
    // A check that fails has a code of its own, and its work no pull request.
    let fix = ["fix", "Oil it again", "--repo", "door", "--agent", "oiler", "--check", "false", "-o", "json"];
    let (code, stdout, stderr) = user.output(&fix, "");
    assert_eq!(code, 8, "{stderr}");
    let told: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&told["attempt"]["error"]["code"], &told["pull_url"]),
        (&"check_failed".into(), &serde_json::Value::Null)
    );
    // An attempt that failed leaves its sandbox for people to look at.
    user.done(&["rm", "--all"]);
}

fn templates(user: &User) {
    let context = user.scratch.join("image");
    std::fs::create_dir_all(&context).unwrap();
    std::fs::write(context.join("greeting"), "built here\n").unwrap();
    std::fs::write(
        context.join("Dockerfile"),
        "FROM template://base\nCOPY greeting /greeting\nRUN cat /greeting\n",
    )
    .unwrap();
    // The log has times and paths of its own: only that it works.
    let (code, stdout, stderr) = user.output(&["template", "build", "./image", "--name", "mine"], "");
    assert!(
        code == 0 && stdout.starts_with("built template mine") && stderr.contains("built here"),
        "{code} {stdout} {stderr}"
    );
    user.check(
        "template",
        &[&["run", "--template", "mine", "cat /greeting"], &["template", "ls", "--search", "mine"]],
    );
    std::fs::write(context.join("Dockerfile"), "FROM template://base\nRUN exit 9\n").unwrap();
    let (code, _, stderr) = user.output(&["template", "build", "./image", "--name", "broken"], "");
    assert!(code == 1 && stderr.contains("line 2 of the Dockerfile"), "{code} {stderr}");
    user.check(
        "template_refused",
        &[&["template", "rm", "mine"], &["template", "show", "mine"], &["template", "build", "./nothing"]],
    );
}

fn bounds(user: &User) {
    user.check("quota", &[&["quota"], &["quota", "--set", "sandboxes=1"]]);
    user.check(
        "usage",
        &[&["usage", "--from", "2020-01-01", "--to", "2020-01-02"], &["usage", "--from", "yesterday"]],
    );
    user.check(
        "budget",
        &[
            &["budget", "add", "10", "--period", "day"],
            &["budget", "ls"],
            &["budget", "add", "much"],
            &["budget", "rm", "nothing"],
        ],
    );
    user.check(
        "webhook",
        &[
            &["webhook", "add", "https://example.com/hook", "--events", "task.*"],
            &["webhook", "ls"],
            &["webhook", "add", "nowhere", "--events", "x"],
            &["webhook", "disable", "https://example.com/hook"],
            &["webhook", "rm", "https://example.com/hook"],
        ],
    );
    user.check(
        "audit",
        &[
            &["audit", "-n", "1", "--action", "DELETE /api/v1/volumes/{volume}"],
            &["open", "--print", "--no-sign-in"],
            &["open", "--sign-in-file", "nothing"],
            &["completion", "nothing"],
        ],
    );
    opening(user);
}

/// The link of `open` signs in once, with the rights of the profile's key.
fn opening(user: &User) {
    let link = user.done(&["open", "--print"]);
    let (url, token) = link.split_once("/#token=link_").expect("a link");
    assert_eq!((url, token.len()), (format!("http://{}", user.up.listen).as_str(), 40), "{link}");
    user.done(&["login", &link, "--name", "browser"]);
    let (code, _, stderr) = user.output(&["login", &link, "--name", "again"], "");
    assert_eq!(code, 5, "{stderr}");
    // With a screen a browser gets a page that only its user can read, and no token in its arguments.
    let program = user.scratch.join("bin/xdg-open");
    std::fs::create_dir_all(program.parent().unwrap()).unwrap();
    std::fs::write(&program, "#!/bin/sh\necho \"$@\" > \"$OPENED\"\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let opened = user.scratch.join("opened");
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = coffer();
    command.args(["open", "--profile", "browser"]).env("COFFER_CONFIG_DIR", user.scratch.join("config"));
    let output = command.env("DISPLAY", ":9").env("OPENED", &opened).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let address = std::fs::read_to_string(&opened).unwrap();
    let page = address.trim().strip_prefix("file://").expect("a page of this machine");
    assert!(!address.contains("link_"), "{address}");
    assert!(std::fs::read_to_string(page).unwrap().contains("#token=link_"));
    assert_eq!(std::fs::metadata(page).unwrap().permissions().mode() & 0o777, 0o600);
    user.done(&["profile", "use", "default"]);
    user.done(&["profile", "rm", "browser"]);
}

fn operators(user: &User, data: &Path) {
    let key = std::fs::read_to_string(data.join("operator-key")).unwrap();
    let url = format!("http://{}", user.up.listen);
    user.check_with("operator_login", key.trim(), &[&["login", &url, "--name", "operator"]]);
    user.check(
        "operator",
        &[
            &["project", "create", "second"],
            &["quota", "--project", "second", "--set", "sandboxes=7"],
            &["quota", "--project", "second", "--set", "x=7"],
            &["key", "create", "first", "--project", "second"],
            &["ls"],
        ],
    );
}
