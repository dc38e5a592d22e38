//! Disks, templates and the database.

use std::path::Path;

use coffer_core::settings::{ByteSize, SecretText};
use coffer_template::{BASE, BaseOptions, Recipe, TemplateStore};

use super::finding::Finding;
use crate::config::Settings;

/// The pool's smallest size and what a disk should keep free.
const TOO_LITTLE: u64 = 3 << 30;
const LITTLE: u64 = 10 << 30;
/// Files from a later time than this mean that the clock was set back.
const CLOCK_SLACK_MS: i64 = 120_000;

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let has_pool = settings.data_dir.join("node/pool.img").exists();
    let mut findings = vec![disk("disk", &settings.data_dir, has_pool)];
    if device(&settings.template.dir) != device(&settings.data_dir) {
        findings.push(disk("disk.templates", &settings.template.dir, true));
    }
    findings.extend(files_from_the_future(&settings.data_dir));
    findings.push(templates(settings));
    findings
}

/// The directory, or the closest one above it that exists.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

fn device(path: &Path) -> Option<u64> {
    rustix::fs::stat(existing(path)).ok().map(|stat| stat.st_dev)
}

fn disk(check: &str, path: &Path, has_pool: bool) -> Finding {
    match rustix::fs::statvfs(existing(path)) {
        Ok(disk) => judge_disk(check, path, disk.f_bavail.saturating_mul(disk.f_frsize), has_pool),
        Err(error) => Finding::fail(check, format!("could not look at `{}`: {error}", path.display())),
    }
}

/// A pool that exists has its room reserved, so less is enough then.
fn judge_disk(check: &str, path: &Path, free: u64, has_pool: bool) -> Finding {
    let found = format!("{} free for `{}`", ByteSize::mib(free >> 20), path.display());
    let fix = "free some space, or choose another disk with `data_dir` and `template.dir`";
    let needed = if has_pool { TOO_LITTLE / 6 } else { TOO_LITTLE };
    if free < needed {
        let matters = match has_pool {
            true => "the database, logs and repositories cannot grow",
            false => "there is no room for the pool of sandboxes, which takes 2 GiB at least",
        };
        return Finding::fail(check, found).matters(matters).fix(fix);
    }
    if free < LITTLE && !has_pool {
        return Finding::warn(check, found).matters("the pool of sandboxes will be small").fix(fix);
    }
    Finding::ok(check, found)
}

fn files_from_the_future(data_dir: &Path) -> Option<Finding> {
    let written_ms = |name: &&str| {
        let file = rustix::fs::stat(data_dir.join(name)).ok()?;
        file.st_mtime.checked_mul(1000)
    };
    let newest = ["lock", "env", "installation", "server/coffer.db"].iter().filter_map(written_ms).max()?;
    let ahead = newest.saturating_sub(coffer_core::clock::now_ms());
    (ahead > CLOCK_SLACK_MS).then(|| {
        let (dir, ahead) = (data_dir.display(), ahead / 1000);
        Finding::fail("clock.back", format!("files of `{dir}` are from {ahead} s in the future"))
            .matters("the clock was set back: sandboxes, leases and sessions live too long")
            .fix("timedatectl set-ntp true (or install chrony), then look at `date`")
    })
}

fn templates(settings: &Settings) -> Finding {
    let dir = &settings.template.dir;
    if !dir.is_dir() {
        return Finding::warn("templates", format!("no template is built yet in `{}`", dir.display()))
            .matters("sandboxes use the machine's own /usr (template `host`)")
            .fix("coffer template build base");
    }
    let store = match TemplateStore::open(dir, coffer_node::layers_in_use) {
        Ok(store) => store,
        Err(error) => {
            return Finding::fail("templates", format!("could not open `{}`: {error}", dir.display()))
                .fix(format!("coffer doctor must be able to write there: ls -ld {}", dir.display()));
        }
    };
    let fix = "coffer template build base";
    match store.get(BASE) {
        Some(base) if store.is_current(Recipe::Base, &BaseOptions::default()) => {
            Finding::ok("templates", format!("base is built ({})", base.info.build))
        }
        Some(base) => {
            Finding::warn("templates", format!("base ({}) is of an older recipe", base.info.build)).fix(fix)
        }
        None => Finding::warn("templates", "base is not built yet")
            .matters("sandboxes use the machine's own /usr (template `host`)")
            .fix(fix),
    }
}

/// Looks at the database without migrating it.
pub(super) async fn check_database(settings: &Settings) -> Vec<Finding> {
    let file = settings.data_dir.join("server/coffer.db");
    let url = settings.database.url.as_ref().map(SecretText::reveal);
    if url.is_none() && !file.exists() {
        return vec![Finding::skipped("database", "there is none yet; the first start creates it")];
    }
    let url = url.map_or_else(|| format!("sqlite:{}", file.display()), str::to_string);
    match coffer_store::examine(&url).await {
        Ok(seen) => vec![Finding::ok("database", seen)],
        Err(error) => {
            let error = anyhow::Error::from(error);
            vec![
                Finding::fail("database", format!("{error:#}"))
                    .matters("`coffer up` does not start without its database")
                    .fix("start the database, or correct `database.url` (COFFER_DATABASE_URL)"),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    #[test]
    fn a_disk_is_full_sooner_while_it_has_no_pool() {
        let judge = |free, has_pool| judge_disk("disk", Path::new("/data"), free, has_pool).status;
        assert_eq!(judge(1 << 30, false), Status::Fail);
        assert_eq!(judge(1 << 30, true), Status::Ok);
        assert_eq!(judge(100 << 20, true), Status::Fail);
        assert_eq!(judge(5 << 30, false), Status::Warn);
        assert_eq!(judge(50 << 30, false), Status::Ok);
    }

    #[test]
    fn files_of_tomorrow_mean_that_the_clock_went_back() {
        let temp = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(temp.path().join("env")).unwrap();
        assert_eq!(files_from_the_future(temp.path()), None);
        let tomorrow = std::time::SystemTime::now() + std::time::Duration::from_secs(86_400);
        file.set_modified(tomorrow).unwrap();
        assert_eq!(files_from_the_future(temp.path()).unwrap().status, Status::Fail);
    }
}
