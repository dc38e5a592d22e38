//! The RPC service `filesystem.Filesystem`.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coffer_wire::agentd::Init;
use coffer_wire::envd::filesystem::watch_dir_response::{Event, KeepAlive, StartEvent};
use coffer_wire::envd::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, EntryInfo, GetWatcherEventsRequest,
    GetWatcherEventsResponse, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest,
    MoveResponse, RemoveRequest, RemoveResponse, RemoveWatcherRequest, RemoveWatcherResponse, StatRequest,
    StatResponse, WatchDirRequest, WatchDirResponse,
};
use http::HeaderMap;
use hyper::body::Incoming;

use super::watch::{Ask, Watch};
use super::{ensure_dirs, entry, off_thread};
use crate::account::{Account, Accounts};
use crate::agent::{Agent, caller};
use crate::connect::{self, Code, EventSink, RpcError};
use crate::reply::{Reply, is_disk_full};
use crate::{headers, path};

/// Most entries in one listing.
const LIST_LIMIT: usize = 100_000;

/// Handles one method; `None` for an unknown one.
pub(crate) async fn call(
    agent: &Arc<Agent>,
    method: &str,
    headers: &HeaderMap,
    body: Incoming,
) -> Option<Reply> {
    let at = Place::of(agent, headers);
    let reply = match method {
        "Stat" => {
            connect::unary(headers, body, |request: StatRequest| async move {
                let entry = at?.work(move |at| stat(&at.resolve(&request.path)?)).await?;
                Ok(StatResponse { entry: Some(entry) })
            })
            .await
        }
        "MakeDir" => {
            connect::unary(headers, body, |request: MakeDirRequest| async move {
                let entry = at?.work(move |at| make_dir(at, &request.path)).await?;
                Ok(MakeDirResponse { entry: Some(entry) })
            })
            .await
        }
        "Move" => {
            connect::unary(headers, body, |request: MoveRequest| async move {
                let entry = at?.work(move |at| rename(at, &request)).await?;
                Ok(MoveResponse { entry: Some(entry) })
            })
            .await
        }
        "ListDir" => {
            connect::unary(headers, body, |request: ListDirRequest| async move {
                let entries = at?.work(move |at| list(at, &request)).await?;
                Ok(ListDirResponse { entries })
            })
            .await
        }
        "Remove" => {
            connect::unary(headers, body, |request: RemoveRequest| async move {
                at?.work(move |at| remove(&at.resolve(&request.path)?)).await?;
                Ok(RemoveResponse {})
            })
            .await
        }
        "WatchDir" => watch_dir(at, headers, body).await,
        "CreateWatcher" => {
            connect::unary(headers, body, |request: CreateWatcherRequest| async move {
                let at = at?;
                let ask = Ask {
                    path: at.resolve(&request.path)?,
                    recursive: request.recursive,
                    include_entry: request.include_entry,
                    allow_network_mounts: request.allow_network_mounts,
                };
                let watch = Watch::open(&at.agent.watchers, ask).await?;
                let watcher_id = at.agent.watchers.keep(watch)?;
                Ok(CreateWatcherResponse { watcher_id })
            })
            .await
        }
        "GetWatcherEvents" => {
            connect::unary(headers, body, |request: GetWatcherEventsRequest| async move {
                let watch = agent.watchers.kept(&request.watcher_id)?;
                let events = off_thread(move || watch.take_now()).await.map_err(RpcError::internal)??;
                Ok(GetWatcherEventsResponse { events })
            })
            .await
        }
        "RemoveWatcher" => {
            connect::unary(headers, body, |request: RemoveWatcherRequest| async move {
                agent.watchers.remove(&request.watcher_id)?;
                Ok(RemoveWatcherResponse {})
            })
            .await
        }
        _ => return None,
    };
    Some(reply)
}

/// The caller, and the base of its paths.
#[derive(Debug, Clone)]
struct Place {
    agent: Arc<Agent>,
    account: Account,
    init: Arc<Init>,
}

impl Place {
    fn of(agent: &Arc<Agent>, headers: &HeaderMap) -> Result<Self, RpcError> {
        let init = agent.init();
        Ok(Self { agent: Arc::clone(agent), account: caller(headers, &init)?, init })
    }

    fn resolve(&self, text: &str) -> Result<PathBuf, RpcError> {
        path::resolve(text, &self.account, self.init.default_workdir.as_deref()).map_err(RpcError::invalid)
    }

