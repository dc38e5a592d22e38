//! How competitions look.

use coffer_core::compete::{CompetitionState, DiffSize, EntryState, Rule, files_of};
use coffer_core::{AgentId, SandboxId};
use coffer_store::{CompetitionRow, EntryPatch, EntryRow, RunFailure};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::v1::tasks::amount;
use coffer_core::clock::rfc3339;

#[derive(Debug, ToSchema)]
#[schema(as = CompetitionState, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(super) enum StateShape {
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
pub(super) enum EntryStateShape {
    Queued,
    Forked,
    Working,
    Checking,
    Done,
    Failed,
    Cancelled,
}

/// How the winner is found: a person picks, or the first by rank whose checks passed.
#[derive(Debug, ToSchema)]
#[schema(as = CompetitionRule, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a type of another crate")]
pub(in crate::v1) enum RuleShape {
    Manual,
    Best,
}

/// Agents that are to compete, each in a fork of the same sandbox.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::v1) struct NewCompetition {
    #[schema(max_length = 500)]
    pub(super) title: String,
    /// What every agent is asked to do, unless its entry says otherwise.
    #[serde(default)]
    pub(super) prompt: String,
    /// The repository to work on. Where a sandbox is given, the one that it has, unless it has several.
    #[serde(default)]
    pub(super) repository: Option<String>,
    /// A running sandbox that is prepared already: it is forked, and otherwise left alone.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(super) sandbox_id: Option<SandboxId>,
    /// Where the branches begin; the repository's own by default.
    #[serde(default)]
    pub(super) base_branch: Option<String>,
    /// What must pass in each fork, as a line for a shell.
    #[serde(default)]
    #[schema(example = "make test")]
    pub(super) check_command: Option<String>,
    /// Names whatever it belongs to elsewhere.
    #[serde(default)]
    pub(super) context_id: Option<String>,
    /// The template of the sandbox that is prepared; the server's usual one by default.
    #[serde(default)]
    pub(super) template: Option<String>,
    /// Run once before the fork, in the repository.
    #[serde(default)]
    #[schema(example = "npm ci")]
    pub(super) prepare_command: Option<String>,
    /// At most as many as the quota `forks` allows: 5 by default.
    #[schema(min_items = 1, max_items = 100)]
    pub(super) entries: Vec<NewEntry>,
    /// `manual` by default.
    #[serde(default)]
    #[schema(value_type = Option<RuleShape>)]
    pub(super) rule: Option<Rule>,
    /// What all of it may cost, in the server's currency.
    #[serde(default)]
    pub(super) budget: Option<f64>,
    /// How long a person may take to pick, in seconds; a day by default.
    #[serde(default)]
    #[schema(minimum = 60, maximum = 604800)]
    pub(super) decide_within_s: Option<i64>,
}

/// Who competes for a task, and by what terms.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CompetitionTerms)]
pub(in crate::v1) struct Terms {
    /// The template of the sandbox that is prepared; the server's usual one by default.
    #[serde(default)]
    pub(in crate::v1) template: Option<String>,
    /// Run once before the fork, in the repository.
    #[serde(default)]
    #[schema(example = "npm ci")]
    pub(in crate::v1) prepare_command: Option<String>,
    /// At most as many as the quota `forks` allows: 5 by default.
    #[schema(min_items = 1, max_items = 100)]
    pub(in crate::v1) entries: Vec<NewEntry>,
    /// `manual` by default.
    #[serde(default)]
    #[schema(value_type = Option<RuleShape>)]
    pub(in crate::v1) rule: Option<Rule>,
    /// What all of it may cost, in the server's currency.
    #[serde(default)]
    pub(in crate::v1) budget: Option<f64>,
    /// How long a person may take to pick, in seconds; a day by default.
    #[serde(default)]
    #[schema(minimum = 60, maximum = 604800)]
    pub(in crate::v1) decide_within_s: Option<i64>,
}

/// One who is to compete.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewCompetitionEntry)]
pub(in crate::v1) struct NewEntry {
    /// The agent's name by default.
    #[serde(default)]
    pub(super) label: Option<String>,
    /// Needed, unless a task has one.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(super) agent_id: Option<AgentId>,
    /// In place of the agent's own.
    #[serde(default)]
    pub(super) model: Option<String>,
    /// In place of the common one.
    #[serde(default)]
    pub(super) prompt: Option<String>,
    /// What this fork may cost, in the server's currency.
    #[serde(default)]
    pub(super) budget: Option<f64>,
}

