//! `coffer mcp`: the tools for models, on stdin and stdout.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use coffer_client::Client;

use crate::printer::{self, hint};

/// Serves the tools to the program that started it, which is an MCP client such as Claude Code.
///
/// The server is COFFER_URL (http://127.0.0.1:3000 by default), the key COFFER_API_KEY. `coffer mcp install` writes this
/// into the configuration of a client. A client that speaks HTTP needs no program: its address is COFFER_URL/mcp.
#[derive(Debug, Args)]
pub(crate) struct Mcp {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add Cofferdam to the configuration of a client
    Install(Install),
}

#[derive(Debug, Args)]
struct Install {
    /// The client
    #[arg(value_parser = coffer_mcp::install::names())]
    client: String,
    /// The server that the client is to use
    #[arg(long, env = "COFFER_URL", default_value = DEFAULT_URL)]
    url: String,
    /// Write the key from COFFER_API_KEY itself into the file, for clients that do not pass their environment on
    #[arg(long)]
    with_key: bool,
    /// Show what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

const DEFAULT_URL: &str = "http://127.0.0.1:3000";

impl Mcp {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.verb {
            None => serve(),
            Some(Verb::Install(install)) => install.run(),
        }
    }
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn serve() -> anyhow::Result<()> {
    let url = variable("COFFER_URL").unwrap_or_else(|| DEFAULT_URL.into());
    let Some(key) = variable("COFFER_API_KEY") else {
        return Err(hint(
            "COFFER_API_KEY is not set",
            "set it to a key of your project; it is in `env` in the data directory",
        ));
    };
    let client = Client::new(&url, Some(&key))?;
    if client.is_exposed() {
        eprintln!("coffer mcp: {url} is not https: others on the way can read the key");
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("could not start")?;
    let served = runtime.block_on(coffer_mcp::serve_stdio(client));
    // A read of stdin may still be waiting.
    runtime.shutdown_background();
    Ok(served?)
}

impl Install {
    fn run(self) -> anyhow::Result<()> {
        let key = match (self.with_key, variable("COFFER_API_KEY")) {
            (false, _) => None,
            (true, Some(key)) => Some(key),
            (true, None) => {
                return Err(hint("COFFER_API_KEY is not set", "it is the key that --with-key writes"));
            }
        };
        let home = variable("HOME").or_else(|| variable("USERPROFILE")).context("HOME is not set")?;
        let program = std::env::current_exe().context("could not find out where this program is")?;
        let places = coffer_mcp::install::Places {
            home: home.into(),
            config: variable("XDG_CONFIG_HOME").map(Into::into),
            roaming: variable("APPDATA").map(Into::into),
            codex: variable("CODEX_HOME").map(Into::into),
        };
        let wish = coffer_mcp::install::Wish { program, url: self.url, key };
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
