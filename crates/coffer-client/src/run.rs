//! A command of `POST …/exec`, with its output as it comes.

use coffer_api_types::exec::NewCommand;
use serde::Deserialize;

use crate::answer::{Answer, parse, refused};
use crate::client::Client;
use crate::error::Error;
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
    answer: Answer,
}

impl Run {
    pub(crate) async fn start(client: &Client, path: &str, command: &NewCommand) -> Result<Self, Error> {
        Ok(Self { answer: Answer::post(client, path, command, Lines::default()).await? })
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
        while let Some(message) = self.answer.next().await? {
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
                    return Err(refused("unavailable".to_string(), message, None));
                }
                // What a later server may add.
                _ => continue,
            }));
        }
        Ok(None)
    }
}
