//! `ssh`, `ssh-config` and `ssh-proxy`: OpenSSH into sandboxes. `docs/design/0022-ssh.md` has the reasons.
//!
//! `ssh` starts `coffer ssh-proxy` and speaks SSH with it on a pipe; the proxy is the server of that conversation and runs
//! commands with the API, with the caller's key. Nothing listens, and no sandbox needs an sshd.

mod host;
mod place;

use std::io::Write as _;
use std::process::Command;

use clap::Args;
use coffer_api_types::sandboxes::ResumeBody;

use crate::context::{Chosen, Context, Remote};
use crate::failure::{Failure, NOT_FOUND, Outcome, STATE};
use crate::{printer, sandboxes};
use host::Inside;
use place::{ANY_USER, DOMAIN, Place, is_host_name};

// No doc comment: the verb has one.
#[derive(Debug, Args)]
pub struct Ssh {
    /// The sandbox: its id, the beginning of it, or its name
    #[arg(value_name = "[USER@]SANDBOX")]
    sandbox: String,
    /// Options for ssh, or a command
    #[arg(allow_hyphen_values = true, trailing_var_arg = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

impl Ssh {
    pub(crate) async fn run(self, remote: Remote) -> Outcome {
        let chosen = Chosen::by(remote.url.as_deref(), remote.profile.as_deref())?;
        let place = Place::ready(&chosen, remote.url.as_deref())?;
        let (user, sandbox) = match self.sandbox.split_once('@') {
            Some((user, sandbox)) if is_host_name(user) => (user, sandbox),
            _ => (ANY_USER, self.sandbox.as_str()),
        };
        let name = match is_host_name(sandbox) {
            true => sandbox.to_string(),
            // ssh refuses such hosts; an id is always one.
            false => sandboxes::resolve(&Context::new(&remote)?, sandbox).await?,
        };
        let mut command = Command::new("ssh");
        for line in place.options(user)? {
            command.arg("-o").arg(line);
        }
        command.arg(format!("{name}{DOMAIN}")).args(self.arguments);
        replace(command)
    }
}

/// Becomes `ssh`, or waits for it where a program cannot become another.
fn replace(mut command: Command) -> Outcome {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new("there is no `ssh` on this machine")
            .hint("install the OpenSSH client; `coffer sh` opens a shell without it"),
        _ => Failure::new(format!("could not start ssh: {error}")),
    };
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt as _;
        Err(failed(command.exec()))
    }
    #[cfg(not(unix))]
    {
        let status = command.status().map_err(failed)?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(255))
    }
}

// No doc comment: the verb has one.
#[derive(Debug, Args)]
pub struct SshConfig {
    /// A sandbox to list by its name, so that editors offer it
    sandbox: Option<String>,
    /// Write the configuration, and include it in ~/.ssh/config
    #[arg(long)]
    write: bool,
}

impl SshConfig {
    pub(crate) async fn run(self, remote: Remote) -> Outcome {
        let chosen = Chosen::by(remote.url.as_deref(), remote.profile.as_deref())?;
        let place = Place::ready(&chosen, remote.url.as_deref())?;
        if let Some(sandbox) = &self.sandbox {
            if !is_host_name(sandbox) {
                let failure = Failure::usage(format!("'{sandbox}' cannot be a host name"));
                return Err(failure.hint("use the sandbox's id"));
            }
            let id = sandboxes::resolve(&Context::new(&remote)?, sandbox).await?;
            Context::new(&remote)?.client.sandbox(&id).await?;
        }
        if !self.write {
            let text = place.block(self.sandbox.as_slice(), true)?;
            std::io::stdout().write_all(text.as_bytes())?;
            return Ok(0);
        }
        let written = place.write(self.sandbox.as_deref())?;
        printer::note(&format!("wrote {}", written.display()));
        let name = self.sandbox.as_deref().unwrap_or("BOX");
        printer::note(&format!("now `ssh {name}{DOMAIN}` works, and so does everything that uses OpenSSH"));
        Ok(0)
    }
}

// No doc comment: the verb has one.
#[derive(Debug, Args)]
pub struct SshProxy {
    /// The host that ssh was given, such as box.coffer
    host: String,
}

impl SshProxy {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let place = Place::of(context.profile.as_deref())?;
        let (host_key, known) = place.keys()?;
        let id = self.find(context).await?;
        let sandbox = context.client.sandbox(&id).await.map_err(|error| match error.is_not_found() {
            true => not_found(&id),
            false => error.into(),
        })?;
        match sandbox.state.as_str() {
            "running" | "creating" => {}
            "paused" => {
                context.client.resume_sandbox(&id, &ResumeBody::default()).await?;
                printer::note(&format!("resumed sandbox {id}"));
            }
            state => return Err(Failure::new(format!("sandbox {id} is {state}")).exit(STATE)),
        }
        let inside = Inside::new(context.client.guest(&id).await?);
        let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
        let served = coffer_ssh::serve(stdin, stdout, host_key, known, std::sync::Arc::new(inside)).await;
        served.map(|()| 0).map_err(|error| Failure::new(error.to_string()))
    }

    /// The sandbox's id. A name may end like a profile's hosts do, so both readings are tried.
    async fn find(&self, context: &Context) -> Result<String, Failure> {
        let name = self.host.strip_suffix(DOMAIN).unwrap_or(&self.host);
        let ending = context.profile.as_deref().map(|profile| format!(".{profile}"));
        let shorter = ending.and_then(|ending| name.strip_suffix(&ending));
        match sandboxes::resolve(context, shorter.unwrap_or(name)).await {
            Err(failure) if shorter.is_some() && failure.exit == NOT_FOUND => {
                sandboxes::resolve(context, name).await.map_err(|_| failure)
            }
            found => found,
        }
    }
}

fn not_found(id: &str) -> Failure {
    Failure::new(format!("sandbox '{id}' not found")).hint("`coffer ls`").exit(NOT_FOUND)
}
