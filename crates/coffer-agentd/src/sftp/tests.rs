use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// A client that speaks to a server in this process.
struct Client {
    server: Server,
    next: u32,
}

fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let mut body = Vec::new();
    fields::string(&mut body, text.as_ref());
    body
}

fn path(path: &Path) -> Vec<u8> {
    string(path.as_os_str().as_bytes())
}

const NO_ATTRIBUTES: [u8; 4] = [0; 4];

impl Client {
    fn new() -> Self {
        Self { server: Server::default(), next: 0 }
    }

    /// The kind of the answer, and what follows its number.
    fn ask(&mut self, kind: u8, parts: &[&[u8]]) -> (u8, Vec<u8>) {
        self.next += 1;
        let mut request = vec![kind];
        request.extend_from_slice(&self.next.to_be_bytes());
        request.extend(parts.concat());
        let answer = self.server.answer(&request);
        assert_eq!(u32::from_be_bytes(answer[..4].try_into().unwrap()) as usize, answer.len() - 4);
        assert_eq!(answer[5..9], self.next.to_be_bytes());
        (answer[4], answer[9..].to_vec())
    }

    /// The code of a status.
    fn status(&mut self, kind: u8, parts: &[&[u8]]) -> u32 {
        let (kind, body) = self.ask(kind, parts);
        assert_eq!(kind, 101);
        u32::from_be_bytes(body[..4].try_into().unwrap())
    }

    fn open(&mut self, file: &Path, flags: u32) -> Vec<u8> {
        let (kind, body) = self.ask(kind::OPEN, &[&path(file), &flags.to_be_bytes(), &NO_ATTRIBUTES]);
        assert_eq!(kind, 102);
        body
    }
}

#[test]
fn files_are_written_and_read_at_any_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    let mut client = Client::new();
    let handle = client.open(&file, 0x1b);
    for (offset, data) in [(6_u64, "world"), (0, "hello "), (1 << 20, "far")] {
        let written = client.status(kind::WRITE, &[&handle, &offset.to_be_bytes(), &string(data)]);
        assert_eq!(written, 0);
    }
    let (kind, body) = client.ask(kind::READ, &[&handle, &4_u64.to_be_bytes(), &5_u32.to_be_bytes()]);
    assert_eq!((kind, &body[4..]), (103, &b"o wor"[..]));
    assert_eq!(client.status(kind::READ, &[&handle, &(2_u64 << 20).to_be_bytes(), &5_u32.to_be_bytes()]), 1);
    assert_eq!(client.status(kind::CLOSE, &[&handle]), 0);
    assert_eq!(client.status(kind::CLOSE, &[&handle]), 2);
    assert_eq!(fs::metadata(&file).unwrap().len(), (1 << 20) + 3);
}

#[test]
fn attributes_are_set_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    fs::write(&file, "12345").unwrap();
    let mut client = Client::new();
    // Size, permissions and times.
    let wanted =
        [&[0, 0, 0, 13][..], &3_u64.to_be_bytes(), &0o640_u32.to_be_bytes(), &[0, 0, 0, 5, 0, 0, 0, 9]];
    assert_eq!(client.status(kind::SETSTAT, &[&path(&file), &wanted.concat()]), 0);
    let (kind, body) = client.ask(kind::STAT, &[&path(&file)]);
    assert_eq!(kind, 105);
    let mut fields = Fields::of(&body);
    let found = Attributes::read(&mut fields).unwrap();
    assert_eq!((found.size, found.permissions), (Some(3), Some(0o100_640)));
    assert_eq!(found, Attributes::of(&fs::metadata(&file).unwrap()));
    assert_eq!(client.status(kind::STAT, &[&path(&dir.path().join("none"))]), 2);
}

