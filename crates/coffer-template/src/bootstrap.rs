//! Runs the tools that install packages: `mmdebstrap`, else `debootstrap` and apt.
//!
//! Each tool runs in its own pid and mount namespace. When it ends, or when we are killed, nothing of it
//! remains: no daemon that a package started, no `/proc` mounted in a half-built tree.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::BuildError;
use super::progress::{Progress, Reader};
use super::sources::{Keyring, Plan, Source};
use super::tree::Tree;

/// Lines kept for an error message; the log has everything.
const TAIL_LINES: usize = 12;
const LONGEST_LINE: u64 = 16 * 1024;

/// apt settings of the host that decide whether its mirror can be reached and trusted.
const HOST_APT_SETTINGS: [&str; 5] = [
    "Acquire::http::",
    "Acquire::https::",
    "Acquire::Check-Valid-Until",
    "Acquire::Retries",
    "Acquire::Force",
];

/// Files that a template omits: manuals and translations are a third of the files.
pub(super) const LEFT_OUT: [&str; 5] = [
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/locale/*/LC_MESSAGES/*",
];

/// The tool that installs the first packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    Mmdebstrap,
    Debootstrap,
}

impl Tool {
    /// The better one of the installed tools.
    pub(super) fn find() -> Option<Self> {
        [Self::Mmdebstrap, Self::Debootstrap].into_iter().find(|tool| find_program(tool.name()).is_some())
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mmdebstrap => "mmdebstrap",
            Self::Debootstrap => "debootstrap",
        }
    }
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// What to do with a tool's lines besides logging them.
enum Heed {
    Progress,
    Keep(Vec<String>),
}

/// A run of tools with one log and one progress.
pub(super) struct Run<'a> {
    pub(super) tree: &'a Tree,
    /// For files that the tools read; removed with the build.
    pub(super) scratch: &'a Path,
    /// Every tool holds it, so that the lock lasts as long as the last of them.
    pub(super) lock: File,
    pub(super) log_path: PathBuf,
    pub(super) log: File,
    pub(super) progress: &'a mut dyn FnMut(Progress),
    /// One for all tools: the second continues where the first ended.
    pub(super) reader: Reader,
}

impl Run<'_> {
    pub(super) fn create_log(path: &Path) -> Result<File, BuildError> {
        // It may contain addresses of a company's mirrors.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(path).map_err(BuildError::file("open", path))
    }

    /// Installs `packages` from `plan` into the tree, which does not exist yet.
    pub(super) fn lay(&mut self, tool: Tool, plan: &Plan, packages: &[&str]) -> Result<(), BuildError> {
        let mut lines = String::new();
        for (number, source) in plan.sources.iter().enumerate() {
            let keyring = self.keyring_file(source, number)?;
            lines.push_str(&source.line(keyring.as_deref()));
        }
        let settings = host_apt_settings();
        match tool {
            Tool::Mmdebstrap => self.mmdebstrap(plan, &lines, &settings, packages),
            Tool::Debootstrap => self.debootstrap(plan, &settings, packages),
        }
    }

    fn mmdebstrap(
        &mut self,
        plan: &Plan,
        lines: &str,
        settings: &[String],
        packages: &[&str],
    ) -> Result<(), BuildError> {
        let list = self.scratch.join("sources.list");
        fs::write(&list, lines).map_err(BuildError::file("write", &list))?;
        let mut command = self.contained("mmdebstrap", None);
        command.args(["--mode=root", "--variant=apt", "--format=directory", "--verbose"]);
        command.arg(format!("--include={}", packages.join(",")));
        command.arg("--aptopt=Acquire::Languages \"none\"");
        command.args(settings.iter().map(|setting| format!("--aptopt={setting}")));
        command.arg("--dpkgopt=force-unsafe-io");
        command.args(LEFT_OUT.map(|option| format!("--dpkgopt={option}")));
        command.arg(&plan.suite).arg(self.tree.root()).arg(&list);
        self.run("mmdebstrap", command)
    }

    /// debootstrap supports one archive and no updates: it installs the minimum, apt inside does the rest.
    fn debootstrap(&mut self, plan: &Plan, settings: &[String], packages: &[&str]) -> Result<(), BuildError> {
        let primary = plan.sources.iter().position(|source| source.suite == plan.suite);
        let (number, primary) = primary
            .and_then(|number| Some((number, plan.sources.get(number)?)))
            .expect("a plan has a source for its own suite");
        let mut command = self.contained("debootstrap", None);
        command.args(["--variant=minbase", "--merged-usr"]);
        if let Some(keyring) = self.keyring_file(primary, number)? {
            command.arg(format!("--keyring={}", keyring.display()));
        }
        command.arg(format!("--components={}", primary.components.join(",")));
        // debootstrap fetches with wget, which does not read apt's configuration.
        for (variable, setting) in
            [("http_proxy", "Acquire::http::Proxy"), ("https_proxy", "Acquire::https::Proxy")]
        {
            if std::env::var_os(variable).is_none()
                && let Some(proxy) = setting_value(settings, setting)
            {
                command.env(variable, proxy);
            }
        }
        command.arg(&plan.suite).arg(self.tree.root()).arg(&primary.uri);
        self.run("debootstrap", command)?;

        let inside: String = plan.sources.iter().map(|source| source.line(None)).collect();
        self.tree.file("etc/apt/sources.list", 0o600, inside)?;
        let settings: String = settings.iter().map(|setting| format!("{setting};\n")).collect();
        let apt = format!("Acquire::Languages \"none\";\nAPT::Install-Recommends \"false\";\n{settings}");
        self.tree.file(BUILD_APT_CONF, 0o600, apt)?;
        self.tree.file(BUILD_DPKG_CONF, 0o644, format!("force-unsafe-io\n{}\n", LEFT_OUT.join("\n")))?;
        // No service of a package may start during the build.
        self.tree.file(POLICY, 0o755, "#!/bin/sh\nexit 101\n")?;
        for (number, source) in plan.sources.iter().enumerate() {
            if let Some(keyring) = self.keyring_file(source, number)? {
                let key = fs::read(&keyring).map_err(BuildError::file("read", &keyring))?;
                let kind = if key.starts_with(b"-----BEGIN") { "asc" } else { "gpg" };
                self.tree.file(&format!("etc/apt/trusted.gpg.d/build-{number}.{kind}"), 0o644, key)?;
            }
        }
        for (what, arguments) in
            [("apt-get update", vec!["update"]), ("apt-get install", vec!["install", "--yes"])]
        {
            let mut command = self.contained("apt-get", Some(self.tree.root()));
            command.args(&arguments);
            if arguments[0] == "install" {
                command.args(packages);
            }
            self.run(what, command)?;
        }
        for number in 0..plan.sources.len() {
            for kind in ["asc", "gpg"] {
                self.tree.remove(&format!("etc/apt/trusted.gpg.d/build-{number}.{kind}"))?;
            }
        }
        self.tree.remove(POLICY)
    }

    /// Runs a script with the tree as its root and returns its output.
    pub(super) fn inside(&mut self, what: &str, script: &str) -> Result<Vec<String>, BuildError> {
        let mut command = self.contained("/bin/sh", Some(self.tree.root()));
        command.args(["-ec", script]);
        let mut printed = Heed::Keep(Vec::new());
        self.execute(what, command, &mut printed)?;
        Ok(if let Heed::Keep(lines) = printed { lines } else { Vec::new() })
    }

    /// The file with the keys of a source, as the host sees it.
    fn keyring_file(&self, source: &Source, number: usize) -> Result<Option<PathBuf>, BuildError> {
        match &source.keyring {
            Keyring::Default => Ok(None),
            Keyring::File(path) => Ok(Some(path.clone())),
            Keyring::Inline(key) => {
                let path = self.scratch.join(format!("key-{number}.asc"));
                fs::write(&path, key).map_err(BuildError::file("write", &path))?;
                Ok(Some(path))
            }
        }
    }

    /// A command whose processes and mounts end with it, and which ends with us.
    fn contained(&self, program: &str, root: Option<&Path>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "--pid", "--fork", "--kill-child"]);
        match root {
            Some(root) => {
                command.arg(format!("--mount-proc={}", root.join("proc").display()));
                command.args(["--", "chroot"]).arg(root);
            }
            None => {
                command.args(["--mount-proc", "--"]);
            }
        }
        command.arg(program);
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        // Ctrl-C reaches only us; our end reaches them.
        command.process_group(0);
        command
    }

    fn run(&mut self, tool: &str, command: Command) -> Result<(), BuildError> {
        self.execute(tool, command, &mut Heed::Progress)
    }

    fn execute(&mut self, tool: &str, mut command: Command, heed: &mut Heed) -> Result<(), BuildError> {
        let start = |source: io::Error| BuildError::Start { tool: tool.to_string(), source };
        let (output, input) = io::pipe().map_err(start)?;
        // The lock file is empty, so as an input it ends at once, like /dev/null.
        command.stdin(Stdio::from(self.lock.try_clone().map_err(start)?));
        command.stdout(input.try_clone().map_err(start)?).stderr(input);
        let mut child = command.spawn().map_err(start)?;
        // The command holds our copies of the pipe's input; the pipe must end with the child.
        drop(command);
        let mut tail = VecDeque::with_capacity(TAIL_LINES);
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = output.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
            if read.map_err(BuildError::file("read the output of", tool))? == 0 {
                break;
            }
            self.log.write_all(&line).map_err(BuildError::file("write", &self.log_path))?;
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            if !text.is_empty() {
                if tail.len() == TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(text.to_string());
                match heed {
                    Heed::Keep(lines) => lines.push(text.to_string()),
                    Heed::Progress => {
                        if let Some(report) = self.reader.line(text) {
                            (self.progress)(report);
                        }
                    }
                }
            }
        }
        let status = child.wait().map_err(BuildError::file("wait for", tool))?;
        if status.success() {
            return Ok(());
        }
        Err(BuildError::Tool {
            tool: tool.to_string(),
            status,
            log: self.log_path.clone(),
            tail: tail.into(),
        })
    }
}

/// Files of the build itself, which `finish` removes.
pub(super) const BUILD_APT_CONF: &str = "etc/apt/apt.conf.d/99build";
pub(super) const BUILD_DPKG_CONF: &str = "etc/dpkg/dpkg.cfg.d/99build";
const POLICY: &str = "usr/sbin/policy-rc.d";

/// The host's own apt settings for its mirrors, as `Key "value"`. Empty if apt is not installed.
fn host_apt_settings() -> Vec<String> {
    let dump = Command::new("apt-config").arg("dump").env("LC_ALL", "C").output();
    dump.map(|output| chosen_settings(&String::from_utf8_lossy(&output.stdout))).unwrap_or_default()
}

fn chosen_settings(dump: &str) -> Vec<String> {
    dump.lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|setting| HOST_APT_SETTINGS.iter().any(|prefix| setting.starts_with(prefix)))
        .filter(|setting| !setting.ends_with("\"\""))
        .map(String::from)
        .collect()
}

fn setting_value<'a>(settings: &'a [String], key: &str) -> Option<&'a str> {
    let of_key = |setting: &'a String| setting.strip_prefix(key)?.trim().strip_prefix('"')?.strip_suffix('"');
    settings.iter().find_map(of_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_proxy_is_found_in_apts_settings() {
        let settings = chosen_settings(
            "APT::Architecture \"amd64\";\nAcquire::http \"\";\nAcquire::http::Proxy \"http://p.test:3128\";\n\
             Acquire::http::Proxy::m.test \"DIRECT\";\nAcquire::Check-Valid-Until \"false\";\n\
             Acquire::IndexTargets::deb \"\";\nDPkg::Post-Invoke:: \"rm -f /x\";\n",
        );
        assert_eq!(
            settings,
            [
                "Acquire::http::Proxy \"http://p.test:3128\"",
                "Acquire::http::Proxy::m.test \"DIRECT\"",
                "Acquire::Check-Valid-Until \"false\"",
            ]
        );
        assert_eq!(setting_value(&settings, "Acquire::http::Proxy"), Some("http://p.test:3128"));
        assert_eq!(setting_value(&settings, "Acquire::https::Proxy"), None);
    }

    fn with_run(test: impl FnOnce(&mut Run<'_>)) {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::at(directory.path().join("rootfs"));
        let log_path = directory.path().join("build.log");
        test(&mut Run {
            tree: &tree,
            scratch: directory.path(),
            lock: File::open("/dev/null").unwrap(),
            log: Run::create_log(&log_path).unwrap(),
            log_path,
            progress: &mut |_| {},
            reader: Reader::new(),
        });
    }

    #[test]
    fn a_failing_tool_tells_its_last_lines() {
        with_run(|run| {
            let mut command = Command::new("sh");
            command.args(["-c", "seq 1 40; echo 'E: No space left on device' >&2; exit 7"]);
            let error = run.run("sh", command).unwrap_err();
            let BuildError::Tool { status, tail, .. } = &error else { panic!("{error:?}") };
            assert_eq!((status.code(), tail.len()), (Some(7), TAIL_LINES));
            assert_eq!(tail.last().unwrap(), "E: No space left on device");
            assert!(error.hint().unwrap().starts_with("the disk is full"));
            assert_eq!(fs::read_to_string(&run.log_path).unwrap().lines().count(), 41);
        });
    }

    #[test]
    fn nothing_that_a_tool_starts_outlives_it() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: namespaces for tools need root");
            return;
        }
        with_run(|run| {
            // A unique name: other tests mount and unmount at the same time.
            let source = format!("tool-test-{}", std::process::id());
            let mut command = run.contained("sh", None);
            // The daemon holds the output open: if it survived, this would never return.
            let script =
                format!("mount -t tmpfs {source} /mnt && echo mounted; setsid sleep infinity & echo done");
            command.args(["-c", &script]);
            let mut printed = Heed::Keep(Vec::new());
            run.execute("sh", command, &mut printed).unwrap();
            assert!(matches!(printed, Heed::Keep(lines) if lines == ["mounted", "done"]));
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            assert!(!mounts.contains(&source), "{mounts}");
        });
    }
}
