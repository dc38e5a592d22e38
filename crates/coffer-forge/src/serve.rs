//! Smart HTTP: git's own protocol for local repositories, served by git itself.
//!
//! A fetch is passed through. For a push, the commands are parsed before git starts, to check refs,
//! protection and passes; and the result is recorded before the client gets it.

pub(crate) mod commands;
pub(crate) mod inflate;

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use coffer_core::event::{Event, MovedRef, RepositoryPushed};
use coffer_core::forge::BranchName;
use coffer_core::pkt_line;
use coffer_store::{ProjectScope, RepositoryRow};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Sender;
use tokio::sync::{mpsc, oneshot};

use commands::{Command, Commands};
use inflate::Inflate;

use crate::forge::GitAccess;
use crate::git::{Call, Git, GitError, lacked_memory};
use crate::local::LocalForge;
use crate::storage::{metered, reserve};
use crate::{ForgeError, Forges};

/// Most pieces of a fetch's answer that wait for the client.
const PIECES: usize = 4;
const PIECE: usize = 64 * 1024;
/// The longest request of a fetch.
const LONGEST_QUESTION: u64 = 64 << 20;
/// The longest list of refs.
const LONGEST_ADVERTISEMENT: usize = 32 << 20;
/// Git's longest report on a push.
const LONGEST_REPORT: usize = 1 << 20;

/// Git's message for a pack that is too long.
const TOO_LONG: &str = "pack exceeds maximum allowed size";

/// The service that a client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    UploadPack,
    ReceivePack,
}

impl Service {
    /// Its name in paths and media types.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UploadPack => "git-upload-pack",
            Self::ReceivePack => "git-receive-pack",
        }
    }

    const fn verb(self) -> &'static str {
        match self {
            Self::UploadPack => "upload-pack",
            Self::ReceivePack => "receive-pack",
        }
    }
}

impl std::str::FromStr for Service {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::UploadPack, Self::ReceivePack].into_iter().find(|service| service.as_str() == text).ok_or(())
    }
}

/// Counters of fetches and pushes.
#[derive(Debug, Default)]
pub struct GitFigures {
    pub fetched: AtomicU64,
    pub fetch_failed: AtomicU64,
    pub pushed: AtomicU64,
    /// Nothing was changed, and the client got the reason.
    pub push_refused: AtomicU64,
    pub push_failed: AtomicU64,
}

fn one_more(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// A client's request.
pub struct Incoming {
    pub body: BoxStream<'static, Result<Bytes, String>>,
    pub gzip: bool,
    /// The header `Git-Protocol`.
    pub protocol: Option<String>,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("gzip", &self.gzip).finish_non_exhaustive()
    }
}

/// Git's answer, piece by piece; an error means that it is incomplete.
pub type Outgoing = BoxStream<'static, std::io::Result<Bytes>>;

/// Harmless flaws of old histories; all others are refused in objects from outside.
pub(crate) const TOLERATED: [&str; 4] =
    ["zeroPaddedFilemode", "badTimezone", "missingSpaceBeforeDate", "missingSpaceBeforeEmail"];

/// Only values that git defines and we know.
fn protocol(shown: Option<&str>) -> Vec<(&'static str, String)> {
    let known = shown.into_iter().flat_map(|shown| shown.split(':'));
    let known = known.filter(|part| matches!(*part, "version=0" | "version=1" | "version=2")).take(1);
    known.map(|part| ("GIT_PROTOCOL", part.to_string())).collect()
}

fn settings(service: Service) -> Vec<String> {
    match service {
        Service::UploadPack => vec!["uploadpack.allowFilter=true".into()],
        Service::ReceivePack => TOLERATED
            .into_iter()
            .map(|flaw| format!("receive.fsck.{flaw}=warn"))
            .chain(
                [
                    "receive.fsckObjects=true",
                    "receive.unpackLimit=1",
                    "receive.autogc=false",
                    "receive.advertisePushOptions=false",
                    "receive.shallowUpdate=false",
                    "receive.keepAlive=0",
                    "receive.denyDeleteCurrent=refuse",
                    "receive.denyCurrentBranch=ignore",
                    "receive.hideRefs=refs/pull",
                ]
                .map(String::from),
            )
            .collect(),
    }
}

