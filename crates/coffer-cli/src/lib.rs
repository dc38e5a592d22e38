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

mod agent_setup;
mod agents;
mod ask;
mod bounds;
mod code;
mod compete;
mod context;
mod cp;
mod encode;
mod escape;
mod exec;
mod failure;
mod figures;
mod fix;
mod forge;
mod git;
mod login;
mod open;
mod pairs;
mod ports;
mod printer;
mod profile;
mod project;
mod repos;
mod sandboxes;
mod schedules;
mod search;
mod ssh;
mod tasks;
mod templates;
mod terminal;
mod transcript;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;

pub use context::{Chosen, Remote, With};
pub use failure::Failure;
pub use templates::{DirectoryBuild, TemplateVerb};

use context::Context;
use failure::{INTERRUPTED, Outcome};

/// What a client can ask of a server.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Create a sandbox, run a command in it, and destroy it
    Run(Box<With<exec::Run>>),
    /// Create a sandbox and print its id
    Create(Box<With<sandboxes::Create>>),
    /// List sandboxes
    #[command(visible_alias = "list")]
    Ls(With<sandboxes::List>),
    /// Show a sandbox
    Show(With<sandboxes::Show>),
    /// Run a command in a sandbox and exit with its exit code
    ///
    /// One word is a line for the shell: `coffer exec box 'make test | tail'`. Several are a program and its arguments.
    Exec(Box<With<exec::Exec>>),
    /// Run code in a sandbox's code interpreter
    ///
    /// One word is a file (`-` for stdin) that runs in a new sandbox; with -c or --notebook it is the sandbox. Two are a
    /// sandbox and a file. State stays in the sandbox from call to call. An error in the code is exit code 1.
    Code(Box<With<code::Code>>),
    /// Open a shell in a sandbox
    #[command(visible_alias = "connect")]
    Sh(With<exec::Sh>),
    /// Open a shell or run a command in a sandbox with the OpenSSH client
    ///
    /// What follows the sandbox goes to `ssh`: options such as `-L 8080:localhost:8080`, or a command. A paused sandbox is
    /// resumed. `coffer ssh-config --write` lets every other program that uses SSH do the same.
    Ssh(With<ssh::Ssh>),
    /// Print or write the OpenSSH configuration for sandboxes, for editors, rsync, sftp and git
    ///
    /// With --write, `ssh BOX.coffer` works wherever OpenSSH does: VS Code, JetBrains, Zed, rsync, scp, sftp, sshfs, git.
    SshConfig(With<ssh::SshConfig>),
    /// Speaks SSH on stdin and stdout (started by `ssh`)
    #[command(hide = true)]
    SshProxy(With<ssh::SshProxy>),
    /// Copy files and directories into a sandbox, or out of it
    ///
    /// One of the two is SANDBOX:PATH, where a relative path is below the user's home; `-` is stdin or stdout.
    Cp(With<cp::Cp>),
    /// Show the log of a sandbox: output of its commands, and what happened to it
    Logs(With<watch::Logs>),
    /// Show events of the project
    Events(With<watch::Events>),
    /// Show what running sandboxes use
    Top(With<watch::Top>),
    /// Pause a sandbox: its memory and files stay, it uses no processor
    Pause(With<sandboxes::Pause>),
    /// Resume a paused sandbox
    Resume(With<sandboxes::Resume>),
    /// Create, list and delete snapshots, and roll a sandbox back to one
    Snapshot(With<sandboxes::Snapshots>),
    /// Fork a running sandbox: new sandboxes from this moment of it
    Fork(With<sandboxes::Fork>),
    /// Destroy sandboxes
    #[command(visible_alias = "kill")]
    Rm(With<sandboxes::Remove>),
    /// List the ports that are open in a sandbox, or forward local ports to them
    ///
    /// `coffer ports box` lists. `coffer ports box 8080` serves port 8080 of the sandbox (HTTP and WebSockets) at
    /// 127.0.0.1:8080 until Ctrl-C; `9000:8080` serves it at 9000.
    Ports(With<ports::Ports>),
    /// Tasks: work for agents, from a prompt to a pull request
    Task(With<tasks::Tasks>),
    /// Schedules: tasks that start by the clock
    Schedule(With<schedules::Schedules>),
    /// Let agents compete at the same work in forks of one sandbox, and watch them
    ///
    /// Ctrl-C cancels the competition. `--detach` leaves it running.
    Compete(Box<With<compete::Compete>>),
    /// Let an agent resolve an issue, or do what a text says, and print the pull request
    ///
    /// TARGET is the address of an issue, REPOSITORY#NUMBER, or a text; `-` reads the text from stdin. For a text the
    /// repository is that of --repo, or the git repository in --dir: if its forge is not connected, a copy of it on this
    /// server. What is missing is asked for on a terminal. Ctrl-C cancels what was started.
    Fix(Box<With<fix::Fix>>),
    /// Repositories of the project, and the forges that they are on
    Repo(With<repos::Repositories>),
    /// Find tasks, repositories, pull requests, sandboxes, agents and lines of logs
    Search(With<search::Search>),
    /// Coding agents of the project
    Agent(With<agents::Agents>),
    /// Volumes: directories that outlive sandboxes
    Volume(With<project::Volumes>),
    /// Secrets of the project
    Secret(With<project::Secrets>),
    /// API keys of the project
    Key(With<project::Keys>),
    /// The project, or for operators all projects
    Project(With<project::Projects>),
    /// Show quotas and how much of them is used; operators set them
    Quota(With<bounds::Quotas>),
    /// Show what sandboxes used and cost
    Usage(With<bounds::Usage>),
    /// Budgets: how much the project or a sandbox may cost
    Budget(With<bounds::Budgets>),
    /// Webhooks: URLs that get events
    Webhook(With<bounds::Webhooks>),
    /// Show the audit log: which caller did what
    Audit(With<bounds::Audit>),
    /// Store a server and a key for it
    ///
    /// The key comes from a prompt, from stdin if that is a pipe, from --env-file, or by the one-time link that
    /// `coffer up` prints. No option takes it: arguments are visible to other users of this machine.
    Login(With<login::Login>),
    /// List, choose and remove profiles
    Profile(With<login::ProfileVerbs>),
    /// Show the server, the key's project and its role
    Whoami(With<login::WhoAmI>),
    /// Open the web UI in a browser, signed in
    ///
    /// The browser gets a key with the rights of yours that ends with it, and after 12 hours. Without a browser, and with
    /// --print, the one-time link is printed: it signs one browser in, within two minutes.
    Open(With<open::Open>),
    /// Print a completion script for a shell
    ///
    /// For bash: `coffer completion bash > ~/.local/share/bash-completion/completions/coffer`.
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
            Self::Code(with) => with_server_and_signals!(*with),
            Self::Sh(with) => with_server_and_signals!(with),
            Self::SshProxy(with) => with_server_and_signals!(with),
            Self::Ssh(With { verb, remote }) => within(verb.run(remote), Interrupt::IsTheVerbs),
            Self::SshConfig(With { verb, remote }) => within(verb.run(remote), Interrupt::Ends),
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
            Self::Schedule(with) => with_server!(with),
            Self::Compete(with) => with_server_and_signals!(*with),
            Self::Fix(with) => with_server_and_signals!(*with),
            Self::Repo(with) => with_server!(with),
            Self::Search(with) => with_server!(with),
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
