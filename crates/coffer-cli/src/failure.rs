//! Why a verb failed, as people read it, and the exit code for scripts. `docs/cli.md` lists the codes.

use coffer_client::Error;

pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const NOT_FOUND: u8 = 4;
pub(crate) const NOT_ALLOWED: u8 = 5;
pub(crate) const STATE: u8 = 6;
pub(crate) const AWAY: u8 = 7;
/// `fix`: the check failed, and the work is on its branch without a pull request.
pub(crate) const CHECK_FAILED: u8 = 8;
/// `fix`: the budget is spent.
pub(crate) const BUDGET_SPENT: u8 = 9;
/// A command timed out, as timeout(1) says it.
pub(crate) const TIMED_OUT: u8 = 124;
/// `exec`, `run` and `sh` failed themselves: other codes are the command's.
pub(crate) const NOT_RUN: u8 = 125;
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit code of a verb that worked.
pub(crate) type Outcome = Result<u8, Failure>;

/// What failed and why, a hint if there is one, and the exit code.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    pub hint: Option<String>,
    pub(crate) exit: u8,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, exit: FAILED }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { exit: USAGE, ..Self::new(message) }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub(crate) fn exit(mut self, exit: u8) -> Self {
        self.exit = exit;
        self
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            let text = inner.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = inner.source();
        }
        match &error {
            Error::Refused(refusal) => {
                let exit = exit_of(refusal.status.as_u16(), &refusal.code);
                let wait = refusal.retry_after.map(|wait| format!("try again in {} s", wait.as_secs()));
                let mut hint = refusal.hint.clone().or(wait);
                if exit == NOT_ALLOWED && refusal.status == http::StatusCode::UNAUTHORIZED {
                    hint = Some("`coffer login` stores a key; COFFER_API_KEY names one".into());
                }
                if refusal.code == "internal" || refusal.code == "host_failed" {
                    let id = refusal.request_id.as_deref().unwrap_or("unknown");
                    message = format!("{message} (request {id})");
                }
                Self { message, hint, exit }
            }
            Error::Unreachable { .. } => {
                let hint = "is the server running? `coffer up` starts one; --url or COFFER_URL name another";
                Self { message, hint: Some(hint.into()), exit: AWAY }
            }
            Error::BrokenOff(_) | Error::Late(_) => Self { message, hint: None, exit: AWAY },
            Error::BadUrl(_) | Error::BadKey => Self { message, hint: None, exit: USAGE },
            Error::Unreadable(_) | Error::Local(_) => Self { message, hint: None, exit: FAILED },
        }
    }
}

fn exit_of(status: u16, code: &str) -> u8 {
    match (status, code) {
        (404 | 410, _) | (_, "not_found" | "gone") => NOT_FOUND,
        (401 | 403, _) => NOT_ALLOWED,
        (402 | 409 | 412 | 421 | 429 | 507, _) | (_, "failed_precondition" | "resource_exhausted") => STATE,
        (502..=504, _) | (_, "unavailable") => AWAY,
        _ => FAILED,
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}
