//! What each route of the admin listener answers to no token, one that reads, one that writes, and
//! a wrong one.

use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tidegate::admin::{Access, AdminState, Role, Tokens, router, routes};
use tidegate::observe::Health;
use tower::ServiceExt;

use crate::admin_router::state;

const WRITE: &str = "0123456789abcdef";
const READ: &str = "fedcba9876543210";

/// A listener that has these tokens.
fn with(tokens: [Option<&str>; 2]) -> AdminState {
    let [write, read] = tokens.map(|token| token.map(str::to_owned));
    let access = Access::new([], Tokens { write, read });
    AdminState { access, ..state(&Health::default()) }
}

async fn send(
    state: &AdminState,
    method: &Method,
    path: &str,
    token: Option<&str>,
) -> Response<Body> {
    let request = Request::builder().method(method).uri(path);
    let request = match token {
        Some(token) => request.header("authorization", format!("Bearer {token}")),
        None => request,
    };
    router(state.clone()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

/// The status and the challenge of a request that is not let through.
fn refusal(response: &Response<Body>) -> Option<(u16, &str)> {
    let challenge = response.headers().get("www-authenticate")?.to_str().unwrap();
    Some((response.status().as_u16(), challenge))
}

#[tokio::test]
async fn each_route_does_what_the_role_of_the_token_allows() {
    const NONE: Option<(u16, &str)> = Some((401, "Bearer"));
    const WRONG: Option<(u16, &str)> = Some((401, "Bearer error=\"invalid_token\""));
    const ONLY_READS: Option<(u16, &str)> = Some((403, "Bearer error=\"insufficient_scope\""));
    let sent = [None, Some(READ), Some(WRITE), Some("0123456789abcdee")];
    let (write, read) = (Some(WRITE), Some(READ));
    // By the tokens of the node: what reads and writes get, for each token that is sent.
    for (tokens, reads, writes) in [
        ([None, None], [None; 4], [None; 4]),
        ([write, read], [NONE, None, None, WRONG], [NONE, ONLY_READS, None, WRONG]),
        ([write, None], [NONE, WRONG, None, WRONG], [NONE, WRONG, None, WRONG]),
        ([None, read], [NONE, None, WRONG, WRONG], [NONE, ONLY_READS, WRONG, WRONG]),
    ] {
        for route in routes() {
            let expected = match route.role {
                None => [None; 4],
                Some(Role::Read) => reads,
                Some(Role::Write) => writes,
            };
            for (token, expected) in sent.into_iter().zip(expected) {
                let what = format!("{} {tokens:?} {token:?}", route.usage());
                let state = with(tokens);
                let path = route.usage().split(' ').next_back().unwrap().to_owned();
                let response = send(&state, &route.method, &path, token).await;
                assert_eq!(refusal(&response), expected, "{what}");
                let is_refused = [401, 403].contains(&response.status().as_u16());
                assert_eq!(is_refused, expected.is_some(), "{what}");
                let is_drained = route.path == "/drain" && !is_refused;
                assert_eq!(state.drain.is_cancelled(), is_drained, "{what}");
            }
        }
        // Whoever may not read learns neither paths nor methods.
        for (method, path, found) in [
            (Method::GET, "/nowhere", StatusCode::NOT_FOUND),
            (Method::POST, "/nowhere", StatusCode::NOT_FOUND),
            (Method::DELETE, "/status", StatusCode::METHOD_NOT_ALLOWED),
            (Method::GET, "/drain", StatusCode::METHOD_NOT_ALLOWED),
        ] {
            for (token, expected) in sent.into_iter().zip(reads) {
                let response = send(&with(tokens), &method, path, token).await;
                assert_eq!(refusal(&response), expected, "{method} {path} {tokens:?} {token:?}");
                assert!(expected.is_some() || response.status() == found, "{method} {path}");
            }
        }
    }
}

/// What an order needs is not left to whoever adds it.
#[test]
fn every_order_needs_to_write_and_only_probes_and_files_need_nothing() {
    let mut open = Vec::new();
    for route in routes() {
        assert_eq!(route.method == Method::POST, route.role == Some(Role::Write), "{}", route.path);
        if route.role.is_none() && !route.path.starts_with("/ui") {
            open.push(route.path);
        }
    }
    assert_eq!(open, ["/healthz", "/readyz"]);
}

#[tokio::test]
async fn a_refusal_says_which_token_to_send() {
    for (tokens, token, says) in [
        ([Some(WRITE), Some(READ)], None, "send the token of admin.token_file"),
        ([Some(WRITE), Some(READ)], Some("x"), "no token of the node"),
        ([Some(WRITE), Some(READ)], Some(READ), "only reads; send that of admin.token_file"),
        ([None, Some(READ)], Some(READ), "set admin.token_file too"),
    ] {
        let response = send(&with(tokens), &Method::POST, "/drain", token).await;
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains(says) && body.starts_with("{\"error\":"), "{body}");
    }
}

#[tokio::test]
async fn the_list_of_paths_has_every_route_but_files() {
    let response = send(&with([None, None]), &Method::GET, "/", None).await;
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let listed: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let of = |list: &str| -> Vec<&str> {
        listed[list].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect()
    };
    let (endpoints, commands) = (of("endpoints"), of("commands"));
    assert!(endpoints.contains(&"/owner?domain=D&KEY=VALUE"), "{endpoints:?}");
    assert!(endpoints.contains(&"/ui/") && !endpoints.contains(&"/ui/uplot.js"), "{endpoints:?}");
    assert!(commands.contains(&"POST /forget?node=NODE"), "{commands:?}");
    let orders = routes().iter().filter(|route| route.role == Some(Role::Write)).count();
    assert_eq!(commands.len(), orders);
}
