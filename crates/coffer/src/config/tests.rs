use std::path::Path;

use super::*;

struct Given {
    sources: Sources,
    flags: Flags,
    environment: Vec<(&'static str, &'static str)>,
    system: PathBuf,
    _temp: tempfile::TempDir,
}

/// A file in the test's own data directory, and nothing else.
fn given(text: &str) -> Given {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("etc.toml");
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let sources = Sources { config: Some(file), ..Sources::default() };
    let system = temp.path().join("nothing");
    Given { sources, flags: Flags::default(), environment: Vec::new(), system, _temp: temp }
}

impl Given {
    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }

    fn set(mut self, set: &str) -> Self {
        self.sources.set.push(set.to_string());
        self
    }

    fn resolve(&self) -> anyhow::Result<Resolved> {
        let environment =
            self.environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        resolve_in(&self.sources, &self.flags, environment, &self.system)
    }

    /// The message, with the file's path replaced.
    #[track_caller]
    fn refused(&self) -> String {
        let error = format!("{:#}", self.resolve().unwrap_err());
        error.replace(self.sources.config.as_ref().unwrap().to_str().unwrap(), "FILE")
    }
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let file = "[sandbox]\ncpus = 3\nmemory = \"1GiB\"\nprocesses = 128\n";
    let given = given(file)
        .with("COFFER_SANDBOX_CPUS", "4")
        .with("COFFER_SANDBOX_MEMORY", "3GiB")
        .with("COFFER_DOMAIN", "")
        .set("sandbox.cpus=5");
    let resolved = given.resolve().unwrap();
    let sandbox = &resolved.settings.sandbox;
    assert_eq!((sandbox.cpus, sandbox.memory.as_mib(), sandbox.processes), (5, 3072, 128));
    assert_eq!(resolved.settings.domain, None, "an empty variable is none");
    let origin = |path| resolved.origin(path).to_string();
    assert_eq!(origin("sandbox.cpus"), "flag --set");
    assert_eq!(origin("sandbox.memory"), "environment COFFER_SANDBOX_MEMORY");
    let file = given.sources.config.as_ref().unwrap().display();
    assert_eq!(origin("sandbox.processes"), format!("{file}:4"));
    assert_eq!(origin("sandbox.max_timeout"), "default");
}

#[test]
fn names_that_are_none_are_refused_with_line_and_nearest_name() {
    let file = "listn = \"1.1.1.1:1\"\n\n[sandbox]\ncpu = 3\n\n[quux]\nx = 1\n";
    assert_eq!(
        given(file).refused(),
        "FILE:1: unknown setting `listn`; did you mean `listen`?\n       \
         FILE:4: unknown setting `sandbox.cpu`; did you mean `sandbox.cpus`?\n       \
         FILE:6: unknown setting `quux`; `coffer config show` lists them all"
    );
    assert_eq!(
        given("").set("node.pool=1").refused(),
        "--set: unknown setting `node.pool`; did you mean `node.pool_size`?"
    );
    assert_eq!(given("sandbox = 1\n").refused(), "FILE:1: `sandbox` is a section: write `[sandbox]`");
    assert!(given("a = = 1\n").refused().starts_with("FILE:1: this is not TOML"));
    let strange = given("").with("COFFER_SANDBOX_CPU", "1").with("COFFER_E2E_LONG", "1").resolve().unwrap();
    assert_eq!(
        strange.doubts,
        ["the variable COFFER_SANDBOX_CPU is not a setting; did you mean COFFER_SANDBOX_CPUS?"]
    );
}

