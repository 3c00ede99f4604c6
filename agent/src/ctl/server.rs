//! HTTP over the unix socket, inside the worker.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`](holdfast_node::status::Status) and the worker's own figures, one object |
//! | `GET /v1/events?since=ID&follow=true` | journal entries, one object a line |
//! | `GET /v1/sync`, `GET /v1/flows?vip=NAME&limit=N`, `GET /v1/explain?flow=FLOW` | what the thread that replicates flows says, one object |
//! | `POST /v1/drain`, `POST /v1/undrain`, `POST /v1/pool`, `POST /v1/upgrade` | progress and end, one object a line |
//!
//! Refuses to wait for a client: a reader that stops reading holds its own task and nothing else, and at most
//! [`CONNECTIONS_MAX`] of them.

mod sync;

use super::connection::{Caller, Limited};
use super::lines::{LineSender, Lines};
use super::wire::{
    AnswerLine, BACKEND_MAX, BODY_MAX, DrainBody, ErrorBody, EventLine, FORCE_MAX, PoolBody, REASON_MAX, SCHEMA,
    UndrainBody, UpgradeBody,
};
use crate::balancer::flows;
use crate::os::diag;
use crate::os::nft::Balancer;
use crate::run::api::{ApiHandle, Unavailable, WorkerFigures};
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use holdfast_node::config::SetId;
use holdfast_node::io::{Answer, Request};
use holdfast_node::pool::status::PoolStatus;
use holdfast_node::status::Warning;
use serde::Deserialize;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// Name of the socket in the runtime directory.
pub const SOCKET: &str = "holdfast.sock";
/// Clients at a time. Full: the next one waits in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 64;
/// How long `GET /v1/status` waits for the protocol thread.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);
/// How long clients have to read the last lines when the agent stops.
const STOP_PATIENCE: Duration = Duration::from_secs(1);
/// Group that may use the socket.
const GROUP: &str = "holdfast";

/// Makes the socket: 0660, group `holdfast` where that exists. A stale socket file is replaced, but only if nobody
/// listens on it. Needs a tokio runtime.
///
/// # Errors
/// `AddrInUse` when somebody listens; else what the system says, with the path.
pub fn bind(runtime_dir: &Path) -> io::Result<UnixListener> {
    let path = runtime_dir.join(SOCKET);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    if std::os::unix::net::UnixStream::connect(&path).is_ok() {
        return Err(named(io::Error::new(io::ErrorKind::AddrInUse, "another agent listens here")));
    }
    // Under another name first: whoever sees the final name sees the final mode.
    let fresh = runtime_dir.join(format!(".{SOCKET}.new"));
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&fresh).map_err(named)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o660)).map_err(named)?;
    if let Ok(Some(group)) = nix::unistd::Group::from_name(GROUP) {
        // Not permitted (a rootless namespace, a foreign user): the socket stays with its owner's group.
        let _ = std::os::unix::fs::chown(&fresh, None, Some(group.gid.as_raw()));
    }
    std::fs::rename(&fresh, &path).map_err(named)?;
    Ok(listener)
}

/// Removes the socket file if nobody listens on it.
pub(super) fn remove_stale(runtime_dir: &Path) {
    let path = runtime_dir.join(SOCKET);
    if std::os::unix::net::UnixStream::connect(&path).is_err() {
        // Not there is as good as removed; else the next agent replaces it.
        let _ = std::fs::remove_file(&path);
    }
}

/// Answers until `stop`, and a second longer so that clients can read the end. A client that goes away cancels
/// nothing that it asked for.
pub async fn serve(listener: UnixListener, api: ApiHandle, stop: CancellationToken) {
    let state = Shared { api, stop: stop.clone() };
    let router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/events", get(events))
        .route("/v1/sync", get(sync::state))
        .route("/v1/flows", get(sync::list))
        .route("/v1/explain", get(sync::explain))
        .route("/v1/drain", post(drain))
        .route("/v1/undrain", post(undrain))
        .route("/v1/pool", post(pool))
        .route("/v1/upgrade", post(upgrade))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(axum::middleware::map_response(close))
        .with_state(state);
    let listener = Limited::new(listener, CONNECTIONS_MAX);
    let service = router.into_make_service_with_connect_info::<Caller>();
    let served = axum::serve(listener, service).with_graceful_shutdown(stop.clone().cancelled_owned());
    tokio::select! {
        _ = async { served.await } => {}
        () = async { stop.cancelled().await; tokio::time::sleep(STOP_PATIENCE).await } => {}
    }
}

