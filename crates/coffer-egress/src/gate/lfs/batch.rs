//! A batch of Git LFS: the wanted objects, and their addresses on the forge.
//!
//! Both directions are parsed into known fields and encoded again, so that nothing unchecked passes.

use std::collections::BTreeMap;

use coffer_core::Millis;
use coffer_core::network::{GATE_NAME, GitReference, GitRoute};
use coffer_wire::lfs::{self, Answer, Located, MOST_OBJECTS, Object, Operation, Reference};
use http::header::{HeaderName, HeaderValue};

use super::place::Place;
use super::seal::{self, Seal, Ticket};
use crate::gate::ask::transfer_path;
use crate::gate::rule::GitRule;

/// The longest object that forges accept.
const LONGEST_OBJECT: u64 = 1 << 50;
const MOST_HEADERS: usize = 32;
const LONGEST_HEADERS: usize = 8 * 1024;
const LONGEST_MESSAGE: usize = 300;
/// How long an address is valid at most, whatever the forge says: the client asks again.
const GOOD_FOR_S: i64 = 3600;

/// Headers that the gate sets itself: of the connection, and of the body's length.
const NOT_THEIRS: [&str; 14] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "expect",
    "range",
    "accept-encoding",
    "proxy-authorization",
    "proxy-connection",
    "proxy-authenticate",
];

/// A sandbox's batch request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch {
    operation: Operation,
    reference: Option<String>,
    objects: BTreeMap<String, u64>,
}

/// A forge's answer, rewritten for the sandbox.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub(super) answer: Answer,
    /// Objects at addresses that are not allowed.
    pub(super) refused: usize,
}

