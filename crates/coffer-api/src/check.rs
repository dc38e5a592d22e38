//! Checks a create request and turns it into the fleet's spec. Pure.

use std::collections::BTreeMap;

use coffer_core::network::NetworkSettings;
use coffer_core::{
    BadMount, Code, LifetimePolicy, MountPath, OnTimeout, SandboxPurpose, SizeWish, TemplateRef, check_mounts,
};
use coffer_store::Bounds;
use coffer_wire::e2b::{NewSandbox, VolumeMount};
use http::HeaderMap;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::error::ApiError;
use coffer_fleet::network;
use coffer_fleet::{CreateSpec, FleetError, MountWish};

const MOST_METADATA: usize = 64;
const LONGEST_METADATA: usize = 64 * 1024;
const MOST_ENV_VARS: usize = 1024;
/// The kernel passes no longer string to a new process.
const LONGEST_ENV_VAR: usize = 128 * 1024 - 1;
const LONGEST_ENV: usize = 512 * 1024;

/// The generation of the create call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Generation {
    /// `POST /sandboxes`: secured only on request.
    First,
    /// `POST /v2/sandboxes`: always secured.
    Second,
}

impl Generation {
    /// The timeout of a request that names none, in seconds.
    pub(super) const fn default_timeout_s(self) -> i64 {
        match self {
            Self::First => 15,
            Self::Second => 300,
        }
    }
}

/// Checks `new`; the error names the first thing that is wrong.
pub(super) fn create(
    new: NewSandbox,
    generation: Generation,
    policy: &LifetimePolicy,
    idempotency_key: Option<String>,
    actor: &str,
) -> Result<CreateSpec, ApiError> {
    let idempotency = idempotency_key.map(|key| idempotency(key, actor, &new)).transpose()?;
    let template =
        new.template_id.parse::<TemplateRef>().map_err(|error| ApiError::bad_request(error.to_string()))?;
    let timeout_s = new.timeout.unwrap_or(generation.default_timeout_s());
    let timeout_ms = policy.check(timeout_s).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let metadata = new.metadata.unwrap_or_default();
    self::metadata(&metadata)?;
    let env_vars = new.env_vars.unwrap_or_default();
    env(&env_vars)?;
    let secure = match generation {
        Generation::First => new.secure.unwrap_or(false),
        Generation::Second => true,
    };
    if let Some(network) = &new.network {
        network::check(network).map_err(|bad| ApiError::bad_request(bad.to_string()))?;
        if network.allow_public_traffic == Some(false) && !secure {
            return Err(ApiError::bad_request("allowPublicTraffic false needs a secured sandbox"));
        }
    }
    let network = NetworkSettings::from_e2b(new.network, new.allow_internet_access);
    let network = network.map_err(|error| ApiError::network(&error))?;
    let auto_pause = new.auto_pause.unwrap_or(false);
    let keeps_memory = new.auto_pause_memory.unwrap_or(true);
    let auto_resume = new.auto_resume.is_some_and(|auto_resume| auto_resume.enabled);
    let on_timeout = match (auto_pause, keeps_memory) {
        (false, true) => OnTimeout::Destroy,
        (false, false) => return Err(ApiError::bad_request("autoPauseMemory false needs autoPause")),
        (true, true) => OnTimeout::Pause,
        (true, false) if auto_resume => {
            let message =
                "autoPauseMemory false cannot be combined with autoResume: only a connect boots from files";
            return Err(ApiError::bad_request(message));
        }
        (true, false) => OnTimeout::PauseFilesOnly,
    };
    let volumes = mounts(new.volume_mounts.unwrap_or_default())?;
    if new.iam.is_some_and(|iam| !iam.tokens.is_empty()) {
        return Err(ApiError::of(
            Code::NotSupported,
            "this server does not support workload identity tokens (iam); use a secret in network.rules instead",
        ));
    }
    Ok(CreateSpec {
        agent: None,
        task: None,
        template,
        metadata,
        env_vars,
        secrets: BTreeMap::new(),
        timeout_ms,
        on_timeout,
        auto_resume,
        secure,
        network,
        allow_internet_access: new.allow_internet_access,
        bounds: Bounds::default(),
        size: SizeWish::default(),
        base: None,
        memory: None,
        purpose: SandboxPurpose::Use,
        volumes,
        idempotency,
    })
}

