//! Finds records of a project by words of their names.
//!
//! One statement looks through the newest [`LOOKED_THROUGH`] records of each kind: an index finds those, and the words are
//! compared one record after the other, because SQLite and PostgreSQL have no index for parts of words in common.

use coffer_core::Millis;
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::error::Doing;
use crate::{ProjectScope, Store, StoreError};

const READ: &str = "search";
/// Records of a kind that a search looks through, newest first.
const LOOKED_THROUGH: u32 = 20_000;

/// The kind of a record that a search finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundKind {
    Task,
    Repository,
    Pull,
    Sandbox,
    Agent,
}

impl FoundKind {
    pub const ALL: [Self; 5] = [Self::Task, Self::Repository, Self::Pull, Self::Sandbox, Self::Agent];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Repository => "repository",
            Self::Pull => "pull",
            Self::Sandbox => "sandbox",
            Self::Agent => "agent",
        }
    }

    /// Selects `kind, id, title, about, state, number, at_ms` of the records that have all words. `{words}` stands for
    /// the condition on the column `text`, and `{most}` for [`LOOKED_THROUGH`].
    const fn sql(self) -> &'static str {
        match self {
            Self::Task => {
                "SELECT 'task' AS kind, id, title, COALESCE(repository, '') AS about, state, CAST(0 AS BIGINT) AS number,
                     updated_ms AS at_ms
                 FROM (SELECT id, title, repository, state, updated_ms,
                           LOWER(title || ' ' || labels || ' ' || COALESCE(repository, '') || ' ' || id) AS text
                       FROM tasks WHERE project_id = $1 AND archived_ms IS NULL ORDER BY id DESC LIMIT {most}) AS newest
                 WHERE {words} ORDER BY id DESC LIMIT $2"
            }
            Self::Repository => {
                "SELECT 'repository' AS kind, id, name AS title, kind AS about, '' AS state, CAST(0 AS BIGINT) AS number,
                     created_ms AS at_ms
                 FROM (SELECT id, name, kind, created_ms, LOWER(name || ' ' || COALESCE(remote, '') || ' ' || id) AS text
                       FROM repositories WHERE project_id = $1 AND removed_ms IS NULL
                       ORDER BY id DESC LIMIT {most}) AS newest
                 WHERE {words} ORDER BY id DESC LIMIT $2"
            }
            Self::Pull => {
                "SELECT 'pull' AS kind, repository_id AS id, title, name AS about, state, number, updated_ms AS at_ms
                 FROM (SELECT p.repository_id, p.title, r.name, p.state, p.number, p.updated_ms,
                           LOWER(p.title || ' ' || p.head || ' #' || p.number || ' ' || r.name) AS text
                       FROM pulls AS p JOIN repositories AS r ON r.id = p.repository_id
                       WHERE p.project_id = $1 AND r.removed_ms IS NULL
                       ORDER BY p.updated_ms DESC LIMIT {most}) AS newest
                 WHERE {words} ORDER BY updated_ms DESC LIMIT $2"
            }
            Self::Sandbox => {
                "SELECT 'sandbox' AS kind, id, metadata AS title, template AS about, state, CAST(0 AS BIGINT) AS number,
                     started_ms AS at_ms
                 FROM (SELECT id, metadata, template, state, started_ms,
                           LOWER(metadata || ' ' || template || ' ' || id) AS text
                       FROM sandboxes WHERE project_id = $1 ORDER BY started_ms DESC LIMIT {most}) AS newest
                 WHERE {words} ORDER BY started_ms DESC LIMIT $2"
            }
            Self::Agent => {
                "SELECT 'agent' AS kind, id, name AS title, '' AS about, '' AS state, CAST(0 AS BIGINT) AS number,
                     created_ms AS at_ms
                 FROM (SELECT id, name, created_ms, LOWER(name || ' ' || id) AS text
                       FROM agents WHERE project_id = $1 AND removed_ms IS NULL ORDER BY id DESC LIMIT {most}) AS newest
                 WHERE {words} ORDER BY id DESC LIMIT $2"
            }
        }
    }
}

/// A record that has the words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub kind: FoundKind,
    /// Its id; of a pull request, that of its repository.
    pub id: String,
    /// Its title or name; of a sandbox, its metadata as JSON.
    pub title: String,
    /// The repository of a task or a pull request, the kind of a repository, the template of a sandbox.
    pub about: String,
    pub state: String,
    /// Of a pull request.
    pub number: i64,
    pub at_ms: Millis,
}

impl Store {
    /// The newest records of these kinds that have all words, at most `limit` of each kind. Without words, the newest.
    pub async fn search(
        &self,
        scope: &ProjectScope,
        kinds: &[FoundKind],
        words: &[String],
        limit: u32,
    ) -> Result<Vec<Found>, StoreError> {
        if kinds.is_empty() {
            return Ok(Vec::new());
        }
        let has_words: Vec<String> =
            (0..words.len()).map(|at| format!("text LIKE ${} ESCAPE '\\'", at + 3)).collect();
        let has_words = if has_words.is_empty() { "1 = 1".to_string() } else { has_words.join(" AND ") };
        let parts: Vec<String> = kinds
            .iter()
            .map(|kind| {
                let part = kind.sql().replace("{words}", &has_words);
                format!(
                    "SELECT * FROM ({}) AS found_{}",
                    part.replace("{most}", &LOOKED_THROUGH.to_string()),
                    kind.as_str()
                )
            })
            .collect();
        let query = sqlx::query(sqlx::AssertSqlSafe(parts.join(" UNION ALL ")))
            .bind(scope.project())
            .bind(i64::from(limit));
        let query = words.iter().fold(query, |query, word| query.bind(containing(word)));
        let rows = query.fetch_all(self.database().readers()).await.doing(READ)?;
        rows.iter().map(read).collect()
    }
}

/// The pattern of texts that have this word in them, in small letters.
pub(crate) fn containing(word: &str) -> String {
    let escaped: String = word
        .to_lowercase()
        .chars()
        .flat_map(|c| ['%', '_', '\\'].contains(&c).then_some('\\').into_iter().chain([c]))
        .collect();
    format!("%{escaped}%")
}

fn read(row: &AnyRow) -> Result<Found, StoreError> {
    let kind: String = row.try_get("kind").doing(READ)?;
    let kind = FoundKind::ALL.into_iter().find(|known| known.as_str() == kind).ok_or_else(|| {
        StoreError::Unreadable { what: "search result", why: format!("unknown kind `{kind}`") }
    })?;
    Ok(Found {
        kind,
        id: row.try_get("id").doing(READ)?,
        title: row.try_get("title").doing(READ)?,
        about: row.try_get("about").doing(READ)?,
        state: row.try_get("state").doing(READ)?,
        number: row.try_get("number").doing(READ)?,
        at_ms: row.try_get("at_ms").doing(READ)?,
    })
}
