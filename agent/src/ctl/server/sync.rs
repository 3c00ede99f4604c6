//! What the thread that replicates flows is asked. Where nothing is replicated the answer says so, and is no error.

use super::{Shared, refused, unavailable};
use crate::ctl::flow::FlowName;
use crate::ctl::wire::{ExplainBody, FlowsBody, SCHEMA, SyncBody};
use crate::run::sync::query::{self, Answer, LIST_MAX, Query as Asked, Summary, SyncHandle};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use holdfast_node::status::Status;
use serde::Deserialize;
use std::net::IpAddr;

/// Addresses of VIPs, by what becomes of connections that are forwarded to them when this node goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    /// They break.
    pub(super) lost: Vec<IpAddr>,
    /// A peer has them.
    pub(super) replicated: Vec<IpAddr>,
}

impl Addresses {
    pub(super) fn of(status: &Status) -> Self {
        let mut addresses = Self::default();
        // Without a peer that has them they break as others do.
        let sync = status
            .sync
            .as_ref()
            .filter(|sync| sync.trouble.is_none() && sync.peers.iter().any(|peer| peer.outbound.in_sync));
        for vip in &status.vips {
            let is_replicated = sync
                .iter()
                .flat_map(|sync| &sync.vips)
                .any(|of| of.mode != "off" && (of.name == vip.name || vip.group.as_ref() == Some(&of.name)));
            let list = if is_replicated { &mut addresses.replicated } else { &mut addresses.lost };
            list.extend(vip.addresses.iter().filter_map(|a| a.address.split('/').next()?.parse::<IpAddr>().ok()));
        }
        addresses
    }
}

/// Asks, or says why there is no answer.
async fn ask(sync: &SyncHandle, asked: Asked) -> Result<Answer, Response> {
    match sync.ask(asked).await {
        Ok(Answer::Refused(why)) => Err(refused(StatusCode::BAD_REQUEST, why)),
        Ok(answer) => Ok(answer),
        Err(error) => Err(unavailable(error)),
    }
}

/// An answer to another question than the one that was asked.
fn mixed_up() -> Response {
    refused(StatusCode::INTERNAL_SERVER_ERROR, "the replication's thread answered another question".to_owned())
}

async fn summary(sync: &SyncHandle) -> Result<Summary, Response> {
    match ask(sync, Asked::Summary).await? {
        Answer::Summary(summary) => Ok(summary),
        _ => Err(mixed_up()),
    }
}

pub(super) async fn state(State(shared): State<Shared>) -> Response {
    let answer = async {
        let sync = match shared.api.sync() {
            Some(sync) => Some(summary(sync).await?),
            None => None,
        };
        Ok::<_, Response>(Json(SyncBody { schema: SCHEMA, sync }).into_response())
    };
    answer.await.unwrap_or_else(|refused| refused)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    vip: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn list(State(shared): State<Shared>, Query(ListQuery { vip, limit }): Query<ListQuery>) -> Response {
    let Some(sync) = shared.api.sync() else {
        return Json(FlowsBody { schema: SCHEMA, sync: None, flows: None }).into_response();
    };
    let answer = async {
        let limit = limit.unwrap_or(LIST_MAX).min(LIST_MAX);
        let Answer::Flows(flows) = ask(sync, Asked::List { vip, limit }).await? else { return Err(mixed_up()) };
        let sync = Some(summary(sync).await?);
        Ok::<_, Response>(Json(FlowsBody { schema: SCHEMA, sync, flows: Some(flows) }).into_response())
    };
    answer.await.unwrap_or_else(|refused| refused)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainQuery {
    flow: String,
}

pub(super) async fn explain(
    State(shared): State<Shared>,
    Query(ExplainQuery { flow }): Query<ExplainQuery>,
) -> Response {
    let flow: FlowName = match flow.parse() {
        Ok(flow) => flow,
        Err(error) => return refused(StatusCode::BAD_REQUEST, format!("flow: {error}")),
    };
    let body = ExplainBody { schema: SCHEMA, flow: flow.to_string(), explained: None, sync: None };
    let Some(sync) = shared.api.sync() else { return Json(body).into_response() };
    let answer = async {
        let asked = query::FlowName::from(flow);
        let Answer::Explained(explained) = ask(sync, Asked::Explain { flow: asked }).await? else {
            return Err(mixed_up());
        };
        let sync = Some(summary(sync).await?);
        Ok::<_, Response>(Json(ExplainBody { explained: Some(explained), sync, ..body }).into_response())
    };
    answer.await.unwrap_or_else(|refused| refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::status::{SyncDirection, SyncPeerStatus, SyncStatus, SyncVipStatus};

    fn status(sync: Option<SyncStatus>) -> Status {
        let vip = |name: &str, group: Option<&str>, address: &str| {
            serde_json::json!({
                "name": name, "group": group, "state": "active", "owner": "lb1", "age_ms": 1, "priority": 254,
                "addresses": [{ "address": address, "interface": "eth0", "present": true, "age_ms": 1 }],
                "configured_priority": 254, "interface": "eth0", "vrid": 10, "interval_ms": 100, "fitness": "fit",
                "fitness_age_ms": 5, "fail_open": false, "reasons": [], "peers": [], "heard": null, "role_epoch": 1,
            })
        };
        let vips = [vip("web", Some("edge"), "192.0.2.10/32"), vip("dns", None, "2001:db8::10/128")];
        let text = serde_json::json!({
            "schema": 1, "verdict": "ok", "summary": "", "node": "lb1", "epoch": 1, "age_ms": 1, "vips": vips,
            "peers": [], "balancers": [], "checks": [], "drain": null, "counters": {}, "warnings": [], "sync": sync,
        });
        serde_json::from_value(text).expect("a status")
    }

    fn edge(mode: &str, in_sync: bool) -> SyncStatus {
        let outbound = SyncDirection { in_sync, ..SyncDirection::default() };
        SyncStatus {
            vips: vec![SyncVipStatus { name: "edge".to_owned(), mode: mode.to_owned(), ..SyncVipStatus::default() }],
            peers: vec![SyncPeerStatus { outbound, ..SyncPeerStatus::default() }],
            ..SyncStatus::default()
        }
    }

    #[test]
    fn forwarded_connections_break_unless_a_peer_has_them() {
        let (web, dns): (IpAddr, IpAddr) =
            ("192.0.2.10".parse().expect("an address"), "2001:db8::10".parse().expect("an address"));
        let replicated = Addresses { lost: vec![dns], replicated: vec![web] };
        assert_eq!(Addresses::of(&status(Some(edge("assured", true)))), replicated);
        let none = Addresses { lost: vec![web, dns], replicated: vec![] };
        let trouble = SyncStatus { trouble: Some("no privilege".to_owned()), ..edge("assured", true) };
        for sync in [None, Some(edge("off", true)), Some(edge("syn", false)), Some(trouble)] {
            assert_eq!(Addresses::of(&status(sync.clone())), none, "{sync:?}");
        }
    }
}
