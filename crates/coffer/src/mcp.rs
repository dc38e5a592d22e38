//! `coffer mcp`: the tools for models, on stdin and stdout.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use coffer_cli::Chosen;
use coffer_client::Client;
use coffer_mcp::install::KeySource;

use crate::printer::{self, hint};

/// Serves the tools to the program that started it, which is an MCP client such as Claude Code.
///
/// Server and key are chosen as for every other verb: --url, --profile, COFFER_URL and COFFER_API_KEY, the current profile.
/// `coffer mcp install` writes this into the configuration of a client. A client that speaks HTTP needs no program: its
/// address is COFFER_URL/mcp.
#[derive(Debug, Args)]
pub(crate) struct Mcp {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The server; COFFER_URL or the current profile by default. Its key comes from COFFER_API_KEY
    #[arg(long, global = true)]
    url: Option<String>,
    /// The profile to use, instead of the environment and the current one
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "url")]
    profile: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add Cofferdam to the configuration of a client
    ///
    /// A server and key of a profile are written as the profile's name, so the client's file has no key and needs no
    /// environment.
    Install(Install),
}

#[derive(Debug, Args)]
struct Install {
    /// The client
    #[arg(value_parser = coffer_mcp::install::names())]
    client: String,
    /// Write the key itself into the file, for clients that do not pass their environment on
    #[arg(long, conflicts_with = "profile")]
    with_key: bool,
    /// Show what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

impl Mcp {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let chosen = Chosen::by(self.url.as_deref(), self.profile.as_deref());
        let chosen = chosen.map_err(|failure| match failure.hint {
            Some(help) => hint(failure.message, help),
            None => anyhow::anyhow!(failure.message),
        })?;
        match self.verb {
            None => serve(&chosen),
            Some(Verb::Install(install)) => install.run(chosen),
        }
    }
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn no_key() -> anyhow::Error {
    hint(
        "there is no key: COFFER_API_KEY is not set, and there is no profile",
        "`coffer login`, or set it to a key of your project; it is in `env` in the data directory",
    )
}

fn serve(chosen: &Chosen) -> anyhow::Result<()> {
    let key = chosen.key.as_deref().ok_or_else(no_key)?;
    let client = Client::new(&chosen.url, Some(key))?;
    if client.is_exposed() {
        eprintln!("coffer mcp: {} is not https: others on the way can read the key", client.url());
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("could not start")?;
    let served = runtime.block_on(coffer_mcp::serve_stdio(client));
    // A read of stdin may still be waiting.
    runtime.shutdown_background();
    Ok(served?)
}

impl Install {
    fn run(self, chosen: Chosen) -> anyhow::Result<()> {
        let from = match (self.with_key, chosen) {
            (true, Chosen { url, key, .. }) => KeySource::Key { url, key: key.ok_or_else(no_key)? },
            (false, Chosen { profile: Some(name), .. }) => {
                KeySource::Profile { name, directory: variable("COFFER_CONFIG_DIR").map(Into::into) }
            }
            (false, Chosen { url, .. }) => KeySource::Environment { url },
        };
        let home = variable("HOME").or_else(|| variable("USERPROFILE")).context("HOME is not set")?;
        let program = std::env::current_exe().context("could not find out where this program is")?;
        let places = coffer_mcp::install::Places {
            home: home.into(),
            config: variable("XDG_CONFIG_HOME").map(Into::into),
            roaming: variable("APPDATA").map(Into::into),
            codex: variable("CODEX_HOME").map(Into::into),
        };
        let wish = coffer_mcp::install::Wish { program, from };
        let plan = coffer_mcp::install::plan(&self.client, &places, &wish)?;
        if self.dry_run {
            eprintln!("would write {}:", plan.path.display());
            printer::line(plan.shown());
            return Ok(());
        }
        plan.write()?;
        eprintln!("{} {}", if plan.is_new { "wrote" } else { "added cofferdam to" }, plan.path.display());
        for note in plan.notes {
            eprintln!("note: {note}");
        }
        Ok(())
    }
}
