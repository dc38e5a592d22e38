//! `open` and `completion`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;
use clap_complete::Shell;

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::printer;

/// Open the web UI in a browser
///
/// With the one-time link that `coffer up` writes to its data directory the browser is signed in.
#[derive(Debug, Args)]
pub struct Open {
    /// The file with the one-time link: `sign-in` in the server's data directory
    #[arg(long, value_name = "FILE")]
    sign_in_file: Option<PathBuf>,
    /// Print the address instead
    #[arg(long)]
    print: bool,
}

impl Open {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let url = match &self.sign_in_file {
            None => {
                context.client.health().await?;
                format!("{}/", context.client.url())
            }
            Some(file) => {
                let failed = |error| Failure::new(format!("could not read `{}`: {error}", file.display()));
                let link = std::fs::read_to_string(file).map_err(failed)?.trim().to_string();
                if !link.starts_with("http://") && !link.starts_with("https://")
                    || link.contains(char::is_whitespace)
                {
                    return Err(Failure::new(format!("`{}` has no link", file.display())));
                }
                link
            }
        };
        if self.print || !launch(&url) {
            printer::print(&format!("{url}\n"));
        }
        Ok(0)
    }
}

/// Starts the system's browser; false if there is none.
fn launch(url: &str) -> bool {
    // A program without a screen would open a text browser in the middle of a script.
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    let mut command = if cfg!(target_os = "macos") {
        Command::new("open")
    } else if cfg!(windows) {
        let mut command = Command::new("rundll32");
        command.arg("url.dll,FileProtocolHandler");
        command
    } else if has_screen {
        Command::new("xdg-open")
    } else {
        return false;
    };
    let started = command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    started.is_ok_and(|status| status.success())
}

/// Print a completion script for a shell
///
/// For bash: `coffer completion bash > ~/.local/share/bash-completion/completions/coffer`.
#[derive(Debug, Args)]
pub struct Completion {
    shell: Shell,
}

impl Completion {
    pub(crate) fn run(self, mut command: clap::Command) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "coffer", &mut script);
        printer::print(&String::from_utf8_lossy(&script));
        Ok(0)
    }
}
