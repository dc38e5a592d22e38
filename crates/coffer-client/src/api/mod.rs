//! One method for each route, by subject. Paths and shapes are those of `docs/openapi.json`.

mod code;
mod files;
mod project;
mod repositories;
mod sandboxes;
mod templates;
mod work;

pub use files::{FileContent, FileKind, Upload};
