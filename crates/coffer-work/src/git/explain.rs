//! Turns git's output into messages for people and codes for programs.
//!
//! The sandbox controls git's output. It decides nothing but the error that its own caller gets. git has no codes: its
//! words are matched, and what the git gate says by the constants that the gate uses too.

use coffer_core::git::gate;
use coffer_fleet::exec::CommandResult;

use super::{Cause, GitError};

const MOST_QUOTED: usize = 600;

/// Whether a retry may succeed in a moment.
pub(super) fn is_transient(result: &CommandResult) -> bool {
    const SIGNS: [&str; 13] = [
        gate::FORGE_UNUSABLE,
        gate::CREDENTIAL_UNKNOWN,
        "Could not resolve host",
        "Failed to connect",
        "Connection reset",
        "Operation timed out",
        "returned error: 5",
        "the remote end hung up",
        "unexpected disconnect",
        "Empty reply from server",
        "Recv failure",
        "early EOF",
        "RPC failed",
    ];
    let refused = result.stderr.contains(gate::CREDENTIAL_REFUSED);
    !refused && SIGNS.iter().any(|sign| result.stderr.contains(sign))
}

/// Why a git command failed.
pub(super) fn failure(doing: &str, result: &CommandResult) -> GitError {
    let output = quoted(&result.stderr);
    if result.exit_code.is_none() {
        let message = format!("git did not {doing} in time");
        return GitError::Failed { cause: Cause::Other, message, hint: Some(output) };
    }
    let cause = cause(result);
    let message = match cause {
        Cause::TokenExpired => {
            "the forge no longer accepts the token: it has expired, was revoked or is wrong".to_string()
        }
        _ => format!("git could not {doing}: {output}"),
    };
    GitError::Failed { cause, message, hint: None }
}

/// The cause of a failure, from git's output.
fn cause(result: &CommandResult) -> Cause {
    let says = |text: &str| result.stderr.contains(text);
    if says(gate::CREDENTIAL_REFUSED) {
        Cause::TokenExpired
    } else if says(gate::NO_REPOSITORY) || says("not found in upstream") {
        Cause::NotFound
    } else if is_transient(result) {
        Cause::Unreachable
    } else if says(".lock'") || says("Another git process") {
        Cause::Locked
    } else {
        Cause::Other
    }
}

/// Why the forge refused a push.
pub(super) fn rejection(branch: &str, result: &CommandResult) -> GitError {
    let stdout = String::from_utf8_lossy(&result.stdout);
    let line = stdout.lines().find(|line| line.starts_with("!\t"));
    let Some(line) = line else { return failure("push", result) };
    let why = quoted(line.rsplit('\t').next().unwrap_or_default());
    let message = format!("the push to `{branch}` was rejected: {why}");
    let behind = ["fetch first", "non-fast-forward", "stale info", "has moved"];
    let (cause, hint) = if why.contains("protected") {
        (Cause::Protected, "push to another branch and open a pull request")
    } else if behind.iter().any(|word| why.contains(word)) {
        (
            Cause::Rejected,
            "the branch has commits that this sandbox lacks: update, merge or rebase, and push again; or push \
             with `force` to replace them",
        )
    } else {
        (Cause::Rejected, "the forge's message has the reason")
    };
    GitError::Failed { cause, message, hint: Some(hint.to_string()) }
}

/// The end of a program's output, on few lines and without control characters.
pub(super) fn quoted(text: &str) -> String {
    let plain: String = text.chars().filter(|c| *c == '\n' || !c.is_control()).collect();
    let lines: Vec<&str> = plain.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let told = lines[lines.len().saturating_sub(4)..].join("; ");
    let skipped = told.chars().count().saturating_sub(MOST_QUOTED);
    told.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use coffer_core::Code;

    use super::*;

    fn returned(exit_code: Option<i32>, stdout: &str, stderr: &str) -> CommandResult {
        CommandResult {
            exit_code,
            stdout: stdout.as_bytes().to_vec(),
            stderr: stderr.to_string(),
            is_cut: false,
        }
    }

    #[test]
    fn failures_have_codes() {
        let code = |stderr: &str| failure("clone", &returned(Some(128), "", stderr)).explain("").code;
        let refused = format!("remote: {}: {}", gate::FORGE_UNUSABLE, gate::CREDENTIAL_REFUSED);
        assert_eq!(code(&refused), Code::TokenExpired);
        assert_eq!(code("remote: the forge cannot be used: it does not answer"), Code::ForgeUnreachable);
        assert_eq!(code(&format!("remote: {}", gate::CREDENTIAL_UNKNOWN)), Code::ForgeUnreachable);
        assert_eq!(code(&format!("remote: {}", gate::NO_REPOSITORY)), Code::NotFound);
        assert_eq!(code("fatal: Could not resolve host: git.coffer.internal"), Code::ForgeUnreachable);
        assert_eq!(code("fatal: Remote branch x not found in upstream origin"), Code::NotFound);
        assert_eq!(code("fatal: destination path 'x' already exists"), Code::GitFailed);
        assert_eq!(failure("clone", &returned(None, "", "")).explain("").code, Code::GitFailed);
    }

    #[test]
    fn rejections_say_what_to_do() {
        let rejected =
            |why: &str| rejection("b", &returned(Some(1), &format!("To x\n!\ta:b\t{why}\nDone\n"), ""));
        assert_eq!(rejected("[rejected] (fetch first)").explain("").code, Code::PushRejected);
        assert_eq!(
            rejected("[remote rejected] (branch is protected)").explain("").code,
            Code::BranchProtected
        );
        assert_eq!(rejection("b", &returned(Some(128), "", "fatal: no")).explain("").code, Code::GitFailed);
    }

    #[test]
    fn quotes_are_short_and_plain() {
        let told = quoted(&format!("{}\n\u{1b}[31mlast\u{7}\n", "x".repeat(5000)));
        assert!(told.ends_with("[31mlast") && told.chars().count() == MOST_QUOTED, "{told}");
    }
}
