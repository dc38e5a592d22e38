//! The life of a template's build, and what a build consists of.
//!
//! ```text
//!           start              finish
//! Waiting ────────► Building ────────► Ready
//!    │                │
//!    └───── fail ─────┴──────────────► Error
//! ```
//!
//! A build waits while its client uploads files. A server that finds a build in `Building` starts it again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::life::{Life, Refused};

/// The state of a build; the names are E2B's.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum BuildState {
    /// Its steps are not known yet.
    Waiting,
    /// Its steps run, or wait for a place.
    Building,
    /// Sandboxes can start from it.
    Ready,
    /// A step failed, or it was cancelled.
    Error,
}

names!(BuildState);

/// A cause of a state change of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildCause {
    /// Its steps arrived.
    Started,
    /// Its snapshot is ready.
    Finished,
    Failed,
}

impl Life for BuildState {
    type Cause = BuildCause;

    const WHAT: &'static str = "build";
    const STATES: &'static [Self] = Self::ALL;
    const CAUSES: &'static [BuildCause] = &[BuildCause::Started, BuildCause::Finished, BuildCause::Failed];

    fn after(self, cause: BuildCause) -> Result<Self, Refused> {
        match (self, cause) {
            (Self::Waiting, BuildCause::Started) => Ok(Self::Building),
            (Self::Building, BuildCause::Finished) => Ok(Self::Ready),
            (Self::Waiting | Self::Building, BuildCause::Failed) => Ok(Self::Error),
            (Self::Building | Self::Ready | Self::Error, BuildCause::Started) => self.refuse("be started"),
            (Self::Waiting | Self::Ready | Self::Error, BuildCause::Finished) => self.refuse("be finished"),
            (Self::Ready | Self::Error, BuildCause::Failed) => self.refuse("fail"),
        }
    }

    fn name(self) -> &'static str {
        self.as_str()
    }
}

/// What a build starts from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildSource {
    /// An image, as the client names it.
    Image(String),
    /// A template or a snapshot.
    Template(String),
    /// An uploaded archive of an image, by the client's name for it.
    Archive(String),
}

/// The kind of a step; the names are E2B's.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "UPPERCASE")]
#[strum(serialize_all = "UPPERCASE", const_into_str)]
pub enum BuildStepKind {
    Run,
    Copy,
    Env,
    Workdir,
    User,
}

names!(BuildStepKind);

/// A step of a build, as the client sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildStep {
    pub kind: BuildStepKind,
    pub args: Vec<String>,
    /// The client's name for the files of a `COPY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_hash: Option<String>,
    /// Runs even if its result is cached.
    #[serde(default)]
    pub force: bool,
    /// Variables of this step's command only, such as the `ARG`s of a Dockerfile.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// More variables of this step's command: the names of the project's secrets that they get their values from.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Its line in the Dockerfile, if it comes from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

impl BuildStep {
    /// A step with nothing but arguments.
    pub fn new(kind: BuildStepKind, args: Vec<String>) -> Self {
        Self {
            kind,
            args,
            files_hash: None,
            force: false,
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            line: None,
        }
    }
}

/// Everything that a build does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildPlan {
    pub source: BuildSource,
    pub steps: Vec<BuildStep>,
    #[serde(default)]
    pub start: Option<StartCommand>,
    /// Uses no cached step.
    #[serde(default)]
    pub force: bool,
    /// The platform of an image that has several, such as `linux/arm64`; the host's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
}

/// A service that runs in every sandbox of a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartCommand {
    /// A shell line. Absent if there is only something to wait for.
    #[serde(default)]
    pub command: Option<String>,
    /// A shell line that succeeds once the service is ready.
    #[serde(default)]
    pub ready: Option<String>,
}

/// What sandboxes of a template start with, unless the create says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateDefaults {
    pub user: String,
    pub workdir: Option<String>,
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub start: Option<StartCommand>,
}

/// The level of a line in a build's log; the names are E2B's.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum BuildLogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

names!(BuildLogLevel);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::laws;

    #[test]
    fn a_build_reaches_every_state_and_ends_once() {
        laws::every_state_is_reached::<BuildState>();
        laws::what_is_over_stays(|state: BuildState| matches!(state, BuildState::Ready | BuildState::Error));
        laws::a_cause_told_twice_changes_nothing::<BuildState>();
    }

    #[test]
    fn a_plan_is_read_back_as_it_was_written() {
        let plan = BuildPlan {
            source: BuildSource::Image("debian:12".into()),
            steps: vec![BuildStep {
                files_hash: Some("0a".into()),
                force: true,
                env: [("A".into(), "1".into())].into(),
                secrets: [("TOKEN".into(), "npm".into())].into(),
                line: Some(3),
                ..BuildStep::new(BuildStepKind::Copy, vec!["a".into(), "/b".into()])
            }],
            start: Some(StartCommand { command: None, ready: Some("true".into()) }),
            force: false,
            platform: Some("linux/arm64".into()),
        };
        let text = serde_json::to_string(&plan).unwrap();
        assert!(text.contains("\"COPY\""), "{text}");
        assert_eq!(serde_json::from_str::<BuildPlan>(&text).unwrap(), plan);
        // As it was before steps had variables.
        let old = r#"{"source":{"template":"base"},"steps":[{"kind":"RUN","args":["x"]}]}"#;
        let steps = serde_json::from_str::<BuildPlan>(old).unwrap().steps;
        assert_eq!(steps, [BuildStep::new(BuildStepKind::Run, vec!["x".into()])]);
    }
}
