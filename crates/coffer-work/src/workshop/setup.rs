//! Prepares the sandbox of an attempt as its repository says: `.coffer/setup.sh`, or a `devcontainer.json`.
//!
//! The files are those of the base branch, so an agent cannot change the set-up of the next attempt by its own branch.
//! Commands run in a sandbox of their own without any secret; what they leave on its disk is a snapshot of the project,
//! and the attempt goes on in a sandbox from that. docs/design/0030-setup.md has the whole picture.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use coffer_core::agent::AgentDefinition;
use coffer_core::agent::transcript::{CallState, EntryBody, Text};
use coffer_core::clock::now_ms;
use coffer_core::devcontainer::{DevContainer, LONGEST_FILE};
use coffer_core::{Code, SandboxId, SizeWish, StepCode, TaskId, TemplateRef};
use coffer_fleet::exec::Command;
use coffer_fleet::{MemoryWish, SnapshotSpec};
use coffer_flow::StepError;
use coffer_store::{ProjectScope, SnapshotFilter, SnapshotRow, TurnPlace};
use futures_util::future::BoxFuture;
use sha2::{Digest as _, Sha256};

use super::agent::{PAUSED_AT_BUDGET, Watch, exit_of};
use super::heard::Heard;
use super::{SandboxOrder, Station, Workbench};
use crate::git::CloneOrder;

const SCRIPT: &str = ".coffer/setup.sh";
const CONTAINERS: [&str; 2] = [".devcontainer/devcontainer.json", ".devcontainer.json"];
/// Files at the top of a repository that say what is installed: a change of one is another set-up.
const LOCKS: [&str; 14] = [
    "Cargo.lock",
    "Gemfile.lock",
    "Pipfile.lock",
    "bun.lock",
    "composer.lock",
    "go.sum",
    "mix.lock",
    "package-lock.json",
    "package.json",
    "pnpm-lock.yaml",
    "poetry.lock",
    "requirements.txt",
    "uv.lock",
    "yarn.lock",
];
/// How long all commands may take together.
pub(super) const SET_UP_WITHIN: Duration = Duration::from_secs(1200);
const LOOK_WITHIN: Duration = Duration::from_secs(30);
const OUTPUT_TAIL: usize = 8 * 1024;
const LONGEST_WARNINGS: usize = 4 * 1024;
/// Set-ups of one repository that are kept.
const MOST_KEPT: usize = 3;
/// Who created the snapshot, on record: no key has this name.
const CREATOR: &str = "set-up";
const LONGEST_SLUG: usize = 100;

/// Undoes changes of files that the repository has, and excludes new ones, which are no work of the agent.
const TIDY: &str = r#"cd "$1" && git reset -q --hard && file=$(git rev-parse --git-path info/exclude) &&
mkdir -p "${file%/*}" &&
git ls-files --others --exclude-standard --directory | head -n 1000 | sed 's,^,/,' >> "$file""#;

/// What to prepare, and for which attempt.
pub(super) struct SetUpOrder<'a> {
    /// The beginning of keys: `run:<id>`.
    pub(super) run: &'a str,
    pub(super) repository: &'a str,
    pub(super) clone: CloneOrder,
    pub(super) definition: &'a AgentDefinition,
    pub(super) task: TaskId,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) place: TurnPlace,
    /// Called before commands run.
    pub(super) begins: &'a (dyn Fn() -> BoxFuture<'a, Result<(), StepError>> + Send + Sync),
}

/// What a repository asks for.
struct Plan {
    /// The file.
    from: &'static str,
    commands: Vec<(String, Vec<String>)>,
    as_root: bool,
    env: BTreeMap<String, String>,
    warnings: Vec<String>,
    /// The name of its result.
    reference: TemplateRef,
}

/// How an attempt's sandbox is made after its set-up.
pub(super) struct Prepared {
    /// Instead of the agent's template.
    pub(super) template: Option<String>,
    pub(super) env: BTreeMap<String, String>,
}

