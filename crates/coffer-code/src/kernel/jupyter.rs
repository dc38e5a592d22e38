//! A Jupyter kernel: three sockets, and which message ends a call.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rand::TryRngCore as _;
use rand::rngs::OsRng;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::Instant;
use uuid::Uuid;
use zeromq::{DealerSocket, Socket as _, SocketRecv as _, SocketSend as _, SubSocket};

use super::call::Call;
use super::ending::{Ended, Stopping, abandoned};
use super::message::Signer;
use crate::language::{Interrupt, Language};
use crate::place::Place;
use crate::process::Process;
use crate::stream::Sink;

/// Between two looks whether a kernel listens, and two questions whether it hears us.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// After its reply a kernel says that it is idle. If that message was lost, the call ends all the same.
const LATE: Duration = Duration::from_secs(3);
/// How long code may ignore interrupts. Deno cannot interrupt code that awaits.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_MESSAGE: Duration = Duration::from_secs(3);

pub(super) struct Jupyter {
    shell: DealerSocket,
    control: DealerSocket,
    iopub: SubSocket,
    signer: Signer,
    interrupt: Interrupt,
    process: Arc<Process>,
    endpoints: Endpoints,
    files: Files,
}

impl std::fmt::Debug for Jupyter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Jupyter").field("files", &self.files).finish_non_exhaustive()
    }
}

/// The connection file and the sockets' files, which go with the kernel.
#[derive(Debug)]
struct Files {
    connection: PathBuf,
    sockets: Vec<PathBuf>,
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in self.sockets.iter().chain([&self.connection]) {
            // The kernel may have removed it.
            let _gone = std::fs::remove_file(path);
        }
    }
}

/// Where a kernel listens, in the order shell, iopub, control, stdin, heartbeat.
struct Endpoints {
    transport: &'static str,
    address: String,
    ports: [u16; 5],
}

impl Endpoints {
    fn choose(language: Language, base: &Path) -> io::Result<Self> {
        if language.has_unix_sockets() {
            return Ok(Self {
                transport: "ipc",
                address: base.display().to_string(),
                ports: [1, 2, 3, 4, 5],
            });
        }
        // All are held until all are chosen.
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        }
        let mut ports = [0; 5];
        for (port, listener) in ports.iter_mut().zip(&held) {
            *port = listener.local_addr()?.port();
        }
        Ok(Self { transport: "tcp", address: Ipv4Addr::LOCALHOST.to_string(), ports })
    }

    fn url(&self, number: usize) -> String {
        let separator = if self.transport == "ipc" { '-' } else { ':' };
        format!("{}://{}{separator}{}", self.transport, self.address, self.ports[number])
    }

    fn files(&self) -> Vec<PathBuf> {
        let ports = if self.transport == "ipc" { &self.ports[..] } else { &[] };
        ports.iter().map(|port| PathBuf::from(format!("{}-{port}", self.address))).collect()
    }

    async fn is_open(&self, number: usize) -> bool {
        if self.transport == "ipc" {
            let path = format!("{}-{}", self.address, self.ports[number]);
            tokio::net::UnixStream::connect(path).await.is_ok()
        } else {
            tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[number])).await.is_ok()
        }
    }
}