#[derive(Debug, Clone)]
struct Shared {
    api: ApiHandle,
    stop: CancellationToken,
}

/// One request per connection: an idle one would only hold a place.
async fn close(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    response
}

fn refused(code: StatusCode, error: String) -> Response {
    (code, Json(ErrorBody { schema: SCHEMA, error })).into_response()
}

fn unavailable(error: Unavailable) -> Response {
    refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

fn lines(lines: Lines) -> Response {
    ([(header::CONTENT_TYPE, "application/x-ndjson")], axum::body::Body::new(lines)).into_response()
}

async fn status(State(shared): State<Shared>) -> Response {
    let mut answers = match shared.api.request(Request::Status).await {
        Ok(answers) => answers,
        Err(error) => return unavailable(error),
    };
    let answer = tokio::time::timeout(STATUS_PATIENCE, answers.recv()).await;
    let Ok(Some(Answer::Status(mut status))) = answer else {
        let error = format!("the node gave no answer within {} s", STATUS_PATIENCE.as_secs());
        return refused(StatusCode::GATEWAY_TIMEOUT, error);
    };
    if let Some(pool) = &mut status.pool {
        count_flows(pool).await;
    }
    let figures = shared.api.figures();
    status.warnings.extend(warnings(&figures));
    let Ok(mut value) = serde_json::to_value(&*status) else {
        return refused(StatusCode::INTERNAL_SERVER_ERROR, "the status is not JSON".to_owned());
    };
    if let Some(object) = value.as_object_mut() {
        object.insert("worker".to_owned(), worker(&figures));
    }
    Json(value).into_response()
}

/// New flows of each backend since the table was loaded. Not by the node: a thousand sets take the kernel a while.
async fn count_flows(pool: &mut PoolStatus) {
    let sets = (0..).take(pool.sets.len()).map(SetId);
    let read = move || {
        let mut kernel = Balancer::open()?;
        // One that can't be read has no figure.
        io::Result::Ok(sets.map(|set| kernel.flows(set).unwrap_or_default()).collect::<Vec<_>>())
    };
    let read = tokio::task::spawn_blocking(read).await;
    let Ok(Ok(flows)) = read else { return };
    for (set, flows) in pool.sets.iter_mut().zip(flows) {
        for backend in &mut set.backends {
            backend.flows = backend.address.parse().ok().and_then(|address: SocketAddr| flows.get(&address)).copied();
        }
    }
}

fn worker(figures: &WorkerFigures) -> serde_json::Value {
    let snapshot = |s: crate::run::lateness::Snapshot| serde_json::json!({ "count": s.count, "p50_us": s.p50_us, "p99_us": s.p99_us, "max_us": s.max_us });
    let mut worker = serde_json::json!({
        "pid": std::process::id(),
        "timer_late": snapshot(figures.timer),
        "advert_late": snapshot(figures.advert),
        "dropped": figures.dropped.iter().map(|(queue, n)| ((*queue).to_owned(), (*n).into())).collect::<serde_json::Map<_, _>>(),
        "disk_errors": figures.disk_errors,
        "realtime": figures.not_realtime.is_none(),
        "not_realtime": figures.not_realtime,
    });
    if let (Some(worker), Some(sync)) = (worker.as_object_mut(), &figures.sync) {
        // They are numbers and names.
        worker.insert("sync".to_owned(), serde_json::to_value(&**sync).unwrap_or_default());
    }
    worker
}

fn warnings(figures: &WorkerFigures) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if let Some(why) = &figures.not_realtime {
        warnings.push(Warning {
            text: format!("adverts can be late on a busy host: {why}"),
            remedy: "give the unit LimitRTPRIO= and a real-time budget, or keep advert intervals at 100ms and more"
                .to_owned(),
        });
    }
    if figures.disk_errors > 0 {
        warnings.push(Warning {
            text: format!("{} writes of the journal or the intents failed", figures.disk_errors),
            remedy: "make the state directory writable and see that its disk isn't full".to_owned(),
        });
    }
    for (queue, count) in figures.dropped.iter().filter(|(_, count)| *count > 0) {
        warnings.push(Warning {
            text: format!("{count} items were dropped since the queue `{queue}` was full"),
            remedy: "the host is overloaded: see worker.timer_late in status --json".to_owned(),
        });
    }
    warnings
}

