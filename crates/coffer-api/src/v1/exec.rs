//! Runs commands.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response, Sse, sse};
use bytes::Bytes;
use coffer_core::{ExecutionId, Millis};
use coffer_store::{ExecutionRow, ExecutionState, Idempotency, TakenKey};
use coffer_wire::agentd::OutputStream;
use coffer_wire::envd::process::Signal;
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::sync::mpsc;

use super::inside::{self, guest};
use crate::app::App;
use crate::auth::{Id, Named, NamedId, Read, Write};
use crate::body::Checked;
use crate::check;
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::exec::{NewCommand, Process, Program, Ran, Running, SignalQuery, WatchQuery};
use coffer_api_types::{ErrorShape, Page};
use coffer_core::Code;
use coffer_core::clock::rfc3339;
use coffer_fleet::Fleet;
use coffer_fleet::exec::{self, Captured, End, ExecError, Run, Step};
use coffer_fleet::output::Kind;

const USUAL_TIMEOUT_S: i64 = 300;
const LONGEST_TIMEOUT_S: i64 = 24 * 3600;
/// Per stream, in an answer.
const USUAL_OUTPUT: i64 = 1024 * 1024;
const MOST_OUTPUT: i64 = 8 * 1024 * 1024;
const MOST_WORDS: usize = 10_000;
const LONGEST_PATH: usize = 4096;
const HEARTBEAT: Duration = Duration::from_secs(15);

fn words(program: &Program) -> Vec<String> {
    match program {
        Program::Line(line) => ["/bin/bash", "-l", "-c", line].map(str::to_string).to_vec(),
        Program::Words(words) => words.clone(),
    }
}

/// The command on one line, for people.
fn on_one_line(program: &Program) -> String {
    match program {
        Program::Line(line) => line.clone(),
        Program::Words(words) => words.join(" "),
    }
}

/// A checked command.
struct Order {
    command: exec::Command,
    /// Whether to answer as soon as it runs.
    background: bool,
}

fn checked(new: NewCommand) -> Result<Order, ApiError> {
    let words = words(&new.command);
    if words.first().is_none_or(String::is_empty) {
        return Err(ApiError::invalid("command", "must name a program"));
    }
    if words.len() > MOST_WORDS {
        return Err(ApiError::invalid("command", format!("may have at most {MOST_WORDS} words")));
    }
    let texts = words.iter().chain(&new.cwd).chain(&new.user);
    if texts.into_iter().any(|text| text.contains('\0')) {
        return Err(ApiError::invalid("command, cwd and user", "must not contain NUL"));
    }
    if new.cwd.as_ref().is_some_and(|cwd| cwd.len() > LONGEST_PATH) {
        return Err(ApiError::invalid("cwd", "is too long"));
    }
    check_user(new.user.as_deref())?;
    check::env(&new.env)?;
    let timeout_s = new.timeout_s.or((!new.background).then_some(USUAL_TIMEOUT_S));
    if timeout_s.is_some_and(|timeout| !(1..=LONGEST_TIMEOUT_S).contains(&timeout)) {
        return Err(ApiError::invalid("timeout_s", format!("must be between 1 and {LONGEST_TIMEOUT_S}")));
    }
    let most = new.max_output_bytes.unwrap_or(USUAL_OUTPUT);
    if !(0..=MOST_OUTPUT).contains(&most) {
        let wanted = format!("must be between 0 and {MOST_OUTPUT}");
        return Err(ApiError::invalid("max_output_bytes", wanted));
    }
    let background = new.background;
    let command = exec::Command {
        shown: Some(on_one_line(&new.command)),
        words,
        cwd: new.cwd.filter(|cwd| !cwd.is_empty()),
        env: new.env,
        user: new.user.filter(|user| !user.is_empty()),
        stdin: new.stdin.map(Bytes::from),
        timeout: timeout_s.map(|seconds| Duration::from_secs(seconds.unsigned_abs())),
        most: usize::try_from(most).unwrap_or(0),
    };
    Ok(Order { command, background })
}

/// Checks a user's name, which goes into a header and a query.
pub(super) fn check_user(user: Option<&str>) -> Result<(), ApiError> {
    let fits =
        |user: &str| user.len() <= 64 && !user.contains(|letter: char| letter == ':' || letter.is_control());
    if user.is_none_or(fits) { Ok(()) } else { Err(ApiError::invalid("user", "is not a valid user name")) }
}

