//! Starts and steers tasks for what people do with issues on GitHub: a label, an assignment, a mention.
//!
//! It follows the log of projects whose settings ask for it. The log has what webhooks told; where a connection has no
//! webhook, the forge is asked at intervals, and what it answers is written to the log as well. Each event is handled once
//! (`Store::trigger_task`), and only if its author may write to the repository: GitHub is asked for that each time, because
//! anybody can comment on a public issue, and an agent follows the text it gets.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::clock::now_ms;
use coffer_core::event::{Event, GithubBy};
use coffer_core::forge::ForgeKind;
use coffer_core::{Millis, Priority, ProjectId, RepositoryId, TaskId, TaskState};
use coffer_fleet::Follower;
use coffer_forge::{ForgeError, Forges};
use coffer_store::{
    EventRow, LogReader, NewTask, PollDue, ProjectScope, Remark, RepositoryRow, Store, StoreError, TaskError,
    TaskRules, Triggered,
};
use futures_util::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use crate::issues::{self, IssueWords};
use crate::tasks::Tasks;

const PAGE: u32 = 200;
const LOOK: Duration = Duration::from_secs(1);
/// Projects handled concurrently.
const AT_ONCE: usize = 8;
/// How long one project may take before others have their turn; the rest is done later.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is older is not acted on: a server that was away does not start the work of last week.
const OLDEST_MS: Millis = 3_600_000;
/// Most repositories of a project that are asked in one round.
const MOST_POLLS: u32 = 50;

/// Follows issues.
#[derive(Debug)]
pub struct Triggers {
    pub store: Store,
    pub forges: Arc<Forges>,
    pub tasks: Arc<Tasks>,
    /// How often a repository without webhooks is asked.
    pub poll_every: Duration,
}

/// What somebody wants of an issue or a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wish {
    repository: RepositoryId,
    number: i64,
    on_pull: bool,
    by: String,
    remark: Option<Remark>,
}

/// Why an event is not handled.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Forge(#[from] ForgeError),
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Trouble {
    /// Whether the same may work later.
    fn is_transient(&self) -> bool {
        match self {
            Self::Forge(error) => error.is_transient(),
            Self::Task(TaskError::Store(error)) | Self::Store(error) => {
                matches!(error, StoreError::Transient { .. })
            }
            Self::Task(_) => false,
        }
    }
}

impl Triggers {
    /// Follows until `stop`.
    pub async fn follow(self, stop: CancellationToken) {
        let mut follower = Follower::new("could not follow issues, trying again", LOOK, stop.clone());
        loop {
            let looked = tokio::select! {
                () = stop.cancelled() => return,
                looked = self.look() => looked,
            };
            if !follower.again(looked).await {
                return;
            }
        }
    }

    async fn look(&self) -> Result<(), StoreError> {
        let all = self.store.settings_changed_since(&self.store.operator(), 0).await?;
        let listening = all.into_iter().filter(|found| found.settings.tasks.listens());
        let looks = stream::iter(listening).map(|found| async move {
            let look = self.look_at(found.project, &found.settings.tasks);
            // Of one that takes too long, the rest is done at the next look.
            tokio::time::timeout(PATIENCE, look).await.unwrap_or(Ok(()))
        });
        let mut looks = looks.buffer_unordered(AT_ONCE);
        while let Some(looked) = looks.next().await {
            looked?;
        }
        Ok(())
    }

    async fn look_at(&self, project: ProjectId, rules: &TaskRules) -> Result<(), StoreError> {
        let operator = self.store.operator();
        let every = i64::try_from(self.poll_every.as_millis()).unwrap_or(i64::MAX);
        for due in self.store.claim_polls(&operator, project, every, MOST_POLLS).await? {
            self.poll(due).await?;
        }
        let Some((behind, has_begun)) = self.store.reader_of(&operator, LogReader::Triggers, project).await?
        else {
            return Ok(());
        };
        if !has_begun || behind.position >= behind.newest {
            // What was before the settings is not heard.
            if !has_begun {
                self.store.pass_events(&operator, LogReader::Triggers, behind, behind.newest).await?;
            }
            return Ok(());
        }
        let scope = operator.acting_for(project, None);
        let events = self.store.events(&scope, behind.position, PAGE).await?;
        let mut to = events.last().map_or(behind.newest, |last| last.sequence);
        for row in &events {
            match self.handle(&scope, rules, row).await {
                Ok(()) => {}
                Err(Trouble::Store(StoreError::Closed)) => return Err(StoreError::Closed),
                Err(trouble) if trouble.is_transient() => {
                    tracing::debug!("an issue of project {project} is handled later: {trouble}");
                    to = row.sequence - 1;
                    break;
                }
                Err(trouble) => tracing::warn!("an event of project {project} started no task: {trouble}"),
            }
        }
        if to > behind.position {
            self.store.pass_events(&operator, LogReader::Triggers, behind, to).await?;
        }
        Ok(())
    }

    /// Asks a repository's forge what happened, and writes it to the log.
    async fn poll(&self, due: PollDue) -> Result<(), StoreError> {
        let operator = self.store.operator();
        let scope = operator.acting_for(due.project, None);
        let Some(row) = self.store.repository(&scope, &due.repository.to_string()).await? else {
            return Ok(());
        };
        let (since, next) = match self.forges.poll(&scope, &row, due.since_ms).await {
            Ok(newest) => (newest, None),
            Err(ForgeError::Store(error)) => return Err(error),
            Err(error) => {
                tracing::warn!("could not ask the forge of repository {}: {error}", row.name);
                let wait = match &error {
                    ForgeError::RateLimited { retry_after } => *retry_after,
                    _ => self.poll_every * 5,
                };
                let wait = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
                (due.since_ms, Some(now_ms().saturating_add(wait)))
            }
        };
        self.store.note_poll(&operator, due.repository, since, next).await
    }

