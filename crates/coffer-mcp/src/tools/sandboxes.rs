//! Sandboxes: create, list, snapshot, fork, destroy.

use std::collections::BTreeMap;

use coffer_api_types::forks::NewFork;
use coffer_api_types::sandboxes::{AtTimeout, NewSandbox, Sandbox, SandboxQuery};
use coffer_api_types::snapshots::NewSnapshot;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::bounded;
use crate::tool::{Call, Effect, Failure, Outcome, Tool};

/// A sandbox of a client that vanished ends after this time without use.
const IDLE_S: i64 = 30 * 60;
/// How long a sandbox lives at most, unless the caller asks for another time.
const LIVES_S: i64 = 4 * 3600;
/// What sandboxes of this crate say about their origin.
const MADE_BY: (&str, &str) = ("created_by", "mcp");

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "create_sandbox",
            "Create a sandbox",
            "Create an isolated Linux sandbox and wait until it runs. Returns its sandbox_id, which the other tools take. \
             Without timeout_s it lives four hours, and ends earlier if nobody uses it for 30 minutes.",
            Effect::Adds,
            create,
        ),
        Tool::new(
            "list_sandboxes",
            "List sandboxes",
            "List the sandboxes that this key may see, newest first: running and paused ones, or those in one state.",
            Effect::Reads,
            list,
        ),
        Tool::new(
            "snapshot_sandbox",
            "Take a snapshot",
            "Save a sandbox's files at this moment, with its processes if possible. create_sandbox can start from it.",
            Effect::Adds,
            snapshot,
        ),
        Tool::new(
            "fork_sandbox",
            "Fork a sandbox",
            "Make copies of a running sandbox, files and processes, to try several ways from the same state.",
            Effect::Adds,
            fork,
        ),
        Tool::new(
            "destroy_sandbox",
            "Destroy a sandbox",
            "End a sandbox and delete its files. Snapshots and forks of it stay.",
            Effect::Destroys { again: true },
            destroy,
        ),
    ]
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    /// Template, or name of a snapshot, to start from; `base` by default.
    #[serde(default)]
    template: Option<String>,
    /// Id of a snapshot to start from, instead of a template.
    #[serde(default)]
    snapshot_id: Option<String>,
    /// How long it lives, in seconds, used or not. Without it: four hours, less if nobody uses it for 30 minutes.
    #[serde(default)]
    #[schemars(range(min = 1))]
    timeout_s: Option<u32>,
    /// Environment of every process in it.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Labels, to find it again.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

/// A sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Shown {
    sandbox_id: String,
    /// `creating`, `running`, `paused`, `terminated` or `error`.
    state: String,
    template: String,
    cpu_count: u32,
    memory_mib: u64,
    created_at: String,
    /// When it ends, unless it is extended.
    deadline: String,
    /// It ends after this many seconds without use.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_s: Option<i64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

fn shown(sandbox: Sandbox) -> Shown {
    Shown {
        sandbox_id: sandbox.id,
        state: sandbox.state,
        template: sandbox.template,
        cpu_count: sandbox.cpu_count,
        memory_mib: sandbox.memory_mib,
        created_at: sandbox.created_at,
        deadline: sandbox.deadline,
        idle_s: sandbox.idle_s,
        metadata: sandbox.metadata,
    }
}

async fn create(call: Call, input: Create) -> Result<Outcome<Shown>, Failure> {
    let snapshot_id = match input.snapshot_id {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            Failure::bad_request(
                format!("'{text}' is not the id of a snapshot"),
                "snapshot_sandbox returns snapshot_id",
            )
        })?),
    };
    let mut metadata = input.metadata;
    metadata.entry(MADE_BY.0.into()).or_insert_with(|| MADE_BY.1.into());
    // Activity keeps it alive, not the client's connection: that works across sessions, restarts and both transports.
    let asked = input.timeout_s.map(i64::from);
    let mut new = NewSandbox {
        template: input.template,
        snapshot_id,
        env: input.env,
        metadata,
        timeout_s: Some(asked.unwrap_or(LIVES_S)),
        idle_s: asked.is_none().then_some(IDLE_S),
        on_timeout: Some(AtTimeout::Kill),
        ..NewSandbox::default()
    };
    let mut made = call.client.create_sandbox(&new, None).await;
    if asked.is_none()
        && made.as_ref().is_err_and(|error| matches!(error.code(), Some("invalid" | "bad_request")))
    {
        // The installation allows less than four hours: then its own default.
        new.timeout_s = None;
        made = call.client.create_sandbox(&new, None).await;
    }
    let sandbox = shown(made?);
    let ends = match sandbox.idle_s {
        Some(idle) => {
            format!("ends after {} minutes without use, at the latest {}", idle / 60, sandbox.deadline)
        }
        None => format!("ends {}", sandbox.deadline),
    };
    Ok(Outcome::new(format!("sandbox {} runs ({}); {ends}", sandbox.sandbox_id, sandbox.template), sandbox))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// `running`, `paused`, `terminated` or `error`; running and paused by default.
    #[serde(default)]
    state: Option<String>,
    /// How many, 1 to 200; 50 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    sandboxes: Vec<Shown>,
    /// Whether there are more.
    more: bool,
}

