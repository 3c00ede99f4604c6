//! What goes over the control socket, as types for both ends. JSON; answers that come in parts are one object a line.

use crate::run::api::Recorded;
use crate::run::sync::query::{Explained, Flows, Summary};
use holdfast_node::io::Answer;
use holdfast_node::journal::Event;
use serde::{Deserialize, Serialize};

/// Version of these forms.
pub const SCHEMA: u32 = 1;
/// Longest request body, bytes.
pub const BODY_MAX: usize = 16 * 1024;
/// Longest reason, characters.
pub const REASON_MAX: usize = 512;
/// Interlocks that can be forced at once.
pub const FORCE_MAX: usize = 16;

/// Body of `POST /v1/drain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainBody {
    /// The operator's words.
    #[serde(default)]
    pub reason: String,
    /// How long it may take.
    pub deadline_ms: u64,
    /// Interlocks to pass, by name.
    #[serde(default)]
    pub force: Vec<String>,
    /// Only say what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

/// Body of `POST /v1/undrain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UndrainBody {}

/// Body of `POST /v1/upgrade`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeBody {}

/// Body of `POST /v1/pool`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolBody {
    /// `ip:port`, or `ip` for all of its ports.
    pub backend: String,
    /// No new flows; `false`: they may come again.
    pub drain: bool,
}

/// Longest name of a backend, bytes.
pub const BACKEND_MAX: usize = 64;

/// One line of the answer to a drain, an undrain or an upgrade. Any number of `Progress`, then exactly one other; an
/// answer that ends without one means that the agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum AnswerLine {
    /// It goes on.
    Progress {
        /// For people.
        text: String,
    },
    /// Done.
    Done {
        /// For people.
        text: String,
        /// After a drain: connections that are still open on this host's VIPs. They break, their state lives here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        open_connections: Option<u64>,
    },
    /// Refused.
    Refused {
        /// The interlock's name, as `--force` takes it.
        interlock: String,
        /// Why.
        why: String,
    },
    /// The deadline passed.
    Deadline {
        /// For people.
        text: String,
    },
    /// Ended by another request.
    Aborted {
        /// For people.
        text: String,
    },
    /// The peer was lost.
    PeerLost {
        /// For people.
        text: String,
    },
}

impl AnswerLine {
    /// `None`: a status, which no drain is answered with.
    pub fn of(answer: Answer) -> Option<Self> {
        Some(match answer {
            Answer::Progress(text) => Self::Progress { text },
            Answer::Done(text) => Self::Done { text, open_connections: None },
            Answer::Refused { interlock, why } => Self::Refused { interlock, why },
            Answer::Deadline(text) => Self::Deadline { text },
            Answer::Aborted(text) => Self::Aborted { text },
            Answer::PeerLost(text) => Self::PeerLost { text },
            Answer::Status(_) => return None,
        })
    }
}

/// One journal entry as a line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLine {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// Wall clock at emission, RFC 3339 in UTC.
    pub time: String,
    /// The entry.
    #[serde(flatten)]
    pub event: Event,
}

impl EventLine {
    /// The line of a recorded event.
    pub fn of(recorded: &Recorded) -> Self {
        let time = jiff::Timestamp::try_from(recorded.wall).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        Self { schema: SCHEMA, time: format!("{time:.6}"), event: recorded.event.clone() }
    }
}

/// Answer of `GET /v1/sync`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncBody {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// How the replication of flows stands; `None`: nothing is replicated.
    pub sync: Option<Summary>,
}

/// Answer of `GET /v1/flows`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsBody {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// As in [`SyncBody`].
    pub sync: Option<Summary>,
    /// The flows, and whether there are more; `None`: nothing is replicated.
    #[serde(flatten)]
    pub flows: Option<Flows>,
}

/// Answer of `GET /v1/explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainBody {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The flow, as it was understood.
    pub flow: String,
    /// What is known of it; `None`: nothing is replicated.
    pub explained: Option<Explained>,
    /// As in [`SyncBody`].
    pub sync: Option<Summary>,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// What was wrong.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::journal::Kind;
    use std::time::{Duration, SystemTime};

    #[test]
    fn an_event_line_is_flat_and_reads_back() {
        let kind = Kind::BalancerState { balancer: "b".to_owned(), state: "gone".to_owned(), why: "killed".to_owned() };
        let event = Event { id: 7, cause: Some(6), suppressed: 0, kind };
        let wall = SystemTime::UNIX_EPOCH + Duration::from_micros(1_234_567);
        let line = EventLine::of(&Recorded { wall, event });
        let text = serde_json::to_string(&line).expect("plain data");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["schema"], 1);
        assert_eq!(value["time"], "1970-01-01T00:00:01.234567Z");
        assert_eq!((&value["id"], &value["cause"]), (&7.into(), &6.into()));
        assert_eq!((&value["event"], &value["balancer"]), (&"balancer_state".into(), &"b".into()));
        assert_eq!(serde_json::from_str::<EventLine>(&text).expect("reads back"), line);
    }

    #[test]
    fn a_drain_with_unknown_fields_is_refused() {
        assert!(serde_json::from_str::<DrainBody>(r#"{"deadline_ms":1,"for":"2h"}"#).is_err());
        assert!(serde_json::from_str::<DrainBody>(r#"{"deadline_ms":1}"#).is_ok());
    }
}
