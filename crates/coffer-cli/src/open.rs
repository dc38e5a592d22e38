//! `open` and `completion`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use clap_complete::Shell;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::context::Context;
use crate::failure::{Failure, NOT_ALLOWED, Outcome};
use crate::{printer, profile};

/// Open the web UI in a browser, signed in
///
/// The browser gets a key with the rights of yours that ends with it, and after 12 hours. Without a browser, and with
/// --print, the one-time link is printed: it signs one browser in, within two minutes.
#[derive(Debug, Args)]
pub struct Open {
    /// Use the link in this file: `sign-in` in the server's data directory
    #[arg(long, value_name = "FILE", conflicts_with = "no_sign_in")]
    sign_in_file: Option<PathBuf>,
    /// Do not sign in
    #[arg(long)]
    no_sign_in: bool,
    /// Print the address instead
    #[arg(long)]
    print: bool,
}

/// The page that leads the browser to the link.
const PAGE: &str = "open.html";

impl Open {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let home = format!("{}/", context.client.url());
        let link = match &self.sign_in_file {
            Some(file) => Some(read_link(file)?),
            None if self.no_sign_in => None,
            None if context.key.is_none() => {
                return Err(Failure::new("no key to sign in with")
                    .hint("`coffer login`, or `coffer open --no-sign-in`")
                    .exit(NOT_ALLOWED));
            }
            None => {
                let link = context.client.create_sign_in_link().await?;
                Some(format!("{home}#token={}", link.token))
            }
        };
        if link.is_none() {
            context.client.health().await?;
        }
        if self.print || !has_browser() {
            return print_address(context, link.as_deref().unwrap_or(&home));
        }
        let opened = match &link {
            // Other users can read arguments, and the link is as good as a key until the browser has used it.
            Some(link) => launch(&write_page(link)?),
            None => launch(&home),
        };
        if opened {
            printer::note("opened the web UI; if no page appears: `coffer open --print`");
            return Ok(0);
        }
        print_address(context, link.as_deref().unwrap_or(&home))
    }
}

fn print_address(context: &Context, address: &str) -> Outcome {
    if context.printer.is_table() {
        printer::print(&format!("{address}\n"));
    } else {
        context.printer.show(&serde_json::json!({"url": address}))?;
    }
    Ok(0)
}

fn read_link(file: &Path) -> Result<String, Failure> {
    let failed = |error| Failure::new(format!("could not read `{}`: {error}", file.display()));
    let link = std::fs::read_to_string(file).map_err(failed)?.trim().to_string();
    if !is_address(&link) {
        return Err(Failure::new(format!("`{}` has no link", file.display())));
    }
    Ok(link)
}

fn is_address(link: &str) -> bool {
    (link.starts_with("http://") || link.starts_with("https://"))
        && !link.contains(|letter: char| {
            letter.is_whitespace() || letter.is_control() || "\"'<>\\`".contains(letter)
        })
}

/// Writes a page that only this user can read and that leads to `link`, and returns its address.
fn write_page(link: &str) -> Result<String, Failure> {
    if !is_address(link) {
        return Err(Failure::new("the server's address cannot be part of a page")
            .hint("`coffer open --print`, and open the link yourself"));
    }
    let directory = profile::directory()?;
    let path = directory.join(PAGE);
    let failed =
        |error: std::io::Error| Failure::new(format!("could not write `{}`: {error}", path.display()));
    std::fs::create_dir_all(&directory).map_err(failed)?;
    // Temporary files are created with mode 0600.
    let mut file = tempfile::Builder::new().suffix(".html").tempfile_in(&directory).map_err(failed)?;
    let link = link.replace('&', "&amp;");
    let page = format!(
        "<!doctype html><meta charset=utf-8><meta name=referrer content=no-referrer>\n\
         <meta http-equiv=refresh content=\"0; url={link}\"><title>Cofferdam</title>\n\
         <a href=\"{link}\">Sign in to Cofferdam</a>\n"
    );
    file.write_all(page.as_bytes()).map_err(failed)?;
    file.persist(&path).map_err(|error| failed(error.error))?;
    let path = std::path::absolute(&path).map_err(failed)?;
    let text = path.to_string_lossy().replace('\\', "/");
    let encoded = utf8_percent_encode(&text, &PATH);
    Ok(format!("file://{}{encoded}", if text.starts_with('/') { "" } else { "/" }))
}

/// What a path in an address cannot have.
const PATH: AsciiSet =
    CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

/// A program without a screen would open a text browser in the middle of a script.
fn has_browser() -> bool {
    cfg!(any(windows, target_os = "macos"))
        || ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Starts the system's browser; false if there is none.
fn launch(url: &str) -> bool {
    let mut command = if cfg!(target_os = "macos") {
        Command::new("open")
    } else if cfg!(windows) {
        let mut command = Command::new("rundll32");
        command.arg("url.dll,FileProtocolHandler");
        command
    } else {
        Command::new("xdg-open")
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
