//! `quota`, `usage`, `budget`, `webhook`, `audit`: bounds, cost and records of a project.

use clap::{Args, Subcommand};
use coffer_api_types::audit::AuditQuery;
use coffer_api_types::budgets::{Action, NewBudget, Period};
use coffer_api_types::usage::UsageQuery;
use coffer_api_types::webhooks::{ChangedWebhook, DeliveryQuery, NewWebhook, Webhook};
use serde_json::{Value, json};

use crate::context::{Context, pick};
use crate::failure::{Failure, Outcome};
use crate::printer::print;
use crate::project::project_named;
use crate::{printer, sandboxes};

/// Show quotas and how much of them is used; operators set them
#[derive(Debug, Args)]
pub struct Quotas {
    /// For operators: of this project
    #[arg(long, value_name = "PROJECT")]
    project: Option<String>,
    /// For operators: set a quota, such as sandboxes=20; `default` removes it. May be repeated
    #[arg(long, value_name = "NAME=NUMBER", requires = "project")]
    set: Vec<String>,
}

impl Quotas {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let state = match &self.project {
            None => context.client.quotas().await?,
            Some(project) => {
                let id = project_named(context, project).await?;
                let state = context.client.project_quotas(&id).await?;
                if self.set.is_empty() {
                    state
                } else {
                    let mut own = printer::to_value(&state.own)?;
                    for pair in &self.set {
                        change(&mut own, pair)?;
                    }
                    let own =
                        serde_json::from_value(own).map_err(|error| Failure::usage(error.to_string()))?;
                    context.client.set_project_quotas(&id, &own).await?
                }
            }
        };
        if !context.printer.is_table() {
            context.printer.show(&state)?;
            return Ok(0);
        }
        let (limits, used) = (printer::to_value(&state.limits)?, printer::to_value(&state.used)?);
        let limits = limits.as_object().cloned().unwrap_or_default();
        let rows: Vec<Value> = limits
            .into_iter()
            .map(|(name, limit)| {
                let limit = if limit.is_null() { json!("none") } else { limit };
                json!({"quota": name, "used": used.get(&name), "limit": limit})
            })
            .collect();
        context.printer.list(&rows, &["quota", "used", "limit"])?;
        Ok(0)
    }
}

fn change(own: &mut Value, pair: &str) -> Result<(), Failure> {
    let bad =
        || Failure::usage(format!("'{pair}' is not NAME=NUMBER")).hint("`coffer quota` lists the names");
    let (name, value) = pair.split_once('=').ok_or_else(bad)?;
    let field = own.get_mut(name).ok_or_else(bad)?;
    *field = if value == "default" { Value::Null } else { json!(value.parse::<i64>().map_err(|_| bad())?) };
    Ok(())
}

/// Show what sandboxes used and cost
#[derive(Debug, Args)]
pub struct Usage {
    /// day, sandbox, agent, model, task or repository; for operators also project
    #[arg(long, alias = "group", value_name = "GROUP",
        value_parser = ["day", "sandbox", "agent", "model", "task", "repository", "project"])]
    by: Option<String>,
    /// All lines as a table for spreadsheets
    #[arg(long)]
    csv: bool,
    /// The first day, such as 2026-11-01
    #[arg(long, value_name = "DAY")]
    from: Option<String>,
    /// The last day
    #[arg(long, value_name = "DAY")]
    to: Option<String>,
    /// Only of this sandbox
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<String>,
    /// For operators: of all projects
    #[arg(long)]
    all: bool,
}

impl Usage {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let sandbox = match &self.sandbox {
            Some(sandbox) => sandboxes::resolve(context, sandbox).await?.parse().ok(),
            None => None,
        };
        let by = self.by.clone().unwrap_or_else(|| "day".into());
        let format = self.csv.then(|| "csv".to_string());
        let query =
            UsageQuery { group_by: self.by, group: None, from: self.from, to: self.to, sandbox, format };
        if self.csv {
            print(&context.client.usage_table(&query, self.all).await?);
            return Ok(0);
        }
        let usage = if self.all { context.client.usage_of_all(&query) } else { context.client.usage(&query) };
        let first: &[&str] = match by.as_str() {
            "sandbox" => &["sandbox_id"],
            "project" => &["project_id"],
            "agent" => &["agent_id", "label"],
            "task" => &["task_id", "label"],
            "model" => &["model"],
            "repository" => &["repository"],
            _ => &["day"],
        };
        let figures = [
            "total_cost",
            "cost",
            "model_cost",
            "reported_cost",
            "currency",
            "model_calls",
            "running_seconds",
        ];
        context.printer.list(&usage.all().await?, &[first, &figures].concat())?;
        Ok(0)
    }
}

/// Budgets: how much the project or a sandbox may cost
#[derive(Debug, Args)]
pub struct Budgets {
    #[command(subcommand)]
    verb: BudgetVerb,
}

#[derive(Debug, Subcommand)]
enum BudgetVerb {
    /// List budgets and what is spent
    Ls,
    /// Add a budget
    Add {
        /// How much may be spent, in the server's currency
        amount: f64,
        #[arg(long, value_name = "PERIOD", value_parser = ["day", "month", "total"], default_value = "month")]
        period: String,
        /// Only of this sandbox
        #[arg(long, value_name = "SANDBOX")]
        sandbox: Option<String>,
        /// What happens to running sandboxes when it is spent
        #[arg(long, value_name = "ACTION", value_parser = ["pause", "end"], default_value = "pause")]
        action: String,
        /// A percentage at which an event warns. May be repeated
        #[arg(long, value_name = "PERCENT")]
        warn_at: Vec<i64>,
    },
    /// Delete a budget
    Rm { budget: String },
}

