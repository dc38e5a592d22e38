//! `compete`: agents at the same work in forks of one sandbox, with a live table.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use coffer_api_types::competitions::{Cancel, Competition, NewCompetition, NewEntry};
use coffer_core::compete::CompetitionState;
use serde_json::json;

use crate::context::Context;
use crate::failure::{FAILED, Failure, INTERRUPTED, Outcome};
use crate::{agents, escape, pairs, printer, sandboxes};

const LOOK: Duration = Duration::from_secs(1);

/// Let agents compete at the same work in forks of one sandbox, and watch them
///
/// Ctrl-C cancels the competition. `--detach` leaves it running.
#[derive(Debug, Args)]
pub struct Compete {
    /// What is to be done, in a line
    title: String,
    /// Agents, joined by commas; one entry each
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    agents: Vec<String>,
    /// Models, joined by commas: one for all entries, or one for each
    #[arg(long, value_name = "MODELS", value_delimiter = ',')]
    model: Vec<String>,
    /// The prompt of all agents; `-` reads it from stdin
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// A shell command line that must pass in each fork
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// Run once before the fork, in the repository
    #[arg(long, value_name = "COMMAND")]
    prepare: Option<String>,
    /// The repository to work on
    #[arg(long, value_name = "NAME")]
    repo: Option<String>,
    /// A prepared sandbox to fork, instead of a new one
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<String>,
    /// The branch to start from
    #[arg(long, value_name = "BRANCH")]
    base: Option<String>,
    /// The template of the sandbox that is prepared
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// How the winner is chosen: by a person, or the best whose check passed
    #[arg(long, value_name = "RULE", value_parser = ["manual", "best"], default_value = "best")]
    rule: String,
    /// The most that all entries may cost together
    #[arg(long, value_name = "AMOUNT")]
    budget: Option<f64>,
    /// Print the competition's id and leave it running
    #[arg(short, long)]
    detach: bool,
}

impl Compete {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        if self.model.len() > 1 && self.model.len() != self.agents.len() {
            let (models, agents) = (self.model.len(), self.agents.len());
            return Err(Failure::usage(format!("{models} models for {agents} agents"))
                .hint("name one model, or one for each agent"));
        }
        let detach = self.detach;
        let new = self.terms(context).await?;
        let started = context.client.create_competition(&new).await?;
        if detach {
            context.printer.done(&started.id, &started)?;
            return Ok(0);
        }
        tokio::select! {
            watched = watch(context, started.clone()) => watched,
            _ = tokio::signal::ctrl_c() => {
                let reason = Some("interrupted at the command line".to_string());
                context.client.cancel_competition(&started.id, &Cancel { reason }).await?;
                printer::note(&format!("cancelled competition {}", started.id));
                Ok(INTERRUPTED)
            }
        }
    }

    async fn terms(self, context: &Context) -> Result<NewCompetition, Failure> {
        let mut entries = Vec::new();
        for (position, name) in self.agents.iter().enumerate() {
            let agent_id = agents::resolve_some(context, Some(name)).await?;
            let model =
                self.model.get(position).or_else(|| self.model.first().filter(|_| self.model.len() == 1));
            entries.push(NewEntry {
                label: None,
                agent_id,
                model: model.cloned(),
                prompt: None,
                budget: None,
            });
        }
        let sandbox_id = match &self.sandbox {
            Some(sandbox) => sandboxes::resolve(context, sandbox).await?.parse().ok(),
            None => None,
        };
        Ok(NewCompetition {
            title: self.title,
            prompt: pairs::text(self.prompt)?,
            repository: self.repo,
            sandbox_id,
            base_branch: self.base,
            check_command: self.check,
            context_id: None,
            template: self.template,
            prepare_command: self.prepare,
            entries,
            rule: pairs::word(Some(self.rule))?,
            budget: self.budget,
            decide_within_s: None,
        })
    }
}

/// Shows the competition until it is decided, or a person has to choose.
async fn watch(context: &Context, mut competition: Competition) -> Outcome {
    let lives = std::io::stderr().is_terminal() && context.printer.is_table();
    let mut drawn = 0;
    loop {
        let over = is_over(&competition);
        if lives {
            let up = if drawn > 0 { format!("\u{1b}[{drawn}A\u{1b}[J") } else { String::new() };
            let text = if over { String::new() } else { picture(&competition) };
            drawn = text.lines().count();
            eprint!("{up}{text}");
        }
        if over {
            break;
        }
        tokio::time::sleep(LOOK).await;
        match context.client.competition(&competition.id).await {
            Ok(newer) => competition = newer,
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error.into()),
        }
    }
    match context.printer.is_table() {
        true => printer::print(&picture(&competition)),
        false => context.printer.show(&competition)?,
    }
    match competition.state {
        CompetitionState::Decided => Ok(0),
        CompetitionState::Waiting => {
            printer::note("hint: the entries are ranked; pick the winner in the web UI");
            Ok(0)
        }
        _ => {
            let why = competition.error.map_or_else(|| "no entry won".to_string(), |error| error.message);
            Err(Failure::new(format!("competition {} ended without a winner: {why}", competition.id))
                .exit(FAILED))
        }
    }
}

fn is_over(competition: &Competition) -> bool {
    use CompetitionState::{Cancelled, Decided, Failed, Waiting};
    matches!(competition.state, Decided | Failed | Cancelled | Waiting)
}

fn picture(competition: &Competition) -> String {
    let rows: Vec<_> = competition
        .entries
        .iter()
        .map(|entry| {
            json!({
                "#": entry.number, "agent": entry.label, "model": entry.model, "state": entry.state,
                "check": entry.check.as_ref().map(|check| if check.passed { "passed" } else { "failed" }),
                "diff": entry.diff.as_ref().map(|diff| format!("+{} -{}", diff.added, diff.removed)),
                "time": entry.duration_ms.map(|ms| format!("{:.1}s", std::time::Duration::from_millis(ms.unsigned_abs()).as_secs_f64())),
                "cost": entry.cost, "rank": entry.rank,
                "": if competition.winner == Some(entry.number) { "winner" } else { " " },
            })
        })
        .collect();
    let head = format!(
        "{}  {}  {}\n",
        competition.id,
        printer::to_value(&competition.state)
            .ok()
            .and_then(|state| state.as_str().map(str::to_string))
            .unwrap_or_default(),
        escape::line(&competition.title)
    );
    let tail =
        competition.pull_url.as_ref().map(|url| format!("{}\n", escape::line(url))).unwrap_or_default();
    let columns = ["#", "agent", "model", "state", "check", "diff", "time", "cost", "rank", ""];
    format!("{head}{}{tail}", printer::table(&rows, &columns))
}
