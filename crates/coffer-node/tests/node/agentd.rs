//! The real agentd as process 1, where it has been built.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use coffer_engine::Engine as _;

use crate::harness::{Home, small};

crate::tests![the_real_agentd_answers];

/// The program that sandboxes run, if `scripts/build-agentd` was run.
pub(crate) fn built() -> Option<&'static [u8]> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/agentd/coffer-agentd");
    match std::fs::read(&built) {
        Ok(agentd) => Some(agentd.leak()),
        Err(_) => {
            println!("SKIPPED: agentd is not built at `{}`", built.display());
            None
        }
    }
}

async fn the_real_agentd_answers() {
    let Some(agentd) = built() else { return };
    let home = Home::new();
    let node = home.start_with(agentd).await;
    let first = node.create(small()).await;
    node.engine.destroy(first.id).await.unwrap();
    let mut times = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        let sandbox = node.create(small()).await;
        let placed = started.elapsed();
        let socket = sandbox.placement.socket.clone();
        let answer = tokio::task::spawn_blocking(move || health(&socket)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
        times.push((placed, started.elapsed()));
        node.engine.destroy(sandbox.id).await.unwrap();
    }
    times.sort();
    let (placed, answered) = times[times.len() / 2];
    println!("create to placed {placed:?}, to agentd's first answer {answered:?} (medians)");
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

fn health(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
