use proptest::prelude::*;
use serde_json::json;

use super::samples::samples;
use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events.md");
const HEAD: &str = "# Events

<!-- Written from `coffer_core::event`: change that, then `COFFER_UPDATE=1 cargo test -p coffer-core --lib event`. -->

Every kind of event in a project's log, with what it means and a payload as an example. `GET /api/v1/events` and its streams
show them, webhooks send them ([api.md](api.md#events)). Kinds and fields keep their names; new fields and new
kinds may come.

";

/// Every kind with its payload, so that a change of the contract shows in review.
#[test]
fn the_page_shows_one_event_of_each_kind() {
    let entry = |event: Event| {
        let (kind, payload) = (event.kind(), event.payload());
        format!("## `{kind}`\n\n{}\n\n```json\n{payload}\n```\n\n", kind.meaning())
    };
    let entries: String = samples().into_iter().map(entry).collect();
    let page = format!("{HEAD}{}\n", entries.trim_end());
    if std::env::var_os("COFFER_UPDATE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let kept = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        kept == page,
        "docs/events.md is out of date: COFFER_UPDATE=1 cargo test -p coffer-core --lib event"
    );
}

#[test]
fn there_is_a_sample_of_every_kind() {
    let kinds: Vec<EventKind> = samples().iter().map(Event::kind).collect();
    assert_eq!(kinds, EventKind::ALL);
}

#[test]
fn every_kind_has_one_dotted_name_and_a_meaning() {
    for kind in EventKind::ALL {
        assert_eq!(kind.as_str().parse::<EventKind>(), Ok(*kind));
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        assert!(kind.as_str().contains('.') || *kind == EventKind::Gap, "{kind}");
        assert!(kind.meaning().ends_with('.'), "{kind} needs one sentence");
    }
}

#[test]
fn every_sample_is_read_as_it_is_written() {
    for event in samples() {
        assert_eq!(Event::read(event.kind().as_str(), &event.payload()).unwrap(), event);
        let whole = serde_json::to_value(&event).unwrap();
        assert_eq!(whole, json!({ "kind": event.kind().as_str(), "payload": event.payload() }));
        assert_eq!(serde_json::from_value::<Event>(whole).unwrap(), event);
    }
}

#[test]
fn fields_of_a_newer_version_are_passed_over() {
    for event in samples() {
        let mut payload = event.payload();
        payload["from_the_future"] = json!([1]);
        assert_eq!(Event::read(event.kind().as_str(), &payload).unwrap(), event);
    }
}

#[test]
fn rows_of_earlier_versions_are_read() {
    // Older versions wrote no `failure` for a run cancelled in the queue, and no `reason` for one that ended.
    let run = crate::RunId::generate();
    for payload in [
        json!({ "run": run, "reason": "requested", "state": "cancelled" }),
        json!({ "run": run, "state": "done", "failure": null }),
    ] {
        assert!(matches!(Event::read("run.ended", &payload).unwrap(), Event::RunEnded(_)), "{payload}");
    }
    // Older messages had no `source`, and attention had no `run`.
    let said = json!({ "number": 1, "author": "ada", "about": null, "body": "hello" });
    assert!(matches!(Event::read("task.message", &said).unwrap(), Event::TaskMessage(_)));
    let attention = json!({ "attention": { "code": "x", "message": "y" } });
    assert!(matches!(Event::read("task.needs_attention", &attention).unwrap(), Event::TaskNeedsAttention(_)));
    let moved = json!({ "competition": run, "from": "waiting", "to": "publishing" });
    assert!(matches!(Event::read("competition.state", &moved).unwrap(), Event::CompetitionState(_)));
    for (payload, expected) in [
        (json!({ "version": 2, "actor": "ada" }), TaskChanged::Edited { version: 2, actor: "ada".into() }),
        (json!({ "on_review": "start" }), TaskChanged::OnReview { on_review: "start".into() }),
        (json!({ "attention": null }), TaskChanged::Attention { attention: None }),
    ] {
        assert_eq!(Event::read("task.changed", &payload).unwrap(), Event::TaskChanged(expected));
    }
}

#[test]
fn what_a_newer_version_tells_is_no_event_and_no_failure() {
    assert!(matches!(Event::read("sandbox.teleported", &json!({})), Err(Unreadable::Kind(_))));
    let payload = json!({ "from": null, "to": { "state": "elsewhere" }, "reason": "" });
    assert!(matches!(Event::read("sandbox.running", &payload), Err(Unreadable::Payload { .. })));
}

#[test]
fn kinds_are_wanted_by_name_or_by_beginning() {
    for (wanted, fitting) in
        [("run.ended", 1), ("run.*", 11), ("*", EventKind::ALL.len()), ("run", 0), ("", 0)]
    {
        let found = EventKind::ALL.iter().filter(|kind| kind.fits(wanted)).count();
        assert_eq!(found, fitting, "{wanted}");
    }
}

/// Replaces some values of a payload.
fn changed(value: &mut Value, changes: &mut impl Iterator<Item = (u8, String, i64)>) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|value| changed(value, changes)),
        Value::Array(values) => values.iter_mut().for_each(|value| changed(value, changes)),
        leaf => match changes.next() {
            Some((0, ..)) => *leaf = Value::Null,
            Some((1, text, _)) if leaf.is_string() => *leaf = text.into(),
            Some((2, _, number)) if leaf.is_number() => *leaf = number.into(),
            Some((3, ..)) if leaf.is_boolean() => *leaf = Value::Bool(*leaf == false),
            _ => {}
        },
    }
}

proptest! {
    /// Every event that is read is written so that it reads as the same event, for each kind.
    #[test]
    fn what_is_read_is_written_the_same(changes in prop::collection::vec((0..8_u8, any::<String>(), any::<i64>()), 40)) {
        for event in samples() {
            let mut payload = event.payload();
            changed(&mut payload, &mut changes.iter().cloned());
            if let Ok(read) = Event::read(event.kind().as_str(), &payload) {
                prop_assert_eq!(read.kind(), event.kind());
                let again = Event::read(read.kind().as_str(), &read.payload()).unwrap();
                prop_assert_eq!(again, read);
            }
        }
    }
}
