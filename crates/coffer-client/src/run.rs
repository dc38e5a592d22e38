//! A command of `POST …/exec`, with its output as it comes.

use coffer_api_types::exec::NewCommand;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use serde::Deserialize;

use crate::client::Client;
use crate::connection::{Flow, full};
use crate::error::{Error, Refusal};
use crate::follow::Lines;

/// What a command did next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunStep {
    Started { execution_id: String, pid: u32 },
    Stdout(String),
    Stderr(String),
    Ended(RunEnd),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RunEnd {
    pub execution_id: String,
    /// `None` if it was killed because it timed out.
    pub exit_code: Option<i64>,
    pub timed_out: bool,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub duration_ms: i64,
}

/// A running command.
#[derive(Debug)]
pub struct Run {
    flow: Flow,
    lines: Lines,
}

impl Run {
    pub(crate) async fn start(client: &Client, path: &str, command: &NewCommand) -> Result<Self, Error> {
        let mut headers = client.headers("text/event-stream");
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = serde_json::to_vec(command).map_err(|error| Error::Unreadable(error.to_string()))?;
        let answer = client.send(Method::POST, path, headers, full(body), None).await?;
        Ok(Self { flow: answer.into_body(), lines: Lines::default() })
    }

    /// The next step; `None` after the end. If the stream breaks off, the command keeps running.
    pub async fn next(&mut self) -> Result<Option<RunStep>, Error> {
        #[derive(Deserialize)]
        struct Start {
            execution_id: String,
            pid: u32,
        }
        #[derive(Deserialize)]
        struct Text {
            data: String,
        }
        #[derive(Deserialize)]
        struct Problem {
            message: String,
        }
        fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Error> {
            serde_json::from_str(text).map_err(|error| Error::Unreadable(error.to_string()))
        }
        loop {
            if let Some(message) = self.lines.message()? {
                let data = message.data.as_str();
                return Ok(Some(match message.event.as_str() {
                    "start" => {
                        let Start { execution_id, pid } = parse(data)?;
                        RunStep::Started { execution_id, pid }
                    }
                    "stdout" => RunStep::Stdout(parse::<Text>(data)?.data),
                    "stderr" => RunStep::Stderr(parse::<Text>(data)?.data),
                    "end" => RunStep::Ended(parse(data)?),
                    "error" => {
                        let Problem { message } = parse(data)?;
                        let (hint, details, request_id, retry_after) = (None, None, None, None);
                        let (status, code) = (StatusCode::OK, "unavailable".to_string());
                        let refusal =
                            Refusal { status, code, message, hint, details, request_id, retry_after };
                        return Err(Error::Refused(Box::new(refusal)));
                    }
                    // What a later server may add.
                    _ => continue,
                }));
            }
            match self.flow.next().await? {
                None => return Ok(None),
                Some(piece) => self.lines.held.extend_from_slice(&piece),
            }
        }
    }
}
