//! Converts GitHub's JSON to our own types.

use coffer_core::forge::{
    BranchName, CommitId, DiffSide, IssueState, MergeState, PullState, StatusState, Verdict,
};
use serde_json::Value;

use crate::ForgeError;
use crate::forge::{Branch, Comment, DiffFile, InlineComment, Issue, Pull, RemoteRepository, Review, Status};

type Answer<T> = Result<T, ForgeError>;

/// The longest text; longer ones are cut.
const LONGEST: usize = 256 * 1024;
/// Most labels or assignees of an issue.
const MOST_NAMES: usize = 50;

pub(crate) fn strange(what: &str) -> ForgeError {
    ForgeError::Strange(what.to_string())
}

pub(crate) fn text(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    Some(text[..text.floor_char_boundary(LONGEST)].to_string())
}

fn words(value: &Value) -> String {
    text(value).unwrap_or_default()
}

fn number(value: &Value, what: &str) -> Answer<i64> {
    value.as_i64().filter(|number| *number > 0).ok_or_else(|| strange(&format!("{what} without a number")))
}

pub(crate) fn list(value: &Value) -> Answer<&Vec<Value>> {
    value.as_array().ok_or_else(|| strange("not a list"))
}

pub(crate) fn branch(value: &Value) -> Answer<BranchName> {
    value.as_str().and_then(|name| name.parse().ok()).ok_or_else(|| strange("an invalid branch name"))
}

pub(crate) fn commit(value: &Value) -> Answer<CommitId> {
    value.as_str().and_then(|id| id.parse().ok()).ok_or_else(|| strange("an invalid commit id"))
}

/// A time in our format; GitHub's text if it cannot be parsed.
pub(crate) fn when(value: &Value) -> Option<String> {
    let text = text(value)?;
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => Some(format!("{time:.3}")),
        Err(_) => Some(text),
    }
}

fn id(value: &Value, what: &str) -> Answer<String> {
    value.as_i64().map(|id| id.to_string()).ok_or_else(|| strange(&format!("{what} without an id")))
}

fn author(value: &Value) -> String {
    // A deleted account has no name.
    text(&value["user"]["login"]).unwrap_or_else(|| "ghost".into())
}

pub(super) fn shown_branch(told: &Value) -> Answer<Branch> {
    Ok(Branch {
        name: branch(&told["name"])?,
        commit: commit(&told["commit"]["sha"])?,
        protected: told["protected"].as_bool().unwrap_or(false),
    })
}

pub(crate) fn pull(told: &Value) -> Answer<Pull> {
    let merged = told["merged_at"].is_string() || told["merged"] == Value::Bool(true);
    let state = match (told["state"].as_str(), merged) {
        (_, true) => PullState::Merged,
        (Some("open"), _) => PullState::Open,
        (Some("closed"), _) => PullState::Closed,
        _ => return Err(strange("a pull request in an unknown state")),
    };
    Ok(Pull {
        number: number(&told["number"], "a pull request")?,
        title: words(&told["title"]),
        body: words(&told["body"]),
        state,
        draft: told["draft"].as_bool().unwrap_or(false),
        head: branch(&told["head"]["ref"])?,
        base: branch(&told["base"]["ref"])?,
        head_commit: commit(&told["head"]["sha"])?,
        base_commit: commit(&told["base"]["sha"])?,
        // Before the merge this is GitHub's trial merge.
        merge_commit: match state {
            PullState::Merged => Some(commit(&told["merge_commit_sha"])?),
            PullState::Open | PullState::Closed => None,
        },
        author: author(told),
        web_url: text(&told["html_url"]),
        created_at: when(&told["created_at"]).unwrap_or_default(),
        updated_at: when(&told["updated_at"]).unwrap_or_default(),
        closed_at: when(&told["closed_at"]),
    })
}

pub(crate) fn issue(told: &Value) -> Answer<Issue> {
    Ok(Issue {
        number: number(&told["number"], "an issue")?,
        title: words(&told["title"]),
        body: words(&told["body"]),
        state: if told["state"] == "open" { IssueState::Open } else { IssueState::Closed },
        author: author(told),
        labels: names(&told["labels"], "name"),
        assignees: names(&told["assignees"], "login"),
        web_url: text(&told["html_url"]),
        created_at: when(&told["created_at"]).unwrap_or_default(),
        updated_at: when(&told["updated_at"]).unwrap_or_default(),
        closed_at: when(&told["closed_at"]),
    })
}

/// The names in a list of objects, or of texts: a label may be either.
fn names(told: &Value, field: &str) -> Vec<String> {
    let all = told.as_array().into_iter().flatten().take(MOST_NAMES);
    all.filter_map(|one| text(&one[field]).or_else(|| text(one))).collect()
}

pub(crate) fn repository(told: &Value) -> Option<RemoteRepository> {
    Some(RemoteRepository {
        remote: text(&told["full_name"])?,
        description: text(&told["description"]).map(|text| text.chars().take(300).collect()),
        private: told["private"].as_bool().unwrap_or(true),
        archived: told["archived"].as_bool().unwrap_or(false),
        can_push: told["permissions"]["push"].as_bool().unwrap_or(false),
        default_branch: text(&told["default_branch"]),
        web_url: text(&told["html_url"]),
    })
}

pub(crate) fn comment(told: &Value) -> Answer<Comment> {
    Ok(Comment {
        id: id(&told["id"], "a comment")?,
        body: words(&told["body"]),
        author: author(told),
        created_at: when(&told["created_at"]).unwrap_or_default(),
    })
}

