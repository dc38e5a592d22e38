//! Fuzz targets: readers of what clients send, with the properties of their results.

use coffer_core::BuildSource;

use crate::dockerfile::{DockerfileOptions, parse};

/// Reads a Dockerfile. What is accepted has names and sources that the builder may use as they are.
pub fn dockerfile(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let options = DockerfileOptions { context: Some("c".repeat(64)), ..DockerfileOptions::default() };
    let lines = u32::try_from(text.matches('\n').count() + 1).expect("inputs are short");
    let read = match parse(&text, &options) {
        Ok(read) => read,
        Err(error) => {
            assert!((1..=lines).contains(&error.line), "{error} is beyond the file");
            assert!(!error.message.is_empty());
            return;
        }
    };
    let (BuildSource::Image(name) | BuildSource::Template(name) | BuildSource::Archive(name)) =
        &read.plan.source;
    assert!(!name.contains('\0') && name.len() <= 64 * 1024);
    assert!(read.plan.steps.len() <= 500);
    for step in &read.plan.steps {
        assert!(step.line.is_none_or(|line| (1..=lines).contains(&line)));
        if step.files_hash.is_some() {
            let source = &step.args[0];
            assert!(!source.starts_with('/') && source.split('/').all(|part| part != ".."), "{source}");
        }
    }
    // The same text is the same plan: the cache relies on it.
    assert_eq!(parse(&text, &options).as_ref(), Ok(&read));
    // The builder accepts it, or says which step is wrong.
    let _checked = crate::step::check(&read.plan);
}

#[cfg(test)]
#[path = "../../../fuzz/seeded.rs"]
mod seeded;

#[cfg(test)]
mod tests {
    use super::seeded;

    #[test]
    fn dockerfiles() {
        seeded::run("dockerfile", super::dockerfile);
    }
}
