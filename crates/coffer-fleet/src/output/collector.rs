//! Follows agentd's journal.
//!
//! A sandbox costs a task and a connection only while something runs in it or was just requested: every
//! process starts through the proxy or our own API, and both wake the follower. The first read comes a moment
//! later, so that a client that waits for first output has the processor.

use std::collections::hash_map::Entry;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use coffer_core::{ExecutionId, chain};
use coffer_store::{
    Collected, ExecutionFilter, ExecutionRow, ExecutionSource, ExecutionState, NewExecution, Process,
    SegmentState, StoreError,
};
use coffer_wire::agentd::{JournalAck, JournalPage, JournalRecord, ProcessFact};
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use super::Output;
use super::follow::{Running, State};
use super::intake::{Intake, Rest};
use super::record::Kind;
use super::subject::Subject;
use coffer_core::clock::now_ms;
use coffer_guest as agent;
use coffer_guest::AgentError;

/// From the first use to the first read.
const SETTLE: Duration = Duration::from_millis(300);
/// Between reads while there is output: it comes in pieces, and each read costs a sync.
const GATHER: Duration = Duration::from_millis(100);
/// The same while pages are full.
const HURRY: Duration = Duration::from_millis(5);

/// How long a read may wait in agentd: while something runs, and while something may start.
const WAIT_RUNNING_S: u64 = 30;
const WAIT_IDLE_S: u64 = 10;
const WAIT_HELD_S: u64 = 1;
/// A sandbox where nothing runs and that was unused for this long is no longer followed.
const LINGER_MS: i64 = 8000;
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after a failure; doubles with each further one, up to the maximum.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_AT_MOST: Duration = Duration::from_secs(30);

/// Bounds of a journal page, which a sandbox can fill with anything.
const MOST_RECORDS: usize = 4096;
const MOST_RUNNING: usize = 4096;
const MOST_EXECUTIONS: usize = 100_000;

/// A page with this many records, or bytes, is probably followed by more.
const A_FULL_PAGE: usize = 1000;
const A_LARGE_PAGE: usize = 512 << 10;

/// Most pages read for a waiting client.
const MOST_PAGES: usize = 16;
const LAST_PATIENCE: Duration = Duration::from_millis(250);

