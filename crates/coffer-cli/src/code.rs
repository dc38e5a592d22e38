//! `code`: snippets and files in a sandbox's code interpreter.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use coffer_api_types::code::{
    CodeEnd, CodeError, CodeRan, CodeResult, NewCode, NotebookQuery, ResultContent, ResultFile,
};
use coffer_api_types::sandboxes::NewSandbox;
use coffer_client::CodeStep;

use crate::context::Context;
use crate::exec::{made_and_destroyed, not_run};
use crate::failure::{FAILED, Failure, INTERRUPTED, Outcome, TIMED_OUT};
use crate::{pairs, printer, sandboxes};

const TEMPLATE: &str = "code-interpreter-v1";

/// Run code in a sandbox's code interpreter
///
/// One word is a file (`-` for stdin) that runs in a new sandbox; with -c or --notebook it is the sandbox. Two are a sandbox
/// and a file. State stays in the sandbox from call to call. An error in the code is exit code 1.
#[derive(Debug, Args)]
pub struct Code {
    /// The sandbox, and the file with the code
    #[arg(value_name = "SANDBOX|FILE", num_args = 0..=2)]
    words: Vec<String>,
    /// The code, instead of a file
    #[arg(short, long, value_name = "CODE")]
    code: Option<String>,
    /// python, javascript, typescript, r, bash or java [default: by the file's name, or python]
    #[arg(short, long, value_name = "NAME")]
    language: Option<String>,
    /// The context that runs it, instead of the language's own
    #[arg(long, value_name = "ID", conflicts_with = "language")]
    context: Option<String>,
    /// A variable for it; NAME alone takes its value from here. May be repeated
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Interrupt it after this time, such as 90s or 5m [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = pairs::seconds)]
    timeout: Option<i64>,
    /// Save images, documents, charts and frames in this directory
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Keep the new sandbox, and print its id to stderr
    #[arg(long)]
    keep: bool,
    /// Write the code that ran in the sandbox, with its results, as a Jupyter notebook; `-` for stdout
    #[arg(long, value_name = "FILE", conflicts_with_all = ["code", "save", "context", "env", "timeout", "keep"])]
    notebook: Option<PathBuf>,
}

/// What the words name.
struct Target {
    sandbox: Option<String>,
    file: Option<String>,
}

impl Code {
    fn target(&self) -> Result<Target, Failure> {
        let names_sandbox = self.code.is_some() || self.notebook.is_some();
        match (self.words.as_slice(), names_sandbox) {
            ([], true) if self.notebook.is_some() => Err(Failure::usage("--notebook needs a sandbox")),
            ([], true) => Ok(Target { sandbox: None, file: None }),
            ([], false) if std::io::stdin().is_terminal() => Err(Failure::usage("there is no code")
                .hint("`coffer code -c 'print(1)'`, `coffer code file.py`, or `coffer code -` for stdin")),
            ([], false) => Ok(Target { sandbox: None, file: Some("-".into()) }),
            ([sandbox], true) => Ok(Target { sandbox: Some(sandbox.clone()), file: None }),
            ([file], false) => Ok(Target { sandbox: None, file: Some(file.clone()) }),
            ([sandbox, file], false) => {
                Ok(Target { sandbox: Some(sandbox.clone()), file: Some(file.clone()) })
            }
            (_, true) => Err(Failure::usage("-c and --notebook take the place of a file")),
            (_, false) => Err(Failure::usage("there may be one sandbox and one file")),
        }
    }

    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let target = self.target()?;
        if let (Some(notebook), Some(sandbox)) = (&self.notebook, &target.sandbox) {
            let id = sandboxes::resolve(context, sandbox).await?;
            let query = NotebookQuery { language: self.language.clone(), context_id: None };
            return export(context, &id, &query, notebook).await;
        }
        let new = self.new_code(&target)?;
        if let Some(directory) = &self.save {
            std::fs::create_dir_all(directory).map_err(|error| {
                Failure::new(format!("could not create {}: {error}", directory.display()))
            })?;
        }
        let save = self.save.as_deref();
        match &target.sandbox {
            Some(sandbox) => {
                let id = sandboxes::resolve(context, sandbox).await.map_err(not_run)?;
                until_interrupted(perform(context, &id, &new, save)).await
            }
            None => {
                let fresh = NewSandbox { template: Some(TEMPLATE.into()), ..NewSandbox::default() };
                made_and_destroyed(context, &fresh, self.keep, async |id| {
                    until_interrupted(perform(context, id, &new, save)).await
                })
                .await
            }
        }
    }

    fn new_code(&self, target: &Target) -> Result<NewCode, Failure> {
        let code = match (&self.code, target.file.as_deref()) {
            (Some(code), _) => code.clone(),
            (None, Some("-") | None) => std::io::read_to_string(std::io::stdin())?,
            (None, Some(file)) => std::fs::read_to_string(file).map_err(|error| {
                Failure::usage(format!("could not read {file}: {error}"))
                    .hint("in a sandbox: `coffer code SANDBOX FILE`, or `coffer code SANDBOX -c CODE`")
            })?,
        };
        let by_name = || target.file.as_deref().and_then(language_of).map(str::to_string);
        let language = if self.context.is_some() { None } else { self.language.clone().or_else(by_name) };
        Ok(NewCode {
            code,
            language,
            context_id: self.context.clone(),
            env: pairs::variables(&self.env)?,
            timeout_s: self.timeout,
            ..NewCode::default()
        })
    }
}

