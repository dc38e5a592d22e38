//! Turns forges' events about pull requests into messages to their tasks.
//!
//! Both kinds of forges write events to the project's log: the local one when something happens here, GitHub
//! by its signed webhooks. This follows the log with a position in the database, so that each event is handled
//! once (see `Store::heed_reviews`), whichever server follows and whenever one dies.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::event::{Event, GithubBy};
use coffer_core::forge::Verdict;
use coffer_core::{ProjectId, RepositoryId};
use coffer_store::{AboutPull, EventRow, Heard, LogReader, ProjectBehind, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::tasks::Tasks;
use crate::workshop::OWN_STATUS;
use coffer_fleet::Follower;

const PAGE: u32 = 200;
const PROJECTS: u32 = 200;
const LOOK: Duration = Duration::from_millis(500);
/// The shortest pause between two reads.
const BREATHER: Duration = Duration::from_millis(100);

/// Follows until `stop`.
pub async fn follow(store: Store, tasks: Arc<Tasks>, stop: CancellationToken) {
    let mut follower =
        Follower::new("could not read reviews, trying again", LOOK, stop.clone()).on_writes(&store, BREATHER);
    loop {
        let looked = look(&store, &stop).await.map(|begun| {
            if begun > 0 {
                tasks.wake();
            }
        });
        if !follower.again(looked).await {
            return;
        }
    }
}

/// Handles new events. Returns how many attempts they started.
async fn look(store: &Store, stop: &CancellationToken) -> Result<usize, StoreError> {
    let operator = store.operator();
    let mut begun = 0;
    loop {
        let behind = store.projects_behind(&operator, LogReader::Reviews, PROJECTS).await?;
        if behind.is_empty() || stop.is_cancelled() {
            return Ok(begun);
        }
        for project in behind {
            begun += step(store, project).await?;
        }
    }
}

async fn step(store: &Store, behind: ProjectBehind) -> Result<usize, StoreError> {
    let operator = store.operator();
    let scope = operator.acting_for(behind.project, None);
    let events = store.events(&scope, behind.position, PAGE).await?;
    let to = events.last().map_or(behind.newest, |last| last.sequence);
    let mut heard = Vec::new();
    for event in &events {
        heard.extend(meaning(store, behind.project, event).await?);
    }
    Ok(store.heed_reviews(&operator, behind, to, heard).await?.unwrap_or(0))
}

/// The effect of an event on the task of its pull request, if any.
async fn meaning(
    store: &Store,
    project: ProjectId,
    row: &EventRow,
) -> Result<Option<(AboutPull, Heard)>, StoreError> {
    let Ok(repository) = row.subject.parse::<RepositoryId>() else { return Ok(None) };
    let Some(event) = row.event() else { return Ok(None) };
    let on = |number: i64, heard| Some((AboutPull::Number(repository, number), heard));
    Ok(match event {
        Event::PullMerged(pull) => on(pull.number, Heard::Merged),
        Event::PullClosed(pull) => on(pull.number, Heard::Closed),
        Event::PullReopened(pull) => on(pull.number, Heard::Reopened),
        Event::PullReviewed(made) | Event::PullLineCommented(made) | Event::ForgeCommented(made) => {
            let comment = made.comment_id.to_string();
            let said = store.said_there(&store.operator(), project, &comment).await?;
            // Agents' comments are not passed to agents.
            let said = said.filter(|said| !said.author.starts_with("agent:"));
            said.and_then(|said| {
                let asks_for_changes = made.verdict == Some(Verdict::RequestChanges);
                let about = made.path.map(|path| (path, made.line));
                let source = format!("local/{comment}");
                on(made.number, spoken(source, said.author, &said.body, asks_for_changes, about)?)
            })
        }
        Event::StatusSet(status) => {
            let (commit, context) = (status.commit.to_string(), status.context.to_string());
            failed_check(repository, Some(commit), Some(context), Some(status.state.as_str()))
        }
        Event::GithubPullRequest(pull) => match (pull.by.action.as_deref(), pull.merged) {
            (Some("closed"), Some(true)) => pull.number.and_then(|number| on(number, Heard::Merged)),
            (Some("closed"), _) => pull.number.and_then(|number| on(number, Heard::Closed)),
            (Some("reopened"), _) => pull.number.and_then(|number| on(number, Heard::Reopened)),
            _ => None,
        },
        Event::GithubPullRequestReview(review) if review.by.action.as_deref() == Some("submitted") => {
            let verdict = review.verdict.as_deref().map(str::to_ascii_lowercase);
            let asks_for_changes =
                matches!(verdict.as_deref(), Some("changes_requested" | "request_changes"));
            let heard = Remark {
                by: review.by,
                association: review.association,
                source: review.review_id.map(|id| format!("github/review/{id}")),
                body: review.body,
                asks_for_changes,
                about: None,
            };
            review.number.zip(heard.heard()).and_then(|(number, heard)| on(number, heard))
        }
        Event::GithubPullRequestReviewComment(comment) if comment.by.action.as_deref() == Some("created") => {
            let line = comment.line;
            let heard = Remark {
                by: comment.by,
                association: comment.association,
                source: comment.comment_id.map(|id| format!("github/line/{id}")),
                body: comment.body,
                asks_for_changes: false,
                about: comment.path.map(|path| (path, line)),
            };
            comment.number.zip(heard.heard()).and_then(|(number, heard)| on(number, heard))
        }
        Event::GithubIssueComment(comment)
            if comment.on_pull && comment.by.action.as_deref() == Some("created") =>
        {
            let heard = Remark {
                by: comment.by,
                association: comment.association,
                source: comment.comment_id.map(|id| format!("github/comment/{id}")),
                body: comment.body,
                asks_for_changes: false,
                about: None,
            };
            comment.number.zip(heard.heard()).and_then(|(number, heard)| on(number, heard))
        }
        Event::GithubStatus(status) => {
            failed_check(repository, status.commit, status.context, status.state.as_deref())
        }
        Event::GithubCheckRun(check) if check.status.as_deref() == Some("completed") => {
            failed_check(repository, check.commit, check.name, check.conclusion.as_deref())
        }
        _ => None,
    })
}

/// A comment on a pull request on GitHub.
struct Remark {
    by: GithubBy,
    association: Option<String>,
    source: Option<String>,
    body: Option<String>,
    asks_for_changes: bool,
    about: Option<(String, Option<i64>)>,
}

impl Remark {
    /// The message for the agent, if the author may change the repository. Comments of others and of programs
    /// are only for people, because an agent follows the text it gets.
    fn heard(self) -> Option<Heard> {
        let is_heard = self.by.sender_type.as_deref() == Some("User")
            && matches!(self.association.as_deref(), Some("OWNER" | "MEMBER" | "COLLABORATOR"));
        if !is_heard {
            return None;
        }
        let author = self.by.sender.unwrap_or_else(|| "somebody".to_string());
        spoken(self.source?, author, &self.body?, self.asks_for_changes, self.about)
    }
}

/// A comment as a message; a review without text has only its verdict.
fn spoken(
    source: String,
    author: String,
    body: &str,
    asks_for_changes: bool,
    about: Option<(String, Option<i64>)>,
) -> Option<Heard> {
    let body = match body.trim() {
        "" if asks_for_changes => "Changes were requested.".to_string(),
        "" => return None,
        body => body.to_string(),
    };
    Some(Heard::Said { source, author, body, about })
}

fn failed_check(
    repository: RepositoryId,
    commit: Option<String>,
    name: Option<String>,
    outcome: Option<&str>,
) -> Option<(AboutPull, Heard)> {
    // Our own status says what the task knows.
    if !matches!(outcome?, "failure" | "error" | "timed_out") || name.as_deref() == Some(OWN_STATUS) {
        return None;
    }
    let commit = commit?;
    let name: String = name.unwrap_or_default().chars().take(200).collect();
    let source = format!("check/{commit}/{name}");
    Some((AboutPull::Commit(repository, commit), Heard::CheckFailed { source, name }))
}
