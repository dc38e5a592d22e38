//! Creates, uses and destroys one sandbox at the start, so that the server reports "ready" only if sandboxes
//! work.

use std::time::{Duration, Instant};

use coffer_core::network::Policy;
use coffer_core::{Limits, SandboxId};
use coffer_engine::{Engine, EngineError};
use coffer_wire::agentd::Init;
use coffer_wire::envd::process::process_event::Event;
use coffer_wire::envd::process::process_event::data_event::Output;
use coffer_wire::envd::process::{ProcessConfig, StartRequest};
use coffer_wire::node::CreateSandbox;
use tokio_util::sync::CancellationToken;

use coffer_guest as agent;
use coffer_guest::Guest;
use coffer_guest::{Activity, Spare, Target};

/// The template that exists on every host: `host` is used instead until it is built.
const TEMPLATE: &str = "base";
/// Enough for a shell on any host.
const LIMITS: Limits = Limits { cpu_count: 1, memory_mib: 128, disk_mib: 64, max_processes: 64 };
/// Writes to the upper layer, reads a lower one, runs as the sandbox's root.
const SCRIPT: &str = "set -e; echo ready >/var/tmp/preflight; test -x /bin/sh; cat /var/tmp/preflight; id -u";
const EXPECTED: &str = "ready\n0\n";
/// Long, for hosts that emulate their processor; a real one takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Ids of preflight sandboxes have a timestamp of 1970, so that remains of a killed one can be recognised.
const PREFIX: &str = "0000000000";

/// Why the first sandbox did not work.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    #[error("no sandbox could be created: {0}")]
    Create(#[source] EngineError),
    #[error("a sandbox was created and could not be used: {0}")]
    Use(String),
    #[error("a sandbox was used and could not be destroyed: {0}")]
    Destroy(#[source] EngineError),
}

impl PreflightError {
    /// Whether the host may succeed later, by itself or with more room.
    pub fn may_pass(&self) -> bool {
        let (Self::Create(error) | Self::Destroy(error)) = self else { return false };
        error.is_away() || matches!(error, EngineError::NoCapacity(_))
    }
}

/// Creates, uses and destroys a sandbox; returns how long that took. First removes remains of an earlier
/// preflight that was killed.
pub async fn preflight(engine: &dyn Engine) -> Result<Duration, PreflightError> {
    for left in engine.list().await.map_err(PreflightError::Create)? {
        if is_preflight(left.sandbox) {
            engine.destroy(left.sandbox).await.map_err(PreflightError::Destroy)?;
        }
    }
    let started = Instant::now();
    let sandbox = new_id();
    let spec = CreateSandbox {
        sandbox,
        template: TEMPLATE.into(),
        hostname: "preflight".into(),
        limits: LIMITS,
        network: Policy::default(),
        snapshot: None,
        from_template: false,
        template_owner: None,
        memory: false,
        volumes: Vec::new(),
    };
    let used = match engine.create(&spec).await {
        Ok(placement) => {
            let used = tokio::time::timeout(PATIENCE, run(sandbox, placement.socket)).await;
            used.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
        }
        Err(error) => {
            // The engine may have created part of it.
            let _ = engine.destroy(sandbox).await;
            return Err(PreflightError::Create(error));
        }
    };
    let destroyed = engine.destroy(sandbox).await;
    used.map_err(PreflightError::Use)?;
    destroyed.map_err(PreflightError::Destroy)?;
    Ok(started.elapsed())
}

fn new_id() -> SandboxId {
    let random = SandboxId::generate().to_string();
    format!("{PREFIX}{}", &random[PREFIX.len()..]).parse().expect("the letters of another id")
}

/// Whether a sandbox belongs to a preflight, not to a tenant.
pub fn is_preflight(sandbox: SandboxId) -> bool {
    sandbox.to_string().starts_with(PREFIX)
}

/// Runs the script as a client would.
async fn run(sandbox: SandboxId, socket: std::path::PathBuf) -> Result<(), String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    agent::init(&socket, &Init::default(), PATIENCE)
        .await
        .map_err(|error| failed("agentd does not answer", &error))?;
    let target = Target {
        sandbox,
        project: coffer_core::ProjectId::generate(),
        socket,
        spare: Spare::default(),
        traffic_token: None,
        mask_host: None,
        https_ports: Vec::new(),
        activity: Activity::default(),
        gone: CancellationToken::new(),
    };
    let start = StartRequest {
        process: Some(ProcessConfig {
            cmd: "/bin/sh".into(),
            args: vec!["-c".into(), SCRIPT.into()],
            ..ProcessConfig::default()
        }),
        stdin: Some(false),
        ..StartRequest::default()
    };
    let mut events = Guest::new(target, None)
        .start(Some("root"), &start, Some(PATIENCE))
        .await
        .map_err(|error| failed("a command could not be started", &error))?;
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    while let Some(event) = events.next().await.map_err(|error| failed("a command was cut off", &error))? {
        match event {
            Event::Data(data) => match data.output {
                Some(Output::Stdout(bytes)) => said.extend_from_slice(&bytes),
                Some(Output::Stderr(bytes)) => complained.extend_from_slice(&bytes),
                Some(Output::Pty(_)) | None => {}
            },
            Event::End(end) if end.exit_code == 0 && said == EXPECTED.as_bytes() => return Ok(()),
            Event::End(end) => {
                let (said, complained) =
                    (String::from_utf8_lossy(&said), String::from_utf8_lossy(&complained));
                let text = format!("exit code {}, output {said:?}, errors {complained:?}", end.exit_code);
                return Err(failed("a command failed", &text));
            }
            Event::Start(_) | Event::Keepalive(_) => {}
        }
    }
    Err("a command ended without an exit code".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preflights_are_told_from_sandboxes() {
        assert!(is_preflight(new_id()) && new_id() != new_id());
        assert!(!is_preflight(SandboxId::generate()));
    }
}
