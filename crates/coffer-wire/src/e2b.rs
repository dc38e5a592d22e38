//! E2B's REST API: the bodies of requests and responses, as both generations of SDKs send them.
//!
//! Field names are the wire's. A field that clients may leave out or send as `null` is an `Option`; unknown
//! fields are ignored, as E2B does. Nothing here is checked beyond its type.

use std::collections::BTreeMap;

use coffer_core::network::Policy;
/// Network settings, which core parses: rows of 0.1.0 have them in this form.
pub use coffer_core::network::{
    E2bProxy as EgressProxy, E2bProxyTls as EgressProxyTls, E2bRule as NetworkRule, E2bSettings as Network,
    E2bTransform as NetworkTransform,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The body of every refusal. `code` equals the HTTP status: SDKs read one or the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub code: u16,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

/// `POST /sandboxes` and `POST /v2/sandboxes`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Seconds.
    pub timeout: Option<i64>,
    pub auto_pause: Option<bool>,
    pub auto_pause_memory: Option<bool>,
    pub auto_resume: Option<AutoResume>,
    /// Only the first generation has it; the second is always secured.
    pub secure: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    pub allow_internet_access: Option<bool>,
    pub network: Option<Network>,
    pub metadata: Option<BTreeMap<String, String>>,
    pub env_vars: Option<BTreeMap<String, String>>,
    pub mcp: Option<serde_json::Map<String, Value>>,
    pub iam: Option<Iam>,
    pub volume_mounts: Option<Vec<VolumeMount>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoResume {
    pub enabled: bool,
}

/// Workload identities that a sandbox may prove to others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iam {
    #[serde(default)]
    pub tokens: BTreeMap<String, IamToken>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IamToken {
    pub audience: String,
    pub token_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
}

/// `POST /volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewVolume {
    pub name: String,
}

/// An entry of `GET /volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    pub name: String,
}

/// A volume, with the token of its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeAndToken {
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    pub name: String,
    pub token: String,
}

/// A file or directory of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeEntryStat {
    pub name: String,
    /// `unknown`, `file`, `directory` or `symlink`.
    #[serde(rename = "type")]
    pub kind: String,
    pub path: String,
    pub size: u64,
    /// The permissions.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub atime: String,
    pub mtime: String,
    pub ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// `PUT /sandboxes/{id}/network`: replaces the network settings; fields that are left out are cleared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkUpdate {
    pub allow_out: Option<Vec<String>>,
    pub deny_out: Option<Vec<String>>,
    pub dns_servers: Option<Vec<String>>,
    pub egress_proxy: Option<EgressProxy>,
    pub rules: Option<BTreeMap<String, Vec<NetworkRule>>>,
    /// Not E2B's, as in [`Network`].
    pub policy: Option<Policy>,
    #[serde(rename = "allow_internet_access")]
    pub allow_internet_access: Option<bool>,
}

/// `POST …/timeout`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct TimeoutRequest {
    pub timeout: i64,
}

/// `POST …/refreshes`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct RefreshRequest {
    pub duration: Option<i64>,
}

/// `POST …/pause`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseRequest {
    pub memory: Option<bool>,
    pub require_healthy_guest: Option<bool>,
}

/// `POST …/connect`, both generations; the first must name a timeout.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct ConnectRequest {
    pub timeout: Option<i64>,
    pub memory: Option<bool>,
}

/// `POST …/resume`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResumeRequest {
    pub timeout: Option<i64>,
    pub auto_pause: Option<bool>,
    pub memory: Option<bool>,
}

/// `POST …/snapshots`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SnapshotRequest {
    pub name: Option<String>,
    pub memory: Option<bool>,
}

/// A snapshot, by the id that a create takes as its template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    pub names: Vec<String>,
}

/// `POST …/fork`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct ForkRequest {
    pub timeout: Option<i64>,
    pub count: Option<i64>,
}

/// The result of one fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForkResult {
    Sandbox(Sandbox),
    Error(ErrorBody),
}

/// `POST /secrets`.
#[derive(Clone, Deserialize)]
pub struct NewSecret {
    pub name: String,
    pub value: String,
    pub metadata: Option<BTreeMap<String, String>>,
}

/// `POST /secrets/{id or name}`.
#[derive(Clone, Deserialize)]
pub struct SecretUpdate {
    pub value: String,
    pub metadata: Option<BTreeMap<String, String>>,
}

/// Without the value.
impl std::fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Without the value.
impl std::fmt::Debug for SecretUpdate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretUpdate").finish_non_exhaustive()
    }
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Secret {
    #[serde(rename = "secretID")]
    pub secret_id: String,
    pub name: String,
    pub current_version: i64,
    pub metadata: BTreeMap<String, String>,
    pub created_at: String,
    pub updated_at: String,
}

