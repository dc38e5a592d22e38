//! Searches the logs of all sandboxes of a project.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_store::{Cursor, ListFilter, Order};

use super::{LogQuery, MOST_SEARCHED, Page, Place, Search, Walk};
use crate::app::App;
use crate::auth::{Caller, Read};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::logs::FoundLine;

/// Sandboxes fetched at a time.
const SANDBOXES_AT_ONCE: u32 = 50;
/// Most bytes of logs that a glance looks through.
const MOST_GLANCED: usize = 4 << 20;

/// A position in all logs: in that of one sandbox, after which the older sandboxes follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spot {
    sandbox: Cursor,
    /// `None` after the end of its log.
    place: Option<Place>,
}

impl std::fmt::Display for Spot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}~", self.sandbox)?;
        self.place.map_or(Ok(()), |place| write!(f, "{place}"))
    }
}

impl std::str::FromStr for Spot {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (sandbox, place) = text.split_once('~').ok_or(())?;
        let place = if place.is_empty() { None } else { Some(place.parse()?) };
        Ok(Self { sandbox: sandbox.parse().map_err(drop)?, place })
    }
}

/// Searches the logs of all sandboxes, live and ended: newest sandboxes first, each from its oldest line on.
///
/// A page may have fewer lines than requested, even none, and still have a `next`: the server searches a
/// bounded part per request. The very latest output of a sandbox may be missing.
#[utoipa::path(
    get, path = "/api/v1/logs", tag = "logs", params(LogQuery),
    responses((status = 200, body = Page<FoundLine>))
)]
pub(in crate::v1) async fn find(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(query): Query<LogQuery>,
) -> Result<Json<Page<FoundLine>>, ApiError> {
    let spot = query.cursor.as_deref().map(str::parse::<Spot>).transpose();
    let spot = spot.map_err(|()| ApiError::invalid("cursor", "is not a cursor of this server"))?;
    let search = Search::of(&query, |_| Ok(Place::default()))?;
    let mut seen = Seen { app, caller, search, left: MOST_SEARCHED, found: Vec::new() };
    let mut after = None;
    if let Some(Spot { sandbox, place }) = spot {
        after = Some(sandbox);
        if let Some(place) = place
            && let Some(stopped) = seen.log_of(sandbox, place).await?
        {
            return Ok(seen.page(Some(stopped)));
        }
    }
    seen.app.fleet.recorded().await;
    loop {
        let filter = ListFilter {
            order: Order::NewestFirst,
            limit: SANDBOXES_AT_ONCE,
            cursor: after,
            ..ListFilter::default()
        };
        let page = seen.app.store.list(&seen.caller.scope, &filter).await.map_err(ApiError::store)?;
        for row in &page.rows {
            if let Some(stopped) = seen.log_of(Cursor::after(row), Place::default()).await? {
                return Ok(seen.page(Some(stopped)));
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(seen.page(None));
        }
    }
}

/// The first lines with this text in the newest logs. It looks through less than [`find`] and waits for nothing.
pub(in crate::v1) async fn glance(
    app: &Arc<App>,
    caller: Caller<Read>,
    text: &str,
    limit: u32,
) -> Result<Vec<FoundLine>, ApiError> {
    let query = LogQuery { search: Some(text.to_string()), limit: Some(limit), ..LogQuery::default() };
    let search = Search::of(&query, |_| Ok(Place::default()))?;
    let filter = ListFilter { order: Order::NewestFirst, limit: SANDBOXES_AT_ONCE, ..ListFilter::default() };
    let page = app.store.list(&caller.scope, &filter).await.map_err(ApiError::store)?;
    let mut seen = Seen { app: app.clone(), caller, search, left: MOST_GLANCED, found: Vec::new() };
    for row in &page.rows {
        if seen.log_of(Cursor::after(row), Place::default()).await?.is_some() {
            break;
        }
    }
    Ok(seen.found)
}

/// A search in progress.
struct Seen {
    app: Arc<App>,
    caller: Caller<Read>,
    search: Search,
    /// Bytes that may still be searched.
    left: usize,
    found: Vec<FoundLine>,
}

impl Seen {
    /// Searches the log of a sandbox; returns the position if the page is full.
    async fn log_of(&mut self, sandbox: Cursor, place: Place) -> Result<Option<Spot>, ApiError> {
        let mut walk = Walk::start(self.app.clone(), self.caller.scope, sandbox.sandbox(), place).await?;
        while let Some((lines, size)) = walk.step().await? {
            for line in lines {
                if !self.search.wants(&line) {
                    continue;
                }
                let (line, here) = (line.shown, line.place);
                self.found.push(FoundLine { sandbox_id: sandbox.sandbox().to_string(), line });
                if self.found.len() >= self.search.limit {
                    return Ok(Some(Spot { sandbox, place: Some(here) }));
                }
            }
            self.left = self.left.saturating_sub(size);
            if self.left == 0 {
                return Ok(Some(Spot { sandbox, place: (!walk.at_end).then_some(walk.place) }));
            }
        }
        Ok(None)
    }

    fn page(self, stopped: Option<Spot>) -> Json<Page<FoundLine>> {
        Json(Page::new(self.found, stopped.map(|spot| spot.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spot_is_read_as_it_was_written() {
        let sandbox: Cursor = "12_7zzzzzzzzzzzzzzzzzzzzzzzzz".parse().expect("a cursor");
        for place in [None, Some(Place { position: 3, transition: 4 })] {
            let spot = Spot { sandbox, place };
            assert_eq!(spot.to_string().parse(), Ok(spot));
        }
        for wrong in ["", "~", "1_x~", "12", &format!("{sandbox}~1"), &format!("{sandbox}~-1-2")] {
            assert_eq!(wrong.parse::<Spot>(), Err(()), "{wrong}");
        }
    }
}
