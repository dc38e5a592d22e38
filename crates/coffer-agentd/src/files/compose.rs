//! `POST /files/compose`: joins several files into one.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;
use rustix::fs::{Gid, Uid};
use serde::Deserialize;

use super::upload::Written;
use super::{ensure_dirs, off_thread};
use crate::account::Account;
use crate::agent::{self, Agent};
use crate::path;
use crate::reply::{self, Refusal, Reply};

/// Sources of one request.
const SOURCE_LIMIT: usize = 10_000;

static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Deserialize)]
pub(crate) struct Compose {
    #[serde(default)]
    source_paths: Vec<String>,
    #[serde(default)]
    destination: String,
    username: Option<String>,
}

pub(crate) async fn compose(agent: &Arc<Agent>, asked: Compose) -> Reply {
    let agent = Arc::clone(agent);
    let done = off_thread(move || {
        let done = assemble(&agent, &asked);
        agent.watchers.settle();
        done
    });
    match done.await {
        Ok(Ok(written)) => reply::json(StatusCode::OK, &written),
        Ok(Err(refusal)) => refusal.reply(),
        Err(error) => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error).reply(),
    }
}

fn assemble(agent: &Agent, asked: &Compose) -> Result<Written, Refusal> {
    if asked.source_paths.is_empty() {
        return Err(Refusal::bad_request("source_paths must not be empty"));
    }
    if asked.source_paths.len() > SOURCE_LIMIT {
        return Err(Refusal::bad_request(format!("more than {SOURCE_LIMIT} source_paths")));
    }
    if asked.destination.is_empty() {
        return Err(Refusal::bad_request("destination is required"));
    }
    let init = agent.init();
    let account = agent::account(asked.username.as_deref(), &init).map_err(Refusal::unauthorized)?;
    let resolve = |text: &str| {
        path::resolve(text, &account, init.default_workdir.as_deref()).map_err(Refusal::bad_request)
    };
    let destination = resolve(&asked.destination)?;
    let mut sources = Vec::new();
    for asked in &asked.source_paths {
        let source = resolve(asked)?;
        if source == destination {
            return Err(Refusal::bad_request(format!(
                "source path {asked:?} cannot be the same as destination"
            )));
        }
        let found = std::fs::metadata(&source)
            .map_err(|_| Refusal::not_found(format!("source file not found: {asked}")))?;
        if !found.is_file() {
            return Err(Refusal::bad_request(format!("source path is not a regular file: {asked}")));
        }
        sources.push(source);
    }
    if let Some(parent) = destination.parent() {
        ensure_dirs(parent, &account)
            .map_err(|error| Refusal::from_io("error ensuring directories", &error))?;
    }
    // Write next to the destination first: a failure must not destroy an existing file.
    let unfinished = unfinished(&destination);
    let joined =
        join(&sources, &unfinished, &account).and_then(|()| std::fs::rename(&unfinished, &destination));
    if let Err(error) = joined {
        let _never_made = std::fs::remove_file(&unfinished);
        return Err(Refusal::from_io("error composing files", &error));
    }
    for source in &sources {
        // A source that is named twice is already gone.
        let _gone = std::fs::remove_file(source);
    }
    Ok(Written::file(&destination, Default::default()))
}

fn unfinished(destination: &Path) -> PathBuf {
    let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    let mut name = destination.as_os_str().to_owned();
    name.push(format!(".compose-{}-{attempt}", std::process::id()));
    name.into()
}

fn join(sources: &[PathBuf], to: &Path, account: &Account) -> io::Result<()> {
    let mut joined = File::options().write(true).create_new(true).open(to)?;
    rustix::fs::fchown(&joined, Some(Uid::from_raw(account.uid)), Some(Gid::from_raw(account.gid)))?;
    for source in sources {
        // Between files the kernel copies by itself.
        io::copy(&mut File::open(source)?, &mut joined)?;
    }
    Ok(())
}
