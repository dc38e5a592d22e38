//! `create`, `ls`, `show`, `rm`, `pause`, `resume`, `snapshot`, `fork`.

use clap::{Args, Subcommand};
use coffer_api_types::forks::NewFork;
use coffer_api_types::sandboxes::{AtTimeout, NewSandbox, PauseBody, ResumeBody, Sandbox, SandboxQuery};
use coffer_api_types::snapshots::{NewSnapshot, RollbackBody, Snapshot, SnapshotQuery};
use coffer_api_types::volumes::NewMount;
use coffer_core::{SandboxId, SnapshotId};

use crate::context::{Context, pick};
use crate::failure::{FAILED, Failure, Outcome};
use crate::pairs;
use crate::printer;

/// The name of a sandbox is this pair of its metadata.
const NAME: &str = "name";
const LIVE: &str = "creating,running,paused";

/// The id of the sandbox that `text` names. Ended sandboxes are only found by their whole id.
pub(crate) async fn resolve(context: &Context, text: &str) -> Result<String, Failure> {
    if text.parse::<SandboxId>().is_ok() {
        return Ok(text.to_string());
    }
    let mut query = SandboxQuery { state: vec![LIVE.into()], ..Default::default() };
    query.metadata = vec![format!("{NAME}={text}")];
    let mut live = context.client.sandboxes(&query).all().await?;
    if live.is_empty() {
        // Not a name: the beginning of an id can be any sandbox's.
        query.metadata.clear();
        live = context.client.sandboxes(&query).all().await?;
    }
    let name = |sandbox: &Sandbox| sandbox.metadata.get(NAME).cloned();
    let names: Vec<(String, Option<String>)> = live.iter().map(|one| (one.id.clone(), name(one))).collect();
    let found = pick(&names, "sandbox", "ls", text, |one| one.0.as_str(), |one| one.1.as_deref())?;
    Ok(found.0.clone())
}

/// What a new sandbox is like; for `create` and `run`.
#[derive(Debug, Args)]
pub(crate) struct Shape {
    /// A name for it, to use instead of its id
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A variable for every process in it; NAME alone takes its value from here. May be repeated
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// A variable with the value of a secret of the project, by the secret's name. May be repeated
    #[arg(long, value_name = "NAME[=SECRET]")]
    secret: Vec<String>,
    /// A pair of metadata. May be repeated
    #[arg(short, long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// How long it lives, such as 90s, 30m or 2h
    #[arg(long, value_name = "DURATION", value_parser = pairs::seconds)]
    lifetime: Option<i64>,
    /// What happens then
    #[arg(long, value_name = "ACTION", value_parser = ["kill", "pause", "pause-files-only"])]
    on_timeout: Option<String>,
    /// Processors
    #[arg(long, value_name = "COUNT")]
    cpus: Option<u32>,
    /// Memory, such as 512MiB or 4GiB
    #[arg(long, value_name = "SIZE", value_parser = pairs::mebibytes)]
    memory: Option<u64>,
    /// Disk, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = pairs::mebibytes)]
    disk: Option<u64>,
    /// What it may reach: none, web (ports 80 and 443) or public
    #[arg(long, value_name = "POLICY", value_parser = ["none", "web", "public"])]
    network: Option<String>,
    /// A volume to mount, `:ro` for read-only. May be repeated
    #[arg(long, value_name = "NAME:PATH[:ro]")]
    volume: Vec<String>,
}

impl Shape {
    pub(crate) fn new_sandbox(&self, template: Option<&str>) -> Result<NewSandbox, Failure> {
        let mut metadata = pairs::metadata(&self.metadata)?;
        if let Some(name) = &self.name {
            metadata.insert(NAME.into(), name.clone());
        }
        let network = self.network.as_ref().map(|base| serde_json::json!({"base": base}));
        let network = network.map(serde_json::from_value).transpose();
        Ok(NewSandbox {
            template: template.map(str::to_string),
            metadata,
            env: pairs::variables(&self.env)?,
            secrets: pairs::secrets(&self.secret)?,
            timeout_s: self.lifetime,
            on_timeout: self.on_timeout.as_deref().map(|action| match action {
                "pause" => AtTimeout::Pause,
                "pause-files-only" => AtTimeout::PauseFilesOnly,
                _ => AtTimeout::Kill,
            }),
            cpu_count: self.cpus,
            memory_mib: self.memory,
            disk_mib: self.disk,
            network: network.map_err(|error| Failure::usage(error.to_string()))?,
            volumes: self.volume.iter().map(|text| mount(text)).collect::<Result<_, _>>()?,
            ..NewSandbox::default()
        })
    }
}

