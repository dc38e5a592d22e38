//! Exports the code that ran in a sandbox as a Jupyter notebook.
//!
//! The log of a sandbox has code, output and results in their order, so a notebook is a walk through it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use coffer_core::ExecutionId;
use coffer_store::{ExecutionFilter, ExecutionRow};
use coffer_wire::agentd::OutputStream;
use http::{HeaderValue, header};
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::auth::{NamedId, Read};
use crate::error::ApiError;
use crate::query::Query;
use crate::v1::executions::expect_sandbox;
use coffer_api_types::code::{CodeError, CodeResult, Json, NotebookQuery};
use coffer_core::clock::rfc3339;
use coffer_fleet::output::{Kind, LogRecord};

const MOST_CELLS: u32 = 1000;
/// Most bytes of code, output and results in a notebook.
const LARGEST: usize = 32 << 20;
const READ_AT_ONCE: usize = 512 << 10;
const CONTENT_TYPE: &str = "application/x-ipynb+json";

/// The code that ran in a sandbox, as a Jupyter notebook (nbformat 4.5), oldest first; the sandbox may have ended.
///
/// Each execution through this API is a cell. What is stored is redacted and bounded: `metadata.coffer` says what was
/// cut or deleted.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/code/notebook", tag = "code", params(("id" = String, Path), NotebookQuery),
    responses((status = 200, content_type = "application/x-ipynb+json", body = Object))
)]
pub(in crate::v1) async fn export(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
    Query(query): Query<NotebookQuery>,
) -> Result<Response, ApiError> {
    expect_sandbox(&app, &named).await?;
    let language = query.language.as_deref().map(|name| super::language(Some(name))).transpose()?;
    let scope = &named.caller.scope;
    let _room = app.listings.take(scope.project()).await.map_err(ApiError::busy)?;
    let filter = ExecutionFilter {
        sandbox: Some(named.id),
        is_code: true,
        limit: MOST_CELLS,
        ..ExecutionFilter::default()
    };
    let rows = app.store.executions(scope, &filter).await.map_err(ApiError::store)?;
    let all_of_them = rows.len() < MOST_CELLS as usize;
    let wanted = |row: &ExecutionRow| {
        let Some(code) = &row.code else { return false };
        language.is_none_or(|language| language.name() == code.language)
            && query.context_id.as_ref().is_none_or(|id| code.context.as_ref() == Some(id))
    };
    let mut draft = Draft::new(rows.into_iter().rev().filter(wanted));
    if let Some((mut at, last)) = draft.positions() {
        while at < last {
            let page = app.output.read(scope, named.id, at, READ_AT_ONCE).await.map_err(ApiError::store)?;
            draft.pruned |= page.missing > 0;
            if page.next <= at {
                break;
            }
            at = page.next;
            page.records.iter().for_each(|record| draft.take(record));
        }
    }
    draft.truncated |= !all_of_them;
    let body = serde_json::to_vec(&draft.notebook(named.id.to_string())).expect("plain data");
    let name = HeaderValue::try_from(format!("attachment; filename=\"{}.ipynb\"", named.id));
    let name = name.expect("letters and digits");
    let kind = HeaderValue::from_static(CONTENT_TYPE);
    Ok(([(header::CONTENT_TYPE, kind), (header::CONTENT_DISPOSITION, name)], body).into_response())
}

/// A notebook while its log is read.
struct Draft {
    cells: Vec<Draught>,
    places: HashMap<ExecutionId, usize>,
    left: usize,
    truncated: bool,
    pruned: bool,
}

/// A cell while its log is read.
struct Draught {
    row: ExecutionRow,
    code: Vec<u8>,
    outputs: Vec<Output>,
    /// A result or an error of which more may come.
    shown: Vec<u8>,
    execution_count: Option<u64>,
}

impl Draft {
    fn new(rows: impl Iterator<Item = ExecutionRow>) -> Self {
        let cells: Vec<Draught> = rows
            .map(|row| Draught {
                row,
                code: Vec::new(),
                outputs: Vec::new(),
                shown: Vec::new(),
                execution_count: None,
            })
            .collect();
        let places = cells.iter().enumerate().map(|(place, cell)| (cell.row.id, place)).collect();
        Self { cells, places, left: LARGEST, truncated: false, pruned: false }
    }

