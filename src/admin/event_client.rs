//! The client of a stream of server-sent events: of `/events` for `tidegate top`, of
//! `/blocked/stream` for the exporter.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Collected, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{HttpConnector, HttpInfo};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::event_reader::EventReader;
use super::node_client::{NodeClient, Reach, innermost};
use crate::config::Secret;

/// Most bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: usize = 4 << 10;

/// The admin listener of a node.
#[derive(Clone, Debug)]
pub struct Listener {
    /// `http://HOST:PORT`, or `https`.
    pub url: Uri,
    pub reach: Reach,
    pub token: Option<Secret>,
}

/// An open stream of events of one name.
#[derive(Debug)]
pub struct EventStream {
    name: &'static str,
    body: Incoming,
    events: EventReader,
    addr: Option<IpAddr>,
}

impl Listener {
    /// Opens the stream at `path`, which begins with a slash, for the events called `name`.
    ///
    /// # Errors
    ///
    /// What to tell the operator: the listener cannot be reached, or has not answered after `most`,
    /// or refused, in its own words.
    pub async fn open(
        &self,
        path: &str,
        name: &'static str,
        most: Duration,
    ) -> Result<EventStream, String> {
        let (body, addr) = timeout(most, self.request(path, most))
            .await
            .map_err(|_| format!("no answer within {most:?}"))??;
        Ok(EventStream { name, body, events: EventReader::default(), addr })
    }

    async fn request(
        &self,
        path: &str,
        most: Duration,
    ) -> Result<(Incoming, Option<IpAddr>), String> {
        let Self { url, reach, token } = self;
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(most));
        // Its files are read again: they may have been renewed.
        let client: NodeClient<Empty<Bytes>> =
            reach.client(url, connector).map_err(|error| error.to_string())?;
        let stream = format!("{}{path}", url.to_string().trim_end_matches('/'));
        let mut request = Request::get(stream).header(ACCEPT, "text/event-stream");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let response = client.request(request).await.map_err(|error| innermost(&error))?;
        let addr = response.extensions().get::<HttpInfo>().map(|it| it.remote_addr().ip());
        let (head, body) = response.into_parts();
        if head.status == StatusCode::OK {
            return Ok((body, addr));
        }
        let body = Limited::new(body, REFUSAL_BYTES_MAX).collect().await;
        let body = body.map(Collected::to_bytes).unwrap_or_default();
        let says = serde_json::from_slice(&body).ok();
        let says = says.as_ref().and_then(|body: &Value| body.get("error")).and_then(Value::as_str);
        let says = says.unwrap_or("is it the admin listener of a node?");
        Err(format!("the node answered {}: {says}", head.status))
    }
}

impl EventStream {
    /// The address that was connected to.
    pub fn addr(&self) -> Option<IpAddr> {
        self.addr
    }

    /// The data of the newest event: each is complete, so earlier ones that arrived with it are
    /// skipped. Cancel-safe.
    ///
    /// # Errors
    ///
    /// What to tell the operator: the stream has ended, was silent for `silence_max`, or is none
    /// of these events.
    pub async fn next<T: DeserializeOwned>(&mut self, silence_max: Duration) -> Result<T, String> {
        loop {
            let frame = match timeout(silence_max, self.body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => {
                    return Err(format!("the stream broke: {}", innermost(&error)));
                }
                Ok(None) => return Err("the node ended the stream".to_owned()),
                Err(_) => return Err(format!("the stream was silent for {silence_max:?}")),
            };
            let Ok(data) = frame.into_data() else { continue };
            let events = self.events.push(&data).map_err(|error| error.to_string())?;
            let newest = events.into_iter().rfind(|event| event.name == self.name.as_bytes());
            if let Some(event) = newest {
                return serde_json::from_slice(&event.data)
                    .map_err(|error| format!("no event {:?} of a node: {error}", self.name));
            }
        }
    }
}
