//! Git LFS's batch API: the objects that a client requests, and their addresses from the server.
//!
//! Both the forge's own LFS server and the git gate in front of other forges speak it. Fields that neither uses are
//! not read. Specification: `docs/api/batch.md` of git-lfs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Objects in one batch. Git LFS asks for a hundred at a time.
pub const MOST_OBJECTS: usize = 1000;

/// The only supported transfer: one request for each object.
pub const BASIC: &str = "basic";
/// The only supported hash of objects.
pub const SHA256: &str = "sha256";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Download,
    Upload,
}

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub operation: Operation,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfers: Option<Vec<String>>,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    pub objects: Vec<Object>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_algo: Option<String>,
}

/// The ref that the objects are for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    pub oid: String,
    pub size: u64,
}

/// A server's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer: Option<String>,
    #[serde(default)]
    pub objects: Vec<Located>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_algo: Option<String>,
}

/// The address of an object, or why it is not available. With neither, the server already has an object that
/// was to be uploaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    pub oid: String,
    /// Written and never read: the size in the request counts.
    #[serde(skip_deserializing)]
    pub size: u64,
    /// Whether a client needs no credentials of its own. Written and never read.
    #[serde(skip_deserializing, skip_serializing_if = "std::ops::Not::not")]
    pub authenticated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actions: Option<BTreeMap<String, Action>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ObjectError>,
}

/// A request that a client makes to move an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    pub href: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectError {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Batch {
    /// Whether a client accepts basic transfers, as it does by default.
    pub fn takes_basic(&self) -> bool {
        self.transfers.as_ref().is_none_or(|all| all.is_empty() || all.iter().any(|one| one == BASIC))
    }

    /// Whether its objects are named by SHA-256, as they are by default.
    pub fn is_sha256(&self) -> bool {
        self.hash_algo.as_ref().is_none_or(|name| name == SHA256)
    }
}

impl Answer {
    /// An answer for the only supported transfer.
    pub fn basic(objects: Vec<Located>) -> Self {
        Self { transfer: Some(BASIC.into()), objects, hash_algo: Some(SHA256.into()) }
    }
}

impl Located {
    /// An object with nothing to do: the server already has it.
    pub fn present(oid: impl Into<String>, size: u64) -> Self {
        Self { oid: oid.into(), size, ..Self::default() }
    }

    /// An object that is not available.
    pub fn refused(oid: impl Into<String>, size: u64, code: u16, message: impl Into<String>) -> Self {
        let error = ObjectError { code: Some(code), message: Some(message.into()) };
        Self { error: Some(error), ..Self::present(oid, size) }
    }

    /// An object to transfer by one request to `href`.
    pub fn at(oid: impl Into<String>, size: u64, action: &str, href: String) -> Self {
        let action = (action.to_string(), Action { href, header: None, expires_in: None, expires_at: None });
        Self { actions: Some(BTreeMap::from([action])), ..Self::present(oid, size) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_batch_is_read_as_clients_write_it() {
        let least: Batch =
            serde_json::from_value(json!({"operation": "download", "objects": [{"oid": "a", "size": 1}]}))
                .unwrap();
        assert!(least.takes_basic() && least.is_sha256() && least.reference.is_none());
        let other: Batch = serde_json::from_value(json!({
            "operation": "upload", "transfers": ["tus"], "ref": {"name": "refs/heads/x"}, "objects": [],
            "hash_algo": "sha1", "unknown": {"href": 1},
        }))
        .unwrap();
        assert!(!other.takes_basic() && !other.is_sha256());
        let written = serde_json::to_value(&least).unwrap();
        assert_eq!(written, json!({"operation": "download", "objects": [{"oid": "a", "size": 1}]}));
    }

    #[test]
    fn an_answer_has_what_clients_look_for_and_nothing_else() {
        let answer = Answer::basic(vec![
            Located::present("a", 1),
            Located::at("b", 2, "download", "https://h/b".into()),
            Located::refused("c", 3, 404, "gone"),
        ]);
        let expected = json!({"transfer": "basic", "hash_algo": "sha256", "objects": [
            {"oid": "a", "size": 1},
            {"oid": "b", "size": 2, "actions": {"download": {"href": "https://h/b"}}},
            {"oid": "c", "size": 3, "error": {"code": 404, "message": "gone"}},
        ]});
        assert_eq!(serde_json::to_value(&answer).unwrap(), expected);
    }

    #[test]
    fn a_servers_word_on_sizes_is_not_read() {
        let answer: Answer =
            serde_json::from_value(json!({"objects": [{"oid": "a", "size": -1, "authenticated": "yes"}]}))
                .unwrap();
        assert_eq!(answer.objects, [Located::present("a", 0)]);
    }
}
