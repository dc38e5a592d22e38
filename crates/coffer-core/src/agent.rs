//! What an agent is: a command that works on a task by itself, and how to read what it says meanwhile.

mod definition;
mod preset;
mod progress;
mod reader;

pub use definition::{AgentDefinition, AgentLimits, BadDefinition, Invocation, Job};
pub use preset::{OutputFormat, Preset};
pub use progress::AgentProgress;
pub use reader::{AgentEvent, AgentReader, AgentReport, Tokens};