impl Budgets {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let (client, printer) = (&context.client, context.printer);
        match self.verb {
            BudgetVerb::Ls => {
                let columns =
                    ["id", "sandbox_id", "period", "amount", "spent", "currency", "action", "exceeded"];
                printer.list(&client.budgets().all().await?, &columns)?;
            }
            BudgetVerb::Add { amount, period, sandbox, action, warn_at } => {
                let sandbox_id = match sandbox {
                    Some(sandbox) => sandboxes::resolve(context, &sandbox).await?.parse().ok(),
                    None => None,
                };
                let period = match period.as_str() {
                    "day" => Period::Day,
                    "total" => Period::Total,
                    _ => Period::Month,
                };
                let action = if action == "end" { Action::End } else { Action::Pause };
                let warn_at = (!warn_at.is_empty()).then_some(warn_at);
                let made =
                    client.create_budget(&NewBudget { sandbox_id, period, amount, warn_at, action }).await?;
                printer.done(&made.id, &made)?;
            }
            BudgetVerb::Rm { budget } => {
                let all = client.budgets().all().await?;
                let found = pick(&all, "budget", "budget ls", &budget, |one| one.id.as_str(), |_| None)?;
                client.delete_budget(&found.id).await?;
                printer.done(&format!("deleted budget {}", found.id), found)?;
            }
        }
        Ok(0)
    }
}

/// Webhooks: URLs that get events
#[derive(Debug, Args)]
pub struct Webhooks {
    #[command(subcommand)]
    verb: WebhookVerb,
}

#[derive(Debug, Subcommand)]
enum WebhookVerb {
    /// List webhooks
    Ls,
    /// Show a webhook
    Show { webhook: String },
    /// Add a webhook; the key that signs its deliveries is printed this once
    Add {
        url: String,
        /// Kinds of events, joined by commas, such as task.*,run.ended
        #[arg(long, value_name = "KINDS", value_delimiter = ',', required = true)]
        events: Vec<String>,
        /// A secret of the project that signs deliveries, by its name
        #[arg(long, value_name = "NAME")]
        secret: Option<String>,
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
    },
    /// Send a test delivery
    Test { webhook: String },
    /// List deliveries
    Deliveries {
        webhook: String,
        /// waiting, delivered or failed
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
    },
    /// Enable a webhook
    Enable { webhook: String },
    /// Disable a webhook
    Disable { webhook: String },
    /// Delete a webhook
    Rm { webhook: String },
}

async fn webhook_named(context: &Context, text: &str) -> Result<Webhook, Failure> {
    let all = context.client.webhooks().all().await?;
    let found =
        pick(&all, "webhook", "webhook ls", text, |one| one.id.as_str(), |one| Some(one.url.as_str()))?;
    Ok(found.clone())
}

impl Webhooks {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let (client, printer) = (&context.client, context.printer);
        match self.verb {
            WebhookVerb::Ls => {
                let columns = ["id", "url", "events", "enabled", "waiting", "failures", "last_success_at"];
                printer.list(&client.webhooks().all().await?, &columns)?;
            }
            WebhookVerb::Show { webhook } => printer.show(&webhook_named(context, &webhook).await?)?,
            WebhookVerb::Add { url, events, secret, description } => {
                let description = description.unwrap_or_default();
                let new = NewWebhook { url, events, secret, context_id: None, description, enabled: None };
                let made = client.create_webhook(&new).await?;
                let key = made.signing_secret.as_deref().map(|key| format!(" {key}")).unwrap_or_default();
                printer.done(&format!("{}{key}", made.webhook.id), &made)?;
            }
            WebhookVerb::Test { webhook } => {
                let webhook = webhook_named(context, &webhook).await?;
                let delivery = client.test_webhook(&webhook.id).await?;
                printer.done(&format!("sent delivery {}", delivery.delivery.id), &delivery)?;
            }
            WebhookVerb::Deliveries { webhook, state } => {
                let webhook = webhook_named(context, &webhook).await?;
                let all = client.deliveries(&webhook.id, &DeliveryQuery { state }).take(1000).await?;
                printer.list(
                    &all,
                    &["id", "kind", "state", "tries", "response_status", "error", "created_at"],
                )?;
            }
            WebhookVerb::Enable { webhook } => enable(context, &webhook, true).await?,
            WebhookVerb::Disable { webhook } => enable(context, &webhook, false).await?,
            WebhookVerb::Rm { webhook } => {
                let webhook = webhook_named(context, &webhook).await?;
                client.delete_webhook(&webhook.id).await?;
                printer.done(&format!("deleted webhook {}", webhook.id), &webhook)?;
            }
        }
        Ok(0)
    }
}

async fn enable(context: &Context, webhook: &str, enabled: bool) -> Result<(), Failure> {
    let webhook = webhook_named(context, webhook).await?;
    let change = ChangedWebhook { enabled: Some(enabled), ..ChangedWebhook::default() };
    let changed = context.client.change_webhook(&webhook.id, &change).await?;
    let said = if enabled { "enabled" } else { "disabled" };
    context.printer.done(&format!("{said} webhook {}", webhook.id), &changed)
}

/// Show the audit log: which caller did what
#[derive(Debug, Args)]
pub struct Audit {
    /// Only of this actor, such as key:<id>
    #[arg(long, value_name = "ACTOR")]
    actor: Option<String>,
    /// Only this action, such as `POST /api/v1/sandboxes`
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Only about this: an id
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// At most this many, the newest first
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
}

impl Audit {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let query = AuditQuery { actor: self.actor, action: self.action, subject: self.subject };
        let found = context.client.audit(&query).take(self.limit).await?;
        context.printer.list(&found, &["at", "actor", "action", "subject", "status", "code"])?;
        Ok(0)
    }
}
