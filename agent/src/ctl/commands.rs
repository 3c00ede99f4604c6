//! Client commands that ask the agent.

use super::cli::Drain;
use super::client::{self, ClientError, LineReader};
use super::render::neighbors;
use super::wire::{AnswerLine, DrainBody, EventLine, PoolBody};
use super::{exit, render};
use holdfast_node::status::{Status, Verdict};
use hyper::Method;
use std::path::Path;
use std::time::Duration;

/// How long the new worker may take from the former one's end to its first answer.
const TAKEOVER_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked until then.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// How long `--detach` looks for a refusal before it lets go.
const DETACH_PATIENCE: Duration = Duration::from_secs(1);

/// Runs one client command; errors become a line on stderr and their exit code.
pub(super) fn client<F: Future<Output = Result<u8, ClientError>>>(work: F) -> u8 {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("holdfast: {error}");
            return exit::UNREACHABLE;
        }
    };
    match runtime.block_on(work) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("holdfast: {error}");
            match error {
                ClientError::Unreachable(_) => exit::UNREACHABLE,
                ClientError::Refused(_) => exit::USAGE,
            }
        }
    }
}

pub(super) fn garbled(what: &str, error: &serde_json::Error) -> ClientError {
    ClientError::Unreachable(format!("{what} can't be read, is the agent of another version? ({error})"))
}

/// Writes a line; `false`: nobody reads any more.
pub(super) fn print(line: &str) -> bool {
    render::out(&format!("{line}\n"))
}

pub(super) fn status(runtime_dir: &Path, json: bool, oneline: bool) -> u8 {
    client(async {
        let text = client::ask(runtime_dir, Method::GET, "/v1/status", None).await?.all().await?;
        let status: Status = serde_json::from_slice(&text).map_err(|e| garbled("the status", &e))?;
        if json {
            // As the agent gave it: also what this client doesn't know yet.
            let value: serde_json::Value = serde_json::from_slice(&text).map_err(|e| garbled("the status", &e))?;
            print(&serde_json::to_string_pretty(&value).map_err(|e| garbled("the status", &e))?);
        } else if oneline {
            print(&render::verdict(&status));
        } else {
            print(render::status(&status).trim_end());
        }
        Ok(match status.verdict {
            Verdict::Ok => exit::OK,
            Verdict::Degraded => exit::FAILED,
            Verdict::Critical => exit::SEMANTICS,
        })
    })
}

pub(super) fn neighbors(runtime_dir: &Path, json: bool) -> u8 {
    client(async {
        let text = client::ask(runtime_dir, Method::GET, "/v1/status", None).await?.all().await?;
        if json {
            // As the agent gave them: also what this client doesn't know yet.
            let mut value: serde_json::Value = serde_json::from_slice(&text).map_err(|e| garbled("the status", &e))?;
            let neighbors = value.get_mut("neighbors").map(serde_json::Value::take).unwrap_or_default();
            let value = serde_json::json!({ "schema": 1, "neighbors": neighbors });
            print(&serde_json::to_string_pretty(&value).map_err(|e| garbled("the status", &e))?);
        } else {
            let status: Status = serde_json::from_slice(&text).map_err(|e| garbled("the status", &e))?;
            print(neighbors::all(&status.neighbors).trim_end());
        }
        Ok(exit::OK)
    })
}

pub(super) fn events(runtime_dir: &Path, json: bool, since: u64, follow: bool) -> u8 {
    client(async {
        let target = format!("/v1/events?since={since}&follow={follow}");
        let mut answer = client::ask(runtime_dir, Method::GET, &target, None).await?;
        while let Some(line) = answer.line().await? {
            let text = if json {
                String::from_utf8_lossy(&line).into_owned()
            } else {
                let line: EventLine = serde_json::from_slice(&line).map_err(|e| garbled("an event", &e))?;
                render::event(&line)
            };
            if !print(&text) {
                break;
            }
        }
        Ok(exit::OK)
    })
}

pub(super) fn drain(runtime_dir: &Path, drain: &Drain) -> u8 {
    client(async {
        let body = DrainBody {
            reason: drain.reason.clone(),
            deadline_ms: u64::try_from(drain.deadline.as_millis()).unwrap_or(u64::MAX),
            force: drain.force.clone(),
            dry_run: drain.dry_run,
        };
        let body = serde_json::to_vec(&body).map_err(|e| garbled("the request", &e))?;
        let mut answer = client::ask(runtime_dir, Method::POST, "/v1/drain", Some(body)).await?;
        if !drain.detach {
            return outcome(&mut answer).await;
        }
        // A refusal comes at once; what goes on after that needs nobody to watch.
        match tokio::time::timeout(DETACH_PATIENCE, first(&mut answer)).await {
            Ok(Ok(Some(code))) => Ok(code),
            Ok(Err(error)) => Err(error),
            Ok(Ok(None)) | Err(_) => {
                print("draining; `holdfast status` shows how far it is");
                Ok(exit::OK)
            }
        }
    })
}

