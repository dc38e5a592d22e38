//! Jupyter's messages: frames, signatures, and the little of their content that we read.

use bytes::Bytes;
use hmac::{Hmac, Mac};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::Sha256;
use uuid::Uuid;
use zeromq::ZmqMessage;

const DELIMITER: &[u8] = b"<IDS|MSG>";

/// Signs messages to a kernel and checks those from it.
pub(super) struct Signer {
    mac: Hmac<Sha256>,
    /// The key that the kernel was asked to use. It counts from the first message that is signed with it.
    next: Option<Hmac<Sha256>>,
    session: String,
}

/// A message from a kernel.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: String,
    /// The id of the request that caused it.
    pub(super) parent: String,
    pub(super) content: Bytes,
}

#[derive(Deserialize)]
struct Header {
    msg_type: String,
}

#[derive(Deserialize, Default)]
struct Parent {
    #[serde(default)]
    msg_id: String,
}

impl Signer {
    pub(super) fn new(key: &str) -> Self {
        Self { mac: keyed(key), next: None, session: Uuid::new_v4().to_string() }
    }

    /// Expects the kernel to change to this key while it handles the next request.
    pub(super) fn expect(&mut self, key: &str) {
        self.next = Some(keyed(key));
    }

    /// Whether the kernel has changed to the key that was expected. From now on only one key is taken.
    pub(super) fn has_changed(&mut self) -> bool {
        self.next.take().is_none()
    }

    /// A request, with its id.
    pub(super) fn request(&self, kind: &str, content: &Value) -> (String, ZmqMessage) {
        let id = Uuid::new_v4().to_string();
        let header = json!({
            "msg_id": id, "session": self.session, "username": "coffer", "date": "1970-01-01T00:00:00.000000Z",
            "msg_type": kind, "version": "5.3",
        });
        let parts =
            [header.to_string(), "{}".to_string(), "{}".to_string(), content.to_string()].map(Bytes::from);
        let mut message = ZmqMessage::from(Bytes::from_static(DELIMITER));
        message.push_back(Bytes::from(hex::encode(sign(&self.mac, &parts).finalize().into_bytes())));
        for part in parts {
            message.push_back(part);
        }
        (id, message)
    }

    /// Nothing if it is malformed or not signed with the kernel's key.
    pub(super) fn read(&mut self, message: ZmqMessage) -> Option<Message> {
        let frames = message.into_vec();
        let start = frames.iter().position(|frame| frame.as_ref() == DELIMITER)? + 1;
        let signature = hex::decode(frames.get(start)?).ok()?;
        let parts = frames.get(start + 1..start + 5)?;
        if let Some(next) = self.next.take_if(|next| sign(next, parts).verify_slice(&signature).is_ok()) {
            self.mac = next;
        } else {
            sign(&self.mac, parts).verify_slice(&signature).ok()?;
        }
        let header: Header = serde_json::from_slice(parts.first()?).ok()?;
        let parent: Parent = serde_json::from_slice(parts.get(1)?).unwrap_or_default();
        Some(Message { kind: header.msg_type, parent: parent.msg_id, content: parts.get(3)?.clone() })
    }
}

fn keyed(key: &str) -> Hmac<Sha256> {
    Hmac::new_from_slice(key.as_bytes()).expect("HMAC takes keys of any length")
}

fn sign(mac: &Hmac<Sha256>, parts: &[Bytes]) -> Hmac<Sha256> {
    parts.iter().fold(mac.clone(), |mac, part| mac.chain_update(part))
}

impl Message {
    pub(super) fn content<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_slice(&self.content).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_can_be_read_with_the_same_key_only() {
        let mut signer = Signer::new("key");
        let (_, message) = signer.request("execute_request", &json!({"code": "é"}));
        let read = signer.read(message.clone()).unwrap();
        assert_eq!(read.kind, "execute_request");
        assert_eq!(read.parent, "");
        assert_eq!(read.content::<Value>().unwrap()["code"], "é");
        assert!(Signer::new("other").read(message).is_none());
    }

    #[test]
    fn a_new_key_counts_from_the_first_message_that_has_it() {
        let message = |key: &str| Signer::new(key).request("x", &json!({})).1;
        let mut signer = Signer::new("old");
        signer.expect("new");
        assert!(signer.read(message("old")).is_some(), "the kernel has not changed yet");
        assert!(signer.read(message("new")).is_some());
        assert!(signer.read(message("old")).is_none(), "who has the old key is not heard any more");
        assert!(signer.has_changed());
        let (_, ours) = signer.request("x", &json!({}));
        assert!(Signer::new("new").read(ours).is_some(), "requests have it too");
    }

    #[test]
    fn a_kernel_that_keeps_its_key_is_understood() {
        let message = |key: &str| Signer::new(key).request("x", &json!({})).1;
        let mut signer = Signer::new("old");
        signer.expect("new");
        assert!(signer.read(message("old")).is_some());
        assert!(!signer.has_changed());
        assert!(signer.read(message("new")).is_none());
        assert!(signer.read(message("old")).is_some());
    }

    #[test]
    fn short_and_changed_messages_are_refused() {
        let mut signer = Signer::new("key");
        let (_, message) = signer.request("x", &json!({}));
        let frames = message.into_vec();
        for count in 0..frames.len() {
            let Ok(short) = ZmqMessage::try_from(frames[..count].to_vec()) else { continue };
            assert!(signer.read(short).is_none(), "{count}");
        }
        let mut changed = frames.clone();
        changed[5] = Bytes::from_static(b"{\"a\":1}");
        assert!(signer.read(ZmqMessage::try_from(changed).unwrap()).is_none());
        let mut topic = vec![Bytes::from_static(b"kernel.status")];
        topic.extend(frames);
        assert!(signer.read(ZmqMessage::try_from(topic).unwrap()).is_some());
    }
}
