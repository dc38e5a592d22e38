//! Properties of every pool in the table.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests may spawn, sleep and poison locks"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use coffer_shares::{POOLS, Place, Pool, Shares};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Tenant {
    A,
    B,
    Other(usize),
}

/// All places that tenant A can get.
fn fill(shares: &Shares<Tenant>, whose: Tenant) -> Vec<Place<Tenant>> {
    std::iter::from_fn(|| shares.try_take(whose).ok()).collect()
}

/// Polls once: a future that is not ready has had to wait.
async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = future => Some(done),
        () = std::future::ready(()) => None,
    }
}

async fn check(pool: &'static Pool) {
    let shares = Shares::new(pool);
    let name = pool.name;
    let held = fill(&shares, Tenant::A);
    assert_eq!(held.len(), pool.share, "{name}: one tenant gets its share and no more");
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let shares = shares.clone();
            tokio::spawn(async move { shares.take(Tenant::A).await })
        })
        .collect();
    tokio::task::yield_now().await;

    let place = at_once(shares.take(Tenant::B)).await;
    let place = place.unwrap_or_else(|| panic!("{name}: B waits while A holds its share"));
    let place = place.unwrap_or_else(|full| panic!("{name}: B is refused while A holds its share: {full}"));

    // Nor does it wait behind A once places come and go.
    drop(held);
    tokio::task::yield_now().await;
    assert!(at_once(shares.take(Tenant::B)).await.is_some_and(|taken| taken.is_ok()), "{name}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    for waiter in waiting {
        drop(waiter.await);
    }
    drop(place);
    assert_eq!(shares.in_use(), 0, "{name}: all places were given back");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_is_admitted_at_once_while_another_holds_its_share_of_every_pool() {
    assert!(POOLS.len() >= 20, "the table has every pool");
    for pool in POOLS {
        check(pool).await;
    }
}

