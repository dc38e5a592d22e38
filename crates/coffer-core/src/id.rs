//! Typed ids.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// An id of kind `K`; a `SandboxId` cannot be passed where a `ProjectId` is expected.
///
/// Shown as 26 characters of lower-case base 32 (Crockford's alphabet: no i, l, o, u), so it is
/// also a DNS label and a file name, and sorts by creation time.
pub struct Id<K> {
    raw: Uuid,
    kind: PhantomData<fn() -> K>,
}

/// Marks ids of sandboxes.
#[derive(Debug)]
pub enum Sandbox {}
/// Marks ids of snapshots.
#[derive(Debug)]
pub enum Snapshot {}
/// Marks ids of templates that projects built.
#[derive(Debug)]
pub enum Template {}
/// Marks ids of builds of templates.
#[derive(Debug)]
pub enum Build {}
/// Marks ids of volumes.
#[derive(Debug)]
pub enum Volume {}
/// Marks ids of projects.
#[derive(Debug)]
pub enum Project {}
/// Marks ids of API keys.
#[derive(Debug)]
pub enum Key {}
/// Marks ids of agents.
#[derive(Debug)]
pub enum Agent {}
/// Marks ids of audit records.
#[derive(Debug)]
pub enum Audit {}
/// Marks ids of executions.
#[derive(Debug)]
pub enum Execution {}

/// Marks ids of values of secrets.
#[derive(Debug)]
pub enum SecretValue {}

/// Marks ids of budgets.
#[derive(Debug)]
pub enum Budget {}

/// Marks ids of storage reservations.
#[derive(Debug)]
pub enum Reservation {}

/// Marks ids of durable runs.
#[derive(Debug)]
pub enum Run {}

/// Marks ids of processes that execute runs.
#[derive(Debug)]
pub enum Runner {}

/// Marks ids of tasks.
#[derive(Debug)]
pub enum Task {}

/// Marks ids of schedules.
#[derive(Debug)]
pub enum Schedule {}

/// Marks ids of repositories.
#[derive(Debug)]
pub enum Repository {}

/// Marks ids of connections to forges.
#[derive(Debug)]
pub enum Connection {}

/// Marks ids of comments.
#[derive(Debug)]
pub enum Comment {}

/// Marks ids of operations of git.
#[derive(Debug)]
pub enum GitOperation {}

/// Marks ids of webhooks.
#[derive(Debug)]
pub enum Webhook {}

/// Marks ids of deliveries to webhooks.
#[derive(Debug)]
pub enum Delivery {}

/// Marks ids of people.
#[derive(Debug)]
pub enum Person {}

/// Marks ids of artifacts.
#[derive(Debug)]
pub enum Artifact {}

/// Marks ids of competitions.
#[derive(Debug)]
pub enum Competition {}

/// Marks ids of calls of models.
#[derive(Debug)]
pub enum ModelCall {}

/// Marks ids of grants to call models.
#[derive(Debug)]
pub enum ModelGrant {}

/// Names one sandbox; ids are never reused.
pub type SandboxId = Id<Sandbox>;
pub type TemplateId = Id<Template>;
pub type BuildId = Id<Build>;
/// Names one snapshot of a sandbox.
pub type SnapshotId = Id<Snapshot>;
/// Names one volume.
pub type VolumeId = Id<Volume>;
/// Names one project, the owner of everything a request can see.
pub type ProjectId = Id<Project>;
/// Names one API key; not secret.
pub type KeyId = Id<Key>;
/// Names one person of a project.
pub type PersonId = Id<Person>;
/// Names one value of a secret.
pub type SecretId = Id<SecretValue>;
/// Names one agent, which may own sandboxes.
pub type AgentId = Id<Agent>;
/// Names one record of the audit log.
pub type AuditId = Id<Audit>;
/// Names one call of a model.
pub type ModelCallId = Id<ModelCall>;
/// Names one grant to call models.
pub type ModelGrantId = Id<ModelGrant>;
/// Names one budget.
pub type BudgetId = Id<Budget>;
/// Names one repository of a project.
pub type RepositoryId = Id<Repository>;
/// Names one connection to a forge.
pub type ConnectionId = Id<Connection>;
/// Names one comment on a pull request or an issue.
pub type CommentId = Id<Comment>;
/// Names one execution: a process that a client started in a sandbox.
pub type ExecutionId = Id<Execution>;
/// Names one durable run.
pub type RunId = Id<Run>;
/// Names one process that executes runs.
pub type RunnerId = Id<Runner>;
/// Names one operation of git in a sandbox.
pub type GitOperationId = Id<GitOperation>;
/// Names one task.
pub type TaskId = Id<Task>;
/// Names one schedule of tasks.
pub type ScheduleId = Id<Schedule>;
/// Names one webhook.
pub type WebhookId = Id<Webhook>;
/// Names one delivery to a webhook, over all tries.
pub type DeliveryId = Id<Delivery>;
/// Names one storage reservation.
pub type ReservationId = Id<Reservation>;
/// Names one artifact.
pub type ArtifactId = Id<Artifact>;
/// Names one competition.
pub type CompetitionId = Id<Competition>;

