//! What every verb has: a client, a printer, and how things are named.

use clap::Args;
use coffer_client::Client;

use crate::failure::{Failure, NOT_FOUND};
use crate::printer::{self, Format, Printer};
use crate::profile;

// Which server, and how results look; on every verb that talks to a server. No doc comment either.
#[derive(Debug, Clone, Args)]
pub struct Remote {
    /// The server; COFFER_URL or the current profile by default. Its key comes from COFFER_API_KEY
    // Verbs have arguments of these names too: the ids must differ, or a webhook's URL would be the server's.
    #[arg(
        id = "server_url",
        long = "url",
        global = true,
        value_name = "URL",
        help_heading = "Server and output"
    )]
    pub(crate) url: Option<String>,
    /// The profile to use, instead of the environment and the current one
    #[arg(
        id = "server_profile",
        long = "profile",
        global = true,
        value_name = "NAME",
        conflicts_with = "server_url",
        help_heading = "Server and output"
    )]
    pub(crate) profile: Option<String>,
    /// The form of results
    #[arg(
        id = "output_format",
        short = 'o',
        long = "output",
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        help_heading = "Server and output"
    )]
    pub(crate) output: Format,
}

// A verb's own arguments next to those that all verbs have. No doc comment: clap would show it as the verb's.
#[derive(Debug, Args)]
pub struct With<T: Args> {
    #[command(flatten)]
    pub(crate) verb: T,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// A client and a printer.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) printer: Printer,
    /// For programs that take it themselves: git, a browser.
    pub(crate) key: Option<String>,
    /// The profile that server and key came from.
    pub(crate) profile: Option<String>,
}

impl Context {
    pub(crate) fn new(remote: &Remote) -> Result<Self, Failure> {
        let target = profile::choose(remote.url.as_deref(), remote.profile.as_deref())?;
        let client = Client::new(&target.url, target.key.as_deref()).map_err(|error| {
            let failure = Failure::from(error);
            Failure { message: format!("{}: {}", target.source, failure.message), ..failure }
        })?;
        if target.key.is_some() && client.is_exposed() {
            printer::note(&format!("warning: the key goes to {} unencrypted; use https://", client.url()));
        }
        Ok(Self {
            client,
            printer: Printer { format: remote.output },
            key: target.key,
            profile: target.profile,
        })
    }
}

/// The server and the key that a verb would use, for parts of the program with clients of their own.
pub struct Chosen {
    pub url: String,
    pub key: Option<String>,
    /// The profile that both came from.
    pub profile: Option<String>,
}

/// Without the key.
impl std::fmt::Debug for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chosen")
            .field("url", &self.url)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

impl Chosen {
    /// Decides as every verb does: `docs/cli.md`, Server and key.
    pub fn by(url: Option<&str>, profile: Option<&str>) -> Result<Self, Failure> {
        let target = profile::choose(url, profile)?;
        Ok(Self { url: target.url, key: target.key, profile: target.profile })
    }
}

/// The only item that `text` names: by its id or name, or an unambiguous beginning of its id.
pub(crate) fn pick<'a, T>(
    items: &'a [T],
    what: &str,
    list: &str,
    text: &str,
    id: impl Fn(&T) -> &str,
    name: impl Fn(&T) -> Option<&str>,
) -> Result<&'a T, Failure> {
    const SHORTEST: usize = 4;
    if let Some(item) = items.iter().find(|item| id(item) == text) {
        return Ok(item);
    }
    let by_name: Vec<&T> = items.iter().filter(|item| name(item) == Some(text)).collect();
    let found = if by_name.is_empty() && text.len() >= SHORTEST {
        items.iter().filter(|item| id(item).starts_with(text)).collect()
    } else {
        by_name
    };
    match found.as_slice() {
        [only] => Ok(only),
        [] => {
            let failure = Failure::new(format!("{what} '{text}' not found")).exit(NOT_FOUND);
            Err(failure.hint(format!("`coffer {list}`")))
        }
        several => {
            let shown = several.iter().take(5).map(|item| match name(item) {
                Some(name) => format!("{} ({name})", id(item)),
                None => id(item).to_string(),
            });
            let shown = shown.collect::<Vec<_>>().join(", ");
            let count = several.len();
            Err(Failure::usage(format!("{what} '{text}' is ambiguous: {count} match"))
                .hint(format!("one of {shown}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_named_by_id_name_or_a_beginning() {
        let items = [("01abcd1", Some("one")), ("01abcd2", Some("two")), ("01zzzz3", Some("two"))];
        let find =
            |text| pick(&items, "thing", "thing ls", text, |item| item.0, |item| item.1).map(|item| item.0);
        assert_eq!(find("01abcd1").unwrap(), "01abcd1");
        assert_eq!(find("one").unwrap(), "01abcd1");
        assert_eq!(find("01zz").unwrap(), "01zzzz3");
        assert_eq!(find("01").unwrap_err().exit, NOT_FOUND);
        let ambiguous = find("two").unwrap_err();
        assert_eq!(ambiguous.hint.unwrap(), "one of 01abcd2 (two), 01zzzz3 (two)");
        assert!(find("01abcd").unwrap_err().message.contains("2 match"));
    }
}
