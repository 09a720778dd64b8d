//! The dashboard in a real browser: Debian's Chromium, headless, by `WebDriver`.
//! `scripts/dashboard` installs it, and builds and runs this; it also takes the screenshots of the
//! README.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured belongs in the output of the test")]

mod webdriver;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::http_client::check_body;
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tidegate_testkit::wait::until;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::webdriver::Browser;

/// The binary that cargo built for these tests.
const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 30}}
  - {key: search, mode: leased, rate_limit: {unit: minute, requests_per_unit: 3000}}
  - {key: page, mode: eventual, rate_limit: {unit: minute, requests_per_unit: 6000}}
";
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: RULES,
    config: "",
    sets: &["cluster.deadline=1s", "admin.show_keys=true"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};

const USERS: &[&str] = &["ann", "ann", "bea", "ann", "dan", "carl"];

/// A value that is no harmless text if it is taken for markup.
const HOSTILE: &str = "<img src=x onerror=document.title='owned'>";

/// A killed node is shown within this time.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// A little of everything, until it is dropped.
struct Traffic(JoinHandle<()>);

impl Drop for Traffic {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn traffic(cluster: &Cluster, users: &'static [&'static str]) -> Traffic {
    let listeners: Vec<_> = cluster.nodes.iter().map(|node| node.http).collect();
    let http = cluster.http.clone();
    Traffic(tokio::spawn(async move {
        for turn in 0_usize.. {
            let user = users[turn % users.len()];
            let listener = listeners[turn % listeners.len()];
            for (key, value) in [("user", user), ("search", "shoes"), ("page", "home")] {
                // One of the nodes will be killed.
                let _ = http.check(listener, &check_body("edge", key, value)).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }))
}

/// Waits until the script returns true.
async fn holds(browser: &Browser, what: &str, script: &str) -> Duration {
    let script = format!("return Boolean({script})");
    let look = async || match browser.run(&script).await? {
        Value::Bool(true) => Ok(()),
        other => Err(other.to_string()),
    };
    until(what, Duration::from_secs(30), look).await.1
}

fn image(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "docs", "images", name].iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_turns_red_and_nothing_of_the_cluster_is_taken_for_markup() {
    let mut cluster = Cluster::start_alone(TIDEGATE, OPTIONS).await;
    let ordinary = traffic(&cluster, USERS);
    let browser = Browser::start(1280, 1000).await;
    browser.open(&format!("http://{}/", cluster.nodes[2].admin)).await;
    holds(
        &browser,
        "three members have said something",
        "[...document.querySelectorAll('#member-rows tr')].filter((row) => \
         row.lastChild.textContent !== '–' && /^(up|self)$/.test(row.className)).length === 3",
    )
    .await;
    holds(
        &browser,
        "rates",
        "document.querySelectorAll('#rule-rows tr').length === 3 && \
        [...document.querySelectorAll('#rule-rows tr')].every((row) => \
        row.cells[2].textContent !== '0' || row.cells[3].textContent !== '0')",
    )
    .await;
    // Enough for a line in the chart.
    holds(&browser, "a chart", "document.querySelector('#chart canvas') && past.length > 12").await;
    for theme in ["light", "dark"] {
        browser
            .run(&format!("localStorage.setItem('tidegate-theme', '{theme}'); setTheme('{theme}')"))
            .await
            .unwrap();
        browser.screenshot(&image(&format!("dashboard-{theme}.png"))).await;
    }

    drop(ordinary);
    let traffic = traffic(&cluster, &["ann", HOSTILE]);
    holds(
        &browser,
        "refused keys",
        &format!(
            "[...document.querySelectorAll('#key-rows button')]\
        .some((it) => it.textContent === {:?})",
            format!("user={HOSTILE}")
        ),
    )
    .await;
    assert_eq!(browser.run("return document.querySelectorAll('img').length").await.unwrap(), 0);
    assert_eq!(browser.run("return document.title").await.unwrap(), "tidegate tidegate");

    // By keyboard: look up the first key that is refused, then try a request of another.
    browser
        .run(
            "document.querySelector('#key-rows button').focus(); \
        document.activeElement.click()",
        )
        .await
        .unwrap();
    holds(
        &browser,
        "the key is found",
        "document.querySelector('#found dl') && \
        document.querySelector('#found').textContent.includes('edge.user (strict)') && \
        document.querySelector('#found').textContent.includes('would be refused')",
    )
    .await;
    browser
        .run(
            "document.querySelector('#entries').value = 'user=dora'; \
        document.querySelector('#look').requestSubmit()",
        )
        .await
        .unwrap();
    holds(
        &browser,
        "one of dora would pass",
        "document.querySelector('#found').textContent\
        .includes('would be admitted') && document.querySelector('#found').textContent\
        .includes('0 used, 30 left')",
    )
    .await;

    // On a phone nothing is wider than the screen.
    browser.resize(390, 844).await;
    holds(&browser, "it fits a phone", "document.documentElement.scrollWidth <= innerWidth").await;
    browser.resize(1280, 1000).await;

    // Nothing was loaded from elsewhere.
    let foreign = browser
        .run(
            "return performance.getEntriesByType('resource').map((it) => it.name)\
              .filter((it) => !it.startsWith(location.origin))",
        )
        .await
        .unwrap();
    assert_eq!(foreign, serde_json::json!([]));

    cluster.nodes[0].kill();
    let killed = Instant::now();
    holds(
        &browser,
        "n1 is red",
        "document.querySelector('#member-rows tr[data-node=n1]').className === 'down'",
    )
    .await;
    let shown = killed.elapsed();
    println!("a killed node was red after {shown:?}");
    assert!(shown <= SHOWN_WITHIN, "{shown:?}");
    let red = browser.run("return document.querySelector('#alarm').textContent").await.unwrap();
    assert_eq!(red, "down: n1");
    assert_eq!(browser.errors().await, Vec::<String>::new());
    drop(traffic);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_asks_for_the_token() {
    let options = ClusterOptions { nodes: &["n1"], ..OPTIONS };
    let mut cluster = Cluster::start_alone(TIDEGATE, options).await;
    cluster.nodes[0].restart_with_token("0123456789abcdef\n");
    let (http, admin) = (cluster.http.clone(), cluster.nodes[0].admin);
    let alive = async || http.get(admin, "/healthz").await.map(drop);
    until("it answers", Duration::from_secs(30), alive).await;

    let browser = Browser::start(1280, 1000).await;
    browser.open(&format!("http://{admin}/")).await;
    let enter = async |token: &str| {
        let script = format!(
            "document.querySelector('#token').value = '{token}'; \
             document.querySelector('#login').requestSubmit()"
        );
        browser.run(&script).await.unwrap();
    };
    holds(&browser, "the form is there", "!document.querySelector('#login').hidden").await;
    enter("fedcba9876543210").await;
    holds(
        &browser,
        "another one is asked for",
        "document.querySelector('#login-error').textContent \
        === 'not this one'",
    )
    .await;
    assert_eq!(browser.run("return document.querySelector('#main').hidden").await.unwrap(), true);
    enter("0123456789abcdef").await;
    holds(
        &browser,
        "the members are shown",
        "!document.querySelector('#main').hidden && \
        document.querySelectorAll('#member-rows tr').length === 1",
    )
    .await;
    let url = browser.run("return location.href + document.cookie").await.unwrap();
    assert_eq!(url, format!("http://{admin}/ui/"));
}
