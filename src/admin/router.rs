//! The routes of the admin listener.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use futures_util::StreamExt;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tidegate_cluster::pki;
use tidegate_limiter::units::Span;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::access::{Access, Denied, Role};
use super::blocked::{Reports, WatchBlocked};
use super::certificates::{Certificates, TokenOrder};
use super::dashboard;
use super::event_stream::{STREAMS_MAX, Streams};
use super::events::{Overview, Snapshots};
use super::key::{CarriedKey, Key, KeyOrder, Keys};
use super::operate::{Operate, Refusal};
use super::report::{DrainReport, Inspect};
use crate::front::pages::Page;
use crate::front::serve::Streamed;
use crate::front::{Probes, cross_site};
use crate::observe::metrics;

/// Most key/value pairs of `/owner`; a descriptor has far fewer.
const ENTRIES_MAX: usize = 100;

/// How long a token to join is good, and how long it may be.
const TOKEN_TTL: Span = Span::from_secs(3_600);
const TOKEN_TTLS: RangeInclusive<Span> = Span::from_secs(60)..=Span::from_secs(7 * 86_400);

/// The `content-type` of text.
const PLAIN: &str = "text/plain; charset=utf-8";

/// The state behind the routes.
#[derive(Clone)]
pub struct AdminState {
    /// For `/status`, `/members`, `/regions` and `/owner`.
    pub inspect: Arc<dyn Inspect>,
    /// For `/bootstrap`, `/forget` and `/regions/lost`.
    pub operate: Arc<dyn Operate>,
    /// For orders about a key.
    pub keys: Arc<dyn Keys>,
    /// For `/join/tokens`, `/revoke` and `/revoked`.
    pub certificates: Arc<dyn Certificates>,
    /// For `/events` and `/key`.
    pub overview: Arc<dyn Overview>,
    /// Whom the listener serves.
    pub access: Access,
    /// For `/blocked`; `None` where no sources are watched.
    pub blocked: Option<Arc<dyn WatchBlocked>>,
    /// For `/readyz` and `/metrics`.
    pub probes: Arc<dyn Probes>,
    /// Cancelled by `/drain`: the node transfers its ranges and shuts down.
    pub drain: CancellationToken,
    /// How the drain has ended.
    pub drained: watch::Receiver<Option<DrainReport>>,
    /// Ends the streams, so that the listener can close.
    pub stop: CancellationToken,
}

/// [`AdminState`] and the renderings of its pages.
#[derive(Clone)]
struct Routed {
    admin: AdminState,
    metrics: Page,
    status: Page,
    blocked: Page,
    blocked_events: Page,
    blocked_streams: Streams,
    streams: Streams,
}

/// A path of the listener.
pub struct Route {
    pub method: Method,
    pub path: &'static str,
    /// An example of its query; empty where it has none.
    pub query: &'static str,
    /// What a request of it needs to be; `None` where everybody is served, see `access.rs`.
    pub role: Option<Role>,
    handler: MethodRouter<Routed>,
}

/// All that is served, in the order of `GET /`. The router is made of it, so no handler is without
/// its role.
pub fn routes() -> Vec<Route> {
    let reads = |path, query, handler: MethodRouter<Routed>| Route {
        method: Method::GET,
        path,
        query,
        role: Some(Role::Read),
        handler,
    };
    let open = |path, handler| Route { role: None, ..reads(path, "", handler) };
    let writes = |path, query, handler| Route {
        method: Method::POST,
        role: Some(Role::Write),
        ..reads(path, query, handler)
    };
    let mut routes = vec![
        open("/healthz", get(alive)),
        open("/readyz", get(ready)),
        reads("/", "", get(index)),
        reads("/metrics", "", get(scrape)),
        reads("/status", "", get(status)),
        reads("/members", "", get(members)),
        reads("/regions", "", get(regions)),
        reads("/owner", "domain=D&KEY=VALUE", get(owner)),
        reads("/key", "domain=D&KEY=VALUE", get(key)),
        reads("/events", "", get(events)),
        reads("/revoked", "", get(revoked)),
        reads("/blocked", "", get(blocked)),
        reads("/blocked/stream", "", get(blocked_stream)),
        writes("/drain", "wait=true", post(drain)),
        writes("/bootstrap", "", post(bootstrap)),
        writes("/forget", "node=NODE", post(forget)),
        writes("/regions/lost", "region=REGION", post(region_lost)),
        writes("/key/reset", "domain=D&KEY=VALUE", post(key_reset)),
        writes("/key/adjust", "hits=N&domain=D&KEY=VALUE", post(key_adjust)),
        writes("/key/block", "for=DURATION&domain=D&KEY=VALUE", post(key_block)),
        writes("/key/unblock", "domain=D&KEY=VALUE", post(key_unblock)),
        writes("/join/tokens", "node=NODE&region=REGION&role=ROLE&ttl=DURATION", post(make_token)),
        writes("/revoke", "node=NODE&unknown=BOOL", post(revoke)),
        open("/ui", get(to_dashboard)),
    ];
    routes.extend(dashboard::files().map(|(path, handler)| open(path, handler)));
    routes
}