#[test]
fn bad_values_name_key_value_origin_and_what_is_allowed() {
    for (given, said) in [
        (given("[sandbox]\ncpus = 0\n"), "bad setting `sandbox.cpus` = 0 (FILE:2): must be from 1 to 1024"),
        (
            given("").with("COFFER_POOL_SIZE", "much"),
            "bad setting `node.pool_size` = \"much\" (environment COFFER_POOL_SIZE): `much` is not a size such as \
             `512MiB` or `2GB`",
        ),
        (
            given("").set("sandbox.max_timeout=25h"),
            "bad setting `sandbox.max_timeout` = \"25h\" (flag --set): must not be longer than \
             `sandbox.max_lifetime`, which is 24h",
        ),
        (
            given("[code]\ntimeout = \"2h\"\n"),
            "bad setting `code.timeout` = \"2h\" (FILE:2): must not be longer than `code.longest_timeout`, which is 1h",
        ),
        (
            given("").set("code.most_output=1KiB"),
            "bad setting `code.most_output` = \"1KiB\" (flag --set): must be 64KiB to 256MiB",
        ),
        (
            given("[log]\nformat = \"xml\"\n"),
            "bad setting `log.format` = \"xml\" (FILE:2): unknown variant `xml`, expected `text` or `json`; must be \
             one of `text`, `json`",
        ),
        (
            given("").with("COFFER_TEMPLATE_BUILD", "maybe"),
            "bad setting `template.build` = \"maybe\" (environment COFFER_TEMPLATE_BUILD): invalid type: string \
             \"maybe\", expected a boolean; must be `true` or `false`",
        ),
        (
            given("").with("COFFER_E2B_API_KEY", "hunter2"),
            "bad setting `e2b.api_key` = ******** (environment COFFER_E2B_API_KEY): must be `e2b_` and 40 hexadecimal \
             digits in lower case",
        ),
        (
            given("[usage]\ncpu_second = -1.0\n"),
            "bad setting `usage.cpu_second` = -1.0 (FILE:2): must be between 0 and 1000",
        ),
        (
            given("").set("usage.interval_s=0"),
            "bad setting `usage.interval_s` = 0 (flag --set): must be between 1 and 300",
        ),
        (given("[github]\ntoken = 12345\n"), "bad setting `github.token` = ******** (FILE:2): must be text"),
    ] {
        assert_eq!(given.refused(), said);
    }
}

#[test]
fn variables_for_e2bs_own_cloud_are_pointed_out_and_stop_nothing() {
    let given = given("").with("E2B_API_KEY", "e2b_sk_hunter2").with("E2B_TEMPLATE_ID", "No Template!");
    let resolved = given.resolve().unwrap();
    assert!(resolved.settings.e2b.api_key.is_none());
    assert_eq!(resolved.settings.template.default, "base");
    assert_eq!(resolved.origin("e2b.api_key"), &Origin::Default);
    let [key, template] = &resolved.doubts[..] else { panic!("{:?}", resolved.doubts) };
    let said = "E2B_API_KEY is not used: a key of this server is `e2b_` and 40 hexadecimal digits in lower case; hint: \
                set `e2b.api_key` to choose one here";
    let mut doubts = [key.as_str(), template.as_str()];
    doubts.sort_unstable();
    assert_eq!(doubts[0], said);
    assert!(doubts[1].starts_with("E2B_TEMPLATE_ID is not used: it is not a template name"), "{}", doubts[1]);
    assert!(!resolved.doubts.concat().contains("hunter2"));
}

const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

