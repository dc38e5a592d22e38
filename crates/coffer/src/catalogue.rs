//! `coffer template build` for templates of the catalogue: asks the running server to build them, and follows the log.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use coffer_http::{Address, Client, Failure, Read, anywhere};
use http::{Method, Request, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::printer;

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);
const LARGEST_ANSWER: usize = 16 << 20;

/// The server of a data directory, as its operator.
#[derive(Debug)]
pub(crate) struct Operator {
    url: String,
    key: String,
    client: Client,
}

impl Operator {
    /// Reads where the server of `data_dir` is, and its operator's key.
    pub(crate) fn of(data_dir: &Path) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = data_dir.join(name);
            std::fs::read_to_string(&path).map_err(|error| {
                printer::hint(
                    format!("could not read `{}`: {error}", path.display()),
                    "templates of the catalogue are built by a running server: start it with `coffer up`, run this \
                     as root, and name its directory with --data-dir if it is another",
                )
            })
        };
        let env = read("env")?;
        let url = env.lines().find_map(|line| line.strip_prefix("COFFER_URL="));
        let url = url.with_context(|| format!("`{}/env` names no server", data_dir.display()))?.to_string();
        Ok(Self { url, key: read("operator-key")?.trim().to_string(), client: Client::new(None) })
    }

    /// Builds a template and prints its log until it is ready.
    pub(crate) fn build(&self, name: &str, force: bool) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.build_and_follow(name, force))
    }

    async fn build_and_follow(&self, name: &str, force: bool) -> anyhow::Result<()> {
        let path = format!("/api/v1/admin/catalogue/{name}");
        let since = Instant::now();
        let begun = self.ask(Method::POST, &format!("{path}/build"), Some(json!({ "force": force }))).await?;
        if begun["build"]["state"] == "ready" {
            printer::line(format_args!("template {name} is built already ({})", text(&begun["build"]["id"])));
            return Ok(());
        }
        let mut offset = 0;
        loop {
            let now = self.ask(Method::GET, &format!("{path}?log_offset={offset}"), None).await?;
            let build = &now["build"];
            let lines = build["log"].as_array().map(Vec::as_slice).unwrap_or_default();
            for line in lines {
                printer::line(text(line));
            }
            offset += lines.len();
            match (build["state"].as_str().unwrap_or_default(), lines.is_empty()) {
                ("ready", true) => {
                    let took = since.elapsed().as_secs();
                    printer::line(format_args!("built template {name} ({}) in {took} s", text(&build["id"])));
                    return Ok(());
                }
                ("error", true) => {
                    let step =
                        build["step"].as_str().map_or(String::new(), |step| format!(" at step {step}"));
                    let why = text(&build["failure"]);
                    return Err(printer::hint(
                        format!("template {name} could not be built{step}: {why}"),
                        "correct the cause and run this again: finished steps are kept",
                    ));
                }
                ("ready" | "error", false) => {}
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let address =
            Address::parse(&self.url).with_context(|| format!("the server's URL `{}`", self.url))?;
        let body = body.map_or(Bytes::new(), |body| body.to_string().into());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, address.host_header())
            .header(header::CONTENT_TYPE, "application/json")
            .header("x-api-key", &self.key)
            .body(Full::new(body))?;
        let read = Read::Whole { most: LARGEST_ANSWER };
        let answer = self.client.send(&address, &anywhere, request, read, PATIENCE).await;
        let answer = answer.map_err(|error: Failure| {
            printer::hint(
                format!("the server at {} does not answer: {error}", self.url),
                "templates of the catalogue are built by a running server: start it with `coffer up`",
            )
        })?;
        let status = answer.status();
        let parsed: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        if status.is_success() {
            return Ok(parsed);
        }
        Err(refused(status, &parsed))
    }
}

fn refused(status: StatusCode, answer: &Value) -> anyhow::Error {
    let error = if answer["error"].is_object() { &answer["error"] } else { answer };
    let message =
        error["message"].as_str().map_or_else(|| format!("the server answered {status}"), String::from);
    match error["hint"].as_str() {
        Some(hint) => printer::hint(message, hint.to_string()),
        None => anyhow::anyhow!(message),
    }
}

/// A text of the server without what a terminal would act on.
fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_default()
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}
