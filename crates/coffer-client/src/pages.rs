//! Lists, page by page.

use std::collections::VecDeque;
use std::marker::PhantomData;

use coffer_api_types::Page;
use serde::de::DeserializeOwned;

use crate::client::{Client, with_query};
use crate::error::Error;

/// A list that is fetched as it is read.
#[derive(Debug)]
pub struct Pages<T> {
    client: Client,
    path: String,
    query: String,
    read: VecDeque<T>,
    /// `None` when the last page was fetched.
    cursor: Option<Option<String>>,
    /// `None` for a list that the server returns at once.
    page_size: Option<u32>,
    kind: PhantomData<fn() -> T>,
}

impl<T> Pages<T> {
    pub(crate) fn new(client: Client, path: String, query: String) -> Self {
        let (read, cursor) = (VecDeque::new(), Some(None));
        Self { client, path, query, read, cursor, page_size: Some(200), kind: PhantomData }
    }

    /// How many items a request asks for, 1 to 200.
    #[must_use]
    pub fn page_size(mut self, size: u32) -> Self {
        self.page_size = self.page_size.map(|_| size.clamp(1, 200));
        self
    }

    /// For routes that have no pages.
    pub(crate) fn at_once(mut self) -> Self {
        self.page_size = None;
        self
    }
}

impl<T: DeserializeOwned> Pages<T> {
    /// The next item; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some(item) = self.read.pop_front() {
                return Ok(Some(item));
            }
            let Some(cursor) = self.cursor.take() else { return Ok(None) };
            let page = self.fetch(cursor).await?;
            self.read.extend(page.items);
            self.cursor = page.next.map(Some);
        }
    }

    async fn fetch(&self, cursor: Option<String>) -> Result<Page<T>, Error> {
        let part = coffer_api_types::PageQuery { limit: self.page_size, cursor };
        let parts = [self.query.clone(), crate::client::encode(&part)];
        let query = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("&");
        self.client.get(&with_query(self.path.clone(), &query)).await
    }

    /// At most `most` items, from the beginning.
    pub async fn take(mut self, most: usize) -> Result<Vec<T>, Error> {
        let mut items = Vec::new();
        while items.len() < most
            && let Some(item) = self.next().await?
        {
            items.push(item);
        }
        Ok(items)
    }

    /// Every item.
    pub async fn all(self) -> Result<Vec<T>, Error> {
        self.take(usize::MAX).await
    }
}
