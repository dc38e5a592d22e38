//! Keeps results of code as artifacts of its sandbox.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use coffer_core::{ExecutionId, SandboxId};
use coffer_store::{ArtifactKind, ArtifactLinks, ProjectScope};
use futures_util::stream;

use crate::app::App;
use crate::auth::{Caller, Write};
use coffer_api_types::code::{CodeArtifact, CodeResult, ResultContent, ResultFile};
use coffer_work::artifacts::Label;

/// Most artifacts of one execution.
const MOST: usize = 32;

/// Results on their way to artifacts. They are written when the code has ended, so that it waits for no disk.
pub(super) struct Keeper {
    app: Arc<App>,
    scope: ProjectScope,
    actor: String,
    sandbox: SandboxId,
    execution: ExecutionId,
    waiting: Vec<Waiting>,
    problem: Option<String>,
}

struct Waiting {
    result: u64,
    extension: &'static str,
    content_type: &'static str,
    contents: Contents,
}

enum Contents {
    Bytes(Bytes),
    /// Redacted when it is written.
    Text(String),
}

impl Keeper {
    pub(super) fn new(
        app: Arc<App>,
        caller: &Caller<Write>,
        sandbox: SandboxId,
        execution: ExecutionId,
    ) -> Self {
        let (scope, actor) = (caller.scope, caller.actor());
        Self { app, scope, actor, sandbox, execution, waiting: Vec::new(), problem: None }
    }

    /// Takes what is worth keeping of a result: images, documents, charts and frames.
    pub(super) fn take(&mut self, number: u64, result: &CodeResult) {
        for ResultFile { extension, content_type, content } in result.files() {
            let contents = match content {
                ResultContent::Text(text) => Contents::Text(text.to_string()),
                ResultContent::Base64(encoded) => {
                    let plain: String =
                        encoded.chars().filter(|letter| !letter.is_ascii_whitespace()).collect();
                    match STANDARD.decode(plain) {
                        Ok(bytes) => Contents::Bytes(bytes.into()),
                        Err(_) => {
                            self.complain(format!("the {extension} of result {} is not base64", number + 1));
                            continue;
                        }
                    }
                }
            };
            self.wait(number, extension, content_type, contents);
        }
    }

    fn wait(&mut self, result: u64, extension: &'static str, content_type: &'static str, contents: Contents) {
        if self.waiting.len() >= MOST {
            return self.complain(format!("only the first {MOST} were kept"));
        }
        self.waiting.push(Waiting { result, extension, content_type, contents });
    }

    fn complain(&mut self, why: String) {
        self.problem.get_or_insert(why);
    }

    /// Writes them. The code has run, so a failure is told beside what was kept.
    pub(super) async fn keep(mut self) -> (Vec<CodeArtifact>, Option<String>) {
        let mut kept = Vec::new();
        for Waiting { result, extension, content_type, contents } in std::mem::take(&mut self.waiting) {
            let name = format!("code-{}-{}.{extension}", self.execution, result + 1);
            let label = Label {
                kind: ArtifactKind::File,
                once_key: Some(format!("code/{name}")),
                name,
                content_type: content_type.to_string(),
                description: format!("result {} of execution {}", result + 1, self.execution),
                links: ArtifactLinks { sandbox: Some(self.sandbox), ..ArtifactLinks::default() },
                actor: self.actor.clone(),
            };
            let artifacts = &self.app.artifacts;
            let row = match contents {
                Contents::Bytes(bytes) => {
                    artifacts.keep(&self.scope, label, stream::iter([Ok::<_, String>(bytes)])).await
                }
                Contents::Text(text) => artifacts.keep_text(&self.scope, label, &text).await,
            };
            match row {
                Ok(row) => kept.push(CodeArtifact {
                    id: row.id.to_string(),
                    name: row.name,
                    content_type: row.content_type,
                    size_bytes: row.size_bytes,
                    result,
                }),
                Err(error) => self.complain(error.to_string()),
            }
        }
        (kept, self.problem)
    }
}
