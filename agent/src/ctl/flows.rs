//! Client commands about replicated flows, and about why something is as it is.

use super::client::{self, ClientError};
use super::commands::{client, garbled, print};
use super::exit;
use super::flow::FlowName;
use super::render::{explain, flows, peers};
use super::wire::{ExplainBody, FlowsBody, SyncBody};
use holdfast_node::status::{Status, VipStatus};
use hyper::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::Path;

/// Asks for one object.
async fn get<T: DeserializeOwned>(runtime_dir: &Path, target: &str, what: &str) -> Result<T, ClientError> {
    let text = client::ask(runtime_dir, Method::GET, target, None).await?.all().await?;
    serde_json::from_slice(&text).map_err(|error| garbled(what, &error))
}

fn read<T: DeserializeOwned>(value: &Value, what: &str) -> Result<T, ClientError> {
    T::deserialize(value).map_err(|error| garbled(what, &error))
}

fn pretty(value: &Value) {
    // Values of JSON are JSON.
    print(&serde_json::to_string_pretty(value).unwrap_or_default());
}

pub(super) fn peers(runtime_dir: &Path, json: bool) -> u8 {
    client(async {
        let status: Value = get(runtime_dir, "/v1/status", "the status").await?;
        let sync: Value = get(runtime_dir, "/v1/sync", "the replication's state").await?;
        if json {
            // As the agent gave them: also what this client doesn't know yet.
            pretty(&json!({ "schema": 1, "node": status["node"], "peers": status["peers"], "sync": sync["sync"] }));
        } else {
            let status: Status = read(&status, "the status")?;
            let SyncBody { sync, .. } = read(&sync, "the replication's state")?;
            print(peers::all(&status.peers, sync.as_ref()).trim_end());
        }
        Ok(exit::OK)
    })
}

pub(super) fn list(runtime_dir: &Path, vip: Option<&str>, limit: u32, json: bool) -> u8 {
    client(async {
        let of = vip.map(|vip| format!("&vip={}", escaped(vip))).unwrap_or_default();
        let answer: Value = get(runtime_dir, &format!("/v1/flows?limit={limit}{of}"), "the flows").await?;
        if json {
            pretty(&answer);
            return Ok(exit::OK);
        }
        let body: FlowsBody = read(&answer, "the flows")?;
        match (&body.sync, &body.flows) {
            (Some(summary), Some(found)) => print(flows::all(summary, found, vip).trim_end()),
            _ => print(flows::NONE),
        };
        Ok(exit::OK)
    })
}

pub(super) fn explain(runtime_dir: &Path, what: &str, json: bool) -> u8 {
    if !FlowName::is_meant(what) {
        return explain_vips(runtime_dir, what.trim(), json);
    }
    let flow: FlowName = match what.parse() {
        Ok(flow) => flow,
        Err(error) => {
            eprintln!("holdfast: explain: {error}");
            return exit::USAGE;
        }
    };
    client(async {
        let answer: Value = get(runtime_dir, &format!("/v1/explain?flow={}", escaped(&flow.to_string())), "it").await?;
        if json {
            pretty(&answer);
            return Ok(exit::OK);
        }
        let body: ExplainBody = read(&answer, "the explanation")?;
        match (&body.explained, &body.sync) {
            (Some(explained), Some(sync)) => {
                print(explain::flow(&body.flow, explained, &sync.peers).trim_end());
            }
            _ => {
                print(&format!("NO: {flow}: {}", flows::NONE));
            }
        }
        Ok(exit::OK)
    })
}

/// One VIP, or all where none is named.
fn explain_vips(runtime_dir: &Path, name: &str, json: bool) -> u8 {
    client(async {
        let value: Value = get(runtime_dir, "/v1/status", "the status").await?;
        let status: Status = read(&value, "the status")?;
        let meant = |vip: &VipStatus| name.is_empty() || vip.name == name || vip.group.as_deref() == Some(name);
        if !status.vips.iter().any(meant) {
            let known: Vec<&str> = status.vips.iter().map(|vip| vip.name.as_str()).collect();
            eprintln!(
                "holdfast: explain: no VIP is called `{name}` here, only {}; a flow is written \
                 `tcp 198.51.100.7:40000 192.0.2.10:80` (client, then VIP)",
                known.join(", ")
            );
            return Ok(exit::USAGE);
        }
        if json {
            let vips: Vec<&Value> = value["vips"]
                .as_array()
                .into_iter()
                .flatten()
                .zip(&status.vips)
                .filter(|(_, vip)| meant(vip))
                .map(|(value, _)| value)
                .collect();
            pretty(&json!({ "schema": 1, "node": status.node, "vips": vips }));
        } else {
            let told: Vec<String> =
                status.vips.iter().filter(|vip| meant(vip)).map(|vip| explain::vip(vip, &status)).collect();
            print(told.join("\n").trim_end());
        }
        Ok(exit::OK)
    })
}

/// As a value in a query: whatever isn't plain is written by its bytes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}