/// The router of the listener of `[admin]`.
pub fn router(state: AdminState) -> Router {
    let access = state.access.clone();
    let as_role = |role| from_fn_with_state((access.clone(), role), for_role);
    let (mut guarded, mut open) = (Router::new(), Router::new());
    for Route { path, role, handler, .. } in routes() {
        match role {
            None => open = open.route(path, handler),
            Some(Role::Read) => guarded = guarded.route(path, handler),
            Some(Role::Write) => {
                let handler = handler.route_layer(from_fn(from_same_site));
                guarded = guarded.route(path, handler.route_layer(as_role(Role::Write)));
            }
        }
    }
    let routes: Router = guarded
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        // Whoever may not read learns no paths.
        .layer(as_role(Role::Read))
        .merge(open.method_not_allowed_fallback(method_not_allowed))
        .layer(from_fn(dashboard::confined))
        .with_state(Routed {
            admin: state,
            metrics: Page::default(),
            status: Page::default(),
            blocked: Page::default(),
            blocked_events: Page::default(),
            blocked_streams: Streams::default(),
            streams: Streams::default(),
        });
    // Around all of it: a route adds the methods that it allows to what a layer of it returns.
    Router::new().fallback_service(routes).layer(from_fn_with_state(access, for_own_host))
}

/// Passes on what no web page of another site made a browser send.
async fn from_same_site(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match cross_site::check(&parts) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(refusal) => refuse(StatusCode::FORBIDDEN, &refusal.to_string()),
    }
}

/// Passes on what is for a host of this listener. Others learn nothing, not even what this is.
async fn for_own_host(State(access): State<Access>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match access.check_host(&parts) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(_) => StatusCode::MISDIRECTED_REQUEST.into_response(),
    }
}

/// Passes on what has a token of that role.
async fn for_role(
    State((access, role)): State<(Access, Role)>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    // Whoever has a browser only is led to the page that asks for the token.
    let is_led = parts.uri.path() == "/" && is_page(&parts.headers);
    let replaced = access.until_replaced();
    match access.check_role(&parts, role) {
        Err(denied) if !is_led => unauthorised(denied),
        Ok(()) | Err(_) => {
            let response = next.run(Request::from_parts(parts, body)).await;
            if response.extensions().get::<Streamed>().is_none() {
                return response;
            }
            let until = replaced.cancelled_owned();
            response.map(|body| Body::from_stream(body.into_data_stream().take_until(until)))
        }
    }
}

/// RFC 6750, 3: the challenge has an error only where there was a token.
fn unauthorised(denied: Denied) -> Response {
    let (status, challenge) = match denied {
        Denied::NoToken => (StatusCode::UNAUTHORIZED, "Bearer"),
        Denied::WrongToken => (StatusCode::UNAUTHORIZED, "Bearer error=\"invalid_token\""),
        Denied::Host | Denied::OnlyReads | Denied::NothingWrites => {
            (StatusCode::FORBIDDEN, "Bearer error=\"insufficient_scope\"")
        }
    };
    ([(WWW_AUTHENTICATE, challenge)], refuse(status, &denied.to_string())).into_response()
}

/// Whether a browser asks for a page.
fn is_page(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    accepted.is_some_and(|accepted| accepted.contains("text/html"))
}

