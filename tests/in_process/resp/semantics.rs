//! `CL.THROTTLE` replies as redis-cell does, `TG.CHECK` by the rules.

use tidegate_limiter::policy::Mode;

use super::listener::{open, open_with};

const MS: u64 = 1_000_000;

#[tokio::test]
async fn a_burst_passes_and_then_the_rate() {
    let listener = open().await;
    let mut client = listener.client().await;
    // 30 in 60 s: one comes back every 2 s.
    for (remaining, reset) in [(2, 2), (1, 4), (0, 6)] {
        client.throttles("user 2 30 60", [0, 3, remaining, -1, reset]).await;
    }
    client.throttles("user 2 30 60", [1, 3, 0, 2, 6]).await;
    // One millisecond before it is there, the wait is rounded up to a second, never down to none.
    listener.later(1_999 * MS);
    client.throttles("user 2 30 60", [1, 3, 0, 1, 5]).await;
    listener.later(MS - 1);
    client.throttles("user 2 30 60", [1, 3, 0, 1, 5]).await;
    listener.later(1);
    client.throttles("user 2 30 60", [0, 3, 0, -1, 6]).await;
    client.throttles("other 2 30 60", [0, 3, 2, -1, 2]).await;
}

#[tokio::test]
async fn a_burst_of_one_lets_one_pass_at_a_time() {
    let listener = open().await;
    let mut client = listener.client().await;
    client.throttles("user 0 10 1", [0, 1, 0, -1, 1]).await;
    client.throttles("user 0 10 1", [1, 1, 0, 1, 1]).await;
    listener.later(100 * MS - 1);
    client.throttles("user 0 10 1", [1, 1, 0, 1, 1]).await;
    listener.later(1);
    client.throttles("user 0 10 1", [0, 1, 0, -1, 1]).await;
}

#[tokio::test]
async fn a_quantity_is_taken_whole_or_not_at_all() {
    let listener = open().await;
    let mut client = listener.client().await;
    // No hits: a read.
    client.throttles("user 9 10 10 0", [0, 10, 10, -1, 0]).await;
    client.throttles("user 9 10 10 4", [0, 10, 6, -1, 4]).await;
    client.throttles("user 9 10 10 7", [1, 10, 6, 1, 4]).await;
    client.throttles("user 9 10 10 0", [0, 10, 6, -1, 4]).await;
    // More than the limit is never let through, so there is nothing to wait for.
    client.throttles("user 9 10 10 11", [1, 10, 6, -1, 4]).await;
    // Below zero gives back.
    client.throttles("user 9 10 10 -3", [0, 10, 9, -1, 1]).await;
    client.throttles("user 9 10 10 9", [0, 10, 0, -1, 10]).await;
    // After the reset time of the reply the whole limit is there again.
    listener.later(10_000 * MS);
    client.throttles("user 9 10 10 10", [0, 10, 0, -1, 10]).await;
}

#[tokio::test]
async fn an_eventual_limit_holds_the_same_burst_and_rate() {
    let listener = open_with(|config| config.resp.mode = Some(Mode::Eventual)).await;
    let mut client = listener.client().await;
    // Three in each window of 3 · 60 / 30 = 6 s, of which 2 s have passed. Two counts forget the
    // first hit at the end of the next window. Near the limit it is known that a hit leaves after
    // 6 s, within a tick of 0.2 ms; whole seconds are rounded up.
    for (remaining, reset) in [(2, 10), (1, 7), (0, 7)] {
        client.throttles("user 2 30 60", [0, 3, remaining, -1, reset]).await;
    }
    client.throttles("user 2 30 60", [1, 3, 0, 7, 7]).await;
    listener.later(12_000 * MS);
    client.throttles("user 2 30 60 3", [0, 3, 0, -1, 10]).await;
}