/// The language of a file, by its name.
fn language_of(file: &str) -> Option<&'static str> {
    match Path::new(file).extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "py" => Some("python"),
        "js" | "mjs" | "cjs" => Some("javascript"),
        "ts" | "mts" => Some("typescript"),
        "r" => Some("r"),
        "sh" | "bash" => Some("bash"),
        "java" | "jsh" => Some("java"),
        _ => None,
    }
}

/// Ctrl-C leaves; the server then interrupts the code.
async fn until_interrupted(work: impl Future<Output = Outcome>) -> Outcome {
    tokio::select! {
        outcome = work => outcome,
        _ = tokio::signal::ctrl_c() => Ok(INTERRUPTED),
    }
}

async fn perform(context: &Context, sandbox: &str, new: &NewCode, save: Option<&Path>) -> Outcome {
    if !context.printer.is_table() {
        let ran = context.client.run_code(sandbox, new).await.map_err(|error| not_run(error.into()))?;
        for (number, result) in ran.results.iter().enumerate() {
            keep(number, result, save)?;
        }
        context.printer.show(&ran)?;
        let CodeRan { summary, error, .. } = ran;
        return Ok(exit_code(error.is_some(), summary.timed_out));
    }
    let mut run =
        context.client.run_code_stream(sandbox, new).await.map_err(|error| not_run(error.into()))?;
    let mut results = 0;
    while let Some(step) = run.next().await.map_err(|error| not_run(error.into()))? {
        let written = match step {
            CodeStep::Started(_) => Ok(()),
            CodeStep::Stdout(text) => printer::raw(text.as_bytes(), false),
            CodeStep::Stderr(text) => printer::raw(text.as_bytes(), true),
            CodeStep::Result(result) => {
                let shown = shown(&result);
                keep(results, &result, save)?;
                results += 1;
                printer::raw(shown.as_bytes(), false)
            }
            CodeStep::Error(error) => printer::raw(raised(&error).as_bytes(), true),
            CodeStep::Ended(end) => return Ok(ended(&end)),
        };
        if written.is_err() {
            // The reader has gone (`| head`): leaving interrupts the code.
            return Ok(128 + 13);
        }
    }
    Err(not_run(Failure::new("the server ended the stream before the code ended")))
}

/// A result as text; what has none is named.
fn shown(result: &CodeResult) -> String {
    let json = result.json.as_ref().map(coffer_api_types::code::Json::text);
    let text = [result.text.as_deref(), result.markdown.as_deref(), result.latex.as_deref(), json];
    match text.into_iter().flatten().next() {
        Some(text) => format!("{}\n", text.trim_end_matches('\n')),
        None => String::new(),
    }
}

fn raised(error: &CodeError) -> String {
    match error.traceback.trim_end() {
        "" => format!("{}: {}\n", error.name, error.value),
        traceback => format!("{traceback}\n"),
    }
}

fn ended(end: &CodeEnd) -> u8 {
    let summary = &end.summary;
    if summary.truncated {
        printer::note(&format!("{} bytes of output and results were left out", summary.dropped_bytes));
    }
    if summary.timed_out {
        printer::note("interrupted: timed out");
    }
    exit_code(end.failed, summary.timed_out)
}

fn exit_code(failed: bool, timed_out: bool) -> u8 {
    match (failed, timed_out) {
        (_, true) => TIMED_OUT,
        (true, false) => FAILED,
        (false, false) => 0,
    }
}

/// Saves the files of a result; without a directory, says that there are some.
fn keep(number: usize, result: &CodeResult, save: Option<&Path>) -> Result<(), Failure> {
    let Some(directory) = save else {
        let kinds: Vec<&str> = result.files().map(|file| file.extension).collect();
        if !kinds.is_empty() {
            printer::note(&format!("result {}: {}; --save DIR saves it", number + 1, kinds.join(", ")));
        }
        return Ok(());
    };
    for ResultFile { extension, content, .. } in result.files() {
        let path = directory.join(format!("result-{}.{extension}", number + 1));
        let bytes = match content {
            ResultContent::Text(text) => text.as_bytes().to_vec(),
            ResultContent::Base64(text) => {
                let plain: String = text.split_ascii_whitespace().collect();
                STANDARD.decode(plain).map_err(|_| {
                    Failure::new(format!("the {extension} of result {} is not base64", number + 1))
                })?
            }
        };
        std::fs::write(&path, bytes)
            .map_err(|error| Failure::new(format!("could not write {}: {error}", path.display())))?;
        printer::note(&format!("saved {}", path.display()));
    }
    Ok(())
}

/// Writes a notebook, which is complete or not there.
async fn export(context: &Context, sandbox: &str, query: &NotebookQuery, to: &Path) -> Outcome {
    let mut content = context.client.notebook(sandbox, query).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = content.next().await? {
        bytes.extend_from_slice(&piece);
    }
    if to == Path::new("-") {
        std::io::stdout().lock().write_all(&bytes)?;
        return Ok(0);
    }
    std::fs::write(to, &bytes)
        .map_err(|error| Failure::new(format!("could not write {}: {error}", to.display())))?;
    printer::note(&format!("wrote {}", to.display()));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_their_language() {
        assert_eq!(language_of("a/b.py"), Some("python"));
        assert_eq!(language_of("x.R"), Some("r"));
        assert_eq!((language_of("-"), language_of("notes.txt")), (None, None));
    }
}