fn is_oid(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl Batch {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, GitRule> {
        let wanted: lfs::Batch = serde_json::from_slice(bytes).map_err(|_| GitRule::LfsBatch)?;
        if wanted.objects.len() > MOST_OBJECTS {
            return Err(GitRule::LfsLarge);
        }
        if !wanted.takes_basic() || !wanted.is_sha256() || wanted.objects.is_empty() {
            return Err(GitRule::LfsBatch);
        }
        let mut objects = BTreeMap::new();
        for Object { oid, size } in wanted.objects {
            if !is_oid(&oid) || size > LONGEST_OBJECT || *objects.entry(oid).or_insert(size) != size {
                return Err(GitRule::LfsBatch);
            }
        }
        let reference = wanted.reference.map(|reference| reference.name);
        let named = reference.as_ref().is_none_or(|name| name.parse::<GitReference>().is_ok());
        if !named && wanted.operation == Operation::Upload {
            return Err(GitRule::LfsBatch);
        }
        // If no branch is checked out, a download names another ref.
        let reference = reference.filter(|_| named);
        Ok(Self { operation: wanted.operation, reference, objects })
    }

    pub(super) fn is_upload(&self) -> bool {
        self.operation == Operation::Upload
    }

    /// The ref of an upload must be the one that may be pushed.
    pub(super) fn judge(&self, route: &GitRoute) -> Result<(), GitRule> {
        let Some(window) = &route.push else { return Err(GitRule::PushClosed) };
        let other = self.reference.as_ref().is_some_and(|name| name != window.reference.as_str());
        if self.is_upload() && other { Err(GitRule::Reference) } else { Ok(()) }
    }

    /// The request for the forge.
    pub(super) fn written(&self) -> Vec<u8> {
        let objects = self.objects.iter().map(|(oid, size)| Object { oid: oid.clone(), size: *size });
        let batch = lfs::Batch {
            operation: self.operation,
            transfers: Some(vec![lfs::BASIC.into()]),
            reference: self.reference.clone().map(|name| Reference { name }),
            objects: objects.collect(),
            hash_algo: Some(lfs::SHA256.into()),
        };
        serde_json::to_vec(&batch).expect("a batch is text and numbers")
    }

    /// The forge's answer with each address sealed; or why it cannot be used.
    pub(super) fn rewrite(
        &self,
        answer: &[u8],
        route: &GitRoute,
        seal: &Seal,
        now_ms: Millis,
    ) -> Result<Rewritten, String> {
        let strange = || "its answer to a batch of Git LFS cannot be parsed".to_string();
        let told: Answer = serde_json::from_slice(answer).map_err(|_| strange())?;
        if told.transfer.is_some_and(|name| name != lfs::BASIC) {
            return Err("it requires a Git LFS transfer that is not supported here".to_string());
        }
        if told.hash_algo.is_some_and(|name| name != lfs::SHA256) {
            return Err(strange());
        }
        let mut known: BTreeMap<&str, &Located> = BTreeMap::new();
        for object in &told.objects {
            known.insert(&object.oid, object);
        }
        let mut refused = 0;
        // One entry for each requested object, and for no other.
        let objects = self.objects.iter().map(|(oid, size)| {
            let actions = match known.get(oid.as_str()) {
                None => Err((502, "the forge's answer lacks this object".to_string())),
                Some(told) => self.object(oid, *size, told, route, seal, now_ms, &mut refused),
            };
            match actions {
                Ok(actions) if actions.is_empty() => Located::present(oid, *size),
                // A client that follows them needs no credentials: the gate has them.
                Ok(actions) => {
                    Located { authenticated: true, actions: Some(actions), ..Located::present(oid, *size) }
                }
                Err((code, message)) => Located::refused(oid, *size, code, message),
            }
        });
        let answer = Answer::basic(objects.collect());
        Ok(Rewritten { answer, refused })
    }

    #[expect(clippy::too_many_arguments, reason = "one object of `rewrite`, which has them at hand")]
    fn object(
        &self,
        oid: &str,
        size: u64,
        told: &Located,
        route: &GitRoute,
        seal: &Seal,
        now_ms: Millis,
        refused: &mut usize,
    ) -> Result<BTreeMap<String, lfs::Action>, (u16, String)> {
        if let Some(error) = &told.error {
            let code = error.code.filter(|code| (400..600).contains(code)).unwrap_or(502);
            return Err((code, plain(error.message.as_deref().unwrap_or("the forge gave no reason"))));
        }
        let actions = match self.operation {
            Operation::Download => &[("download", seal::Action::Download)][..],
            Operation::Upload => &[("upload", seal::Action::Upload), ("verify", seal::Action::Verify)],
        };
        let given = told.actions.as_ref();
        let mut shown = BTreeMap::new();
        for (name, action) in actions {
            let Some(told) = given.and_then(|given| given.get(*name)) else { continue };
            let lifetime = told.expires_in.filter(|left| *left > 0).unwrap_or(GOOD_FOR_S).min(GOOD_FOR_S);
            let ticket =
                Place::read(&told.href, route).and(headers(told.header.as_ref())).map(|header| Ticket {
                    action: *action,
                    oid: oid.to_string(),
                    size,
                    href: told.href.clone(),
                    header,
                    upstream: route.upstream.to_string(),
                    until_ms: now_ms.saturating_add(lifetime.saturating_mul(1000)),
                });
            let Some(token) = ticket.and_then(|ticket| seal.close(&route.slug, &ticket)) else {
                *refused += 1;
                return Err((GitRule::LfsPlace.status().as_u16(), GitRule::LfsPlace.why().to_string()));
            };
            let action = lfs::Action {
                href: format!("http://{GATE_NAME}{}", transfer_path(&route.slug, &token)),
                header: None,
                expires_in: Some(lifetime),
                expires_at: told.expires_at.clone().filter(|at| is_time(at)),
            };
            shown.insert((*name).to_string(), action);
        }
        if shown.is_empty() && !self.is_upload() {
            return Err((404, "the forge does not have this object".to_string()));
        }
        Ok(shown)
    }
}

/// The headers of an object, without those that the gate sets; `None` if they are invalid.
fn headers(told: Option<&BTreeMap<String, String>>) -> Option<Vec<(String, String)>> {
    let mut kept = Vec::new();
    for (name, value) in told.into_iter().flatten() {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        HeaderValue::from_str(value).ok()?;
        if !NOT_THEIRS.contains(&name.as_str()) {
            kept.push((name.to_string(), value.clone()));
        }
    }
    let length: usize = kept.iter().map(|(name, value)| name.len() + value.len()).sum();
    (kept.len() <= MOST_HEADERS && length <= LONGEST_HEADERS).then_some(kept)
}

/// Whether a text looks like an RFC 3339 time.
fn is_time(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit() || b"-:.+TtZz".contains(&b))
}

