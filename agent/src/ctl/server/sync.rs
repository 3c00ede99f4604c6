//! What the thread that replicates flows is asked. Where nothing is replicated the answer says so, and is no error.

use super::{Shared, refused, unavailable};
use crate::ctl::flow::FlowName;
use crate::ctl::wire::{ExplainBody, FlowsBody, SCHEMA, SyncBody};
use crate::run::sync::query::{self, Answer, LIST_MAX, Query as Asked, Summary, SyncHandle};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

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
