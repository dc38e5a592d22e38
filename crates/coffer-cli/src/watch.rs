//! `logs`, `events`, `top`: what happens.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use coffer_api_types::Event;
use coffer_api_types::events::EventQuery;
use coffer_api_types::executions::ExecutionOutput;
use coffer_api_types::logs::{LogLine, LogQuery};
use coffer_api_types::sandboxes::{SampleQuery, Sandbox, SandboxQuery};

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::{escape, figures, printer, sandboxes};

/// Show the log of a sandbox: output of its commands, and what happened to it
#[derive(Debug, Args)]
pub struct Logs {
    /// The sandbox
    sandbox: String,
    /// Continue with new output as it comes
    #[arg(short, long)]
    follow: bool,
    /// Only the last lines
    #[arg(short = 'n', long, value_name = "COUNT")]
    tail: Option<usize>,
    /// Only lines that contain this text
    #[arg(long, value_name = "TEXT", conflicts_with = "follow")]
    search: Option<String>,
    /// Only lines of this level or above: debug, info, warn, error
    #[arg(long, value_name = "LEVEL", conflicts_with = "follow")]
    level: Option<String>,
    /// Only of these sources, joined by commas: sandbox, process, stdout, stderr, pty
    #[arg(long, value_name = "SOURCES", conflicts_with = "follow")]
    source: Option<String>,
    /// Do not escape control characters on a terminal
    #[arg(long)]
    raw: bool,
}

impl Logs {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let id = sandboxes::resolve(context, &self.sandbox).await?;
        // In a pipe the lines are as the programs wrote them.
        let is_escaped = std::io::stdout().is_terminal() && !self.raw;
        if self.follow {
            return self.continue_for_ever(context, &id, is_escaped).await;
        }
        let query = LogQuery {
            search: self.search,
            level: self.level,
            source: self.source.into_iter().collect(),
            ..LogQuery::default()
        };
        let mut lines = context.client.logs(&id, &query);
        let mut last = std::collections::VecDeque::new();
        while let Some(line) = lines.next().await? {
            last.push_back(line);
            match self.tail {
                Some(most) if last.len() > most => drop(last.pop_front()),
                Some(_) => {}
                None => last.drain(..).try_for_each(|line| show(context, &line, is_escaped))?,
            }
        }
        last.iter().try_for_each(|line| show(context, line, is_escaped))?;
        Ok(0)
    }

    async fn continue_for_ever(&self, context: &Context, id: &str, is_escaped: bool) -> Outcome {
        // With `--tail 0` only what is new.
        let mut stream = context.client.follow_sandbox(id, (self.tail != Some(0)).then_some("0-0"));
        stream.connect().await?;
        loop {
            let message = stream.next().await?;
            if message.event != "output" {
                if ["sandbox.terminated", "sandbox.error"].contains(&message.event.as_str()) {
                    return Ok(0);
                }
                continue;
            }
            let output: ExecutionOutput = parse(&message.data)?;
            if !context.printer.is_table() {
                context.printer.item(&output, String::new)?;
                continue;
            }
            let text = output.piece.text.unwrap_or_default();
            let text = if is_escaped { escape::lines(&text) } else { text };
            if printer::raw(text.as_bytes(), false).is_err() {
                return Ok(0);
            }
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(data: &str) -> Result<T, Failure> {
    serde_json::from_str(data)
        .map_err(|error| Failure::new(format!("could not read a message of the server: {error}")))
}

fn show(context: &Context, line: &LogLine, is_escaped: bool) -> Result<(), Failure> {
    let message = || if is_escaped { escape::line(&line.message) } else { line.message.clone() };
    context.printer.item(line, message)
}

/// Show events of the project
#[derive(Debug, Args)]
pub struct Events {
    /// Continue with new events as they come
    #[arg(short, long)]
    follow: bool,
    /// Only of these kinds, such as sandbox.*; joined by commas
    #[arg(long, value_name = "KINDS")]
    kind: Option<String>,
    /// Only about this: the id of a sandbox, a task or another thing
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Begin after this number; with --follow now by default
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    /// At most this many, if not followed
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000)]
    limit: usize,
}

impl Events {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let query = EventQuery { subject: self.subject, kind: self.kind.into_iter().collect() };
        if !self.follow && self.after.is_none() {
            for event in context.client.events(&query).take(self.limit).await? {
                context.printer.item(&event, || row(&event))?;
            }
            return Ok(0);
        }
        let mut stream = context.client.follow_events(&query, self.after);
        stream.connect().await?;
        let mut shown = 0;
        loop {
            // Without --follow, what was recorded comes at once.
            let message = match self.follow {
                true => stream.next().await?,
                false => match tokio::time::timeout(Duration::from_secs(1), stream.next()).await {
                    Ok(message) => message?,
                    Err(_) => return Ok(0),
                },
            };
            if let Ok(event) = serde_json::from_str::<Event>(&message.data) {
                context.printer.item(&event, || row(&event))?;
                shown += 1;
                if !self.follow && shown >= self.limit {
                    return Ok(0);
                }
            }
        }
    }
}

fn row(event: &Event) -> String {
    let safe = escape::line;
    let payload = figures::text(&event.payload);
    format!(
        "{:>6}  {}  {}  {}  {payload}",
        event.sequence,
        safe(&event.at),
        safe(&event.kind),
        safe(&event.subject)
    )
}

/// Show what running sandboxes use
#[derive(Debug, Args)]
pub struct Top {
    /// Only these sandboxes
    sandboxes: Vec<String>,
    /// Once; the default if stdout is no terminal
    #[arg(long)]
    once: bool,
    /// Seconds between two pictures
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..3600))]
    interval: u64,
}

impl Top {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let mut only = Vec::new();
        for name in &self.sandboxes {
            only.push(sandboxes::resolve(context, name).await?);
        }
        let lives = std::io::stdout().is_terminal() && context.printer.is_table() && !self.once;
        loop {
            let rows = measure(context, &only).await?;
            let columns = ["id", "name", "state", "cpu", "memory", "disk", "last_activity_at"];
            if lives {
                printer::print("\u{1b}[H\u{1b}[2J");
            }
            context.printer.list(&rows, &columns)?;
            if !lives {
                return Ok(0);
            }
            tokio::time::sleep(Duration::from_secs(self.interval)).await;
        }
    }
}

async fn measure(context: &Context, only: &[String]) -> Result<Vec<serde_json::Value>, Failure> {
    let query = SandboxQuery { state: vec!["running".into()], ..Default::default() };
    let mut running: Vec<Sandbox> = context.client.sandboxes(&query).all().await?;
    running.retain(|sandbox| only.is_empty() || only.contains(&sandbox.id));
    let mut rows = Vec::new();
    for sandbox in running {
        // One that ends meanwhile has no samples.
        let samples =
            context.client.sandbox_metrics(&sandbox.id, &SampleQuery::default()).await.unwrap_or_default();
        let newest = samples.last();
        let of = |used: u64, all: u64| format!("{} / {}", figures::size(used), figures::size(all));
        rows.push(serde_json::json!({
            "id": sandbox.id,
            "name": sandbox.metadata.get("name"),
            "state": sandbox.state,
            "cpu": newest.map(|sample| format!("{:.0}% of {}", sample.cpu_used_pct, sample.cpu_count)),
            "memory": newest.map(|sample| of(sample.memory_used_bytes, sample.memory_total_bytes)),
            "disk": newest.map(|sample| of(sample.disk_used_bytes, sample.disk_total_bytes)),
            "last_activity_at": sandbox.last_activity_at,
            "sample": newest,
        }));
    }
    Ok(rows)
}
