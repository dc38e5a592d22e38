//! Tasks for issues: one open task for each issue, and the local issue that a merge closes.

use coffer_core::event::{Event, IssueNote};
use coffer_core::forge::IssueState;
use coffer_core::{Millis, ProjectId, TaskIssue};
use sqlx::AnyConnection;

use super::{CHANGE, COLUMNS, NewTask, READ, TaskError, TaskRow, insert, read};
use crate::columns::json as to_json;
use crate::error::Doing;
use crate::projects::lock_project;
use crate::{ProjectScope, Store, StoreError, events};

impl Store {
    /// The newest task for an issue that is not over, or a new one; returns whether it is new. `another` asks for a new
    /// one in any case.
    pub async fn create_task_for_issue(
        &self,
        scope: &ProjectScope,
        new: NewTask,
        issue: TaskIssue,
        another: bool,
    ) -> Result<(TaskRow, bool), TaskError> {
        let project = scope.project();
        let create = self.database().write("create a task for an issue", move |connection| {
            Box::pin(async move {
                // Two who ask at once get the same task.
                lock_project(connection, project, CHANGE).await?;
                let key = issue.key();
                if !another && let Some(open) = open_one(connection, project, &key).await? {
                    return Ok((open, false));
                }
                let made = insert(connection, project, new).await?;
                let sql =
                    format!("UPDATE tasks SET issue_key = $1, issue = $2 WHERE id = $3 RETURNING {COLUMNS}");
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(key)
                    .bind(to_json(&issue))
                    .bind(made.id)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                Ok((read(&row)?, true))
            })
        });
        create.await
    }

    /// The newest task for an issue that is not over.
    pub async fn open_task_for_issue(
        &self,
        scope: &ProjectScope,
        key: &str,
    ) -> Result<Option<TaskRow>, StoreError> {
        let row = sqlx::query(sqlx::AssertSqlSafe(open_ones()))
            .bind(scope.project())
            .bind(key.to_string())
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.as_ref().map(read).transpose()
    }
}

fn open_ones() -> String {
    format!(
        "SELECT {COLUMNS} FROM tasks WHERE project_id = $1 AND issue_key = $2 AND archived_ms IS NULL
             AND state NOT IN ('done', 'cancelled') ORDER BY id DESC LIMIT 1"
    )
}

async fn open_one(
    connection: &mut AnyConnection,
    project: ProjectId,
    key: &str,
) -> Result<Option<TaskRow>, StoreError> {
    let row = sqlx::query(sqlx::AssertSqlSafe(open_ones()))
        .bind(project)
        .bind(key.to_string())
        .fetch_optional(connection)
        .await
        .doing(READ)?;
    row.as_ref().map(read).transpose()
}

/// Closes the local issue of a task whose pull request was merged, as `Closes #7` does on other forges.
pub(super) async fn close_issue(
    connection: &mut AnyConnection,
    task: &TaskRow,
    now: Millis,
) -> Result<(), StoreError> {
    let Some(issue) = &task.issue else { return Ok(()) };
    let closed = sqlx::query(
        "UPDATE issues SET state = 'closed', updated_ms = $1, closed_ms = $1
         WHERE repository_id = $2 AND project_id = $3 AND number = $4 AND state = 'open'",
    )
    .bind(now)
    .bind(issue.repository_id)
    .bind(task.project)
    .bind(issue.number)
    .execute(&mut *connection)
    .await
    .doing(CHANGE)?;
    if closed.rows_affected() == 0 {
        return Ok(());
    }
    let event = Event::IssueClosed(IssueNote { number: issue.number, state: IssueState::Closed });
    events::record(connection, task.project, issue.repository_id, event, now).await
}