fn mount(text: &str) -> Result<NewMount, Failure> {
    let mut parts = text.split(':');
    let (name, path, mode) = (parts.next(), parts.next(), parts.next());
    match (name, path, mode, parts.next()) {
        (Some(name), Some(path), None | Some("ro" | "rw"), None)
            if !name.is_empty() && path.starts_with('/') =>
        {
            Ok(NewMount { name: name.into(), path: path.into(), read_only: mode == Some("ro") })
        }
        _ => Err(Failure::usage(format!("'{text}' is not NAME:/PATH or NAME:/PATH:ro"))),
    }
}

/// Creates a sandbox; a lost answer is asked for again without creating a second one.
pub(crate) async fn make(context: &Context, new: &NewSandbox) -> Result<Sandbox, Failure> {
    let key = uuid::Uuid::new_v4().to_string();
    let mut tries = 3;
    loop {
        match context.client.create_sandbox(new, Some(&key)).await {
            Err(error) if tries > 1 && matches!(error, coffer_client::Error::BrokenOff(_)) => tries -= 1,
            answer => return Ok(answer?),
        }
    }
}

/// Create a sandbox and print its id
#[derive(Debug, Args)]
pub struct Create {
    /// The template or snapshot to start from [default: base]
    template: Option<String>,
    #[command(flatten)]
    shape: Shape,
}

impl Create {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let new = self.shape.new_sandbox(self.template.as_deref())?;
        let sandbox = make(context, &new).await?;
        context.printer.done(&sandbox.id, &sandbox)?;
        Ok(0)
    }
}

/// List sandboxes
#[derive(Debug, Args)]
pub struct List {
    /// Also those that have ended
    #[arg(short, long)]
    all: bool,
    /// Only in one of these states, joined by commas
    #[arg(long, value_name = "STATES", conflicts_with = "all")]
    state: Option<String>,
    /// Only of this template
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Only with this pair of metadata. May be repeated
    #[arg(short, long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// At most this many, the newest first
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000)]
    limit: usize,
    /// Only ids, one on each line
    #[arg(short, long)]
    quiet: bool,
}

impl List {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let state = match (self.all, self.state) {
            (true, _) => vec![],
            (false, Some(states)) => vec![states],
            (false, None) => vec![LIVE.to_string()],
        };
        pairs::metadata(&self.metadata)?;
        let (template, metadata) = (self.template, self.metadata);
        let query = SandboxQuery { state, template, metadata, ..Default::default() };
        let found = context.client.sandboxes(&query).take(self.limit).await?;
        if self.quiet {
            found.iter().for_each(|sandbox| printer::print(&format!("{}\n", sandbox.id)));
            return Ok(0);
        }
        context.printer.list(
            &found,
            &[
                "id",
                "metadata.name",
                "state",
                "template",
                "cpu_count",
                "memory_mib",
                "created_at",
                "deadline",
            ],
        )?;
        Ok(0)
    }
}

/// Show a sandbox
#[derive(Debug, Args)]
pub struct Show {
    /// The sandbox: its id, the beginning of it, or its name
    sandbox: String,
}

impl Show {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let id = resolve(context, &self.sandbox).await?;
        context.printer.show(&context.client.sandbox(&id).await?)?;
        Ok(0)
    }
}

/// Destroy sandboxes
#[derive(Debug, Args)]
pub struct Remove {
    /// The sandboxes
    #[arg(required_unless_present = "all", value_name = "SANDBOX")]
    sandboxes: Vec<String>,
    /// All that are live in the project
    #[arg(short, long, conflicts_with = "sandboxes")]
    all: bool,
}

