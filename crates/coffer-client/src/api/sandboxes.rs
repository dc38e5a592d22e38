//! Sandboxes, snapshots, forks, executions, logs and events.

use coffer_api_types::Event;
use coffer_api_types::events::{AfterQuery, EventQuery};
use coffer_api_types::exec::{NewCommand, Process, Ran, Running, SignalQuery, WatchQuery};
use coffer_api_types::executions::{Execution, ExecutionQuery, OutputQuery, PlaceQuery};
use coffer_api_types::forks::{Family, Fork, NewFork};
use coffer_api_types::git::{
    Cloned, Committed, DiffQuery, NewClone, NewCommit, NewPullRequest, NewPush, PullRequest, Pushed,
    WorkTree, WorkTreeDiff,
};
use coffer_api_types::host::{Health, Host};
use coffer_api_types::logs::{FoundLine, LogLine, LogQuery};
use coffer_api_types::sandboxes::{
    Extension, LifeStep, NewSandbox, PauseBody, ResumeBody, SampleQuery, Sandbox, SandboxQuery, SandboxSample,
};
use coffer_api_types::snapshots::{NewSnapshot, RollbackBody, Snapshot, SnapshotQuery};
use http::Method;

use crate::api::FileContent;
use crate::client::{Client, at, encode, with_query};
use crate::error::Error;
use crate::follow::Follow;
use crate::pages::Pages;
use crate::run::Run;

impl Client {
    /// Whether the server runs, and its version. Needs no key.
    pub async fn health(&self) -> Result<Health, Error> {
        self.get(&at(["health"])).await
    }

    pub async fn host(&self) -> Result<Host, Error> {
        self.get(&at(["host"])).await
    }

    /// Creates a sandbox and waits until it runs. The same idempotency key and request create one sandbox.
    pub async fn create_sandbox(
        &self,
        new: &NewSandbox,
        idempotency_key: Option<&str>,
    ) -> Result<Sandbox, Error> {
        self.call_once(&at(["sandboxes"]), new, idempotency_key).await
    }

    /// Live and ended sandboxes.
    pub fn sandboxes(&self, query: &SandboxQuery) -> Pages<Sandbox> {
        self.list(at(["sandboxes"]), query)
    }

    pub async fn sandbox(&self, id: &str) -> Result<Sandbox, Error> {
        self.get(&at(["sandboxes", id])).await
    }

    pub async fn destroy_sandbox(&self, id: &str) -> Result<(), Error> {
        self.delete(&at(["sandboxes", id])).await
    }

