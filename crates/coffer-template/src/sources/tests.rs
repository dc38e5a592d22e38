use super::*;

/// A fake host with these files.
fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

const BOOKWORM: &str = "ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME=\"Debian\"\n";

fn lines(plan: &Plan) -> Vec<String> {
    plan.sources.iter().map(|source| source.line(None).trim_end().to_string()).collect()
}

#[test]
fn deb822_sources_are_read() {
    let root = host(&[
        ("etc/os-release", BOOKWORM),
        (
            "etc/apt/sources.list.d/debian.sources",
            "Types: deb deb-src\n# a comment\nURIs: http://mirror.test/debian/\n\
             Suites: bookworm bookworm-updates bookworm-backports\nComponents: main\n contrib\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
             Types: deb\nURIs: http://mirror.test/debian-security\nSuites: bookworm-security\n\
             Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
        ),
    ]);
    let plan = plan(root.path(), None, None).unwrap();
    assert_eq!(plan.suite, "bookworm");
    assert_eq!(
        lines(&plan),
        [
            "deb http://mirror.test/debian bookworm main contrib",
            "deb http://mirror.test/debian bookworm-updates main contrib",
            "deb http://mirror.test/debian-security bookworm-security main",
        ]
    );
    let keyring = PathBuf::from("/usr/share/keyrings/debian-archive-keyring.gpg");
    assert!(plan.sources.iter().all(|source| source.keyring == Keyring::File(keyring.clone())));
}

#[test]
fn one_line_sources_are_read() {
    let root = host(&[
        ("etc/os-release", "ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\nUBUNTU_CODENAME=noble\n"),
        (
            "etc/apt/sources.list",
            "# deb http://mirror.test/ubuntu jammy main\n\
             deb http://mirror.test/ubuntu noble main universe # all of it\n\
             deb-src http://mirror.test/ubuntu noble main\n\
             deb [arch=amd64 signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg] \
             http://mirror.test/ubuntu noble-security main\n\
             deb\n deb [broken http://mirror.test/ubuntu noble main\n",
        ),
    ]);
    let plan = plan(root.path(), None, None).unwrap();
    assert_eq!(
        lines(&plan),
        [
            "deb http://mirror.test/ubuntu noble main universe",
            "deb http://mirror.test/ubuntu noble-security main"
        ]
    );
}

#[test]
fn third_parties_are_left_out() {
    let root = host(&[
        ("etc/os-release", BOOKWORM),
        ("etc/apt/sources.list", "deb http://mirror.test/debian bookworm main\n"),
        (
            "etc/apt/sources.list.d/others.list",
            "deb [signed-by=/etc/apt/keyrings/docker.asc] http://a.test/linux/debian bookworm stable\n\
             deb [signed-by=/usr/share/keyrings/tools-archive-keyring.gpg] http://b.test bookworm main\n\
             deb http://c.test bookworm main\n\
             deb http://d.test/debian bookworm-pgdg main\n\
             deb [signed-by=/etc/apt/keyrings/graphs.gpg] http://e.test/debian stable main\n\
             deb http://f.test/debian stable main\n\
             deb [signed-by=/etc/apt/keyrings/own.gpg] http://g.test/debian bookworm main\n\
             deb http://h.test/debian ./\n",
        ),
        ("etc/apt/sources.list.d/off.list.disabled", "deb http://i.test/debian bookworm main\n"),
        (
            "etc/apt/sources.list.d/off.sources",
            "Enabled: no\nTypes: deb\nURIs: http://j.test/debian\nSuites: bookworm\nComponents: main\n",
        ),
    ]);
    assert_eq!(
        lines(&plan(root.path(), None, None).unwrap()),
        ["deb http://mirror.test/debian bookworm main"]
    );
}

#[test]
fn a_mirror_with_its_own_key_is_taken_when_it_is_all_there_is() {
    let root = host(&[
        ("etc/os-release", BOOKWORM),
        (
            "etc/apt/sources.list.d/company.sources",
            "Types: deb\nURIs: https://mirror.test/debian\nSuites: bookworm\nComponents: main\nSigned-By:\n \
             -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n -----END PGP PUBLIC KEY BLOCK-----\n",
        ),
        (
            "etc/apt/sources.list",
            "deb [signed-by=/etc/apt/keyrings/company.gpg] http://other.test/debian bookworm-security main\n",
        ),
    ]);
    let sources = plan(root.path(), None, None).unwrap().sources;
    let key = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQINBF\n-----END PGP PUBLIC KEY BLOCK-----\n";
    assert_eq!(sources[0].keyring, Keyring::Inline(key.into()));

    let root = host(&[
        ("etc/os-release", BOOKWORM),
        (
            "etc/apt/sources.list",
            "deb [signed-by=/etc/apt/keyrings/company.gpg] http://mirror.test/debian bookworm main\n",
        ),
    ]);
    let sources = plan(root.path(), None, None).unwrap().sources;
    assert_eq!(sources[0].keyring, Keyring::File("/etc/apt/keyrings/company.gpg".into()));
}

