//! Kuadrant's rate limit service: `kuadrant.service.ratelimit.v1.RateLimitService`.
//!
//! Kuadrant's gateways limit tokens of language models with it: they reserve an estimate when a
//! request arrives, and commit what the response says it cost.
//!
//! | method | does |
//! |---|---|
//! | `CheckRateLimit` | whether one hit would pass; counts nothing |
//! | `Report` | counts `hits_addend` hits (0 means 1), also beyond the limit |
//! | `Reserve` | keeps `amount` free for `ttl`; `OVER_LIMIT` if it does not fit |
//! | `Commit` | counts `actual_amount`; `reservation_released` if it was live and is limited |
//!
//! As in Limitador, an empty domain is answered `UNKNOWN`, and a commit is never refused. Unlike
//! there, a commit that is sent again counts once, and an amount is not cut to a part of the limit.
//!
//! Source: Kuadrant/limitador, `limitador-server/src/envoy_rls/kuadrant_service.rs`; RFC 0021 of
//! Kuadrant/architecture.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response};
use hyper::body::Body as HttpBody;
use smallvec::SmallVec;
use tidegate_limiter::descriptor::Descriptor;
use tidegate_limiter::store::{ReservationId, Settled};
use tidegate_limiter::units::{Hits, Span};
use tidegate_proto::kuadrant_rls::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse, SERVICE_NAME,
};
use tidegate_proto::rls::{self, Code, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use tonic::Status;

use super::request::{descriptors, overrides_ignored};
use super::service::{Error, RlsService, status};
use super::unary::{self, Body};
use crate::decide::{self, CheckRequest, CheckResponse, Reserve};
use crate::front::bounds::Refusal;
use crate::front::within;

impl<D: Reserve> RlsService<D> {
    /// The response to a call of this service.
    pub async fn call_kuadrant<B>(&self, head: &Parts, body: B) -> Response<Body>
    where
        B: HttpBody<Data = Bytes, Error: fmt::Display>,
    {
        let path = head.uri.path().strip_prefix('/').unwrap_or_default();
        let method = path.strip_prefix(SERVICE_NAME).unwrap_or_default();
        let headers = &head.headers;
        match method {
            "/CheckRateLimit" => unary::response(self.check_rate_limit(headers, body).await),
            "/Report" => unary::response(self.report(headers, body).await),
            "/Reserve" => unary::response(self.reserve(headers, body).await),
            "/Commit" => unary::response(self.commit(headers, body).await),
            _ => unary::response::<RateLimitResponse>(Err(Status::unimplemented(format!(
                "{SERVICE_NAME} has the methods CheckRateLimit, Report, Reserve and Commit"
            )))),
        }
    }

    async fn check_rate_limit<B>(
        &self,
        headers: &HeaderMap,
        body: B,
    ) -> Result<RateLimitResponse, Status>
    where
        B: HttpBody<Data = Bytes, Error: fmt::Display>,
    {
        let (message, timeout): (RateLimitRequest, _) = self.message(headers, body).await?;
        if message.domain.is_empty() {
            return Ok(unknown());
        }
        let mut descriptors = self.admitted(&message)?;
        for descriptor in &mut descriptors {
            descriptor.hits = None;
        }
        let check = CheckRequest {
            domain: &message.domain,
            descriptors: &descriptors,
            hits: Hits::PEEK,
            for_envoy: false,
        };
        let peeked = within(timeout, pin!(self.decide.decide(check))).await;
        let mut peeked = peeked.ok_or_else(|| status(&Error::Timeout))?;
        for peek in &mut peeked.statuses {
            let is_shadow = peek.rule.as_ref().is_some_and(|rule| rule.shadow);
            let has_room = peek.verdicts.iter().all(|verdict| verdict.remaining > 0);
            peek.allowed &= is_shadow || has_room;
        }
        // Of quotas one with room is enough.
        Ok(super::response(&CheckResponse::new(peeked.statuses, false)))
    }

    async fn report<B>(&self, headers: &HeaderMap, body: B) -> Result<RateLimitResponse, Status>
    where
        B: HttpBody<Data = Bytes, Error: fmt::Display>,
    {
        let (message, timeout): (RateLimitRequest, _) = self.message(headers, body).await?;
        if message.domain.is_empty() {
            return Ok(unknown());
        }
        let descriptors = self.admitted(&message)?;
        let cost = message.hits_addend.max(1).into();
        let (domain, id) = (&message.domain, None);
        let request = decide::CommitRequest { domain, descriptors: &descriptors, id, cost };
        let committed = self.committed(request, timeout).await?;
        Ok(super::response(&committed.response))
    }

    async fn reserve<B>(&self, headers: &HeaderMap, body: B) -> Result<ReserveResponse, Status>
    where
        B: HttpBody<Data = Bytes, Error: fmt::Display>,
    {
        let (message, timeout): (ReserveRequest, _) = self.message(headers, body).await?;
        let ReserveRequest { domain, descriptors, amount, ttl } = message;
        if domain.is_empty() {
            return Ok(ReserveResponse { code: Code::Unknown.into(), ..Default::default() });
        }
        let ttl = ttl.map(span).transpose()?;
        let message = with_domain(domain, descriptors);
        let descriptors = self.admitted(&message)?;
        let (domain, id) = (&message.domain, None);
        let request = decide::ReserveRequest { domain, descriptors: &descriptors, amount, ttl, id };
        let reserved = within(timeout, pin!(self.decide.reserve(request))).await;
        let reserved = reserved.ok_or_else(|| status(&Error::Timeout))?;
        let code = if reserved.response.allowed { Code::Ok } else { Code::OverLimit };
        let reservation_id = reserved.id.map(|id| id.to_string()).unwrap_or_default();
        Ok(ReserveResponse { code: code.into(), reservation_id })
    }

    async fn commit<B>(&self, headers: &HeaderMap, body: B) -> Result<CommitResponse, Status>
    where
        B: HttpBody<Data = Bytes, Error: fmt::Display>,
    {
        let (message, timeout): (CommitRequest, _) = self.message(headers, body).await?;
        let CommitRequest { domain, descriptors, reservation_id, actual_amount } = message;
        if domain.is_empty() {
            return Ok(CommitResponse::default());
        }
        // An id of another service is unknown, and still counts once.
        let named = || ReservationId::named(&reservation_id);
        let id = reservation_id.parse().unwrap_or_else(|_| named());
        let id = Some(id).filter(|_| !reservation_id.is_empty());
        let message = with_domain(domain, descriptors);
        let descriptors = self.admitted(&message)?;
        let (domain, cost) = (&message.domain, actual_amount);
        let request = decide::CommitRequest { domain, descriptors: &descriptors, id, cost };
        let committed = self.committed(request, timeout).await?;
        let reservation_released = committed.settled == Some(Settled::Committed);
        Ok(CommitResponse { reservation_released })
    }

    async fn committed(
        &self,
        request: decide::CommitRequest<'_>,
        timeout: Duration,
    ) -> Result<decide::Committed, Status> {
        let committed = within(timeout, pin!(self.decide.commit(request))).await;
        let committed = committed.ok_or_else(|| status(&Error::Timeout))?;
        committed.map_err(|error| Status::unavailable(error.to_string()))
    }

    /// The descriptors of a message that may be decided.
    fn admitted<'a>(
        &self,
        message: &'a RateLimitRequest,
    ) -> Result<SmallVec<[Descriptor<'a>; 2]>, Status> {
        let admitted = descriptors(message, &self.bounds).and_then(|descriptors| {
            if self.decide.is_loaded() { Ok(descriptors) } else { Err(Refusal::NotLoaded) }
        });
        let descriptors = admitted.map_err(|refusal| {
            self.stats.refused.add(1);
            status(&Error::Refused(refusal))
        })?;
        let ignored = overrides_ignored(message, false);
        if ignored > 0 {
            self.stats.overrides.add(ignored);
        }
        Ok(descriptors)
    }
}

fn with_domain(domain: String, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain, descriptors, hits_addend: 0 }
}

fn unknown() -> RateLimitResponse {
    RateLimitResponse { overall_code: Code::Unknown.into(), ..RateLimitResponse::default() }
}

fn span(wire: rls::Duration) -> Result<Span, Status> {
    let nanos = |seconds: u64, nanos: u64| seconds.checked_mul(1_000_000_000)?.checked_add(nanos);
    let parts = u64::try_from(wire.seconds).ok().zip(u64::try_from(wire.nanos).ok());
    let nanos = parts.and_then(|(seconds, rest)| nanos(seconds, rest));
    nanos.map(Span::from_nanos).ok_or_else(|| {
        Status::invalid_argument("ttl must not be negative, and at most some hundred years")
    })
}