#[test]
fn secrets_are_taken_handed_over_and_never_shown() {
    let given = given("[database]\nurl = \"postgres://canary\"\n")
        .with("GITHUB_TOKEN", "ghp_canary")
        .with("E2B_API_KEY", KEY);
    let resolved = given.resolve().unwrap();
    let shown = format!("{}{}{:?}", resolved.as_json(false), resolved.as_table(false), resolved.settings);
    assert!(!shown.contains("canary") && !shown.contains(KEY), "{shown}");
    let taken = take_over(resolved.handover().clone()).unwrap();
    assert_eq!(taken.database.url.unwrap().reveal(), "postgres://canary");
    assert_eq!(taken.github.token.unwrap().reveal(), "ghp_canary");
    assert_eq!(taken.e2b.api_key.unwrap().reveal(), KEY);
    std::fs::set_permissions(
        given.sources.config.as_ref().unwrap(),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    assert!(given.resolve().unwrap().doubts[0].contains("others can read it"));
}

#[test]
fn the_first_file_that_is_there_is_read() {
    let temp = tempfile::tempdir().unwrap();
    let system = temp.path().join("system.toml");
    let read = |sources: &Sources, environment: &[(&str, &Path)]| {
        let flags = Flags::default();
        let environment =
            environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        resolve_in(sources, &flags, environment, &system).map(|resolved| resolved.settings.sandbox.cpus)
    };
    let nothing = Sources::default();
    let data: (&str, &Path) = ("COFFER_DATA_DIR", temp.path());
    assert_eq!(read(&nothing, &[data]).unwrap(), 2);
    std::fs::write(&system, "[sandbox]\ncpus = 11\n").unwrap();
    assert_eq!(read(&nothing, &[data]).unwrap(), 11);
    std::fs::write(temp.path().join(FILE_NAME), "[sandbox]\ncpus = 12\n").unwrap();
    assert_eq!(read(&nothing, &[data]).unwrap(), 12);
    let other = temp.path().join("other.toml");
    std::fs::write(&other, "[sandbox]\ncpus = 13\n").unwrap();
    assert_eq!(read(&nothing, &[data, ("COFFER_CONFIG", &other)]).unwrap(), 13);
    let named = Sources { config: Some(temp.path().join("missing.toml")), ..Sources::default() };
    assert!(read(&named, &[data]).unwrap_err().to_string().contains("missing.toml"));
}

#[test]
fn defaults_hold_together() {
    let resolved = given("").resolve().unwrap();
    assert!(resolved.origins.is_empty() && resolved.doubts.is_empty());
    assert_eq!(resolved.settings.sandbox.limits(None), coffer_core::Limits::default());
    assert_eq!(resolved.settings.sandbox.lifetime(), coffer_core::LifetimePolicy::default());
    assert_eq!(resolved.settings.sandbox.limits(Some(4 << 30)).disk_mib, 1024);
}

#[test]
fn a_secret_comes_from_the_place_that_a_setting_names() {
    let temp = tempfile::tempdir().unwrap();
    let secret = temp.path().join("url");
    std::fs::write(&secret, "postgres://me:hidden@db/coffer\n").unwrap();
    let path: &'static str = secret.to_str().unwrap().to_string().leak();
    let url = |given: &Given| {
        let resolved = given.resolve().unwrap();
        assert!(resolved.doubts.is_empty(), "{:?}", resolved.doubts);
        assert!(!resolved.as_table(true).contains("hidden") && !resolved.as_json(true).contains("hidden"));
        resolved.settings.database.url.unwrap().reveal().to_string()
    };
    let by_variable = given("").with("COFFER_DATABASE_URL_FILE", path);
    assert_eq!(url(&by_variable), "postgres://me:hidden@db/coffer");
    let by_command = given("").with("COFFER_DATABASE_URL_COMMAND", "echo postgres://other/x");
    assert_eq!(url(&by_command), "postgres://other/x");
    let by_file = given(&format!("[database]\nurl = {{ file = {path:?} }}\n"));
    assert_eq!(url(&by_file), "postgres://me:hidden@db/coffer");
    // The variable wins, and the command behind the file's entry does not run.
    let both = given("[database]\nurl = { command = \"exit 1\" }\n").with("COFFER_DATABASE_URL_FILE", path);
    assert_eq!(url(&both), "postgres://me:hidden@db/coffer");
}

#[test]
fn a_secret_that_cannot_be_read_or_is_given_twice_is_refused() {
    let missing = given("[database]\nurl = { file = \"/nonexistent\" }\n").refused();
    assert!(
        missing.starts_with("the secret `database.url` (FILE:2) could not be read from `/nonexistent`"),
        "{missing}"
    );
    let twice = given("")
        .with("COFFER_DATABASE_URL", "postgres://a")
        .with("COFFER_DATABASE_URL_FILE", "/nonexistent")
        .refused();
    assert_eq!(twice, "COFFER_DATABASE_URL_FILE and COFFER_DATABASE_URL both give `database.url`");
    let strange = given("[database]\nurl = { path = \"/x\" }\n").refused();
    assert!(strange.contains("must be text, `{ file"), "{strange}");
    // Only secrets have sources.
    let given = given("").with("COFFER_DOMAIN_FILE", "/nonexistent");
    assert_eq!(given.resolve().unwrap().settings.domain, None);
}

#[test]
fn https_needs_a_pair_of_files_and_an_address_of_its_own() {
    let refused = |text: &str| given(text).refused();
    assert!(refused("[tls]\ncert = \"a.pem\"\n").contains("`tls.key`"));
    assert!(refused("[tls]\nkey = \"a.pem\"\n").contains("`tls.cert`"));
    let pair = "cert = \"a.pem\"\nkey = \"b.pem\"\n";
    assert!(refused(&format!("listen = \"0.0.0.0:443\"\n[tls]\n{pair}")).contains("`tls.listen`"));
    let twice = refused(&format!("[tls]\n{pair}redirect = \"0.0.0.0:443\"\n"));
    assert!(twice.contains("must be another address than `tls.listen`"), "{twice}");
    given(&format!("[tls]\n{pair}redirect = \"0.0.0.0:80\"\nhsts = \"180d\"\n")).resolve().unwrap();
}