    /// The part of the log that has all of it.
    fn positions(&self) -> Option<(i64, i64)> {
        let all = self.cells.iter().filter_map(|cell| cell.row.positions);
        all.reduce(|(first, last), (one, other)| (first.min(one), last.max(other)))
    }

    fn take(&mut self, record: &LogRecord) {
        let Some(&place) = self.places.get(&record.execution) else { return };
        let Some(left) = self.left.checked_sub(record.data.len()) else {
            self.truncated = true;
            return;
        };
        self.left = left;
        let cell = &mut self.cells[place];
        if record.kind != Kind::Shown || record.offset == 0 {
            cell.finish_shown();
        }
        match record.kind {
            Kind::Code => cell.code.extend_from_slice(&record.data),
            Kind::Shown => cell.shown.extend_from_slice(&record.data),
            Kind::Output(stream) => cell.print(stream, &record.data),
            Kind::Ended => {
                #[derive(Deserialize, Default)]
                struct Ended {
                    execution_count: Option<u64>,
                }
                let ended: Ended = serde_json::from_slice(&record.data).unwrap_or_default();
                cell.execution_count = ended.execution_count;
            }
            Kind::Truncated | Kind::Gap(_) => self.truncated = true,
            Kind::Started => {}
        }
    }

    fn notebook(self, sandbox: String) -> Notebook {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for language in self.cells.iter().filter_map(|cell| cell.row.code.as_ref()) {
            *counts.entry(&language.language).or_default() += 1;
        }
        let language = counts.into_iter().max_by_key(|&(language, count)| (count, language));
        let language = language.map_or("python", |(language, _)| language).to_string();
        let (truncated, pruned) = (self.truncated, self.pruned);
        let cells = self.cells.into_iter().map(Draught::cell).collect();
        Notebook {
            nbformat: 4,
            nbformat_minor: 5,
            metadata: Metadata {
                kernelspec: Kernel::of(&language),
                language_info: Named { name: language },
                coffer: About { sandbox, truncated, pruned },
            },
            cells,
        }
    }
}

impl Draught {
    fn print(&mut self, stream: OutputStream, data: &[u8]) {
        let name = if stream == OutputStream::Stderr { "stderr" } else { "stdout" };
        let more = String::from_utf8_lossy(data);
        match self.outputs.last_mut() {
            Some(Output::Stream { name: last, text }) if *last == name => text.push_str(&more),
            _ => self.outputs.push(Output::Stream { name, text: more.into_owned() }),
        }
    }

    /// Takes in a result or an error that is complete.
    fn finish_shown(&mut self) {
        #[derive(Deserialize)]
        struct Head {
            #[serde(rename = "type")]
            kind: String,
        }
        let shown = std::mem::take(&mut self.shown);
        if shown.is_empty() {
            return;
        }
        let kind = serde_json::from_slice::<Head>(&shown).map(|head| head.kind).unwrap_or_default();
        let output = match kind.as_str() {
            "result" => {
                serde_json::from_slice(&shown).ok().map(|result| of_result(result, self.execution_count))
            }
            "error" => serde_json::from_slice(&shown).ok().map(of_error),
            _ => None,
        };
        self.outputs.extend(output);
    }

    fn cell(mut self) -> Cell {
        self.finish_shown();
        let (count, row) = (self.execution_count, self.row);
        for output in &mut self.outputs {
            if let Output::ExecuteResult { execution_count, .. } = output {
                *execution_count = count;
            }
        }
        let code = row.code.clone();
        let language = code.as_ref().map(|code| code.language.clone()).unwrap_or_default();
        // If its record was deleted, the beginning of the code is left.
        let source =
            if self.code.is_empty() { row.command } else { String::from_utf8_lossy(&self.code).into_owned() };
        Cell {
            cell_type: "code",
            id: row.id.to_string(),
            execution_count: count,
            metadata: CellMetadata {
                vscode: Editor { language_id: language.clone() },
                coffer: AboutCell {
                    execution_id: row.id.to_string(),
                    language,
                    context_id: code.and_then(|code| code.context),
                    state: row.state.as_str().to_string(),
                    status: row.status,
                    started_at: rfc3339(row.started_ms),
                },
            },
            source,
            outputs: self.outputs,
        }
    }
}

