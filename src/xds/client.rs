//! The task that keeps the stream: connects, asks, applies and answers, and begins anew when the
//! stream ends.
//!
//! ```text
//! Client::new(...)   ── the files are there; rules are not ──► (Client, Handle)
//! Client::run(stop)  ── one task, until `stop` ──► swaps the book, publishes the status
//! ```
//!
//! What a node holds it keeps while the server is away. A book is in force before the server is
//! told so.

use std::sync::Arc;

use futures_util::stream;
use http::uri::PathAndQuery;
use tidegate_cluster::environment::Entropy;
use tidegate_rules::book::Book;
use tidegate_rules::load;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::backoff::Backoff;
use super::channel::{self, Error, causes};
use super::message::{Any, DiscoveryRequest, DiscoveryResponse, Node};
use super::resources;
use super::session::Session;
use super::structure::Struct;
use crate::config::Xds;
use crate::reload::current::Handle;

/// The one method that is called.
pub const STREAM_AGGREGATED_RESOURCES: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// A client of one management server; [`Client::run`] is its task.
#[derive(Debug)]
pub struct Client {
    xds: Xds,
    load: load::Options,
    handle: Handle,
    entropy: Arc<dyn Entropy>,
}

impl Client {
    /// A client of the server that `xds` names, and what others see of it: a book without rules,
    /// until the server sent some.
    ///
    /// The files that `xds` names are read here for a first time, so that a mistake is told at
    /// once.
    pub fn new(
        xds: Xds,
        load: load::Options,
        entropy: Arc<dyn Entropy>,
    ) -> Result<(Self, Handle), Error> {
        channel::endpoint(&xds)?;
        let handle = Handle::new(Book::unloaded());
        Ok((Self { xds, load, handle: handle.clone(), entropy }, handle))
    }

    /// Follows the server until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let server = self.xds.server.as_deref().unwrap_or_default();
        let mut backoff = Backoff::new(self.xds.backoff_initial, self.xds.backoff_max);
        loop {
            let following = self.follow(&mut backoff);
            let Some(why) = stop.run_until_cancelled(following).await else { return };
            let wait = backoff.wait(self.dice()).to_std();
            tracing::warn!(server, ?wait, "{why}; the rules stay as they are");
            self.handle.cut_off(format!("xds.server {server}: {why}"));
            if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Follows one stream to its end, and says why it ended.
    async fn follow(&self, backoff: &mut Backoff) -> String {
        let (answers, requests) = mpsc::channel(1);
        let mut session = Session::new(self.node());
        // There is room for one.
        let _ = answers.try_send(session.subscription());
        let mut responses = match self.open(requests).await {
            Ok(responses) => responses,
            Err(why) => return why,
        };
        loop {
            let response = match responses.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return "the server ended the stream".to_owned(),
                Err(status) => return format!("the stream broke: {}", causes(&status)),
            };
            backoff.reset();
            if !Session::concerns(&response) {
                tracing::warn!(type_url = response.type_url, "a response nobody asked for");
                continue;
            }
            let answer = self.take(&mut session, response).await;
            if answers.send(answer).await.is_err() {
                return "the server hears no answer any more".to_owned();
            }
        }
    }

    /// Connects and opens the stream.
    async fn open(
        &self,
        requests: mpsc::Receiver<DiscoveryRequest>,
    ) -> Result<Streaming<DiscoveryResponse>, String> {
        let endpoint = channel::endpoint(&self.xds).map_err(|error| error.to_string())?;
        let connecting = tokio::time::timeout(channel::CONNECT_TIMEOUT, endpoint.connect());
        let connection = connecting
            .await
            .map_err(|_| "no connection within five seconds".to_owned())?
            .map_err(|error| format!("connect: {}", causes(&error)))?;
        let mut grpc = tonic::client::Grpc::new(connection)
            .max_decoding_message_size(self.xds.max_message_bytes);
        grpc.ready().await.map_err(|error| format!("connect: {}", causes(&error)))?;
        tracing::info!(node_id = self.xds.node_id, "connected to the management server");

        let requests = stream::unfold(requests, async |mut requests| {
            requests.recv().await.map(|request| (request, requests))
        });
        let mut request = Request::new(requests);
        for (name, value) in self.xds.header_pairs() {
            // Both hold in a validated configuration.
            if let (Ok(name), Ok(value)) =
                (name.parse::<AsciiMetadataKey>(), value.parse::<AsciiMetadataValue>())
            {
                request.metadata_mut().append(name, value);
            }
        }
        let path = PathAndQuery::from_static(STREAM_AGGREGATED_RESOURCES);
        let response = grpc.streaming(request, path, ProstCodec::default()).await;
        Ok(response.map_err(|status| format!("ask for rules: {}", causes(&status)))?.into_inner())
    }

    /// Puts a response in force, or refuses it; the answer to it.
    async fn take(
        &self,
        session: &mut Session,
        mut response: DiscoveryResponse,
    ) -> DiscoveryRequest {
        let resources = std::mem::take(&mut response.resources);
        match self.compile(resources).await {
            Ok(book) => {
                self.handle.settle(Ok(book));
                session.answer(&response, Ok(()))
            }
            Err(Refused { to_server, to_people }) => {
                self.handle.settle(Err(to_people));
                session.answer(&response, Err(&to_server))
            }
        }
    }

    /// Compiles beside the tasks that answer: many rules take longer than a request may wait.
    async fn compile(&self, resources: Vec<Any>) -> Result<Book, Refused> {
        let (options, current) = (self.load.clone(), self.handle.book());
        let compiling = tokio::task::spawn_blocking(move || {
            let mut book = resources::read(&resources, &options)?;
            book.carry_stats(&current);
            Ok::<_, resources::Refusal>(book)
        });
        match compiling.await {
            Ok(Ok(book)) => Ok(book),
            Ok(Err(refusal)) => {
                Err(Refused { to_server: refusal.to_string(), to_people: refusal.in_full() })
            }
            Err(panicked) => {
                let why = format!("the loader failed: {panicked}");
                Err(Refused { to_server: why.clone(), to_people: why })
            }
        }
    }

    fn node(&self) -> Node {
        Node {
            id: self.xds.node_id.clone(),
            metadata: Some(Struct::of_texts(self.xds.metadata())),
            user_agent_name: "tidegate".to_owned(),
            user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Without randomness every wait is the shortest of its kind.
    fn dice(&self) -> u64 {
        let mut bytes = [0; 8];
        match self.entropy.fill(&mut bytes) {
            Ok(()) => u64::from_le_bytes(bytes),
            Err(_) => 0,
        }
    }
}

/// Why a response is not in force, for both sides.
struct Refused {
    to_server: String,
    to_people: String,
}
