//! Coding agents: their definitions, and parsing of their output.

mod definition;
mod preset;
mod progress;
mod reader;
mod recipe;

pub use definition::{AgentDefinition, AgentLimits, BadDefinition, Invocation, Job};
pub use preset::{OutputFormat, Preset};
pub use progress::AgentProgress;
pub use reader::{AgentEvent, AgentReader, AgentReport, Tokens};
pub use recipe::{Login, Package, Recipe};
