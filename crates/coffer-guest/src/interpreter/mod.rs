//! The client of the code interpreter in a sandbox: contexts, and code whose output comes as lines.
//!
//! Whatever listens on its port is part of the sandbox: answers are bounded, and believed about that sandbox only.

mod lines;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coffer_wire::envd::filesystem::{StatRequest, StatResponse};
use http::{Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use serde::{Deserialize, Serialize};

pub use lines::{Line, Lines};

use crate::{AgentError, Flow, Guest, GuestError, Reason};

/// Its port in every sandbox that has one, as E2B's SDKs expect it.
pub const PORT: u16 = 49999;
/// Its program, by which agentd tells whether a sandbox has one.
const PROGRAM: &str = "/usr/local/bin/coffer-code";
/// The interpreter is started again when it was killed: how long to wait for that, and between two looks.
const STARTS_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long an answer may take: a context may have to start a kernel.
const PATIENCE: Duration = Duration::from_secs(60);
const LONGEST_ANSWER: usize = 256 << 10;
const LONGEST_REFUSAL: usize = 4096;
const MOST_CONTEXTS: usize = 256;
const LONGEST_ID: usize = 64;

/// The code interpreter of a sandbox.
#[derive(Debug)]
pub struct Interpreter {
    guest: Guest,
}

/// Why the interpreter did not do something.
#[derive(Debug, thiserror::Error)]
pub enum InterpreterError {
    /// The sandbox has none.
    #[error("the sandbox has no code interpreter")]
    Missing,
    #[error("{message}")]
    Refused { reason: Reason, message: String },
    #[error(transparent)]
    Guest(#[from] GuestError),
}

impl From<AgentError> for InterpreterError {
    fn from(error: AgentError) -> Self {
        Self::Guest(error.into())
    }
}

/// A kernel with its state.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Context {
    pub id: String,
    pub language: String,
    #[serde(default)]
    pub cwd: String,
}

/// Code to run, in a context or in the default one of a language.
#[derive(Debug, Serialize)]
pub struct Execute<'a> {
    pub code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_id: Option<&'a str>,
    pub env_vars: &'a BTreeMap<String, String>,
}

impl Interpreter {
    pub fn new(guest: Guest) -> Self {
        Self { guest }
    }

    /// Runs code. Dropping the lines interrupts it. A line longer than `longest` is skipped.
    pub async fn execute(&self, order: &Execute<'_>, longest: usize) -> Result<Lines, InterpreterError> {
        let body = serde_json::to_vec(order).expect("plain strings");
        let answer = self.call(Method::POST, "/execute", body).await?;
        Ok(Lines::new(answer.into_body(), longest))
    }

    pub async fn contexts(&self) -> Result<Vec<Context>, InterpreterError> {
        let answer = self.call(Method::GET, "/contexts", Vec::new()).await?;
        let mut contexts: Vec<Context> = read(answer).await?;
        contexts.truncate(MOST_CONTEXTS);
        Ok(contexts)
    }

    pub async fn create(&self, language: &str, cwd: Option<&str>) -> Result<Context, InterpreterError> {
        let body = serde_json::json!({ "language": language, "cwd": cwd }).to_string();
        read(self.call(Method::POST, "/contexts", body.into_bytes()).await?).await
    }

    /// Gives a context a new kernel.
    pub async fn restart(&self, context: &str) -> Result<(), InterpreterError> {
        let path = format!("/contexts/{}/restart", checked(context)?);
        self.call(Method::POST, &path, Vec::new()).await.map(drop)
    }

    pub async fn remove(&self, context: &str) -> Result<(), InterpreterError> {
        let path = format!("/contexts/{}", checked(context)?);
        self.call(Method::DELETE, &path, Vec::new()).await.map(drop)
    }

    /// Sends a request, and waits for the interpreter if it is just being started.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Response<Flow>, InterpreterError> {
        let body = Bytes::from(body);
        let until = tokio::time::Instant::now() + STARTS_WITHIN;
        let mut installed = false;
        loop {
            let request = self
                .guest
                .request(method.clone(), path, None)
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(body.clone()))
                .expect("fixed paths and checked values");
            match self.guest.send_to_port(PORT, request, Some(PATIENCE)).await {
                Err(GuestError::PortClosed(_)) if !installed => {
                    installed = self.is_installed().await?;
                    if !installed {
                        return Err(InterpreterError::Missing);
                    }
                }
                Err(GuestError::PortClosed(_)) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                answer => return accepted(answer?).await,
            }
        }
    }

    async fn is_installed(&self) -> Result<bool, GuestError> {
        let stat = StatRequest { path: PROGRAM.into() };
        match self.guest.call("/filesystem.Filesystem/Stat", None, &stat, LONGEST_ANSWER).await {
            Ok(StatResponse { .. }) => Ok(true),
            Err(GuestError::Refused { reason: Reason::NotFound, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// An id that cannot change the path of a request.
fn checked(context: &str) -> Result<&str, InterpreterError> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if (1..=LONGEST_ID).contains(&context.len()) && context.chars().all(plain) {
        return Ok(context);
    }
    let message = "there is no such context".to_string();
    Err(InterpreterError::Refused { reason: Reason::NotFound, message })
}

/// Turns the interpreter's refusals, which are plain text, into errors.
async fn accepted(answer: Response<Flow>) -> Result<Response<Flow>, InterpreterError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = Limited::new(answer.into_body(), LONGEST_REFUSAL).collect();
    let body = tokio::time::timeout(PATIENCE, body).await.map_err(|_| AgentError::Late(PATIENCE))?;
    let body = body.map_err(|_| AgentError::Status(status))?.to_bytes();
    let message = String::from_utf8_lossy(&body).chars().filter(|letter| !letter.is_control()).collect();
    let reason = match status {
        StatusCode::NOT_FOUND => Reason::NotFound,
        StatusCode::TOO_MANY_REQUESTS => Reason::Precondition,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => Reason::Invalid,
        StatusCode::PAYLOAD_TOO_LARGE => Reason::Invalid,
        _ => Reason::Other,
    };
    Err(InterpreterError::Refused { reason, message })
}

async fn read<T: for<'a> Deserialize<'a>>(answer: Response<Flow>) -> Result<T, InterpreterError> {
    let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect();
    let body = tokio::time::timeout(PATIENCE, body).await.map_err(|_| AgentError::Late(PATIENCE))?;
    let body = body.map_err(|error| AgentError::Nonsense(error.to_string()))?.to_bytes();
    Ok(serde_json::from_slice(&body).map_err(|error| AgentError::Nonsense(error.to_string()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays_within_its_path() {
        assert!(checked("0b1e-4_x").is_ok());
        for id in ["", "a/b", "..", "a?b", "a%2fb", "a b", "é", &"x".repeat(65)] {
            assert!(checked(id).is_err(), "{id}");
        }
    }
}
