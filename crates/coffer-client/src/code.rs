//! Code of `POST …/code`, with what it prints, shows and raises as it comes.

use coffer_api_types::code::{CodeEnd, CodeError, CodeFailed, CodeResult, CodeStarted, NewCode};
use serde::Deserialize;

use crate::answer::{Answer, parse, refused};
use crate::client::Client;
use crate::error::Error;
use crate::follow::Lines;

/// A result is one message, and may be as large as an answer.
const LONGEST_MESSAGE: usize = 300 << 20;

/// What code did next.
#[derive(Debug, Clone, PartialEq)]
pub enum CodeStep {
    Started(CodeStarted),
    Stdout(String),
    Stderr(String),
    Result(Box<CodeResult>),
    /// An error of the code.
    Error(CodeError),
    /// The last one.
    Ended(Box<CodeEnd>),
}

/// Code that runs. Dropping it interrupts the code.
#[derive(Debug)]
pub struct CodeRun {
    answer: Answer,
}

impl CodeRun {
    pub(crate) async fn start(client: &Client, path: &str, code: &NewCode) -> Result<Self, Error> {
        Ok(Self { answer: Answer::post(client, path, code, Lines::of(LONGEST_MESSAGE)).await? })
    }

    /// The next step; `None` after the end.
    pub async fn next(&mut self) -> Result<Option<CodeStep>, Error> {
        #[derive(Deserialize)]
        struct Text {
            data: String,
        }
        while let Some(message) = self.answer.next().await? {
            let data = message.data.as_str();
            return Ok(Some(match message.event.as_str() {
                "start" => CodeStep::Started(parse(data)?),
                "stdout" => CodeStep::Stdout(parse::<Text>(data)?.data),
                "stderr" => CodeStep::Stderr(parse::<Text>(data)?.data),
                "result" => CodeStep::Result(parse(data)?),
                "error" => CodeStep::Error(parse(data)?),
                "end" => CodeStep::Ended(parse(data)?),
                "failed" => {
                    let CodeFailed { code, message, hint } = parse(data)?;
                    return Err(refused(code, message, hint));
                }
                // What a later server may add.
                _ => continue,
            }));
        }
        Ok(None)
    }
}
