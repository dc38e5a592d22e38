//! Lists sandboxes, page by page.

use coffer_core::StateName;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::{Any, AssertSqlSafe, Row};

use super::insert::pair_digest;
use crate::columns::{sandbox_columns, sandbox_row, storable};
use crate::error::Doing;
use crate::{Cursor, ListFilter, Order, Page, Scope, Store, StoreError};

/// Most metadata pairs in a filter; bounds the query.
const MOST_PAIRS: usize = 64;
const LARGEST_PAGE: u32 = 1000;

const LIST: &str = "list sandboxes";

impl Store {
    /// One page of the sandboxes of a project, or of all live ones for the operator. Following [`Page::next`]
    /// returns each sandbox that exists throughout exactly once, however many are created or end meanwhile.
    pub async fn list(&self, scope: &impl Scope, filter: &ListFilter) -> Result<Page, StoreError> {
        if filter.metadata.len() > MOST_PAIRS {
            return Err(StoreError::TooManyPairs { most: MOST_PAIRS });
        }
        let limit = filter.limit.clamp(1, LARGEST_PAGE) as usize;
        let rows = page_query(scope, filter, limit + 1).fetch(self).await?;
        let mut rows =
            rows.iter().map(|row| sandbox_row(row, self.vault())).collect::<Result<Vec<_>, _>>()?;
        // The extra row shows that there is a next page, and is dropped.
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(Cursor::after);

        let counted = count_query(scope, filter).fetch(self).await?;
        let counted = counted.first().ok_or_else(|| StoreError::Unreadable {
            what: "count of running sandboxes",
            why: "the database returned none".to_string(),
        })?;
        let total_running: i64 = counted.try_get("running").doing(LIST)?;
        Ok(Page { rows, next, total_running: total_running.unsigned_abs() })
    }
}

/// Queries each state separately and merges: one index scan over several states would pass every ended
/// sandbox. The same holds for the three columns that can name a template.
fn page_query(scope: &impl Scope, filter: &ListFilter, rows: usize) -> Question {
    let mut question = Question::default();
    let mut conditions = question.matching(scope, filter);
    let (beyond, direction) = match filter.order {
        Order::NewestFirst => ("<", "DESC"),
        Order::OldestFirst => (">", "ASC"),
    };
    if let Some(cursor) = filter.cursor {
        // Ids are lower-case letters and digits, which sort alike in every collation.
        let started = question.number(cursor.started_ms);
        let id = question.text(cursor.id.to_string());
        conditions += &format!(" AND (s.started_ms, s.id) {beyond} ({started}, {id})");
    }
    let templates = match &filter.template {
        None => vec![String::new()],
        Some(template) => {
            let name = question.text(storable(template));
            vec![
                format!(" AND s.template = {name}"),
                // The conditions of the indexes, so that each row is in one part.
                format!(" AND s.template_id = {name} AND s.template_id <> s.template"),
                format!(" AND s.alias = {name} AND s.alias <> s.template AND s.alias <> s.template_id"),
            ]
        }
    };
    let order = format!("ORDER BY s.started_ms {direction}, s.id {direction} LIMIT {rows}");
    let states: Vec<String> = match filter.states.as_slice() {
        [] if filter.template.is_none() => vec![String::new()],
        states => ALL_STATES
            .iter()
            // The indexes by template have the state before the start.
            .filter(|state| states.is_empty() || states.contains(state))
            .map(|state| format!(" AND s.state = {}", question.text(state.as_str().to_string())))
            .collect(),
    };
    let parts = states.iter().flat_map(|state| templates.iter().map(move |template| (state, template)));
    let parts: Vec<String> = parts
        .map(|(state, template)| {
            let columns = sandbox_columns!();
            format!(
                "SELECT * FROM (SELECT {columns} FROM sandboxes AS s
                 WHERE {conditions}{state}{template} {order}) AS part"
            )
        })
        .collect();
    question.sql = format!("SELECT * FROM ({}) AS s {order}", parts.join(" UNION ALL "));
    question
}

const ALL_STATES: [StateName; 5] =
    [StateName::Creating, StateName::Running, StateName::Paused, StateName::Terminated, StateName::Error];

fn count_query(scope: &impl Scope, filter: &ListFilter) -> Question {
    let mut question = Question::default();
    let mut conditions = question.matching(scope, filter);
    if let Some(template) = &filter.template {
        let name = question.text(storable(template));
        conditions += &format!(" AND (s.template = {name} OR s.template_id = {name} OR s.alias = {name})");
    }
    let running = question.text(StateName::Running.as_str().to_string());
    question.sql =
        format!("SELECT COUNT(*) AS running FROM sandboxes AS s WHERE {conditions} AND s.state = {running}");
    question
}

/// A query that grows with its filter. Values are always bound, never part of the text.
#[derive(Default)]
struct Question {
    sql: String,
    values: Vec<Value>,
}

enum Value {
    Text(String),
    Number(i64),
}

impl Question {
    /// Binds a value and returns its placeholder.
    fn text(&mut self, value: String) -> String {
        self.values.push(Value::Text(value));
        format!("${}", self.values.len())
    }

    fn number(&mut self, value: i64) -> String {
        self.values.push(Value::Number(value));
        format!("${}", self.values.len())
    }

    /// The filter's conditions, apart from state, template and page.
    fn matching(&mut self, scope: &impl Scope, filter: &ListFilter) -> String {
        let mut conditions = match scope.only() {
            Some(project) => {
                format!("s.project_id = {} AND s.purpose = 'use'", self.text(project.to_string()))
            }
            // An index covers only these; ended sandboxes are listed only per project.
            None => "s.state IN ('creating', 'running', 'paused')".to_string(),
        };
        // An agent sees its own; others may filter by agent.
        for agent in [scope.only_of(), filter.agent].into_iter().flatten() {
            conditions += &format!(" AND s.agent_id = {}", self.text(agent.to_string()));
        }
        if let Some(task) = filter.task {
            conditions += &format!(" AND s.task_id = {}", self.text(task.to_string()));
        }
        if let Some(after_ms) = filter.started_after_ms {
            conditions += &format!(" AND s.started_ms > {}", self.number(after_ms));
        }
        for (key, value) in &filter.metadata {
            let pair = self.text(pair_digest(key, value));
            conditions += &format!(
                " AND EXISTS (SELECT 1 FROM sandbox_metadata AS m
                  WHERE m.project_id = s.project_id AND m.pair = {pair} AND m.sandbox_id = s.id)"
            );
        }
        conditions
    }

    async fn fetch(self, store: &Store) -> Result<Vec<AnyRow>, StoreError> {
        let query: sqlx::query::Query<'_, Any, AnyArguments> = sqlx::query(AssertSqlSafe(self.sql));
        let query = self.values.into_iter().fold(query, |query, value| match value {
            Value::Text(text) => query.bind(text),
            Value::Number(number) => query.bind(number),
        });
        query.fetch_all(store.database().readers()).await.doing(LIST)
    }
}
