//! Our routes and rules, listed anew whenever one of them may be gone.

use super::super::route::RouteSocket;
use super::super::route_watch::RouteWatch;
use holdfast_node::kernel::{Route, Rule};
use std::io;
use std::task::{Context, Poll};

/// Beside what the watch sees, a change of a link or an address is a reason to look: with an address go the routes
/// that have it as their source, with a link those over it, and the kernel tells of neither.
#[derive(Debug)]
pub(super) struct Ours {
    /// `None`: listed once, at the start.
    watch: Option<RouteWatch>,
    lister: RouteSocket,
    stale: bool,
}

impl Ours {
    pub(super) fn open(follow: bool) -> io::Result<Self> {
        let watch = if follow { Some(RouteWatch::open()?) } else { None };
        Ok(Self { watch, lister: RouteSocket::open()?, stale: true })
    }

    /// Something happened that may have taken routes away.
    pub(super) fn suspect(&mut self) {
        self.stale |= self.watch.is_some();
    }

    /// The complete list, if it may differ from the last one.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Vec<Route>, Vec<Rule>)>> {
        while let Some(Poll::Ready(gone)) = self.watch.as_mut().map(|watch| watch.poll_gone(cx)) {
            gone?;
            self.stale = true;
        }
        if !self.stale {
            return Poll::Pending;
        }
        let routes = self.lister.our_routes()?;
        let rules = self.lister.our_rules()?;
        self.stale = false;
        let routes = routes.into_iter().filter_map(|route| route.try_into().ok()).collect();
        Poll::Ready(Ok((routes, rules.into_iter().map(Rule::from).collect())))
    }
}
