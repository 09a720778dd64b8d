//! The middleware for reqwest.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use http::{Extensions, StatusCode};
use reqwest_middleware::reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use crate::pacer::Pacer;

/// How often a refused request is sent again by default.
pub const RETRIES: u32 = 2;

/// Middleware that paces: all requests of a client, from however many tasks, share what the
/// responses say.
///
/// A refused request (429) is sent again when its origin has room, [`RETRIES`] times at most, if
/// its body is no stream. It is not if that would take longer than the pacer allows: then the
/// refusal is the response. A request that would have to wait longer in the first place is not
/// sent, and ends in [`Error::Middleware`] with a [`WaitError`](crate::WaitError).
///
/// reqwest follows redirects below the middleware: what the last response says counts for the
/// origin of the request. A timeout of reqwest begins when a request is sent, and does not include
/// the wait; a `tokio::time::timeout` around the call does.
///
/// ```
/// use reqwest_middleware::{ClientBuilder, reqwest};
/// use tidegate_client::Pacing;
///
/// let client = ClientBuilder::new(reqwest::Client::new()).with(Pacing::default()).build();
/// # let _ = client.get("https://api.example.com/items");
/// ```
#[derive(Clone)]
pub struct Pacing {
    pacer: Arc<Pacer>,
    route: Arc<Route>,
    retries: u32,
}

type Route = dyn Fn(&Request) -> String + Send + Sync;

impl Default for Pacing {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Pacing {
    /// The pacer may be shared with other clients.
    pub fn new(pacer: Arc<Pacer>) -> Self {
        Self { pacer, route: Arc::new(|_| String::new()), retries: RETRIES }
    }

    /// Tells requests of one origin apart, if limits differ within it: a function of the request to
    /// a name. By default limits count for the whole origin.
    #[must_use]
    pub fn with_route(
        mut self,
        route: impl Fn(&Request) -> String + Send + Sync + 'static,
    ) -> Self {
        self.route = Arc::new(route);
        self
    }

    /// How often a refused request is sent again, by default [`RETRIES`]; 0 is never.
    #[must_use]
    pub fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }
}

impl fmt::Debug for Pacing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Pacing");
        shown.field("pacer", &self.pacer).field("retries", &self.retries).finish_non_exhaustive()
    }
}

#[async_trait]
impl Middleware for Pacing {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let origin = request.url().origin().ascii_serialization();
        let route = (self.route)(&request);
        let mut permit = self.pacer.acquire(&origin, &route).await.map_err(Error::middleware)?;
        let (mut request, mut retries) = (request, self.retries);
        loop {
            let again = if retries > 0 { request.try_clone() } else { None };
            let response = next.clone().run(request, extensions).await?;
            let paused = self.pacer.observe(permit, response.status(), response.headers());
            let is_refused = response.status() == StatusCode::TOO_MANY_REQUESTS;
            let Some(again) = again.filter(|_| is_refused) else {
                return Ok(response);
            };
            if paused > Some(self.pacer.wait_max()) {
                return Ok(response);
            }
            let Ok(next_permit) = self.pacer.acquire(&origin, &route).await else {
                return Ok(response);
            };
            (permit, request, retries) = (next_permit, again, retries - 1);
        }
    }
}