/// A forge's text, shortened and without control characters.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(LONGEST_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn route() -> GitRoute {
        GitRoute {
            slug: "app".parse().unwrap(),
            upstream: "https://github.com/o/r.git".parse().unwrap(),
            authorization: None,
            on_site: false,
            neighbours: Vec::new(),
            push: None,
        }
    }

    fn read(batch: Value) -> Result<Batch, GitRule> {
        Batch::read(batch.to_string().as_bytes())
    }

    fn download(oids: &[&str]) -> Batch {
        let objects: Vec<_> = oids.iter().map(|oid| json!({"oid": oid, "size": 3})).collect();
        read(json!({"operation": "download", "objects": objects})).unwrap()
    }

    fn rewritten(batch: &Batch, answer: Value) -> (Vec<Value>, usize) {
        let done = batch.rewrite(answer.to_string().as_bytes(), &route(), &Seal::new(), 0).unwrap();
        let objects = done.answer.objects.iter().map(|object| serde_json::to_value(object).unwrap());
        (objects.collect(), done.refused)
    }

    #[test]
    fn a_batch_is_written_anew_with_what_was_understood() {
        let batch = read(json!({
            "operation": "upload", "transfers": ["lfs-standalone-file", "basic", "ssh"], "evil": {"href": "x"},
            "ref": {"name": "refs/heads/task-1"}, "objects": [{"oid": A, "size": 3, "extra": 1}], "hash_algo": "sha256",
        }));
        let written: Value = serde_json::from_slice(&batch.unwrap().written()).unwrap();
        let expected = json!({
            "operation": "upload", "transfers": ["basic"], "ref": {"name": "refs/heads/task-1"},
            "objects": [{"oid": A, "size": 3}], "hash_algo": "sha256",
        });
        assert_eq!(written, expected);
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        let object = json!({"oid": A, "size": 3});
        let many: Vec<_> =
            (0..=MOST_OBJECTS).map(|at| json!({"oid": format!("{at:064x}"), "size": 1})).collect();
        for (batch, rule) in [
            (json!([]), GitRule::LfsBatch),
            (json!({"operation": "delete", "objects": [object]}), GitRule::LfsBatch),
            (json!({"operation": "download", "objects": []}), GitRule::LfsBatch),
            (json!({"operation": "download", "objects": [object], "transfers": ["tus"]}), GitRule::LfsBatch),
            (json!({"operation": "download", "objects": [object], "hash_algo": "sha1"}), GitRule::LfsBatch),
            (json!({"operation": "download", "objects": [{"oid": "../x", "size": 1}]}), GitRule::LfsBatch),
            (
                json!({"operation": "download", "objects": [{"oid": A.to_uppercase(), "size": 1}]}),
                GitRule::LfsBatch,
            ),
            (json!({"operation": "download", "objects": [{"oid": A, "size": -1}]}), GitRule::LfsBatch),
            (json!({"operation": "download", "objects": [{"oid": A, "size": u64::MAX}]}), GitRule::LfsBatch),
            (json!({"operation": "download", "objects": [object, {"oid": A, "size": 4}]}), GitRule::LfsBatch),
            (json!({"operation": "upload", "objects": [object], "ref": {"name": "x y"}}), GitRule::LfsBatch),
            (json!({"operation": "download", "objects": many}), GitRule::LfsLarge),
        ] {
            let shown: String = batch.to_string().chars().take(200).collect();
            assert_eq!(read(batch), Err(rule), "{shown}");
        }
    }

    #[test]
    fn an_upload_is_for_the_windows_branch() {
        let of = |name: &str| {
            read(json!({"operation": "upload", "objects": [{"oid": A, "size": 3}], "ref": {"name": name}}))
                .unwrap()
        };
        let window = json!({"reference": "refs/heads/task-1", "until_ms": 1});
        let open = GitRoute { push: Some(serde_json::from_value(window).unwrap()), ..route() };
        assert_eq!(of("refs/heads/task-1").judge(&open), Ok(()));
        assert_eq!(of("refs/heads/main").judge(&open), Err(GitRule::Reference));
        assert_eq!(of("refs/heads/task-1").judge(&route()), Err(GitRule::PushClosed));
    }

    #[test]
    fn no_place_and_no_header_of_the_forges_reaches_the_sandbox() {
        let place =
            json!({"href": "https://store.example.com/x?sig=hidden", "header": {"Authorization": "hidden"}});
        let answer = json!({"transfer": "basic", "objects": [
            {"oid": A, "size": 99, "authenticated": true, "actions": {"download": place, "verify": place, "evil": place}},
            {"oid": "c".repeat(64), "size": 3, "actions": {"download": place}},
        ], "x": "hidden"});
        let (objects, refused) = rewritten(&download(&[A, B]), answer);
        assert_eq!((objects.len(), refused), (2, 0));
        assert!(!json!(objects).to_string().contains("hidden"));
        assert_eq!(
            (&objects[0]["oid"], &objects[0]["size"]),
            (&json!(A), &json!(3)),
            "the size that was asked for"
        );
        let actions = objects[0]["actions"].as_object().unwrap();
        assert_eq!(actions.keys().collect::<Vec<_>>(), ["download"]);
        let href = actions["download"]["href"].as_str().unwrap();
        assert!(href.starts_with("http://git.coffer.internal/app.git/info/lfs/transfer/"), "{href}");
        assert_eq!(objects[1]["error"]["code"], 502, "it was not told of");
    }

    #[test]
    fn places_out_of_reach_and_headers_without_end_are_refused() {
        let many: BTreeMap<String, String> = (0..40).map(|at| (format!("x-{at}"), "y".into())).collect();
        for action in [
            json!({"href": "http://169.254.169.254/latest/meta-data"}),
            json!({"href": "https://10.0.0.1/x"}),
            json!({"href": "file:///etc/shadow"}),
            json!({"href": "https://example.com/x", "header": {"a b": "c"}}),
            json!({"href": "https://example.com/x", "header": {"a": "c\r\nHost: evil"}}),
            json!({"href": "https://example.com/x", "header": {"a": "c".repeat(LONGEST_HEADERS)}}),
            json!({"href": "https://example.com/x", "header": many}),
        ] {
            let answer = json!({"objects": [{"oid": A, "actions": {"download": action}}]});
            let (objects, refused) = rewritten(&download(&[A]), answer);
            assert_eq!((refused, &objects[0]["error"]["code"]), (1, &json!(502)), "{action}");
        }
    }

    #[test]
    fn what_a_forge_says_is_short_and_plain() {
        let error = json!({"code": 404, "message": format!("\u{1b}[31m{}", "gone".repeat(1000))});
        let (objects, _) = rewritten(&download(&[A]), json!({"objects": [{"oid": A, "error": error}]}));
        let message = objects[0]["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("[31mgone") && message.len() == LONGEST_MESSAGE, "{message}");
        for strange in ["", "[]", "{\"objects\": {}}", "{\"transfer\": \"tus\"}", "{\"hash_algo\": \"sha1\"}"]
        {
            let refused = download(&[A]).rewrite(strange.as_bytes(), &route(), &Seal::new(), 0);
            assert!(refused.is_err(), "{strange}");
        }
    }

    #[test]
    fn headers_that_are_the_gates_to_say_are_dropped() {
        let told: BTreeMap<String, String> = [("Host", "evil"), ("Content-Length", "1"), ("X-Token", "t")]
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .into();
        assert_eq!(headers(Some(&told)), Some(vec![("x-token".to_string(), "t".to_string())]));
    }
}
