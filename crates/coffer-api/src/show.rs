//! Sandboxes as E2B shows them.

use coffer_core::{Kept, OnTimeout, SandboxState};
use coffer_store::SandboxRow;
use coffer_wire::e2b::{self, Lifecycle, ListedSandbox, PauseMode, Sandbox, SandboxDetail};

use coffer_core::clock::rfc3339;

/// E2B's name for the place where a sandbox runs; clients do not use it but require it.
const CLIENT_ID: &str = "coffer";

/// The answer of create, connect and resume.
pub(super) fn sandbox(row: &SandboxRow, domain: Option<&str>) -> Sandbox {
    Sandbox {
        template_id: row.template_id.clone(),
        sandbox_id: row.id.to_string(),
        client_id: CLIENT_ID.to_string(),
        envd_version: row.envd_version.clone(),
        alias: row.alias.clone(),
        envd_access_token: row.access_token.as_ref().map(|token| token.reveal().to_string()),
        traffic_access_token: row.traffic_token.as_ref().map(|token| token.reveal().to_string()),
        domain: domain.map(String::from),
    }
}

/// An entry of a list; `None` for states that E2B does not show.
pub(super) fn listed(row: &SandboxRow) -> Option<ListedSandbox> {
    let state = match row.state {
        SandboxState::Running => e2b::State::Running,
        SandboxState::Paused { .. } => e2b::State::Paused,
        SandboxState::Creating | SandboxState::Terminated { .. } | SandboxState::Error { .. } => return None,
    };
    Some(ListedSandbox {
        template_id: row.template_id.clone(),
        sandbox_id: row.id.to_string(),
        client_id: CLIENT_ID.to_string(),
        started_at: rfc3339(row.lifetime.started_ms),
        end_at: rfc3339(row.lifetime.deadline_ms),
        cpu_count: row.limits.cpu_count,
        memory_mb: row.limits.memory_mib,
        disk_size_mb: row.limits.disk_mib,
        state,
        envd_version: row.envd_version.clone(),
        alias: row.alias.clone(),
        metadata: row.metadata.clone(),
        volume_mounts: row.volumes.iter().map(mount).collect(),
    })
}

fn mount(mount: &coffer_store::VolumeMount) -> e2b::VolumeMount {
    e2b::VolumeMount { name: mount.name.to_string(), path: mount.path.to_string() }
}

/// Everything about one sandbox.
pub(super) fn detail(row: &SandboxRow, domain: Option<&str>) -> Option<SandboxDetail> {
    let pause_mode = match row.state {
        SandboxState::Paused { kept: Kept::MemoryAndFiles } => Some(PauseMode::Full),
        SandboxState::Paused { kept: Kept::FilesOnly } => Some(PauseMode::Filesystem),
        _ => None,
    };
    Some(SandboxDetail {
        listed: listed(row)?,
        envd_access_token: row.access_token.as_ref().map(|token| token.reveal().to_string()),
        allow_internet_access: row.allow_internet_access,
        domain: domain.map(String::from),
        network: row.network.shown.clone(),
        lifecycle: Lifecycle {
            auto_resume: row.auto_resume,
            on_timeout: match row.lifetime.on_timeout {
                OnTimeout::Destroy => e2b::OnTimeout::Kill,
                OnTimeout::Pause | OnTimeout::PauseFilesOnly => e2b::OnTimeout::Pause,
            },
        },
        pause_mode,
    })
}
