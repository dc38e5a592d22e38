//! The program that saves and restores memory, and whether it can on this machine.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that selects another program, or a missing one, for tests.
const CHOICE: &str = "CRIU_PROGRAM";
/// The file in which `scripts/setup` names a newer CRIU than the host's: the words of its command, one per
/// line.
const OWN: &str = "/usr/local/lib/coffer/criu/command";

/// Older versions do not support current kernels.
const OLDEST: (u32, u32) = (4, 0);
/// From this kernel on, sockets refuse a query that CRIU sends before version 4.2.
const STRICT_KERNEL: (u32, u32) = (6, 16);
const OLDEST_ON_STRICT: (u32, u32) = (4, 2);

const CHECK_WITHIN: Duration = Duration::from_secs(10);
/// Limit of the output that is read.
const LONGEST_ANSWER: u64 = 64 * 1024;

/// How CRIU is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Criu {
    command: Vec<OsString>,
}

impl Criu {
    pub(crate) fn command(&self) -> Command {
        let mut words = self.command.iter();
        let mut command = Command::new(words.next().expect("a command has a first word"));
        command.args(words);
        command
    }

    /// The words of its command, for another process to call it.
    pub(crate) fn words(&self) -> &[OsString] {
        &self.command
    }
}

/// Why memory cannot be saved here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoCriu {
    #[error("CRIU is not installed; `scripts/setup run` installs it if a package is available")]
    NotFound,
    #[error("CRIU could not be run")]
    NotRun(#[from] io::Error),
    #[error("CRIU does not report its version")]
    NoVersion,
    #[error("CRIU {}.{} is too old for Linux {kernel}: {}.{} or later is needed", .version.0, .version.1, .oldest.0, .oldest.1)]
    TooOld { version: (u32, u32), oldest: (u32, u32), kernel: String },
    #[error("`criu {argument}` took longer than {} s", CHECK_WITHIN.as_secs())]
    TooSlow { argument: &'static str },
    #[error("`criu {argument}` failed: {complaints}")]
    Failed { argument: &'static str, complaints: String },
}

/// Finds CRIU and checks that it works.
pub(super) fn probe() -> Result<Criu, NoCriu> {
    let criu = find().ok_or(NoCriu::NotFound)?;
    let answer = ask(&criu, "--version")?;
    let version =
        answer.lines().find_map(|line| numbers(line.strip_prefix("Version: ")?)).ok_or(NoCriu::NoVersion)?;
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let kernel = numbers(&release).unwrap_or(STRICT_KERNEL);
    let oldest = if kernel >= STRICT_KERNEL { OLDEST_ON_STRICT } else { OLDEST };
    if version < oldest {
        return Err(NoCriu::TooOld { version, oldest, kernel: release });
    }
    ask(&criu, "check")?;
    Ok(criu)
}

fn find() -> Option<Criu> {
    if let Some(choice) = std::env::var_os(CHOICE) {
        return Path::new(&choice).is_file().then(|| Criu { command: vec![choice] });
    }
    let own = fs::read_to_string(OWN).map(|text| text.lines().map(OsString::from).collect::<Vec<_>>());
    if let Ok(command) = own
        && command.first().is_some_and(|program| Path::new(program).is_file())
    {
        return Some(Criu { command });
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_root = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(of_root).map(|place| place.join("criu"));
    places.find(|program| program.is_file()).map(|program| Criu { command: vec![program.into()] })
}

/// The output of CRIU for one argument, if it succeeds in time.
#[expect(clippy::disallowed_methods, reason = "runs on a thread that may block")]
fn ask(criu: &Criu, argument: &'static str) -> Result<String, NoCriu> {
    let mut child = criu
        .command()
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let deadline = Instant::now() + CHECK_WITHIN;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(NoCriu::TooSlow { argument });
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut said = String::new();
    let out = child.stdout.take().map(|out| out.take(LONGEST_ANSWER).read_to_string(&mut said));
    out.transpose()?;
    if status.success() {
        return Ok(said);
    }
    let errors = child.stderr.take().map(|errors| errors.take(LONGEST_ANSWER).read_to_string(&mut said));
    errors.transpose()?;
    Err(NoCriu::Failed { argument, complaints: complaints(&said) })
}

/// The first two numbers of a version.
fn numbers(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether it failed by itself. A killed CRIU logs no error.
pub(crate) fn complains(log: &str) -> bool {
    matters(log).next().is_some()
}

fn matters(log: &str) -> impl Iterator<Item = &str> {
    // The first appears wherever root may not raise its own limits, and is harmless; the others follow every
    // error.
    const IDLE: [&str; 4] = ["rlimit: Can't setup", "failed with -1", "Dumping FAILED", "Restoring FAILED"];
    let matters = |line: &&str| line.contains("Error") && !IDLE.iter().any(|idle| line.contains(idle));
    log.lines().filter(matters).filter_map(|line| line.split_once("): ").map(|(_, words)| words))
}

/// The errors in a log of CRIU, shortened to a sentence.
pub(crate) fn complaints(log: &str) -> String {
    const LONGEST: usize = 300;
    let mut text = matters(log).take(3).collect::<Vec<_>>().join("; ");
    if text.is_empty() {
        text = log.lines().last().unwrap_or("its log is empty").trim().to_string();
    }
    // The log may contain file names that the sandbox chose.
    text = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(numbers("4.2.1"), Some((4, 2)));
        assert_eq!(numbers("6.18.44-fc-v445"), Some((6, 18)));
        assert!(numbers("4.1.1") < Some((4, 2)) && numbers("10.0") > Some((4, 2)));
        assert_eq!(numbers("later"), None);
    }

    #[test]
    fn complaints_are_short_and_say_what_matters() {
        let log = "(00.05) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: no\n\
                   (00.06) Warn  (criu/x.c:1): nothing\n\
                   (00.07)      3: Error (criu/files-reg.c:2175): File a\u{7}b has bad size 2 (expect 1)\n\
                   (00.08) Error (criu/cr-restore.c:2331): Restoring FAILED.\n";
        assert_eq!(complaints(log), "File a b has bad size 2 (expect 1)");
        assert!(complaints(&format!("Error (x): {}", "y".repeat(1000))).chars().count() <= 301);
        assert_eq!(complaints(""), "its log is empty");
        assert!(complains(log) && !complains(log.lines().next().unwrap()) && !complains(""));
    }
}
