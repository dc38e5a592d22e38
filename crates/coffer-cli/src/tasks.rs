//! `task`: work on the board, from a prompt to a merged pull request.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use coffer_api_types::attempts::{Cancel, NewAnswer, NewMessage, Start};
use coffer_api_types::git::DiffQuery;
use coffer_api_types::pulls::{Merge, Pull, PullQuery};
use coffer_api_types::tasks::{NewTask, Task, TaskQuery};
use coffer_core::{Answer, TaskId};

use crate::agents;
use crate::context::{Context, pick};
use crate::failure::{Failure, NOT_FOUND, Outcome, STATE};
use crate::git::{git_in, run_git, with_key};
use crate::pairs::{text, word};
use crate::{escape, printer, transcript};

/// Tasks: work for agents, from a prompt to a pull request
#[derive(Debug, Args)]
pub struct Tasks {
    #[command(subcommand)]
    verb: TaskVerb,
}

#[derive(Debug, Subcommand)]
enum TaskVerb {
    /// Add a task
    Add(Box<Add>),
    /// List tasks
    Ls {
        /// Only in this column: backlog, todo, in_progress, in_review, done, cancelled
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// Only with this label
        #[arg(long, value_name = "LABEL")]
        label: Option<String>,
        /// Only of this repository
        #[arg(long, value_name = "NAME")]
        repo: Option<String>,
        /// Only of this context
        #[arg(long, value_name = "NAME")]
        context: Option<String>,
        /// Only those that need a person
        #[arg(long)]
        attention: bool,
    },
    /// Show a task with its attempts and messages
    Show {
        task: String,
        /// Also what its agents did
        #[arg(long)]
        transcript: bool,
    },
    /// Print what a task's agents did, entry by entry
    Transcript(transcript::Transcript),
    /// Start an attempt
    Start {
        task: String,
        /// Another agent; the task keeps it
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// Another model, for this attempt
        #[arg(long, value_name = "MODEL")]
        model: Option<String>,
        /// End an attempt in progress
        #[arg(long)]
        replace: bool,
    },
    /// Send a message to a task's agent
    Say {
        task: String,
        /// The message; from stdin if it is left out
        message: Option<String>,
        /// The file that it is about
        #[arg(long, value_name = "PATH")]
        file: Option<String>,
        /// The line in that file
        #[arg(long, value_name = "NUMBER", requires = "file")]
        line: Option<u32>,
        /// Start the next attempt with it
        #[arg(long)]
        start: bool,
    },
    /// Stop the agent's turn; its work stays, and the attempt waits for what you say next
    Interrupt { task: String },
    /// Answer an attempt that waits for you, at its budget or interrupted; without an answer, show what it waits for
    #[command(visible_alias = "budget")]
    Answer {
        task: String,
        /// Raise the task's budget to this, and let the agent go on
        #[arg(long, value_name = "AMOUNT", group = "answer")]
        raise: Option<f64>,
        /// Let the agent go on
        #[arg(long, group = "answer")]
        go_on: bool,
        /// Make a draft of a pull request from what is there
        #[arg(long, group = "answer")]
        finish: bool,
        /// Push what is there to the branch, and end the attempt
        #[arg(long, group = "answer")]
        stop: bool,
    },
    /// Cancel a task and its attempt in progress
    Cancel {
        task: String,
        /// For people
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Print what a task changed, as a patch
    Diff { task: String },
    /// Check a task's branch out in the git repository here
    Checkout {
        task: String,
        /// The repository's directory
        #[arg(short = 'C', value_name = "DIR", default_value = ".")]
        directory: PathBuf,
    },
    /// Merge a task's pull request
    Merge {
        task: String,
        #[arg(long, value_name = "METHOD", value_parser = ["merge", "squash", "rebase"])]
        method: Option<String>,
    },
    /// Delete a task
    Rm { task: String },
}

#[derive(Debug, Args)]
struct Add {
    /// What is to be done, in a line; the issue's title by default
    #[arg(required_unless_present = "issue")]
    title: Option<String>,
    /// The issue to resolve: its address, or REPOSITORY#NUMBER
    #[arg(long, value_name = "URL", conflicts_with = "repo")]
    issue: Option<String>,
    /// The prompt; `-` reads it from stdin
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// The repository to work on
    #[arg(long, value_name = "NAME")]
    repo: Option<String>,
    /// The branch to start from
    #[arg(long, value_name = "BRANCH")]
    base: Option<String>,
    /// The agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Instead of the agent's own model
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// A shell command line that must pass
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// How often the agent may correct its work after the check failed
    #[arg(long, value_name = "NUMBER")]
    check_tries: Option<i64>,
    /// The most that its attempts may cost
    #[arg(long, value_name = "AMOUNT")]
    budget: Option<f64>,
    /// urgent, high, medium or low
    #[arg(long, value_name = "PRIORITY", value_parser = ["urgent", "high", "medium", "low"])]
    priority: Option<String>,
    /// A label. May be repeated
    #[arg(short, long, value_name = "LABEL")]
    label: Vec<String>,
    /// What it belongs to: any name, such as that of an experiment
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Start the first attempt at once
    #[arg(long)]
    start: bool,
}

pub(crate) async fn resolve(context: &Context, text: &str) -> Result<Task, Failure> {
    if text.parse::<TaskId>().is_ok() {
        return Ok(context.client.task(text).await?);
    }
    let all = context.client.tasks(&TaskQuery::default()).all().await?;
    let found =
        pick(&all, "task", "task ls", text, |task| task.id.as_str(), |task| Some(task.title.as_str()))?;
    Ok(found.clone())
}

impl Tasks {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let client = &context.client;
        match self.verb {
            TaskVerb::Add(add) => return add.run(context).await,
            TaskVerb::Ls { state, label, repo, context: context_id, attention } => {
                let needs_attention = attention.then_some(true);
                let repository = repo;
                let query = TaskQuery {
                    state,
                    label,
                    repository,
                    context_id,
                    needs_attention,
                    ..TaskQuery::default()
                };
                let all = client.tasks(&query).all().await?;
                let columns = [
                    "id",
                    "title",
                    "state",
                    "priority",
                    "repository",
                    "attempts",
                    "attention=needs_attention.code",
                    "updated_at",
                ];
                context.printer.list(&all, &columns)?;
            }
            TaskVerb::Show { task, transcript } => {
                let task = resolve(context, &task).await?;
                context.printer.show(&task)?;
                if context.printer.is_table() {
                    show_more(context, &task).await?;
                    if transcript {
                        transcript::print_all(context, &task).await?;
                    }
                }
            }
            TaskVerb::Transcript(transcript) => {
                let task = resolve(context, &transcript.task).await?;
                return transcript.run(context, &task).await;
            }
            TaskVerb::Start { task, agent, model, replace } => {
                let task = resolve(context, &task).await?;
                let agent_id = agents::resolve_some(context, agent.as_deref()).await?;
                let started =
                    client.start_task(&task.id, &Start { agent_id, model, replace, compete: None }).await?;
                context
                    .printer
                    .done(&format!("started attempt {} of {}", started.attempts, task.id), &started)?;
            }
            TaskVerb::Say { task, message, file, line, start } => {
                let task = resolve(context, &task).await?;
                let body = text(message.or_else(|| Some("-".into())))?;
                let said = client.say(&task.id, &NewMessage { body, file, line, start }).await?;
                context.printer.done(&format!("sent message {} to {}", said.number, task.id), &said)?;
            }
            TaskVerb::Interrupt { task } => {
                let task = resolve(context, &task).await?;
                let asked = client.interrupt_task(&task.id).await?;
                let told = format!(
                    "interrupted {0}: `coffer task say {0} MESSAGE` lets it go on, `coffer task answer {0} --finish` ends it",
                    task.id
                );
                context.printer.done(&told, &asked)?;
            }
            TaskVerb::Answer { task, raise, go_on, finish, stop } => {
                let task = resolve(context, &task).await?;
                let answer = match (raise, go_on, finish, stop) {
                    (Some(_), ..) => Answer::Raise,
                    (_, true, ..) => Answer::GoOn,
                    (_, _, true, _) => Answer::Finish,
                    (_, _, _, true) => Answer::Stop,
                    _ => {
                        context.printer.show(&client.task_question(&task.id).await?)?;
                        return Ok(0);
                    }
                };
                let answered = client.answer_task(&task.id, &NewAnswer { answer, budget: raise }).await?;
                let told = match answer {
                    Answer::Raise | Answer::GoOn => format!("{} goes on", task.id),
                    Answer::Finish => format!("{} becomes a draft of a pull request", task.id),
                    Answer::Stop | Answer::Unanswered => format!("stopped {}", task.id),
                };
                context.printer.done(&told, &answered)?;
            }
            TaskVerb::Cancel { task, reason } => {
                let task = resolve(context, &task).await?;
                let cancelled = client.cancel_task(&task.id, &Cancel { reason }).await?;
                context.printer.done(&format!("cancelled {}", task.id), &cancelled)?;
            }
            TaskVerb::Diff { task } => {
                let task = resolve(context, &task).await?;
                diff(context, &task).await?;
            }
            TaskVerb::Checkout { task, directory } => {
                let task = resolve(context, &task).await?;
                return checkout(context, &task, &directory).await;
            }
            TaskVerb::Merge { task, method } => {
                let task = resolve(context, &task).await?;
                let (repository, pull) = pull_of(context, &task).await?;
                let merge = Merge { method: word(method)?, ..Merge::default() };
                let merged = client.merge_pull(&repository, pull.number, &merge).await?;
                context
                    .printer
                    .done(&format!("merged pull request {} of {repository}", pull.number), &merged)?;
            }
            TaskVerb::Rm { task } => {
                let task = resolve(context, &task).await?;
                client.delete_task(&task.id).await?;
                context.printer.done(&format!("deleted {}", task.id), &task)?;
            }
        }
        Ok(0)
    }
}