/// Runs a command in a sandbox and returns its result.
///
/// With `Accept: text/event-stream` the server streams its output while it runs, as the events `start`,
/// `stdout`, `stderr` and `end`. If the client disconnects, the command keeps running; `GET /executions/{id}`
/// returns its result.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/exec", tag = "executions", request_body = NewCommand,
    params(
        ("id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "the same key and body run one command"),
    ),
    responses(
        (status = 200, body = Ran, description = "it ended or timed out"),
        (status = 202, body = Running, description = "it runs in the background", headers(("Location" = String))),
        (status = 403, body = ErrorShape, description = "also `command_refused`: the project's policy forbids it"),
        (status = 409, body = ErrorShape, description = "the sandbox does not run")
    )
)]
pub(super) async fn exec(
    State(app): State<Arc<App>>,
    named: NamedId<Write>,
    headers: HeaderMap,
    Checked(command): Checked<NewCommand>,
) -> Result<Response, ApiError> {
    let scope = named.caller.scope;
    let record = app.fleet.find(&scope, named.id).ok_or_else(|| ApiError::no_sandbox(&named.text))?;
    let key = headers.get("idempotency-key").map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
    let idempotency = key.map(|key| check::idempotency(key, &named.caller.actor(), &command)).transpose()?;
    let order = checked(command)?;
    let failed = |error: ExecError| ApiError::exec(error, &named.text);
    let guest = app.exec.admit(&record, &order.command).await.map_err(failed)?;
    let id = ExecutionId::generate();
    if let Some((key, fingerprint)) = &idempotency {
        let idempotency = Idempotency { key, fingerprint };
        let taken = app.store.take_execution_key(&scope, record.id, idempotency, id).await;
        match taken.map_err(ApiError::store)? {
            TakenKey::New => {}
            TakenKey::Earlier(first) => return again(&app, &named, first, &order).await,
            TakenKey::UsedDifferently => {
                return Err(ApiError::of(
                    Code::IdempotencyKeyReused,
                    "this Idempotency-Key was used for a different request",
                ));
            }
        }
    }
    let Order { command, background } = order;
    let most = command.most;
    let begun = app.exec.start(&record, guest, id, command, Some(named.caller.key_id)).await;
    if begun.is_err()
        && let Some((key, _)) = &idempotency
        && let Err(error) = app.store.release_execution_key(&scope, key, id).await
    {
        tracing::warn!("could not release an idempotency key: {error}");
    }
    let run = begun.map_err(failed)?;
    if background {
        return Ok(running(id, run.pid, run.started_ms));
    }
    let wants_stream = headers.get_all(header::ACCEPT).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("text/event-stream"))
    });
    if wants_stream {
        let told = Sse::new(tell(&app.fleet, run))
            .keep_alive(sse::KeepAlive::new().interval(HEARTBEAT).text("alive"));
        return Ok(told.into_response());
    }
    let (run, end, stdout, stderr) = run.wait(most).await.map_err(failed)?;
    Ok(Json(ran(&run, &end, &stdout, &stderr)).into_response())
}

fn running(id: ExecutionId, pid: u32, started_ms: Millis) -> Response {
    let place = HeaderValue::try_from(format!("/api/v1/executions/{id}")).expect("letters and digits");
    let body = Running { execution_id: id.to_string(), pid, started_at: rfc3339(started_ms) };
    (StatusCode::ACCEPTED, [(header::LOCATION, place)], Json(body)).into_response()
}

/// The answer for a command that ended.
fn ran(run: &Run, end: &End, stdout: &Captured, stderr: &Captured) -> Ran {
    let duration_ms = i64::try_from(run.started.elapsed().as_millis()).unwrap_or(i64::MAX);
    Ran {
        execution_id: run.id.to_string(),
        pid: Some(run.pid),
        exit_code: match end {
            End::Exited(end) => Some(i64::from(end.exit_code)),
            End::TimedOut => None,
        },
        timed_out: matches!(end, End::TimedOut),
        stdout: stdout.text(),
        stderr: stderr.text(),
        stdout_truncated: stdout.is_cut(),
        stderr_truncated: stderr.is_cut(),
        stdout_bytes: stdout.total,
        stderr_bytes: stderr.total,
        started_at: rfc3339(run.started_ms),
        ended_at: rfc3339(run.started_ms + duration_ms),
        duration_ms,
    }
}

