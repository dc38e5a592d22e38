//! One method for each route, by subject. Paths and shapes are those of `docs/openapi.json`.

mod files;
mod project;
mod repositories;
mod sandboxes;
mod work;

pub use files::{FileContent, FileKind, Upload};