async fn list(call: Call, input: List) -> Result<Outcome<Listed>, Failure> {
    let limit = bounded(input.limit, 50, 200);
    let states = input.state.map_or_else(|| vec!["running".into(), "paused".into()], |state| vec![state]);
    let query = SandboxQuery { state: vec![states.join(",")], ..SandboxQuery::default() };
    let mut found = call.client.sandboxes(&query).take(limit + 1).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let sandboxes: Vec<Shown> = found.into_iter().map(shown).collect();
    let line =
        |one: &Shown| format!("{} {} {} until {}", one.sandbox_id, one.state, one.template, one.deadline);
    let mut text = sandboxes.iter().map(line).collect::<Vec<_>>().join("\n");
    if text.is_empty() {
        text = "no sandboxes".into();
    }
    Ok(Outcome::new(text, Listed { sandboxes, more }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TakeSnapshot {
    /// The sandbox.
    sandbox_id: String,
    /// `name` or `name:tag`, which create_sandbox takes as its template.
    #[serde(default)]
    name: Option<String>,
    /// Whether to save running processes too; true is refused if that is not possible.
    #[serde(default)]
    memory: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Taken {
    snapshot_id: String,
    /// What create_sandbox takes as its template.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Whether it has the processes.
    memory: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

async fn snapshot(call: Call, input: TakeSnapshot) -> Result<Outcome<Taken>, Failure> {
    let new = NewSnapshot { name: input.name, memory: input.memory, inherit_secrets: false };
    let made = call.client.create_snapshot(&input.sandbox_id, &new, None).await?;
    let with = if made.memory { "files and processes" } else { "files" };
    let text = format!("snapshot {} has the {with} of {}", made.id, input.sandbox_id);
    Ok(Outcome::new(
        text,
        Taken { snapshot_id: made.id, name: made.full_name, memory: made.memory, note: made.note },
    ))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MakeForks {
    /// The running sandbox to copy.
    sandbox_id: String,
    /// How many, 1 to 20; 1 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = 20))]
    count: Option<u32>,
    /// How long each lives, in seconds; an hour by default.
    #[serde(default)]
    #[schemars(range(min = 1))]
    timeout_s: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Forked {
    forks: Vec<Shown>,
    /// Why others failed.
    errors: Vec<String>,
    /// Whether they continue the source's processes.
    memory: bool,
}

async fn fork(call: Call, input: MakeForks) -> Result<Outcome<Forked>, Failure> {
    let count = input.count.map(|count| count.clamp(1, 20));
    let metadata = BTreeMap::from([(MADE_BY.0.to_string(), MADE_BY.1.to_string())]);
    let new = NewFork { count, timeout_s: input.timeout_s.map(i64::from), metadata, ..NewFork::default() };
    let made = call.client.fork(&input.sandbox_id, &new, None).await?;
    let (mut forks, mut errors) = (Vec::new(), Vec::new());
    for child in made.children {
        forks.extend(child.sandbox.map(shown));
        errors.extend(child.error.map(|error| format!("{}: {}", error.code, error.message)));
    }
    if forks.is_empty() && !errors.is_empty() {
        let failure = Failure::bad_request(
            errors.join("; "),
            "list_sandboxes shows what runs; destroy what you no longer need",
        );
        return Err(Failure { code: "fork_failed".into(), ..failure });
    }
    let ids: Vec<&str> = forks.iter().map(|fork| fork.sandbox_id.as_str()).collect();
    let mut text = format!("forked {} into {}", input.sandbox_id, ids.join(", "));
    if !errors.is_empty() {
        text.push_str(&format!("; {} failed: {}", errors.len(), errors[0]));
    }
    Ok(Outcome::new(text, Forked { forks, errors, memory: made.memory }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Destroy {
    /// The sandbox.
    sandbox_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Destroyed {
    sandbox_id: String,
    destroyed: bool,
}

async fn destroy(call: Call, input: Destroy) -> Result<Outcome<Destroyed>, Failure> {
    call.client.destroy_sandbox(&input.sandbox_id).await?;
    let text = format!("destroyed sandbox {}", input.sandbox_id);
    Ok(Outcome::new(text, Destroyed { sandbox_id: input.sandbox_id, destroyed: true }))
}