/// Streams the output as it arrives. A slow reader delays only the command's own output.
fn tell(fleet: &Fleet, mut run: Run) -> impl Stream<Item = Result<sse::Event, Infallible>> + use<> {
    let (events, told) = mpsc::channel(4);
    fleet.spawn_step(async move {
        let json = |name: &str, value: &serde_json::Value| {
            Ok::<_, Infallible>(sse::Event::default().event(name).data(value.to_string()))
        };
        let begun = serde_json::json!({"execution_id": run.id.to_string(), "pid": run.pid});
        if events.send(json("start", &begun)).await.is_err() {
            return;
        }
        let (mut stdout, mut stderr) = (Captured::default(), Captured::default());
        let mut texts = (Text::default(), Text::default());
        loop {
            let step = tokio::select! {
                // The client hung up, or the server stops.
                () = events.closed() => return,
                step = run.step() => step,
            };
            let told = match step {
                Ok(Step::Stdout(data)) => {
                    stdout.add(&data, 0);
                    json("stdout", &serde_json::json!({"data": texts.0.next(&data)}))
                }
                Ok(Step::Stderr(data)) => {
                    stderr.add(&data, 0);
                    json("stderr", &serde_json::json!({"data": texts.1.next(&data)}))
                }
                Ok(Step::Nothing) => continue,
                Ok(Step::End(end)) => {
                    let ran = ran(&run, &end, &stdout, &stderr);
                    let end = serde_json::json!({
                        "execution_id": ran.execution_id, "exit_code": ran.exit_code,
                        "timed_out": ran.timed_out, "stdout_bytes": ran.stdout_bytes,
                        "stderr_bytes": ran.stderr_bytes, "duration_ms": ran.duration_ms,
                    });
                    let _gone = events.send(json("end", &end)).await;
                    return;
                }
                Err(error) => {
                    let why = serde_json::json!({"message": error.to_string()});
                    let _gone = events.send(json("error", &why)).await;
                    return;
                }
            };
            if events.send(told).await.is_err() {
                return;
            }
        }
    });
    futures_util::stream::unfold(told, async |mut told| Some((told.recv().await?, told)))
}

/// Decodes bytes to text: a character may arrive in two pieces.
#[derive(Debug, Default)]
struct Text {
    held: Vec<u8>,
}

impl Text {
    fn next(&mut self, data: &[u8]) -> String {
        self.held.extend_from_slice(data);
        let whole = match std::str::from_utf8(&self.held) {
            Ok(_) => self.held.len(),
            // Invalid bytes are replaced; only an incomplete character at the end is held back.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.held.len() - unfinished(&self.held),
        };
        let rest = self.held.split_off(whole);
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held = rest;
        text
    }
}

/// How many bytes at the end may be the start of a character.
fn unfinished(bytes: &[u8]) -> usize {
    (1..=3.min(bytes.len()))
        .find(|&length| {
            let tail = &bytes[bytes.len() - length..];
            std::str::from_utf8(tail)
                .is_err_and(|error| error.error_len().is_none() && error.valid_up_to() == 0)
        })
        .unwrap_or(0)
}

/// The result of the first request with an idempotency key, from the record.
async fn again(
    app: &App,
    named: &NamedId<Write>,
    id: ExecutionId,
    order: &Order,
) -> Result<Response, ApiError> {
    let scope = &named.caller.scope;
    let under_way = || {
        ApiError::conflict("the first request with this Idempotency-Key is still in progress")
            .hint(format!("GET /api/v1/executions/{id} has its state"))
            .retry_after(1)
    };
    let row = app.store.execution(scope, id).await.map_err(ApiError::store)?.ok_or_else(under_way)?;
    let pid = row.process.map(|process| process.pid);
    match (row.state, order.background, pid) {
        (_, true, Some(pid)) => return Ok(running(id, pid, row.started_ms)),
        (ExecutionState::Running, ..) | (_, true, None) => return Err(under_way()),
        (ExecutionState::Exited | ExecutionState::Failed | ExecutionState::Lost, false, _) => {}
    }
    let (stdout, stderr) = kept(app, named, &row, order.command.most).await?;
    let ended_ms = row.ended_ms.unwrap_or(row.started_ms);
    let duration_ms = ended_ms - row.started_ms;
    let cut = |kept: &Captured, total: i64| kept.bytes.len() < usize::try_from(total).unwrap_or(0);
    // The record says how it was killed, but not why.
    let timed_out = order
        .command
        .timeout
        .is_some_and(|timeout| i128::from(duration_ms) >= timeout.as_millis().cast_signed());
    let ran = Ran {
        execution_id: id.to_string(),
        pid,
        exit_code: row.exit_code.filter(|_| !timed_out),
        timed_out,
        stdout: stdout.text(),
        stderr: stderr.text(),
        stdout_truncated: stdout.is_cut() || row.truncated && cut(&stdout, row.main.read),
        stderr_truncated: stderr.is_cut() || row.truncated && cut(&stderr, row.error.read),
        stdout_bytes: row.main.read.unsigned_abs(),
        stderr_bytes: row.error.read.unsigned_abs(),
        started_at: rfc3339(row.started_ms),
        ended_at: rfc3339(ended_ms),
        duration_ms,
    };
    Ok(Json(ran).into_response())
}

