//! The RPC service `process.Process`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coffer_wire::agentd::OutputStream;
use coffer_wire::envd::process::process_event::data_event::Output as Data;
use coffer_wire::envd::process::process_event::{DataEvent, Event, KeepAlive, StartEvent};
use coffer_wire::envd::process::process_input::Input as InputKind;
use coffer_wire::envd::process::process_selector::Selector;
use coffer_wire::envd::process::stream_input_request::Event as StreamInput;
use coffer_wire::envd::process::{
    CloseStdinRequest, CloseStdinResponse, ConnectRequest, ListRequest, ListResponse, Offsets, ProcessEvent,
    ProcessInput, ProcessSelector, SendInputRequest, SendInputResponse, SendSignalRequest,
    SendSignalResponse, Signal as WireSignal, StartRequest, StartResponse, StreamInputRequest,
    StreamInputResponse, UpdateRequest, UpdateResponse,
};
use http::HeaderMap;
use hyper::body::Incoming;
use rustix::process::Signal;
use tokio::time::Instant;

use super::output::{Chunk, Item, Reader};
use super::{Process, Processes, until};
use crate::agent::{Agent, caller};
use crate::connect::{self, Code, EventSink, MessageSource, RpcError};
use crate::headers;
use crate::reply::Reply;

/// How long an answer waits for a killed process to end.
const KILL_TIME: Duration = Duration::from_millis(500);

/// Handles one method; `None` for an unknown one.
pub(crate) async fn call(
    agent: &Arc<Agent>,
    method: &str,
    headers: &HeaderMap,
    body: Incoming,
) -> Option<Reply> {
    let processes = &agent.processes;
    let reply = match method {
        "List" => {
            connect::unary(headers, body, |_: ListRequest| async {
                Ok(ListResponse { processes: processes.list() })
            })
            .await
        }
        "Start" => start(agent, headers, body).await,
        "Connect" => attach(processes, headers, body).await,
        "Update" => {
            connect::unary(headers, body, |request: UpdateRequest| async move {
                let process = processes.running(request.process)?;
                if let Some(pty) = &request.pty {
                    process.resize(pty)?;
                }
                Ok(UpdateResponse {})
            })
            .await
        }
        "SendInput" => {
            connect::unary(headers, body, |request: SendInputRequest| async move {
                let process = processes.running(request.process)?;
                feed(&process, request.input).await?;
                Ok(SendInputResponse {})
            })
            .await
        }
        "StreamInput" => {
            connect::client_stream(headers, body, |source| stream_input(processes, source)).await
        }
        "SendSignal" => {
            connect::unary(headers, body, |request: SendSignalRequest| async move {
                let process = processes.running(request.process)?;
                let signal = signal(request.signal)?;
                process.signal(signal)?;
                if signal == Signal::KILL {
                    // Wait for the exit, so that the caller does not find the killed process.
                    let _slow = tokio::time::timeout(KILL_TIME, process.exit()).await;
                }
                Ok(SendSignalResponse {})
            })
            .await
        }
        "CloseStdin" => {
            connect::unary(headers, body, |request: CloseStdinRequest| async move {
                processes.running(request.process)?.close_stdin().await?;
                Ok(CloseStdinResponse {})
            })
            .await
        }
        _ => return None,
    };
    Some(reply)
}

impl Processes {
    /// The process that a client names, running or recently ended.
    fn find(&self, selector: Option<ProcessSelector>) -> Result<Arc<Process>, RpcError> {
        let known = self.lock();
        match selector.and_then(|selector| selector.selector) {
            Some(Selector::Pid(pid)) => known
                .by_pid
                .get(&pid)
                .map(Arc::clone)
                .ok_or_else(|| RpcError::not_found(format!("process with pid {pid} not found"))),
            Some(Selector::Tag(tag)) => known
                .by_pid
                .values()
                .filter(|process| process.tag.as_deref() == Some(&tag))
                // A tag may be used again; running processes come before ended ones.
                .min_by_key(|process| process.output.has_ended())
                .map(Arc::clone)
                .ok_or_else(|| RpcError::not_found(format!("process with tag {tag} not found"))),
            None => Err(RpcError::new(Code::Unimplemented, "select the process by pid or by tag")),
        }
    }

    fn running(&self, selector: Option<ProcessSelector>) -> Result<Arc<Process>, RpcError> {
        let process = self.find(selector)?;
        if process.exited.borrow().is_some() {
            return Err(RpcError::not_found(format!("process with pid {} not found", process.pid)));
        }
        Ok(process)
    }
}

impl Process {
    /// A reader for a client, with or without its offsets.
    fn read(&self, from: Option<Offsets>, offsets: bool) -> Result<Reader, RpcError> {
        let reader = self.output.reader(from);
        let reader = reader.map_err(|error| RpcError::new(Code::OutOfRange, error.to_string()))?;
        Ok(if offsets { reader.holding_place() } else { reader })
    }
}

async fn start(agent: &Arc<Agent>, headers: &HeaderMap, body: Incoming) -> Reply {
    let init = agent.init();
    let account = caller(headers, &init);
    let lifetime = headers::timeout(headers);
    let keepalive = headers::keepalive(headers);
    let processes = Arc::clone(&agent.processes);
    connect::server_stream(headers, body, |request: StartRequest, sink| {
        // Start it here and not in the stream's own task, which a client could cancel.
        let started = account.and_then(|account| {
            let lifetime = lifetime?;
            let offsets = request.offsets;
            let process = processes.start(request, &account, &init, lifetime)?;
            let reader = process.read(None, offsets)?;
            Ok((process, reader, lifetime, offsets))
        });
        async move {
            let (process, reader, lifetime, offsets) = started?;
            let follow = Follow {
                sink,
                keepalive,
                deadline: lifetime.map(|lifetime| Instant::now() + lifetime),
                owner: true,
                offsets,
            };
            follow.run(&process, reader).await
        }
    })
    .await
}

