//! Coding agents: their definitions, and parsing of their output.

mod definition;
mod model_api;
mod preset;
mod progress;
mod reader;

pub use definition::{AgentDefinition, AgentLimits, BadDefinition, Invocation, Job};
pub use model_api::{ApiKey, ModelAccess, ModelApi, Reported};
pub use preset::{OutputFormat, Preset};
pub use progress::AgentProgress;
pub use reader::{AgentEvent, AgentReader, AgentReport, Tokens};
