//! The entries of a transcript.

use serde::{Deserialize, Serialize};

use super::text::Text;

/// The state of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum CallState {
    Running,
    Done,
    Failed,
    /// The agent ended before it told how the call ended.
    Unknown,
}

/// What an edit did to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum EditKind {
    /// The file was written as a whole.
    Written,
    Changed,
    Deleted,
}

/// The state of an item of a todo list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum TodoState {
    Pending,
    InProgress,
    Done,
    Cancelled,
}

/// An item of a todo list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = TranscriptTodo))]
pub struct Todo {
    pub text: String,
    pub state: TodoState,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = TranscriptBody))]
pub enum EntryBody {
    /// A person or a reviewer said this to the task; the agent got it with this turn.
    Person {
        /// The caller, such as `key:…`, or an account on a forge.
        author: String,
        text: Text,
        /// The file that it is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<u64>,
    },
    /// The prompt of the turn.
    Prompt {
        text: Text,
    },
    /// The agent started.
    Started {
        /// As it reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
    },
    /// A message of the agent.
    Message {
        text: Text,
    },
    /// What it thought, if it shows that.
    Thinking {
        text: Text,
    },
    /// A call of any other tool.
    Tool {
        name: String,
        /// JSON, or plain text.
        arguments: Text,
        state: CallState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Text>,
    },
    /// A command line.
    Command {
        command: Text,
        state: CallState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Text>,
    },
    /// An edit of a file.
    Edit {
        path: String,
        edit: EditKind,
        state: CallState,
        /// Lines that begin with `-`, `+` or a space.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        diff: Option<Text>,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Text>,
    },
    /// The agent's todo list, as it is from here on.
    Todos {
        items: Vec<Todo>,
    },
    /// The agent waits before it asks its model again.
    Retry {
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u64>,
        /// The most that it tries.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait_ms: Option<u64>,
    },
    Error {
        text: Text,
    },
    /// Lines that are not in the agent's format: all of an agent whose format is text.
    Output {
        text: Text,
    },
    /// What the turn used, as the agent reports it.
    Usage {
        input_tokens: u64,
        /// Those of `input_tokens` that came from a cache.
        cached_tokens: u64,
        output_tokens: u64,
        /// In dollars; absent if the agent does not tell it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<f64>,
    },
    /// The check command, which the server ran after the turn.
    Check {
        command: Text,
        passed: bool,
        /// Absent if it did not end in time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i64>,
        output: Text,
    },
    /// More happened than a transcript keeps; the output of the execution has it.
    Omitted {
        entries: u64,
    },
}

impl EntryBody {
    /// The name of its kind, as in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Person { .. } => "person",
            Self::Prompt { .. } => "prompt",
            Self::Started { .. } => "started",
            Self::Message { .. } => "message",
            Self::Thinking { .. } => "thinking",
            Self::Tool { .. } => "tool",
            Self::Command { .. } => "command",
            Self::Edit { .. } => "edit",
            Self::Todos { .. } => "todos",
            Self::Retry { .. } => "retry",
            Self::Error { .. } => "error",
            Self::Output { .. } => "output",
            Self::Usage { .. } => "usage",
            Self::Check { .. } => "check",
            Self::Omitted { .. } => "omitted",
        }
    }

    /// About the bytes that it takes.
    pub fn size(&self) -> usize {
        let some = |text: &Option<Text>| text.as_ref().map_or(0, Text::size);
        100 + match self {
            Self::Person { author, text, file, .. } => {
                author.len() + text.size() + file.as_ref().map_or(0, String::len)
            }
            Self::Prompt { text }
            | Self::Message { text }
            | Self::Thinking { text }
            | Self::Error { text }
            | Self::Output { text } => text.size(),
            Self::Tool { name, arguments, result, .. } => name.len() + arguments.size() + some(result),
            Self::Command { command, output, .. } => command.size() + some(output),
            Self::Edit { path, diff, error, .. } => path.len() + some(diff) + some(error),
            Self::Todos { items } => items.iter().map(|item| item.text.len() + 30).sum(),
            Self::Retry { reason, .. } => reason.len(),
            Self::Check { command, output, .. } => command.size() + output.size(),
            Self::Started { .. } | Self::Usage { .. } | Self::Omitted { .. } => 0,
        }
    }

    /// Passes every text through `show`, for redaction.
    #[must_use]
    pub fn map(self, show: &dyn Fn(&str) -> String) -> Self {
        let some = |text: Option<Text>| text.map(|text| text.map(show));
        let word = |word: Option<String>| word.map(|word| show(&word));
        match self {
            Self::Person { author, text, file, line } => {
                Self::Person { author: show(&author), text: text.map(show), file: word(file), line }
            }
            Self::Prompt { text } => Self::Prompt { text: text.map(show) },
            Self::Started { model, session } => Self::Started { model: word(model), session: word(session) },
            Self::Message { text } => Self::Message { text: text.map(show) },
            Self::Thinking { text } => Self::Thinking { text: text.map(show) },
            Self::Tool { name, arguments, state, result } => {
                Self::Tool { name: show(&name), arguments: arguments.map(show), state, result: some(result) }
            }
            Self::Command { command, state, exit_code, output } => {
                Self::Command { command: command.map(show), state, exit_code, output: some(output) }
            }
            Self::Edit { path, edit, state, diff, error } => {
                Self::Edit { path: show(&path), edit, state, diff: some(diff), error: some(error) }
            }
            Self::Todos { items } => Self::Todos {
                items: items.into_iter().map(|item| Todo { text: show(&item.text), ..item }).collect(),
            },
            Self::Retry { reason, attempt, of, wait_ms } => {
                Self::Retry { reason: show(&reason), attempt, of, wait_ms }
            }
            Self::Error { text } => Self::Error { text: text.map(show) },
            Self::Output { text } => Self::Output { text: text.map(show) },
            Self::Check { command, passed, exit_code, output } => {
                Self::Check { command: command.map(show), passed, exit_code, output: output.map(show) }
            }
            same @ (Self::Usage { .. } | Self::Omitted { .. }) => same,
        }
    }
}

/// A new entry, or a new version of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The place of the entry in its turn, from 1.
    pub number: u64,
    /// Grows with every change of the turn.
    pub version: u64,
    /// Whether a subagent did it.
    pub subagent: bool,
    pub body: EntryBody,
}