impl Remove {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let mut names = self.sandboxes;
        if self.all {
            let query = SandboxQuery { state: vec![LIVE.into()], ..Default::default() };
            names =
                context.client.sandboxes(&query).all().await?.into_iter().map(|sandbox| sandbox.id).collect();
        }
        let mut exit = 0;
        for name in names {
            let removed = async {
                let id = resolve(context, &name).await?;
                context.client.destroy_sandbox(&id).await?;
                Ok::<_, Failure>(id)
            };
            match removed.await {
                Ok(id) => printer::print(&format!("{id}\n")),
                Err(failure) => {
                    printer::failure(&failure);
                    exit = if exit == 0 || exit == failure.exit { failure.exit } else { FAILED };
                }
            }
        }
        Ok(exit)
    }
}

/// Pause a sandbox: its memory and files stay, it uses no processor
#[derive(Debug, Args)]
pub struct Pause {
    /// The sandbox
    sandbox: String,
    /// Keep only files; its processes end
    #[arg(long)]
    files_only: bool,
}

impl Pause {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let id = resolve(context, &self.sandbox).await?;
        let body = PauseBody { memory: self.files_only.then_some(false) };
        let sandbox = context.client.pause_sandbox(&id, &body).await?;
        context
            .printer
            .done(&format!("paused {id} ({})", sandbox.reason.as_deref().unwrap_or("paused")), &sandbox)?;
        Ok(0)
    }
}

/// Resume a paused sandbox
#[derive(Debug, Args)]
pub struct Resume {
    /// The sandbox
    sandbox: String,
    /// How long it lives from now on, such as 30m
    #[arg(long, value_name = "DURATION", value_parser = pairs::seconds)]
    lifetime: Option<i64>,
    /// Start it from its files and discard its memory
    #[arg(long)]
    cold: bool,
}

impl Resume {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let id = resolve(context, &self.sandbox).await?;
        let body = ResumeBody { timeout_s: self.lifetime, memory: self.cold.then_some(false) };
        let sandbox = context.client.resume_sandbox(&id, &body).await?;
        context.printer.done(&format!("resumed {id}"), &sandbox)?;
        Ok(0)
    }
}

/// Fork a running sandbox: new sandboxes from this moment of it
#[derive(Debug, Args)]
pub struct Fork {
    /// The sandbox
    sandbox: String,
    /// How many
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1)]
    count: u32,
    /// How long they live, such as 30m
    #[arg(long, value_name = "DURATION", value_parser = pairs::seconds)]
    lifetime: Option<i64>,
    /// Fork only files, not processes
    #[arg(long)]
    files_only: bool,
    /// A pair of metadata for the forks. May be repeated
    #[arg(short, long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// A variable with the value of a secret of the project. May be repeated
    #[arg(long, value_name = "NAME[=SECRET]")]
    secret: Vec<String>,
    /// Grant them every secret of the source
    #[arg(long)]
    inherit_secrets: bool,
}

impl Fork {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let id = resolve(context, &self.sandbox).await?;
        let new = NewFork {
            count: Some(self.count),
            timeout_s: self.lifetime,
            memory: self.files_only.then_some(false),
            metadata: pairs::metadata(&self.metadata)?,
            secrets: pairs::secrets(&self.secret)?,
            inherit_secrets: self.inherit_secrets,
            ..NewFork::default()
        };
        let fork = context.client.fork(&id, &new, Some(&uuid::Uuid::new_v4().to_string())).await?;
        if !context.printer.is_table() {
            context.printer.show(&fork)?;
        }
        let mut exit = 0;
        for child in &fork.children {
            if let Some(error) = &child.error {
                printer::failure(&Failure {
                    message: error.message.clone(),
                    hint: error.hint.clone(),
                    exit: FAILED,
                });
                exit = FAILED;
            } else if let Some(sandbox) = &child.sandbox
                && context.printer.is_table()
            {
                printer::print(&format!("{}\n", sandbox.id));
            }
        }
        if let Some(note) = &fork.note {
            printer::note(&format!("note: {note}"));
        }
        Ok(exit)
    }
}

/// Create, list and delete snapshots, and roll a sandbox back to one
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Snapshots {
    #[command(subcommand)]
    verb: Option<SnapshotVerb>,
    #[command(flatten)]
    create: Option<CreateSnapshot>,
}