/// Relative, so that it holds behind a proxy that adds a path.
async fn to_dashboard() -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, "ui/")]).into_response()
}

async fn index(headers: HeaderMap) -> Response {
    if is_page(&headers) {
        return to_dashboard().await;
    }
    // The files are found by way of the page.
    let (commands, endpoints): (Vec<Route>, Vec<Route>) = routes()
        .into_iter()
        .filter(|route| route.path == "/ui/" || !route.path.starts_with("/ui") && route.path != "/")
        .partition(|route| route.role == Some(Role::Write));
    let listed = |routes: Vec<Route>| -> Vec<String> { routes.iter().map(Route::usage).collect() };
    let listed =
        serde_json::json!({ "endpoints": listed(endpoints), "commands": listed(commands) });
    json(StatusCode::OK, &listed)
}

impl Route {
    /// `/owner?domain=D&KEY=VALUE`, with its method if that is not GET.
    pub fn usage(&self) -> String {
        let method = if self.method == Method::GET { "" } else { "POST " };
        let mark = if self.query.is_empty() { "" } else { "?" };
        format!("{method}{}{mark}{}", self.path, self.query)
    }
}

async fn alive() -> Response {
    answer(StatusCode::OK, PLAIN, "ok\n".to_owned())
}

async fn ready(State(state): State<Routed>) -> Response {
    let (status, text) = match state.admin.probes.ready() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reasons) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reasons}\n")),
    };
    answer(status, PLAIN, text)
}

