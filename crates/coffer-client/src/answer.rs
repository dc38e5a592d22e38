//! The answer to a request that comes as a stream of messages and has an end.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::connection::{Flow, full};
use crate::error::{Error, Refusal};
use crate::follow::{Lines, Message};

/// The messages that answer one request.
#[derive(Debug)]
pub(crate) struct Answer {
    flow: Flow,
    lines: Lines,
}

impl Answer {
    /// Sends a request; `lines` bounds its messages.
    pub(crate) async fn post(
        client: &Client,
        path: &str,
        body: &impl Serialize,
        lines: Lines,
    ) -> Result<Self, Error> {
        let mut headers = client.headers("text/event-stream");
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = serde_json::to_vec(body).map_err(|error| Error::Unreadable(error.to_string()))?;
        let answer = client.send(Method::POST, path, headers, full(body), None).await?;
        Ok(Self { flow: answer.into_body(), lines })
    }

    /// The next message; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Error> {
        loop {
            if let Some(message) = self.lines.message()? {
                return Ok(Some(message));
            }
            match self.flow.next().await? {
                None => return Ok(None),
                Some(piece) => self.lines.held.extend_from_slice(&piece),
            }
        }
    }
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::Unreadable(error.to_string()))
}

/// A refusal in the middle of a stream, whose status was sent long ago.
pub(crate) fn refused(code: String, message: String, hint: Option<String>) -> Error {
    let (details, request_id, retry_after) = (None, None, None);
    let status = StatusCode::OK;
    Error::Refused(Box::new(Refusal { status, code, message, hint, details, request_id, retry_after }))
}
