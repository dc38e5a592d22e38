//! Checks requests that start a competition.

use coffer_core::compete::{CompetitionTerms, Rule};
use coffer_core::{AgentId, TemplateRef};
use coffer_store::{NewCompetition as NewRow, NewEntry as NewEntryRow, OverQuota, Quota};

use crate::app::App;
use crate::auth::{Caller, Write, not_here};
use crate::error::ApiError;
use crate::v1::board::{check_text, check_title, nanos};
use crate::v1::repositories::plain_name;
use coffer_api_types::competitions::{NewCompetition, NewEntry, Terms};
use coffer_core::Code;
use coffer_fleet::FleetError;

/// A limit independent of the quota.
const MOST_ENTRIES: usize = 100;
const LONGEST_PROMPT: usize = 64 * 1024;
/// All texts together, as JSON: the run's journal has them in one piece, with the task's messages.
const MOST_TEXT: usize = 160 * 1024;
const LONGEST_LABEL: usize = 100;
const LONGEST_TEXT: usize = 1000;
const LONGEST_COMMAND: usize = 8 * 1024;
const LONGEST_MODEL: usize = 200;
const USUAL_DECISION_S: i64 = 24 * 3600;
const DECISION_S: std::ops::RangeInclusive<i64> = 60..=7 * 24 * 3600;

/// Checks a request and returns the row to store.
pub(super) async fn checked(
    app: &App,
    caller: &Caller<Write>,
    request: NewCompetition,
) -> Result<NewRow, ApiError> {
    check_title(&request.title)?;
    check_prompt("prompt", &request.prompt)?;
    let texts = [
        ("repository", &request.repository, LONGEST_TEXT),
        ("base_branch", &request.base_branch, LONGEST_TEXT),
        ("check_command", &request.check_command, LONGEST_COMMAND),
        ("context_id", &request.context_id, LONGEST_TEXT),
    ];
    for (field, text, longest) in texts {
        check_text(field, text.as_deref(), longest)?;
    }
    if request.sandbox_id.is_some() && request.template.is_some() {
        return Err(ApiError::invalid("template", "cannot be combined with sandbox_id"));
    }
    let repository = repository(app, caller, &request).await?;
    let terms = Terms {
        template: request.template,
        prepare_command: request.prepare_command,
        entries: request.entries,
        rule: request.rule,
        budget: request.budget,
        decide_within_s: request.decide_within_s,
    };
    let mut new = checked_terms(app, caller, terms, None).await?;
    new.terms = CompetitionTerms {
        title: request.title,
        prompt: request.prompt,
        repository: Some(repository),
        source: request.sandbox_id,
        base_branch: request.base_branch,
        check_command: request.check_command,
        context_id: request.context_id,
        ..new.terms
    };
    check_size(&new)?;
    Ok(new)
}

/// Checks the total length of its texts.
pub(in crate::v1) fn check_size(new: &NewRow) -> Result<(), ApiError> {
    let terms = &new.terms;
    let shared = [
        Some(&terms.title),
        Some(&terms.prompt),
        terms.prepare_command.as_ref(),
        terms.check_command.as_ref(),
    ];
    let own = new
        .entries
        .iter()
        .flat_map(|entry| [Some(&entry.label), entry.prompt.as_ref(), entry.model.as_ref()]);
    let texts = shared.into_iter().chain(own).flatten();
    let size: usize = texts.map(|text| serde_json::json!(text).to_string().len()).sum();
    if size <= MOST_TEXT {
        return Ok(());
    }
    let why = format!("and commands may come to at most {} KiB in all", MOST_TEXT / 1024);
    Err(ApiError::invalid("prompts", why)
        .hint("put long texts into files of the repository and refer to them"))
}

/// Checks the entries and terms; the caller fills in the work.
pub(in crate::v1) async fn checked_terms(
    app: &App,
    caller: &Caller<Write>,
    terms: Terms,
    usual: Option<AgentId>,
) -> Result<NewRow, ApiError> {
    check_text("prepare_command", terms.prepare_command.as_deref(), LONGEST_COMMAND)?;
    if let Some(template) = &terms.template {
        template
            .parse::<TemplateRef>()
            .map_err(|error| ApiError::invalid("template", format!("is not usable: {error}")))?;
    }
    let decide_within_s = terms.decide_within_s.unwrap_or(USUAL_DECISION_S);
    if !DECISION_S.contains(&decide_within_s) {
        let why = format!("must be between {} and {}", DECISION_S.start(), DECISION_S.end());
        return Err(ApiError::invalid("decide_within_s", why));
    }
    check_number(app, caller, terms.entries.len()).await?;
    let mut entries = Vec::with_capacity(terms.entries.len());
    for (index, entry) in terms.entries.into_iter().enumerate() {
        entries.push(checked_entry(app, caller, index, entry, usual).await?);
    }
    let terms = CompetitionTerms {
        title: String::new(),
        prompt: String::new(),
        repository: None,
        source: None,
        base_branch: None,
        template: terms.template,
        prepare_command: terms.prepare_command,
        check_command: None,
        rule: terms.rule.unwrap_or(Rule::Manual),
        budget_nanos: terms.budget.map(nanos).transpose()?,
        decide_within_s,
        context_id: None,
    };
    Ok(NewRow { terms, entries, actor: caller.actor(), idempotency: None })
}