#[derive(Debug, Deserialize)]
struct EventsQuery {
    #[serde(default)]
    since: u64,
    #[serde(default)]
    follow: bool,
}

async fn events(State(shared): State<Shared>, Query(query): Query<EventsQuery>) -> Response {
    let (sender, body) = Lines::channel();
    let mut stream = shared.api.events(query.since, query.follow);
    tokio::spawn(async move {
        loop {
            let next = tokio::select! {
                next = stream.next() => next,
                () = sender.closed() => None,
                () = shared.stop.cancelled() => None,
            };
            let Some(recorded) = next else { break };
            if !sender.send(&EventLine::of(&recorded)).await {
                break;
            }
        }
    });
    lines(body)
}

async fn drain(
    State(shared): State<Shared>,
    ConnectInfo(Caller(who)): ConnectInfo<Caller>,
    Json(body): Json<DrainBody>,
) -> Response {
    if body.reason.chars().count() > REASON_MAX || body.force.len() > FORCE_MAX {
        let error =
            format!("a reason has at most {REASON_MAX} characters, and at most {FORCE_MAX} interlocks are forced");
        return refused(StatusCode::BAD_REQUEST, error);
    }
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let request = Request::Drain {
        reason: body.reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
        who,
        at_unix_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
        deadline: Duration::from_millis(body.deadline_ms),
        force: body.force,
        dry_run: body.dry_run,
    };
    let vips = vip_addresses(&shared).await;
    answered(&shared, request, Some(vips)).await
}

/// Every address of a VIP, as the node says.
async fn vip_addresses(shared: &Shared) -> sync::Addresses {
    let Ok(mut answers) = shared.api.request(Request::Status).await else { return sync::Addresses::default() };
    let Ok(Some(Answer::Status(status))) = tokio::time::timeout(STATUS_PATIENCE, answers.recv()).await else {
        return sync::Addresses::default();
    };
    sync::Addresses::of(&status)
}

/// Connections that are open on these addresses and break, counted in the kernel's tables.
async fn open_connections(addresses: sync::Addresses) -> Option<u64> {
    // What is forwarded to a replicated VIP goes on elsewhere; what ends here doesn't.
    let count = move || io::Result::Ok(flows::open(&addresses.lost)? + diag::established(&addresses.replicated)?);
    tokio::task::spawn_blocking(count).await.ok()?.ok()
}

async fn undrain(
    State(shared): State<Shared>,
    ConnectInfo(Caller(who)): ConnectInfo<Caller>,
    Json(UndrainBody {}): Json<UndrainBody>,
) -> Response {
    answered(&shared, Request::Undrain { who }, None).await
}

async fn pool(
    State(shared): State<Shared>,
    ConnectInfo(Caller(who)): ConnectInfo<Caller>,
    Json(PoolBody { backend, drain }): Json<PoolBody>,
) -> Response {
    // Whatever is longer is no address, and is told as it was written.
    let backend = backend.chars().take(BACKEND_MAX).collect();
    answered(&shared, Request::Pool { who, backend, drain }, None).await
}

async fn upgrade(
    State(shared): State<Shared>,
    ConnectInfo(Caller(who)): ConnectInfo<Caller>,
    Json(UpgradeBody {}): Json<UpgradeBody>,
) -> Response {
    answered(&shared, Request::Upgrade { who }, None).await
}

/// Passes the node's answers on as they come; the end of a drain with what is still open on the `vips`. Nothing here
/// ends with the client: the node has the request.
async fn answered(shared: &Shared, request: Request, vips: Option<sync::Addresses>) -> Response {
    let mut answers = match shared.api.request(request).await {
        Ok(answers) => answers,
        Err(error) => return unavailable(error),
    };
    let (sender, body): (LineSender, Lines) = Lines::channel();
    tokio::spawn(async move {
        while let Some(answer) = answers.recv().await {
            let Some(mut line) = AnswerLine::of(answer) else { continue };
            if let (AnswerLine::Done { open_connections: open, .. }, Some(vips)) = (&mut line, &vips) {
                *open = open_connections(vips.clone()).await;
            }
            if !sender.send(&line).await {
                break;
            }
        }
    });
    lines(body)
}