async fn attach(processes: &Processes, headers: &HeaderMap, body: Incoming) -> Reply {
    let timeout = headers::timeout(headers);
    let keepalive = headers::keepalive(headers);
    connect::server_stream(headers, body, |request: ConnectRequest, sink| {
        let offsets = request.offsets || request.resume_from.is_some();
        let attached = processes.find(request.process).and_then(|process| {
            let reader = process.read(request.resume_from, offsets)?;
            Ok((process, reader))
        });
        async move {
            let (process, reader) = attached?;
            let follow = Follow {
                sink,
                keepalive,
                deadline: timeout?.map(|timeout| Instant::now() + timeout),
                owner: false,
                offsets,
            };
            follow.run(&process, reader).await
        }
    })
    .await
}

/// One client that follows one process.
struct Follow {
    sink: EventSink,
    keepalive: Duration,
    deadline: Option<Instant>,
    /// Whether this client's deadline is the process's own.
    owner: bool,
    /// Whether this client asked for offsets.
    offsets: bool,
}

impl Follow {
    async fn run(self, process: &Process, mut reader: Reader) -> Result<(), RpcError> {
        let offsets = self.offsets.then(|| reader.from());
        if self.event(Event::Start(StartEvent { pid: process.pid, offsets })).await {
            return Ok(());
        }
        loop {
            let event = tokio::select! {
                biased;
                () = until(self.deadline) => return Err(deadline_exceeded()),
                () = self.sink.gone() => return Ok(()),
                item = reader.next() => match item {
                    Item::Data(Chunk { stream, offset, data }) => Event::Data(DataEvent {
                        output: Some(match stream {
                            OutputStream::Stdout => Data::Stdout(data),
                            OutputStream::Stderr => Data::Stderr(data),
                            OutputStream::Pty => Data::Pty(data),
                        }),
                        offset: self.offsets.then_some(offset),
                    }),
                    // The client that set the timeout gets the timeout, not the kill.
                    Item::End(_) if self.owner && process.timed_out.load(Ordering::Relaxed) => {
                        return Err(deadline_exceeded());
                    }
                    Item::End(end) => {
                        let _gone = self.event(Event::End(end)).await;
                        return Ok(());
                    }
                    Item::Lost => {
                        return Err(RpcError::new(
                            Code::DataLoss,
                            "output was not read for too long and is lost",
                        ));
                    }
                },
                () = tokio::time::sleep(self.keepalive) => Event::Keepalive(KeepAlive {}),
            };
            if self.event(event).await {
                return Ok(());
            }
        }
    }

    /// Sends an event; true if the client is gone.
    async fn event(&self, event: Event) -> bool {
        let message = StartResponse { event: Some(ProcessEvent { event: Some(event) }) };
        self.sink.send(&message).await.is_err()
    }
}

fn deadline_exceeded() -> RpcError {
    RpcError::new(Code::DeadlineExceeded, "context deadline exceeded")
}

async fn stream_input(
    processes: &Processes,
    mut source: MessageSource<StreamInputRequest>,
) -> Result<StreamInputResponse, RpcError> {
    let mut process = None;
    while let Some(request) = source.next().await? {
        match request.event {
            Some(StreamInput::Start(start)) => {
                process = Some(processes.running(start.process)?);
            }
            Some(StreamInput::Data(data)) => {
                let process = process
                    .as_ref()
                    .ok_or_else(|| RpcError::invalid("received data before the start event"))?;
                feed(process, data.input).await?;
            }
            Some(StreamInput::Keepalive(_)) => {}
            None => {
                return Err(RpcError::new(Code::Unimplemented, "the event has no type"));
            }
        }
    }
    Ok(StreamInputResponse {})
}

async fn feed(process: &Process, input: Option<ProcessInput>) -> Result<(), RpcError> {
    match input.and_then(|input| input.input) {
        Some(InputKind::Stdin(data)) => process.write_stdin(&data).await,
        Some(InputKind::Pty(data)) => process.write_terminal(&data).await,
        None => Err(RpcError::new(Code::Unimplemented, "input must be `stdin` or `pty`")),
    }
}

/// E2B's clients send the first two; SSH clients send more.
fn signal(number: i32) -> Result<Signal, RpcError> {
    const MORE: [Signal; 8] = [
        Signal::HUP,
        Signal::INT,
        Signal::QUIT,
        Signal::ABORT,
        Signal::USR1,
        Signal::USR2,
        Signal::PIPE,
        Signal::ALARM,
    ];
    match WireSignal::try_from(number) {
        Ok(WireSignal::Sigterm) => Ok(Signal::TERM),
        Ok(WireSignal::Sigkill) => Ok(Signal::KILL),
        Ok(WireSignal::Unspecified) | Err(_) => {
            let found = MORE.into_iter().find(|signal| signal.as_raw() == number);
            found.ok_or_else(|| RpcError::new(Code::Unimplemented, format!("invalid signal: {number}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_ssh_are_sent_and_those_that_stop_or_fake_a_fault_are_not() {
        for (number, expected) in [(1, Signal::HUP), (2, Signal::INT), (9, Signal::KILL), (15, Signal::TERM)]
        {
            assert_eq!(signal(number).ok(), Some(expected));
        }
        for number in [-1, 0, 11, 19, 64, i32::MAX] {
            assert!(signal(number).is_err(), "{number}");
        }
    }
}
