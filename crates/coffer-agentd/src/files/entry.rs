//! Describes files for clients.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use coffer_wire::envd::Timestamp;
use coffer_wire::envd::filesystem::{EntryInfo, FileType};

use super::metadata;
use crate::account::Accounts;
use crate::path::base_name;

/// Describes `path` itself. For a link it shows the type and mode of its target.
pub(super) fn describe(path: &Path, accounts: &Accounts) -> io::Result<EntryInfo> {
    let found = std::fs::symlink_metadata(path)?;
    let is_symlink = found.file_type().is_symlink();
    let target = if is_symlink { std::fs::canonicalize(path).ok() } else { None };
    let (file_type, mode) = match &target {
        Some(target) => match std::fs::metadata(target) {
            Ok(meant) => (entry_type(&meant), meant.mode() & 0o777),
            Err(_) => (FileType::Unspecified, 0),
        },
        None => (entry_type(&found), found.mode() & 0o777),
    };
    Ok(EntryInfo {
        name: base_name(path),
        r#type: file_type.into(),
        path: path.to_string_lossy().into_owned(),
        size: size(&found),
        mode,
        permissions: permissions(&found),
        owner: accounts.user_name(found.uid()),
        group: accounts.group_name(found.gid()),
        modified_time: Some(modified(&found)),
        symlink_target: target.map(|target| target.to_string_lossy().into_owned()),
        metadata: if is_symlink { Default::default() } else { metadata::read(path).into_iter().collect() },
        is_symlink,
    })
}

/// On btrfs an empty directory has size 0; clients expect at least one block.
fn size(metadata: &std::fs::Metadata) -> i64 {
    const BLOCK: i64 = 4096;
    match i64::try_from(metadata.size()) {
        Ok(0) if metadata.is_dir() => BLOCK,
        Ok(size) => size,
        Err(_) => i64::MAX,
    }
}

/// A file's time can be set to anything; times outside of calendars are clamped.
fn modified(metadata: &std::fs::Metadata) -> Timestamp {
    const YEARS_1_TO_9999: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_207_200;
    Timestamp {
        seconds: metadata.mtime().clamp(*YEARS_1_TO_9999.start(), *YEARS_1_TO_9999.end()),
        nanos: i32::try_from(metadata.mtime_nsec()).unwrap_or_default(),
    }
}

fn entry_type(metadata: &std::fs::Metadata) -> FileType {
    if metadata.is_file() {
        FileType::File
    } else if metadata.is_dir() {
        FileType::Directory
    } else {
        FileType::Unspecified
    }
}

/// `-rw-r--r--`, with a letter in front for other types of files.
fn permissions(metadata: &std::fs::Metadata) -> String {
    let kind = metadata.file_type();
    let mode = metadata.mode();
    let device = kind.is_block_device() || kind.is_char_device();
    let mut text: String = [
        (kind.is_dir(), 'd'),
        (kind.is_symlink(), 'L'),
        (device, 'D'),
        (kind.is_fifo(), 'p'),
        (kind.is_socket(), 'S'),
        (mode & 0o4000 != 0, 'u'),
        (mode & 0o2000 != 0, 'g'),
        (kind.is_char_device(), 'c'),
        (mode & 0o1000 != 0, 't'),
    ]
    .into_iter()
    .filter_map(|(is, letter)| is.then_some(letter))
    .collect();
    if text.is_empty() {
        text.push('-');
    }
    for (index, letter) in "rwxrwxrwx".chars().enumerate() {
        let set = mode & (0o400 >> index) != 0;
        text.push(if set { letter } else { '-' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn links_show_what_they_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let file = root.join("file");
        std::fs::write(&file, "1234").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", root.join("link")).unwrap();
        symlink("nowhere", root.join("broken")).unwrap();
        let accounts = Accounts::default();

        let entry = describe(&file, &accounts).unwrap();
        assert_eq!(
            (entry.r#type(), entry.mode, entry.size, &*entry.permissions),
            (FileType::File, 0o640, 4, "-rw-r-----")
        );

        let entry = describe(&root.join("link"), &accounts).unwrap();
        assert_eq!((entry.r#type(), entry.mode), (FileType::File, 0o640));
        assert_eq!(entry.symlink_target.as_deref(), file.to_str());
        assert!(entry.is_symlink && entry.permissions.starts_with('L'));

        let entry = describe(&root.join("broken"), &accounts).unwrap();
        assert_eq!(entry.r#type(), FileType::Unspecified);
        assert_eq!(entry.symlink_target, None);

        assert!(describe(&root.join("nowhere"), &accounts).is_err());
    }

    #[test]
    fn a_file_from_the_end_of_time_can_be_described() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("late")).unwrap();
        let late = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 33);
        file.set_modified(late).unwrap();
        let entry = describe(&dir.path().join("late"), &Accounts::default()).unwrap();
        assert!(serde_json::to_string(&entry).unwrap().contains("2242-03-16"));
        let extreme = Timestamp { seconds: 253_402_207_200, nanos: 999_999_999 };
        assert!(serde_json::to_string(&extreme).is_ok());
        let extreme = Timestamp { seconds: -62_135_596_800, nanos: 0 };
        assert!(serde_json::to_string(&extreme).is_ok());
    }

    #[test]
    fn a_sticky_directory_says_so() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        let entry = describe(dir.path(), &Accounts::default()).unwrap();
        assert_eq!(entry.permissions, "dtrwxrwxrwx");
    }
}
