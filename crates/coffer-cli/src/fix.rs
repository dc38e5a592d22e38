//! `fix`: from an issue or a text to a pull request, in one call.
//!
//! `source` finds out what is to be done and where, `agent` who does it, `watch` shows the work. This file has the order:
//! nothing is started before everything is known.

mod agent;
mod source;
mod watch;

use std::path::PathBuf;

use clap::Args;
use coffer_api_types::attempts::{Cancel, Start};
use coffer_api_types::tasks::{ChangedTask, NewTask, Task};
use coffer_core::{AgentId, TaskState};

use crate::context::Context;
use crate::failure::{Failure, INTERRUPTED, Outcome};
use crate::{ask, escape, pairs, printer};

use source::{Aim, Source, Where};

/// Let an agent resolve an issue, or do what a text says, and print the pull request
///
/// TARGET is the address of an issue, REPOSITORY#NUMBER, or a text; `-` reads the text from stdin. For a text the repository is
/// that of --repo, or the git repository in --dir: if its forge is not connected, a copy of it on this server. What is missing
/// is asked for on a terminal. Ctrl-C cancels what was started.
#[derive(Debug, Args)]
pub struct Fix {
    /// The address of an issue, or what is to be done
    target: String,
    /// The repository, by its name or its address
    #[arg(long, value_name = "NAME|URL", conflicts_with = "dir")]
    repo: Option<String>,
    /// The directory of a git repository; this one by default
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The branch to start from
    #[arg(long, value_name = "BRANCH")]
    base: Option<String>,
    /// The agent; the only one of the project by default
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Instead of the agent's own model
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// A shell command line that must pass
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// The most that it may cost
    #[arg(long, value_name = "AMOUNT")]
    budget: Option<f64>,
    /// Another attempt, although the issue's task has a pull request
    #[arg(long)]
    again: bool,
    /// Print the task's id and leave it running
    #[arg(short, long)]
    detach: bool,
    /// Ask nothing: start at once, and fail if something is missing
    #[arg(short, long)]
    yes: bool,
}

impl Fix {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let asks = !self.yes && ask::at_terminal();
        let target = pairs::text(Some(self.target.clone()))?;
        let place =
            Where { repo: self.repo.as_deref(), dir: self.dir.as_deref(), base: self.base.as_deref() };
        let aim = Aim::of(context, target.trim(), &place)?;
        // A missing agent should be heard of before a repository is registered or pushed to.
        let agent = agent::choose(context, self.agent.as_deref(), asks).await?;
        let source = Source::of(context, aim, &place, asks).await?;
        let task = self.task(context, source, agent.id, asks).await?;
        if let Some(url) = self.is_done(&task) {
            printer::note(&format!(
                "task {} has a pull request already; --again starts another attempt",
                task.id
            ));
            watch::print_result(context, &task, url)?;
            return Ok(0);
        }
        let mut task = task;
        let runs =
            task.state == TaskState::InProgress && task.run_id.is_some() && is_busy(context, &task).await?;
        if runs {
            printer::note(&format!("task {} is in progress: showing it; Ctrl-C leaves it alone", task.id));
        } else {
            if asks && !ask::yes(&format!("Start {}?", summary(&task, &agent.name)))? {
                printer::note(&format!("task {} is on the board, not started", task.id));
                return Ok(0);
            }
            let start = Start { agent_id: Some(agent.id), model: self.model.clone(), ..Start::default() };
            task = context.client.start_task(&task.id, &start).await?;
        }
        if self.detach {
            context.printer.done(&task.id, &task)?;
            return Ok(0);
        }
        tokio::select! {
            watched = watch::until_over(context, &task) => watched,
            _ = tokio::signal::ctrl_c() => {
                if runs {
                    return Ok(INTERRUPTED);
                }
                let reason = Some("interrupted at the command line".to_string());
                context.client.cancel_task(&task.id, &Cancel { reason }).await?;
                printer::note(&format!("cancelled task {}", task.id));
                Ok(INTERRUPTED)
            }
        }
    }

    /// The task's pull request, if there is nothing left to do.
    fn is_done<'a>(&self, task: &'a Task) -> Option<&'a str> {
        let is_in_review = task.state == TaskState::InReview && task.needs_attention.is_none();
        task.pull_url.as_deref().filter(|_| is_in_review && !self.again)
    }

    /// The task: a new one, or the open one of the issue, with what was asked for now.
    async fn task(
        &self,
        context: &Context,
        source: Source,
        agent: AgentId,
        asks: bool,
    ) -> Result<Task, Failure> {
        let new = NewTask {
            description: source.description,
            repository: source.repository,
            base_branch: self.base.clone().or(source.base),
            agent_id: Some(agent),
            model: self.model.clone(),
            check_command: self.check.clone(),
            budget: self.budget,
            issue_url: source.issue,
            ..NewTask::titled(source.title)
        };
        let task =
            source::with_connection(context, asks, async || context.client.create_task(&new).await).await?;
        let changed = ChangedTask {
            check_command: self
                .check
                .clone()
                .filter(|check| task.check_command.as_ref() != Some(check))
                .map(Some),
            budget: self.budget.filter(|budget| task.budget != Some(*budget)).map(Some),
            ..ChangedTask::default()
        };
        if changed == ChangedTask::default() {
            return Ok(task);
        }
        Ok(context.client.change_task(&task.id, &changed).await?)
    }
}

async fn is_busy(context: &Context, task: &Task) -> Result<bool, Failure> {
    let attempts = context.client.attempts(&task.id).await?;
    Ok(attempts.last().is_some_and(|last| matches!(last.state.as_str(), "queued" | "running")))
}

fn summary(task: &Task, agent: &str) -> String {
    let repository = task.repository.as_deref().unwrap_or("no repository");
    let check = task.check_command.as_ref().map(|check| format!(", check `{}`", escape::line(check)));
    let budget = task.budget.map(|budget| format!(", budget {budget}"));
    format!(
        "\"{}\" in {} with {}{}{}",
        escape::line(&task.title),
        escape::line(repository),
        escape::line(agent),
        check.unwrap_or_default(),
        budget.unwrap_or_default()
    )
}
