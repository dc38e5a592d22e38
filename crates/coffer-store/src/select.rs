//! Reads rows of one table: one of them, or a list by pages.
//!
//! The SQL has only the given conditions, so that the database finds an index for them. Values are always
//! bound.

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::{Any, Arguments, AssertSqlSafe, Encode, Type};

use crate::StoreError;
use crate::database::Database;
use crate::error::Doing;

/// A query on one table.
pub(crate) struct Select {
    sql: String,
    values: AnyArguments,
    is_filtered: bool,
}

impl Select {
    pub(crate) fn new(columns: &str, table: &str) -> Self {
        let sql = format!("SELECT {columns} FROM {table}");
        Self { sql, values: AnyArguments::default(), is_filtered: false }
    }

    /// Keeps only rows for which the condition holds. Each `?` in it stands for the value.
    pub(crate) fn filter<'v, V>(mut self, condition: &str, value: V) -> Self
    where
        V: Encode<'v, Any> + Type<Any>,
    {
        let place = self.bind(value);
        self.filter_by(&condition.replace('?', &place))
    }

    /// The same if there is a value; without one, the condition is left out.
    pub(crate) fn filter_if<'v, V>(self, condition: &str, value: Option<V>) -> Self
    where
        V: Encode<'v, Any> + Type<Any>,
    {
        match value {
            Some(value) => self.filter(condition, value),
            None => self,
        }
    }

    /// Keeps only rows for which a condition without a value holds.
    pub(crate) fn filter_by(mut self, condition: &str) -> Self {
        self.sql += if self.is_filtered { " AND " } else { " WHERE " };
        self.sql += condition;
        self.is_filtered = true;
        self
    }

    /// The page that follows the row `after`, by a column that no two of the rows share.
    pub(crate) fn oldest_first<'v, K>(self, key: &str, after: Option<K>, limit: u32) -> Self
    where
        K: Encode<'v, Any> + Type<Any>,
    {
        self.filter_if(&format!("{key} > ?"), after).page(key, limit)
    }

    /// The page that follows the row `before`, the newest row first.
    pub(crate) fn newest_first<'v, K>(self, key: &str, before: Option<K>, limit: u32) -> Self
    where
        K: Encode<'v, Any> + Type<Any>,
    {
        self.filter_if(&format!("{key} < ?"), before).page(&format!("{key} DESC"), limit)
    }

    fn page(mut self, order: &str, limit: u32) -> Self {
        let limit = self.bind(i64::from(limit));
        self.sql += &format!(" ORDER BY {order} LIMIT {limit}");
        self
    }

    /// Binds a value and returns its placeholder.
    fn bind<'v, V>(&mut self, value: V) -> String
    where
        V: Encode<'v, Any> + Type<Any>,
    {
        self.values.add(value).expect("texts, numbers and ids can always be encoded");
        format!("${}", self.values.len())
    }

    /// All matching rows.
    pub(crate) async fn all<T>(
        self,
        database: &Database,
        doing: &'static str,
        read: impl Fn(&AnyRow) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let query = sqlx::query_with(AssertSqlSafe(self.sql), self.values);
        let rows = query.fetch_all(database.readers()).await.doing(doing)?;
        rows.iter().map(read).collect()
    }

    /// The matching row, if there is one.
    pub(crate) async fn one<T>(
        self,
        database: &Database,
        doing: &'static str,
        read: impl Fn(&AnyRow) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let query = sqlx::query_with(AssertSqlSafe(self.sql), self.values);
        let row = query.fetch_optional(database.readers()).await.doing(doing)?;
        row.as_ref().map(read).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_is_in_the_text() {
        let all = Select::new("id", "things").oldest_first("id", None::<i64>, 10);
        assert_eq!(all.sql, "SELECT id FROM things ORDER BY id LIMIT $1");

        let some = Select::new("id, name", "things")
            .filter("project_id = ?", "p")
            .filter_if("(kind = ? OR alias = ?)", Some("k"))
            .filter_if("colour = ?", None::<String>)
            .filter_by("removed_ms IS NULL")
            .newest_first("id", Some("after"), 10);
        assert_eq!(
            some.sql,
            "SELECT id, name FROM things WHERE project_id = $1 AND (kind = $2 OR alias = $2) \
             AND removed_ms IS NULL AND id < $3 ORDER BY id DESC LIMIT $4"
        );
        assert_eq!(some.values.len(), 4);
    }
}
