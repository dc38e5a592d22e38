//! Code in a sandbox's code interpreter.

use std::collections::BTreeMap;

use coffer_api_types::code::{CodeEnd, CodeError, CodeResult, NewCode, ResultContent};
use coffer_client::{CodeRun, CodeStep};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::{MOST_BYTES, USUAL_BYTES, bounded};
use super::commands::{TELL_EVERY, cancelled};
use crate::cut::{self, Cut};
use crate::tool::{Call, Effect, Failure, Image, Outcome, Tool};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Images in a result, and the longest of them in base64: larger ones are refused by models.
const MOST_IMAGES: usize = 4;
const LONGEST_IMAGE: usize = 2 << 20;
const MOST_RESULTS: usize = 32;

pub(super) fn tools() -> Vec<Tool> {
    vec![Tool::new(
        "run_code",
        "Run code",
        "Run code in the code interpreter of a sandbox and wait for its end. State (variables, imports, files) stays from \
         call to call. Returns what it printed, the value of its last expression, charts and images, and its error. The \
         sandbox must be created from the template code-interpreter-v1. Cancelling the call interrupts the code.",
        Effect::Destroys { again: false },
        run,
    )]
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunInput {
    /// The sandbox.
    sandbox_id: String,
    /// The code.
    code: String,
    /// `python` (the default), `javascript`, `typescript`, `r`, `bash` or `java`.
    #[serde(default)]
    language: Option<String>,
    /// The context that runs it, instead of the language's own.
    #[serde(default)]
    context_id: Option<String>,
    /// Variables of this call, beside the sandbox's own.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// After how many seconds it is interrupted; 30 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = 86400))]
    timeout_s: Option<u32>,
    /// How many bytes of each stream and of each result the answer has; 16384 by default, at most 65536.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65536))]
    max_output_bytes: Option<u32>,
    /// Whether to keep images, charts and frames as artifacts, for people and for later; false by default.
    #[serde(default)]
    artifacts: bool,
}

/// Something that the code showed.
#[derive(Debug, Serialize, JsonSchema)]
struct Shown {
    /// As text: plain text, or else markdown, LaTeX, JSON or HTML.
    text: Option<String>,
    /// A chart as data, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    chart: Option<String>,
    /// Whether it is the value of the last expression.
    is_main_result: bool,
    /// All forms that it has, such as `png` and `html`.
    forms: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Raised {
    name: String,
    value: String,
    traceback: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Kept {
    artifact_id: String,
    name: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Ran {
    /// For read_process.
    execution_id: String,
    /// Null if it raised none.
    error: Option<Raised>,
    timed_out: bool,
    stdout: String,
    stderr: String,
    results: Vec<Shown>,
    /// How many images this result has, and how many were left out because they are too large or too many.
    images: usize,
    images_left_out: usize,
    artifacts: Vec<Kept>,
    /// Where the part of stdout that is left out begins: pass it to read_process as stdout_offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_rest: Option<u64>,
    /// The same for stderr.
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_rest: Option<u64>,
    duration_ms: i64,
}

async fn run(call: Call, input: RunInput) -> Result<Outcome<Ran>, Failure> {
    let most = bounded(input.max_output_bytes, USUAL_BYTES, MOST_BYTES);
    let code = NewCode {
        code: input.code,
        language: input.language,
        context_id: input.context_id,
        env: input.env,
        timeout_s: input.timeout_s.map(i64::from),
        max_output_bytes: None,
        artifacts: input.artifacts,
    };
    let interrupted = || cancelled("the code is interrupted");
    let started = tokio::select! {
        run = call.client.run_code_stream(&input.sandbox_id, &code) => run?,
        () = call.cancelled() => return Err(interrupted()),
    };
    let mut watch = Watch {
        most,
        stdout: Cut::new(most),
        stderr: Cut::new(most),
        results: Vec::new(),
        results_left_out: 0,
        images: Vec::new(),
        images_left_out: 0,
        error: None,
    };
    match watch.follow(&call, started).await? {
        Some(end) => Ok(watch.outcome(*end)),
        // Leaving the stream interrupts the code.
        None => Err(interrupted()),
    }
}

/// Code that is being followed, in bounded memory.
struct Watch {
    most: usize,
    stdout: Cut,
    stderr: Cut,
    results: Vec<Shown>,
    results_left_out: usize,
    images: Vec<Image>,
    images_left_out: usize,
    error: Option<Raised>,
}

impl Watch {
    /// Returns how it ended, or `None` if the client cancelled the call.
    async fn follow(&mut self, call: &Call, mut run: CodeRun) -> Result<Option<Box<CodeEnd>>, Failure> {
        let began = Instant::now();
        let mut ticks = interval(TELL_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            tokio::select! {
                step = run.next() => match step? {
                    Some(CodeStep::Started(_)) => {}
                    Some(CodeStep::Stdout(text)) => self.stdout.add(text.as_bytes()),
                    Some(CodeStep::Stderr(text)) => self.stderr.add(text.as_bytes()),
                    Some(CodeStep::Result(result)) => self.show(&result),
                    Some(CodeStep::Error(error)) => self.raise(&error),
                    Some(CodeStep::Ended(end)) => return Ok(Some(end)),
                    None => return Err(coffer_client::Error::BrokenOff(None).into()),
                },
                () = call.cancelled() => return Ok(None),
                _ = ticks.tick(), if call.wants_progress() => {
                    let seconds = began.elapsed().as_secs_f64();
                    let written = self.stdout.total() + self.stderr.total();
                    call.tell(seconds, format!("{seconds:.0} s, {written} bytes of output")).await;
                }
            }
        }
    }

    fn show(&mut self, result: &CodeResult) {
        if self.results.len() >= MOST_RESULTS {
            self.results_left_out += 1;
            return;
        }
        for file in result.files() {
            let ResultContent::Base64(base64) = file.content else { continue };
            if !file.content_type.starts_with("image/") {
                continue;
            }
            if self.images.len() < MOST_IMAGES && base64.len() <= LONGEST_IMAGE {
                let base64 = base64.split_ascii_whitespace().collect();
                self.images.push(Image { base64, mime_type: file.content_type });
            } else {
                self.images_left_out += 1;
            }
        }
        let json = result.json.as_ref().map(|json| json.text());
        let texts = [
            result.text.as_deref(),
            result.markdown.as_deref(),
            result.latex.as_deref(),
            json,
            result.html.as_deref(),
        ];
        let has = [
            ("text", result.text.is_some()),
            ("html", result.html.is_some()),
            ("markdown", result.markdown.is_some()),
            ("svg", result.svg.is_some()),
            ("png", result.png.is_some()),
            ("jpeg", result.jpeg.is_some()),
            ("pdf", result.pdf.is_some()),
            ("latex", result.latex.is_some()),
            ("json", result.json.is_some()),
            ("javascript", result.javascript.is_some()),
            ("data", result.data.is_some()),
            ("chart", result.chart.is_some()),
        ];
        self.results.push(Shown {
            text: texts.into_iter().flatten().next().map(|text| cut::text(text, self.most)),
            chart: result.chart.as_ref().map(|chart| cut::text(chart.text(), self.most)),
            is_main_result: result.is_main_result,
            forms: has.into_iter().filter(|(_, has)| *has).map(|(form, _)| form.to_string()).collect(),
        });
    }

    fn raise(&mut self, error: &CodeError) {
        let most = self.most;
        self.error.get_or_insert_with(|| Raised {
            name: cut::text(&error.name, 300),
            value: cut::text(&error.value, most),
            traceback: cut::text(&error.traceback, most),
        });
    }

    fn outcome(self, end: CodeEnd) -> Outcome<Ran> {
        let (stdout_rest, stderr_rest) = (self.stdout.gap(), self.stderr.gap());
        let summary = end.summary;
        let ran = Ran {
            execution_id: summary.execution_id,
            error: self.error,
            timed_out: summary.timed_out,
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            results: self.results,
            images: self.images.len(),
            images_left_out: self.images_left_out,
            artifacts: summary
                .artifacts
                .into_iter()
                .map(|artifact| Kept { artifact_id: artifact.id, name: artifact.name })
                .collect(),
            stdout_rest,
            stderr_rest,
            duration_ms: summary.duration_ms,
        };
        let mut text = match (&ran.error, ran.timed_out) {
            (_, true) => format!("interrupted at its timeout after {} ms", ran.duration_ms),
            (Some(error), false) => format!("{}: {}", error.name, error.value),
            (None, false) => format!("ended after {} ms", ran.duration_ms),
        };
        let mut part = |name: &str, content: &str| {
            if !content.trim().is_empty() {
                text.push_str(&format!("\n--- {name}\n{}", content.trim_end()));
            }
        };
        part("stdout", &ran.stdout);
        part("stderr", &ran.stderr);
        for result in &ran.results {
            let name = if result.is_main_result { "result" } else { "shown" };
            part(
                &format!("{name} ({})", result.forms.join(", ")),
                result.text.as_deref().unwrap_or_default(),
            );
            part("chart", result.chart.as_deref().unwrap_or_default());
        }
        if let Some(error) = &ran.error {
            part("traceback", &error.traceback);
        }
        for (name, rest) in [("stdout", stdout_rest), ("stderr", stderr_rest)] {
            if let Some(rest) = rest {
                let id = &ran.execution_id;
                text.push_str(&format!(
                    "\n--- the rest: read_process with execution_id {id} and {name}_offset {rest}"
                ));
            }
        }
        if self.results_left_out > 0 {
            text.push_str(&format!("\n--- {} more results were left out", self.results_left_out));
        }
        if ran.images_left_out > 0 {
            text.push_str(&format!(
                "\n--- {} images were left out: too large or too many; with artifacts they are kept",
                ran.images_left_out
            ));
        }
        for kept in &ran.artifacts {
            text.push_str(&format!("\n--- artifact {}: {}", kept.artifact_id, kept.name));
        }
        if let Some(why) = summary.artifacts_error {
            text.push_str(&format!("\n--- not all results are artifacts: {why}"));
        }
        Outcome { images: self.images, ..Outcome::new(text, ran) }
    }
}
