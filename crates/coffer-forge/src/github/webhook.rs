//! GitHub's webhooks.

use coffer_core::event::{
    Event, GithubBy, GithubCheck, GithubIssue, GithubIssueComment, GithubLineComment, GithubPull, GithubPush,
    GithubReview, GithubStatus,
};
use ring::hmac;
use serde_json::Value;

use super::convert::text;

/// Whether `signature` (`sha256=…`) is that of the body under the secret; compared in constant time.
pub(crate) fn is_signed(secret: &str, body: &[u8], signature: &str) -> bool {
    let Some(digits) = signature.strip_prefix("sha256=") else { return false };
    let Ok(tag) = hex::decode(digits) else { return false };
    if secret.is_empty() || tag.len() != 32 {
        return false;
    }
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), body, &tag).is_ok()
}

/// Most characters of a stored comment.
const LONGEST_COMMENT: usize = 8000;

/// The stored part of an event: what changed, and the text of comments.
pub(crate) fn event_of(name: &str, told: &Value) -> Option<Event> {
    let short = |value: &Value| text(value).map(|text| text.chars().take(200).collect::<String>());
    // The text of comments is passed to the agent of the pull request.
    let written =
        |value: &Value| text(value).map(|text| text.chars().take(LONGEST_COMMENT).collect::<String>());
    // The author's association with the repository, as GitHub reports it: anyone can comment on public pull
    // requests.
    let association = |value: &Value| short(&value["author_association"]);
    let by = GithubBy {
        action: short(&told["action"]),
        sender: short(&told["sender"]["login"]),
        sender_type: short(&told["sender"]["type"]),
    };
    let check = |check: &Value, by| GithubCheck {
        by,
        commit: short(&check["head_sha"]),
        name: short(&check["name"]),
        status: short(&check["status"]),
        conclusion: short(&check["conclusion"]),
    };
    let (pull, review, comment, issue) =
        (&told["pull_request"], &told["review"], &told["comment"], &told["issue"]);
    Some(match name {
        "pull_request" => Event::GithubPullRequest(GithubPull {
            by,
            number: pull["number"].as_i64(),
            state: short(&pull["state"]),
            merged: pull["merged"].as_bool(),
            head: short(&pull["head"]["ref"]),
            head_commit: short(&pull["head"]["sha"]),
            base: short(&pull["base"]["ref"]),
            merge_commit: short(&pull["merge_commit_sha"]),
        }),
        "pull_request_review" => Event::GithubPullRequestReview(GithubReview {
            by,
            number: pull["number"].as_i64(),
            review_id: review["id"].as_i64(),
            verdict: short(&review["state"]),
            commit: short(&review["commit_id"]),
            body: written(&review["body"]),
            association: association(review),
        }),
        "pull_request_review_comment" => Event::GithubPullRequestReviewComment(GithubLineComment {
            by,
            number: pull["number"].as_i64(),
            comment_id: comment["id"].as_i64(),
            path: short(&comment["path"]),
            line: comment["line"].as_i64(),
            body: written(&comment["body"]),
            association: association(comment),
        }),
        "issue_comment" => Event::GithubIssueComment(GithubIssueComment {
            by,
            number: issue["number"].as_i64(),
            comment_id: comment["id"].as_i64(),
            on_pull: issue["pull_request"].is_object(),
            body: written(&comment["body"]),
            association: association(comment),
        }),
        "issues" => Event::GithubIssues(GithubIssue {
            by,
            number: issue["number"].as_i64(),
            state: short(&issue["state"]),
            label: short(&told["label"]["name"]),
            assignee: short(&told["assignee"]["login"]),
        }),
        "status" => Event::GithubStatus(GithubStatus {
            by,
            commit: short(&told["sha"]),
            context: short(&told["context"]),
            state: short(&told["state"]),
        }),
        "check_run" => Event::GithubCheckRun(check(&told["check_run"], by)),
        "check_suite" => Event::GithubCheckSuite(check(&told["check_suite"], by)),
        "push" => Event::GithubPush(GithubPush {
            by,
            name: short(&told["ref"]),
            before: short(&told["before"]),
            after: short(&told["after"]),
        }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn githubs_own_example_verifies_and_nothing_else() {
        // From GitHub's documentation of webhook signatures.
        let (secret, body) = ("It's a Secret to Everybody", b"Hello, World!");
        let good = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert!(is_signed(secret, body, good));
        assert!(!is_signed("another", body, good));
        assert!(!is_signed("", body, good));
        assert!(!is_signed(secret, b"Hello, World?", good));
        for bad in ["", "sha256=", "sha256=00", &good[7..], &good.replace("sha256", "sha1"), "sha256=zz"] {
            assert!(!is_signed(secret, body, bad), "{bad}");
        }
    }

    #[test]
    fn who_wrote_is_kept_with_what_was_written() {
        let by = json!({"id": 7, "body": "why?", "author_association": "MEMBER"});
        let told = json!({
            "review": by, "comment": by, "sender": {"login": "ada", "type": "User"},
            "issue": {"number": 3, "pull_request": {}}, "pull_request": {"number": 3},
        });
        for name in ["pull_request_review", "pull_request_review_comment", "issue_comment"] {
            let kept = event_of(name, &told).unwrap().payload();
            let who = (&kept["sender"], &kept["sender_type"], &kept["association"]);
            assert_eq!(who, (&json!("ada"), &json!("User"), &json!("MEMBER")), "{name}");
        }
    }

    #[test]
    fn odd_payloads_do_not_matter() {
        for name in ["pull_request", "status", "check_run", "push", "issues", "issue_comment"] {
            for told in [json!(null), json!([]), json!({"pull_request": 7, "check_run": "x"})] {
                assert!(event_of(name, &told).is_some());
            }
        }
        assert!(event_of("star", &json!({})).is_none());
    }
}
