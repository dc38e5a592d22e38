//! Tasks, attempts, competitions and agents.

use coffer_api_types::Page;
use coffer_api_types::agents::{Agent, AgentSetup, AgentTest, Definition, NewAgent, PresetInfo, SetUpAgent};
use coffer_api_types::artifacts::{Artifact, ArtifactQuery};
use coffer_api_types::attempts::{
    Attempt, Cancel, Message, Move, NewAnswer, NewMessage, Start, StepShape, TaskQuestion,
};
use coffer_api_types::competitions::{
    self, CompareQuery, Comparison, Competition, CompetitionQuery, Diff, NewCompetition, Pick,
};
use coffer_api_types::queue::Queue;
use coffer_api_types::schedules::{ChangedSchedule, NewSchedule, Schedule, ScheduleRun};
use coffer_api_types::tasks::{ChangedTask, NewTask, Task, TaskQuery};
use coffer_api_types::transcripts::{TranscriptEntry, TranscriptQuery};
use http::Method;

use crate::api::FileContent;
use crate::client::{Client, at, encode, with_query};
use crate::error::Error;
use crate::follow::Follow;
use crate::pages::Pages;

impl Client {
    pub async fn create_task(&self, new: &NewTask) -> Result<Task, Error> {
        self.call(Method::POST, &at(["tasks"]), Some(new)).await
    }

    pub fn tasks(&self, query: &TaskQuery) -> Pages<Task> {
        self.list(at(["tasks"]), query)
    }

    pub async fn task(&self, id: &str) -> Result<Task, Error> {
        self.get(&at(["tasks", id])).await
    }

    pub async fn change_task(&self, id: &str, change: &ChangedTask) -> Result<Task, Error> {
        self.call(Method::PATCH, &at(["tasks", id]), Some(change)).await
    }

    pub async fn delete_task(&self, id: &str) -> Result<(), Error> {
        self.delete(&at(["tasks", id])).await
    }

    /// Starts an attempt.
    pub async fn start_task(&self, id: &str, start: &Start) -> Result<Task, Error> {
        self.call(Method::POST, &at(["tasks", id, "start"]), Some(start)).await
    }

    /// Ends the attempt in progress and moves the task to `cancelled`.
    pub async fn cancel_task(&self, id: &str, cancel: &Cancel) -> Result<Task, Error> {
        self.call(Method::POST, &at(["tasks", id, "cancel"]), Some(cancel)).await
    }

    pub async fn create_schedule(&self, new: &NewSchedule) -> Result<Schedule, Error> {
        self.call(Method::POST, &at(["schedules"]), Some(new)).await
    }

    pub fn schedules(&self) -> Pages<Schedule> {
        self.list(at(["schedules"]), &())
    }

    pub async fn schedule(&self, id: &str) -> Result<Schedule, Error> {
        self.get(&at(["schedules", id])).await
    }

    pub async fn change_schedule(&self, id: &str, change: &ChangedSchedule) -> Result<Schedule, Error> {
        self.call(Method::PATCH, &at(["schedules", id]), Some(change)).await
    }

    pub async fn delete_schedule(&self, id: &str) -> Result<(), Error> {
        self.delete(&at(["schedules", id])).await
    }

    /// Starts its task now.
    pub async fn run_schedule(&self, id: &str) -> Result<ScheduleRun, Error> {
        self.call(Method::POST, &at(["schedules", id, "run"]), None::<&()>).await
    }

    /// Stops the turn of the task's agent; the attempt then waits for a person.
    pub async fn interrupt_task(&self, id: &str) -> Result<Task, Error> {
        self.call(Method::POST, &at(["tasks", id, "interrupt"]), None::<&()>).await
    }

    /// What the attempt in progress waits for.
    pub async fn task_question(&self, id: &str) -> Result<TaskQuestion, Error> {
        self.get(&at(["tasks", id, "question"])).await
    }

    pub async fn answer_task(&self, id: &str, answer: &NewAnswer) -> Result<Task, Error> {
        self.call(Method::POST, &at(["tasks", id, "answer"]), Some(answer)).await
    }

    pub async fn say(&self, id: &str, message: &NewMessage) -> Result<Message, Error> {
        self.call(Method::POST, &at(["tasks", id, "messages"]), Some(message)).await
    }

    pub fn messages(&self, id: &str) -> Pages<Message> {
        self.list(at(["tasks", id, "messages"]), &())
    }

    /// Oldest first.
    pub async fn attempts(&self, id: &str) -> Result<Vec<Attempt>, Error> {
        self.get(&at(["tasks", id, "attempts"])).await
    }

