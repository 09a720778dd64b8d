//! What both listeners share: deciding, health, and the errors of whole calls.

use std::pin::pin;
use std::sync::Arc;

use arc_swap::ArcSwap;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tidegate_ownership::route::Topology;
use tidegate_proto::gubernator::{
    GetRateLimitsResp, HealthCheckResp, PeerHealthResp, RateLimitReq, RateLimitResp,
    Status::OverLimit,
};
use tonic::Status;

use super::limit::{self, Asked, Settings};
use super::{MESSAGE_BYTES_MAX, REQUESTS_MAX};
use crate::decide::{DecideCarried, VerdictSource};
use crate::front::bounds::Bounds;
use crate::front::pages::Page;
use crate::front::serve::ListenerStats;
use crate::front::stats::Counter;
use crate::front::{Probes, within};

/// The parts of the listeners.
#[derive(Debug)]
pub struct GubernatorListener<D, P> {
    pub decide: Arc<D>,
    pub probes: Arc<P>,
    pub settings: Settings,
    pub bounds: Bounds,
    /// The members, for health.
    pub topology: Arc<ArcSwap<Topology>>,
    /// The address of the gRPC listener, as health reports it.
    pub advertise: String,
    /// Counts refused requests, and messages that cannot be read.
    pub stats: Arc<ListenerStats>,
    pub calls: Arc<Calls>,
    pub metrics: Page,
}

/// What is counted of calls, under the names that dashboards of Gubernator know.
#[derive(Debug, Default)]
pub struct Calls {
    /// Requests that were decided here.
    pub local: Counter,
    /// Requests that the owner of their key decided.
    pub forwarded: Counter,
    /// Requests that carried `GLOBAL`.
    pub global: Counter,
    pub over_limit: Counter,
    /// Requests that named no valid limit.
    pub invalid: Counter,
    /// Calls with more than [`REQUESTS_MAX`] requests.
    pub too_large: Counter,
    /// Calls of `GetRateLimits` that were answered.
    pub ok: Counter,
    /// Those that were not, also because their message could not be read.
    pub failed: Counter,
}

impl<D: DecideCarried, P: Probes> GubernatorListener<D, P> {
    /// The responses to `requests`, in their order. `count` is how many there are, also those that
    /// were not kept.
    ///
    /// # Errors
    ///
    /// `OUT_OF_RANGE` if there are too many, `DEADLINE_EXCEEDED` if deciding takes too long.
    pub async fn rate_limits(
        &self,
        requests: &[RateLimitReq],
        count: usize,
    ) -> Result<GetRateLimitsResp, Status> {
        if count > REQUESTS_MAX {
            self.calls.too_large.add(1);
            self.stats.refused.add(1);
            return Err(too_many());
        }
        let now = self.decide.now();
        let mut checks = Vec::with_capacity(requests.len());
        let mut shown = Vec::with_capacity(requests.len());
        let mut responses = Vec::with_capacity(requests.len());
        let mut counts = Counts::default();
        for request in requests {
            match limit::asked(request, &self.settings, now) {
                Asked::Check(check, how) => {
                    checks.push(check);
                    shown.push((responses.len(), how));
                    responses.push(RateLimitResp::default());
                }
                Asked::Answer(response) => {
                    if response.error.is_empty() {
                        let is_over = response.status() == OverLimit;
                        counts.add(limit::is_global(request), VerdictSource::Local, is_over);
                    }
                    responses.push(response);
                }
            }
        }
        let decided = pin!(self.decide.decide_carried(&checks));
        let decided = within(self.bounds.request_timeout, decided).await;
        let decided = decided.ok_or_else(|| Status::deadline_exceeded("no decision in time"))?;
        for (((at, shown), decided), check) in shown.iter().zip(&decided).zip(&checks) {
            counts.add(check.is_leased, decided.source, shown.is_over(decided));
            if let Some(response) = responses.get_mut(*at) {
                *response = limit::response(shown, decided);
            }
        }
        let invalid = responses.iter().filter(|response| !response.error.is_empty()).count();
        self.calls.count(&counts, invalid as u64);
        if invalid > 0 {
            self.stats.refused.add(invalid as u64);
        }
        Ok(GetRateLimitsResp { responses })
    }

