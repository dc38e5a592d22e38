//! The users of the sandbox, read from its `/etc/passwd` and `/etc/group`.
//!
//! Programs in the sandbox control these files: they may be missing, huge, or not files at all.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags};

/// More than any real user database; the rest is ignored.
const DATABASE_LIMIT: u64 = 1 << 20;

/// `setgroups` takes no more.
const GROUPS_LIMIT: usize = 1024;

/// The user of a process, and the owner of files that a call creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
    /// The primary group and every group that names the user.
    pub(crate) groups: Vec<u32>,
}

/// Why there is no such account.
#[derive(Debug)]
pub(crate) enum NoAccount {
    Unreadable(io::Error),
    Unknown,
}

/// Both databases, read once.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    /// Reads both; without a group file, groups have no names.
    pub(crate) fn read() -> io::Result<Self> {
        Ok(Self {
            passwd: read_database("/etc/passwd")?,
            group: read_database("/etc/group").unwrap_or_default(),
        })
    }

    pub(crate) fn find(name: &str) -> Result<Account, NoAccount> {
        Self::read().map_err(NoAccount::Unreadable)?.account(name).ok_or(NoAccount::Unknown)
    }

    /// The number of a group.
    pub(crate) fn find_group(name: &str) -> Option<u32> {
        let database = read_database("/etc/group").unwrap_or_default();
        number_of_group(&database, name)
    }

    fn account(&self, name: &str) -> Option<Account> {
        if name.is_empty() {
            return None;
        }
        self.passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            if fields.next()? != name {
                return None;
            }
            let _password = fields.next()?;
            let uid = id(fields.next()?)?;
            let gid = id(fields.next()?)?;
            let _comment = fields.next()?;
            let home = fields.next().filter(|home| home.starts_with('/'));
            Some(Account {
                name: name.to_owned(),
                uid,
                gid,
                home: PathBuf::from(home.unwrap_or("/")),
                groups: self.groups_of(name, gid),
            })
        })
    }

    fn groups_of(&self, name: &str, primary: u32) -> Vec<u32> {
        let mut groups = vec![primary];
        for line in self.group.lines() {
            let mut fields = line.split(':').skip(2);
            let (Some(gid), Some(members)) = (fields.next().and_then(id), fields.next()) else {
                continue;
            };
            let member = members.split(',').any(|member| member.trim() == name);
            if member && !groups.contains(&gid) && groups.len() < GROUPS_LIMIT {
                groups.push(gid);
            }
        }
        groups
    }

    /// The user's name, or the number if it has none.
    pub(crate) fn user_name(&self, uid: u32) -> String {
        name_of(&self.passwd, uid)
    }

    /// The group's name, or the number if it has none.
    pub(crate) fn group_name(&self, gid: u32) -> String {
        name_of(&self.group, gid)
    }
}

/// Both databases hold the number in their third field.
fn name_of(database: &str, number: u32) -> String {
    database
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let found = fields.nth(1).and_then(id)?;
            (found == number && !name.is_empty()).then(|| name.to_owned())
        })
        .unwrap_or_else(|| number.to_string())
}

fn number_of_group(database: &str, name: &str) -> Option<u32> {
    database.lines().find_map(|line| {
        let mut fields = line.split(':');
        (!name.is_empty() && fields.next()? == name).then(|| fields.nth(1).and_then(id))?
    })
}

/// `-1` as an id means "leave as it is" to the kernel, so it is not an id.
fn id(field: &str) -> Option<u32> {
    field.parse().ok().filter(|id| *id != u32::MAX)
}

fn read_database(path: &str) -> io::Result<String> {
    // Non-blocking, so that a pipe in the file's place cannot block us.
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other(format!("`{path}` is not a regular file")));
    }
    let mut bytes = Vec::new();
    File::from(file).take(DATABASE_LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/bash\n\
                     broken:x:one:2\n\
                     user:x:1000:1001:,,,:/home/user:/bin/bash\n\
                     bad:x:4294967295:1:::\n"
                .to_owned(),
            group: "root:x:0:\nsudo:x:27:user,other\nuser:x:1001:\nnobody:x:x:user\nadm:x:4:user\n"
                .to_owned(),
        }
    }

    #[test]
    fn a_user_has_its_primary_and_named_groups() {
        assert_eq!(
            accounts().account("user"),
            Some(Account {
                name: "user".into(),
                uid: 1000,
                gid: 1001,
                home: "/home/user".into(),
                groups: vec![1001, 27, 4],
            })
        );
    }

    #[test]
    fn broken_lines_and_reserved_ids_name_nobody() {
        let accounts = accounts();
        for name in ["", "broken", "bad", "stranger", "use"] {
            assert_eq!(accounts.account(name), None, "{name}");
        }
    }

    #[test]
    fn groups_have_numbers() {
        let group = accounts().group;
        assert_eq!(number_of_group(&group, "sudo"), Some(27));
        for name in ["", "nobody", "stranger", "sud"] {
            assert_eq!(number_of_group(&group, name), None, "{name}");
        }
    }

    #[test]
    fn ids_without_a_name_show_as_numbers() {
        let accounts = accounts();
        assert_eq!(accounts.user_name(0), "root");
        assert_eq!(accounts.user_name(77), "77");
        assert_eq!(accounts.group_name(27), "sudo");
        assert_eq!(accounts.group_name(5), "5");
    }
}
