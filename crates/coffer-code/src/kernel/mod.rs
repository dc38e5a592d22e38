//! A kernel: starts, runs one piece of code at a time, is interrupted, dies.

mod bash;
mod call;
mod ending;
mod java;
mod jupyter;
mod message;

use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use self::bash::Bash;
pub(crate) use self::ending::Ended;
use self::java::Java;
use self::jupyter::Jupyter;
use crate::language::{Language, Variables};
use crate::place::Place;
use crate::process::Process;
use crate::stream::Sink;

/// How long a kernel may take to start, and our own code in it to run.
const START_LIMIT: Duration = Duration::from_secs(60);
const SILENT_LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Kernel {
    language: Language,
    backend: Backend,
    process: Arc<Process>,
    /// The sandbox that it has its key and its seeds for.
    home: String,
    /// The sandbox whose variables it has. Only who has that sandbox's token can have them set.
    owner: Option<String>,
}

/// What becomes of a kernel in the sandbox that it is called in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    Ready,
    /// It has the key and the random numbers of a memory image, and cannot be given others.
    Foreign,
    Died,
}

#[derive(Debug)]
enum Backend {
    Jupyter(Box<Jupyter>),
    Bash(Box<Bash>),
    Java(Box<Java>),
}

impl Kernel {
    /// Starts one in a directory, with the variables of the sandbox of that name if they are known.
    pub(crate) async fn start(
        language: Language,
        place: &Place,
        directory: &str,
        identity: &str,
        known: Option<&Variables>,
    ) -> io::Result<Self> {
        let starting = async {
            let mut command = command(language, place, directory);
            if let Some(variables) = known {
                let possible = |(name, value): &(&String, &String)| {
                    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
                };
                command.envs(variables.iter().filter(possible));
            }
            let (backend, process) = match language {
                Language::Bash => {
                    let (bash, process) = Bash::start(command, place).await?;
                    (Backend::Bash(Box::new(bash)), process)
                }
                Language::Java => {
                    // Few threads and a quick start matter more than the last of its speed.
                    command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
                    command.arg(place.home.join("java-kernel")).arg("CofferJava");
                    let (java, process) = Java::start(command).await?;
                    (Backend::Java(Box::new(java)), process)
                }
                _ => {
                    let (jupyter, process) = Jupyter::start(language, command, place).await?;
                    (Backend::Jupyter(Box::new(jupyter)), process)
                }
            };
            let owner = known.filter(|_| language.reads_environment()).map(|_| identity.to_string());
            let mut kernel = Self { language, backend, process, home: identity.to_string(), owner };
            if let Some(opening) = language.opening() {
                kernel.run_silent(opening).await;
            }
            Ok(kernel)
        };
        tokio::time::timeout(START_LIMIT, starting).await.unwrap_or_else(|_| {
            let why = format!("it did not answer within {START_LIMIT:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        })
    }

    pub(crate) fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Makes it the kernel of the sandbox that it is in. One that was saved and restored under another name gets a new
    /// key; if no owner has used it yet, it also gets new seeds, and one that can have neither is foreign. In a fork
    /// the seeds are part of the state. Variables are set if they are known and it has those of another sandbox.
    pub(crate) async fn arrive(&mut self, identity: &str, variables: Option<&Variables>) -> Arrived {
        let (moved, unowned) = (self.home != identity, self.owner.is_none());
        let variables = variables.filter(|_| self.owner.as_deref() != Some(identity));
        let mut code = variables.map(|variables| self.language.set(variables)).unwrap_or_default();
        if moved {
            let Some(renewal) = self.language.renewal(unowned) else { return Arrived::Foreign };
            code.push_str(&renewal);
        }
        let done = if moved { self.change_key(&code).await } else { self.run_silent(&code).await.into() };
        let done = if done == Arrived::Foreign && !unowned { Arrived::Ready } else { done };
        if done == Arrived::Ready {
            self.home = identity.to_string();
            if variables.is_some() {
                self.owner = Some(identity.to_string());
            }
        }
        done
    }

    /// Runs code of ours, and then changes the key, if there is one.
    async fn change_key(&mut self, code: &str) -> Arrived {
        let Backend::Jupyter(jupyter) = &mut self.backend else { return self.run_silent(code).await.into() };
        match tokio::time::timeout(SILENT_LIMIT, jupyter.change_key(self.language, code)).await {
            Ok(Some(true)) => Arrived::Ready,
            Ok(Some(false)) => Arrived::Foreign,
            Ok(None) | Err(_) => {
                self.process.kill();
                Arrived::Died
            }
        }
    }

    /// Sets variables of a call.
    pub(crate) async fn set(&mut self, variables: &Variables) -> Ended {
        self.run_silent(&self.language.set(variables)).await
    }

    /// Runs code of a client. If the client leaves, the code is interrupted, and killed if that does not end it.
    pub(crate) async fn run(&mut self, code: &str, sink: &Sink) -> Ended {
        match &mut self.backend {
            Backend::Jupyter(jupyter) => jupyter.run(code, Some(sink)).await,
            Backend::Bash(bash) => bash.run(code, Some(sink)).await,
            Backend::Java(java) => java.run(code, sink).await,
        }
    }

    /// Runs code of ours, of which the client sees nothing.
    pub(crate) async fn run_silent(&mut self, code: &str) -> Ended {
        if code.is_empty() {
            return Ended::Done;
        }
        let running = async {
            match &mut self.backend {
                Backend::Jupyter(jupyter) => jupyter.run(code, None).await,
                Backend::Bash(bash) => bash.run(code, None).await,
                Backend::Java(java) => java.run_silent(code).await,
            }
        };
        let ended = tokio::time::timeout(SILENT_LIMIT, running).await;
        ended.unwrap_or_else(|_| {
            self.process.kill();
            Ended::Died
        })
    }
}

impl From<Ended> for Arrived {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Done => Self::Ready,
            Ended::Died => Self::Died,
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// Without what `sudo` has added, and without the service's own input and output.
fn command(language: Language, place: &Place, directory: &str) -> Command {
    let mut command = Command::new(language.program(place));
    for name in ["SUDO_COMMAND", "SUDO_USER", "SUDO_UID", "SUDO_GID", "MAIL"] {
        command.env_remove(name);
    }
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_string());
    let own = format!("{}/bin", place.home.display());
    let path = if path.split(':').any(|part| part == own) { path } else { format!("{own}:{path}") };
    command.env("PATH", path).env("LANG", "C.UTF-8").env("PWD", place.directory(directory));
    command.envs(language.own_variables(place));
    command.current_dir(place.directory(directory));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