    /// Whether traffic may be sent here.
    pub(super) fn health(&self) -> Result<HealthCheckResp, Status> {
        self.probes.ready().map_err(Status::unavailable)?;
        let topology = self.topology.load();
        let mut health = HealthCheckResp {
            status: "healthy".to_owned(),
            advertise_address: self.advertise.clone(),
            ..HealthCheckResp::default()
        };
        for member in topology.view.members() {
            let is_local = member.region == topology.region;
            // A node outside of a cluster has no address of a mesh.
            let is_alone = member.addr.port() == 0;
            let grpc_address =
                if is_alone { self.advertise.clone() } else { member.addr.to_string() };
            let peer = PeerHealthResp { grpc_address, data_center: member.region.clone() };
            let peers = if is_local { &mut health.local_peers } else { &mut health.region_peers };
            peers.push(peer);
        }
        let peers = health.local_peers.len() + health.region_peers.len();
        health.peer_count = i32::try_from(peers).unwrap_or(i32::MAX);
        Ok(health)
    }
}

/// Of one call.
#[derive(Debug, Default)]
struct Counts {
    local: u64,
    forwarded: u64,
    global: u64,
    over_limit: u64,
}

impl Counts {
    fn add(&mut self, is_leased: bool, source: VerdictSource, is_over: bool) {
        let counter = match source {
            _ if is_leased => &mut self.global,
            VerdictSource::Owner => &mut self.forwarded,
            _ => &mut self.local,
        };
        *counter += 1;
        self.over_limit += u64::from(is_over);
    }
}

impl Calls {
    /// Counts a call of `GetRateLimits`.
    pub(super) fn ended(&self, is_ok: bool) {
        let counter = if is_ok { &self.ok } else { &self.failed };
        counter.add(1);
    }

    /// Adds up once for a call, so that clients on several threads do not wait for each other.
    fn count(&self, counts: &Counts, invalid: u64) {
        let Counts { local, forwarded, global, over_limit } = *counts;
        for (counter, count) in [
            (&self.local, local),
            (&self.forwarded, forwarded),
            (&self.global, global),
            (&self.over_limit, over_limit),
            (&self.invalid, invalid),
        ] {
            if count > 0 {
                counter.add(count);
            }
        }
    }
}

pub(super) fn too_many() -> Status {
    Status::out_of_range(format!(
        "Requests.RateLimits list too large; max size is '{REQUESTS_MAX}'"
    ))
}

pub(super) fn too_large(bytes: usize) -> Status {
    Status::resource_exhausted(format!(
        "grpc: received message larger than max ({bytes} vs. {MESSAGE_BYTES_MAX})"
    ))
}

/// How many requests a message has, without reading them: a message of two bytes a request would
/// otherwise become fifty times as large in memory before it is refused. Stops at the first field
/// that cannot be read.
pub fn requests_in(mut message: &[u8]) -> usize {
    /// The field `requests`.
    const REQUESTS: u32 = 1;
    let mut count = 0;
    while message.has_remaining() {
        let Ok((field, wire_type)) = decode_key(&mut message) else { break };
        if skip_field(wire_type, field, &mut message, DecodeContext::default()).is_err() {
            break;
        }
        count += usize::from(field == REQUESTS);
    }
    count
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;
    use tidegate_proto::gubernator::GetRateLimitsReq;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn as_many_requests_are_counted_as_are_read(message: Vec<u8>) {
            let count = requests_in(&message);
            if let Ok(read) = GetRateLimitsReq::decode(&*message) {
                prop_assert_eq!(read.requests.len(), count);
            }
        }

        #[test]
        fn requests_are_counted(count in 0_usize..40, hits: i64) {
            let request = RateLimitReq { hits, name: "n".to_owned(), ..RateLimitReq::default() };
            let message = GetRateLimitsReq { requests: vec![request; count] };
            prop_assert_eq!(requests_in(&message.encode_to_vec()), count);
        }
    }
}