/// Both streams of an execution, from the stored output.
async fn kept(
    app: &App,
    named: &NamedId<Write>,
    row: &ExecutionRow,
    most: usize,
) -> Result<(Captured, Captured), ApiError> {
    let (mut stdout, mut stderr) = (Captured::default(), Captured::default());
    let Some((first, last)) = row.positions else { return Ok((stdout, stderr)) };
    let mut from = first;
    while from <= last {
        let page = app.output.read(&named.caller.scope, row.sandbox, from, 1 << 20).await;
        let page = page.map_err(ApiError::store)?;
        for record in page.records.iter().filter(|record| record.execution == row.id) {
            match record.kind {
                Kind::Output(OutputStream::Stderr) => stderr.add(&record.data, most),
                Kind::Output(OutputStream::Stdout | OutputStream::Pty) => stdout.add(&record.data, most),
                Kind::Started | Kind::Ended | Kind::Gap(_) | Kind::Truncated | Kind::Code | Kind::Shown => {}
            }
        }
        if page.at_end || page.next <= from {
            break;
        }
        from = page.next;
    }
    Ok((stdout, stderr))
}

/// Lists the running processes that were started through an API.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/processes", tag = "executions",
    params(("id" = String, Path), WatchQuery),
    responses((status = 200, body = Page<Process>), (status = 409, body = ErrorShape))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    named: Named<Read>,
    Query(watch): Query<WatchQuery>,
) -> Result<Json<Page<Process>>, ApiError> {
    let guest = inside::guest_for(&app, &named.record, &named.id, &watch).await?;
    let _room = app.listings.take(named.record.project).await.map_err(ApiError::busy)?;
    let listed = exec::processes(&guest).await.map_err(inside::refusal)?;
    let shown = listed.processes.into_iter().map(|process| {
        let config = process.config.unwrap_or_default();
        Process {
            pid: process.pid,
            program: config.cmd,
            arguments: config.args,
            cwd: config.cwd,
            tag: process.tag,
        }
    });
    Ok(Json(Page::new(shown.collect(), None)))
}

/// Sends a signal to a process and to everything in its group.
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/processes/{pid}", tag = "executions",
    params(("id" = String, Path), ("pid" = u32, Path), SignalQuery),
    responses((status = 204), (status = 409, body = ErrorShape))
)]
pub(super) async fn kill(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Id(pid): Id<u32>,
    Query(query): Query<SignalQuery>,
) -> Result<StatusCode, ApiError> {
    let signal = match query.signal.map(|name| name.to_ascii_uppercase()).as_deref() {
        None | Some("KILL" | "SIGKILL" | "9") => Signal::Sigkill,
        Some("TERM" | "SIGTERM" | "15") => Signal::Sigterm,
        Some(_) => return Err(ApiError::invalid("signal", "must be KILL or TERM")),
    };
    let guest = guest(&app, &named.record, &named.id).await?;
    exec::end(&guest, pid, signal).await.map_err(inside::refusal)?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_in_two_pieces_come_out_whole() {
        let bytes = "aé€😀\u{fffd}b".as_bytes();
        for size in 1..bytes.len() {
            let mut text = Text::default();
            let told: String = bytes.chunks(size).map(|piece| text.next(piece)).collect();
            assert_eq!(told.as_bytes(), bytes, "{size}");
        }
        let mut text = Text::default();
        assert_eq!(text.next(b"\xff\xfea\xe2\x82") + &text.next(b"\xac"), "\u{fffd}\u{fffd}a€");
    }
}
