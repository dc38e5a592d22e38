//! Request and response shapes of competitions.

use coffer_core::compete::{CompetitionState, DiffSize, files_of};
use coffer_store::{CompetitionRow, EntryPatch, EntryRow, RunFailure};

use crate::v1::board::amount;
use coffer_api_types::competitions::{
    Check, ComparedFile, Comparison, Competition, Entry, Failure, FileChange, Side, Size,
};
use coffer_core::clock::rfc3339;

fn failure(failure: RunFailure) -> Failure {
    Failure { code: failure.code.to_string(), message: failure.message, step: failure.step }
}

pub(super) fn shown(row: CompetitionRow, entries: Vec<EntryRow>) -> Competition {
    let costs: Vec<i64> = entries.iter().filter_map(|entry| entry.cost_nanos).collect();
    let cost = (!costs.is_empty()).then(|| amount(costs.into_iter().fold(0, i64::saturating_add)));
    let (winner, pull_url) = (row.winner, row.pull_url.clone());
    let shown = |entry: EntryRow| {
        let pull_url = pull_url.clone().filter(|_| winner == Some(entry.number));
        shown_entry(entry, pull_url)
    };
    Competition {
        id: row.id.to_string(),
        run_id: row.run.to_string(),
        task_id: row.task.map(|task| task.to_string()),
        context_id: row.terms.context_id,
        title: row.terms.title,
        prompt: row.terms.prompt,
        repository: row.terms.repository,
        base_branch: row.terms.base_branch,
        base_commit: row.base_commit,
        sandbox_id: row.sandbox.or(row.terms.source).map(|sandbox| sandbox.to_string()),
        template: row.terms.template,
        prepare_command: row.terms.prepare_command,
        check_command: row.terms.check_command,
        rule: row.terms.rule,
        budget: row.terms.budget_nanos.map(amount),
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

fn size(diff: DiffSize) -> Size {
    Size { files: diff.files, added: diff.added, removed: diff.removed }
}

fn check(row: &EntryRow) -> Option<Check> {
    row.check.map(|check| Check {
        passed: check.passed,
        exit_code: check.exit_code,
        execution_id: check.execution.map(|execution| execution.to_string()),
    })
}

fn shown_entry(row: EntryRow, pull_url: Option<String>) -> Entry {
    Entry {
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

pub(super) fn compare(left: (&EntryRow, &EntryPatch), right: (&EntryRow, &EntryPatch)) -> Comparison {
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
    Comparison {
        files: files.collect(),
        left: side(left.0),
        right: side(right.0),
        truncated: left.1.is_cut || right.1.is_cut,
    }
}
