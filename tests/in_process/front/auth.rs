//! `/auth`: forward-auth.

use std::sync::Arc;

use tidegate::front::bounds::Bounds;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::units::Span;

use super::support::{Listener, Table, admitted, answer, http_listener, request, rule, status};

const MAPPING: &str = r#"
    domain = "open"
    trusted_hops = 1
    hits = { header = "x-hits" }
    [[descriptors]]
    entries = [
        { key = "remote_address", source = "client_address" },
        { key = "path", source = "path_prefix", segments = 2 },
    ]
    [[descriptors]]
    entries = [{ key = "user", header = "x-user" }, { key = "generic_key", value = "x" }]
    [[descriptors]]
    entries = [
        { key = "method", source = "method" },
        { key = "host", source = "host" },
        { key = "path", source = "path" },
    ]
"#;

fn mapping(domain: &str, more: &str) -> String {
    format!(
        "domain = \"{domain}\"\n{more}\n[[descriptors]]\nentries = [{{ key = \"user\", header = \"x-user\" }}]"
    )
}

async fn listener(table: &Arc<Table>, auth: &str) -> Listener {
    http_listener(table, Bounds::default(), auth).await
}

#[tokio::test]
async fn a_request_becomes_the_descriptors_of_the_mapping() {
    let table = Table::usual();
    let listener = listener(&table, MAPPING).await;
    let headers = [
        ("x-original-uri", "/shop//cart/7?x=/y"),
        ("x-original-method", "PATCH"),
        ("x-forwarded-for", "1.1.1.1, 2001:db8:1:2:3:4:5:6"),
        ("x-user", "ann"),
        ("x-hits", "5"),
    ];
    assert_eq!(request(listener.addr, "GET", "/auth", &headers, b"").await.status, 200);
    let checks = table.checks();
    let shown: Vec<String> = checks[0]
        .descriptors
        .iter()
        .map(|entries| {
            entries
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    assert_eq!(
        shown,
        [
            "remote_address=2001:db8:1:2::/64 path=/shop/cart",
            "user=ann generic_key=x",
            "method=PATCH host=test path=/shop/cart/7",
        ]
    );
    assert_eq!((checks[0].domain.as_str(), checks[0].hits), ("open", 5));
}

#[tokio::test]
async fn a_descriptor_whose_header_is_absent_is_left_out() {
    let table = Table::usual();
    let listener = listener(&table, MAPPING).await;
    for headers in [&[][..], &[("x-user", "")][..]] {
        assert_eq!(request(listener.addr, "POST", "/auth/a/b/c", headers, b"x").await.status, 200);
    }
    for check in table.checks() {
        assert_eq!(check.descriptors.len(), 2, "{check:?}");
        assert_eq!(check.descriptors[0][0].1, "127.0.0.1");
        assert_eq!(check.descriptors[0][1].1, "/a/b");
        assert_eq!(check.hits, 1);
    }
}

#[tokio::test]
async fn a_request_without_a_descriptor_passes_without_a_check() {
    let table = Table::usual();
    let listener = listener(&table, &mapping("limited", "")).await;
    assert_eq!(request(listener.addr, "GET", "/auth", &[], b"").await.status, 200);
    assert_eq!(table.checks(), []);
}

#[tokio::test]
async fn a_refusal_has_the_status_that_the_proxy_understands() {
    let table = Table::usual();
    let user = [("x-user", "ann")];
    for (more, target, status) in [
        ("", "/auth", 429),
        ("denied_status = 403", "/auth", 403),
        ("denied_status = 503", "/auth?denied=403", 403),
        ("", "/auth?a=b&denied=401", 401),
        // Below /auth the query is the client's.
        ("", "/auth/x?denied=503", 429),
    ] {
        let listener = listener(&table, &mapping("limited", more)).await;
        let reply = request(listener.addr, "GET", target, &user, b"").await;
        assert_eq!(reply.status, status, "{more} {target}");
        assert_eq!(reply.header("retry-after"), Some("12"));
        assert_eq!(reply.header("ratelimit"), Some("\"login\";r=0;t=12"));
        assert_eq!(reply.error(), "over the limit; try again in 12 s");
    }
}

#[tokio::test]
async fn a_request_that_claims_to_cost_nothing_costs_one_hit() {
    let table = Table::usual();
    let listener =
        listener(&table, &mapping("open", "hits = { header = \"x-hits\", max = 9 }")).await;
    for hits in ["0", "", "1", "9"] {
        let headers = [("x-user", "ann"), ("x-hits", hits)];
        assert_eq!(request(listener.addr, "GET", "/auth", &headers, b"").await.status, 200);
    }
    let hits: Vec<i64> = table.checks().iter().map(|check| check.hits).collect();
    assert_eq!(hits, [1, 1, 1, 9]);
}

#[tokio::test]
async fn an_invalid_check_is_refused_and_not_counted() {
    let table = Table::usual();
    let long = "u".repeat(1_025);
    let hits = "hits = { header = \"x-hits\" }";
    let (user, ann) = ("x-user", "ann");
    for (auth, target, headers, status, part) in [
        (String::new(), "/auth", vec![(user, ann)], 404, "set auth.domain"),
        (mapping("open", ""), "/auth?denied=200", vec![(user, ann)], 400, "denied=200"),
        (mapping("open", ""), "/auth?denied=x", vec![(user, ann)], 400, "denied=x"),
        (mapping("open", ""), "/auth", vec![(user, long.as_str())], 400, "1025 bytes"),
        (mapping("open", hits), "/auth", vec![(user, ann), ("x-hits", "-1")], 400, "x-hits"),
        (mapping("open", hits), "/auth", vec![(user, ann), ("x-hits", "many")], 400, "x-hits"),
        (mapping("open", hits), "/auth", vec![(user, ann), ("x-hits", "1001")], 400, "1 to 1000"),
        (
            mapping("open", ""),
            "/auth",
            vec![(user, ann), ("x-original-uri", "/a"), ("x-forwarded-uri", "/b")],
            400,
            "set auth.original",
        ),
    ] {
        let listener = listener(&table, &auth).await;
        let reply = request(listener.addr, "GET", target, &headers, b"").await;
        assert_eq!(reply.status, status, "{target} {headers:?}");
        assert!(reply.error().contains(part), "{}", reply.error());
        assert_eq!(listener.stats.refused.get(), 1);
    }
    assert_eq!(table.checks(), []);
}

fn queue(delay: Span) -> tidegate::decide::CheckResponse {
    let verdict = Verdict { delay, ..admitted(10, 5, Span::from_secs(1)) };
    answer(vec![status(rule(None, &[(10, 1)]), &[verdict], 0)])
}

#[tokio::test]
async fn a_queues_delay_is_waited_out_before_the_request_passes() {
    let delay = Span::from_millis(60);
    let table = Table::new([("queue", queue(delay))]);
    let listener = listener(&table, &mapping("queue", "")).await;
    let before = tokio::time::Instant::now();
    let reply = request(listener.addr, "GET", "/auth", &[("x-user", "ann")], b"").await;
    assert_eq!((reply.status, reply.header("x-ratelimit-delay")), (200, Some("0.060")));
    assert!(before.elapsed() >= delay.to_std(), "it passed before its turn");
}

#[tokio::test]
async fn a_delay_beyond_the_bound_is_refused_and_given_back() {
    let table = Table::new([("queue", queue(Span::from_secs(3_600)))]);
    let listener = listener(&table, &mapping("queue", "hold_max = \"100ms\"")).await;
    let reply = request(listener.addr, "GET", "/auth", &[("x-user", "ann")], b"").await;
    assert_eq!(reply.status, 429);
    assert!(reply.error().contains("queue"));
    let hits: Vec<i64> = table.checks().iter().map(|check| check.hits).collect();
    assert_eq!(hits, [1, -1]);
}
