//! Competitions: agents at the same work in forks of one sandbox.

use coffer_core::compete::{CompetitionState, EntryState, Rule};
use coffer_core::{AgentId, SandboxId, TaskId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Debug, ToSchema)]
#[schema(as = CompetitionState, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum StateShape {
    Queued,
    Preparing,
    Working,
    Judging,
    Waiting,
    Publishing,
    Decided,
    Failed,
    Cancelled,
}

#[derive(Debug, ToSchema)]
#[schema(as = CompetitionEntryState, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum EntryStateShape {
    Queued,
    Forked,
    Working,
    Checking,
    Done,
    Failed,
    Cancelled,
}

/// How the winner is chosen: a person picks, or the first by rank whose checks passed.
#[derive(Debug, ToSchema)]
#[schema(as = CompetitionRule, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(crate) enum RuleShape {
    Manual,
    Best,
}

/// A competition to start: agents that work in forks of the same sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCompetition {
    #[schema(max_length = 500)]
    pub title: String,
    /// The prompt of every agent, unless its entry has its own.
    #[serde(default)]
    pub prompt: String,
    /// The repository to work on. With `sandbox_id`, the sandbox's own by default, unless it has several.
    #[serde(default)]
    pub repository: Option<String>,
    /// A running sandbox that is already prepared: it is forked, and otherwise left as it is.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub sandbox_id: Option<SandboxId>,
    /// The branch to start from; the repository's default branch by default.
    #[serde(default)]
    pub base_branch: Option<String>,
    /// A shell command line that must pass in each fork.
    #[serde(default)]
    #[schema(example = "make test")]
    pub check_command: Option<String>,
    /// Any name, such as that of something in another system that it belongs to.
    #[serde(default)]
    pub context_id: Option<String>,
    /// The template of the sandbox that is prepared; the server's default if null.
    #[serde(default)]
    pub template: Option<String>,
    /// Run once before the fork, in the repository.
    #[serde(default)]
    #[schema(example = "npm ci")]
    pub prepare_command: Option<String>,
    /// At most as many as the quota `forks` allows: 5 by default.
    #[schema(min_items = 1, max_items = 100)]
    pub entries: Vec<NewEntry>,
    /// `manual` by default.
    #[serde(default)]
    #[schema(value_type = Option<RuleShape>)]
    pub rule: Option<Rule>,
    /// The most that all entries may cost together, in the server's currency.
    #[serde(default)]
    pub budget: Option<f64>,
    /// How long a person may take to pick, in seconds; a day by default.
    #[serde(default)]
    #[schema(minimum = 60, maximum = 604800)]
    pub decide_within_s: Option<i64>,
}

/// The entries and terms of a competition for a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CompetitionTerms)]
pub struct Terms {
    /// The template of the sandbox that is prepared; the server's default if null.
    #[serde(default)]
    pub template: Option<String>,
    /// Run once before the fork, in the repository.
    #[serde(default)]
    #[schema(example = "npm ci")]
    pub prepare_command: Option<String>,
    /// At most as many as the quota `forks` allows: 5 by default.
    #[schema(min_items = 1, max_items = 100)]
    pub entries: Vec<NewEntry>,
    /// `manual` by default.
    #[serde(default)]
    #[schema(value_type = Option<RuleShape>)]
    pub rule: Option<Rule>,
    /// The most that all entries may cost together, in the server's currency.
    #[serde(default)]
    pub budget: Option<f64>,
    /// How long a person may take to pick, in seconds; a day by default.
    #[serde(default)]
    #[schema(minimum = 60, maximum = 604800)]
    pub decide_within_s: Option<i64>,
}

/// A new entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewCompetitionEntry)]
pub struct NewEntry {
    /// The agent's name by default.
    #[serde(default)]
    pub label: Option<String>,
    /// Required, unless the task has one.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Instead of the agent's own.
    #[serde(default)]
    pub model: Option<String>,
    /// Instead of the common one.
    #[serde(default)]
    pub prompt: Option<String>,
    /// The most that this fork may cost, in the server's currency.
    #[serde(default)]
    pub budget: Option<f64>,
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = CompetitionFailure)]
pub struct Failure {
    pub code: String,
    pub message: String,
    pub step: Option<String>,
}

