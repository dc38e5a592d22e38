//! What code prints, shows and raises: one JSON object a line.

use std::borrow::Cow;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{AgentError, Flow, GuestError};

/// The interpreter breaks silence every 5 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// Deeper values would exhaust the stack of some clients' parsers.
const DEEPEST: usize = 64;

/// One line.
#[derive(Debug)]
pub enum Line {
    /// How many executions the context had.
    Count(u64),
    Stdout(String),
    Stderr(String),
    /// A result, as the interpreter wrote it: its values may be large, and stay text.
    Result(Box<RawValue>),
    /// An error of the code, as the interpreter wrote it.
    Error(Box<RawValue>),
    /// A line of so many bytes that was too long.
    Skipped(u64),
    /// It still runs, or something that a later interpreter may say.
    Nothing,
    End,
}

/// The lines of code that runs.
#[derive(Debug)]
pub struct Lines {
    body: Flow,
    buffer: Buffer,
}

impl Lines {
    pub(super) fn new(body: Flow, longest: usize) -> Self {
        Self { body, buffer: Buffer { longest, ..Buffer::default() } }
    }

    /// The next line. Nothing comes after [`Line::End`]; a stream that ends before it is an error.
    pub async fn next(&mut self) -> Result<Line, GuestError> {
        loop {
            match self.buffer.take() {
                Some(Taken::Skipped(bytes)) => return Ok(Line::Skipped(bytes)),
                Some(Taken::Line(line)) if line.iter().all(u8::is_ascii_whitespace) => continue,
                Some(Taken::Line(line)) => return Ok(parse(&line)?),
                None => {}
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await;
            match frame.map_err(|_| AgentError::Late(PATIENCE))? {
                Some(Ok(frame)) => self.buffer.add(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(error),
                None => {
                    let why = "the code interpreter stopped before the code ended";
                    return Err(AgentError::Cut(why.into()).into());
                }
            }
        }
    }
}

/// Received bytes, of which a line that is too long is forgotten as it comes.
#[derive(Debug, Default)]
struct Buffer {
    held: BytesMut,
    /// How much of it has no end of a line.
    searched: usize,
    /// How much of the line that is being skipped was forgotten.
    skipped: u64,
    longest: usize,
}

enum Taken {
    Line(Bytes),
    Skipped(u64),
}

impl Buffer {
    fn add(&mut self, data: &[u8]) {
        self.held.extend_from_slice(data);
    }

    fn take(&mut self) -> Option<Taken> {
        let end = self.held[self.searched..].iter().position(|&byte| byte == b'\n');
        let Some(end) = end.map(|end| self.searched + end) else {
            self.searched = self.held.len();
            if self.skipped > 0 || self.held.len() > self.longest {
                self.skipped += self.held.len() as u64;
                self.held.clear();
                self.searched = 0;
            }
            return None;
        };
        let line = self.held.split_to(end + 1);
        self.searched = 0;
        let skipped = std::mem::take(&mut self.skipped);
        if skipped > 0 || line.len() > self.longest {
            return Some(Taken::Skipped(skipped + line.len() as u64));
        }
        Some(Taken::Line(line.freeze()))
    }
}

fn parse(line: &[u8]) -> Result<Line, AgentError> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
        #[serde(default)]
        execution_count: Option<u64>,
        #[serde(default)]
        text: Option<&'a RawValue>,
    }
    let nonsense = |error: serde_json::Error| AgentError::Nonsense(format!("not a line of code: {error}"));
    if depth(line) > DEEPEST {
        return Ok(Line::Skipped(line.len() as u64));
    }
    let head: Head<'_> = serde_json::from_slice(line).map_err(nonsense)?;
    let text = || match head.text {
        Some(text) => serde_json::from_str::<String>(text.get()).map_err(nonsense),
        None => Ok(String::new()),
    };
    let whole = || serde_json::from_slice::<Box<RawValue>>(line).map_err(nonsense);
    Ok(match &*head.kind {
        "stdout" => Line::Stdout(text()?),
        "stderr" => Line::Stderr(text()?),
        "result" => Line::Result(whole()?),
        "error" => Line::Error(whole()?),
        "number_of_executions" => head.execution_count.map_or(Line::Nothing, Line::Count),
        "end_of_execution" => Line::End,
        _ => Line::Nothing,
    })
}

/// How deep arrays and objects are nested, in linear time and no memory.
fn depth(json: &[u8]) -> usize {
    let (mut now, mut deepest) = (0_usize, 0);
    let (mut quoted, mut escaped) = (false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                now += 1;
                deepest = deepest.max(now);
            }
            b']' | b'}' if !quoted => now = now.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pieces: &[&[u8]], longest: usize) -> Vec<Result<String, u64>> {
        let mut buffer = Buffer { longest, ..Buffer::default() };
        let mut all = Vec::new();
        for piece in pieces {
            buffer.add(piece);
            while let Some(next) = buffer.take() {
                all.push(match next {
                    Taken::Line(line) => Ok(String::from_utf8(line.to_vec()).unwrap()),
                    Taken::Skipped(bytes) => Err(bytes),
                });
            }
            assert!(buffer.held.len() <= longest, "nothing beyond the bound is held");
        }
        all
    }

    #[test]
    fn lines_come_whole_however_they_arrive_and_long_ones_are_skipped() {
        let text = b"abc\nmuch too long a line\nde\n";
        let expected = vec![Ok("abc\n".to_string()), Err(21), Ok("de\n".to_string())];
        for size in [1, 2, 5, text.len()] {
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            assert_eq!(taken(&pieces, 10), expected, "{size}");
        }
    }

    #[test]
    fn lines_are_known_by_their_type() {
        let line = |text: &str| parse(text.as_bytes());
        assert!(
            matches!(line(r#"{"type":"stdout","text":"a\u2028"}"#), Ok(Line::Stdout(text)) if text == "a\u{2028}")
        );
        assert!(matches!(line(r#"{"type":"number_of_executions","execution_count":3}"#), Ok(Line::Count(3))));
        assert!(matches!(line(r#"{"type":"keepalive"}"#), Ok(Line::Nothing)));
        assert!(matches!(line(r#"{"type":"of_the_future","text":7}"#), Ok(Line::Nothing)));
        assert!(matches!(line(r#"{"type":"end_of_execution"}"#), Ok(Line::End)));
        let Ok(Line::Result(kept)) = line(r#"{"type":"result","data":{"z":[1],"a":[2]}}"#) else { panic!() };
        assert!(kept.get().contains(r#"{"z":[1],"a":[2]}"#), "as it was written");
        for bad in ["<html>", "{}", r#"{"type":5}"#, r#"{"type":"stdout","text":7}"#, "[", "\u{ff}"] {
            assert!(line(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn values_that_are_nested_too_deeply_are_skipped() {
        let nested = |levels: usize| {
            let json = format!(r#"{{"type":"result","json":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
            parse(json.as_bytes())
        };
        assert!(matches!(nested(DEEPEST - 1), Ok(Line::Result(_))));
        assert!(matches!(nested(DEEPEST), Ok(Line::Skipped(_))));
        assert!(matches!(nested(1_000_000), Ok(Line::Skipped(_))));
        assert_eq!(depth(br#"{"a": "[[[\"[[", "b": [1]}"#), 2);
    }
}