/// Also of more than a batch: the second gives back what the first took, and the last takes it.
#[tokio::test]
async fn commands_of_a_pipeline_on_one_key_are_decided_in_their_order() {
    let listener = open().await;
    let mut client = listener.client().await;
    let others = (0..100).map(|other| format!("CL.THROTTLE other-{other} 9 10 86400\r\n"));
    let user = |hits: i32| format!("CL.THROTTLE user 9 10 86400 {hits}\r\n");
    client
        .send([user(10), user(-10)].into_iter().chain(others).collect::<String>() + &user(10))
        .await;
    client.expect("*5|:0|:10|:0|:-1|:86400|").await;
    client.expect("*5|:0|:10|:10|:-1|:0|").await;
    for _ in 0..100 {
        client.expect("*5|:0|:10|:9|:-1|:8640|").await;
    }
    client.expect("*5|:0|:10|:0|:-1|:86400|").await;
}

#[tokio::test]
async fn what_is_no_limit_is_an_error_and_counts_nothing() {
    let listener = open().await;
    let mut client = listener.client().await;
    for (command, error) in [
        ("CL.THROTTLE user 1 0 60", "Cell error: Zero rates are not supported"),
        ("CL.THROTTLE user 1 30 x", "Cell error: Couldn't parse as integer: x"),
        ("CL.THROTTLE user -1 30 60", "ERR max_burst must be 0 to 4294967294"),
        ("CL.THROTTLE user 1 30", "ERR wrong number of arguments for 'cl.throttle' command"),
        ("TG.CHECK edge user", "ERR wrong number of arguments for 'tg.check' command"),
    ] {
        client.exchange(command, &format!("-{error}|")).await;
    }
    assert_eq!(listener.stats.refused.get(), 5);
    client.throttles("user 1 30 60 0", [0, 2, 2, -1, 0]).await;
}

#[tokio::test]
async fn a_check_is_decided_by_the_rules() {
    let listener = open().await;
    let mut client = listener.client().await;
    // 1,700,000,000 is 800 s into its hour and 20 s into its minute.
    for (command, reply) in [
        ("TG.CHECK edge user a", "*5|:0|:3|:2|:-1|:2800|"),
        ("TG.CHECK edge user a HITS 2", "*5|:0|:3|:0|:-1|:2800|"),
        ("TG.CHECK edge user a", "*5|:1|:3|:0|:2800|:2800|"),
        ("TG.CHECK edge both x path /", "*5|:0|:1|:0|:-1|:40|"),
        ("TG.CHECK edge both x path /", "*5|:1|:1|:0|:40|:40|"),
        // A sixth number only where there is a soft limit.
        ("TG.CHECK edge soft a", "*6|:0|:3|:2|:-1|:2800|:0|"),
        ("TG.CHECK edge soft a", "*6|:0|:3|:1|:-1|:2800|:1|"),
        ("TG.CHECK edge soft a HITS 2", "*6|:1|:3|:0|:2800|:2800|:0|"),
        // Nothing limits these.
        ("TG.CHECK edge free a", "*5|:0|:-1|:-1|:-1|:-1|"),
        ("TG.CHECK edge unknown a", "*5|:0|:-1|:-1|:-1|:-1|"),
        ("TG.CHECK elsewhere user a", "*5|:0|:-1|:-1|:-1|:-1|"),
    ] {
        client.exchange(command, reply).await;
    }
}

/// A limit that cannot be known is none that is not there; what needs no rules goes on.
#[tokio::test]
async fn before_any_rules_are_loaded_nothing_is_decided_by_them() {
    let listener = open_with(|config| config.rules.required = false).await;
    let mut client = listener.client().await;
    let id = "5c1f04c9f1f8a7d60ee25f4e1a6b93d2";
    for command in [
        "TG.CHECK edge user a".to_owned(),
        "TG.RESERVE edge user a AMOUNT 2".to_owned(),
        format!("TG.COMMIT edge user a COST 2 ID {id}"),
        format!("TG.RELEASE edge user a ID {id}"),
    ] {
        let error = "-TRYAGAIN no rate limit configuration loaded|";
        client.exchange(&command, error).await;
    }
    client.throttles("user 1 30 60 0", [0, 2, 2, -1, 0]).await;
}
