//! Logs go to standard error, as text for people or as JSON for machines.

use std::io::IsTerminal;

use clap::Args;
use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// How a part logs; given as arguments, before it reads anything else.
#[derive(Debug, Clone, Args)]
pub(crate) struct Logging {
    #[arg(long, default_value = "info")]
    log: String,
    #[arg(long)]
    log_json: bool,
}

impl From<&Log> for Logging {
    fn from(log: &Log) -> Self {
        Self { log: log.filter.clone(), log_json: log.format == LogFormat::Json }
    }
}

impl Logging {
    /// Sets up logging for this process. Fails on a bad filter.
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        let filter = EnvFilter::try_new(&self.log).map_err(|error| {
            crate::printer::hint(format!("bad log filter `{}`: {error}", self.log), "try --log info")
        })?;
        let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        if self.log_json {
            subscriber.json().flatten_event(true).init();
        } else {
            subscriber.with_ansi(std::io::stderr().is_terminal()).with_target(false).init();
        }
        Ok(())
    }

    /// The same choice as arguments, for a part that is started.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![format!("--log={}", self.log)];
        arguments.extend(self.log_json.then(|| "--log-json".to_string()));
        arguments
    }
}