#[test]
fn an_existing_file_is_replaced_only_by_the_rename_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    let mut client = Client::new();
    assert_eq!(client.status(kind::RENAME, &[&path(&a), &path(&b)]), 4);
    assert_eq!(fs::read(&b).unwrap(), b"b");
    let posix = string("posix-rename@openssh.com");
    assert_eq!(client.status(kind::EXTENDED, &[&posix, &path(&a), &path(&b)]), 0);
    assert_eq!(fs::read(&b).unwrap(), b"a");
    assert_eq!(client.status(kind::RENAME, &[&path(&b), &path(&a)]), 0);
}

#[test]
fn links_and_directories_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let (sub, link) = (dir.path().join("sub"), dir.path().join("link"));
    let mut client = Client::new();
    assert_eq!(client.status(kind::MKDIR, &[&path(&sub), &NO_ATTRIBUTES]), 0);
    assert_eq!(client.status(kind::SYMLINK, &[&string("sub"), &path(&link)]), 0);
    let (kind, body) = client.ask(kind::READLINK, &[&path(&link)]);
    assert_eq!((kind, &body[8..11]), (104, &b"sub"[..]));
    let (_, body) = client.ask(kind::REALPATH, &[&path(&link.join("new"))]);
    let real = fs::canonicalize(&sub).unwrap().join("new");
    assert_eq!(Fields::of(&body[4..]).string().unwrap(), real.as_os_str().as_bytes());
    assert_eq!(client.status(kind::REMOVE, &[&path(&link)]), 0);
    assert_eq!(client.status(kind::RMDIR, &[&path(&sub)]), 0);
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
}

#[test]
fn ten_thousand_names_are_listed_once_each() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..10_000 {
        fs::write(dir.path().join(format!("file-{number}")), "").unwrap();
    }
    let mut client = Client::new();
    let (kind, handle) = client.ask(kind::OPENDIR, &[&path(dir.path())]);
    assert_eq!(kind, 102);
    let mut names = std::collections::BTreeSet::new();
    loop {
        let (kind, body) = client.ask(kind::READDIR, &[&handle]);
        if kind == 101 {
            assert_eq!(body[..4], 1_u32.to_be_bytes());
            break;
        }
        assert!(body.len() < LARGEST);
        let mut fields = Fields::of(&body);
        for _ in 0..fields.number().unwrap() {
            assert!(names.insert(fields.string().unwrap().to_vec()));
            fields.string().unwrap();
            Attributes::read(&mut fields).unwrap();
        }
    }
    assert_eq!(names.len(), 10_002);
}

#[test]
fn nonsense_is_answered_and_nothing_is_left_open_without_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut client = Client::new();
    assert_eq!(client.status(99, &[]), 8);
    assert_eq!(client.status(kind::OPEN, &[&[0, 0, 0, 99, 1]]), 5);
    assert_eq!(client.status(kind::EXTENDED, &[&string("unknown@example.com")]), 8);
    assert_eq!(client.status(kind::READDIR, &[&string("x")]), 2);
    for _ in 0..MOST_HANDLES {
        client.open(&file, 1);
    }
    assert_eq!(client.status(kind::OPEN, &[&path(&file), &1_u32.to_be_bytes(), &NO_ATTRIBUTES]), 4);
}

#[test]
fn a_whole_conversation_ends_with_its_input() {
    let mut input = Vec::new();
    for request in [&[1_u8, 0, 0, 0, 3][..], &[kind::REALPATH, 0, 0, 0, 7, 0, 0, 0, 1, b'/']] {
        input.extend_from_slice(&u32::try_from(request.len()).unwrap().to_be_bytes());
        input.extend_from_slice(request);
    }
    let mut output = Vec::new();
    serve(input.as_slice(), &mut output).unwrap();
    assert_eq!(output[4..9], [2, 0, 0, 0, 3]);
    assert!(output.windows(4).any(|window| window == [0, 0, 0, 7]));
    assert!(serve(&[0xff_u8; 8][..], &mut Vec::new()).is_err());
}
