//! E2B's envd messages, generated from `proto/`: binary by prost, JSON by pbjson.

/// Processes: start, attach, feed, signal.
#[allow(
    missing_debug_implementations,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub mod process {
    include!(concat!(env!("OUT_DIR"), "/process.rs"));
    include!(concat!(env!("OUT_DIR"), "/process.serde.rs"));
}

/// Files: describe, list, move, remove, watch.
#[allow(
    missing_debug_implementations,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub mod filesystem {
    include!(concat!(env!("OUT_DIR"), "/filesystem.rs"));
    include!(concat!(env!("OUT_DIR"), "/filesystem.serde.rs"));
}

/// A moment, in JSON as RFC 3339 in UTC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let moment = jiff::Timestamp::new(self.seconds, self.nanos).map_err(serde::ser::Error::custom)?;
        serializer.collect_str(&moment)
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let moment: jiff::Timestamp = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self { seconds: moment.as_second(), nanos: moment.subsec_nanosecond() })
    }
}

#[cfg(test)]
mod tests {
    use super::Timestamp;
    use super::process::process_event::{Event, StartEvent};
    use super::process::{ProcessEvent, ProcessSelector, process_selector::Selector};

    #[test]
    fn a_moment_is_written_in_utc() {
        let moment = Timestamp { seconds: 1_700_000_000, nanos: 5_000_000 };
        let text = serde_json::to_string(&moment).unwrap();
        assert_eq!(text, "\"2023-11-14T22:13:20.005Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), moment);
        assert_eq!(serde_json::from_str::<Timestamp>("\"2023-11-14T23:13:20.005+01:00\"").unwrap(), moment);
    }

    #[test]
    fn messages_have_the_json_that_clients_speak() {
        let event = ProcessEvent { event: Some(Event::Start(StartEvent { pid: 7, offsets: None })) };
        assert_eq!(serde_json::to_string(&event).unwrap(), r#"{"start":{"pid":7}}"#);
        let selector: ProcessSelector =
            serde_json::from_str(r#"{"tag": "mine", "somethingNew": {"x": [1]}}"#).unwrap();
        assert_eq!(selector.selector, Some(Selector::Tag("mine".into())));
    }
}