    async fn handle(&self, scope: &ProjectScope, rules: &TaskRules, row: &EventRow) -> Result<(), Trouble> {
        if now_ms() - row.at_ms > OLDEST_MS {
            return Ok(());
        }
        let Some(wish) = wish(rules, row) else { return Ok(()) };
        let repository = self.store.repository(scope, &wish.repository.to_string()).await?;
        let Some(repository) = repository.filter(|row| row.kind == ForgeKind::GitHub) else { return Ok(()) };
        if !self.forges.may_write(scope, &repository, &wish.by).await? {
            tracing::info!("{} may not write to {}: no task was started", wish.by, repository.name);
            return Ok(());
        }
        let tasks = self.tasks_for(scope, rules, &repository, &wish).await?;
        let (source, actor) = (format!("log/{}", row.sequence), format!("github:{}", wish.by));
        for task in tasks {
            let source = format!("{source}/{task}");
            let remark = wish.remark.clone();
            let done = self.store.trigger_task(scope, task, &source, rules.agent, &actor, remark).await?;
            if done == Triggered::Started {
                self.tasks.wake();
                self.tell(scope, &repository, wish.number, task).await?;
            }
        }
        Ok(())
    }

    /// The tasks that a wish is about; a new one for an issue that has none.
    async fn tasks_for(
        &self,
        scope: &ProjectScope,
        rules: &TaskRules,
        repository: &RepositoryRow,
        wish: &Wish,
    ) -> Result<Vec<TaskId>, Trouble> {
        if wish.on_pull {
            return Ok(self.store.tasks_of_pull(scope, repository.id, wish.number).await?);
        }
        let actor = format!("github:{}", wish.by);
        let words = issues::read(&self.forges, scope, repository, wish.number, (&actor, "")).await?;
        let IssueWords { title, description, labels, issue } = words;
        let new = NewTask {
            title,
            description,
            state: TaskState::Todo,
            priority: Priority::default(),
            labels,
            repository: Some(repository.name.to_string()),
            base_branch: None,
            agent: rules.agent,
            model: None,
            check_command: None,
            budget_nanos: None,
            context_id: None,
            actor,
        };
        let (task, _) = self.store.create_task_for_issue(scope, new, issue, false).await?;
        Ok(vec![task.id])
    }

    /// Says on the issue that work has begun, once for each task.
    async fn tell(
        &self,
        scope: &ProjectScope,
        repository: &RepositoryRow,
        number: i64,
        task: TaskId,
    ) -> Result<(), Trouble> {
        if !self.store.claim_trigger(scope, &format!("told/{task}")).await? {
            return Ok(());
        }
        let forge = self.forges.open(scope, repository, "triggers").await?;
        let text = format!(
            "Cofferdam is working on this: task `{task}`. The pull request will refer to this issue."
        );
        if let Err(error) = forge.comment(number, &text).await {
            // The work goes on without it.
            tracing::warn!("could not comment on issue {number} of {}: {error}", repository.name);
        }
        Ok(())
    }
}

/// What an event asks for by the project's rules, if anything.
fn wish(rules: &TaskRules, row: &EventRow) -> Option<Wish> {
    let repository = row.subject.parse::<RepositoryId>().ok()?;
    match row.event()? {
        Event::GithubIssues(issue) => {
            let is = |rule: &Option<String>, found: &Option<String>| match (rule, found) {
                (Some(rule), Some(found)) => rule.eq_ignore_ascii_case(found),
                _ => false,
            };
            let asks = match issue.by.action.as_deref()? {
                "labeled" => is(&rules.label, &issue.label),
                "assigned" => is(&rules.assignee, &issue.assignee),
                _ => false,
            };
            let by = person(issue.by).filter(|_| asks && issue.state.as_deref() == Some("open"))?;
            Some(Wish { repository, number: issue.number?, on_pull: false, by, remark: None })
        }
        Event::GithubIssueComment(comment) if comment.by.action.as_deref() == Some("created") => {
            let body = comment.body?;
            if !mentions(&body, rules.mention.as_deref()?) {
                return None;
            }
            let by = person(comment.by)?;
            let source = format!("github/comment/{}", comment.comment_id?);
            let remark = Some(Remark { source, author: by.clone(), body });
            Some(Wish { repository, number: comment.number?, on_pull: comment.on_pull, by, remark })
        }
        _ => None,
    }
}

/// The person who did it; programs start nothing.
fn person(by: GithubBy) -> Option<String> {
    by.sender.filter(|_| by.sender_type.as_deref() == Some("User"))
}

/// Whether a text names a handle, as a word of its own and outside of quotes.
fn mentions(text: &str, handle: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.lines().filter(|line| !line.trim_start().starts_with('>')).any(|line| {
        line.match_indices('@').any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let rest = &line[at + 1..];
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            before.is_none_or(|c| !is_part(c) && c != '@' && c != '/' && c != '`')
                && rest[..end].eq_ignore_ascii_case(handle)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_a_word() {
        for text in ["@coffer please", "hey @Coffer, look", "(@coffer)", "a\n@coffer"] {
            assert!(mentions(text, "coffer"), "{text}");
        }
        for text in
            ["coffer", "@cofferdam", "mail@coffer", "@coffer-x", "> @coffer do it", "`@coffer`", "@", ""]
        {
            assert!(!mentions(text, "coffer"), "{text}");
        }
    }
}