impl Add {
    async fn run(self, context: &Context) -> Outcome {
        let new = NewTask {
            description: text(self.prompt)?,
            priority: word(self.priority)?,
            labels: self.label,
            repository: self.repo,
            base_branch: self.base,
            agent_id: agents::resolve_some(context, self.agent.as_deref()).await?,
            model: self.model,
            check_command: self.check,
            check_tries: self.check_tries,
            budget: self.budget,
            context_id: self.context,
            issue_url: self.issue,
            ..NewTask::titled(self.title.unwrap_or_default())
        };
        let mut task = context.client.create_task(&new).await?;
        if self.start {
            task = context.client.start_task(&task.id, &Start::default()).await?;
        }
        context.printer.done(&task.id, &task)?;
        Ok(0)
    }
}

async fn show_more(context: &Context, task: &Task) -> Result<(), Failure> {
    let attempts = context.client.attempts(&task.id).await?;
    if !attempts.is_empty() {
        printer::print("\n");
        let columns = [
            "number",
            "state",
            "model",
            "sandbox_id",
            "branch",
            "error=error.message",
            "started_at",
            "ended_at",
        ];
        context.printer.list(&attempts, &columns)?;
    }
    for message in context.client.messages(&task.id).all().await? {
        printer::print(&format!("\n{}:\n{}\n", escape::line(&message.author), escape::lines(&message.body)));
    }
    Ok(())
}

