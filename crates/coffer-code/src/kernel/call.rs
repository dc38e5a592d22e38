//! A call to a Jupyter kernel: what its messages mean, and which one is the last.

use serde::Deserialize;

use super::message::Message;
use crate::line::{Bundle, Line};
use crate::stream::Sink;

/// The longest text of a line.
const PIECE: usize = 1 << 20;

#[derive(Deserialize)]
struct Stream<'a> {
    #[serde(borrow)]
    name: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    text: std::borrow::Cow<'a, str>,
}

#[derive(Deserialize)]
struct Shown {
    #[serde(default)]
    data: Bundle,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Raised {
    status: String,
    ename: String,
    evalue: String,
    traceback: Vec<String>,
    payload: Vec<Payload>,
}

/// What a kernel asks of us. We know one request: to end it.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Payload {
    source: String,
}

/// A call that waits for its end.
pub(super) struct Call<'a> {
    id: String,
    sink: Option<&'a Sink>,
    replied: bool,
    idle: bool,
    raised: bool,
    /// The error of the reply, which may overtake the published one.
    unpublished: Option<Raised>,
    /// The code has asked its kernel to end.
    leaves: bool,
}

impl<'a> Call<'a> {
    pub(super) fn new(id: String, sink: Option<&'a Sink>) -> Self {
        Self { id, sink, replied: false, idle: false, raised: false, unpublished: None, leaves: false }
    }

    /// Whether nothing else of it can come.
    pub(super) fn is_over(&self) -> bool {
        self.replied && self.idle
    }

    pub(super) fn has_reply(&self) -> bool {
        self.replied
    }

    /// Whether the code has asked its kernel to end.
    pub(super) fn leaves(&self) -> bool {
        self.leaves
    }

    /// A message that all clients of a kernel get.
    pub(super) fn take(&mut self, message: &Message) {
        if message.parent != self.id {
            return;
        }
        if message.kind == "status" {
            #[derive(Deserialize)]
            struct Status {
                execution_state: String,
            }
            self.idle |= message.content::<Status>().is_some_and(|status| status.execution_state == "idle");
            return;
        }
        let Some(sink) = self.sink else { return };
        match message.kind.as_str() {
            "stream" => {
                if let Some(stream) = message.content::<Stream<'_>>() {
                    let out = stream.name != "stderr";
                    for piece in pieces(&stream.text) {
                        sink.put(&if out { Line::Stdout(piece) } else { Line::Stderr(piece) });
                    }
                }
            }
            "execute_result" | "display_data" => {
                if let Some(shown) = message.content::<Shown>() {
                    sink.put(&Line::Result { data: &shown.data, main: message.kind == "execute_result" });
                }
            }
            "execute_input" => {
                #[derive(Deserialize)]
                struct Input {
                    execution_count: u64,
                }
                if let Some(input) = message.content::<Input>() {
                    sink.put(&Line::Count(input.execution_count));
                }
            }
            "error" => self.raise(&message.content::<Raised>().unwrap_or_default()),
            _ => {}
        }
    }

    /// The answer to us alone. It repeats an error that was published, and is the only word of one that was not.
    pub(super) fn take_reply(&mut self, message: &Message) {
        if message.parent != self.id || message.kind != "execute_reply" {
            return;
        }
        self.replied = true;
        let raised = message.content::<Raised>().unwrap_or_default();
        self.leaves = raised.payload.iter().any(|payload| payload.source == "ask_exit");
        match raised.status.as_str() {
            "error" => self.unpublished = Some(raised),
            "abort" | "aborted" => {
                let value = "the kernel did not run the code".to_string();
                let raised = Raised { ename: "ExecutionAborted".into(), evalue: value, ..Raised::default() };
                self.unpublished = Some(raised);
            }
            _ => {}
        }
    }

    /// All has arrived: an error that was only replied is told now.
    pub(super) fn end(mut self) {
        if let Some(raised) = self.unpublished.take().filter(|_| !self.raised) {
            self.raise(&raised);
        }
    }

    fn raise(&mut self, raised: &Raised) {
        self.raised = true;
        if let Some(sink) = self.sink {
            let traceback = raised.traceback.concat();
            sink.put(&Line::Error { name: &raised.ename, value: &raised.evalue, traceback: &traceback });
        }
    }
}

/// Text in parts that are not too long for a line: a kernel may collect what code prints for a while.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE.min(rest.len())));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_characters() {
        let text = "€".repeat(PIECE);
        let parts: Vec<&str> = pieces(&text).collect();
        assert!(parts.len() > 3 && parts.iter().all(|part| part.len() <= PIECE));
        assert_eq!(parts.concat(), text);
        assert_eq!(pieces("").count(), 0);
        assert_eq!(pieces("a").collect::<Vec<_>>(), ["a"]);
    }
}
