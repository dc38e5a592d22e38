//! Lists of directories, a part at a time, with the line that `ls -l` would print.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, ReadDir};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::attributes::Attributes;
use crate::account::Accounts;

/// How many names an answer has at most: with the longest ones it still fits.
const MOST: usize = 256;
/// Names of users that are looked up once.
const MOST_NAMES: usize = 1024;

pub(super) struct Entry {
    pub(super) name: OsString,
    pub(super) line: Vec<u8>,
    pub(super) attributes: Attributes,
}

pub(super) struct Directory {
    path: PathBuf,
    entries: ReadDir,
    /// `.` and `..`, which the system's list leaves out.
    dots: Vec<&'static str>,
}

impl Directory {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Self { entries: fs::read_dir(path)?, path: path.to_path_buf(), dots: vec!["..", "."] })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The next entries; none at the end. What was removed meanwhile is left out.
    pub(super) fn next(&mut self, names: &mut Names) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        while found.len() < MOST {
            let (name, metadata) = if let Some(dot) = self.dots.pop() {
                (OsString::from(dot), fs::symlink_metadata(self.path.join(dot)))
            } else if let Some(entry) = self.entries.next() {
                let entry = entry?;
                (entry.file_name(), entry.metadata())
            } else {
                break;
            };
            if let Ok(metadata) = metadata {
                let line = names.line(&name, &metadata);
                found.push(Entry { name, line, attributes: Attributes::of(&metadata) });
            }
        }
        Ok(found)
    }
}

/// Names of users and groups.
pub(super) struct Names {
    accounts: Accounts,
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
    now_s: i64,
}

impl Names {
    pub(super) fn read() -> Self {
        Self {
            accounts: Accounts::read().unwrap_or_default(),
            users: HashMap::new(),
            groups: HashMap::new(),
            now_s: i64::try_from(crate::clock::since_epoch().as_secs()).unwrap_or(i64::MAX),
        }
    }

    fn line(&mut self, name: &OsStr, found: &Metadata) -> Vec<u8> {
        if self.users.len() + self.groups.len() > MOST_NAMES {
            self.users.clear();
            self.groups.clear();
        }
        let (uid, gid) = (found.uid(), found.gid());
        let user = self.users.entry(uid).or_insert_with(|| self.accounts.user_name(uid).to_string());
        let group = self.groups.entry(gid).or_insert_with(|| self.accounts.group_name(gid).to_string());
        let (mode, time) = (mode_text(found.mode()), time_text(found.mtime(), self.now_s));
        let mut line = Vec::new();
        let _never = write!(line, "{mode} {:4} {user:8} {group:8} {:8} {time} ", found.nlink(), found.len());
        line.extend_from_slice(name.as_bytes());
        line
    }
}

/// `drwxr-xr-x`.
fn mode_text(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o020_000 => 'c',
        0o060_000 => 'b',
        0o010_000 => 'p',
        0o140_000 => 's',
        _ => '-',
    };
    let special =
        |bit: u32, execute: u32, both: char, alone: char| match (mode & bit != 0, mode & execute != 0) {
            (true, true) => both,
            (true, false) => alone,
            (false, true) => 'x',
            (false, false) => '-',
        };
    let plain = |bit: u32, letter: char| if mode & bit != 0 { letter } else { '-' };
    [
        kind,
        plain(0o400, 'r'),
        plain(0o200, 'w'),
        special(0o4000, 0o100, 's', 'S'),
        plain(0o040, 'r'),
        plain(0o020, 'w'),
        special(0o2000, 0o010, 's', 'S'),
        plain(0o004, 'r'),
        plain(0o002, 'w'),
        special(0o1000, 0o001, 't', 'T'),
    ]
    .into_iter()
    .collect()
}

/// `Jan  2 15:04`, or with the year if it is half a year away. In UTC, as a sandbox's clock is.
fn time_text(time: i64, now: i64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const DAY: i64 = 86_400;
    const HALF_A_YEAR: i64 = 182 * DAY;
    let (year, month, day) = date(time.div_euclid(DAY));
    let month = MONTHS[usize::try_from(month - 1).unwrap_or(0).min(11)];
    if (time - now).abs() > HALF_A_YEAR {
        return format!("{month} {day:2}  {year:4}");
    }
    let second = time.rem_euclid(DAY);
    format!("{month} {day:2} {:02}:{:02}", second / 3600, second / 60 % 60)
}

/// Year, month and day of a day since 1970: years begin in March, so that the leap day is their last.
fn date(days: i64) -> (i64, i64, i64) {
    const DAYS_TO_1970: i64 = 719_468;
    const ERA: i64 = 146_097;
    let days = days + DAYS_TO_1970;
    let era = days.div_euclid(ERA);
    let day_of_era = days.rem_euclid(ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_modes_are_as_ls_prints_them() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(date(-1), (1969, 12, 31));
        assert_eq!(time_text(0, 0), "Jan  1 00:00");
        assert_eq!(time_text(1_709_210_096, 1_709_210_096), "Feb 29 12:34");
        assert_eq!(time_text(0, 1_709_210_096), "Jan  1  1970");
        assert_eq!(mode_text(0o100_644), "-rw-r--r--");
        assert_eq!(mode_text(0o041_777), "drwxrwxrwt");
        assert_eq!(mode_text(0o104_711), "-rws--x--x");
    }
}
