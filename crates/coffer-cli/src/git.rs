//! The git of this machine, for verbs that work on a repository here.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;

use crate::context::Context;
use crate::failure::Failure;

/// Git in a directory; it asks nobody for a password.
pub(crate) fn git_in(directory: &Path, words: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(directory).args(words).env("GIT_TERMINAL_PROMPT", "0");
    git
}

/// Lets git sign in to the server with the key of this call.
pub(crate) fn with_key(command: &mut Command, context: &Context) {
    let Some(key) = &context.key else { return };
    // In the environment, not in the arguments, which other users can see.
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("coffer:{key}"));
    command.env("GIT_CONFIG_COUNT", "1");
    command.env("GIT_CONFIG_KEY_0", format!("http.{}.extraHeader", context.client.url()));
    command.env("GIT_CONFIG_VALUE_0", format!("Authorization: Basic {basic}"));
}

/// Runs it, and returns its first line of output.
pub(crate) fn run_git(command: &mut Command) -> Result<String, Failure> {
    let output = command.output().map_err(|error| Failure::new(format!("could not start git: {error}")))?;
    if output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        return Ok(text.lines().next().unwrap_or_default().trim().to_string());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(Failure::new(format!("git failed: {said}")))
}
