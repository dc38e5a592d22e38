//! The verbs of `coffer` that are a client of a server: arguments, rendering, exit codes.
//!
//! [`Verb`] has one variant for each; the binary flattens it next to `up`, `config` and `template`. A verb calls
//! [`coffer_client`] and prints: it has no rules of its own. Results go to stdout through [`printer`], everything else to
//! stderr; text of others is escaped ([`escape`]). `docs/cli.md` is the reference, `docs/design/0019-cli.md` the reasons.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod agents;
mod bounds;
mod compete;
mod context;
mod cp;
mod encode;
mod escape;
mod exec;
mod failure;
mod figures;
mod login;
mod open;
mod pairs;
mod ports;
mod printer;
mod profile;
mod project;
mod sandboxes;
mod tasks;
mod templates;
mod terminal;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;

pub use context::{Remote, With};
pub use templates::{DirectoryBuild, TemplateVerb};

use context::Context;
use failure::{Failure, INTERRUPTED, Outcome};

/// What a client can ask of a server.
#[derive(Debug, Subcommand)]
pub enum Verb {
    Run(Box<With<exec::Run>>),
    Create(Box<With<sandboxes::Create>>),
    #[command(visible_alias = "list")]
    Ls(With<sandboxes::List>),
    Show(With<sandboxes::Show>),
    Exec(Box<With<exec::Exec>>),
    #[command(visible_alias = "connect")]
    Sh(With<exec::Sh>),
    Cp(With<cp::Cp>),
    Logs(With<watch::Logs>),
    Events(With<watch::Events>),
    Top(With<watch::Top>),
    Pause(With<sandboxes::Pause>),
    Resume(With<sandboxes::Resume>),
    Snapshot(With<sandboxes::Snapshots>),
    Fork(With<sandboxes::Fork>),
    #[command(visible_alias = "kill")]
    Rm(With<sandboxes::Remove>),
    Ports(With<ports::Ports>),
    Task(With<tasks::Tasks>),
    Compete(Box<With<compete::Compete>>),
    Repo(With<project::Repositories>),
    Agent(With<agents::Agents>),
    Volume(With<project::Volumes>),
    Secret(With<project::Secrets>),
    Key(With<project::Keys>),
    Project(With<project::Projects>),
    Quota(With<bounds::Quotas>),
    Usage(With<bounds::Usage>),
    Budget(With<bounds::Budgets>),
    Webhook(With<bounds::Webhooks>),
    Audit(With<bounds::Audit>),
    Login(With<login::Login>),
    Profile(With<login::ProfileVerbs>),
    Whoami(With<login::WhoAmI>),
    Open(With<open::Open>),
    Completion(open::Completion),
}

/// Runs a verb's future with a context; Ctrl-C ends it.
macro_rules! with_server {
    ($with:expr) => {{
        let With { verb, remote } = $with;
        within(async move { verb.run(&Context::new(&remote)?).await }, Interrupt::Ends)
    }};
}

/// The same for verbs that handle Ctrl-C themselves.
macro_rules! with_server_and_signals {
    ($with:expr) => {{
        let With { verb, remote } = $with;
        within(async move { verb.run(&Context::new(&remote)?).await }, Interrupt::IsTheVerbs)
    }};
}

impl Verb {
    /// Runs it and reports its failure. `command` describes the whole program, for completion.
    pub fn run(self, command: fn() -> clap::Command) -> ExitCode {
        let outcome = match self {
            Self::Run(with) => with_server_and_signals!(*with),
            Self::Exec(with) => with_server_and_signals!(*with),
            Self::Sh(with) => with_server_and_signals!(with),
            Self::Create(with) => with_server!(*with),
            Self::Ls(with) => with_server!(with),
            Self::Show(with) => with_server!(with),
            Self::Cp(with) => with_server!(with),
            Self::Logs(with) => with_server!(with),
            Self::Events(with) => with_server!(with),
            Self::Top(with) => with_server!(with),
            Self::Pause(with) => with_server!(with),
            Self::Resume(with) => with_server!(with),
            Self::Snapshot(with) => with_server!(with),
            Self::Fork(with) => with_server!(with),
            Self::Rm(with) => with_server!(with),
            Self::Whoami(with) => with_server!(with),
            Self::Ports(with) => with_server!(with),
            Self::Task(with) => with_server!(with),
            Self::Compete(with) => with_server_and_signals!(*with),
            Self::Repo(with) => with_server!(with),
            Self::Agent(with) => with_server!(with),
            Self::Volume(with) => with_server!(with),
            Self::Secret(with) => with_server!(with),
            Self::Key(with) => with_server!(with),
            Self::Project(with) => with_server!(with),
            Self::Quota(with) => with_server!(with),
            Self::Usage(with) => with_server!(with),
            Self::Budget(with) => with_server!(with),
            Self::Webhook(with) => with_server!(with),
            Self::Audit(with) => with_server!(with),
            Self::Open(with) => with_server!(with),
            Self::Completion(completion) => completion.run(command()),
            Self::Login(With { verb, remote }) => {
                within(async move { verb.run(&remote).await }, Interrupt::Ends)
            }
            Self::Profile(With { verb, remote }) => verb.run(&remote),
        };
        report(outcome)
    }
}

impl TemplateVerb {
    /// Runs it and reports its failure.
    pub fn run(self) -> ExitCode {
        report(match self {
            Self::Ls(with) => with_server!(with),
            Self::Show(with) => with_server!(with),
            Self::Builds(with) => with_server!(with),
            Self::Rm(with) => with_server!(with),
        })
    }
}

impl DirectoryBuild {
    /// Builds the directory on a server and reports a failure.
    pub fn build(self, directory: &std::path::Path, force: bool) -> ExitCode {
        report(within(self.run(directory, force), Interrupt::IsTheVerbs))
    }
}

fn report(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            printer::failure(&failure);
            ExitCode::from(failure.exit)
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Interrupt {
    Ends,
    IsTheVerbs,
}

fn within(verb: impl Future<Output = Outcome>, interrupt: Interrupt) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format!("could not start: {error}")))?;
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = verb => outcome,
            _ = tokio::signal::ctrl_c(), if interrupt == Interrupt::Ends => Ok(INTERRUPTED),
        }
    });
    // A read of stdin that waits would keep the program alive.
    runtime.shutdown_background();
    outcome
}
