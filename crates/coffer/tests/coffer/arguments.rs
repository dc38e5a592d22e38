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
    assert_eq!(verbs, ["up", "template", "help"]);
    let (status, stdout, _) = run(&["--version"]);
    assert_eq!((status, stdout), (0, format!("coffer {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn unknown_words_are_refused() {
    refused(&[], 2, &["Usage: coffer <COMMAND>"]);
    refused(&["fly"], 2, &["unrecognized subcommand 'fly'"]);
    refused(&["template", "fly"], 2, &["unrecognized subcommand 'fly'"]);
    refused(&["template", "build", "fly"], 2, &["invalid value 'fly'", "[possible values: base]"]);
    refused(&["up", "--listen", "here"], 2, &["invalid value 'here' for '--listen <ADDRESS>'"]);
    refused(&["up", "--pool-size", "much"], 2, &["invalid value 'much' for '--pool-size <SIZE>'"]);
    refused(&["up", "--sandbox-cpus", "0"], 2, &["invalid value '0'", "1..=1024"]);
    refused(&["up", "--sandbox-processes", "8"], 2, &["invalid value '8'", "64..=1000000"]);
    refused(&["up", "--max-timeout", "soon"], 2, &["invalid value 'soon' for '--max-timeout <DURATION>'"]);
    refused(&["up", "--log", "=,="], 1, &["error: bad log filter `=,=`", "hint: try --log info"]);
}

#[test]
fn settings_that_contradict_are_refused_before_anything_is_made() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let data = data.to_str().unwrap();
    for (settings, words) in [
        (vec!["--max-timeout", "25h"], "error: --max-timeout 25h is longer than --max-lifetime 24h\n"),
        (vec!["--max-timeout", "0s"], "error: --max-timeout must be more than zero, not `0s`\n"),
        (vec!["--max-lifetime=-1h"], "error: --max-lifetime must be more than zero, not `1h ago`\n"),
        (vec!["--idle-timeout", "0s"], "error: --idle-timeout must be more than zero, not `0s`\n"),
        (
            vec!["--sandbox-memory", "1MiB"],
            "error: --sandbox-memory must be at least 64 MiB, not `1.0 MiB`\n",
        ),
        (vec!["--pool-size", "1MiB"], "error: --pool-size must be at least 256.0 MiB, not `1.0 MiB`\n"),
        (
            vec!["--domain", "https://a.com"],
            "error: --domain must be a plain name such as `sandboxes.example.com`, not `https://a.com`\n",
        ),
        (vec!["--sandbox-disk", "1KiB"], "error: --sandbox-disk must be at least 16 MiB, not `1.0 KiB`\n"),
    ] {
        let mut arguments = vec!["up", "--data-dir", data];
        arguments.extend(settings);
        assert_eq!(run(&arguments), (1, String::new(), words.to_string()));
    }
    assert!(!temp.path().join("data").exists());
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
    let expected = "error: `coffer up` needs root: it makes namespaces, mounts and cgroups\n\
                    hint: run it with sudo; the server part gives root up at once\n";
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