#[derive(Debug, Subcommand)]
enum SnapshotVerb {
    /// Create a snapshot of a sandbox
    Create(CreateSnapshot),
    /// List snapshots
    Ls {
        /// Only of this sandbox
        #[arg(long, value_name = "SANDBOX")]
        sandbox: Option<String>,
    },
    /// Show a snapshot
    Show {
        /// Its id, the beginning of it, or its name
        snapshot: String,
    },
    /// Delete snapshots
    Rm {
        #[arg(required = true, value_name = "SNAPSHOT")]
        snapshots: Vec<String>,
    },
    /// Give a sandbox the files of one of its snapshots
    Rollback { sandbox: String, snapshot: String },
}

#[derive(Debug, Args)]
struct CreateSnapshot {
    /// The sandbox
    sandbox: String,
    /// A name, or name:tag, which `create` takes as a template
    #[arg(long, value_name = "NAME[:TAG]")]
    name: Option<String>,
    /// Keep only files, not processes
    #[arg(long)]
    files_only: bool,
}

async fn snapshot_named(context: &Context, text: &str) -> Result<Snapshot, Failure> {
    if text.parse::<SnapshotId>().is_ok() {
        return Ok(context.client.snapshot(text).await?);
    }
    let all = context.client.snapshots(&SnapshotQuery::default()).all().await?;
    // A name refers to its newest snapshot only, which has the full name.
    let name = |one: &Snapshot| {
        let name = one.full_name.as_ref().and(one.name.as_ref())?;
        Some(if one.tag == "default" { name.clone() } else { format!("{name}:{}", one.tag) })
    };
    let named: Vec<(&Snapshot, Option<String>)> = all.iter().map(|one| (one, name(one))).collect();
    let found =
        pick(&named, "snapshot", "snapshot ls", text, |one| one.0.id.as_str(), |one| one.1.as_deref())?;
    Ok(found.0.clone())
}

impl Snapshots {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let client = &context.client;
        let verb = match (self.verb, self.create) {
            (Some(verb), _) => verb,
            (None, Some(create)) => SnapshotVerb::Create(create),
            (None, None) => return Err(Failure::usage("name a sandbox").hint("`coffer snapshot --help`")),
        };
        match verb {
            SnapshotVerb::Create(create) => {
                let id = resolve(context, &create.sandbox).await?;
                let memory = create.files_only.then_some(false);
                let new = NewSnapshot { name: create.name, memory, inherit_secrets: false };
                let snapshot =
                    client.create_snapshot(&id, &new, Some(&uuid::Uuid::new_v4().to_string())).await?;
                context.printer.done(&snapshot.id, &snapshot)?;
                if let Some(note) = &snapshot.note {
                    printer::note(&format!("note: {note}"));
                }
            }
            SnapshotVerb::Ls { sandbox } => {
                let id = match sandbox {
                    Some(sandbox) => resolve(context, &sandbox).await?.parse().ok(),
                    None => None,
                };
                let all = client.snapshots(&SnapshotQuery { sandbox_id: id, name: None }).all().await?;
                let columns = ["id", "full_name", "sandbox_id", "memory", "files_bytes", "created_at"];
                context.printer.list(&all, &columns)?;
            }
            SnapshotVerb::Show { snapshot } => {
                context.printer.show(&snapshot_named(context, &snapshot).await?)?
            }
            SnapshotVerb::Rm { snapshots } => {
                for text in snapshots {
                    let snapshot = snapshot_named(context, &text).await?;
                    client.delete_snapshot(&snapshot.id).await?;
                    printer::print(&format!("{}\n", snapshot.id));
                }
            }
            SnapshotVerb::Rollback { sandbox, snapshot } => {
                let id = resolve(context, &sandbox).await?;
                let snapshot = snapshot_named(context, &snapshot).await?;
                let snapshot_id =
                    snapshot.id.parse().map_err(|_| Failure::new("the snapshot's id cannot be read"))?;
                let rolled = client
                    .roll_back(&id, &RollbackBody { snapshot_id, memory: None, timeout_s: None })
                    .await?;
                context.printer.done(&format!("rolled {id} back to {}", snapshot.id), &rolled)?;
            }
        }
        Ok(0)
    }
}
