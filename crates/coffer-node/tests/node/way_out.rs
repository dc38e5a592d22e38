//! An egress in a separate process, and the world that it reaches: one server of the test.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use coffer_core::network::{HostName, Walls};
use coffer_egress::{
    Dialer, Egress, Family, Found, LookupError, Redirected, Resolver, Seams, Settings, control,
};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener};

/// The address of `example.com` in this world.
pub(crate) const EXAMPLE: &str = "93.184.216.34";
/// An address of the host that looks public.
pub(crate) const HOST: &str = "198.41.0.4";

/// Every public address leads to the one server, which first reads the requested address.
#[derive(Debug)]
struct World(SocketAddr);

#[async_trait]
impl Dialer for World {
    async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.0).await?;
        stream.write_all(format!("{address}\n").as_bytes()).await?;
        Ok(stream)
    }
}

#[async_trait]
impl Resolver for World {
    async fn addresses(&self, name: &HostName, family: Family) -> Result<Found, LookupError> {
        let addresses: &[&str] = match (name.as_str(), family) {
            ("example.com", Family::V4) => &[EXAMPLE],
            ("inner.example.com", Family::V4) => &["10.0.0.1"],
            ("example.com" | "inner.example.com", Family::V6) => &[],
            _ => return Err(LookupError::NoSuchName),
        };
        let addresses = addresses.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect();
        Ok(Found { addresses, ttl: Duration::from_secs(60) })
    }
}

/// The part of an egress that runs until it is killed.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let [socket, world] = arguments else { return ExitCode::FAILURE };
    let world = Arc::new(World(world.parse().unwrap()));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let seams = Seams { resolver: world.clone(), dialer: world, original: Arc::new(Redirected) };
        let walls = Walls::new([HOST.parse().unwrap()]);
        let egress = Arc::new(Egress::new(Settings::default(), seams, walls));
        let _ = std::fs::remove_file(socket);
        control::serve(egress, UnixListener::bind(socket).unwrap()).await;
    });
    ExitCode::SUCCESS
}

/// The server that stands for all others: it greets, and then echoes.
#[derive(Debug)]
pub(crate) struct Internet {
    pub(crate) address: SocketAddr,
    reached: Arc<Mutex<Vec<String>>>,
}

impl Internet {
    pub(crate) async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reached = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&reached);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(greet(stream, Arc::clone(&seen)));
            }
        });
        Self { address, reached }
    }

    /// Where connections went, as reported by egress.
    pub(crate) fn reached(&self) -> Vec<String> {
        self.reached.lock().unwrap().clone()
    }

    /// Starts an egress for the node of that runtime directory.
    pub(crate) fn start_egress(&self, run_dir: &Path) -> EgressProcess {
        let process = Command::new("/proc/self/exe")
            .arg("egress")
            .arg(run_dir.join("egress.sock"))
            .arg(self.address.to_string())
            .spawn()
            .unwrap();
        EgressProcess(process)
    }
}

async fn greet(stream: TcpStream, reached: Arc<Mutex<Vec<String>>>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    reached.lock().unwrap().push(line.trim().to_string());
    stream.write_all(format!("this is {line}").as_bytes()).await?;
    loop {
        let said = stream.fill_buf().await?.to_vec();
        if said.is_empty() {
            return Ok(());
        }
        stream.write_all(&said).await?;
        stream.consume(said.len());
    }
}

pub(crate) struct EgressProcess(Child);

impl EgressProcess {
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Descriptors that it has open: listeners keep namespaces alive.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).unwrap().count()
    }
}

impl Drop for EgressProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
