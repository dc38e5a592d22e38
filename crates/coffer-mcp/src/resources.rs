//! Logs and diffs as resources, for clients that let people attach them.

use coffer_api_types::executions::OutputQuery;
use coffer_api_types::git::DiffQuery;
use coffer_api_types::logs::LogQuery;
use coffer_api_types::sandboxes::SandboxQuery;
use coffer_client::{Client, Error};
use rmcp::ErrorData;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};

use crate::cut::{self, Cut};
use crate::plain::plain;

const SCHEME: &str = "coffer://";
/// The longest text of a resource; the middle is left out.
const LONGEST: usize = 128 << 10;
/// How many sandboxes the list names.
const MOST_SANDBOXES: usize = 50;
/// How many lines of a log are read.
const MOST_LINES: usize = 2000;

/// What a URI names.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Log { sandbox: &'a str },
    SandboxDiff { sandbox: &'a str },
    Output { execution: &'a str, stream: &'a str },
    EntryDiff { fork: &'a str, entry: i64 },
}

fn place(uri: &str) -> Option<Place<'_>> {
    let parts: Vec<&str> = uri.strip_prefix(SCHEME)?.split('/').collect();
    // Ids are letters and digits; everything else never reaches a path.
    let plain = |part: &&str| {
        (1..=64).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    if !parts.iter().all(plain) {
        return None;
    }
    match parts[..] {
        ["sandboxes", sandbox, "log"] => Some(Place::Log { sandbox }),
        ["sandboxes", sandbox, "diff"] => Some(Place::SandboxDiff { sandbox }),
        ["executions", execution, stream @ ("stdout" | "stderr")] => {
            Some(Place::Output { execution, stream })
        }
        ["forks", fork, "entries", entry, "diff"] => {
            Some(Place::EntryDiff { fork, entry: entry.parse().ok()? })
        }
        _ => None,
    }
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    let template = |uri: &str, name: &str, about: &str, kind: &str| {
        ResourceTemplate::new(format!("{SCHEME}{uri}"), name).with_description(about).with_mime_type(kind)
    };
    vec![
        template(
            "sandboxes/{sandbox_id}/log",
            "sandbox log",
            "What programs in a sandbox wrote, and its history",
            "text/plain",
        ),
        template(
            "sandboxes/{sandbox_id}/diff",
            "sandbox diff",
            "Uncommitted changes of the sandbox's repository",
            "text/x-diff",
        ),
        template(
            "executions/{execution_id}/stdout",
            "standard output",
            "What a command wrote to stdout",
            "text/plain",
        ),
        template(
            "executions/{execution_id}/stderr",
            "standard error",
            "What a command wrote to stderr",
            "text/plain",
        ),
        template(
            "forks/{fork_id}/entries/{entry}/diff",
            "entry diff",
            "Changes of an entry of a competition",
            "text/x-diff",
        ),
    ]
}

/// Logs and diffs of the newest running sandboxes.
pub(crate) async fn list(client: &Client) -> Result<Vec<Resource>, ErrorData> {
    let query = SandboxQuery { state: vec!["running".into()], ..SandboxQuery::default() };
    let sandboxes =
        client.sandboxes(&query).page_size(50).take(MOST_SANDBOXES).await.map_err(|error| refused(&error))?;
    let of = |id: &str| {
        let log = Resource::new(format!("{SCHEME}sandboxes/{id}/log"), format!("log of {id}"))
            .with_mime_type("text/plain");
        let diff = Resource::new(format!("{SCHEME}sandboxes/{id}/diff"), format!("diff of {id}"))
            .with_mime_type("text/x-diff");
        [log, diff]
    };
    Ok(sandboxes.iter().flat_map(|sandbox| of(&sandbox.id)).collect())
}

pub(crate) async fn read(client: &Client, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let Some(place) = place(uri) else {
        let shown: String = plain(uri).chars().take(200).collect();
        let message = format!("there is no resource '{shown}'; resources/templates/list shows what there is");
        return Err(ErrorData::resource_not_found(message, None));
    };
    let (text, kind) = text_of(client, place).await.map_err(|error| refused(&error))?;
    let text = ResourceContents::text(plain(&text), uri).with_mime_type(kind);
    Ok(ReadResourceResult::new(vec![text]))
}

async fn text_of(client: &Client, place: Place<'_>) -> Result<(String, &'static str), Error> {
    match place {
        Place::Log { sandbox } => {
            let mut lines = client.logs(sandbox, &LogQuery::default());
            let mut cut = Cut::new(LONGEST);
            for _ in 0..MOST_LINES {
                let Some(line) = lines.next().await? else { break };
                cut.add(format!("{} {} {}\n", line.at, line.source, line.message.trim_end()).as_bytes());
            }
            Ok((cut.text(), "text/plain"))
        }
        Place::SandboxDiff { sandbox } => {
            let diff = client.git_diff(sandbox, &DiffQuery::default()).await?;
            Ok((cut::text(&diff.patch, LONGEST), "text/x-diff"))
        }
        Place::Output { execution, stream } => {
            let query = OutputQuery { stream: Some(stream.into()), from: Some(0), ..OutputQuery::default() };
            let mut content = client.execution_output(execution, &query).await?;
            let mut cut = Cut::new(LONGEST);
            while let Some(piece) = content.next().await? {
                cut.add(&piece);
            }
            Ok((cut.text(), "text/plain"))
        }
        Place::EntryDiff { fork, entry } => {
            let diff = client.entry_diff(fork, entry).await?;
            Ok((cut::text(&diff.patch, LONGEST), "text/x-diff"))
        }
    }
}

/// A refusal, as resources have no other way to say it.
fn refused(error: &Error) -> ErrorData {
    let message = match error.refusal() {
        Some(refusal) => {
            let hint = refusal.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{}: {}{hint}", refusal.code, refusal.message)
        }
        None => error.to_string(),
    };
    let message = plain(&message);
    if error.is_not_found() {
        ErrorData::resource_not_found(message, None)
    } else {
        ErrorData::internal_error(message, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_places_and_nothing_else() {
        assert_eq!(place("coffer://sandboxes/abc/log"), Some(Place::Log { sandbox: "abc" }));
        assert_eq!(
            place("coffer://forks/f1/entries/2/diff"),
            Some(Place::EntryDiff { fork: "f1", entry: 2 })
        );
        for bad in [
            "file:///etc/passwd",
            "coffer://sandboxes/../keys/log",
            "coffer://sandboxes//log",
            "coffer://sandboxes/a%2fb/log",
            "coffer://executions/e/pty",
            "coffer://forks/f/entries/x/diff",
            "",
        ] {
            assert_eq!(place(bad), None, "{bad}");
        }
    }
}
