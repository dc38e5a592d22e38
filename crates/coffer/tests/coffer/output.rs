//! What `coffer` prints, as snapshots, so that a review shows every change of it.
//!
//! `INSTA_UPDATE=always` rewrites them; CONTRIBUTING.md has the whole command.

use crate::harness::coffer;

/// One call as a person sees it: exit code, standard output, standard error.
fn transcript(arguments: &[&str], scratch: &str) -> String {
    let output = coffer().args(arguments).output().unwrap();
    let mut text = format!("$ coffer {}\n", arguments.join(" "));
    text += &format!("exit code: {}\n", output.status.code().unwrap_or(-1));
    for (name, bytes) in [("stdout", output.stdout), ("stderr", output.stderr)] {
        text += &format!("----- {name}\n{}", String::from_utf8(bytes).unwrap());
    }
    // Trailing blanks, which clap leaves after a flag's name, would not survive editors.
    text.replace(scratch, "SCRATCH").lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Compares one call with its snapshot. `SCRATCH` in the arguments is a directory of the test's own.
#[track_caller]
fn check(name: &str, arguments: &[&str]) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().to_str().unwrap();
    std::fs::write(scratch.path().join("unknown.toml"), "[node]\nwarm = 3\n").unwrap();
    std::fs::write(scratch.path().join("good.toml"), "[sandbox]\nmemory = \"1GiB\"\n").unwrap();
    let arguments: Vec<String> = arguments.iter().map(|word| word.replace("SCRATCH", path)).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    insta::assert_snapshot!(name, transcript(&arguments, path));
}

#[test]
fn help() {
    check("help", &["--help"]);
    check("help_up", &["up", "--help"]);
    check("help_config", &["config", "--help"]);
    check("help_template", &["template", "--help"]);
    check("help_doctor", &["doctor", "--help"]);
    check("help_mcp", &["mcp", "--help"]);
    check("help_mcp_install", &["mcp", "install", "--help"]);
}

#[test]
fn flags_and_words_that_do_not_exist() {
    check("no_verb", &[]);
    check("unknown_verb", &["fly"]);
    check("unknown_flag", &["up", "--lisen", "127.0.0.1:0"]);
    check("missing_value", &["up", "--listen"]);
    check("unknown_template", &["template", "build", "fly"]);
}

#[test]
fn settings_that_do_not_fit() {
    check("bad_value", &["up", "--listen", "here", "--data-dir", "SCRATCH/data"]);
    check("bad_set", &["config", "check", "--set", "sandbox.cpus=many", "--data-dir", "SCRATCH/data"]);
    check("unknown_setting_in_file", &["config", "show", "--config", "SCRATCH/unknown.toml"]);
    check("missing_file", &["config", "show", "--config", "SCRATCH/none.toml"]);
}

#[test]
fn settings_that_were_changed() {
    check(
        "config_show_changed",
        &["config", "show", "--changed", "--config", "SCRATCH/good.toml", "--sandbox-cpus", "3"],
    );
}

#[test]
fn templates_where_there_are_none() {
    check("template_list_empty", &["template", "list", "--template-dir", "SCRATCH/templates"]);
}
