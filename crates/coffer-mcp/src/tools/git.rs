//! Git in a sandbox: clone, diff, commit, pull request.

use coffer_api_types::git::{DiffQuery, NewClone, NewCommit, NewPullRequest, NewPush};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::bounded;
use crate::cut;
use crate::tool::{Call, Effect, Failure, Outcome, Tool};

const USUAL_DIFF: usize = 32 << 10;
const MOST_DIFF: usize = 64 << 10;

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "git_clone",
            "Clone a repository",
            "Clone a repository of the project into a sandbox, or update an existing clone. Credentials never enter the sandbox.",
            Effect::Sets,
            clone,
        ),
        Tool::new(
            "git_diff",
            "Show changes",
            "The changes in a sandbox's repository since the last commit, or since the merge base with a branch.",
            Effect::Reads,
            diff,
        ),
        Tool::new(
            "git_commit",
            "Commit changes",
            "Commit changes in a sandbox's repository, all or some paths, under the name in the project's settings.",
            Effect::Adds,
            commit,
        ),
        Tool::new(
            "open_pull_request",
            "Open a pull request",
            "Push a branch of the sandbox's repository and open a pull request from it, or return the open one. The branch \
             must differ from the target: create it first with run_command (git switch -c NAME).",
            Effect::Sets,
            propose,
        ),
    ]
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Clone {
    /// The sandbox.
    sandbox_id: String,
    /// Name or id of a repository of the project.
    repository: String,
    /// Where to; below the user's home, by its name, by default.
    #[serde(default)]
    path: Option<String>,
    /// The branch to check out; the default branch by default.
    #[serde(default)]
    branch: Option<String>,
    /// How many commits of each branch; all by default.
    #[serde(default)]
    #[schemars(range(min = 1))]
    depth: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Cloned {
    repository: String,
    path: String,
    branch: Option<String>,
    commit: Option<String>,
    /// Whether it existed and was brought up to date.
    updated: bool,
    /// What is missing, and why.
    notes: Vec<String>,
}

async fn clone(call: Call, input: Clone) -> Result<Outcome<Cloned>, Failure> {
    let Clone { sandbox_id, repository, path, branch, depth } = input;
    let new = NewClone { repository, path, branch, depth, submodules: false, user: None };
    let made = call.client.git_clone(&sandbox_id, &new).await?;
    let verb = if made.updated { "updated" } else { "cloned" };
    let at = made.commit.as_deref().map(|commit| format!(" at {commit}")).unwrap_or_default();
    let text = format!("{verb} {} in {}{at}", made.repository, made.path);
    let coffer_api_types::git::Cloned { repository, path, updated, branch, commit, notes, .. } = made;
    Ok(Outcome::new(text, Cloned { repository, path, branch, commit, updated, notes }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Diff {
    /// The sandbox.
    sandbox_id: String,
    /// Which of the sandbox's repositories; required if it has several.
    #[serde(default)]
    repository: Option<String>,
    /// The branch to compare with, from the merge base; the last commit by default.
    #[serde(default)]
    base: Option<String>,
    /// How many bytes; 32768 by default, at most 65536.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65536))]
    max_bytes: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Diffed {
    repository: String,
    patch: String,
    /// How many bytes the whole patch has, as far as the server sent it.
    patch_bytes: usize,
    /// Whether some of the patch is left out.
    cut: bool,
}

async fn diff(call: Call, input: Diff) -> Result<Outcome<Diffed>, Failure> {
    let most = bounded(input.max_bytes, USUAL_DIFF, MOST_DIFF);
    let query = DiffQuery { repository: input.repository, base: input.base };
    let found = call.client.git_diff(&input.sandbox_id, &query).await?;
    let patch_bytes = found.patch.len();
    let cut = found.truncated || patch_bytes > most;
    let patch = cut::text(&found.patch, most);
    let mut text = if patch.is_empty() { "no changes".to_string() } else { patch.clone() };
    if cut {
        text.push_str("\n[cut; `git diff -- PATH` by run_command shows one file]");
    }
    Ok(Outcome::new(text, Diffed { repository: found.repository, patch, patch_bytes, cut }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Commit {
    /// The sandbox.
    sandbox_id: String,
    /// A conventional commit such as `fix(api): answer 404`, unless the project's settings say otherwise.
    message: String,
    /// Which of the sandbox's repositories; required if it has several.
    #[serde(default)]
    repository: Option<String>,
    /// The files to commit; all changes by default.
    #[serde(default)]
    paths: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Committed {
    repository: String,
    commit: Option<String>,
    branch: Option<String>,
}

async fn commit(call: Call, input: Commit) -> Result<Outcome<Committed>, Failure> {
    let new = NewCommit { repository: input.repository, message: input.message, paths: input.paths };
    let made = call.client.git_commit(&input.sandbox_id, &new).await?;
    let named = made.commit.as_deref().unwrap_or("(no commit)");
    let text = format!(
        "committed {named} on {} of {}",
        made.branch.as_deref().unwrap_or("a detached head"),
        made.repository
    );
    Ok(Outcome::new(
        text,
        Committed { repository: made.repository, commit: made.commit, branch: made.branch },
    ))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Propose {
    /// The sandbox.
    sandbox_id: String,
    /// 1 to 256 characters on one line.
    title: String,
    /// The description, in Markdown.
    #[serde(default)]
    body: String,
    /// Which of the sandbox's repositories; required if it has several.
    #[serde(default)]
    repository: Option<String>,
    /// The branch with the changes; the checked-out one by default.
    #[serde(default)]
    head: Option<String>,
    /// The target branch; the default branch by default.
    #[serde(default)]
    base: Option<String>,
    /// Whether it is a draft.
    #[serde(default)]
    draft: bool,
    /// Whether to push the branch first; true by default.
    #[serde(default)]
    push: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Proposed {
    repository: String,
    number: i64,
    /// Its page, if the forge has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// Whether it was opened now.
    created: bool,
}

async fn propose(call: Call, input: Propose) -> Result<Outcome<Proposed>, Failure> {
    let Propose { sandbox_id, title, body, repository, head, base, draft, push } = input;
    if push.unwrap_or(true) {
        let new = NewPush { repository: repository.clone(), branch: head.clone(), force: false };
        call.client.git_push(&sandbox_id, &new).await?;
    }
    let new = NewPullRequest { repository, title, body, head, base, draft };
    let made = call.client.git_propose(&sandbox_id, &new).await?;
    let verb = if made.created { "opened" } else { "found" };
    let page = made.pull.web_url.as_ref().map(|url| format!(": {url}")).unwrap_or_default();
    let text = format!("{verb} pull request {} of {}{page}", made.pull.number, made.repository);
    let (number, url) = (made.pull.number, made.pull.web_url);
    Ok(Outcome::new(text, Proposed { repository: made.repository, number, url, created: made.created }))
}