    pub async fn pause_sandbox(&self, id: &str, body: &PauseBody) -> Result<Sandbox, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "pause"]), Some(body)).await
    }

    pub async fn resume_sandbox(&self, id: &str, body: &ResumeBody) -> Result<Sandbox, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "resume"]), Some(body)).await
    }

    /// Sets how long it lives from now on.
    pub async fn extend_sandbox(&self, id: &str, timeout_s: i64) -> Result<Sandbox, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "timeout"]), Some(&Extension { timeout_s })).await
    }

    pub fn sandbox_history(&self, id: &str) -> Pages<LifeStep> {
        self.list(at(["sandboxes", id, "history"]), &()).at_once()
    }

    pub async fn sandbox_metrics(&self, id: &str, query: &SampleQuery) -> Result<Vec<SandboxSample>, Error> {
        self.list(at(["sandboxes", id, "metrics"]), query).at_once().all().await
    }

    pub async fn create_snapshot(
        &self,
        id: &str,
        new: &NewSnapshot,
        idempotency_key: Option<&str>,
    ) -> Result<Snapshot, Error> {
        self.call_once(&at(["sandboxes", id, "snapshots"]), new, idempotency_key).await
    }

    pub fn snapshots(&self, query: &SnapshotQuery) -> Pages<Snapshot> {
        self.list(at(["snapshots"]), query)
    }

    pub async fn snapshot(&self, id: &str) -> Result<Snapshot, Error> {
        self.get(&at(["snapshots", id])).await
    }

    pub async fn delete_snapshot(&self, id: &str) -> Result<(), Error> {
        self.delete(&at(["snapshots", id])).await
    }

    pub async fn roll_back(&self, id: &str, body: &RollbackBody) -> Result<Sandbox, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "rollback"]), Some(body)).await
    }

    pub async fn fork(&self, id: &str, new: &NewFork, idempotency_key: Option<&str>) -> Result<Fork, Error> {
        self.call_once(&at(["sandboxes", id, "fork"]), new, idempotency_key).await
    }

    pub async fn lineage(&self, id: &str) -> Result<Family, Error> {
        self.get(&at(["sandboxes", id, "lineage"])).await
    }

    /// Runs a command and returns its output as text. [`Client::guest`] streams bytes and has stdin.
    pub async fn exec(&self, id: &str, command: &NewCommand) -> Result<Ran, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "exec"]), Some(command)).await
    }

    /// Runs a command that has `background` set; returns as soon as it runs.
    pub async fn exec_in_background(&self, id: &str, command: &NewCommand) -> Result<Running, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "exec"]), Some(command)).await
    }

    /// Runs a command and returns its output as text while it runs. It keeps running if the result is dropped.
    pub async fn exec_stream(&self, id: &str, command: &NewCommand) -> Result<Run, Error> {
        Run::start(self, &at(["sandboxes", id, "exec"]), command).await
    }

    /// The stored bytes of an execution's output, to the end.
    pub async fn execution_output(&self, id: &str, query: &OutputQuery) -> Result<FileContent, Error> {
        let query = encode(&OutputQuery { raw: Some(true), ..query.clone() });
        self.content(&with_query(at(["executions", id, "output"]), &query)).await
    }

    /// Running processes that clients started. Wakes nothing.
    pub fn processes(&self, id: &str) -> Pages<Process> {
        self.list(at(["sandboxes", id, "processes"]), &WatchQuery { watch: Some(true) }).at_once()
    }

    pub async fn kill_process(&self, id: &str, pid: u32, query: &SignalQuery) -> Result<(), Error> {
        self.delete(&with_query(at(["sandboxes", id, "processes", &pid.to_string()]), &encode(query))).await
    }

    pub fn executions(&self, query: &ExecutionQuery) -> Pages<Execution> {
        self.list(at(["executions"]), query)
    }

    pub async fn execution(&self, id: &str) -> Result<Execution, Error> {
        self.get(&at(["executions", id])).await
    }

    /// Lines of a sandbox's log, oldest first.
    pub fn logs(&self, id: &str, query: &LogQuery) -> Pages<LogLine> {
        self.list(at(["sandboxes", id, "logs"]), query)
    }

    /// Lines of all sandboxes' logs.
    pub fn search_logs(&self, query: &LogQuery) -> Pages<FoundLine> {
        self.list(at(["logs"]), query)
    }

    /// A sandbox's events and the output of its processes, as they happen. `after` is a message's id; `0-0` is the
    /// beginning.
    pub fn follow_sandbox(&self, id: &str, after: Option<&str>) -> Follow {
        let query = PlaceQuery { after: after.map(str::to_string) };
        Follow::new(self.clone(), with_query(at(["sandboxes", id, "stream"]), &encode(&query)))
    }

    /// Recorded events, oldest first.
    pub fn events(&self, query: &EventQuery) -> Pages<Event> {
        self.list(at(["events"]), query)
    }

    /// Events as they happen; the data of each message is an [`Event`]. Begins after a sequence number, or now.
    pub fn follow_events(&self, query: &EventQuery, after: Option<u64>) -> Follow {
        let position = encode(&AfterQuery { after });
        let filter = encode(query);
        let joined =
            [filter, position].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("&");
        Follow::new(self.clone(), with_query(at(["events", "stream"]), &joined))
    }

    /// The state of a repository's work tree in a sandbox.
    pub async fn git_status(
        &self,
        id: &str,
        query: &coffer_api_types::git::RepositoryQuery,
    ) -> Result<WorkTree, Error> {
        self.get(&with_query(at(["sandboxes", id, "status"]), &encode(query))).await
    }

    pub async fn git_diff(&self, id: &str, query: &DiffQuery) -> Result<WorkTreeDiff, Error> {
        self.get(&with_query(at(["sandboxes", id, "diff"]), &encode(query))).await
    }

    pub async fn git_clone(&self, id: &str, new: &NewClone) -> Result<Cloned, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "clone"]), Some(new)).await
    }

    pub async fn git_commit(&self, id: &str, new: &NewCommit) -> Result<Committed, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "commit"]), Some(new)).await
    }

    pub async fn git_push(&self, id: &str, new: &NewPush) -> Result<Pushed, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "push"]), Some(new)).await
    }

    /// Opens a pull request from a branch that was pushed, or returns the open one.
    pub async fn git_propose(&self, id: &str, new: &NewPullRequest) -> Result<PullRequest, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "pr"]), Some(new)).await
    }
}
