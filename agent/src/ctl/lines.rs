//! A body of lines that is written while it is read.

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use serde::Serialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Lines that wait for the client. Full: the writer waits, and what feeds it drops what it can't keep.
const LINES_MAX: usize = 32;

/// The reading end, as an HTTP body.
#[derive(Debug)]
pub(super) struct Lines(mpsc::Receiver<Bytes>);

/// The writing end.
#[derive(Debug)]
pub(super) struct LineSender(mpsc::Sender<Bytes>);

impl Lines {
    pub(super) fn channel() -> (LineSender, Self) {
        let (sender, receiver) = mpsc::channel(LINES_MAX);
        (LineSender(sender), Self(receiver))
    }
}

impl LineSender {
    /// `false`: the client is gone.
    pub(super) async fn send<T: Serialize>(&self, line: &T) -> bool {
        let Ok(mut text) = serde_json::to_vec(line) else { return true };
        text.push(b'\n');
        self.0.send(Bytes::from(text)).await.is_ok()
    }

    /// When the client goes away.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.0.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}
