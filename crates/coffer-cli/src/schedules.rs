//! `schedule`: tasks that start by the clock.

use clap::{Args, Subcommand};
use coffer_api_types::schedules::{ChangedSchedule, NewSchedule, Schedule, ScheduledTask};
use coffer_core::ScheduleId;
use coffer_core::schedule::Overlap;

use crate::agents;
use crate::context::{Context, pick};
use crate::failure::{Failure, Outcome};
use crate::pairs::{text, word};

/// Schedules: tasks that start by the clock
#[derive(Debug, Args)]
pub struct Schedules {
    #[command(subcommand)]
    verb: ScheduleVerb,
}

#[derive(Debug, Subcommand)]
enum ScheduleVerb {
    /// Add a schedule
    Add(Box<Add>),
    /// List schedules, with their next and last start
    Ls,
    /// Show a schedule
    Show { schedule: String },
    /// Start its task now; its next start stays
    Run { schedule: String },
    /// Start nothing until it is resumed
    Pause { schedule: String },
    /// Start its tasks again
    Resume { schedule: String },
    /// Delete a schedule; its tasks stay
    Rm { schedule: String },
}

#[derive(Debug, Args)]
struct Add {
    /// Its name
    name: String,
    /// When: minute, hour, day, month, weekday ("0 6 * * mon-fri"), or @hourly, @daily, @weekly, @monthly
    #[arg(long, value_name = "CRON")]
    cron: String,
    /// The time zone of the times; UTC by default
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// The title of its tasks; {{date}} is the day
    #[arg(long, value_name = "TEXT")]
    title: String,
    /// The prompt; `-` reads it from stdin
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// The agent
    #[arg(long, value_name = "NAME")]
    agent: String,
    /// The repository to work on
    #[arg(long, value_name = "NAME")]
    repo: Option<String>,
    /// The branch to start from
    #[arg(long, value_name = "BRANCH")]
    base: Option<String>,
    /// Instead of the agent's own model
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// A shell command line that must pass
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// The most that the attempts at one task may cost
    #[arg(long, value_name = "AMOUNT")]
    budget: Option<f64>,
    /// urgent, high, medium or low
    #[arg(long, value_name = "PRIORITY", value_parser = ["urgent", "high", "medium", "low"])]
    priority: Option<String>,
    /// A label. May be repeated
    #[arg(short, long, value_name = "LABEL")]
    label: Vec<String>,
    /// What its tasks belong to
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Start a task also while the last one is open
    #[arg(long)]
    overlap: bool,
    /// Paused at first
    #[arg(long)]
    paused: bool,
}

async fn resolve(context: &Context, text: &str) -> Result<Schedule, Failure> {
    if text.parse::<ScheduleId>().is_ok() {
        return Ok(context.client.schedule(text).await?);
    }
    let all = context.client.schedules().all().await?;
    let found = pick(
        &all,
        "schedule",
        "schedule ls",
        text,
        |schedule| schedule.id.as_str(),
        |schedule| Some(schedule.name.as_str()),
    )?;
    Ok(found.clone())
}

impl Schedules {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let client = &context.client;
        match self.verb {
            ScheduleVerb::Add(add) => return add.run(context).await,
            ScheduleVerb::Ls => {
                let all = client.schedules().all().await?;
                let columns =
                    ["id", "name", "cron", "time_zone", "enabled", "next_at", "last_outcome", "last_task_id"];
                context.printer.list(&all, &columns)?;
            }
            ScheduleVerb::Show { schedule } => {
                context.printer.show(&resolve(context, &schedule).await?)?;
            }
            ScheduleVerb::Run { schedule } => {
                let schedule = resolve(context, &schedule).await?;
                let started = client.run_schedule(&schedule.id).await?;
                context.printer.done(&format!("started task {}", started.task_id), &started)?;
            }
            ScheduleVerb::Pause { schedule } => {
                let changed = enable(context, &schedule, false).await?;
                context.printer.done(&format!("paused {}", changed.name), &changed)?;
            }
            ScheduleVerb::Resume { schedule } => {
                let changed = enable(context, &schedule, true).await?;
                let next = changed.next_at.clone().unwrap_or_default();
                context.printer.done(&format!("resumed {}, next start {next}", changed.name), &changed)?;
            }
            ScheduleVerb::Rm { schedule } => {
                let schedule = resolve(context, &schedule).await?;
                client.delete_schedule(&schedule.id).await?;
                context.printer.done(&format!("deleted {}", schedule.name), &schedule)?;
            }
        }
        Ok(0)
    }
}

async fn enable(context: &Context, schedule: &str, enabled: bool) -> Result<Schedule, Failure> {
    let schedule = resolve(context, schedule).await?;
    let change = ChangedSchedule { enabled: Some(enabled), ..ChangedSchedule::default() };
    Ok(context.client.change_schedule(&schedule.id, &change).await?)
}

impl Add {
    async fn run(self, context: &Context) -> Outcome {
        let agent = agents::resolve_some(context, Some(&self.agent)).await?;
        let agent_id = agent.ok_or_else(|| Failure::new("a schedule needs an agent"))?;
        let new = NewSchedule {
            name: self.name,
            cron: self.cron,
            time_zone: self.zone,
            overlap: if self.overlap { Overlap::Start } else { Overlap::Skip },
            enabled: !self.paused,
            task: ScheduledTask {
                title: self.title,
                description: text(self.prompt)?,
                priority: word(self.priority)?,
                labels: self.label,
                repository: self.repo,
                base_branch: self.base,
                agent_id,
                model: self.model,
                check_command: self.check,
                check_tries: None,
                budget: self.budget,
                context_id: self.context,
            },
        };
        let made = context.client.create_schedule(&new).await?;
        let told = match &made.next_at {
            Some(next) => format!("added {}, next start {next}", made.name),
            None => format!("added {}, paused", made.name),
        };
        context.printer.done(&told, &made)?;
        Ok(0)
    }
}