impl Forges {
    /// The refs of a repository, as `info/refs` returns them.
    pub async fn advertise(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        service: Service,
        shown: Option<&str>,
    ) -> Result<Bytes, ForgeError> {
        let forge = self.local(scope, row, "")?;
        // Here git shows the reason to its user; later it would show only a status.
        if service == Service::ReceivePack {
            self.admit_writes(row.project).await?;
        }
        let protocol = protocol(shown);
        let is_v2 = service == Service::UploadPack && protocol.iter().any(|(_, value)| value == "version=2");
        let call = Call {
            config: settings(service),
            environment: protocol,
            most: LONGEST_ADVERTISEMENT,
            ..Call::within(&forge.bare.directory)
        };
        let directory = forge.bare.directory.to_string_lossy().into_owned();
        let args = [service.verb(), "--stateless-rpc", "--advertise-refs", &directory];
        let told = self.git.run(call, &args).await?;
        if told.cut {
            let most = LONGEST_ADVERTISEMENT as u64;
            return Err(ForgeError::TooLarge { what: "the list of refs", most });
        }
        let refs = told.good()?;
        let mut answer = Vec::with_capacity(refs.len() + 64);
        if !is_v2 {
            pkt_line::write(&mut answer, format!("# service={}\n", service.as_str()).as_bytes());
            answer.extend_from_slice(pkt_line::FLUSH);
        }
        answer.extend_from_slice(&refs);
        Ok(answer.into())
    }

    /// Handles a fetch.
    pub async fn upload_pack(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        incoming: Incoming,
    ) -> Result<Outgoing, ForgeError> {
        let forge = self.local(scope, row, "")?;
        let room = self.git.transfer(row.project).await?;
        let (git, figures) = (self.git.clone(), self.figures.clone());
        let (send, mut pieces) = mpsc::channel(PIECES);
        // In its own task: it ends whatever its client does, and releases its place.
        self.transfers.spawn(async move {
            let _room = room;
            let fetch = fetch(&git, &forge, incoming, &send);
            let done = tokio::time::timeout(git.limits.transfer_time, fetch).await;
            let done = done.unwrap_or(Err(GitError::TimedOut));
            one_more(if done.is_ok() { &figures.fetched } else { &figures.fetch_failed });
            if let Err(error) = done {
                tracing::debug!("a fetch failed: {error}");
                let _ = send.send(Err(std::io::Error::other(error.to_string()))).await;
            }
        });
        // The first piece shows whether there is an answer at all.
        let first = match pieces.recv().await {
            Some(Err(error)) => return Err(ForgeError::Git(error.to_string())),
            first => first,
        };
        let rest = futures_util::stream::unfold(pieces, |mut pieces| async move {
            pieces.recv().await.map(|piece| (piece, pieces))
        });
        Ok(futures_util::stream::iter(first).chain(rest).boxed())
    }

    /// Handles a push. Once all of it has arrived, it is completed even if the client disconnects.
    pub async fn receive_pack(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        actor: &str,
        access: Option<GitAccess>,
        incoming: Incoming,
    ) -> Result<Bytes, ForgeError> {
        let forge = self.local(scope, row, actor)?;
        self.floor.check()?;
        let room = self.git.transfer(row.project).await?;
        let (git, figures) = (self.git.clone(), self.figures.clone());
        let (tell, told) = oneshot::channel();
        self.transfers.spawn(async move {
            let _room = room;
            let push = push(&git, &forge, access, incoming);
            let done = tokio::time::timeout(git.limits.transfer_time, push).await;
            let done = done.unwrap_or_else(|_| Err(GitError::TimedOut.into()));
            let pushed = matches!(&done, Ok((_, true)));
            match &done {
                Ok((_, true)) => one_more(&figures.pushed),
                // A client's first try changes nothing and gets an empty answer.
                Ok((report, false)) if report.is_empty() => {}
                Ok((_, false)) => one_more(&figures.push_refused),
                Err(_) => one_more(&figures.push_failed),
            }
            let _ = tell.send(done.map(|(report, _)| report));
            if pushed {
                forge.tidy_objects().await;
            }
        });
        told.await.unwrap_or(Err(ForgeError::Git("the push was cancelled".into())))
    }
}

