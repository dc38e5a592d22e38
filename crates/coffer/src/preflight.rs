//! The role `coffer preflight`: proves that this host can run sandboxes, by running one.

use clap::Args;
use coffer_engine::{Engine as _, KernelFeature, NodeEngine};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::printer;
use crate::privilege::Unprivileged;

#[derive(Debug, Args)]
pub(crate) struct Preflight {
    #[command(flatten)]
    part: Unprivileged,
}

/// The report to `up`, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) outcome: Result<Works, Fails>,
    /// Sandboxes that live already, from an earlier start.
    pub(crate) live: usize,
    pub(crate) kernel: Vec<KernelFeature>,
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Works {
    pub(crate) took_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Fails {
    pub(crate) why: String,
    /// Whether waiting or freeing space may help.
    pub(crate) may_pass: bool,
}

impl Preflight {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        self.part.give_up_root()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report = runtime.block_on(async {
            let engine = NodeEngine::start(self.part.run_dir.join("node.sock"), CancellationToken::new());
            let info = engine.info().await?;
            let live = engine.list().await?;
            let live = live.iter().filter(|one| !coffer_server::is_preflight(one.sandbox)).count();
            let outcome = match coffer_server::preflight(&engine).await {
                Ok(took) => Ok(Works { took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX) }),
                Err(error) => Err(Fails { why: error.to_string(), may_pass: error.may_pass() }),
            };
            anyhow::Ok(Report { outcome, live, kernel: info.kernel, warnings: info.warnings })
        })?;
        printer::line(serde_json::to_string(&report)?);
        Ok(())
    }
}