async fn scrape(State(state): State<Routed>) -> Response {
    let page = state.metrics.get(|| state.admin.probes.metrics());
    (StatusCode::OK, [(CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response()
}

async fn status(State(state): State<Routed>) -> Response {
    let render = || serde_json::to_string(&state.admin.inspect.status()).map(|text| text + "\n");
    // Reports are plain structs; only a map whose keys are not strings can fail.
    let page = state.status.get(|| render().unwrap_or_else(|error| format!("{error}\n")));
    (StatusCode::OK, [(CONTENT_TYPE, "application/json")], page).into_response()
}

async fn members(State(state): State<Routed>) -> Response {
    json(StatusCode::OK, &state.admin.inspect.members())
}

async fn regions(State(state): State<Routed>) -> Response {
    json(StatusCode::OK, &state.admin.inspect.regions())
}

async fn owner(State(state): State<Routed>, uri: Uri) -> Response {
    match descriptor(&uri, None) {
        Ok((domain, entries, _)) => {
            json(StatusCode::OK, &state.admin.inspect.owner(&domain, &entries))
        }
        Err(text) => refuse(StatusCode::BAD_REQUEST, &text),
    }
}

/// As [`owner`], with what the counters hold.
async fn key(State(state): State<Routed>, uri: Uri) -> Response {
    match key_of(&uri, None).and_then(|(key, _)| with_limit(key)) {
        Ok(key) => json(StatusCode::OK, &state.admin.overview.key(key).await),
        Err(text) => refuse(StatusCode::BAD_REQUEST, &text),
    }
}

async fn key_reset(State(state): State<Routed>, uri: Uri) -> Response {
    order_key(&state, &uri, None, |_| Ok(KeyOrder::Reset)).await
}

/// `?hits=N`, negative to give back.
async fn key_adjust(State(state): State<Routed>, uri: Uri) -> Response {
    let order = |hits: Option<String>| {
        let hits = hits.and_then(|hits| hits.parse().ok());
        hits.map(KeyOrder::Adjust).ok_or("say how many hits: ?hits=N, negative to give back")
    };
    order_key(&state, &uri, Some("hits"), order).await
}

/// `?for=DURATION`; without it, until the key is unblocked.
async fn key_block(State(state): State<Routed>, uri: Uri) -> Response {
    let order = |span: Option<String>| match span.map(|span| span.parse()) {
        None => Ok(KeyOrder::Block(None)),
        Some(Ok(span)) => Ok(KeyOrder::Block(Some(span))),
        Some(Err(_)) => Err("write the duration as 30s, 10m or 1h"),
    };
    order_key(&state, &uri, Some("for"), order).await
}

async fn key_unblock(State(state): State<Routed>, uri: Uri) -> Response {
    order_key(&state, &uri, None, |_| Ok(KeyOrder::Unblock)).await
}

/// Carries out what `order` makes of the parameter of that name.
async fn order_key(
    state: &Routed,
    uri: &Uri,
    parameter: Option<&str>,
    order: impl FnOnce(Option<String>) -> Result<KeyOrder, &'static str>,
) -> Response {
    let parsed = key_of(uri, parameter)
        .and_then(|(key, argument)| Ok((key, order(argument).map_err(str::to_owned)?)));
    let parsed = parsed.and_then(|(key, order)| match order {
        // It is about one counter.
        KeyOrder::Adjust(_) => Ok((with_limit(key)?, order)),
        _ => Ok((key, order)),
    });
    match parsed {
        Ok((key, order)) => answered(state.admin.keys.order(key, order).await),
        Err(text) => refuse(StatusCode::BAD_REQUEST, &text),
    }
}

/// A descriptor; or, without a domain, the name and the key of requests that carry their limit. And
/// the value of `parameter`.
fn key_of(uri: &Uri, parameter: Option<&str>) -> Result<(Key, Option<String>), String> {
    let mut pairs = uri.query().and_then(decode_query).unwrap_or_default();
    let has = |field: &str| pairs.iter().any(|(name, _)| name == field);
    if has("domain") || !has("name") || !has("unique_key") {
        let (domain, entries, argument) = descriptor(uri, parameter)?;
        return Ok((Key::Descriptor { domain, entries }, argument));
    }
    let position = pairs.iter().position(|(name, _)| Some(&**name) == parameter);
    let argument = position.map(|at| pairs.remove(at).1);
    Ok((Key::Carried(CarriedKey::of_query(&pairs)?), argument))
}

/// The key, unless it has several counters and none is named.
fn with_limit(key: Key) -> Result<Key, String> {
    match key {
        Key::Carried(CarriedKey { limit: None, .. }) => {
            let text = "say which counter: limit=N with duration=1m or calendar=hour, and of a \
                        bucket algorithm=LEAKY_BUCKET and its burst=N";
            Err(text.to_owned())
        }
        key => Ok(key),
    }
}

/// Domain, entries, and the value of a parameter.
type Described = (String, Vec<(String, String)>, Option<String>);

/// `domain=D` and, in order, the entries; and the first value of `parameter`, which is none of
/// them if it comes before the domain.
fn descriptor(uri: &Uri, parameter: Option<&str>) -> Result<Described, String> {
    let usage = |problem: &str| format!("{problem}; use {}?domain=D&KEY=VALUE", uri.path());
    let Some(mut pairs) = uri.query().and_then(decode_query) else {
        return Err(usage("query missing or not percent-encoded UTF-8"));
    };
    let position = pairs.iter().position(|(name, _)| name == "domain");
    let argument = parameter.and_then(|parameter| {
        let before = pairs.get(..position?)?;
        let at = before.iter().position(|(name, _)| name == parameter)?;
        Some(pairs.remove(at).1)
    });
    let domain = pairs.iter().position(|(name, _)| name == "domain").map(|i| pairs.remove(i).1);
    match domain {
        Some(domain) if !domain.is_empty() && !pairs.is_empty() => Ok((domain, pairs, argument)),
        _ => Err(usage("a domain and at least one entry are required")),
    }
}

fn answered(outcome: Result<impl Serialize, Refusal>) -> Response {
    outcome.map_or_else(|refusal| refused(&refusal), |report| json(StatusCode::OK, &report))
}

/// `?node=NODE`, and if need be `region`, `role` and `ttl`.
async fn make_token(State(state): State<Routed>, uri: Uri) -> Response {
    match token_order(&uri) {
        Some(order) => {
            let made = answered(state.admin.certificates.make_token(order).await);
            ([(CACHE_CONTROL, "no-store")], made).into_response()
        }
        None => refuse(
            StatusCode::BAD_REQUEST,
            "this is no order for a token; use POST /join/tokens?node=NODE, and &region=REGION, \
             &role=core or edge, &ttl=1m to 7d",
        ),
    }
}

/// None if the query is anything else.
fn token_order(uri: &Uri) -> Option<TokenOrder> {
    let (mut node, mut region, mut role, mut ttl) = (None, None, pki::Role::Core, TOKEN_TTL);
    for (name, value) in uri.query().and_then(decode_query)? {
        match &*name {
            "node" => node = Some(value),
            "region" => region = Some(value),
            "role" => role = pki::Role::of_name(&value)?,
            "ttl" => ttl = value.parse().ok()?,
            _ => return None,
        }
    }
    let node = node.filter(|node| !node.is_empty())?;
    TOKEN_TTLS.contains(&ttl).then_some(TokenOrder { node, region, role, ttl })
}

/// `?node=NODE`, with `&unknown=true` if there may be no node of that name.
async fn revoke(State(state): State<Routed>, uri: Uri) -> Response {
    match revocation(&uri) {
        Some((node, may_be_unknown)) => {
            answered(state.admin.certificates.revoke(node, may_be_unknown).await)
        }
        None => refuse(
            StatusCode::BAD_REQUEST,
            "name the node; use POST /revoke?node=NODE, and &unknown=true if none of that name is \
             known",
        ),
    }
}

/// None if the query is anything else.
fn revocation(uri: &Uri) -> Option<(String, bool)> {
    let (mut node, mut may_be_unknown) = (None, false);
    for (name, value) in uri.query().and_then(decode_query)? {
        match &*name {
            "node" => node = Some(value),
            "unknown" => may_be_unknown = value.parse().ok()?,
            _ => return None,
        }
    }
    Some((node.filter(|node| !node.is_empty())?, may_be_unknown))
}

async fn revoked(State(state): State<Routed>) -> Response {
    json(StatusCode::OK, &state.admin.certificates.revoked())
}

async fn events(State(state): State<Routed>) -> Response {
    let Routed { admin, streams, .. } = state;
    streams.open(|| Snapshots::of(&*admin.overview), admin.stop).unwrap_or_else(|| {
        let text = format!("{STREAMS_MAX} streams are open; close one");
        refuse(StatusCode::SERVICE_UNAVAILABLE, &text)
    })
}

async fn blocked(State(state): State<Routed>) -> Response {
    let Some(blocked) = state.admin.blocked else { return not_watched() };
    let render = || serde_json::to_string(&blocked.report()).map(|text| text + "\n");
    // Reports are plain structs; only a map whose keys are not strings can fail.
    let page = state.blocked.get(|| render().unwrap_or_else(|error| format!("{error}\n")));
    (StatusCode::OK, [(CONTENT_TYPE, "application/json")], page).into_response()
}

async fn blocked_stream(State(state): State<Routed>) -> Response {
    let Some(blocked) = state.admin.blocked.clone() else { return not_watched() };
    let Routed { admin, blocked_streams, blocked_events, .. } = state;
    blocked_streams.open(|| Reports::of(blocked, blocked_events), admin.stop).unwrap_or_else(|| {
        let text = format!("{STREAMS_MAX} streams are open; close one, or read /blocked");
        refuse(StatusCode::SERVICE_UNAVAILABLE, &text)
    })
}

fn not_watched() -> Response {
    refuse(StatusCode::NOT_FOUND, "no sources are watched; set blocked_sources.entry")
}

/// Same as SIGTERM. Responds before the drain is complete; with `?wait=true` when it has ended,
/// just before the listener closes.
async fn drain(State(state): State<Routed>, uri: Uri) -> Response {
    let waits = match argument(&uri, "wait").as_deref().map(str::parse) {
        None => false,
        Some(Ok(waits)) => waits,
        Some(Err(_)) => {
            return refuse(
                StatusCode::BAD_REQUEST,
                "wait is true or false; use POST /drain?wait=true",
            );
        }
    };
    state.admin.drain.cancel();
    if waits {
        let mut drained = state.admin.drained;
        // Its sender lives as long as the node.
        if let Ok(Some(report)) = drained.wait_for(Option::is_some).await.map(|end| end.clone()) {
            return json(StatusCode::OK, &report);
        }
    }
    json(StatusCode::ACCEPTED, &serde_json::json!({ "draining": true }))
}

/// Responds before the cluster exists, which takes about a second.
async fn bootstrap(State(state): State<Routed>) -> Response {
    ordered(state.admin.operate.bootstrap(), &serde_json::json!({ "founding": true }))
}

/// `?node=NODE`. Responds before the map has changed.
async fn forget(State(state): State<Routed>, uri: Uri) -> Response {
    match argument(&uri, "node") {
        Some(node) => {
            let forgetting = serde_json::json!({ "forgetting": node });
            ordered(state.admin.operate.forget(&node), &forgetting)
        }
        None => {
            refuse(StatusCode::BAD_REQUEST, "name the evicted node; use POST /forget?node=NODE")
        }
    }
}

/// `?region=REGION`. Responds before the map has changed.
async fn region_lost(State(state): State<Routed>, uri: Uri) -> Response {
    match argument(&uri, "region") {
        Some(region) => {
            let lost = serde_json::json!({ "lost": region });
            ordered(state.admin.operate.region_lost(&region), &lost)
        }
        None => refuse(
            StatusCode::BAD_REQUEST,
            "name the lost region; use POST /regions/lost?region=REGION",
        ),
    }
}

/// The value of the only parameter, if that is its name.
fn argument(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query().and_then(decode_query)?;
    match <[(String, String); 1]>::try_from(pairs) {
        Ok([(only, value)]) if only == name && !value.is_empty() => Some(value),
        _ => None,
    }
}

fn ordered(outcome: Result<(), Refusal>, accepted: &impl Serialize) -> Response {
    match outcome {
        Ok(()) => json(StatusCode::ACCEPTED, accepted),
        Err(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &Refusal) -> Response {
    let status = match refusal {
        Refusal::Unknown(_) => StatusCode::NOT_FOUND,
        Refusal::Conflict(_) => StatusCode::CONFLICT,
    };
    refuse(status, &refusal.to_string())
}

async fn not_found() -> Response {
    refuse(StatusCode::NOT_FOUND, "no such path; GET / lists the paths")
}

async fn method_not_allowed(method: Method) -> Response {
    let text = format!("{method} is not allowed on this path; GET / lists the methods");
    refuse(StatusCode::METHOD_NOT_ALLOWED, &text)
}

// === responses ===

fn refuse(status: StatusCode, text: &str) -> Response {
    json(status, &serde_json::json!({ "error": text }))
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => answer(status, "application/json", text + "\n"),
        // Reports are plain structs; only a map whose keys are not strings can fail.
        Err(error) => {
            let text = format!("{error}\n");
            answer(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, text)
        }
    }
}

fn answer(status: StatusCode, content_type: &'static str, text: String) -> Response {
    (status, [(CONTENT_TYPE, content_type)], text).into_response()
}

// === the query ===

/// The pairs of a query in order; `None` if there are too many or it is not percent-encoded UTF-8.
fn decode_query(query: &str) -> Option<Vec<(String, String)>> {
    let parts: Vec<&str> = query.split('&').filter(|part| !part.is_empty()).collect();
    if parts.len() > ENTRIES_MAX {
        return None;
    }
    parts
        .into_iter()
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Some((decode(name)?, decode(value)?))
        })
        .collect()
}

/// Decodes percent-encoding, and `+` as a space as in forms.
fn decode(text: &str) -> Option<String> {
    // `percent_decode_str` leaves a `%` without two digits as it is.
    let is_complete = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_complete) {
        return None;
    }
    percent_decode_str(&text.replace('+', " ")).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_in_order_and_decoded() {
        let pairs = decode_query("domain=edge&path=%2Fa%20b&q=x+y&bare&q=%C3%A4").unwrap();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(
            pairs,
            [("domain", "edge"), ("path", "/a b"), ("q", "x y"), ("bare", ""), ("q", "ä")]
        );
    }

    #[test]
    fn an_invalid_query_is_none() {
        for query in ["a=%", "a=%2", "a=%zz", "a=%+1", "a=%ff", "%C3=1"] {
            assert_eq!(decode_query(query), None, "{query}");
        }
        assert_eq!(decode_query(&"a=1&".repeat(ENTRIES_MAX + 1)), None);
    }
}