/// The files of `git ls-tree` that are plain ones, as lines with their digests.
fn blobs(listed: &str) -> BTreeMap<&str, &str> {
    let line = |line: &'_ str| -> Option<(usize, usize)> {
        let (head, _) = line.split_once('\t')?;
        (head.starts_with("100644 blob ") || head.starts_with("100755 blob ")).then_some((12, head.len()))
    };
    let blob = |text| line(text).map(|(from, to)| (&text[to + 1..], &text[from..to]));
    listed.lines().filter_map(blob).collect()
}

/// The name of the snapshots of a repository's set-ups.
fn name_of(repository: &str) -> String {
    let plain = |letter: char| match letter.to_ascii_lowercase() {
        letter if letter.is_ascii_alphanumeric() || letter == '_' => letter,
        _ => '-',
    };
    let slug: String = repository.chars().map(plain).take(LONGEST_SLUG).collect();
    format!("setup-{slug}")
}

/// What the result of a set-up depends on.
fn digest(repository: &str, template: &str, files: &BTreeMap<&str, &str>) -> String {
    let mut digest = Sha256::new();
    for part in
        ["1", repository, template].into_iter().chain(files.iter().flat_map(|(name, id)| [*name, *id]))
    {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    hex::encode(&digest.finalize()[..16])
}

fn failed(from: &str, why: impl std::fmt::Display) -> StepError {
    StepError::fatal(StepCode::SetupFailed, format!("the set-up of the repository, `{from}`, {why}"))
}

impl Workbench {
    /// Prepares what the repository in a sandbox asks for; nothing if it asks for nothing.
    pub(super) async fn set_up(
        &self,
        at: &Station,
        order: SetUpOrder<'_>,
    ) -> Result<Option<Prepared>, StepError> {
        let path = self.path_of(at, order.repository).await?;
        let Some(mut plan) = self.plan(at, &order, &path).await? else { return Ok(None) };
        // What the agent has under the same name counts.
        let definition = order.definition;
        plan.env
            .retain(|name, _| !definition.env.contains_key(name) && !definition.secrets.contains_key(name));
        let show = |text: &str| self.redacted_whole(at, text);
        if !plan.warnings.is_empty() {
            let text = Text::head(&format!("{}: {}", plan.from, plan.warnings.join("; ")), LONGEST_WARNINGS);
            let source = format!("{}/setup-warnings", order.run);
            let entries = vec![(1, now_ms(), EntryBody::Output { text })];
            self.tell_script(at, order.place, &source, entries, &show).await?;
        }
        if plan.commands.is_empty() {
            return Ok((!plan.env.is_empty()).then_some(Prepared { template: None, env: plan.env }));
        }
        let known = self.kept_set_up(&at.scope, &plan.reference).await?;
        let snapshot = match known {
            Some(known) => {
                let (when, from) = (coffer_core::clock::rfc3339(known.created_ms), plan.from);
                let output = Some(Text::head(&format!("done before, at {when}: {}", plan.reference), 1000));
                let command = Text::head(from, LONGEST_SLUG);
                let body = EntryBody::Command { command, state: CallState::Done, exit_code: Some(0), output };
                let source = format!("{}/setup", order.run);
                self.tell_script(at, order.place, &source, vec![(1, now_ms(), body)], &show).await?;
                known
            }
            None => {
                (order.begins)().await?;
                self.prepare(&at.scope, &order, &plan).await?
            }
        };
        Ok(Some(Prepared { template: Some(snapshot.id.to_string()), env: plan.env }))
    }

    /// Reads what a repository asks for.
    async fn plan(
        &self,
        at: &Station,
        order: &SetUpOrder<'_>,
        path: &str,
    ) -> Result<Option<Plan>, StepError> {
        // As git's own words: a project's policy for commands may permit no shell.
        let names = [SCRIPT].into_iter().chain(CONTAINERS).chain(LOCKS);
        let words = ["git", "-C", path, "ls-tree", "HEAD", "--"].into_iter().chain(names).map(str::to_string);
        let listed = match self.small(at, words.collect(), None, LOOK_WITHIN).await {
            Ok((true, listed)) => listed,
            // An empty repository has no commit.
            Ok((false, _)) => return Ok(None),
            // Where that is not permitted, nothing is that a set-up would run.
            Err(error) if !error.transient => return Ok(None),
            Err(error) => return Err(error),
        };
        let files = blobs(&listed);
        let Some(from) = [SCRIPT].into_iter().chain(CONTAINERS).find(|name| files.contains_key(name)) else {
            return Ok(None);
        };
        let row = self.record(at).await?.row();
        let build = row.origin.as_ref().map(|origin| origin.snapshot.to_string()).unwrap_or_default();
        // Another size is another result: the snapshot has the disk of its sandbox.
        let disk = row.limits.disk_mib;
        let template = format!("{} {build} {disk}", row.template);
        let reference = TemplateRef {
            namespace: None,
            name: name_of(order.repository),
            tag: Some(digest(order.repository, &template, &files)),
        };
        let plan = Plan {
            from,
            commands: Vec::new(),
            as_root: false,
            env: BTreeMap::new(),
            warnings: Vec::new(),
            reference,
        };
        if from == SCRIPT {
            let words = ["/bin/bash", SCRIPT].map(str::to_string).to_vec();
            return Ok(Some(Plan { commands: vec![(SCRIPT.to_string(), words)], ..plan }));
        }
        let text = self.file_of(at, path, from).await?;
        let found = DevContainer::read(&text, &self.whole_path(at, path).await?);
        let found = found.map_err(|error| failed(from, format_args!("cannot be read: {error}")))?;
        let DevContainer { env, commands, as_root, warnings } = found;
        Ok(Some(Plan { commands, as_root, env, warnings, ..plan }))
    }

    async fn file_of(&self, at: &Station, path: &str, name: &str) -> Result<String, StepError> {
        let most = LONGEST_FILE + 1;
        let words = ["git", "-C", path, "show", &format!("HEAD:{name}")].map(str::to_string).to_vec();
        let record = self.record(at).await?;
        let command = Command { words, timeout: Some(LOOK_WITHIN), most, ..Command::default() };
        let done = self.exec.run(&record, command, None).await;
        let done = done.map_err(|error| self.trouble_at(at, error))?;
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// The path of the clone from the root, as commands in it see it.
    async fn whole_path(&self, at: &Station, path: &str) -> Result<String, StepError> {
        let words = ["/bin/sh", "-c", r#"cd "$1" && pwd"#, "sh", path].map(str::to_string).to_vec();
        Ok(self.small(at, words, None, LOOK_WITHIN).await?.1.trim().to_string())
    }

    /// The result of the same set-up, if it is there.
    async fn kept_set_up(
        &self,
        scope: &ProjectScope,
        reference: &TemplateRef,
    ) -> Result<Option<SnapshotRow>, StepError> {
        let found = self.fleet.snapshot_called(scope, reference).await;
        let found = found.map_err(|error| self.trouble(scope.project(), error))?;
        // A snapshot that somebody gave this name is none of ours.
        Ok(found.filter(|row| row.created_by.as_deref() == Some(CREATOR) && !row.memory))
    }

    /// Runs the commands in a sandbox of their own, and keeps what they leave.
    async fn prepare(
        &self,
        scope: &ProjectScope,
        order: &SetUpOrder<'_>,
        plan: &Plan,
    ) -> Result<SnapshotRow, StepError> {
        let order_of = SandboxOrder {
            key: &setup_key(order.run),
            // The commands are the repository's: nothing of the agent is theirs.
            agent: None,
            secrets: &BTreeMap::new(),
            env: plan.env.clone(),
            task: Some(order.task),
            template: order.definition.template.as_deref(),
            metadata: order.metadata.clone(),
            size: order.definition.size(self.fleet.usual_limits()),
        };
        let sandbox = self.ensure_sandbox(*scope, order_of).await?;
        let at = Station { scope: *scope, sandbox, actor: CREATOR.to_string() };
        let made = self.prepare_in(&at, order, plan).await;
        if made.as_ref().is_err_and(|error| error.transient) {
            // The step will be repeated, and the command goes on meanwhile.
            return made;
        }
        if let Err(error) = self.end_sandbox(&at).await {
            tracing::warn!(sandbox.id = %at.sandbox, "could not destroy the sandbox of a set-up yet: {error}");
        }
        let made = made?;
        self.forget_old(scope, &plan.reference.name).await;
        Ok(made)
    }

    async fn prepare_in(
        &self,
        at: &Station,
        order: &SetUpOrder<'_>,
        plan: &Plan,
    ) -> Result<SnapshotRow, StepError> {
        let record = self.record(at).await?;
        // A command that an earlier server started works in the clone.
        if self.exec.running(&record).await.unwrap_or_default().is_empty() {
            let cloned = self.with_git(at, order.clone.clone(), |git, session, clone| async move {
                git.clone_to_work(&session, clone).await
            });
            cloned.await?;
        }
        // From the root: another user has another home.
        let cwd = self.whole_path(at, &self.path_of(at, order.repository).await?).await?;
        let since = Instant::now();
        for (number, (name, words)) in plan.commands.iter().enumerate() {
            let within = SET_UP_WITHIN.saturating_sub(since.elapsed()).max(Duration::from_secs(1));
            let make = || Command {
                words: words.clone(),
                cwd: Some(cwd.clone()),
                user: plan.as_root.then(|| "root".to_string()),
                timeout: Some(within),
                ..Command::default()
            };
            let key = format!("{}-{number}", setup_key(order.run));
            let execution = self.start_once(at, &key, make).await?;
            let show = |text: &str| self.redacted_whole(at, text);
            let watch = Watch { within, allowance: None, tell: None, show: &show, grant: None, turn: None };
            let mut heard = Heard::new(None, None);
            let row = self.follow(at, execution, watch, &mut heard).await?;
            let row = row.ok_or_else(|| StepError::fatal(Code::BudgetExceeded, PAUSED_AT_BUDGET))?;
            let exit_code = exit_of(&row, within);
            let is_done = exit_code == Some(0);
            let body = EntryBody::Command {
                command: Text::head(name, LONGEST_SLUG),
                state: if is_done { CallState::Done } else { CallState::Failed },
                exit_code,
                output: Some(Text::folded(&heard.tail(), 0, OUTPUT_TAIL).map(&show)),
            };
            let source = execution.to_string();
            self.tell_script(at, order.place, &source, vec![(1, now_ms(), body)], &show).await?;
            if !is_done {
                let how = match exit_code {
                    Some(code) => format!("failed with exit code {code}"),
                    None => format!("took longer than {} minutes", SET_UP_WITHIN.as_secs() / 60),
                };
                let said = heard.last_words().map(|said| format!(": {}", show(&said))).unwrap_or_default();
                let which = if name == plan.from { String::new() } else { format!("{name} ") };
                return Err(failed(plan.from, format_args!("{which}{how}{said}")));
            }
        }
        if plan.as_root {
            // What root made in the clone is the agent's to change.
            let words =
                ["chown", "-R", "-h", &format!("--reference={cwd}/.git"), &cwd].map(str::to_string).to_vec();
            let user = Some("root".to_string());
            let command = Command { words, user, timeout: Some(LOOK_WITHIN * 4), ..Command::default() };
            let done = self.exec.run(&record, command, None).await;
            done.map_err(|error| self.trouble_at(at, error))?;
        }
        let words = ["/bin/sh", "-c", TIDY, "sh", &cwd].map(str::to_string).to_vec();
        let (is_tidy, said) = self.small(at, words, None, LOOK_WITHIN * 4).await?;
        if !is_tidy {
            let said: String = said.chars().filter(|letter| !letter.is_control()).take(200).collect();
            return Err(failed(plan.from, format_args!("left a repository that git cannot use: {said}")));
        }
        let spec = SnapshotSpec {
            name: Some(plan.reference.name.clone()),
            tag: plan.reference.tag.clone(),
            wish: MemoryWish { memory: Some(false), with_secrets: false },
            created_by: Some(CREATOR.to_string()),
            ..SnapshotSpec::default()
        };
        let made = self.fleet.snapshot(at.scope, record, spec).await;
        made.map_err(|error| self.trouble_at(at, error))
    }

    /// Deletes older set-ups of a repository: what a branch or a lock file asked for once is seldom asked for again.
    async fn forget_old(&self, scope: &ProjectScope, name: &str) {
        let filter = SnapshotFilter { name: Some(name.to_string()), limit: 100, ..SnapshotFilter::default() };
        let known = match self.store.snapshots(scope, &filter).await {
            Ok(known) => known,
            Err(error) => return tracing::warn!("could not list set-ups: {error}"),
        };
        let ours = known.into_iter().filter(|row| row.created_by.as_deref() == Some(CREATOR));
        for row in ours.skip(MOST_KEPT) {
            if let Err(error) = self.fleet.delete_snapshot(*scope, row.id).await {
                tracing::warn!("could not delete set-up {} yet: {error}", row.id);
            }
        }
    }

    /// The sandbox in which an attempt goes on after its set-up.
    pub(super) async fn prepared_sandbox(
        &self,
        scope: &ProjectScope,
        order: SandboxOrder<'_>,
        prepared: Prepared,
    ) -> Result<SandboxId, StepError> {
        let template = prepared.template.as_deref().or(order.template);
        // The snapshot has the size of its sandbox, which was the agent's.
        let size = if prepared.template.is_some() { SizeWish::default() } else { order.size };
        self.ensure_sandbox(*scope, SandboxOrder { template, env: prepared.env.clone(), size, ..order }).await
    }
}

/// The keys of the sandbox in which set-up runs, and of the one after it.
pub(super) fn setup_key(run: &str) -> String {
    format!("{run}/setup")
}

pub(super) fn prepared_key(run: &str) -> String {
    format!("{run}/prepared")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "100755 blob aaaa\t.coffer/setup.sh\n120000 blob bbbb\t.devcontainer.json\n\
                          100644 blob cccc\tyarn.lock\n040000 tree dddd\tgo.sum\n";

    #[test]
    fn only_plain_files_count() {
        let files = blobs(LISTED);
        assert_eq!(
            files.into_iter().collect::<Vec<_>>(),
            [(".coffer/setup.sh", "aaaa"), ("yarn.lock", "cccc")]
        );
        assert_eq!(blobs("fatal: not a tree").len(), 0);
    }

    #[test]
    fn a_set_up_is_another_with_other_files_another_template_or_another_repository() {
        let files = blobs(LISTED);
        let first = digest("app", "agent-codex", &files);
        assert_eq!(first, digest("app", "agent-codex", &blobs(LISTED)));
        let changed = LISTED.replace("cccc", "eeee");
        for other in [
            digest("app2", "agent-codex", &files),
            digest("app", "agent-codex 2", &files),
            digest("app", "agent-codex", &blobs(&changed)),
        ] {
            assert_ne!(first, other);
        }
        let reference = format!("{}:{first}", name_of("Octocat/hello.world"));
        assert_eq!(reference.parse::<TemplateRef>().unwrap().name, "setup-octocat-hello-world");
    }
}