/// Checks the number of entries against the quota `forks`.
async fn check_number(app: &App, caller: &Caller<Write>, number: usize) -> Result<(), ApiError> {
    if !(1..=MOST_ENTRIES).contains(&number) {
        return Err(ApiError::invalid("entries", format!("must be 1 to {MOST_ENTRIES}")));
    }
    let quotas = app.store.quotas(&caller.scope, caller.scope.project()).await.map_err(ApiError::store)?;
    let limit = quotas.and_then(|quotas| quotas.in_force.forks);
    let asked = i64::try_from(number).unwrap_or(i64::MAX);
    match limit {
        Some(limit) if asked > limit => {
            let over = OverQuota { quota: Quota::Forks, limit, used: 0, asked, frees_in_ms: None };
            Err(ApiError::fleet(FleetError::OverQuota(over), ""))
        }
        _ => Ok(()),
    }
}

async fn checked_entry(
    app: &App,
    caller: &Caller<Write>,
    index: usize,
    entry: NewEntry,
    usual: Option<AgentId>,
) -> Result<NewEntryRow, ApiError> {
    let field = |name: &str| format!("entries[{index}].{name}");
    check_text(&field("label"), entry.label.as_deref(), LONGEST_LABEL)?;
    if let Some(prompt) = &entry.prompt {
        check_prompt(&field("prompt"), prompt)?;
    }
    let fits = |model: &String| !model.is_empty() && model.len() <= LONGEST_MODEL && !model.starts_with('-');
    if !entry.model.iter().all(fits) {
        let why = format!("must have 1 to {LONGEST_MODEL} bytes and not begin with a dash");
        return Err(ApiError::invalid(&field("model"), why));
    }
    let agent = entry.agent_id.or(usual);
    let agent = agent.ok_or_else(|| ApiError::invalid(&field("agent_id"), "is needed"))?;
    let found = app.store.agent(&caller.scope, agent).await.map_err(ApiError::store)?;
    let Some(found) = found else {
        return Err(ApiError::invalid(
            &field("agent_id"),
            format!("names no agent of this project: {agent}"),
        ));
    };
    if found.sealed {
        let message = format!("agent '{}' is sealed under a missing master key", found.name);
        return Err(
            ApiError::conflict(message).hint("put the lost master key back, or define the agent again")
        );
    }
    if found.definition.is_none() {
        let why = format!("names agent '{}', which has no definition", found.name);
        return Err(ApiError::invalid(&field("agent_id"), why)
            .hint("set one with PUT /api/v1/agents/{agent}/definition"));
    }
    Ok(NewEntryRow {
        label: entry.label.unwrap_or(found.name),
        agent,
        model: entry.model,
        prompt: entry.prompt,
        budget_nanos: entry.budget.map(nanos).transpose()?,
    })
}

/// The repository to work on, if it exists.
async fn repository(app: &App, caller: &Caller<Write>, request: &NewCompetition) -> Result<String, ApiError> {
    if let Some(sandbox) = request.sandbox_id {
        let text = sandbox.to_string();
        if app.fleet.find(&caller.scope, sandbox).is_none() {
            return Err(not_here(app, &caller.scope, sandbox, &text).await);
        }
        if request.repository.is_none() {
            let remotes = app.store.git_remotes(&caller.scope, sandbox).await.map_err(ApiError::store)?;
            return match &remotes[..] {
                [one] => Ok(one.slug.clone()),
                [] => Err(ApiError::invalid(
                    "sandbox_id",
                    format!("names sandbox '{text}', which has no repository"),
                )
                .hint("clone one with POST /api/v1/sandboxes/{id}/clone")),
                _ => Err(ApiError::invalid("repository", "is needed: the sandbox has several")),
            };
        }
    }
    let Some(name) = &request.repository else {
        return Err(ApiError::invalid("repository", "is needed, or the sandbox_id of one that has it"));
    };
    let plain = plain_name(name);
    let found = app.store.repository(&caller.scope, plain).await.map_err(ApiError::store)?;
    let shown: String = name.chars().take(64).collect();
    found.ok_or_else(|| {
        ApiError::of(Code::NotFound, format!("repository '{shown}' not found"))
            .hint("GET /api/v1/repositories lists the existing ones")
    })?;
    Ok(plain.to_string())
}

fn check_prompt(field: &str, prompt: &str) -> Result<(), ApiError> {
    if prompt.len() <= LONGEST_PROMPT && !prompt.contains('\0') {
        return Ok(());
    }
    Err(ApiError::invalid(field, format!("may have at most {} KiB, without NUL", LONGEST_PROMPT / 1024)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_into_a_journal_together_or_are_refused() {
        let entry = |prompt: String| NewEntryRow {
            label: "one".into(),
            agent: AgentId::generate(),
            model: None,
            prompt: Some(prompt),
            budget_nanos: None,
        };
        let terms = CompetitionTerms {
            title: "Fix it".into(),
            prompt: String::new(),
            repository: None,
            source: None,
            base_branch: None,
            template: None,
            prepare_command: None,
            check_command: None,
            rule: Rule::Manual,
            budget_nanos: None,
            decide_within_s: USUAL_DECISION_S,
            context_id: None,
        };
        let with = |prompts: Vec<String>| NewRow {
            terms: terms.clone(),
            entries: prompts.into_iter().map(entry).collect(),
            actor: "key:k".into(),
            idempotency: None,
        };
        let long = || "x".repeat(LONGEST_PROMPT);
        assert!(check_size(&with(vec![long(), long()])).is_ok());
        let error = check_size(&with(vec![long(), long(), long()])).unwrap_err();
        let (code, message, _) = error.into_parts();
        assert_eq!(code, Code::Invalid);
        assert!(message.contains("at most 160 KiB"), "{message}");
        // JSON escapes make lines and quotes longer.
        assert!(check_size(&with(vec!["\n".repeat(LONGEST_PROMPT), long()])).is_err());
    }
}
