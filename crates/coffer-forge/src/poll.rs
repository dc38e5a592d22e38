//! Asks GitHub what happened in a repository, where no webhook can reach this server.
//!
//! What is read becomes the same events that webhooks become, each once by its own id. Answers that have not changed cost
//! nothing of the rate limit (ETag).

use coffer_core::Millis;
use coffer_store::{DeliveredEvent, ProjectScope, RepositoryRow};
use serde_json::{Value, json};

use crate::github::event_of;
use crate::{ForgeError, Forges};

type Answer<T> = Result<T, ForgeError>;

/// Clocks differ, and GitHub's lists lag behind: this much is read again.
const OVERLAP_MS: Millis = 120_000;
const PAGE: u32 = 100;

impl Forges {
    /// Whether a person may push to a repository on GitHub.
    pub async fn may_write(&self, scope: &ProjectScope, row: &RepositoryRow, login: &str) -> Answer<bool> {
        self.github(scope, row).await?.may_write(login).await
    }

    /// Records what happened since then; returns the time of the newest.
    pub async fn poll(&self, scope: &ProjectScope, row: &RepositoryRow, since_ms: Millis) -> Answer<Millis> {
        let connection = row.connection.ok_or_else(|| ForgeError::not_found("connection of", &row.name))?;
        let connection = self.connection(scope, connection).await?;
        let forge = self.github(scope, row).await?;
        let from = since_ms - OVERLAP_MS;
        let since = crate::time_text(from);
        let mut found: Vec<Happened> = Vec::new();
        let told = forge.news(&format!("/issues/events?per_page={PAGE}")).await?;
        found.extend(told.iter().filter_map(issue_event));
        let query = format!("sort=updated&direction=desc&since={since}&per_page={PAGE}");
        let told = forge.news(&format!("/issues/comments?{query}")).await?;
        found.extend(told.iter().filter_map(issue_comment));
        let told = forge.news(&format!("/pulls/comments?{query}")).await?;
        found.extend(told.iter().filter_map(line_comment));
        found.retain(|one| one.at_ms > from);
        found.sort_by_key(|one| one.at_ms);
        let mut newest = since_ms;
        for one in found {
            newest = newest.max(one.at_ms);
            let Some(event) = event_of(one.name, &one.told) else { continue };
            let delivered = DeliveredEvent {
                delivery: one.delivery,
                event: one.name.into(),
                about: Some((row.id, event)),
            };
            self.store.take_delivery(&connection, delivered).await?;
        }
        Ok(newest)
    }
}

/// Something that a webhook would have told.
struct Happened {
    delivery: String,
    name: &'static str,
    told: Value,
    at_ms: Millis,
}

fn time_of(told: &Value) -> Option<Millis> {
    Some(told.as_str()?.parse::<jiff::Timestamp>().ok()?.as_millisecond())
}

/// An event of an issue, or of a pull request, which GitHub lists among them.
fn issue_event(told: &Value) -> Option<Happened> {
    let (id, action) = (told["id"].as_i64()?, told["event"].as_str()?);
    let (issue, at_ms) = (&told["issue"], time_of(&told["created_at"])?);
    let delivery = format!("poll-event-{id}");
    if issue["pull_request"].is_object() {
        let action = match action {
            "merged" | "closed" => "closed",
            "reopened" => "reopened",
            _ => return None,
        };
        let merged = told["event"] == "merged";
        let pull = json!({ "number": issue["number"], "state": issue["state"], "merged": merged });
        let told = json!({ "action": action, "pull_request": pull, "sender": told["actor"] });
        return Some(Happened { delivery, name: "pull_request", told, at_ms });
    }
    if !matches!(action, "labeled" | "unlabeled" | "assigned" | "unassigned" | "closed" | "reopened") {
        return None;
    }
    // The one who assigns is `assigner` in some answers; `actor` is then the one who was assigned.
    let sender = if told["assigner"].is_object() { &told["assigner"] } else { &told["actor"] };
    let told = json!({
        "action": action, "issue": issue, "sender": sender, "label": told["label"], "assignee": told["assignee"],
    });
    Some(Happened { delivery, name: "issues", told, at_ms })
}

fn issue_comment(told: &Value) -> Option<Happened> {
    let (id, at_ms) = (told["id"].as_i64()?, time_of(&told["created_at"])?);
    let number: i64 = told["issue_url"].as_str()?.rsplit('/').next()?.parse().ok()?;
    let on_pull = told["html_url"].as_str().is_some_and(|url| url.contains("/pull/"));
    let mut issue = json!({ "number": number });
    if on_pull {
        issue["pull_request"] = json!({});
    }
    let told = json!({ "action": "created", "comment": told, "issue": issue, "sender": told["user"] });
    Some(Happened { delivery: format!("poll-comment-{id}"), name: "issue_comment", told, at_ms })
}

fn line_comment(told: &Value) -> Option<Happened> {
    let (id, at_ms) = (told["id"].as_i64()?, time_of(&told["created_at"])?);
    let number: i64 = told["pull_request_url"].as_str()?.rsplit('/').next()?.parse().ok()?;
    let pull = json!({ "number": number });
    let told = json!({ "action": "created", "comment": told, "pull_request": pull, "sender": told["user"] });
    Some(Happened { delivery: format!("poll-line-{id}"), name: "pull_request_review_comment", told, at_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_become_what_webhooks_tell() {
        let at = "2026-01-01T00:00:00Z";
        let label = json!({
            "id": 7, "event": "labeled", "created_at": at, "actor": {"login": "ada", "type": "User"},
            "issue": {"number": 3, "state": "open"}, "label": {"name": "cofferdam"},
        });
        let one = issue_event(&label).unwrap();
        assert_eq!((one.delivery.as_str(), one.name), ("poll-event-7", "issues"));
        let told = event_of(one.name, &one.told).unwrap().payload();
        assert_eq!(
            (&told["label"], &told["sender"], &told["number"]),
            (&json!("cofferdam"), &json!("ada"), &json!(3))
        );
        let merged = json!({
            "id": 8, "event": "merged", "created_at": at, "issue": {"number": 4, "state": "closed", "pull_request": {}},
        });
        let told = event_of("pull_request", &issue_event(&merged).unwrap().told).unwrap().payload();
        assert_eq!((&told["action"], &told["merged"]), (&json!("closed"), &json!(true)));
        let comment = json!({
            "id": 9, "created_at": at, "body": "hi", "author_association": "MEMBER", "user": {"login": "ada"},
            "issue_url": "https://api.github.com/repos/o/r/issues/4", "html_url": "https://github.com/o/r/pull/4#x",
        });
        let told = event_of("issue_comment", &issue_comment(&comment).unwrap().told).unwrap().payload();
        assert_eq!(
            (&told["number"], &told["on_pull"], &told["association"]),
            (&json!(4), &json!(true), &json!("MEMBER"))
        );
        for odd in [json!(null), json!({"id": 1}), json!({"id": 1, "event": "x", "created_at": "no"})] {
            assert!(
                issue_event(&odd).is_none() && issue_comment(&odd).is_none() && line_comment(&odd).is_none()
            );
        }
    }
}