#[tokio::test]
async fn several_busy_tenants_leave_room_for_the_next() {
    for pool in POOLS {
        let shares = Shares::new(pool);
        let busy = 3;
        let held: Vec<_> = (0..busy).map(|tenant| fill(&shares, Tenant::Other(tenant))).collect();
        assert!(held.iter().all(|held| !held.is_empty()), "{}: each gets something", pool.name);
        assert!(shares.try_take(Tenant::B).is_ok(), "{}: {busy} tenants hold all of it", pool.name);
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_in_a_refusal_that_names_the_pool_and_the_setting() {
    let shares = Shares::new(coffer_shares::pool::FILE_LISTS);
    let held = fill(&shares, Tenant::A);
    let began = tokio::time::Instant::now();
    let full = shares.take(Tenant::A).await.unwrap_err();
    assert_eq!((began.elapsed(), full.held), (Duration::from_secs(10), held.len()));
    assert!(full.to_string().contains("`file_lists`"), "{full}");
    assert!(full.hint().contains("`limits.pools.file_lists`"), "{}", full.hint());

    // A caller that stopped waiting gets nothing; one that still waits does.
    let waiter = tokio::spawn({
        let shares = shares.clone();
        async move { shares.take(Tenant::A).await.map(drop) }
    });
    tokio::task::yield_now().await;
    drop(held);
    waiter.await.unwrap().unwrap();
    assert_eq!(shares.in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_wait() {
    let shares = Shares::new(coffer_shares::pool::GIT_CALLS);
    let _held = fill(&shares, Tenant::A);
    let waiting: Vec<_> = (0..1000)
        .map(|_| {
            let shares = shares.clone();
            tokio::spawn(async move { shares.take(Tenant::A).await.map(drop) })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let refused = waiting.iter().filter(|waiter| waiter.is_finished()).count();
    assert_eq!(refused, 1000 - shares.share() * 16, "the rest are refused at once");
}

#[tokio::test]
async fn a_free_place_goes_to_the_tenant_with_the_fewest() {
    let shares = Shares::with_total(coffer_shares::pool::GIT_CALLS, 4);
    let mut of_a = fill(&shares, Tenant::A);
    let of_b = shares.try_take(Tenant::B).unwrap();
    let last = shares.try_take(Tenant::Other(1)).unwrap();
    assert_eq!((of_a.len(), shares.in_use()), (2, 4));
    let (mut again, mut first) = (Box::pin(shares.take(Tenant::A)), Box::pin(shares.take(Tenant::Other(2))));
    assert!(at_once(&mut again).await.is_none() && at_once(&mut first).await.is_none());
    of_a.pop();
    assert!(at_once(&mut first).await.is_some_and(|taken| taken.is_ok()), "though A asked first");
    assert!(at_once(&mut again).await.is_none());
    drop((of_b, last));
}

/// Semaphores that tenants do not share, and why.
const OTHER_SEMAPHORES: &[(&str, usize, &str)] = &[
    ("coffer-code/src/serve.rs", 1, "inside one sandbox"),
    ("coffer-egress/src/sandbox.rs", 4, "of one sandbox"),
    ("coffer-node/src/rpc.rs", 1, "of one server, which shares it out as `host_calls`"),
    ("coffer-node/src/reaper.rs", 2, "removal of what has ended; no request waits for it"),
    ("coffer-node/src/sandbox/rehearsal.rs", 1, "before a sandbox is anybody's"),
];

/// A pool without shares is a new way for one tenant to stop the others.
#[test]
fn every_semaphore_is_a_pool_of_the_table_or_says_why_not() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeSet::new();
    for directory in sources_of_all_crates() {
        for file in sources(&directory) {
            let text = std::fs::read_to_string(&file).unwrap();
            let count =
                text.matches("Semaphore::new(").count() + text.matches("Semaphore::const_new(").count();
            if count > 0 {
                let path = file.strip_prefix(crates).unwrap().display().to_string();
                found.insert((path, count));
            }
        }
    }
    let known: BTreeSet<_> =
        OTHER_SEMAPHORES.iter().map(|(path, count, _)| (path.to_string(), *count)).collect();
    let hint = "use `coffer_shares::Shares` with a pool of its table, or list it here with the reason";
    assert_eq!(found, known, "{hint}");
}

/// The `src` of every crate except this one, whose settings name each pool, and agentd, which serves one
/// tenant only.
fn sources_of_all_crates() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(own.parent().expect("crates are in one directory")).expect("a directory");
    let crates = entries.map(|entry| entry.expect("an entry").path());
    crates
        .filter(|path| path != own && !path.ends_with("coffer-agentd"))
        .map(|path| path.join("src"))
        .filter(|path| path.is_dir())
        .collect()
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(dir).expect("a directory of sources").map(|entry| entry.expect("an entry").path());
    let below = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    };
    entries
        .flat_map(below)
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// Every pool is used: one that is only in the table protects nothing.
#[test]
fn every_pool_of_the_table_is_used() {
    let texts: Vec<String> = sources_of_all_crates()
        .into_iter()
        .flat_map(|directory| sources(&directory))
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    for pool in POOLS {
        let constant = format!("pool::{}", pool.name.to_uppercase());
        assert!(texts.iter().any(|text| text.contains(&constant)), "nothing uses {constant}");
    }
}

/// `docs/limits.md` has the current table.
#[test]
fn the_documentation_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- pools: generated by coffer-shares -->\n", "<!-- pools: end -->");
    let (before, rest) = text.split_once(begin).expect("the table's beginning is marked");
    let (shown, after) = rest.split_once(end).expect("the table's end is marked");
    let rows = POOLS.iter().map(|pool| {
        let setting = pool.setting.map_or("–".to_string(), |setting| format!("`{setting}`"));
        format!("| `{}` | {} | {} | {} | {setting} |\n", pool.name, pool.holds, pool.total, pool.share)
    });
    let head = "| pool | what takes a place | places | of one tenant | setting |\n|---|---|---|---|---|\n";
    let expected = format!("\n{head}{}\n", rows.collect::<String>());
    if std::env::var_os("COFFER_UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{begin}{expected}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(shown, expected, "run this test with COFFER_UPDATE=1");
}
