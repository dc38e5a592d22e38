//! Lists that may be longer than a frame, one page at a time.

use serde::Serialize;

/// The size of a page, well below that of a frame. What one entry has at most is less.
const MOST_BYTES: usize = 4 << 20;

/// The entries after `after` that fit into a page, by id, and the id of the last one if there are more. All of them
/// if the server does not know pages.
pub(crate) fn of<T: Serialize, Id: Copy + Ord>(
    mut all: Vec<T>,
    id: impl Fn(&T) -> Id,
    paged: bool,
    after: Option<Id>,
) -> (Vec<T>, Option<Id>) {
    if !paged {
        return (all, None);
    }
    all.retain(|entry| after.is_none_or(|after| id(entry) > after));
    all.sort_by_key(&id);
    let mut bytes = 0;
    let fits = all.iter().take_while(|entry| {
        let is_first = bytes == 0;
        bytes += serde_json::to_vec(entry).map_or(0, |text| text.len()).max(1);
        is_first || bytes <= MOST_BYTES
    });
    let fits = fits.count();
    let more_after = all.get(fits).and_then(|_| all.get(fits.checked_sub(1)?)).map(&id);
    all.truncate(fits);
    (all, more_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_everything_once_and_each_fits() {
        let all: Vec<(u32, String)> = (0..50).rev().map(|id| (id, "x".repeat(300_000))).collect();
        let (mut read, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let (page, more_after) = of(all.clone(), |entry| entry.0, true, after);
            assert!(!page.is_empty() && serde_json::to_vec(&page).unwrap().len() < MOST_BYTES + 1024);
            read.extend(page.into_iter().map(|entry| entry.0));
            pages += 1;
            after = more_after;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((read, pages), ((0..50).collect(), 4));
        assert_eq!(of(all.clone(), |entry| entry.0, false, None), (all, None), "an older server gets all");
        assert_eq!(of(Vec::<(u32, ())>::new(), |entry| entry.0, true, None), (Vec::new(), None));
    }

    #[test]
    fn an_entry_that_is_larger_than_a_page_comes_alone() {
        let all: Vec<(u32, String)> = (0..3).map(|id| (id, "x".repeat(MOST_BYTES))).collect();
        let (page, more_after) = of(all, |entry| entry.0, true, Some(0));
        assert_eq!((page.len(), page[0].0, more_after), (1, 1, Some(1)));
    }
}