/// Why something failed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompetitionFailure)]
pub(super) struct Failure {
    code: String,
    message: String,
    step: Option<String>,
}

fn failure(failure: RunFailure) -> Failure {
    Failure { code: failure.code, message: failure.message, step: failure.step }
}

/// Agents that compete, each in a fork of the same sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::v1) struct Competition {
    id: String,
    run_id: String,
    /// The task that it is an attempt at.
    task_id: Option<String>,
    context_id: Option<String>,
    title: String,
    prompt: String,
    repository: Option<String>,
    base_branch: Option<String>,
    /// The commit that all begin at.
    base_commit: Option<String>,
    /// The sandbox that is forked.
    sandbox_id: Option<String>,
    template: Option<String>,
    prepare_command: Option<String>,
    check_command: Option<String>,
    #[schema(value_type = RuleShape)]
    rule: Rule,
    budget: Option<f64>,
    /// What the forks cost together; null until that is known.
    cost: Option<f64>,
    #[schema(value_type = StateShape)]
    state: CompetitionState,
    /// Until when a person can pick.
    decide_by: Option<String>,
    /// The number of the entry that won.
    winner: Option<i64>,
    /// `rule`, or who picked.
    picked_by: Option<String>,
    pull_url: Option<String>,
    error: Option<Failure>,
    /// By number.
    entries: Vec<Entry>,
    created_by: String,
    created_at: String,
    updated_at: String,
    ended_at: Option<String>,
}

impl Competition {
    pub(super) fn of(row: CompetitionRow, entries: Vec<EntryRow>) -> Self {
        let costs: Vec<i64> = entries.iter().filter_map(|entry| entry.cost_nanos).collect();
        let cost = (!costs.is_empty()).then(|| amount(costs.into_iter().fold(0, i64::saturating_add)));
        let (winner, pull_url) = (row.winner, row.pull_url.clone());
        let shown = |entry: EntryRow| {
            let pull_url = pull_url.clone().filter(|_| winner == Some(entry.number));
            Entry::of(entry, pull_url)
        };
        Self {
            id: row.id.to_string(),
            run_id: row.run.to_string(),
            task_id: row.task.map(|task| task.to_string()),
            context_id: row.context_id,
            title: row.title,
            prompt: row.prompt,
            repository: row.repository,
            base_branch: row.base_branch,
            base_commit: row.base_commit,
            sandbox_id: row.sandbox.or(row.source).map(|sandbox| sandbox.to_string()),
            template: row.template,
            prepare_command: row.prepare_command,
            check_command: row.check_command,
            rule: row.rule,
            budget: row.budget_nanos.map(amount),
            cost,
            state: row.state,
            decide_by: row.decide_by_ms.filter(|_| row.state == CompetitionState::Waiting).map(rfc3339),
            winner,
            picked_by: row.picked_by,
            entries: entries.into_iter().map(shown).collect(),
            pull_url: row.pull_url,
            error: row.error.map(failure),
            created_by: row.created_by,
            created_at: rfc3339(row.created_ms),
            updated_at: rfc3339(row.updated_ms),
            ended_at: row.ended_ms.map(rfc3339),
        }
    }
}

/// What became of the check command.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompetitionCheck)]
pub(super) struct Check {
    passed: bool,
    /// Null where its time was up.
    exit_code: Option<i64>,
    execution_id: Option<String>,
}

/// How much was changed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompetitionDiffSize)]
pub(super) struct Size {
    files: u64,
    /// Lines.
    added: u64,
    removed: u64,
}

fn size(diff: DiffSize) -> Size {
    Size { files: diff.files, added: diff.added, removed: diff.removed }
}

/// One who competes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompetitionEntry)]
pub(in crate::v1) struct Entry {
    number: i64,
    label: String,
    agent_id: String,
    model: Option<String>,
    prompt: Option<String>,
    budget: Option<f64>,
    #[schema(value_type = EntryStateShape)]
    state: EntryState,
    /// Gone when the competition has ended.
    sandbox_id: Option<String>,
    /// Where its agent's output is.
    execution_id: Option<String>,
    exit_code: Option<i64>,
    check: Option<Check>,
    diff: Option<Size>,
    /// How long its agent took.
    duration_ms: Option<i64>,
    /// What its sandbox cost, in the server's currency.
    cost: Option<f64>,
    /// What its agent cost by its own account, in dollars.
    agent_cost: Option<f64>,
    input_tokens: Option<i64>,
    output_tokens: Option<i64>,
    /// From 1, the best.
    rank: Option<i64>,
    /// Why it has that place, in plain words.
    reasons: Vec<String>,
    /// Whether it can be picked.
    can_win: bool,
    branch: Option<String>,
    commit: Option<String>,
    /// The winner's.
    pull_url: Option<String>,
    /// Its agent's last words.
    summary: Option<String>,
    error: Option<Failure>,
    started_at: Option<String>,
    ended_at: Option<String>,
}