/// Why a journal page was not recorded.
#[derive(Debug, thiserror::Error)]
pub(super) enum CollectError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("the sandbox's journal is invalid: {0}")]
    Nonsense(&'static str),
    #[error("could not write the output log")]
    Files(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Nothing,
    Something,
    /// There is more right now.
    More,
}

type Guard = OwnedMutexGuard<Option<State>>;

impl Output {
    /// Follows the journal of a sandbox, because it is being used.
    pub fn wake(self: &Arc<Self>, record: &Arc<impl Subject>) {
        if record.follow().begin() {
            let (output, record) = (self.clone(), record.clone());
            self.tasks.spawn(async move { output.follow(record).await });
        }
    }

    async fn follow(self: Arc<Self>, record: Arc<impl Subject>) {
        self.pause(SETTLE, None).await;
        let mut failures = 0;
        while let Some((socket, gone)) = record.run()
            && !self.stop.is_cancelled()
        {
            let asked = tokio::time::Instant::now();
            match self.look(&record, &socket, &gone).await {
                Ok(Look::More) => self.pause(HURRY, Some(&gone)).await,
                Ok(Look::Something) => self.pause(GATHER, Some(&gone)).await,
                Ok(Look::Nothing) => {
                    let busy = record
                        .follow()
                        .state
                        .lock()
                        .await
                        .as_ref()
                        .is_some_and(|state| !state.running.is_empty());
                    if !busy && record.activity().idle_ms() >= LINGER_MS {
                        break;
                    }
                    // agentd should wait by itself; if it does not, wait here.
                    if asked.elapsed() < AGAIN {
                        self.pause(AGAIN, Some(&gone)).await;
                    }
                }
                Err(error) => {
                    let pause = AGAIN.saturating_mul(1 << failures).min(AGAIN_AT_MOST);
                    failures = (failures + 1).min(8);
                    if !gone.is_cancelled() {
                        tracing::debug!(sandbox.id = %record.id(), "could not read output, trying again: {}", chain(&error));
                    }
                    self.pause(pause, Some(&gone)).await;
                    continue;
                }
            }
            failures = 0;
        }
        record.follow().end();
        // A caller that woke the sandbox just before this saw it still being followed.
        if record.run().is_some() && record.activity().idle_ms() < LINGER_MS && !self.stop.is_cancelled() {
            self.wake(&record);
        }
    }

    async fn pause(&self, length: Duration, gone: Option<&CancellationToken>) {
        let never = CancellationToken::new();
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = gone.unwrap_or(&never).cancelled() => {}
            () = tokio::time::sleep(length) => {}
        }
    }

    /// Waits for records in the journal and stores them.
    async fn look(
        self: &Arc<Self>,
        record: &Arc<impl Subject>,
        socket: &Path,
        gone: &CancellationToken,
    ) -> Result<Look, CollectError> {
        let (from, wait_s) = {
            let mut state = record.follow().state.clone().lock_owned().await;
            match &*state {
                // The first answer identifies the start of agentd.
                None => {
                    *state = Some(self.load(record).await?);
                    (0, 0)
                }
                Some(state) if state.is_fresh => (0, 0),
                Some(state) if state.is_holding() => (state.next, WAIT_HELD_S),
                Some(state) if state.running.is_empty() => (state.next, WAIT_IDLE_S),
                Some(state) => (state.next, WAIT_RUNNING_S),
            }
        };
        let page = tokio::select! {
            () = gone.cancelled() => return Ok(Look::Nothing),
            () = self.stop.cancelled() => return Ok(Look::Nothing),
            page = agent::journal(socket, from, wait_s, PATIENCE) => page?,
        };
        let state = record.follow().state.clone().lock_owned().await;
        let look = self.clone().record_page(record.clone(), state, page, Rest::Hold);
        // Finish it even if this task is dropped: a half-written page must not be read again.
        let (look, ack) =
            self.tasks.spawn(look).await.unwrap_or(Err(CollectError::Nonsense("the reader panicked")))?;
        if let Some(ack) = ack {
            agent::acknowledge(socket, &ack, PATIENCE).await?;
        }
        Ok(look)
    }

    /// Stores what the journal has now, for a client that is about to read it.
    pub async fn catch_up(self: &Arc<Self>, record: &Arc<impl Subject>, patience: Duration) {
        let Some((socket, gone)) = record.run() else { return };
        self.wake(record);
        let reading = async {
            for _ in 0..MOST_PAGES {
                let from = self.position(record).await;
                let page = agent::journal(&socket, from, 0, PATIENCE).await?;
                let state = record.follow().state.clone().lock_owned().await;
                let recorded = self.clone().record_page(record.clone(), state, page, Rest::Hold);
                let recorded = self.tasks.spawn(recorded).await;
                let (look, ack) = recorded.unwrap_or(Err(CollectError::Nonsense("the reader panicked")))?;
                if let Some(ack) = ack {
                    agent::acknowledge(&socket, &ack, PATIENCE).await?;
                }
                if look == Look::Nothing {
                    break;
                }
            }
            Ok::<_, CollectError>(())
        };
        let read = tokio::select! {
            read = tokio::time::timeout(patience, reading) => read,
            () = gone.cancelled() => return,
        };
        if let Ok(Err(error)) = read {
            tracing::debug!(sandbox.id = %record.id(), "could not read the newest output: {}", chain(&error));
        }
    }

    /// Reads the rest of a sandbox's journal before it ends, within a moment.
    pub async fn last_words(&self, record: &impl Subject) -> Vec<JournalPage> {
        let socket = record.last_socket().filter(|_| record.follow().was_used());
        let Some(socket) = socket else { return Vec::new() };
        let mut pages = Vec::new();
        let reading = async {
            let mut from = self.position(record).await;
            for _ in 0..MOST_PAGES {
                let Ok(page) = agent::journal(&socket, from, 0, LAST_PATIENCE).await else { return };
                let last = page.records.is_empty() || page.next <= from;
                from = page.next;
                pages.push(page);
                if last {
                    return;
                }
            }
        };
        let _in_time = tokio::time::timeout(LAST_PATIENCE, reading).await;
        pages
    }

    /// Stores the last pages of a sandbox's journal, and records that nothing runs in it.
    pub async fn conclude(self: &Arc<Self>, record: &Arc<impl Subject>, pages: Vec<JournalPage>) {
        if !record.follow().was_used() {
            return;
        }
        let (output, record) = (self.clone(), record.clone());
        // Finish it, though a stop may not wait for it.
        let concluding = self.tasks.spawn(async move { output.conclude_now(&record, pages).await });
        let _ = concluding.await;
    }

    async fn conclude_now(self: &Arc<Self>, record: &Arc<impl Subject>, mut pages: Vec<JournalPage>) {
        if pages.is_empty()
            && let Some(State { boot: Some(boot), next, .. }) = &*record.follow().state.lock().await
            && let Ok(boot) = u64::try_from(*boot)
        {
            // agentd sends no more; held-back output is still to be written.
            pages.push(JournalPage { records: Vec::new(), next: *next, dropped: 0, boot });
        }
        let mut pages = pages.into_iter().peekable();
        while let Some(page) = pages.next() {
            let rest = if pages.peek().is_some() { Rest::Hold } else { Rest::LetGo };
            let state = record.follow().state.clone().lock_owned().await;
            let taken = self.clone().record_page(record.clone(), state, page, rest).await;
            if let Err(error) = taken {
                tracing::warn!(sandbox.id = %record.id(), "could not store the last output: {}", chain(&error));
                break;
            }
        }
        let known = record.follow().state.lock().await.take();
        if known.is_some_and(|state| state.running.is_empty()) && !record.follow().has_announced() {
            return;
        }
        let status = "its sandbox ended";
        let ended = self.store.end_executions(record.id(), None, ExecutionState::Lost, status, now_ms());
        if let Err(error) = ended.await {
            // The sweep finds them.
            tracing::warn!(sandbox.id = %record.id(), "could not record executions as ended: {error}");
        }
    }

    /// The position to read from. An unknown journal is read from its beginning.
    async fn position(&self, record: &impl Subject) -> u64 {
        record
            .follow()
            .state
            .lock()
            .await
            .as_ref()
            .filter(|state| !state.is_fresh)
            .map_or(0, |state| state.next)
    }

    pub(super) async fn load(&self, record: &impl Subject) -> Result<State, CollectError> {
        let position = self.store.journal_position(record.id()).await?;
        let filter = ExecutionFilter {
            sandbox: Some(record.id()),
            state: Some(ExecutionState::Running),
            limit: u32::try_from(MOST_RUNNING).unwrap_or(u32::MAX),
            ..ExecutionFilter::default()
        };
        let rows = self.store.executions(&self.store.operator(), &filter).await?;
        let running = rows.into_iter().filter_map(|row| {
            let process = row.process?;
            Some((process.pid, Running { changed: false, ..Running::new(row) }))
        });
        let running = running.collect();
        let on_disk = self.store.segments_on_disk(record.id()).await?;
        let mut segment = self.store.newest_segment(record.id()).await?;
        if let Some(newest) = &mut segment
            && !self.files.is_whole(newest).await
        {
            // It is compressed, deleted or damaged: the log continues in the next segment.
            newest.state = SegmentState::Pruned;
        }
        Ok(State {
            boot: position.map(|(boot, _)| boot),
            next: position.map_or(0, |(_, next)| u64::try_from(next).unwrap_or(0)),
            running,
            segment,
            on_disk: on_disk.iter().map(|segment| segment.file_bytes).sum(),
            is_fresh: true,
            seen: 0,
            silences: 0,
        })
    }

    /// Stores a page, and returns what agentd may drop. After a failure everything is read again.
    async fn record_page(
        self: Arc<Self>,
        record: Arc<impl Subject>,
        mut guard: Guard,
        page: JournalPage,
        rest: Rest,
    ) -> Result<(Look, Option<JournalAck>), CollectError> {
        // One project's output must not keep every thread busy with redaction.
        let _place = self.redaction.take(record.project()).await.map_err(io::Error::other)?;
        let mut state = match guard.take() {
            Some(state) => state,
            None => self.load(&record).await?,
        };
        let boot =
            i64::try_from(page.boot).map_err(|_| CollectError::Nonsense("its boot number is too large"))?;
        let next =
            i64::try_from(page.next).map_err(|_| CollectError::Nonsense("its position is too large"))?;
        if page.records.len() > MOST_RECORDS {
            return Err(CollectError::Nonsense("the page is too long"));
        }
        let patterns = self.patterns_in(&record);
        let mut intake = Intake::new(&record, &state, &patterns, self.settings.most_per_execution);
        if state.boot != Some(boot) {
            // Another agentd: the processes of the earlier one are gone.
            let lost: Vec<Running> = state.running.drain().map(|(_, running)| running).collect();
            for running in lost {
                intake.lose(running);
            }
            let skipped = std::mem::take(&mut state.next);
            state.boot = Some(boot);
            if skipped > 0 && page.records.first().is_none_or(|first| first.offset > 0) {
                // The request was for a position of the earlier agentd.
                self.commit(&record, &mut state, intake, Some((boot, 0))).await?;
                *guard = Some(state);
                return Ok((Look::More, None));
            }
        }
        let before = state.next;
        let (count, size) = (page.records.len(), page.records.iter().map(size).sum::<usize>());
        let look = match count {
            0 => Look::Nothing,
            _ if count >= A_FULL_PAGE || size >= A_LARGE_PAGE => Look::More,
            _ => Look::Something,
        };
        for item in page.records {
            tokio::task::consume_budget().await;
            self.take_in(&record, &mut state, &mut intake, item, boot).await?;
        }
        state.next = state.next.max(page.next);
        state.silences = if count == 0 { state.silences.saturating_add(1) } else { 0 };
        let silences = state.silences;
        for running in state.running.values_mut() {
            intake.let_go(running, rest, silences);
        }
        let mute = std::mem::take(&mut intake.mute);
        let changed = state.next != before
            || !intake.is_empty()
            || state.running.values().any(|running| running.changed);
        let look = if changed { look } else { Look::Nothing };
        if changed {
            self.commit(&record, &mut state, intake, Some((boot, next))).await?;
        }
        state.is_fresh = false;
        let ack = changed.then(|| JournalAck { upto: state.needed_from(), mute });
        *guard = Some(state);
        Ok((look, ack))
    }

    async fn take_in(
        &self,
        record: &impl Subject,
        state: &mut State,
        intake: &mut Intake<'_>,
        item: JournalRecord,
        boot: i64,
    ) -> Result<(), CollectError> {
        let JournalRecord { offset, time_ms, pid, what } = item;
        // Do not trust the sandbox's clock.
        let time_ms = time_ms.clamp(0, now_ms());
        // Read again: only the held-back part of it is not stored yet.
        let again = offset < state.next;
        match what {
            ProcessFact::Output { stream, position, data } => {
                let data = BASE64_STANDARD.decode(data).unwrap_or_default();
                let position = i64::try_from(position).map_err(|_| CollectError::Nonsense("no position"))?;
                if let Entry::Vacant(_) = state.running.entry(pid) {
                    if again {
                        return Ok(());
                    }
                    // agentd dropped its start record.
                    let new = new_execution(String::new(), None, None);
                    self.begin(
                        record,
                        state,
                        intake,
                        new,
                        Process { boot, pid, journal_offset: signed(offset) },
                        time_ms,
                    );
                }
                let Some(running) = state.running.get_mut(&pid) else { return Ok(()) };
                if running.row.process.is_none_or(|process| process.journal_offset <= signed(offset)) {
                    intake.output(running, stream, position, &data, offset, time_ms);
                }
            }
            _ if again => {}
            ProcessFact::Started { command, tag, cwd, user } => {
                let announced = match tag.as_deref().and_then(|tag| tag.parse().ok()) {
                    Some(id) => self.announced(record, id).await?,
                    None => None,
                };
                let patterns = intake.patterns;
                let new = announced.unwrap_or_else(|| {
                    let word = |text: Option<String>| text.map(|text| patterns.redact(&text));
                    new_execution(patterns.redact(&command), word(cwd), word(user))
                });
                let process = Process { boot, pid, journal_offset: signed(offset) };
                self.begin(record, state, intake, new, process, time_ms);
            }
            ProcessFact::Ended { exit_code, status, untold } => {
                if let Some(running) = state.running.remove(&pid) {
                    intake.end(running, exit_code, &status, untold, time_ms);
                }
            }
        }
        Ok(())
    }

    /// An execution that our own API announced and that has no process yet.
    async fn announced(
        &self,
        record: &impl Subject,
        id: ExecutionId,
    ) -> Result<Option<NewExecution>, StoreError> {
        if let Some(new) = record.follow().forget(id) {
            return Ok(Some(new));
        }
        // An earlier server may have announced it.
        let row = self.store.execution(&self.store.operator(), id).await?;
        let row = row.filter(|row| {
            row.sandbox == record.id()
                && row.state == ExecutionState::Running
                && row.process.is_none()
                && row.code.is_none()
        });
        Ok(row.map(|row| NewExecution {
            id,
            actor: row.actor,
            command: row.command,
            cwd: row.cwd,
            user: row.user,
            source: row.source,
            code: None,
        }))
    }

    fn begin(
        &self,
        record: &impl Subject,
        state: &mut State,
        intake: &mut Intake<'_>,
        new: NewExecution,
        process: Process,
        time_ms: i64,
    ) {
        state.seen += 1;
        if state.seen > MOST_EXECUTIONS || state.running.len() >= MOST_RUNNING {
            return;
        }
        if let Some(forgotten) = state.running.remove(&process.pid) {
            intake.lose(forgotten);
        }
        let mut row = ExecutionRow::new(new, record.project(), record.id(), record.agent(), time_ms);
        row.process = Some(process);
        let position = intake.batch.position();
        row.positions = Some((position, position));
        intake.batch.add(Kind::Started, row.id, process.pid.into(), time_ms, row.command.as_bytes());
        state.running.insert(process.pid, Running::new(row));
    }

    /// Syncs the batch, then records it, with the journal's position if it came from there.
    pub(super) async fn commit(
        &self,
        record: &impl Subject,
        state: &mut State,
        mut intake: Intake<'_>,
        journal: Option<(i64, i64)>,
    ) -> Result<(), CollectError> {
        intake.batch.close();
        let added: usize = intake.batch.additions.iter().map(|addition| addition.bytes.len()).sum();
        if added > 0 {
            self.files.append(record.project(), std::mem::take(&mut intake.batch.additions)).await?;
        }
        let end = intake.batch.position();
        let mut executions = intake.over;
        let reach = |row: &mut ExecutionRow| row.positions = row.positions.map(|(first, _)| (first, end));
        executions.iter_mut().for_each(reach);
        let over = executions.clone();
        for running in state.running.values_mut().filter(|running| running.changed) {
            running.changed = false;
            reach(&mut running.row);
            executions.push(running.row.clone());
        }
        for mut row in intake.changed {
            reach(&mut row);
            executions.push(row);
        }
        let collected = Collected {
            sandbox: record.id(),
            project: record.project(),
            journal: journal.map(|(boot, next)| (boot, next.max(signed(state.next)))),
            segments: std::mem::take(&mut intake.batch.segments),
            executions,
        };
        self.store.record_collected(collected).await?;
        over.iter().for_each(|row| self.telemetry.executed(row));
        self.tell(record.id(), std::mem::take(&mut intake.batch.records));
        state.segment = intake.batch.into_segment();
        state.on_disk += i64::try_from(added).unwrap_or(0);
        let most = i64::try_from(self.settings.most_per_sandbox.as_bytes()).unwrap_or(i64::MAX);
        if state.on_disk > most {
            state.on_disk = self.prune_oldest(record.id(), most).await?;
        }
        Ok(())
    }
}

/// The payload of a record in bytes.
fn size(record: &JournalRecord) -> usize {
    match &record.what {
        ProcessFact::Output { data, .. } => data.len(),
        ProcessFact::Started { .. } | ProcessFact::Ended { .. } => 0,
    }
}

fn new_execution(command: String, cwd: Option<String>, user: Option<String>) -> NewExecution {
    NewExecution {
        id: ExecutionId::generate(),
        actor: None,
        command,
        cwd,
        user,
        source: ExecutionSource::E2b,
        code: None,
    }
}

fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}