    /// Runs file work, and lets the watchers see it before it answers.
    async fn work<T: Send + 'static>(
        self,
        work: impl FnOnce(&Self) -> Result<T, RpcError> + Send + 'static,
    ) -> Result<T, RpcError> {
        off_thread(move || {
            let done = work(&self);
            self.agent.watchers.settle();
            done
        })
        .await
        .map_err(RpcError::internal)?
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn io_error(doing: impl Display, error: &io::Error) -> RpcError {
    if is_disk_full(error) {
        return RpcError::internal("not enough disk space available");
    }
    RpcError::internal(format!("{doing}: {error}"))
}

/// Without the database, only the names of owners are missing.
fn accounts() -> Accounts {
    Accounts::read().unwrap_or_default()
}

fn stat(path: &Path) -> Result<EntryInfo, RpcError> {
    entry::describe(path, &accounts()).map_err(|error| {
        if is_missing(&error) {
            return RpcError::not_found(format!("file not found: {}", path.display()));
        }
        io_error("error getting file info", &error)
    })
}

fn make_dir(at: &Place, path: &str) -> Result<EntryInfo, RpcError> {
    let path = at.resolve(path)?;
    match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() => {
            return Err(RpcError::new(
                Code::AlreadyExists,
                format!("directory already exists: {}", path.display()),
            ));
        }
        Ok(_) => {
            return Err(RpcError::invalid(format!(
                "path already exists but it is not a directory: {}",
                path.display()
            )));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(RpcError::invalid(format!("a parent is not a directory: {}", path.display())));
        }
        Err(error) => return Err(io_error("error getting file info", &error)),
    }
    ensure_dirs(&path, &at.account).map_err(|error| io_error("error creating directory", &error))?;
    stat(&path)
}

fn rename(at: &Place, request: &MoveRequest) -> Result<EntryInfo, RpcError> {
    let source = at.resolve(&request.source)?;
    let destination = at.resolve(&request.destination)?;
    // Check first, so that a failed move leaves no directories behind.
    match std::fs::symlink_metadata(&source) {
        Ok(_) => {}
        Err(error) if is_missing(&error) => {
            return Err(RpcError::not_found(format!("source file not found: {}", source.display())));
        }
        Err(error) => return Err(io_error("error renaming", &error)),
    }
    if let Some(parent) = destination.parent() {
        ensure_dirs(parent, &at.account).map_err(|error| io_error("error creating directory", &error))?;
    }
    std::fs::rename(&source, &destination).map_err(|error| io_error("error renaming", &error))?;
    stat(&destination)
}

fn remove(path: &Path) -> Result<(), RpcError> {
    super::remove::remove(path).map_err(|error| io_error("error removing file or directory", &error))
}

fn list(at: &Place, request: &ListDirRequest) -> Result<Vec<EntryInfo>, RpcError> {
    let asked = at.resolve(&request.path)?;
    let resolved = std::fs::canonicalize(&asked).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => {
            RpcError::not_found(format!("directory not found: {}", asked.display()))
        }
        Some(libc::ELOOP) => RpcError::invalid(format!("cyclic symlink at {:?}", asked.display())),
        _ => io_error("error resolving symlink", &error),
    })?;
    if !resolved.is_dir() {
        return Err(RpcError::invalid(format!("path is not a directory: {}", asked.display())));
    }
    let mut listing = Listing { accounts: accounts(), entries: Vec::new() };
    listing.walk(&resolved, &asked, request.depth.max(1))?;
    Ok(listing.entries)
}

struct Listing {
    accounts: Accounts,
    entries: Vec<EntryInfo>,
}

impl Listing {
    /// Lists each directory before its contents; links are not followed. `shown` is the path by which the
    /// client came here.
    fn walk(&mut self, dir: &Path, shown: &Path, depth: u32) -> Result<(), RpcError> {
        let reading = match std::fs::read_dir(dir) {
            Ok(reading) => reading,
            // Below the top, entries that vanish meanwhile are not listed.
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(io_error("error reading directory", &error)),
        };
        let mut names: Vec<_> =
            reading.take(LIST_LIMIT + 1).filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        names.sort();
        for name in names {
            let path = dir.join(&name);
            let Ok(mut entry) = entry::describe(&path, &self.accounts) else {
                continue;
            };
            let shown = shown.join(&name);
            let is_dir = entry.permissions.starts_with('d');
            entry.path = shown.to_string_lossy().into_owned();
            self.entries.push(entry);
            if self.entries.len() > LIST_LIMIT {
                return Err(RpcError::new(
                    Code::ResourceExhausted,
                    format!("the directory has more than {LIST_LIMIT} entries"),
                ));
            }
            if is_dir && depth > 1 {
                self.walk(&path, &shown, depth - 1)?;
            }
        }
        Ok(())
    }
}

async fn watch_dir(at: Result<Place, RpcError>, headers: &HeaderMap, body: Incoming) -> Reply {
    let keepalive = headers::keepalive(headers);
    let timeout = headers::timeout(headers);
    connect::server_stream(headers, body, |request: WatchDirRequest, sink: EventSink| async move {
        let at = at?;
        let deadline = timeout?.map(|timeout| tokio::time::Instant::now() + timeout);
        let ask = Ask {
            path: at.resolve(&request.path)?,
            recursive: request.recursive,
            include_entry: request.include_entry,
            allow_network_mounts: request.allow_network_mounts,
        };
        let watch = Watch::open(&at.agent.watchers, ask).await?;
        let mut event = Event::Start(StartEvent {});
        loop {
            let message = WatchDirResponse { event: Some(event) };
            if sink.send(&message).await.is_err() {
                return Ok(());
            }
            event = tokio::select! {
                () = sink.gone() => return Ok(()),
                () = crate::process::until(deadline) => {
                    return Err(RpcError::new(
                        Code::DeadlineExceeded,
                        "context deadline exceeded",
                    ));
                }
                next = watch.next() => Event::Filesystem(next?),
                () = tokio::time::sleep(keepalive) => Event::Keepalive(KeepAlive {}),
            };
        }
    })
    .await
}
