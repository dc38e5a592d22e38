//! Output for people at the terminal.

use std::fmt::Display;
use std::io::Write as _;

/// An error with a hint.
#[derive(Debug)]
pub(crate) struct Hint {
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hint {}

/// No sandbox can run here, now or later: the program ends with a separate exit code, so that a supervisor
/// need not try again.
#[derive(Debug)]
pub(crate) struct HostUnusable(Hint);

impl HostUnusable {
    pub(crate) const EXIT: u8 = 3;

    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self(Hint { message: message.into(), hint: hint.into() })
    }
}

impl Display for HostUnusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for HostUnusable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// The exit code of a failure.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<HostUnusable>()) { HostUnusable::EXIT } else { 1 }
}

/// Creates an error with a hint.
pub(crate) fn hint(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    Hint { message: message.into(), hint: hint.into() }.into()
}

/// Prints a line of a command's result. Ignores a closed output (`| head`).
pub(crate) fn line(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints an error with its causes, and its hint if it has one.
pub(crate) fn failure(error: &anyhow::Error) {
    let mut causes = error.chain().map(|cause| cause.to_string()).collect::<Vec<_>>();
    causes.dedup();
    eprintln!("error: {}", causes.join(": "));
    if let Some(hint) = hint_of(error) {
        eprintln!("hint: {hint}");
    }
}

/// What to do about an error, if it says so.
pub(crate) fn hint_of(error: &anyhow::Error) -> Option<&str> {
    error.chain().find_map(|cause| cause.downcast_ref::<Hint>()).map(|hint| hint.hint.as_str())
}
