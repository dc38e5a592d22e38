//! State that every route shares: the sandbox's identity, its processes and its watches.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use coffer_core::sync::RwLock;
use coffer_wire::agentd::Init;
use http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;

use crate::account::{Account, Accounts, NoAccount};
use crate::connect::{Code, RpcError};
use crate::files::watch::Watchers;
use crate::journal::Journal;
use crate::metrics::Meter;
use crate::process::Processes;

/// The default user, until the server sets one.
const DEFAULT_USER: &str = "root";

/// Variables that are also files.
const MARKS: [&str; 3] = ["E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"];

const ACCESS_TOKEN: &str = "x-access-token";

#[derive(Debug)]
pub(crate) struct Agent {
    init: RwLock<Arc<Init>>,
    pub(crate) processes: Arc<Processes>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) meter: Meter,
    /// Whether a server has initialised it; saved and restored with us.
    has_begun: AtomicBool,
}

impl Agent {
    pub(crate) fn new() -> Arc<Self> {
        let journal = Arc::new(Journal::default());
        Arc::new(Self {
            init: RwLock::default(),
            processes: Arc::new(Processes::new(Arc::clone(&journal))),
            journal,
            watchers: Arc::default(),
            meter: Meter::start(),
            has_begun: AtomicBool::new(false),
        })
    }

    /// The last settings from the server.
    pub(crate) fn init(&self) -> Arc<Init> {
        Arc::clone(&self.init.read())
    }

    /// Whether no server has initialised it yet.
    pub(crate) fn is_nobodys(&self) -> bool {
        self.init().env_vars.is_empty()
    }

    pub(crate) fn set_init(&self, init: Init) {
        if std::process::id() == 1 {
            leave_marks(Path::new("/run/e2b"), &init);
        }
        *self.init.write() = Arc::new(init);
    }

    /// Starts the template's service with the first `init` in the life of this process: a service that was saved
    /// and restored with us runs already.
    pub(crate) async fn begin_service(&self) {
        let init = self.init();
        let is_first = !self.has_begun.swap(true, Ordering::Relaxed);
        if let Some(service) = init.start.as_ref().filter(|_| is_first) {
            self.processes.begin_service(service, &init).await;
        }
    }
}

/// Writes a file `.NAME` for each of E2B's variables, for programs without an environment, as under `sudo`.
/// Nothing depends on them, so failures are ignored.
fn leave_marks(directory: &Path, init: &Init) {
    if std::fs::create_dir_all(directory).is_err() {
        return;
    }
    for name in MARKS {
        if let Some(value) = init.env_vars.get(name) {
            let _ = std::fs::write(directory.join(format!(".{name}")), value);
        }
    }
}

/// The result of checking the `X-Access-Token` of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The token is right, or none is needed.
    Granted,
    Missing,
    Wrong,
}

/// Compares the token in constant time.
pub(crate) fn access(headers: &HeaderMap, init: &Init) -> Access {
    let Some(expected) = &init.access_token else {
        return Access::Granted;
    };
    match headers.get(ACCESS_TOKEN).map(|value| value.as_bytes()) {
        None | Some(b"") => Access::Missing,
        Some(given) if given.ct_eq(expected.as_bytes()).into() => Access::Granted,
        Some(_) => Access::Wrong,
    }
}

/// The user that a plain HTTP call names, or the default one.
pub(crate) fn account(name: Option<&str>, init: &Init) -> Result<Account, String> {
    let name = name.filter(|name| !name.is_empty()).or(init.default_user.as_deref()).unwrap_or(DEFAULT_USER);
    Accounts::find(name).map_err(|error| match error {
        NoAccount::Unknown => format!("invalid username: '{name}'"),
        NoAccount::Unreadable(error) => {
            format!("invalid username: '{name}': could not read the users of the sandbox: {error}")
        }
    })
}

/// The user that an RPC names by `Authorization: Basic <user>:`, or the default one.
pub(crate) fn caller(headers: &HeaderMap, init: &Init) -> Result<Account, RpcError> {
    let named = headers.get(header::AUTHORIZATION).and_then(|value| basic_user(value.as_bytes()));
    account(named.as_deref(), init).map_err(|message| RpcError::new(Code::Unauthenticated, message))
}

fn basic_user(value: &[u8]) -> Option<String> {
    let value = std::str::from_utf8(value).ok()?;
    let (scheme, credentials) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(credentials.trim()).ok()?;
    let decoded = String::from_utf8(decoded).ok()?;
    let (user, _password) = decoded.split_once(':')?;
    Some(user.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_what_stands_before_the_colon() {
        assert_eq!(basic_user(b"Basic dXNlcjo="), Some("user".into()));
        assert_eq!(basic_user(b"basic dXNlcjpwdw=="), Some("user".into()));
        assert_eq!(basic_user(b"Bearer dXNlcjo="), None);
        assert_eq!(basic_user(b"Basic ???"), None);
    }

    #[test]
    fn marks_hold_the_values_and_change_with_them() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("e2b");
        for id in ["first", "second"] {
            let mut init = Init::default();
            init.env_vars.insert("E2B_SANDBOX_ID".into(), id.into());
            init.env_vars.insert("SECRET".into(), "no".into());
            leave_marks(&at, &init);
            assert_eq!(std::fs::read_to_string(at.join(".E2B_SANDBOX_ID")).unwrap(), id);
        }
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 1);
    }

    #[test]
    fn only_the_whole_token_grants_access() {
        let mut headers = HeaderMap::new();
        let mut init = Init::default();
        assert_eq!(access(&headers, &init), Access::Granted);
        init.access_token = Some("secret".into());
        assert_eq!(access(&headers, &init), Access::Missing);
        for (given, expected) in [
            ("", Access::Missing),
            ("secre", Access::Wrong),
            ("secrets", Access::Wrong),
            ("secret", Access::Granted),
        ] {
            headers.insert(ACCESS_TOKEN, given.parse().unwrap());
            assert_eq!(access(&headers, &init), expected, "{given}");
        }
    }
}