/// The text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an id is 26 characters of lower-case base 32")]
pub struct BadId;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const LENGTH: usize = 26;

impl<K> Id<K> {
    /// Creates a new id that sorts after all earlier ones.
    pub fn generate() -> Self {
        Self::from_uuid(Uuid::now_v7())
    }

    /// Wraps a raw value, as tests and migrations need.
    pub const fn from_uuid(raw: Uuid) -> Self {
        Self { raw, kind: PhantomData }
    }

    /// The raw value, for protocols that show UUIDs.
    pub const fn to_uuid(self) -> Uuid {
        self.raw
    }

    /// The id in a binary record.
    pub const fn to_bytes(self) -> [u8; 16] {
        *self.raw.as_bytes()
    }

    /// The id that [`to_bytes`](Self::to_bytes) was given.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self::from_uuid(Uuid::from_bytes(bytes))
    }
}

impl<K> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.raw.as_u128();
        let mut text = [0u8; LENGTH];
        for place in text.iter_mut().rev() {
            *place = ALPHABET[(value & 31) as usize];
            value >>= 5;
        }
        f.pad(std::str::from_utf8(&text).expect("the alphabet is ASCII"))
    }
}

impl<K> FromStr for Id<K> {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        // 26 characters hold 130 bits: a first one above 7 would overflow the 128 bits of an id.
        if text.len() != LENGTH || !(b'0'..=b'7').contains(&text.as_bytes()[0]) {
            return Err(BadId);
        }
        let mut value = 0u128;
        for byte in text.bytes() {
            let digit = ALPHABET.iter().position(|&letter| letter == byte).ok_or(BadId)?;
            value = (value << 5) | digit as u128;
        }
        Ok(Self::from_uuid(Uuid::from_u128(value)))
    }
}

impl<K> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Id<K> {}
impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}
impl<K> Eq for Id<K> {}
impl<K> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.raw.cmp(&other.raw)
    }
}
impl<K> std::hash::Hash for Id<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.raw.hash(state);
    }
}

impl<K> Serialize for Id<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, K> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A column holds an id as its text.
#[cfg(feature = "sqlx")]
mod column {
    use sqlx::any::{Any, AnyTypeInfo, AnyValueRef};
    use sqlx::encode::IsNull;
    use sqlx::error::BoxDynError;
    use sqlx::{Database, Decode, Encode, Type};

    use super::Id;

    impl<K> Type<Any> for Id<K> {
        fn type_info() -> AnyTypeInfo {
            <str as Type<Any>>::type_info()
        }
    }

    impl<K> Encode<'_, Any> for Id<K> {
        fn encode_by_ref(
            &self,
            buffer: &mut <Any as Database>::ArgumentBuffer,
        ) -> Result<IsNull, BoxDynError> {
            Encode::<Any>::encode(self.to_string(), buffer)
        }
    }

    impl<'r, K> Decode<'r, Any> for Id<K> {
        fn decode(value: AnyValueRef<'r>) -> Result<Self, BoxDynError> {
            Ok(<&str as Decode<'r, Any>>::decode(value)?.parse()?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_id_reads_back(raw: u128) {
            let id = SandboxId::from_uuid(Uuid::from_u128(raw));
            let text = id.to_string();
            prop_assert!(text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase()));
            prop_assert_eq!(text.parse::<SandboxId>(), Ok(id));
        }

        #[test]
        fn text_order_is_id_order(a: u128, b: u128) {
            let (x, y) = (Uuid::from_u128(a), Uuid::from_u128(b));
            let (x, y) = (SandboxId::from_uuid(x), SandboxId::from_uuid(y));
            prop_assert_eq!(x.cmp(&y), x.to_string().cmp(&y.to_string()));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<SandboxId>();
        }
    }

    #[test]
    fn an_overflowing_text_is_refused() {
        assert_eq!("8zzzzzzzzzzzzzzzzzzzzzzzzz".parse::<SandboxId>(), Err(BadId));
        assert!("7zzzzzzzzzzzzzzzzzzzzzzzzz".parse::<SandboxId>().is_ok());
    }
}
