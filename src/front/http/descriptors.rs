//! The descriptors of a request by the mapping of `[auth]`.

use std::net::IpAddr;
use std::num::NonZeroU32;

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::units::Hits;

use super::original::{self, Original};
use super::path;
use crate::config::Auth;
use crate::config::auth::{self, AuthDescriptor, AuthEntry, AuthValue};
use crate::front::client_addr;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Keys and values of a descriptor, owned because most values are built here.
pub(in crate::front) type Values<'a> = Vec<(&'a str, String)>;

/// The header with the cost of a request cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("header {name} is not a number of hits (1 to {max})")]
pub(in crate::front) struct HitsError {
    name: HeaderName,
    max: NonZeroU32,
}

/// The configured descriptors all of whose values are present. `peer` is who sent the headers.
pub(in crate::front) fn values<'a>(
    headers: &HeaderMap,
    peer: Option<IpAddr>,
    original: &Original,
    auth: &'a Auth,
) -> Vec<Values<'a>> {
    let client = peer.map(|peer| client_addr::group(client(headers, peer, auth), auth.ipv6_prefix));
    let value = |entry: &AuthEntry| match &entry.value {
        AuthValue::Header(name) => original::text(headers, name),
        AuthValue::ClientAddress => client.clone(),
        AuthValue::Path => Some(original.path.clone()),
        AuthValue::PathPrefix(segments) => Some(path::prefix(&original.path, *segments).to_owned()),
        AuthValue::Method => Some(original.method.clone()),
        AuthValue::Host => Some(original.host.clone()),
        AuthValue::Constant(value) => Some(value.clone()),
    };
    let values = |descriptor: &'a AuthDescriptor| {
        let pair = |entry: &'a AuthEntry| Some((entry.key.as_str(), value(entry)?));
        descriptor.entries.iter().map(pair).collect::<Option<Values<'a>>>()
    };
    auth.descriptors.iter().filter_map(values).collect()
}

pub(in crate::front) fn borrowed<'a>(values: &'a Values<'_>) -> Descriptor<'a> {
    let entries = values.iter().map(|(key, value)| Entry { key, value }).collect();
    Descriptor { entries, hits: None, limit: None }
}

/// The address of the client as far as `peer`, who sent the headers, is trusted.
pub(in crate::front) fn client(headers: &HeaderMap, peer: IpAddr, auth: &Auth) -> IpAddr {
    let lists: Vec<&[u8]> =
        headers.get_all(&X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes).collect();
    let real_ip = headers.get(&X_REAL_IP).map(HeaderValue::as_bytes);
    client_addr::client_address(peer, lists.into_iter(), real_ip, &auth.trust())
}

/// The cost of the request, at least one hit: a request that costs nothing would pass uncounted,
/// and a negative cost would return hits.
pub(in crate::front) fn hits(
    headers: &HeaderMap,
    cost: Option<&auth::Hits>,
) -> Result<Hits, HitsError> {
    let Some((cost, text)) =
        cost.and_then(|cost| Some((cost, original::text(headers, &cost.header)?)))
    else {
        return Ok(Hits::ONE);
    };
    let (name, max) = (&cost.header, cost.max);
    let hits: Option<u32> = text.trim().parse().ok().filter(|hits| *hits <= max.get());
    let hits = hits.ok_or_else(|| HitsError { name: name.clone(), max })?;
    Ok(Hits::new(i64::from(hits.max(1))))
}