fn of_result(result: CodeResult, execution_count: Option<u64>) -> Output {
    let texts = [
        ("text/plain", result.text),
        ("text/html", result.html),
        ("text/markdown", result.markdown),
        ("image/svg+xml", result.svg),
        ("image/png", result.png),
        ("image/jpeg", result.jpeg),
        ("application/pdf", result.pdf),
        ("text/latex", result.latex),
        ("application/javascript", result.javascript),
    ];
    // Only types of JSON may have values that are not text.
    let values = [
        ("application/json", result.json),
        ("application/vnd.e2b.data+json", result.data),
        ("application/vnd.e2b.chart+json", result.chart),
    ];
    let texts = texts.into_iter().filter_map(|(mime, text)| Some((mime.to_string(), Shown::Text(text?))));
    let values = values.into_iter().filter_map(|(mime, json)| Some((mime.to_string(), Shown::Json(json?))));
    let others = result.extra.into_iter().map(|(mime, json)| {
        let is_json = mime.starts_with("application/") && mime.ends_with("+json");
        let text = serde_json::from_str(json.text()).unwrap_or_else(|_| json.text().to_string());
        (mime, if is_json { Shown::Json(json) } else { Shown::Text(text) })
    });
    let data = texts.chain(values).chain(others).collect();
    let metadata = Empty {};
    match result.is_main_result {
        true => Output::ExecuteResult { execution_count, data, metadata },
        false => Output::DisplayData { data, metadata },
    }
}

fn of_error(error: CodeError) -> Output {
    let traceback = error.traceback.lines().map(str::to_string).collect();
    Output::Error { ename: error.name, evalue: error.value, traceback }
}

#[derive(Serialize)]
struct Notebook {
    nbformat: u8,
    nbformat_minor: u8,
    metadata: Metadata,
    cells: Vec<Cell>,
}

#[derive(Serialize)]
struct Metadata {
    kernelspec: Kernel,
    language_info: Named,
    coffer: About,
}

#[derive(Serialize)]
struct Named {
    name: String,
}

#[derive(Serialize)]
struct Kernel {
    name: &'static str,
    display_name: &'static str,
    language: String,
}

impl Kernel {
    /// The kernel that has this language on most machines.
    fn of(language: &str) -> Self {
        let (name, display_name) = match language {
            "javascript" | "typescript" => ("deno", "Deno"),
            "r" => ("ir", "R"),
            "bash" => ("bash", "Bash"),
            "java" => ("java", "Java"),
            _ => ("python3", "Python 3"),
        };
        Self { name, display_name, language: language.to_string() }
    }
}

#[derive(Serialize)]
struct About {
    sandbox: String,
    /// Whether there is more than the notebook has.
    truncated: bool,
    /// Whether retention has deleted some of it.
    pruned: bool,
}

#[derive(Serialize)]
struct Cell {
    cell_type: &'static str,
    id: String,
    execution_count: Option<u64>,
    metadata: CellMetadata,
    source: String,
    outputs: Vec<Output>,
}

#[derive(Serialize)]
struct CellMetadata {
    vscode: Editor,
    coffer: AboutCell,
}

#[derive(Serialize)]
struct Editor {
    #[serde(rename = "languageId")]
    language_id: String,
}

#[derive(Serialize)]
struct AboutCell {
    execution_id: String,
    language: String,
    context_id: Option<String>,
    state: String,
    status: Option<String>,
    started_at: String,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
#[serde(untagged)]
enum Shown {
    Text(String),
    Json(Json),
}

#[derive(Serialize)]
#[serde(tag = "output_type", rename_all = "snake_case")]
enum Output {
    Stream { name: &'static str, text: String },
    ExecuteResult { execution_count: Option<u64>, data: BTreeMap<String, Shown>, metadata: Empty },
    DisplayData { data: BTreeMap<String, Shown>, metadata: Empty },
    Error { ename: String, evalue: String, traceback: Vec<String> },
}
