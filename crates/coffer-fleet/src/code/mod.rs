//! Code in the code interpreters of sandboxes, through our own API.
//!
//! [`Code`] checks the project's command policy, records the code as an execution, sends it, and follows it to its end
//! in a task of its own. What comes back is hostile, bounded, stored redacted, and passed on as [`Step`]s. If nobody
//! takes them any more, or time is up, the code is interrupted.

mod call;
mod error;
mod language;
mod service;
mod settings;

pub use call::{CodeEnded, Step};
pub use error::CodeError;
pub use language::Language;
pub use service::{Call, Code, CodeOrder, Place};
pub use settings::CodeSettings;
