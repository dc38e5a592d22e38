//! Code in the code interpreter of a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

/// Code to run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCode {
    #[schema(example = "1 + 1")]
    pub code: String,
    /// `python` (the default), `javascript`, `typescript`, `r`, `bash` or `java`; its default context runs the code.
    #[serde(default)]
    #[schema(example = "python")]
    pub language: Option<String>,
    /// The context that runs it, instead of a language.
    #[serde(default)]
    pub context_id: Option<String>,
    /// Variables of this call, beside the sandbox's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// After how many seconds it is interrupted; 30 by default (`code.timeout`).
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_s: Option<i64>,
    /// How many bytes of output and results the answer has; 16 MiB by default and at most (`code.most_output`).
    #[serde(default)]
    #[schema(minimum = 0, maximum = 268_435_456)]
    pub max_output_bytes: Option<i64>,
    /// Whether to keep images, PDFs, charts and frames as artifacts of the sandbox.
    #[serde(default)]
    pub artifacts: bool,
}

/// A value that code showed, as JSON. It stays text until someone needs it, so the order of its fields is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

impl Json {
    /// The JSON itself.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    fn is_null(&self) -> bool {
        self.text() == "null"
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        let value = |json: &Self| serde_json::from_str::<serde_json::Value>(json.text()).ok();
        self.text() == other.text() || value(self) == value(other)
    }
}

/// Something that code showed, in every form that it has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CodeResult {
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub markdown: Option<String>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub svg: Option<String>,
    /// In base64.
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub png: Option<String>,
    /// In base64.
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub jpeg: Option<String>,
    /// In base64.
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub pdf: Option<String>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub latex: Option<String>,
    #[serde(deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub javascript: Option<String>,
    #[serde(deserialize_with = "json", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub json: Option<Json>,
    /// A frame: its columns by name.
    #[serde(deserialize_with = "json", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<Json>,
    /// A chart as data, as E2B's SDKs describe it: `type`, `title`, `elements`, and labels.
    #[serde(deserialize_with = "json", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub chart: Option<Json>,
    /// Other forms by MIME type.
    #[schema(value_type = Object)]
    pub extra: BTreeMap<String, Json>,
    /// Whether it is the value of the code's last expression.
    pub is_main_result: bool,
}

/// A form of a result that is worth a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResultFile<'a> {
    pub extension: &'static str,
    pub content_type: &'static str,
    pub content: ResultContent<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ResultContent<'a> {
    /// White space may be in it.
    Base64(&'a str),
    Text(&'a str),
}

impl CodeResult {
    /// Its images, documents, charts and frames.
    pub fn files(&self) -> impl Iterator<Item = ResultFile<'_>> {
        use ResultContent::{Base64, Text};
        let forms = [
            ("png", "image/png", self.png.as_deref().map(Base64)),
            ("jpeg", "image/jpeg", self.jpeg.as_deref().map(Base64)),
            ("svg", "image/svg+xml", self.svg.as_deref().map(Text)),
            ("pdf", "application/pdf", self.pdf.as_deref().map(Base64)),
            ("chart.json", "application/json", self.chart.as_ref().map(|json| Text(json.text()))),
            ("data.json", "application/json", self.data.as_ref().map(|json| Text(json.text()))),
        ];
        forms.into_iter().filter_map(|(extension, content_type, content)| {
            Some(ResultFile { extension, content_type, content: content? })
        })
    }
}

/// A text; anything else as the JSON that it is.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let value = json(deserializer)?;
    Ok(value.map(|value| serde_json::from_str(value.text()).unwrap_or_else(|_| value.text().to_string())))
}

fn json<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Ok(Some(Json::deserialize(deserializer)?).filter(|value| !value.is_null()))
}

/// An error that code raised.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CodeError {
    #[schema(example = "ZeroDivisionError")]
    pub name: String,
    #[schema(example = "division by zero")]
    pub value: String,
    /// It may have colours of a terminal.
    pub traceback: String,
}

/// What code printed, showed and raised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeRan {
    pub stdout: String,
    pub stderr: String,
    pub results: Vec<CodeResult>,
    /// Null if it raised none.
    pub error: Option<CodeError>,
    #[serde(flatten)]
    pub summary: CodeSummary,
}

/// How code ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeSummary {
    pub execution_id: String,
    pub language: String,
    /// The context, if the request named one.
    pub context_id: Option<String>,
    /// The number that its kernel gave it.
    pub execution_count: Option<u64>,
    pub timed_out: bool,
    /// Whether there was more output, or more results, than the answer has.
    pub truncated: bool,
    /// How many bytes of them.
    pub dropped_bytes: u64,
    /// How many bytes it printed in all.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub artifacts: Vec<CodeArtifact>,
    /// Why results were not kept as artifacts, if some were not.
    pub artifacts_error: Option<String>,
    pub started_at: String,
    pub ended_at: String,
    pub duration_ms: i64,
}

/// An artifact that was made of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeArtifact {
    pub id: String,
    #[schema(example = "code-1.png")]
    pub name: String,
    #[schema(example = "image/png")]
    pub content_type: String,
    pub size_bytes: i64,
    /// The index of its result, from 0.
    pub result: u64,
}

/// The event `start` of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeStarted {
    pub execution_id: String,
    pub language: String,
    pub context_id: Option<String>,
}

/// The event `end` of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeEnd {
    /// Whether it raised an error.
    pub failed: bool,
    /// How many results there were.
    pub results: u64,
    #[serde(flatten)]
    pub summary: CodeSummary,
}

/// The event `failed` of the stream: how the code ended is unknown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeFailed {
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
}

/// A kernel with its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeContext {
    pub id: String,
    #[schema(example = "python")]
    pub language: String,
    #[schema(example = "/home/user")]
    pub cwd: String,
}

/// A context to create.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCodeContext {
    /// `python` (the default), `javascript`, `typescript`, `r`, `bash` or `java`.
    #[serde(default)]
    #[schema(example = "python")]
    pub language: Option<String>,
    /// Its working directory; `/home/user` by default.
    #[serde(default)]
    pub cwd: Option<String>,
}

/// Selects the executions in a notebook.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct NotebookQuery {
    /// Only code in this language.
    pub language: Option<String>,
    /// Only code in this context.
    pub context_id: Option<String>,
}
