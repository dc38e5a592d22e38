//! Secrets that are not in the settings themselves, but in a file or printed by a command, so that secret managers work.

use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::printer;

/// What is added to a variable's name.
const FROM_FILE: &str = "_FILE";
const FROM_COMMAND: &str = "_COMMAND";
/// No secret is longer.
const LONGEST: u64 = 64 << 10;
const WITHIN: Duration = Duration::from_secs(30);

/// The variables that a secret of this variable may come from instead.
pub(super) fn variants(variable: &str) -> [String; 2] {
    [format!("{variable}{FROM_FILE}"), format!("{variable}{FROM_COMMAND}")]
}

/// Where a variable says that the secret is, as the file of settings would say it.
pub(super) fn source(variable: &str, text: &str) -> Value {
    if variable.ends_with(FROM_FILE) { json!({ "file": text }) } else { json!({ "command": text }) }
}

/// The secret itself. Text is one; `{ file = … }` and `{ command = … }` say where it is.
pub(super) fn reveal(value: &Value) -> Result<Option<String>, String> {
    let Value::Object(table) = value else { return Ok(None) };
    let mut entries = table.iter();
    let found = match (entries.next(), entries.next()) {
        (Some((key, Value::String(text))), None) if key == "file" => read(Path::new(text)),
        (Some((key, Value::String(text))), None) if key == "command" => run(text),
        _ => Err("must be text, `{ file = \"…\" }` or `{ command = \"…\" }`".into()),
    }?;
    let secret = found.trim_end_matches(['\n', '\r']).to_string();
    if secret.is_empty() { Err("is empty there".into()) } else { Ok(Some(secret)) }
}

fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    read.map(|_| text).map_err(|error| format!("could not be read from `{}`: {error}", path.display()))
}

/// Runs a line of the shell; its errors go where ours go.
fn run(line: &str) -> Result<String, String> {
    let failed = |why: String| format!("could not be read from the command `{line}`: {why}");
    let mut command = tokio::process::Command::new("/bin/sh");
    command.args(["-c", line]).stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime
        .map_err(|error| failed(error.to_string()))?
        .block_on(async { tokio::time::timeout(WITHIN, command.output()).await });
    let output = match ended {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed(format!("it did not end within {} s", WITHIN.as_secs()))),
    };
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    if output.stdout.len() as u64 > LONGEST {
        return Err(failed(format!("it printed more than {LONGEST} bytes")));
    }
    // What it printed is not shown, even if it is no text.
    String::from_utf8(output.stdout).map_err(|_| failed("it printed bytes that are not UTF-8".into()))
}

/// The error for a setting whose secret could not be read.
pub(super) fn unreadable(path: &str, origin: &str, why: &str) -> anyhow::Error {
    printer::hint(
        format!("the secret `{path}` ({origin}) {why}"),
        "docs/configuration.md describes secrets in files and from commands",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_from_a_file_or_a_command_without_its_last_line_end() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("secret");
        std::fs::write(&file, "  hunter2 \n").unwrap();
        let from_file = source("X_FILE", file.to_str().unwrap());
        assert_eq!(reveal(&from_file).unwrap().unwrap(), "  hunter2 ");
        assert_eq!(reveal(&source("X_COMMAND", "printf 'a\nb\r\n'")).unwrap().unwrap(), "a\nb");
        assert_eq!(reveal(&json!("plain")), Ok(None));
    }

    #[test]
    fn what_cannot_be_read_says_why_and_never_what_was_printed() {
        let why = |value: Value| reveal(&value).unwrap_err();
        assert!(why(json!({ "file": "/nonexistent" })).contains("No such file"));
        assert!(why(json!({ "command": "echo hunter2; exit 3" })).contains("exit status: 3"));
        assert!(!why(json!({ "command": "printf 'hunter2\\377'" })).contains("UTF-8: hunter2"));
        assert_eq!(why(json!({ "command": "true" })), "is empty there");
        for shape in
            [json!({}), json!({ "file": 1 }), json!({ "file": "a", "command": "b" }), json!({ "path": "a" })]
        {
            assert!(why(shape).starts_with("must be text"));
        }
    }
}