/// A submitted review; `None` for one that is still being written.
pub(crate) fn review(told: &Value) -> Answer<Option<Review>> {
    let verdict = match told["state"].as_str() {
        Some("APPROVED") => Verdict::Approve,
        Some("CHANGES_REQUESTED") => Verdict::RequestChanges,
        Some("COMMENTED" | "DISMISSED") => Verdict::Comment,
        _ => return Ok(None),
    };
    Ok(Some(Review {
        id: id(&told["id"], "a review")?,
        verdict,
        body: words(&told["body"]),
        author: author(told),
        commit: commit(&told["commit_id"]).ok(),
        created_at: when(&told["submitted_at"]).unwrap_or_default(),
    }))
}

pub(crate) fn inline(told: &Value) -> Answer<InlineComment> {
    Ok(InlineComment {
        id: id(&told["id"], "a comment")?,
        body: words(&told["body"]),
        author: author(told),
        path: words(&told["path"]),
        line: told["line"].as_i64(),
        side: match told["side"].as_str() {
            Some("LEFT") => Some(DiffSide::Left),
            Some("RIGHT") => Some(DiffSide::Right),
            _ => None,
        },
        commit: commit(&told["commit_id"]).ok(),
        in_reply_to: told["in_reply_to_id"].as_i64().map(|id| id.to_string()),
        created_at: when(&told["created_at"]).unwrap_or_default(),
        updated_at: when(&told["updated_at"]).filter(|_| told["updated_at"] != told["created_at"]),
        resolved_by: None,
        resolved_at: None,
    })
}

/// What GitHub says of merging, after its trial merge.
pub(crate) fn merge_state(told: &Value, pull: &Pull) -> (MergeState, Option<&'static str>) {
    if pull.state != PullState::Open {
        return (MergeState::Closed, None);
    }
    if told["mergeable"] == Value::Bool(false) {
        return (MergeState::Conflict, Some("head and base change the same lines"));
    }
    match told["mergeable_state"].as_str() {
        _ if pull.draft => (MergeState::Blocked, Some("it is a draft; mark it as ready first")),
        Some("dirty") => (MergeState::Conflict, Some("head and base change the same lines")),
        Some("blocked") => (MergeState::Blocked, Some("GitHub's rules for the base branch are not met yet")),
        Some("behind") => {
            (MergeState::Blocked, Some("GitHub asks for the newest commits of the base branch first"))
        }
        Some("clean" | "unstable" | "has_hooks") => (MergeState::Clean, None),
        _ if told["mergeable"] == Value::Bool(true) => (MergeState::Clean, None),
        _ => (MergeState::Unknown, None),
    }
}

pub(crate) fn status(told: &Value) -> Answer<Status> {
    let state = told["state"].as_str().and_then(|state| state.parse::<StatusState>().ok());
    Ok(Status {
        context: words(&told["context"]),
        state: state.ok_or_else(|| strange("a status in an unknown state"))?,
        description: words(&told["description"]),
        target_url: text(&told["target_url"]),
        changed_at: when(&told["updated_at"]),
    })
}

/// Whether a status means that something is over.
const fn of_conclusion(done: bool, good: bool) -> StatusState {
    match (done, good) {
        (false, _) => StatusState::Pending,
        (true, true) => StatusState::Success,
        (true, false) => StatusState::Failure,
    }
}

pub(crate) fn check_run(told: &Value) -> Option<Status> {
    let done = told["status"] == "completed";
    let good = matches!(told["conclusion"].as_str(), Some("success" | "neutral" | "skipped"));
    Some(Status {
        context: text(&told["name"])?,
        state: of_conclusion(done, good),
        description: words(&told["output"]["title"]),
        target_url: text(&told["html_url"]),
        changed_at: when(&told["completed_at"]).or_else(|| when(&told["started_at"])),
    })
}

pub(crate) fn file(told: &Value) -> Option<DiffFile> {
    Some(DiffFile {
        path: text(&told["filename"])?,
        previous_path: text(&told["previous_filename"]),
        change: match told["status"].as_str() {
            Some("added") => "added",
            Some("removed") => "deleted",
            Some("modified") => "modified",
            Some("renamed") => "renamed",
            Some("copied") => "copied",
            _ => "changed",
        }
        .to_string(),
        additions: told["additions"].as_u64().unwrap_or(0),
        deletions: told["deletions"].as_u64().unwrap_or(0),
        binary: told["patch"].is_null() && told["changes"] == 0 && told["status"] == "modified",
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(more: &Value) -> Value {
        let side = |name: &str| json!({"ref": name, "sha": "a".repeat(40)});
        let mut told = json!({"number": 1, "state": "open", "head": side("task"), "base": side("main")});
        told.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        told
    }

    #[test]
    fn what_github_says_of_merging_is_read() {
        for (more, state) in [
            (json!({"mergeable": null, "mergeable_state": "unknown"}), MergeState::Unknown),
            (json!({"mergeable": true, "mergeable_state": "clean"}), MergeState::Clean),
            // Checks that are not required have failed.
            (json!({"mergeable": true, "mergeable_state": "unstable"}), MergeState::Clean),
            (json!({"mergeable": true, "mergeable_state": "a new word"}), MergeState::Clean),
            (json!({"mergeable": false, "mergeable_state": "dirty"}), MergeState::Conflict),
            (json!({"mergeable": true, "mergeable_state": "blocked"}), MergeState::Blocked),
            (json!({"mergeable": true, "mergeable_state": "behind"}), MergeState::Blocked),
            (json!({"mergeable": true, "mergeable_state": "draft", "draft": true}), MergeState::Blocked),
            (json!({"state": "closed", "mergeable": true, "mergeable_state": "clean"}), MergeState::Closed),
            (json!({}), MergeState::Unknown),
        ] {
            let told = told(&more);
            assert_eq!(merge_state(&told, &pull(&told).unwrap()).0, state, "{more}");
        }
    }
}