/// A competition: agents that work in forks of the same sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Competition {
    pub id: String,
    pub run_id: String,
    /// The task of which this is an attempt.
    pub task_id: Option<String>,
    pub context_id: Option<String>,
    pub title: String,
    pub prompt: String,
    pub repository: Option<String>,
    pub base_branch: Option<String>,
    /// The commit that all entries start from.
    pub base_commit: Option<String>,
    /// The sandbox that is forked.
    pub sandbox_id: Option<String>,
    pub template: Option<String>,
    pub prepare_command: Option<String>,
    pub check_command: Option<String>,
    #[schema(value_type = RuleShape)]
    pub rule: Rule,
    pub budget: Option<f64>,
    /// The total cost of the forks; null until it is known.
    pub cost: Option<f64>,
    #[schema(value_type = StateShape)]
    pub state: CompetitionState,
    /// Until when a person can pick.
    pub decide_by: Option<String>,
    /// The number of the entry that won.
    pub winner: Option<i64>,
    /// `rule`, or the caller that picked.
    pub picked_by: Option<String>,
    pub pull_url: Option<String>,
    pub error: Option<Failure>,
    /// By number.
    pub entries: Vec<Entry>,
    pub created_by: String,
    pub created_at: String,
    pub updated_at: String,
    pub ended_at: Option<String>,
}

/// The result of the check command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = CompetitionCheck)]
pub struct Check {
    pub passed: bool,
    /// Null if it timed out.
    pub exit_code: Option<i64>,
    pub execution_id: Option<String>,
}

/// The size of a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = CompetitionDiffSize)]
pub struct Size {
    pub files: u64,
    /// Lines.
    pub added: u64,
    pub removed: u64,
}

/// An entry of a competition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = CompetitionEntry)]
pub struct Entry {
    pub number: i64,
    pub label: String,
    pub agent_id: String,
    pub model: Option<String>,
    pub prompt: Option<String>,
    pub budget: Option<f64>,
    #[schema(value_type = EntryStateShape)]
    pub state: EntryState,
    /// Null after the competition has ended.
    pub sandbox_id: Option<String>,
    /// The execution that has its agent's output.
    pub execution_id: Option<String>,
    pub exit_code: Option<i64>,
    pub check: Option<Check>,
    pub diff: Option<Size>,
    /// How long its agent took.
    pub duration_ms: Option<i64>,
    /// What its sandbox cost, in the server's currency.
    pub cost: Option<f64>,
    /// The cost that its agent reports, in dollars.
    pub agent_cost: Option<f64>,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    /// From 1, the best entry.
    pub rank: Option<i64>,
    /// Why it has this rank, in words.
    pub reasons: Vec<String>,
    /// Whether it can be picked.
    pub can_win: bool,
    pub branch: Option<String>,
    pub commit: Option<String>,
    /// Only of the winner.
    pub pull_url: Option<String>,
    /// The last message of its agent.
    pub summary: Option<String>,
    pub error: Option<Failure>,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
}

/// The changes of an entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = CompetitionDiff)]
pub struct Diff {
    pub number: i64,
    pub label: String,
    /// With this and the patch, the work of an entry that did not win can be restored.
    pub base_commit: Option<String>,
    pub commit: Option<String>,
    pub patch: String,
    /// Whether the patch was longer than the stored part.
    pub truncated: bool,
}

/// Two entries compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = CompetitionComparison)]
pub struct Comparison {
    pub left: Side,
    pub right: Side,
    /// By path.
    pub files: Vec<ComparedFile>,
    /// Whether one of the patches was longer than the stored part.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = CompetitionSide)]
pub struct Side {
    pub number: i64,
    pub label: String,
    pub commit: Option<String>,
    pub rank: Option<i64>,
    pub check: Option<Check>,
    pub diff: Option<Size>,
}

/// A file that at least one entry changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ComparedFile {
    pub path: String,
    /// Whether both entries made the same change.
    pub same: bool,
    pub left: Option<FileChange>,
    pub right: Option<FileChange>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = CompetitionFileChange)]
pub struct FileChange {
    pub added: u64,
    pub removed: u64,
    pub patch: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CompetitionQuery {
    /// `queued`, `preparing`, `working`, `judging`, `waiting`, `publishing`, `decided`, `failed` or `cancelled`.
    pub state: Option<String>,
    #[param(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    pub context_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CompareQuery {
    /// The numbers of two entries.
    pub left: i64,
    pub right: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pick {
    /// The number of an entry whose `can_win` is true.
    pub entry: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = CompetitionCancel)]
pub struct Cancel {
    /// For people.
    pub reason: Option<String>,
}