#[test]
fn a_person_may_name_mirror_and_suite() {
    let root = host(&[
        ("etc/os-release", BOOKWORM),
        (
            "etc/apt/sources.list",
            "deb http://mirror.test/debian bookworm main contrib\n\
             deb http://mirror.test/debian bookworm-updates main\n\
             deb http://mirror.test/debian-security bookworm-security main\n",
        ),
        ("usr/share/keyrings/debian-archive-keyring.gpg", "key"),
    ]);
    let moved = plan(root.path(), None, Some("trixie")).unwrap();
    assert_eq!(moved.suite, "trixie");
    assert_eq!(
        lines(&moved),
        [
            "deb http://mirror.test/debian trixie main contrib",
            "deb http://mirror.test/debian trixie-updates main",
            "deb http://mirror.test/debian-security trixie-security main",
        ]
    );
    let mirrored = plan(root.path(), Some("http://near.test/debian/"), None).unwrap();
    assert_eq!(
        lines(&mirrored),
        [
            "deb http://near.test/debian bookworm main contrib",
            "deb http://mirror.test/debian-security bookworm-security main"
        ]
    );
    let keyring = Keyring::File("/usr/share/keyrings/debian-archive-keyring.gpg".into());
    assert_eq!(mirrored.sources[0].keyring, keyring);
    let both = plan(root.path(), Some("http://near.test/debian"), Some("trixie")).unwrap();
    assert_eq!(lines(&both), ["deb http://near.test/debian trixie main"]);
}

#[test]
fn a_host_of_another_kind_needs_both() {
    let root = host(&[("etc/os-release", "ID=fedora\nVERSION_ID=41\n")]);
    assert!(matches!(plan(root.path(), None, None), Err(SourcesError::UnknownRelease(_))));
    assert!(plan(root.path(), Some("http://m.test/debian"), None).is_err());
    let both = plan(root.path(), Some("http://m.test/debian"), Some("trixie")).unwrap();
    assert_eq!(both.sources[0].keyring, Keyring::Default);
    let empty = host(&[("etc/os-release", BOOKWORM)]);
    assert!(matches!(plan(empty.path(), None, None), Err(SourcesError::NoneOwn { .. })));
}

#[test]
fn what_a_person_names_cannot_become_an_option_or_a_second_source() {
    let root = host(&[("etc/os-release", BOOKWORM)]);
    for mirror in ["", "mirror.test", "http://", "http://a b", "http://a\ndeb http://b", "ftp://a", "copy:/x"]
    {
        assert!(
            matches!(plan(root.path(), Some(mirror), Some("sid")), Err(SourcesError::BadMirror(_))),
            "{mirror:?}"
        );
    }
    for suite in ["", "--help", "book worm", "../x", "Sid"] {
        assert!(matches!(plan(root.path(), None, Some(suite)), Err(SourcesError::BadSuite(_))), "{suite:?}");
    }
}

#[test]
fn a_password_in_the_address_stays_outside() {
    let source = Source {
        uri: "https://me:pa/ss@mirror.test/debian".replace("pa/ss", "secret"),
        suite: "bookworm".into(),
        components: vec!["main".into()],
        keyring: Keyring::File("/etc/apt/keyrings/x.gpg".into()),
    };
    assert_eq!(source.public_line(), "deb https://mirror.test/debian bookworm main\n");
    assert_eq!(
        source.line(Some(Path::new("/k.gpg"))),
        "deb [signed-by=/k.gpg] https://me:secret@mirror.test/debian bookworm main\n"
    );
}

#[test]
fn derivatives_are_known_by_what_they_derive_from() {
    let parse = |text: &str| Release::parse(text).map(|release| (release.family, release.codename));
    let mint = "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\nVERSION_CODENAME=wilma\nUBUNTU_CODENAME=noble\n";
    assert_eq!(parse(mint), Some(("ubuntu", "noble".into())));
    assert_eq!(parse(BOOKWORM), Some(("debian", "bookworm".into())));
    assert_eq!(parse("ID=debian\n"), None);
    assert_eq!(parse("ID=alpine\nVERSION_CODENAME=x\n"), None);
}
