//! Coding agents: their definitions, and parsing of their output.

mod definition;
pub mod login_file;
mod model_api;
mod preset;
mod progress;
mod prompt;
mod reader;
mod recipe;
mod report;
mod resume;
pub mod transcript;

pub use definition::{AgentDefinition, AgentLimits, BadDefinition, Invocation, Job};
pub use model_api::{ApiKey, ModelAccess, ModelApi, Reported};
pub use preset::{OutputFormat, Preset};
pub use progress::AgentProgress;
pub use prompt::{FailedCheck, Said, Talk};
pub use reader::AgentReader;
pub use recipe::{Login, Package, Recipe};
pub use report::{AgentReport, Tokens};