async fn fetch(
    git: &Git,
    forge: &LocalForge,
    incoming: Incoming,
    send: &mpsc::Sender<std::io::Result<Bytes>>,
) -> Result<(), GitError> {
    let directory = forge.bare.directory.to_string_lossy().into_owned();
    let args = ["upload-pack", "--strict", "--stateless-rpc", &directory];
    let environment = protocol(incoming.protocol.as_deref());
    let config = settings(Service::UploadPack);
    let call = Call { config, environment, ..Call::within(&forge.bare.directory) };
    let mut running = git.spawn(&call, &args).await?;
    let (stdin, mut stdout, mut stderr) = running.pipes();
    let mut body = Inflate::new(incoming.body, incoming.gzip, LONGEST_QUESTION);
    let ask = feed(Bytes::new(), &mut body, stdin, git.limits.silence);
    let answer = async {
        let mut sent = false;
        loop {
            let mut piece = BytesMut::with_capacity(PIECE);
            let read = stdout.read_buf(&mut piece).await;
            match read {
                Ok(0) => return Ok(sent),
                Ok(_) => {}
                Err(error) => return Err(GitError::Failed(error.to_string())),
            }
            sent = true;
            let passed = tokio::time::timeout(git.limits.silence, send.send(Ok(piece.freeze()))).await;
            // The client has disconnected.
            if !matches!(passed, Ok(Ok(()))) {
                return Err(GitError::TimedOut);
            }
        }
    };
    let mut complaint = Vec::new();
    let mut stderr = (&mut stderr).take(4096);
    let (asked, sent, _) = tokio::join!(ask, answer, stderr.read_to_end(&mut complaint));
    let sent = sent?;
    let code = running.wait().await?;
    if sent || code == Some(0) {
        // After the first bytes, git reports errors itself, in its own protocol.
        return Ok(());
    }
    asked?;
    Err(GitError::Failed(String::from_utf8_lossy(&complaint).lines().next().unwrap_or_default().to_string()))
}

/// Passes on the client's data.
async fn feed(
    first: Bytes,
    mut body: impl Stream<Item = Result<Bytes, String>> + Unpin,
    mut stdin: Sender,
    silence: std::time::Duration,
) -> Result<(), GitError> {
    let late = |_| GitError::TimedOut;
    let mut next = Some(first);
    while let Some(piece) = next {
        // Git may have stopped reading.
        if tokio::time::timeout(silence, stdin.write_all(&piece)).await.map_err(late)?.is_err() {
            return Ok(());
        }
        next = tokio::time::timeout(silence, body.next())
            .await
            .map_err(late)?
            .transpose()
            .map_err(GitError::Failed)?;
    }
    let _ = stdin.shutdown().await;
    Ok(())
}

/// The report for the client, and whether anything changed.
async fn push(
    git: &Git,
    forge: &LocalForge,
    access: Option<GitAccess>,
    incoming: Incoming,
) -> Result<(Bytes, bool), ForgeError> {
    let limits = &git.limits;
    let mut body = Inflate::new(incoming.body, incoming.gzip, limits.push);
    let (commands, first) = Commands::read(&mut body, limits.silence).await?;
    let Some(commands) = commands else {
        // A client's first try, to see whether it is authorised.
        drain(body, limits.silence).await;
        return Ok((Bytes::new(), false));
    };
    if !commands.reports {
        // Without a report, git does not say which refs it has changed.
        drain(body, limits.silence).await;
        return Err(ForgeError::invalid("the push", "comes from a client without `report-status`"));
    }
    let protections = forge.store.protections(&forge.scope, forge.row.id).await?;
    let refusals = commands.refusals(&protections, access.as_ref());
    let size = forge.bare.size().await?.saturating_add(forge.lfs_size().await?);
    let left = limits.repository.saturating_sub(size).min(limits.push);
    if !refusals.is_empty() || (left == 0 && commands.brings_objects()) {
        drain(body, limits.silence).await;
        let full = || "the repository is full".to_string();
        return Ok((
            commands.refused(|name| {
                refusals.get(name).cloned().unwrap_or_else(|| {
                    if refusals.is_empty() { full() } else { "another ref of this push was refused".into() }
                })
            }),
            false,
        ));
    }
    let room = match reserve(&forge.store, forge.row.project, first.len() as u64).await {
        Err(ForgeError::OverQuota(over)) => {
            drain(body, limits.silence).await;
            return Ok((commands.refused(|_| over.to_string()), false));
        }
        room => room?,
    };
    let mut config = settings(Service::ReceivePack);
    config.push(format!("receive.maxInputSize={}", left.max(1)));
    let guarded = |command: &Command| protections.iter().any(|(branch, _)| command.is_branch(branch));
    if commands.all.iter().any(guarded) {
        config.push("receive.denyNonFastForwards=true".into());
    }
    let directory = forge.bare.directory.to_string_lossy().into_owned();
    let args = ["receive-pack", "--stateless-rpc", &directory];
    let environment = protocol(incoming.protocol.as_deref());
    let call = Call { config, environment, ..Call::within(&forge.bare.directory) };
    let mut running = git.spawn(&call, &args).await?;
    let (stdin, mut stdout, mut stderr) = running.pipes();
    let already = first.len() as u64;
    let give = feed(first, metered(&mut body, room.clone(), already), stdin, limits.silence);
    let (mut report, mut complaint) = (Vec::new(), Vec::new());
    let hear = async {
        let _ = (&mut stdout).take(LONGEST_REPORT as u64).read_to_end(&mut report).await;
    };
    let listen = async {
        let _ = (&mut stderr).take(4096).read_to_end(&mut complaint).await;
    };
    let (given, (), ()) = tokio::join!(give, hear, listen);
    let code = running.wait().await?;
    let moved = commands.moved(&report);
    if let Some(over) = room.refusal().filter(|_| moved.is_empty()) {
        return Ok((commands.refused(|_| over.to_string()), false));
    }
    if moved.is_empty() && commands.brings_objects() {
        let said = commands.said(&report) + &String::from_utf8_lossy(&complaint);
        let refusal = if body.is_too_long() || said.contains(TOO_LONG) {
            Some(ForgeError::pack_too_large(left))
        } else if code.is_none() || lacked_memory(&said) {
            Some(ForgeError::pack_needs_memory(limits.memory))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            // The client reads the answer once it has sent everything; drain as much again for that.
            drain(&mut body, limits.silence).await;
            drain(up_to(limits.push, body.into_rest()), limits.silence).await;
            return Ok((commands.refused(|_| format!("pack_too_large: {refusal}")), false));
        }
    }
    if moved.is_empty() && report.is_empty() {
        given?;
        let why = String::from_utf8_lossy(&complaint).lines().next().unwrap_or_default().to_string();
        return Err(ForgeError::Git(why.chars().take(300).collect()));
    }
    if !moved.is_empty() {
        forge.pushed(&moved).await?;
        forge.count_size().await?;
    }
    Ok((report.into(), !moved.is_empty()))
}