/// The key with a digest of the whole request.
pub(super) fn idempotency(
    key: String,
    actor: &str,
    new: &impl Serialize,
) -> Result<(String, String), ApiError> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if key.is_empty() || key.len() > 255 || !key.bytes().all(fits) {
        let message = "Idempotency-Key must be 1 to 255 lower-case letters, digits and dashes";
        return Err(ApiError::bad_request(message));
    }
    let canonical = serde_json::to_vec(new).expect("plain data");
    let digest = Sha256::digest(canonical);
    // Keys are scoped to the caller: guessing another caller's key does not return its sandbox.
    Ok((format!("{actor}/{key}"), hex::encode(digest)))
}

pub(super) fn metadata(metadata: &BTreeMap<String, String>) -> Result<(), ApiError> {
    if metadata.len() > MOST_METADATA {
        return Err(ApiError::bad_request(format!("metadata may have at most {MOST_METADATA} entries")));
    }
    let length: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if length > LONGEST_METADATA {
        return Err(ApiError::bad_request(format!(
            "metadata may have at most {LONGEST_METADATA} bytes in all"
        )));
    }
    if metadata.contains_key("") {
        return Err(ApiError::bad_request("a metadata key must not be empty"));
    }
    Ok(())
}

pub(super) fn env(env: &BTreeMap<String, String>) -> Result<(), ApiError> {
    if env.len() > MOST_ENV_VARS {
        return Err(ApiError::bad_request(format!("envVars may have at most {MOST_ENV_VARS} entries")));
    }
    for (name, value) in env {
        let shown: String = name.chars().take(64).collect();
        if name.is_empty() || name.contains(['=', '\0']) {
            let message =
                format!("environment variable name '{shown}' must not be empty or contain '=' or NUL");
            return Err(ApiError::bad_request(message));
        }
        if value.contains('\0') {
            return Err(ApiError::bad_request(format!(
                "the value of environment variable '{shown}' contains NUL"
            )));
        }
        if name.len() + value.len() > LONGEST_ENV_VAR {
            return Err(ApiError::bad_request(format!(
                "environment variable '{shown}' is longer than 128 KiB"
            )));
        }
    }
    if env.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>() > LONGEST_ENV {
        return Err(ApiError::bad_request(format!("envVars may have at most {LONGEST_ENV} bytes in all")));
    }
    Ok(())
}

/// Checks paths first, so that a bad request differs from a volume that does not exist.
fn mounts(mounts: Vec<VolumeMount>) -> Result<Vec<MountWish>, ApiError> {
    let bad = |error: BadMount| ApiError::bad_request(error.to_string());
    let paths: Vec<MountPath> =
        mounts.iter().map(|mount| mount.path.parse().map_err(bad)).collect::<Result<_, _>>()?;
    check_mounts(&paths.iter().collect::<Vec<_>>()).map_err(bad)?;
    let wish = |(VolumeMount { name, .. }, path): (VolumeMount, MountPath)| {
        // A volume cannot have another name.
        let unknown = |_| ApiError::fleet(FleetError::NoVolume(name.clone()), "");
        Ok(MountWish { name: name.parse().map_err(unknown)?, path, read_only: false })
    };
    mounts.into_iter().zip(paths).map(wish).collect()
}

/// The idempotency key of a request, if it has one, with a digest of the request.
pub(super) fn idempotency_of(
    headers: &HeaderMap,
    actor: &str,
    asked: &impl Serialize,
) -> Result<Option<(String, String)>, ApiError> {
    let key = headers.get("idempotency-key");
    let key = key.map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
    key.map(|key| idempotency(key, actor, asked)).transpose()
}