pub(super) fn undrain(runtime_dir: &Path) -> u8 {
    client(async {
        let mut answer = client::ask(runtime_dir, Method::POST, "/v1/undrain", Some(b"{}".to_vec())).await?;
        outcome(&mut answer).await
    })
}

pub(super) fn upgrade(runtime_dir: &Path) -> u8 {
    client(async {
        let former = worker_pid(runtime_dir).await?;
        let mut answer = client::ask(runtime_dir, Method::POST, "/v1/upgrade", Some(b"{}".to_vec())).await?;
        match outcome(&mut answer).await {
            Ok(exit::OK) => {}
            Ok(_) => return Ok(exit::FAILED),
            // Its last word may be lost with it: whether it has left is seen from who answers.
            Err(ClientError::Unreachable(_)) => {}
            Err(refused) => return Err(refused),
        }
        let limit = tokio::time::Instant::now() + TAKEOVER_PATIENCE;
        loop {
            match worker_pid(runtime_dir).await {
                Ok(pid) if pid != former => {
                    print("the new worker answers");
                    return Ok(exit::OK);
                }
                answer if tokio::time::Instant::now() >= limit => {
                    let why = answer.err().map_or_else(|| "it is still the former one".to_owned(), |e| e.to_string());
                    let waited = TAKEOVER_PATIENCE.as_secs();
                    return Err(ClientError::Unreachable(format!("no new worker answered within {waited} s: {why}")));
                }
                _ => tokio::time::sleep(ASK_AGAIN).await,
            }
        }
    })
}

/// Who answers; `None`: one that doesn't say so.
async fn worker_pid(runtime_dir: &Path) -> Result<Option<u64>, ClientError> {
    let text = client::ask(runtime_dir, Method::GET, "/v1/status", None).await?.all().await?;
    let status: serde_json::Value = serde_json::from_slice(&text).map_err(|e| garbled("the status", &e))?;
    Ok(status.pointer("/worker/pid").and_then(serde_json::Value::as_u64))
}

pub(super) fn pool(runtime_dir: &Path, backend: String, drain: bool) -> u8 {
    client(async {
        let body = serde_json::to_vec(&PoolBody { backend, drain }).map_err(|e| garbled("the request", &e))?;
        let mut answer = client::ask(runtime_dir, Method::POST, "/v1/pool", Some(body)).await?;
        outcome(&mut answer).await
    })
}

/// Shows progress until the end, and gives its exit code.
async fn outcome(answer: &mut LineReader) -> Result<u8, ClientError> {
    loop {
        if let Some(code) = first(answer).await? {
            return Ok(code);
        }
    }
}

/// Shows the next line. `None`: it goes on.
async fn first(answer: &mut LineReader) -> Result<Option<u8>, ClientError> {
    let Some(line) = answer.line().await? else {
        return Err(ClientError::Unreachable("it ended before the answer was complete".to_owned()));
    };
    let line: AnswerLine = serde_json::from_slice(&line).map_err(|e| garbled("the answer", &e))?;
    Ok(match line {
        AnswerLine::Progress { text } => {
            print(&text);
            None
        }
        AnswerLine::Done { text, open_connections } => {
            print(&match open_connections {
                Some(1) => format!("{text}; 1 connection that was open through this host breaks"),
                Some(n) => format!("{text}; {n} connections that were open through this host break"),
                None => text,
            });
            Some(exit::OK)
        }
        AnswerLine::Refused { interlock, why } => {
            eprintln!("holdfast: refused by the interlock `{interlock}`: {why}");
            Some(exit::REFUSED)
        }
        AnswerLine::Deadline { text } => ended("the deadline passed", &text, exit::DEADLINE),
        AnswerLine::Aborted { text } => ended("aborted", &text, exit::ABORTED),
        AnswerLine::PeerLost { text } => ended("the peer was lost", &text, exit::PEER_LOST),
    })
}

fn ended(how: &str, text: &str, code: u8) -> Option<u8> {
    eprintln!("holdfast: {how}: {text}");
    Some(code)
}
