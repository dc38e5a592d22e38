//! Programs that the server itself runs in a sandbox, on record like any other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coffer_core::{ExecutionId, KeyId};

use super::exec::{self, End, Order};
use super::inside::guest_of;
use crate::api::error::{ApiError, Code};
use crate::commands::Commands;
use crate::fleet::{Fleet, Record};
use crate::output::Output;

/// A program to run to its end.
#[derive(Debug, Default)]
pub(crate) struct Errand {
    pub(crate) words: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) user: Option<String>,
    pub(crate) stdin: Option<String>,
    pub(crate) timeout: Duration,
    /// What is kept of each of its streams.
    pub(crate) most: usize,
}

/// What came of it. All of it is the sandbox's word.
#[derive(Debug)]
pub(crate) struct Returned {
    /// None where its time was up.
    pub(crate) exit_code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) is_cut: bool,
}

impl Returned {
    pub(crate) fn is_good(&self) -> bool {
        self.exit_code == Some(0)
    }
}

/// Where errands are run from.
#[derive(Debug, Clone)]
pub(crate) struct Errands {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) commands: Arc<Commands>,
    pub(crate) output: Arc<Output>,
}

impl Errands {
    /// Runs a program in a sandbox, where the project's policy on commands allows it.
    pub(crate) async fn run(
        &self,
        record: &Arc<Record>,
        errand: Errand,
        actor: Option<KeyId>,
    ) -> Result<Returned, ApiError> {
        let guest = guest_of(&self.fleet, record, &record.id.to_string()).await?;
        if let Err(refused) = self.commands.permit(record, &errand.words).await {
            let message = format!("the command was not started: {}", refused.why);
            return Err(ApiError::of(Code::CommandRefused, message));
        }
        let most = errand.most;
        let order = Order {
            shown: errand.words.join(" "),
            words: errand.words,
            cwd: None,
            env: errand.env,
            user: errand.user,
            stdin: errand.stdin.map(Bytes::from),
            timeout: Some(errand.timeout),
            background: false,
            most,
        };
        let (output, id) = (self.output.clone(), ExecutionId::generate());
        let beginning = exec::begin(output, record.clone(), guest, id, order, actor);
        // To its end, also when nobody waits any more: what is on record as running must run.
        let run = tokio::spawn(beginning).await.unwrap_or_else(|_| Err(ApiError::internal()))?;
        let (_, end, stdout, stderr) = run.wait(most).await?;
        Ok(Returned {
            exit_code: match end {
                End::Exited(end) => Some(end.exit_code),
                End::TimedOut => None,
            },
            is_cut: stdout.is_cut() || stderr.is_cut(),
            stdout: stdout.bytes,
            stderr: String::from_utf8_lossy(&stderr.bytes).into_owned(),
        })
    }
}
