//! Programs that the server itself runs in a sandbox, on record like any other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coffer_core::{ExecutionId, KeyId};
use coffer_store::{ExecutionSource, NewExecution};

use super::command::{self, End, Order};
use super::inside::{guest_of, refusal};
use crate::agent::Guest;
use crate::api::error::{ApiError, Code};
use crate::commands::Commands;
use crate::fleet::{Fleet, Record};
use crate::output::Output;

/// A program to run to its end.
#[derive(Debug, Default)]
pub(crate) struct Errand {
    pub(crate) words: Vec<String>,
    /// Where it runs; the user's home, where nothing is said, and otherwise below it unless it begins at the root.
    pub(crate) cwd: Option<String>,
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
        let most = errand.most;
        let guest = self.admitted(record, &errand).await?;
        let order = order(errand);
        let (output, id) = (self.output.clone(), ExecutionId::generate());
        let beginning = command::begin(output, record.clone(), guest, id, order, actor);
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

    /// Starts a program that goes on whoever waits for it. It is on record before it runs, so that whoever finds no record
    /// of `id`, or no process to it, knows that there was none.
    pub(crate) async fn launch(
        &self,
        record: &Arc<Record>,
        id: ExecutionId,
        errand: Errand,
    ) -> Result<(), ApiError> {
        let guest = self.admitted(record, &errand).await?;
        let order = order(errand);
        let announced = NewExecution {
            id,
            actor: None,
            command: order.shown.clone(),
            cwd: order.cwd.clone(),
            user: order.user.clone(),
            source: ExecutionSource::Api,
        };
        self.output.announce(record, announced).await.map_err(ApiError::store)?;
        let beginning = command::begin(self.output.clone(), record.clone(), guest, id, order, None);
        let begun = tokio::spawn(beginning).await.unwrap_or_else(|_| Err(ApiError::internal()));
        begun.map(drop)
    }

    /// The executions that run in a sandbox now, as its agentd says.
    pub(crate) async fn running(&self, record: &Arc<Record>) -> Result<Vec<ExecutionId>, ApiError> {
        let guest = guest_of(&self.fleet, record, &record.id.to_string()).await?;
        let listed = command::processes(&guest).await.map_err(refusal)?;
        let tags = listed.processes.into_iter().filter_map(|process| process.tag);
        Ok(tags.filter_map(|tag| tag.parse().ok()).collect())
    }

    /// Ends an execution with all that it started; fine where it is over.
    pub(crate) async fn kill(&self, record: &Arc<Record>, id: ExecutionId) -> Result<(), ApiError> {
        let guest = guest_of(&self.fleet, record, &record.id.to_string()).await?;
        match command::end_tagged(&guest, id).await.map_err(refusal) {
            Err(error) if error.code() != Code::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The way into the sandbox, where the project's policy on commands allows it.
    async fn admitted(&self, record: &Arc<Record>, errand: &Errand) -> Result<Guest, ApiError> {
        let guest = guest_of(&self.fleet, record, &record.id.to_string()).await?;
        match self.commands.permit(record, &errand.words).await {
            Ok(()) => Ok(guest),
            Err(refused) => {
                let message = format!("the command was not started: {}", refused.why);
                Err(ApiError::of(Code::CommandRefused, message))
            }
        }
    }
}

fn order(errand: Errand) -> Order {
    Order {
        shown: errand.words.join(" "),
        words: errand.words,
        cwd: errand.cwd,
        env: errand.env,
        user: errand.user,
        stdin: errand.stdin.map(Bytes::from),
        timeout: Some(errand.timeout),
        background: false,
        most: errand.most,
    }
}
