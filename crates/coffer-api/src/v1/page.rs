//! Lists, page by page.

use crate::error::ApiError;
use coffer_api_types::{Page, PageQuery};

const MOST: u32 = 200;
const USUAL: u32 = 50;

/// The requested part of a list whose positions have type `C`.
#[derive(Debug)]
pub(super) struct Part<C> {
    pub(super) limit: u32,
    pub(super) after: Option<C>,
}

impl<C: std::str::FromStr> Part<C> {
    pub(super) fn of(page: PageQuery) -> Result<Self, ApiError> {
        let limit = page.limit.unwrap_or(USUAL);
        if !(1..=MOST).contains(&limit) {
            return Err(ApiError::invalid("limit", format!("must be between 1 and {MOST}")));
        }
        let after = page.cursor.as_deref().map(str::parse).transpose();
        let after = after.map_err(|_| ApiError::invalid("cursor", "is not a cursor of this server"))?;
        Ok(Self { limit, after })
    }

    /// Fetch one more than is shown to learn whether there is a next part.
    pub(super) const fn to_fetch(&self) -> u32 {
        self.limit + 1
    }

    /// Builds the page from the fetched rows.
    pub(super) fn page<R, T>(
        &self,
        mut rows: Vec<R>,
        position: impl Fn(&R) -> String,
        show: impl FnMut(R) -> T,
    ) -> Page<T> {
        let limit = self.limit as usize;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(position);
        Page { items: rows.into_iter().map(show).collect(), next }
    }
}