/// A sandbox as create, connect and resume answer it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    #[serde(rename = "clientID")]
    pub client_id: String,
    pub envd_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    pub traffic_access_token: Option<String>,
    pub domain: Option<String>,
}

/// E2B's states of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Running,
    Paused,
}

/// A sandbox in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    #[serde(rename = "clientID")]
    pub client_id: String,
    pub started_at: String,
    pub end_at: String,
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    pub state: State,
    pub envd_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub volume_mounts: Vec<VolumeMount>,
}

/// Everything about one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    #[serde(flatten)]
    pub listed: ListedSandbox,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    pub allow_internet_access: Option<bool>,
    pub domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    pub lifecycle: Lifecycle,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_mode: Option<PauseMode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    pub auto_resume: bool,
    pub on_timeout: OnTimeout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    Kill,
    Pause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    Full,
    Filesystem,
}

/// One sample of a sandbox's resource usage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    pub timestamp: String,
    pub timestamp_unix: i64,
    pub cpu_count: u32,
    pub cpu_used_pct: f64,
    pub mem_used: u64,
    pub mem_total: u64,
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

/// `GET /sandboxes/metrics`: the newest sample of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxesMetrics {
    pub sandboxes: BTreeMap<String, Metric>,
}

/// `GET /sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Logs {
    pub logs: Vec<LogLine>,
    pub log_entries: Vec<LogEntry>,
}

/// `GET /v2/sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsV2 {
    pub logs: Vec<LogEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    pub timestamp: String,
    pub line: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    pub timestamp: String,
    pub message: String,
    pub level: LogLevel,
    pub fields: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// `GET /templates`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    pub public: bool,
    pub aliases: Vec<String>,
    pub names: Vec<String>,
    pub created_at: String,
    pub updated_at: String,
    pub created_by: Option<Value>,
    pub last_spawned_at: Option<String>,
    pub spawn_count: u64,
    pub build_count: u32,
    pub envd_version: String,
    pub build_status: String,
}

/// `GET /templates/aliases/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateAlias {
    #[serde(rename = "templateID")]
    pub template_id: String,
    pub public: bool,
}

/// `GET /teams`: a project, as E2B's command line shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Team {
    #[serde(rename = "teamID")]
    pub team_id: String,
    pub name: String,
    pub api_key: String,
    pub is_default: bool,
}

/// `POST /v3/templates`: a build whose steps follow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BuildRequest {
    /// `name[:tag]`.
    pub name: Option<String>,
    /// The older name of `name`.
    pub alias: Option<String>,
    pub tags: Option<Vec<String>>,
    pub cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    pub memory_mb: Option<u64>,
}

/// The reply to [`BuildRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestedBuild {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub public: bool,
    pub names: Vec<String>,
    pub tags: Vec<String>,
    pub aliases: Vec<String>,
}

/// `GET /templates/{id}/files/{hash}`: whether files have to be uploaded, and where to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesLink {
    pub present: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// `POST /v2/templates/{id}/builds/{build}`: the steps of a build.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BuildStart {
    pub from_image: Option<String>,
    pub from_template: Option<String>,
    /// Credentials for the image.
    pub from_image_registry: Option<Value>,
    pub force: Option<bool>,
    pub steps: Vec<BuildStartStep>,
    pub start_cmd: Option<String>,
    pub ready_cmd: Option<String>,
}

/// A step of [`BuildStart`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BuildStartStep {
    #[serde(rename = "type")]
    pub kind: String,
    pub args: Option<Vec<String>>,
    pub files_hash: Option<String>,
    pub force: Option<bool>,
}

/// `GET /templates/{id}/builds/{build}/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildStatus {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// `waiting`, `building`, `ready` or `error`; SDKs refuse others.
    pub status: String,
    pub logs: Vec<String>,
    pub log_entries: Vec<BuildLogEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<BuildReason>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildLogEntry {
    pub timestamp: String,
    pub message: String,
    pub level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// Why a build failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildReason {
    pub message: String,
    /// `base`, `finalize` or the number of the step: SDKs show the user's line by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    pub log_entries: Vec<BuildLogEntry>,
}

/// `POST /templates/tags`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TagRequest {
    /// `name:tag`.
    pub target: String,
    pub tags: Vec<String>,
}

/// The reply to [`TagRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tagged {
    pub tags: Vec<String>,
    #[serde(rename = "buildID")]
    pub build_id: String,
}

/// `DELETE /templates/tags`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UntagRequest {
    pub name: String,
    pub tags: Vec<String>,
}

/// A tag in `GET /templates/{id}/tags`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateTag {
    pub tag: String,
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub created_at: String,
}
