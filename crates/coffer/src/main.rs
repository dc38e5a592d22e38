//! `coffer`: one binary, several roles.
//!
//! This crate reads arguments, drops privileges and wires the parts together; it has no logic of its own.
//! People start `up`; it runs `egress`, `node`, `git` and `server`, which are this same binary.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod catalogue;
mod config;
mod data_dir;
mod doctor;
mod egress;
mod git;
mod halt;
mod leftovers;
mod logging;
mod mcp;
mod node;
mod own_directory;
mod preflight;
mod printer;
mod privilege;
#[cfg(test)]
mod reference;
mod roots;
mod server;
mod signals;
mod template;
mod tls;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The place where coding agents work: sandboxes that E2B's SDKs can drive.
#[derive(Debug, Parser)]
#[command(name = "coffer", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    sources: config::Sources,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start everything on this machine: the node, the server, and what they need
    Up(Box<up::Up>),
    /// Show and check the settings
    Config(config::Config),
    /// Build and list templates
    Template(template::Template),
    /// Look for what keeps an installation from working, and say the line that fixes it
    Doctor(doctor::Doctor),
    /// End every sandbox of a stopped installation and unmount its pool, as a reboot would; its data stays
    Halt(halt::Halt),
    #[command(flatten)]
    Client(coffer_cli::Verb),
    /// Serve tools to MCP clients: Claude Code, Cursor, VS Code and others
    Mcp(mcp::Mcp),
    /// The privileged part that creates sandboxes (started by `up`)
    #[command(hide = true)]
    Node(node::Node),
    /// Creates, uses and destroys one sandbox (started by `up`)
    #[command(hide = true)]
    Preflight(preflight::Preflight),
    /// The unprivileged part that talks to clients (started by `up`)
    #[command(hide = true)]
    Server(server::Server),
    /// The unprivileged part that connects sandboxes to the network (started by `up`)
    #[command(hide = true)]
    Egress(egress::Egress),
    /// The unprivileged part that starts git for the server (started by `up`)
    #[command(hide = true)]
    Git(git::Git),
    /// The single-threaded part that clones (started by the node)
    #[command(hide = true)]
    Spawner {
        /// Read by the spawner itself
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
}

fn main() -> ExitCode {
    let Arguments { verb, sources } = Arguments::parse();
    let outcome = match verb {
        Verb::Up(up) => up.run(&sources),
        Verb::Config(config) => config.run(&sources),
        Verb::Template(template) => return ended(template.run(&sources)),
        Verb::Doctor(doctor) => return ended(doctor.run(&sources)),
        Verb::Halt(halt) => halt.run(&sources),
        Verb::Client(verb) => return verb.run(<Arguments as clap::CommandFactory>::command),
        Verb::Mcp(mcp) => mcp.run(),
        Verb::Node(node) => node.run(),
        Verb::Preflight(preflight) => preflight.run(),
        Verb::Server(server) => server.run(),
        Verb::Egress(egress) => egress.run(),
        Verb::Git(git) => git.run(),
        Verb::Spawner { .. } => return coffer_node::spawner_main(),
    };
    ended(outcome.map(|()| ExitCode::SUCCESS))
}

/// The exit code; an error is printed.
fn ended(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        printer::failure(&error);
        ExitCode::from(printer::exit_code(&error))
    })
}
