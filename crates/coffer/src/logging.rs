//! Logs go to standard error, as text for people or as JSON for machines.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How each part logs.
#[derive(Debug, Clone, Args)]
pub(crate) struct Logging {
    /// What to log, as a filter such as `info` or `coffer_node=debug`
    #[arg(long, env = "COFFER_LOG", default_value = "info", value_name = "FILTER")]
    log: String,
    /// How log lines look
    #[arg(long, env = "COFFER_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    log_format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl Logging {
    /// Sets logging up for this process. Fails on a bad filter.
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        let filter = EnvFilter::try_new(&self.log).map_err(|error| {
            crate::printer::hint(format!("bad log filter `{}`: {error}", self.log), "try --log info")
        })?;
        let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self.log_format {
            Format::Text => subscriber.with_ansi(std::io::stderr().is_terminal()).with_target(false).init(),
            Format::Json => subscriber.json().flatten_event(true).init(),
        }
        Ok(())
    }

    /// The same choice as arguments, for a part that is started.
    pub(crate) fn arguments(&self) -> [String; 4] {
        let format = match self.log_format {
            Format::Text => "text",
            Format::Json => "json",
        };
        ["--log".into(), self.log.clone(), "--log-format".into(), format.into()]
    }
}