    pub async fn task_history(&self, id: &str) -> Result<Vec<Move>, Error> {
        self.get(&at(["tasks", id, "history"])).await
    }

    pub fn transcript(&self, task: &str, query: &TranscriptQuery) -> Pages<TranscriptEntry> {
        self.list(at(["tasks", task, "transcript"]), query)
    }

    /// The last entries of a transcript, in their order.
    pub async fn transcript_end(&self, task: &str, last: i64) -> Result<Vec<TranscriptEntry>, Error> {
        let query = TranscriptQuery { last: Some(last), ..TranscriptQuery::default() };
        let page: Page<TranscriptEntry> =
            self.get(&with_query(at(["tasks", task, "transcript"]), &encode(&query))).await?;
        Ok(page.items)
    }

    /// A transcript as it grows, from its beginning: each message has an entry, new or changed.
    pub fn follow_transcript(&self, task: &str) -> Follow {
        Follow::new(self.clone(), at(["tasks", task, "transcript", "stream"]))
    }

    pub async fn steps(&self, run: &str) -> Result<Vec<StepShape>, Error> {
        self.get(&at(["runs", run, "steps"])).await
    }

    pub async fn queue(&self) -> Result<Queue, Error> {
        self.get(&at(["queue"])).await
    }

    pub async fn create_competition(&self, new: &NewCompetition) -> Result<Competition, Error> {
        self.call(Method::POST, &at(["sandboxes", "fork"]), Some(new)).await
    }

    pub fn competitions(&self, query: &CompetitionQuery) -> Pages<Competition> {
        self.list(at(["sandboxes", "fork"]), query)
    }

    pub async fn competition(&self, id: &str) -> Result<Competition, Error> {
        self.get(&at(["sandboxes", "fork", id])).await
    }

    pub async fn entry_diff(&self, id: &str, entry: i64) -> Result<Diff, Error> {
        self.get(&at(["sandboxes", "fork", id, "entries", &entry.to_string(), "diff"])).await
    }

    pub async fn compare_entries(&self, id: &str, query: &CompareQuery) -> Result<Comparison, Error> {
        self.get(&with_query(at(["sandboxes", "fork", id, "compare"]), &encode(query))).await
    }

    pub async fn pick_winner(&self, id: &str, entry: i64) -> Result<Competition, Error> {
        self.call(Method::POST, &at(["sandboxes", "fork", id, "winner"]), Some(&Pick { entry })).await
    }

    pub async fn cancel_competition(
        &self,
        id: &str,
        cancel: &competitions::Cancel,
    ) -> Result<Competition, Error> {
        self.call(Method::POST, &at(["sandboxes", "fork", id, "cancel"]), Some(cancel)).await
    }

    pub async fn create_agent(&self, new: &NewAgent) -> Result<Agent, Error> {
        self.call(Method::POST, &at(["agents"]), Some(new)).await
    }

    pub fn agents(&self) -> Pages<Agent> {
        self.list(at(["agents"]), &())
    }

    pub async fn agent(&self, id: &str) -> Result<Agent, Error> {
        self.get(&at(["agents", id])).await
    }

    pub async fn define_agent(&self, id: &str, definition: &Definition) -> Result<Agent, Error> {
        self.call(Method::PUT, &at(["agents", id, "definition"]), Some(definition)).await
    }

    pub async fn delete_agent(&self, id: &str) -> Result<(), Error> {
        self.delete(&at(["agents", id])).await
    }

    /// Asks the agent's program for one word; takes up to three minutes.
    pub async fn test_agent(&self, id: &str) -> Result<AgentTest, Error> {
        self.call(Method::POST, &at(["agents", id, "test"]), None::<&()>).await
    }

    /// Stores the key of an agent of a preset, defines the agent, and has its template built.
    pub async fn set_up_agent(&self, preset: &str, setup: &AgentSetup) -> Result<SetUpAgent, Error> {
        self.call(Method::PUT, &at(["agent-presets", preset, "agent"]), Some(setup)).await
    }

    pub async fn agent_presets(&self) -> Result<Vec<PresetInfo>, Error> {
        self.get(&at(["agent-presets"])).await
    }

    pub fn artifacts(&self, query: &ArtifactQuery) -> Pages<Artifact> {
        self.list(at(["artifacts"]), query)
    }

    pub async fn artifact(&self, id: &str) -> Result<Artifact, Error> {
        self.get(&at(["artifacts", id])).await
    }

    pub async fn artifact_content(&self, id: &str) -> Result<FileContent, Error> {
        self.content(&at(["artifacts", id, "content"])).await
    }
}
