//! What forges tell about pull requests becomes what their tasks hear.
//!
//! Both kinds of forges tell by events in the project's log: the local one when something is done here, GitHub by its
//! signed webhooks. This follows the log with a position in the database, so that each event is acted on once
//! (see `Store::heed_reviews`), whichever server follows and whenever one dies.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::{ProjectId, RepositoryId};
use coffer_store::{AboutPull, Event, Heard, LogReader, ProjectBehind, Store, StoreError};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::tasks::Tasks;

const PAGE: u32 = 200;
const PROJECTS: u32 = 200;
/// Other servers write too, and do not tell us.
const LOOK: Duration = Duration::from_millis(500);
/// Between two looks, however much is written.
const BREATHER: Duration = Duration::from_millis(100);

/// Follows until `stop`.
pub async fn follow(store: Store, tasks: Arc<Tasks>, stop: CancellationToken) {
    let mut written = store.written();
    loop {
        match look(&store, &stop).await {
            Ok(0) => {}
            Ok(_) => tasks.wake(),
            Err(StoreError::Closed) => return,
            Err(error) => tracing::warn!("reviews are heard later: {}", coffer_core::chain(&error)),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = written.changed() => if changed.is_err() {
                return;
            },
            () = tokio::time::sleep(LOOK) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(BREATHER) => {}
        }
    }
}

/// Goes through what has happened. Says how many attempts were begun by it.
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

/// What an event means for the task whose pull request it is about, if anything.
async fn meaning(
    store: &Store,
    project: ProjectId,
    event: &Event,
) -> Result<Option<(AboutPull, Heard)>, StoreError> {
    let told = &event.payload;
    let Ok(repository) = event.subject.parse::<RepositoryId>() else { return Ok(None) };
    let on_pull =
        |heard| told["number"].as_i64().map(|number| (AboutPull::Number(repository, number), heard));
    let text = |name: &str| told[name].as_str().unwrap_or_default().to_string();
    Ok(match event.kind.as_str() {
        "pull.merged" => on_pull(Heard::Merged),
        "pull.closed" => on_pull(Heard::Closed),
        "pull.reopened" => on_pull(Heard::Reopened),
        "pull.reviewed" | "pull.line_commented" | "forge.commented" => {
            let comment = text("comment_id");
            let said = store.said_there(&store.operator(), project, &comment).await?;
            // What agents write is not for agents.
            let said = said.filter(|said| !said.author.starts_with("agent:"));
            said.and_then(|said| {
                let heard = spoken(format!("local/{comment}"), said.author, &said.body, told)?;
                on_pull(heard)
            })
        }
        "status.set" => failed_check(repository, told, &text("context")),
        "github.pull_request" => match (told["action"].as_str(), told["merged"].as_bool()) {
            (Some("closed"), Some(true)) => on_pull(Heard::Merged),
            (Some("closed"), _) => on_pull(Heard::Closed),
            (Some("reopened"), _) => on_pull(Heard::Reopened),
            _ => None,
        },
        "github.pull_request_review" if told["action"] == "submitted" => {
            from_github(told, "review_id", "review").and_then(on_pull)
        }
        "github.pull_request_review_comment" if told["action"] == "created" => {
            from_github(told, "comment_id", "line").and_then(on_pull)
        }
        "github.issue_comment" if told["action"] == "created" && told["on_pull"] == true => {
            from_github(told, "comment_id", "comment").and_then(on_pull)
        }
        "github.status" => failed_check(repository, told, &text("context")),
        "github.check_run" if told["status"] == "completed" => failed_check(repository, told, &text("name")),
        _ => None,
    })
}

/// What somebody wrote below a pull request on GitHub who may change the repository: what others write, and what
/// programs do, is for people to read. An agent does what it is told.
fn from_github(told: &Value, id: &str, kind: &str) -> Option<Heard> {
    let is_heard = told["sender_type"] == "User"
        && matches!(told["association"].as_str(), Some("OWNER" | "MEMBER" | "COLLABORATOR"));
    if !is_heard {
        return None;
    }
    let source = format!("github/{kind}/{}", told[id].as_i64()?);
    let author = told["sender"].as_str().unwrap_or("somebody").to_string();
    spoken(source, author, told["body"].as_str()?, told)
}

/// What somebody wrote; a review without a word has nothing to tell beyond its verdict.
fn spoken(source: String, author: String, body: &str, told: &Value) -> Option<Heard> {
    let verdict = told["verdict"].as_str().map(str::to_ascii_lowercase).unwrap_or_default();
    let body = match (body.trim(), verdict.as_str()) {
        ("", "changes_requested" | "request_changes") => "Changes were requested.".to_string(),
        ("", _) => return None,
        (body, _) => body.to_string(),
    };
    let about = told["path"].as_str().map(|path| (path.to_string(), told["line"].as_i64()));
    Some(Heard::Said { source, author, body, about })
}

fn failed_check(repository: RepositoryId, told: &Value, name: &str) -> Option<(AboutPull, Heard)> {
    let outcome = told["conclusion"].as_str().or(told["state"].as_str())?;
    if !matches!(outcome, "failure" | "error" | "timed_out") {
        return None;
    }
    let commit = told["commit"].as_str()?.to_string();
    let name: String = name.chars().take(200).collect();
    let source = format!("check/{commit}/{name}");
    Some((AboutPull::Commit(repository, commit), Heard::CheckFailed { source, name }))
}