/// The task's newest pull request, with the name of its repository.
async fn pull_of(context: &Context, task: &Task) -> Result<(String, Pull), Failure> {
    let none = || {
        let failure = Failure::new(format!("task {} has no pull request", task.id)).exit(NOT_FOUND);
        failure.hint(format!("`coffer task show {}` shows how far it is", task.id))
    };
    let (Some(repository), Some(branch)) = (&task.repository, &task.branch) else { return Err(none()) };
    let query = PullQuery { head: Some(branch.clone()), ..PullQuery::default() };
    let pulls = context.client.pulls(repository, &query).all().await?;
    let newest = pulls.into_iter().max_by_key(|pull| pull.number).ok_or_else(none)?;
    Ok((repository.clone(), newest))
}

async fn diff(context: &Context, task: &Task) -> Result<(), Failure> {
    use std::io::IsTerminal as _;
    let (patch, truncated) = match pull_of(context, task).await {
        Ok((repository, pull)) => {
            let diff = context.client.pull_diff(&repository, pull.number).await?;
            if !context.printer.is_table() {
                return context.printer.show(&diff);
            }
            (diff.patch, diff.truncated)
        }
        // Without a pull request, the work tree of the newest attempt.
        Err(no_pull) => {
            let attempts = context.client.attempts(&task.id).await?;
            let sandbox =
                attempts.iter().rev().find_map(|attempt| attempt.sandbox_id.clone()).ok_or(no_pull)?;
            let diff = context.client.git_diff(&sandbox, &DiffQuery { repository: None, base: None }).await?;
            if !context.printer.is_table() {
                return context.printer.show(&diff);
            }
            let value = printer::to_value(&diff)?;
            let text = value.get("patch").and_then(|patch| patch.as_str()).unwrap_or_default().to_string();
            (text, value.get("truncated").and_then(serde_json::Value::as_bool).unwrap_or(false))
        }
    };
    // For `git apply` the patch must be as git wrote it; a terminal gets it without control characters.
    printer::print(&if std::io::stdout().is_terminal() { escape::lines(&patch) } else { patch });
    if truncated {
        printer::note("warning: the patch is longer than this");
    }
    Ok(())
}

/// Fetches the branch into the repository here, and switches to it.
async fn checkout(context: &Context, task: &Task, directory: &std::path::Path) -> Outcome {
    let (Some(repository), Some(branch)) = (&task.repository, &task.branch) else {
        let failure = Failure::new(format!("task {} has no branch yet", task.id)).exit(STATE);
        return Err(failure.hint(format!("`coffer task start {}`", task.id)));
    };
    if branch.starts_with('-') {
        return Err(Failure::new(format!("'{branch}' is not a branch")));
    }
    let detail = context.client.repository(repository).await?;
    let git = |words: &[&str]| git_in(directory, words);
    let mut fetch = match &detail.repository.clone_url {
        Some(url) => {
            let mut fetch = git(&["fetch", "--no-tags", url, &format!("refs/heads/{branch}")]);
            with_key(&mut fetch, context);
            fetch
        }
        None => git(&["fetch", "--no-tags", "origin", &format!("refs/heads/{branch}")]),
    };
    run_git(&mut fetch)?;
    let exists = git(&["rev-parse", "--quiet", "--verify", &format!("refs/heads/{branch}")]).output();
    if exists.is_ok_and(|output| output.status.success()) {
        run_git(&mut git(&["switch", branch]))?;
        run_git(&mut git(&["merge", "--ff-only", "FETCH_HEAD"]))?;
    } else {
        run_git(&mut git(&["switch", "--create", branch, "FETCH_HEAD"]))?;
    }
    context.printer.done(&format!("checked out {branch}"), task)?;
    Ok(0)
}