fn check(row: &EntryRow) -> Option<Check> {
    row.check.map(|check| Check {
        passed: check.passed,
        exit_code: check.exit_code,
        execution_id: check.execution.map(|execution| execution.to_string()),
    })
}

impl Entry {
    fn of(row: EntryRow, pull_url: Option<String>) -> Self {
        Self {
            check: check(&row),
            can_win: row.can_win(),
            number: row.number,
            label: row.label,
            agent_id: row.agent.to_string(),
            model: row.model,
            prompt: row.prompt,
            budget: row.budget_nanos.map(amount),
            state: row.state,
            sandbox_id: row.sandbox.map(|sandbox| sandbox.to_string()),
            execution_id: row.execution.map(|execution| execution.to_string()),
            exit_code: row.exit_code,
            diff: row.diff.map(size),
            duration_ms: row.duration_ms,
            cost: row.cost_nanos.map(amount),
            agent_cost: row.agent_cost_nanos.map(amount),
            input_tokens: row.input_tokens,
            output_tokens: row.output_tokens,
            rank: row.rank,
            reasons: row.reasons,
            branch: row.branch,
            commit: row.commit,
            pull_url,
            summary: row.summary,
            error: row.error.map(failure),
            started_at: row.started_ms.map(rfc3339),
            ended_at: row.ended_ms.map(rfc3339),
        }
    }
}

/// What an entry changed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompetitionDiff)]
pub(in crate::v1) struct Diff {
    pub(super) number: i64,
    pub(super) label: String,
    /// With this and the patch an entry that did not win stays as a revision.
    pub(super) base_commit: Option<String>,
    pub(super) commit: Option<String>,
    pub(super) patch: String,
    /// Whether it is longer than is kept.
    pub(super) truncated: bool,
}

/// Two entries against each other.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompetitionComparison)]
pub(in crate::v1) struct Comparison {
    left: Side,
    right: Side,
    /// By path.
    files: Vec<ComparedFile>,
    /// Whether one of them is longer than is kept.
    truncated: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompetitionSide)]
struct Side {
    number: i64,
    label: String,
    commit: Option<String>,
    rank: Option<i64>,
    check: Option<Check>,
    diff: Option<Size>,
}

fn side(row: &EntryRow) -> Side {
    Side {
        number: row.number,
        label: row.label.clone(),
        commit: row.commit.clone(),
        rank: row.rank,
        check: check(row),
        diff: row.diff.map(size),
    }
}

/// A file that at least one of them changed.
#[derive(Debug, Serialize, ToSchema)]
struct ComparedFile {
    path: String,
    /// Whether both changed it in the same way.
    same: bool,
    left: Option<FileChange>,
    right: Option<FileChange>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompetitionFileChange)]
struct FileChange {
    added: u64,
    removed: u64,
    patch: String,
}

impl Comparison {
    pub(super) fn of(left: (&EntryRow, &EntryPatch), right: (&EntryRow, &EntryPatch)) -> Self {
        let (ours, theirs) = (files_of(&left.1.text), files_of(&right.1.text));
        let paths: std::collections::BTreeSet<&str> = ours.keys().chain(theirs.keys()).copied().collect();
        let change = |file: &coffer_core::compete::FilePatch<'_>| FileChange {
            added: file.added,
            removed: file.removed,
            patch: file.text.to_string(),
        };
        let files = paths.into_iter().map(|path| {
            let (one, other) = (ours.get(path), theirs.get(path));
            ComparedFile {
                path: path.to_string(),
                same: one.zip(other).is_some_and(|(one, other)| one.does_as(other)),
                left: one.map(change),
                right: other.map(change),
            }
        });
        Self {
            files: files.collect(),
            left: side(left.0),
            right: side(right.0),
            truncated: left.1.is_cut || right.1.is_cut,
        }
    }
}