/// Drains the rest, so that the client reads the answer.
pub(crate) async fn drain(
    mut body: impl Stream<Item = Result<Bytes, String>> + Unpin,
    silence: std::time::Duration,
) {
    while let Ok(Some(Ok(_))) = tokio::time::timeout(silence, body.next()).await {}
}

/// The body, up to this many bytes.
fn up_to(
    most: u64,
    body: impl Stream<Item = Result<Bytes, String>> + Unpin,
) -> impl Stream<Item = Result<Bytes, String>> + Unpin {
    let within = move |left: &mut u64, piece: &Result<Bytes, String>| {
        *left = left.saturating_sub(piece.as_ref().map_or(0, |piece| piece.len() as u64));
        *left > 0
    };
    body.scan(most, move |left, piece| std::future::ready(within(left, &piece).then_some(piece)))
}

impl LocalForge {
    /// Records a push.
    async fn pushed(&self, moved: &[&Command]) -> Result<(), ForgeError> {
        let refs: Vec<_> = moved
            .iter()
            .take(100)
            .map(|command| MovedRef {
                name: command.name.clone(),
                before: command.old.clone(),
                after: command.new.clone(),
            })
            .collect();
        let pushed = RepositoryPushed { by: self.actor.clone(), refs, count: moved.len() };
        let event = Event::RepositoryPushed(pushed);
        self.store.record_repository_event(&self.scope, self.row.id, event).await?;
        let made = moved.iter().filter(|command| !command.new.is_zero());
        let branches: Vec<BranchName> = made.filter_map(|command| command.branch()).collect();
        self.settle_head(branches.iter()).await?;
        self.follow_all().await
    }

    /// Repacks a repository now and then.
    async fn tidy_objects(&self) {
        let call = Call {
            config: ["gc.auto=2000", "gc.autoPackLimit=40", "gc.autoDetach=false"].map(String::from).to_vec(),
            time: Some(self.bare.git.limits.transfer_time),
            // Repacking millions of objects takes more memory than receiving them.
            spare: self.bare.git.spare_memory(self.row.project),
            ..Call::within(&self.bare.directory)
        };
        if let Err(error) = self.bare.git.run(call, &["gc", "--auto", "--quiet"]).await {
            tracing::debug!(repository.id = %self.row.id, "could not pack a repository: {error}");
        }
    }
}