impl Jupyter {
    pub(super) async fn start(
        language: Language,
        mut command: Command,
        place: &Place,
    ) -> io::Result<(Self, Arc<Process>)> {
        let id = Uuid::new_v4().simple().to_string();
        let base = place.run.join(&id[..12]);
        let endpoints = Endpoints::choose(language, &base)?;
        let key = new_key()?;
        let files = Files { connection: base.with_extension("json"), sockets: endpoints.files() };
        write_connection(&files.connection, &endpoints, &key)?;
        command.args(language.arguments(&files.connection));
        let (process, _) = Process::start(&mut command)?;
        let guard = KillOnDrop(Some(Arc::clone(&process)));
        let connecting = async {
            while !endpoints.is_open(0).await || !endpoints.is_open(1).await {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            let mut shell = DealerSocket::new();
            let mut control = DealerSocket::new();
            let mut iopub = SubSocket::new();
            iopub.subscribe("").await.map_err(io::Error::other)?;
            iopub.connect(&endpoints.url(1)).await.map_err(io::Error::other)?;
            shell.connect(&endpoints.url(0)).await.map_err(io::Error::other)?;
            control.connect(&endpoints.url(2)).await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((shell, control, iopub))
        };
        let (shell, control, iopub) = tokio::select! {
            connected = connecting => connected?,
            () = process.ended() => return Err(io::Error::other("its kernel ended while it started")),
        };
        let signer = Signer::new(&key);
        let mut jupyter = Self {
            shell,
            control,
            iopub,
            signer,
            interrupt: language.interrupt(),
            process: Arc::clone(&process),
            endpoints,
            files,
        };
        jupyter.greet().await?;
        guard.disarm();
        Ok((jupyter, process))
    }

    /// Asks until it answers on both sockets: a subscription takes effect some time after the connection.
    async fn greet(&mut self) -> io::Result<()> {
        let (mut replied, mut heard) = (false, false);
        while !(replied && heard) {
            if self.process.has_ended() {
                return Err(io::Error::other("its kernel ended while it started"));
            }
            let (id, request) = self.signer.request("kernel_info_request", &json!({}));
            self.shell.send(request).await.map_err(io::Error::other)?;
            let until = Instant::now() + ASK_AGAIN;
            while !(replied && heard) {
                tokio::select! {
                    message = self.shell.recv() => replied |= self.is_answer(message, &id),
                    message = self.iopub.recv() => heard |= self.is_answer(message, &id),
                    () = self.process.ended() => break,
                    () = tokio::time::sleep_until(until) => break,
                }
            }
        }
        Ok(())
    }

    fn is_answer(&mut self, message: zeromq::ZmqResult<zeromq::ZmqMessage>, id: &str) -> bool {
        message.ok().and_then(|message| self.signer.read(message)).is_some_and(|message| message.parent == id)
    }

    /// Runs code of ours, and then changes the kernel's key; whether it has the new one now. Nothing if it died.
    pub(super) async fn change_key(&mut self, language: Language, code: &str) -> Option<bool> {
        let key = new_key().ok()?;
        let change = language.key_change(&key);
        if change.is_some() {
            self.signer.expect(&key);
        }
        let code = format!("{code}{}", change.as_deref().unwrap_or_default());
        if !code.is_empty() && self.run(&code, None).await == Ended::Died {
            return None;
        }
        let changed = change.is_some() && self.signer.has_changed();
        if changed {
            let draft = self.files.connection.with_extension("new");
            // Only people inside read it, and only to connect to a kernel that runs.
            let _unwritten = write_connection(&draft, &self.endpoints, &key)
                .and_then(|()| std::fs::rename(&draft, &self.files.connection));
        }
        Some(changed)
    }

    pub(super) async fn run(&mut self, code: &str, sink: Option<&Sink>) -> Ended {
        let silent = sink.is_none();
        let request = json!({
            "code": code, "silent": silent, "store_history": !silent, "user_expressions": {}, "allow_stdin": false,
            "stop_on_error": !silent,
        });
        let (id, request) = self.signer.request("execute_request", &request);
        if self.shell.send(request).await.is_err() {
            self.process.kill();
            return Ended::Died;
        }
        let mut call = Call::new(id, sink);
        let mut stopping = None;
        let mut late = Instant::now();
        while !call.is_over() {
            tokio::select! {
                biased;
                message = self.iopub.recv() => match message {
                    Ok(message) => {
                        late = Instant::now() + LATE;
                        if let Some(message) = self.signer.read(message) {
                            call.take(&message);
                        }
                    }
                    Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
                },
                message = self.shell.recv() => match message {
                    Ok(message) => {
                        late = Instant::now() + LATE;
                        if let Some(message) = self.signer.read(message) {
                            call.take_reply(&message);
                        }
                    }
                    Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
                },
                () = self.process.ended() => return Ended::Died,
                () = abandoned(sink), if stopping.is_none() => {
                    stopping = Some(Stopping::new(self.patience()));
                    self.interrupt().await;
                }
                again = Stopping::next(&mut stopping) => {
                    if !again {
                        self.process.kill();
                        return Ended::Died;
                    }
                    self.interrupt().await;
                }
                () = tokio::time::sleep_until(late), if call.has_reply() => break,
            }
        }
        if call.leaves() {
            self.process.kill();
            self.process.ended().await;
            return Ended::Died;
        }
        call.end();
        Ended::Done
    }

    fn patience(&self) -> Duration {
        match self.interrupt {
            Interrupt::Signal => PATIENCE,
            Interrupt::Message => PATIENCE_MESSAGE,
        }
    }

    async fn interrupt(&mut self) {
        match self.interrupt {
            Interrupt::Signal => self.process.signal(Signal::INT),
            Interrupt::Message => {
                let (_, request) = self.signer.request("interrupt_request", &json!({}));
                // A kernel that does not take it is killed soon.
                let _sent = self.control.send(request).await;
            }
        }
    }
}

/// Kills a kernel whose start was given up.
struct KillOnDrop(Option<Arc<Process>>);

impl KillOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            process.kill();
        }
    }
}

/// From the system. A generator of our own could be a copy of another one's, if we are in a copy of a memory.
fn new_key() -> io::Result<String> {
    let mut key = [0; 32];
    OsRng.try_fill_bytes(&mut key).map_err(io::Error::other)?;
    Ok(hex::encode(key))
}

fn write_connection(path: &Path, endpoints: &Endpoints, key: &str) -> io::Result<()> {
    let [shell, iopub, control, stdin, heartbeat] = endpoints.ports;
    let connection = json!({
        "transport": endpoints.transport, "ip": endpoints.address, "shell_port": shell, "iopub_port": iopub,
        "control_port": control, "stdin_port": stdin, "hb_port": heartbeat, "key": key,
        "signature_scheme": "hmac-sha256", "kernel_name": "",
    });
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(serde_json::to_writer(file, &connection)?)
}
